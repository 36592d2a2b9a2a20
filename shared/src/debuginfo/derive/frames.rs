//! Reads unwind information into lines of Breakpad records, in parallel:
//!
//! - of ELF files, all of it;
//! - of PE files, that of programs for 32-bit Windows that GCC compiled ([`pe_frames`] reads that
//!   of the others);
//! - of Mach-O files, what Go compressed, and the sizes of large frames.
//!
//! The records are those that `symbolic` writes (`symbolic_cfi`, MIT), which is the oracle: tests
//! compare all fixtures. `symbolic` copies the row of each instruction, keeps a map for each
//! function, and writes text, which then has to be read again.
//!
//! What `symbolic` leaves out is read here, too ([`Rules::All`]):
//!
//! - the rules of functions that sign their return address (64-bit Arm);
//! - expressions that consist of a register, offsets and loads: frames that were aligned, and those
//!   of signal handlers;
//! - the stubs of procedure linkage tables, whose frames depend on the address;
//! - that a register has its own value again, or that its rule cannot be read;
//! - that the outermost function has no return address;
//! - the rules before an instruction that cannot be read, and those of the functions behind it;
//! - the functions that do not refer to an entry that cannot be read, and those that refer to one
//!   with letters of 64-bit Arm (`entries`).
//!
//! Entries of functions that the linker discarded are left out. They begin before the first code.
//!
//! Whatever else is unusual, such as another architecture, is left to `symbolic`: [`lines_of`] then
//! returns `None`.
//!
//! Sources of the format: DWARF 5, section 6.4; Linux Standard Base, "The .eh_frame section"; DWARF
//! for the Arm 64-bit Architecture, "Call frame instructions".

mod entries;
mod large_frames;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice, Error,
    FrameDescriptionEntry, Register, RegisterRule, RunTimeEndian, UnwindContext, UnwindExpression,
    UnwindOffset, UnwindSection, UnwindTableRow,
};
use symbolic::debuginfo::Object;
use symbolic::debuginfo::dwarf::{Dwarf as _, DwarfSection, Endian};
use symbolic::debuginfo::macho::MachObject;
use symbolic::debuginfo::pe::PeObject;

pub(in crate::debuginfo) use self::entries::has_functions;
use self::entries::{entry_at, with_known_letters};
use self::large_frames::LargeFrames;
use super::machine::{FrameBytes, Machine, Rules};
use super::stubs::Stubs;
use super::{dwarf, pe_frames};
use crate::debuginfo::quirks::eh_frame_is_misread;
use crate::debuginfo::slices::{CfiLines, CfiSource, LineCollector};
use crate::debuginfo::workers::in_order;

/// The most bytes that a function may have: the walker reads no longer ones. An entry with more is
/// none of a function, such as those of Free Pascal, whose fields are shifted.
const MAX_CODE: u64 = u32::MAX as u64;

/// The number of entries that a worker takes at a time.
const RUN: usize = 2048;

/// The most lines of stubs in a run: two for each of 65,536 stubs. A malformed entry may say that
/// it is as large as memory.
const MAX_STUB_LINES: usize = 1 << 17;

/// Returns the lines of all records of an object. Returns `None` if `symbolic` has to read them.
pub(super) fn lines_of(object: &Object<'_>, workers: usize) -> Option<CfiLines> {
    read(object, RUN, workers, Rules::All)
}

/// Reads the lines in runs of a number of entries.
fn read(object: &Object<'_>, run: usize, workers: usize, rules: Rules) -> Option<CfiLines> {
    let elf = match object {
        Object::Elf(elf) => elf,
        Object::Pe(pe) => match pe_frames::eh_frame(pe) {
            Some(found) => return of_pe(pe, &found, run, workers, rules),
            None => return pe_frames::read(pe, run, workers),
        },
        Object::MachO(mach) => match compressed_in_mach(mach) {
            Some(found) => return of_mach(mach, &found, run, workers, rules),
            None => return with_large_frames(object, mach, rules),
        },
        _ => return None,
    };
    let (machine, vendor) = Machine::of(elf, rules)?;
    let address_size = u8::try_from(elf.arch().cpu_family().pointer_size()?).ok()?;
    let endian = match elf.endianity() {
        Endian::Little => RunTimeEndian::Little,
        Endian::Big => RunTimeEndian::Big,
    };
    let mut all = LineCollector::default();
    if let Some(found) = elf.section("debug_frame") {
        let data = readable(&found.data, endian, machine, true);
        let bytes = EndianSlice::new(&data, endian);
        let mut section = DebugFrame::from(bytes);
        section.set_address_size(address_size);
        section.set_vendor(vendor);
        let entries = UnwindEntries::of(section, bytes, found.address, machine, true);
        entries.read(run, workers, &mut all)?;
    }
    if let Some(found) = elf.section("eh_frame") {
        let data = readable(&found.data, endian, machine, false);
        let bytes = EndianSlice::new(&data, endian);
        let mut section = EhFrame::from(bytes);
        section.set_address_size(address_size);
        section.set_vendor(vendor);
        let entries = UnwindEntries::of(section, bytes, found.address, machine, false);
        entries.read(run, workers, &mut all)?;
    }
    Some(all.finish())
}

