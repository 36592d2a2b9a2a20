//! Unwind information in the form that the stack walker reads.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use breakpad_symbols::SymbolFile;
use breakpad_symbols::fuzzing_private_exports::WinStackThing;

/// What the record of a function contains if a signal or a trap interrupted its caller: rules that
/// load the stack pointer. The last one is that of `_sigtramp` of macOS, as `symbolic` writes it:
/// the address of the frame is the stack pointer that the system stored.
const LOADED: [&str; 3] = ["$rsp: ", "$esp: ", ".cfa: $rbx 48 + ^ 72 + ^"];

/// Unwind information that the stack walker reads. Cheap to clone.
#[derive(Clone)]
pub struct CfiRecords {
    file: Arc<SymbolFile>,
    bytes: usize,
}

impl CfiRecords {
    /// Parses the records of a Breakpad symbol file, if there are any.
    pub(crate) fn parse(mut records: impl Read) -> Result<Self, String> {
        let mut first = [0];
        let read = records
            .read(&mut first)
            .map_err(|error| error.to_string())?;
        let file = match read {
            // The parser rejects an empty file.
            0 => SymbolFile::parse(&b"INFO nothing\n"[..], |_| ()),
            _ => SymbolFile::parse(first.chain(records), |_| ()),
        };
        let file = file.map_err(|error| error.to_string())?;
        Ok(Self {
            bytes: memory_bytes(&file),
            file: Arc::new(file),
        })
    }

    /// Returns the records in the form that the stack walker reads.
    pub fn file(&self) -> &SymbolFile {
        &self.file
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.file.cfi_stack_info.is_empty()
            && self.file.win_stack_framedata_info.is_empty()
            && self.file.win_stack_fpo_info.is_empty()
    }

    /// Returns whether there is unwind information for an address, relative to the module.
    pub fn cover(&self, address: u64) -> bool {
        self.file.cfi_stack_info.get(address).is_some()
            || self.file.win_stack_framedata_info.get(address).is_some()
            || self.file.win_stack_fpo_info.get(address).is_some()
    }

    /// Returns whether a rule says that the function at an address has no caller.
    pub fn is_outermost(&self, address: u64) -> bool {
        let mut rules = self.rules(address).rev();
        let last = rules.find_map(|rules| Some(rules.split_once(".ra: ")?.1.starts_with(".undef")));
        last.unwrap_or_default()
    }

    /// Returns whether the caller of the frame at an address did not call, but was interrupted: by
    /// a signal or a trap. The stack pointer of such a caller is stored, because it does not follow
    /// from that of the frame.
    pub fn was_interrupted(&self, address: u64) -> bool {
        let mut rules = self.rules(address);
        rules.any(|rules| LOADED.iter().any(|rule| rules.contains(rule)))
    }

    /// Returns the rules that apply at an address, the later ones over the earlier ones.
    fn rules(&self, address: u64) -> impl DoubleEndedIterator<Item = &str> {
        let info = self.file.cfi_stack_info.get(address);
        info.into_iter().flat_map(move |info| {
            let more = info.add_rules.iter();
            let more = more.take_while(move |more| more.address <= address);
            // The order of an iterator that is taken in part can only be known by counting.
            let more: Vec<&str> = more.map(|more| &*more.rules).collect();
            std::iter::once(&*info.init.rules).chain(more)
        })
    }

    /// Returns how many bytes of parameters the function at an address removes from the stack when
    /// it returns. Only records of 32-bit Windows say so.
    pub fn parameter_bytes(&self, address: u64) -> Option<u32> {
        let frame_data = self.file.win_stack_framedata_info.get(address);
        let record = frame_data.or_else(|| self.file.win_stack_fpo_info.get(address));
        record.map(|record| record.parameter_size)
    }

    /// Returns the estimated memory of the records, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for CfiRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CfiRecords")
            .field("bytes", &self.bytes)
            .finish()
    }
}

/// Returns the estimated memory of a parsed file, in bytes.
fn memory_bytes(file: &SymbolFile) -> usize {
    let cfi = file.cfi_stack_info.ranges_values().map(|(_, info)| {
        let rules = info.add_rules.iter();
        let rules = rules.map(|more| size_of_val(more) + more.rules.len());
        size_of_val(info) + info.init.rules.len() + rules.sum::<usize>()
    });
    let frame_data = file.win_stack_framedata_info.ranges_values();
    let fpo = file.win_stack_fpo_info.ranges_values();
    let win = frame_data.chain(fpo).map(|(_, info)| {
        let program = match &info.program_string_or_base_pointer {
            WinStackThing::ProgramString(program) => program.len(),
            WinStackThing::AllocatesBasePointer(_) => 0,
        };
        size_of_val(info) + program
    });
    size_of::<SymbolFile>() + cfi.chain(win).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::CfiRecords;

    #[test]
    fn the_caller_of_a_trampoline_was_interrupted() {
        // The first record is that of a function whose frame the compiler aligned. The next ones
        // are those of trampolines: of Linux, and of macOS, as `symbolic` writes it.
        let records = "\
            STACK CFI INIT 1000 10 .cfa: $rbp -8 + ^ $rbx: $rbx .ra: .cfa -8 + ^\n\
            STACK CFI INIT 2000 10 .cfa: $rsp 160 + ^ .ra: $rsp 168 + ^ $rsp: $rsp 160 + ^\n\
            STACK CFI INIT 3000 10 $rbx: $rbx 48 + ^ 24 + ^ $rbp: $rbx 48 + ^ 64 + ^ \
            .cfa: $rbx 48 + ^ 72 + ^ .ra: $rbx 48 + ^ 144 + ^\n";
        let records = CfiRecords::parse(records.as_bytes()).unwrap();
        let found = [0x1008, 0x2008, 0x3008, 0x4008].map(|at| records.was_interrupted(at));
        assert_eq!(found, [false, true, true, false]);
    }
}