/// Returns a section of an ELF file as `gimli` can read it. Only compilers for 64-bit Arm write
/// letters that it, and `symbolic`, do not know.
fn readable(
    section: &[u8],
    endian: RunTimeEndian,
    machine: Machine,
    is_debug_frame: bool,
) -> Cow<'_, [u8]> {
    if machine.has_link_register && machine.rules == Rules::All {
        with_known_letters(section, endian, is_debug_frame)
    } else {
        Cow::Borrowed(section)
    }
}

/// Reads the lines of a PE file with an `.eh_frame`.
fn of_pe(
    pe: &PeObject<'_>,
    found: &DwarfSection<'_>,
    run: usize,
    workers: usize,
    rules: Rules,
) -> Option<CfiLines> {
    let bytes = EndianSlice::new(&found.data, RunTimeEndian::Little);
    let mut section = EhFrame::from(bytes);
    section.set_address_size(4);
    let machine = Machine::of_x86(pe, rules);
    let address = machine.load_address.checked_add(found.address)?;
    let entries = UnwindEntries::of(section, bytes, address, machine, false);
    let mut all = LineCollector::default();
    entries.read(run, workers, &mut all)?;
    Some(all.finish())
}

/// Returns the unwind information of a Mach-O file, if it is compressed, as Go does it. If the file
/// has other unwind information, `symbolic` reads that.
pub(in crate::debuginfo) fn compressed_in_mach<'d>(
    mach: &MachObject<'d>,
) -> Option<DwarfSection<'d>> {
    if mach.has_unwind_info() {
        None
    } else {
        dwarf::section(mach, "debug_frame")
    }
}

/// Returns the lines that `symbolic` writes for a Mach-O file, with the rules of large frames.
/// Returns `None` if the file has no large frames, or if `symbolic` cannot read it.
fn with_large_frames(object: &Object<'_>, mach: &MachObject<'_>, rules: Rules) -> Option<CfiLines> {
    if rules != Rules::All || eh_frame_is_misread(object) {
        return None;
    }
    let frames = LargeFrames::of(mach)?;
    match CfiSource::of(|out| frames.write(object, out)).ok()? {
        CfiSource::Lines(lines) => Some(lines),
        CfiSource::Parsed(_) => None,
    }
}

/// Reads the lines of a Mach-O file whose unwind information is compressed.
fn of_mach(
    mach: &MachObject<'_>,
    found: &DwarfSection<'_>,
    run: usize,
    workers: usize,
    rules: Rules,
) -> Option<CfiLines> {
    let (machine, vendor) = Machine::of_mach(mach, rules)?;
    let bytes = EndianSlice::new(&found.data, RunTimeEndian::Little);
    let mut section = DebugFrame::from(bytes);
    section.set_address_size(8);
    section.set_vendor(vendor);
    let mut all = LineCollector::default();
    let entries = UnwindEntries::of(section, bytes, found.address, machine, true);
    entries.read(run, workers, &mut all)?;
    Some(all.finish())
}

/// A section with unwind information.
struct UnwindEntries<'i, S> {
    section: S,
    bytes: FrameBytes<'i>,
    bases: BaseAddresses,
    machine: Machine,
    /// Whether it is a `.debug_frame`, not an `.eh_frame`.
    is_debug_frame: bool,
}

impl<'i, S: UnwindSection<FrameBytes<'i>>> UnwindEntries<'i, S> {
    fn of(
        section: S,
        bytes: FrameBytes<'i>,
        address: u64,
        machine: Machine,
        is_debug_frame: bool,
    ) -> Self {
        Self {
            section,
            bytes,
            bases: BaseAddresses::default().set_eh_frame(address),
            machine,
            is_debug_frame,
        }
    }

    /// Adds the lines of all entries.
    fn read(&self, run: usize, workers: usize, all: &mut LineCollector) -> Option<()>
    where
        S: Sync,
    {
        let runs = self.runs(run)?;
        let begin = || FrameReader::new(self.machine);
        let read = in_order(runs.len(), workers, begin, |reader, number| {
            reader.run(self, runs[number].clone())
        });
        all.append_all(read.into_iter().collect::<Option<_>>()?)
    }

    /// Returns the offsets of runs of whole entries.
    fn runs(&self, run: usize) -> Option<Vec<Range<usize>>> {
        let (mut runs, mut begin, mut at, mut count) = (Vec::new(), 0, 0, 0);
        while let Some(entry) = entry_at(self.bytes, self.is_debug_frame, at).ok()? {
            at = entry.end;
            count += 1;
            if count == run {
                runs.push(begin..at);
                (begin, count) = (at, 0);
            }
        }
        runs.push(begin..at);
        Some(runs)
    }
}

type Cie<'i> = CommonInformationEntry<FrameBytes<'i>>;

/// Reads entries. Reuses its buffers from one entry to the next.
struct FrameReader<'i> {
    machine: Machine,
    context: UnwindContext<usize>,
    /// The entry that the last function referred to, and its offset.
    shared: Option<(usize, Result<Cie<'i>, Error>)>,
    /// The lines of the current function.
    lines: Vec<FunctionLine>,
    /// The last rule of each register in the current function.
    known: Vec<(Register, RegisterRule<usize>)>,
    /// The number of lines that stubs of the current run may still have.
    stub_lines_left: usize,
    text: String,
}

/// The rules that apply from an address on.
struct FunctionLine {
    is_first: bool,
    address: u64,
    rules: u32,
}

impl<'i> FrameReader<'i> {
    fn new(machine: Machine) -> Self {
        Self {
            machine,
            context: UnwindContext::new(),
            shared: None,
            lines: Vec::new(),
            known: Vec::new(),
            stub_lines_left: 0,
            text: String::new(),
        }
    }

    /// Returns the lines of a run of entries.
    fn run<S: UnwindSection<FrameBytes<'i>>>(
        &mut self,
        frames: &UnwindEntries<'i, S>,
        run: Range<usize>,
    ) -> Option<LineCollector> {
        let mut lines = LineCollector::default();
        self.stub_lines_left = MAX_STUB_LINES;
        let mut at = run.start;
        while at < run.end {
            let entry = entry_at(frames.bytes, frames.is_debug_frame, at).ok()??;
            at = entry.end;
            if entry.is_shared {
                // One that cannot be read costs the rules of its functions. With `symbolic`, it
                // costs all.
                let shared = self.shared_at(frames, entry.offset);
                if shared.is_err() && self.machine.rules != Rules::All {
                    return None;
                }
            } else {
                self.function(frames, entry.offset, &mut lines)?;
            }
        }
        Some(lines)
    }

    fn shared_at<S: UnwindSection<FrameBytes<'i>>>(
        &mut self,
        frames: &UnwindEntries<'i, S>,
        offset: usize,
    ) -> Result<Cie<'i>, Error> {
        match &self.shared {
            Some((known, shared)) if *known == offset => shared.clone(),
            _ => {
                let shared = frames.section.cie_from_offset(&frames.bases, offset.into());
                self.shared = Some((offset, shared.clone()));
                shared
            }
        }
    }

    /// Adds the lines of the entry of a function.
    fn function<S: UnwindSection<FrameBytes<'i>>>(
        &mut self,
        frames: &UnwindEntries<'i, S>,
        offset: usize,
        all: &mut LineCollector,
    ) -> Option<()> {
        let partial = frames
            .section
            .partial_fde_from_offset(&frames.bases, offset.into())
            .ok()?;
        let shared = |_: &S, _: &BaseAddresses, offset: S::Offset| {
            self.shared_at(frames, UnwindOffset::into(offset))
        };
        let entry = partial.parse(shared);
        // As in `symbolic`, an entry that cannot be parsed is ignored.
        let Ok(entry) = entry else { return Some(()) };
        if entry.initial_address() == u64::MAX {
            return Some(());
        }
        let return_address = entry.cie().return_address_register();
        self.lines.clear();
        self.known.clear();
        let mut context = std::mem::take(&mut self.context);
        let length = self.rows(&entry, frames, &mut context, return_address, all);
        self.context = context;
        let length = length?;
        // For the comparison with `symbolic`, it counts.
        if length > MAX_CODE && self.machine.rules == Rules::All {
            return Some(());
        }
        for line in self.lines.drain(..) {
            if line.is_first {
                all.begin(line.address, length, line.rules)?;
            } else {
                all.add(line.address, line.rules)?;
            }
        }
        Some(())
    }

    /// Reads the rows of a function into `self.lines`. Returns the number of bytes that they cover.
    fn rows<S: UnwindSection<FrameBytes<'i>>>(
        &mut self,
        entry: &FrameDescriptionEntry<FrameBytes<'i>>,
        frames: &UnwindEntries<'i, S>,
        context: &mut UnwindContext<usize>,
        return_address: Register,
        all: &mut LineCollector,
    ) -> Option<u64> {
        let mut rows = entry.rows(&frames.section, &frames.bases, context).ok()?;
        let (machine, encoding) = (self.machine, entry.cie().encoding());
        let translated = |expression: &UnwindExpression<usize>| {
            machine.postfix(expression.get(&frames.section).ok()?, encoding)
        };
        let stubs_of = |rule: &CfaRule<usize>| match rule {
            CfaRule::Expression(expression) => {
                let expression = expression.get(&frames.section).ok()?;
                let name = |register| machine.name(register);
                Stubs::of(expression.operations(encoding), name)
                    .filter(|_| machine.rules == Rules::All)
            }
            CfaRule::RegisterAndOffset { .. } => None,
        };
        let (mut start, mut end, mut last_cfa) = (None, 0, None);
        loop {
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                // As in `symbolic`.
                Err(Error::UnknownCallFrameInstruction(_) | Error::TooManyRegisterRules) => {
                    continue;
                }
                Err(_) if self.machine.rules == Rules::All => break,
                Err(_) => return None,
            };
            end = row.end_address();
            let start = *start.get_or_insert(row.start_address());
            if start < self.machine.first_code {
                // Such an entry belongs to a function that the linker discarded. No line of it is
                // kept. For the comparison with `symbolic`, errors in it count.
                continue;
            }
            let is_first = row.start_address() == start;
            self.text.clear();
            let mut stubs = None;
            if last_cfa.as_ref() != Some(row.cfa()) {
                stubs = stubs_of(row.cfa());
                match &stubs {
                    Some(stubs) => {
                        let (name, offset) = stubs.at(row.start_address());
                        self.part(format_args!(".cfa: {name} {offset} +"));
                    }
                    None => self.cfa(row.cfa(), &translated)?,
                }
                last_cfa = Some(row.cfa().clone());
            }
            let mut has_return_address = false;
            for (register, rule) in row.registers() {
                let known = self.known.iter_mut().find(|(known, _)| known == register);
                match known {
                    Some((_, known)) if known == rule => continue,
                    Some((_, known)) => *known = rule.clone(),
                    None => self.known.push((*register, rule.clone())),
                }
                has_return_address |= *register == return_address;
                self.register(*register, rule, return_address, &translated)?;
            }
            self.restore(row, return_address);
            let has_rules = !self.text.is_empty();
            if is_first && !has_return_address && self.machine.has_link_register {
                let name = self.machine.name(return_address)?;
                self.part(format_args!(".ra: {name}"));
            }
            let address = row.start_address().checked_sub(self.machine.load_address)?;
            if has_rules {
                self.lines.push(FunctionLine {
                    is_first,
                    address,
                    rules: all.rules(&self.text)?,
                });
            }
            if let Some(stubs) = stubs {
                let bytes = row.end_address().saturating_sub(row.start_address());
                self.stubs(stubs, address, bytes, all)?;
            }
        }
        end.checked_sub(start.unwrap_or(end))
    }

    /// Writes the rule for the address of the frame. Returns `None` if `symbolic` cannot read it.
    fn cfa(&mut self, rule: &CfaRule<usize>, translated: &Translate<'_>) -> Option<()> {
        match rule {
            CfaRule::RegisterAndOffset { register, offset } => {
                let name = self.machine.name(*register)?;
                self.part(format_args!(".cfa: {name} {offset} +"));
            }
            CfaRule::Expression(expression) => match translated(expression) {
                Some(text) => self.part(format_args!(".cfa: {text}")),
                None => self.undefined(".cfa"),
            },
        }
        Some(())
    }

    /// Writes that a rule cannot be read, so that the one before it does not apply any longer.
    /// `symbolic` keeps the one before it.
    fn undefined(&mut self, name: &str) {
        if self.machine.rules == Rules::All {
            self.part(format_args!("{name}: .undef"));
        }
    }

    /// Writes the rule for a register, if there is one. Returns `None` if `symbolic` cannot read
    /// it.
    fn register(
        &mut self,
        register: Register,
        rule: &RegisterRule<usize>,
        return_address: Register,
        translated: &Translate<'_>,
    ) -> Option<()> {
        let name = if register == return_address {
            Some(".ra")
        } else {
            self.machine.name(register)
        };
        let name = match (name, self.machine.rules) {
            (Some(name), _) => name,
            // No walk needs it: floating-point registers, and whether a return address is signed.
            (None, Rules::All) => return Some(()),
            #[cfg(test)]
            (None, Rules::OfSymbolic) => return None,
        };
        match rule {
            RegisterRule::SameValue => {
                let same = self.machine.name(register)?;
                self.part(format_args!("{name}: {same}"));
            }
            RegisterRule::Offset(offset) => self.part(format_args!("{name}: .cfa {offset} + ^")),
            RegisterRule::ValOffset(offset) => self.part(format_args!("{name}: .cfa {offset} +")),
            RegisterRule::Register(other) => {
                let other = self.machine.name(*other)?;
                self.part(format_args!("{name}: {other}"));
            }
            RegisterRule::Expression(expression) => match translated(expression) {
                Some(text) => self.part(format_args!("{name}: {text} ^")),
                None => self.undefined(name),
            },
            RegisterRule::ValExpression(expression) => match translated(expression) {
                Some(text) => self.part(format_args!("{name}: {text}")),
                None => self.undefined(name),
            },
            // The outermost function.
            RegisterRule::Undefined if name == ".ra" => self.undefined(name),
            _ => {}
        }
        Some(())
    }

    /// Writes which registers have their own value again: their rules do not apply any longer.
    fn restore(&mut self, row: &UnwindTableRow<usize>, return_address: Register) {
        if self.machine.rules != Rules::All {
            return;
        }
        let has_rule = |register| row.register(register).is_some();
        let mut restored = Vec::new();
        self.known.retain(|(register, _)| {
            let is_kept = has_rule(*register);
            restored.extend((!is_kept).then_some(*register));
            is_kept
        });
        for register in restored {
            let Some(own) = self.machine.name(register) else {
                continue;
            };
            if register != return_address {
                self.part(format_args!("{own}: {own}"));
            } else if self.machine.has_link_register {
                self.part(format_args!(".ra: {own}"));
            } else {
                // The outermost function.
                self.part(format_args!(".ra: .undef"));
            }
        }
    }

    /// Adds the lines of stubs behind the first line of their entry, at an address.
    fn stubs(
        &mut self,
        stubs: Stubs,
        address: u64,
        bytes: u64,
        all: &mut LineCollector,
    ) -> Option<()> {
        let start = address.wrapping_add(self.machine.load_address);
        for (offset, (name, top)) in stubs.changes(start, bytes) {
            let Some(left) = self.stub_lines_left.checked_sub(1) else {
                break;
            };
            self.stub_lines_left = left;
            self.lines.push(FunctionLine {
                is_first: false,
                address: address.checked_add(offset)?,
                rules: all.rules(&format!(".cfa: {name} {top} +"))?,
            });
        }
        Some(())
    }

    /// Adds a part to the text of a line.
    fn part(&mut self, part: std::fmt::Arguments<'_>) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(part);
    }
}

/// Returns an expression in the notation of a record, or `None` if it is not a simple one.
type Translate<'a> = dyn Fn(&UnwindExpression<usize>) -> Option<String> + 'a;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use symbolic::debuginfo::Archive;

    use super::*;
    use crate::cache::Kind;
    use crate::debuginfo::blob;
    use crate::debuginfo::derive::cfi::write_records;
    use crate::debuginfo::derive::registers::{AMD64, ARM64};
    use crate::debuginfo::panics::caught;
    use crate::debuginfo::slices::{self, Bounds};
    use crate::debuginfo::tests::{Opened, debug_files, fixture, text};

    /// Small slices, so that the records around each one count.
    const BOUNDS: Bounds = Bounds {
        ranges: 5,
        raw_bytes: 1 << 20,
    };

    /// Returns the blob with these records.
    fn encoded(object: &Object<'_>, records: &CfiSource, workers: usize) -> Vec<u8> {
        let debug_id = Some(object.debug_id()).filter(|id| !id.is_nil());
        let contents = blob::unfiled(Kind::CfiCache, object.arch(), debug_id);
        slices::encode_cfi(records, &contents, BOUNDS, workers).unwrap()
    }

    /// Compares with the oracle. Returns the size of the blob if the lines are read here.
    fn compared(object: &Object<'_>, run: usize, workers: usize) -> Option<usize> {
        // `symbolic` may panic: it adds without checking the sum.
        let lines =
            CfiSource::Lines(caught(|| read(object, run, workers, Rules::OfSymbolic)).ok()??);
        let oracle = caught(|| CfiSource::of(|out| write_records(object, out)));
        let oracle = oracle.ok()?.unwrap();
        let blob = encoded(object, &lines, workers);
        assert!(blob == encoded(object, &oracle, 1), "{run} {workers}");
        Some(blob.len())
    }

    const HERE: Machine = Machine {
        registers: AMD64,
        has_link_register: false,
        load_address: 0,
        first_code: 0x1000,
        rules: Rules::All,
    };

    /// Returns the records of a `.debug_frame` with functions, each with its address, its size and
    /// its instructions. A function is entered with `rsp` at its return address, and one on Arm
    /// with it in `x30`.
    fn records(machine: Machine, functions: &[(u64, u64, &[u8])]) -> String {
        const DEF_CFA_RSP_8_OFFSET_RIP: &[u8] = &[0x0c, 7, 8, 0x90, 1];
        const DEF_CFA_SP_0: &[u8] = &[0x0c, 31, 0];
        let (return_address, begin) = if machine.has_link_register {
            (30, DEF_CFA_SP_0)
        } else {
            (16, DEF_CFA_RSP_8_OFFSET_RIP)
        };
        // The version, no augmentation, and the factors 1 and -8.
        let mut bytes = entry(u32::MAX, &[&[1, 0, 1, 0x78, return_address], begin]);
        for (address, size, instructions) in functions {
            bytes.extend(entry(
                0,
                &[&address.to_le_bytes(), &size.to_le_bytes(), instructions],
            ));
        }
        records_of(machine, &bytes)
    }

    /// Returns an entry with this id, which is an offset or says that functions share the entry.
    fn entry(id: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = [&id.to_le_bytes()[..], &body.concat()].concat();
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    }

    /// Returns the records of a `.debug_frame` with these bytes.
    fn records_of(machine: Machine, bytes: &[u8]) -> String {
        let bytes = EndianSlice::new(bytes, RunTimeEndian::Little);
        let mut section = DebugFrame::from(bytes);
        section.set_address_size(8);
        section.set_vendor(gimli::Vendor::AArch64);
        let entries = UnwindEntries {
            section,
            bytes,
            bases: BaseAddresses::default(),
            machine,
            is_debug_frame: true,
        };
        let mut lines = LineCollector::default();
        entries.read(RUN, 1, &mut lines).unwrap();
        CfiSource::Lines(lines.finish()).text()
    }

    /// Returns a Mach-O file for 64-bit x86 with one section, whose name has 16 bytes.
    fn mach_of(name: &[u8; 16], section: &[u8]) -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let longs = |longs: &[u64]| longs.iter().flat_map(|long| long.to_le_bytes()).collect();
        // mach-o/loader.h: `mach_header_64`, `segment_command_64` and `section_64`.
        const START: u32 = 32 + 72 + 80;
        let (start, bytes) = (u64::from(START), section.len() as u64);
        let segment = b"__DWARF\0\0\0\0\0\0\0\0\0";
        let parts: [Vec<u8>; 10] = [
            words(&[0xfeed_facf, 0x0100_0007, 3, 2, 1, 72 + 80, 0, 0]),
            words(&[0x19, 72 + 80]),
            segment.to_vec(),
            longs(&[0, start + bytes, 0, start + bytes]),
            words(&[7, 7, 1, 0]),
            name.to_vec(),
            segment.to_vec(),
            longs(&[start, bytes]),
            words(&[START, 0, 0, 0, 0, 0, 0, 0]),
            section.to_vec(),
        ];
        parts.concat()
    }

    #[test]
    fn unwind_information_of_mach_o_files_that_go_compressed_is_read() {
        // As in `records`: what the functions have in common, and a function that pushes.
        let shared = [
            0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1,
        ];
        let address_and_size = [0x1000_u64.to_le_bytes(), 0x10_u64.to_le_bytes()].concat();
        let function = [&[0; 4][..], &address_and_size, &[0x41, 0x0e, 16]].concat();
        let mut frames = Vec::new();
        for entry in [&shared[..], &function] {
            frames.extend((entry.len() as u32).to_le_bytes());
            frames.extend(entry);
        }
        let mut packed = [&b"ZLIB"[..], &(frames.len() as u64).to_be_bytes()].concat();
        let mut zlib = flate2::write::ZlibEncoder::new(&mut packed, Default::default());
        std::io::Write::write_all(&mut zlib, &frames).unwrap();
        zlib.finish().unwrap();
        let file = mach_of(b"__zdebug_frame\0\0", &packed);
        let lines = lines_of(&Object::parse(&file).unwrap(), 1).unwrap();
        assert_eq!(
            CfiSource::Lines(lines).text(),
            "STACK CFI INIT 1000 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n\
             STACK CFI 1001 .cfa: $rsp 16 +\n"
        );
        let inspected = |file: &[u8]| Opened::together(&[(file, None)]).inspection;
        let is_unwound = |file: &[u8]| inspected(file).objects[0].features.has_unwind_info;
        assert!(is_unwound(&file));
        assert!(!is_unwound(&mach_of(b"__zdebug_types\0\0", &packed)));
        // `symbolic` reads what is not compressed.
        let plain = mach_of(b"__debug_frame\0\0\0", &frames);
        assert!(lines_of(&Object::parse(&plain).unwrap(), 1).is_none());
        assert!(is_unwound(&plain));
    }

    #[test]
    fn expressions_of_registers_offsets_and_loads_are_read() {
        // As GCC writes them for a frame that it aligns: the address of the frame is stored below
        // `rbp`, and `r12` below that.
        let aligned: &[u8] = &[0x41, 0x0f, 3, 0x76, 0x78, 0x06, 0x10, 12, 2, 0x76, 0x70];
        assert_eq!(
            records(HERE, &[(0x1000, 16, aligned)]),
            "STACK CFI INIT 1000 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n\
             STACK CFI 1001 .cfa: $rbp -8 + ^ $r12: $rbp -16 + ^\n"
        );
        // Others end the rule before them: a load from a constant.
        let other: &[u8] = &[0x41, 0x0f, 2, 0x31, 0x06];
        assert_eq!(
            records(HERE, &[(0x1000, 16, other)]),
            "STACK CFI INIT 1000 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n\
             STACK CFI 1001 .cfa: .undef\n"
        );
    }

    #[test]
    fn each_stub_of_a_linkage_table_has_its_frame_before_and_after_it_pushes() {
        // As GNU ld writes it: $rsp + 8 + ((($rip & 15) >= 11) << 3).
        let stubs: &[u8] = &[
            0x0e, 16, 0x46, 0x0e, 24, 0x4a, 0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a,
            0x33, 0x24, 0x22,
        ];
        assert_eq!(
            records(HERE, &[(0x1000, 0x30, stubs)]),
            "STACK CFI INIT 1000 30 .cfa: $rsp 16 + .ra: .cfa -8 + ^\n\
             STACK CFI 1006 .cfa: $rsp 24 +\n\
             STACK CFI 1010 .cfa: $rsp 8 +\n\
             STACK CFI 101b .cfa: $rsp 16 +\n\
             STACK CFI 1020 .cfa: $rsp 8 +\n\
             STACK CFI 102b .cfa: $rsp 16 +\n"
        );
    }

    #[test]
    fn an_entry_that_covers_more_than_any_function_is_left_out() {
        let functions = [(0x1000, 1 << 33, &[][..]), (0x2000, 16, &[])];
        assert_eq!(
            records(HERE, &functions),
            "STACK CFI INIT 2000 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n"
        );
    }

    #[test]
    fn the_outermost_function_has_no_return_address() {
        const UNDEFINED_RIP: &[u8] = &[0x07, 16];
        assert_eq!(
            records(HERE, &[(0x1000, 16, UNDEFINED_RIP)]),
            "STACK CFI INIT 1000 10 .cfa: $rsp 8 + .ra: .undef\n"
        );
        let later = [&[0x41][..], UNDEFINED_RIP].concat();
        assert_eq!(
            records(HERE, &[(0x1000, 16, &later)]),
            "STACK CFI INIT 1000 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n\
             STACK CFI 1001 .ra: .undef\n"
        );
    }

    #[test]
    fn a_register_that_is_restored_has_its_own_value() {
        let on_arm = Machine {
            registers: ARM64,
            has_link_register: true,
            ..HERE
        };
        // Signs its return address, saves `x29` and `x30`, and restores both.
        let saved: &[u8] = &[
            0x41, 0x2d, 0x41, 0x0e, 16, 0x9d, 2, 0x9e, 1, 0x44, 0xde, 0xdd, 0x0e, 0,
        ];
        assert_eq!(
            records(on_arm, &[(0x1000, 16, saved)]),
            "STACK CFI INIT 1000 10 .cfa: sp 0 + .ra: x30\n\
             STACK CFI 1002 .cfa: sp 16 + x29: .cfa -16 + ^ .ra: .cfa -8 + ^\n\
             STACK CFI 1006 .cfa: sp 0 + x29: x29 .ra: x30\n"
        );
    }

    #[test]
    fn an_entry_that_cannot_be_read_costs_its_own_rules_only() {
        // More states are remembered than `gimli` has room for; then the stack of states is empty.
        let remembers: &[u8] = &[0x41, 0x0e, 16, 0x0a, 0x0a, 0x0a, 0x0a, 0x0a, 0x41, 0x0e, 24];
        let forgets: &[u8] = &[0x41, 0x0e, 16, 0x0b];
        let plain: &[u8] = &[0x41, 0x0e, 32];
        let functions = [
            (0x1000, 16, remembers),
            (0x1010, 16, forgets),
            (0x1020, 16, plain),
        ];
        let all = records(HERE, &functions);
        assert!(all.contains("STACK CFI INIT 1020 10 "), "{all}");
        assert!(all.contains("STACK CFI 1021 .cfa: $rsp 32 +"), "{all}");
        assert!(all.contains("STACK CFI INIT 1000 "), "{all}");
    }

    #[test]
    fn what_functions_have_in_common_and_cannot_be_read_costs_only_their_rules() {
        let shared = |augmentation: &[u8]| {
            let rest = [1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
            entry(u32::MAX, &[&[1], augmentation, &[0], &rest])
        };
        let function = |shared: usize, address: u64| {
            let size = 16_u64.to_le_bytes();
            entry(shared as u32, &[&address.to_le_bytes(), &size])
        };
        let (known, unknown) = (shared(b""), shared(b"?"));
        let others = known.len();
        let bytes = [
            known,
            unknown,
            function(0, 0x1000),
            function(others, 0x1010),
            function(0, 0x1020),
        ];
        assert_eq!(
            records_of(HERE, &bytes.concat()),
            "STACK CFI INIT 1000 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n\
             STACK CFI INIT 1020 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n"
        );
    }

    /// Functions that sign their return addresses with the key B, or that tag the stack.
    #[test]
    fn functions_whose_entries_have_letters_of_64_bit_arm_are_read() {
        let read = |dif: &[u8]| {
            let lines = lines_of(&Object::parse(dif).unwrap(), 1).unwrap();
            CfiSource::Lines(lines).text()
        };
        let mut dif = fixture("elf/crash-arm64");
        let expected = read(&dif);
        assert!(expected.lines().count() > 5, "{expected}");
        let start = {
            let Object::Elf(elf) = Object::parse(&dif).unwrap() else {
                panic!()
            };
            elf.raw_section("eh_frame").unwrap().offset as usize
        };
        // The first entry, without its length, its id and its version, begins with `zR`. It ends
        // with four bytes of padding.
        let end = start + 24;
        assert_eq!(dif[start + 9..start + 12], *b"zR\0");
        assert_eq!(dif[end - 4..end], [0; 4]);
        for letter in *b"BGS" {
            dif[start + 11..end].rotate_right(1);
            dif[start + 11] = letter;
            assert_eq!(read(&dif), expected);
        }
        // An unknown letter costs the rules of all functions that refer to the entry.
        dif[start + 11] = b'?';
        assert_eq!(read(&dif), "");
    }

    /// Returns a program in a Mach-O file for 64-bit x86, with its code at 0x200 and compact unwind
    /// information behind it.
    fn compact_mach(code: &[u8], unwind_info: &[u8]) -> Vec<u8> {
        const START: usize = 0x200;
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let longs = |longs: &[u64]| longs.iter().flat_map(|long| long.to_le_bytes()).collect();
        let (base, behind) = (1_u64 << 32, START + code.len());
        let end = (behind + unwind_info.len()) as u64;
        let segment = b"__TEXT\0\0\0\0\0\0\0\0\0\0";
        let section = |name: &[u8; 16], at: usize, length: usize| -> Vec<u8> {
            let place: Vec<u8> = longs(&[base + at as u64, length as u64]);
            let rest: Vec<u8> = words(&[at as u32, 0, 0, 0, 0, 0, 0, 0]);
            [&name[..], segment, &place, &rest].concat()
        };
        // mach-o/loader.h: `mach_header_64`, `segment_command_64` and two `section_64`.
        let parts: [Vec<u8>; 7] = [
            words(&[0xfeed_facf, 0x0100_0007, 3, 2, 1, 72 + 160, 0, 0]),
            words(&[0x19, 72 + 160]),
            segment.to_vec(),
            longs(&[base, end, 0, end]),
            words(&[7, 7, 2, 0]),
            section(b"__text\0\0\0\0\0\0\0\0\0\0", START, code.len()),
            section(b"__unwind_info\0\0\0", behind, unwind_info.len()),
        ];
        let mut file = parts.concat();
        file.resize(START, 0);
        [&file[..], code, unwind_info].concat()
    }

    #[test]
    fn a_large_frame_of_a_mach_o_file_is_as_large_as_its_code_says() {
        // As clang writes them. The first function pushes `rbx`, and the second one all registers
        // that it preserves. The third one has no frame. The last one calls another function to
        // reserve the stack.
        const PUSH_RBX_SUB_RSP: &[u8] = &[0x53, 0x48, 0x81, 0xec, 0x90, 0x13, 0, 0];
        const PUSH_ALL_SUB_RSP: &[u8] = &[
            0x55, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x53, 0x48, 0x81, 0xec, 0x98,
            0x13, 0, 0,
        ];
        const OTHER: &[u8] = &[0x53, 0xb8, 0x90, 0x13, 0, 0, 0xe8, 0, 0, 0, 0];
        let functions = [PUSH_RBX_SUB_RSP, PUSH_ALL_SUB_RSP, &[0xc3], OTHER];
        let code = functions.map(|function| {
            let mut function = function.to_vec();
            function.resize(32, 0x90);
            function
        });
        let words: [&[u32]; 6] = [
            // One common encoding, and two pages in the index.
            &[1, 28, 1, 32, 0, 32, 2],
            // The encoding of the first and the last function.
            &[0x0304_4400],
            // The second page is the end.
            &[0x200, 56, 0, 0x280, 0, 0],
            // A compressed page with four entries and two encodings.
            &[3, 0x0004_000c, 0x0002_001c],
            // The offset and the number of the encoding of each function.
            &[0, 0x0100_0020, 0x0200_0040, 0x0000_0060],
            // The encodings of the second and the third function.
            &[0x030d_f800, 0],
        ];
        let unwind_info = words.concat().into_iter().flat_map(u32::to_le_bytes);
        let unwind_info: Vec<u8> = unwind_info.collect();
        let file = compact_mach(&code.concat(), &unwind_info);
        let object = Object::parse(&file).unwrap();
        let of_symbolic = CfiSource::of(|out| write_records(&object, out)).unwrap();
        let without_frame = |address: u32| {
            format!("STACK CFI INIT {address:x} 20 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n")
        };
        let expected = [0x200, 0x220, 0x240, 0x260].map(without_frame);
        assert_eq!(of_symbolic.text(), expected.concat());
        let lines = lines_of(&object, 1).unwrap();
        assert_eq!(
            CfiSource::Lines(lines).text(),
            "STACK CFI INIT 200 20 .cfa: $rsp 5024 + .ra: .cfa -8 + ^ $rbx: .cfa -16 + ^\n\
             STACK CFI INIT 220 20 .cfa: $rsp 5072 + .ra: .cfa -8 + ^ $rbx: .cfa -56 + ^ \
             $r12: .cfa -48 + ^ $r13: .cfa -40 + ^ $r14: .cfa -32 + ^ $r15: .cfa -24 + ^ \
             $rbp: .cfa -16 + ^\n\
             STACK CFI INIT 240 20 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n"
        );
    }

    #[test]
    fn a_function_that_the_linker_discarded_hides_no_other() {
        let functions: [(u64, u64, &[u8]); 2] = [(0, 0x5000, &[]), (0x1000, 16, &[])];
        assert_eq!(
            records(HERE, &functions),
            "STACK CFI INIT 1000 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n"
        );
    }

    #[test]
    fn the_lines_of_every_fixture_are_those_that_symbolic_writes() {
        let (mut read, mut bytes) = (0, 0);
        for entry in debug_files() {
            let dif = fixture(text(&entry, "file").unwrap());
            for object in Archive::parse(&dif).unwrap().objects() {
                let object = object.unwrap();
                if let Object::Pe(_) = object {
                    continue; // compared in `pe_frames`
                }
                for (run, workers) in [(1, 3), (7, 2), (RUN, 1)] {
                    let compared = compared(&object, run, workers);
                    read += usize::from(compared.is_some());
                    bytes += compared.unwrap_or_default();
                }
            }
        }
        assert!(read > 20 && bytes > 5000, "{read} {bytes}");
    }

    /// Returns the rules of each line of some records, by what precedes them.
    fn by_place(text: &str) -> BTreeMap<&str, &str> {
        let lines = text.lines();
        lines
            .map(|line| {
                let words = if line.starts_with("STACK CFI INIT") {
                    5
                } else {
                    3
                };
                let ends = line.match_indices(' ').nth(words - 1).map(|(at, _)| at);
                line.split_at(ends.unwrap_or(line.len()))
            })
            .collect()
    }

    #[test]
    fn to_the_rules_of_symbolic_others_are_added_and_none_is_changed() {
        let (mut same, mut more) = (0, 0);
        for entry in debug_files() {
            let dif = fixture(text(&entry, "file").unwrap());
            for object in Archive::parse(&dif).unwrap().objects() {
                let object = object.unwrap();
                let [all, of_symbolic] = [Rules::All, Rules::OfSymbolic]
                    .map(|rules| read(&object, RUN, 1, rules).map(CfiSource::Lines));
                let (Some(all), Some(of_symbolic)) = (all, of_symbolic) else {
                    continue;
                };
                let (all, of_symbolic) = (all.text(), of_symbolic.text());
                let all = by_place(&all);
                for (place, rules) in by_place(&of_symbolic) {
                    assert!(
                        all[place].starts_with(rules),
                        "{place}: {} {rules}",
                        all[place]
                    );
                    same += usize::from(all[place] == rules);
                    more += usize::from(all[place] != rules);
                }
            }
        }
        assert!(same > 100 && more > 0, "{same} {more}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn mutated_entries_are_read_as_symbolic_reads_them_or_left_to_it(
            changes in proptest::collection::vec((0.0..1.0, any::<u8>()), 1..12),
        ) {
            let mut dif = fixture("elf/crash");
            let place = {
                let Object::Elf(elf) = Object::parse(&dif).unwrap() else { panic!() };
                let section = elf.raw_section("eh_frame").unwrap();
                section.offset as usize..section.offset as usize + section.data.len()
            };
            for (at, byte) in changes {
                let at = place.start + (at * place.len() as f64) as usize;
                dif[at] = byte;
            }
            compared(&Object::parse(&dif).unwrap(), 3, 2);
        }
    }
}
