//! The address ranges of code in an object, and the symbols of functions in them.
//!
//! Symbols of Mach-O files are read by [`mach_symbols`], those of PE files by [`pe_symbols`], and
//! those of ELF files here, because `symbolic` omits some information:
//!
//! - On 32-bit Arm and MIPS, an odd address stands for code at the even address below it, in Thumb,
//!   MIPS16 or microMIPS.
//! - On 64-bit PowerPC, symbols may have the addresses of [`descriptors`].
//! - Symbols without a type, which hand-written assembly declares, are names of code too. So are
//!   symbols of data in sections of code: GHC writes them for code with data in front of it.
//! - A stripped ELF file may contain a compressed ELF file with the symbols that were stripped
//!   ("MiniDebugInfo").
//! - GNU `ld` adds the version of a symbol to its name, if the source has it (`.symver`):
//!   `memcpy@@GLIBC_2.14`. It is not part of the name.
//! - The trampolines of signals have no symbols in a stripped libc ([`super::trampolines`]).
//!
//! In every format, a symbol ends at the end of its section at the latest. Otherwise a symbol
//! without a size would extend to the end of memory.
//!
//! Sources: the ELF specification (gABI), "Sections" and "Symbol Table"; ELF for the Arm
//! Architecture (AAELF32), "Symbol Values" and "Mapping symbols"; the MIPS32 architecture, volume
//! II-B, "ISA Mode"; the PE format specification, "Section Table"; the manual of GDB,
//! "MiniDebugInfo"; the manual of GNU `ld`, "VERSION Command".

use std::borrow::Cow;
use std::ffi::CStr;
use std::io::Read;
use std::ops::Range;

use goblin::container::Ctx;
use goblin::elf::header::{EM_ARM, EM_MIPS, EM_PPC64, ET_REL};
use goblin::elf::program_header::{PT_LOAD, ProgramHeader};
use goblin::elf::section_header::{SHT_DYNSYM, SHT_SYMTAB, SectionHeader};
use goblin::elf::sym::{
    STB_GLOBAL, STB_GNU_UNIQUE, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT, Sym,
    Symtab,
};
use goblin::pe::section_table::IMAGE_SCN_MEM_EXECUTE;
use lzma_rust2::XzReader;
use symbolic::debuginfo::dwarf::Dwarf as _;
use symbolic::debuginfo::elf::ElfObject;
use symbolic::debuginfo::{Object, Symbol};

use super::descriptors::Descriptors;
use super::trampolines::{MAX_TRAMPOLINES, lacks_trampolines, trampolines};
use super::{descriptors, mach_symbols, pe_symbols};

/// The maximum size of an ELF file within an ELF file, in bytes.
const MAX_MINIDEBUGINFO_BYTES: u64 = 64 << 20;
/// The maximum memory of its decoder, in KiB.
const MAX_DECODER_KIB: u32 = 64 << 10;

/// Code and symbols of an object.
#[derive(Debug, Default)]
pub(super) struct CodeSymbols<'d> {
    /// The symbols of functions, in the order in which they count at one address: first those with
    /// a size. Their addresses are relative to the load address.
    pub(super) functions: Vec<Symbol<'d>>,
    /// The number of the functions whose sizes are in the file. The sizes of the others are
    /// estimates.
    pub(super) sized: usize,
    /// Symbols of code that are not of functions, and lie in none.
    pub(super) labels: Vec<Symbol<'d>>,
    /// Whether functions have no address relative to the load address of 32 bits. They are left
    /// out.
    pub(super) has_code_out_of_reach: bool,
    /// Address ranges of code, not relative to the load address. Empty if the object does not give
    /// them.
    code: Vec<Range<u64>>,
}

impl<'d> CodeSymbols<'d> {
    /// Reads the code ranges and symbols of an object. Omits what cannot be read.
    pub(super) fn of(object: &Object<'d>) -> Self {
        if let Object::Elf(elf) = object {
            let within = elf.raw_section("gnu_debugdata");
            let within = within.and_then(|section| decompressed(&section.data));
            return SectionHeaders::parse(elf.data())
                .map(|parsed| parsed.image(within.as_deref(), elf_load_address(elf)))
                .unwrap_or_default();
        }
        let (code, functions, labels) = match object {
            Object::MachO(mach) => {
                let (code, functions) =
                    mach_symbols::code_and_functions(mach.data(), mach.load_address());
                (code, functions, Vec::new())
            }
            Object::Pe(pe) => {
                let code = pe.sections().iter().filter(|section| {
                    section.characteristics & IMAGE_SCN_MEM_EXECUTE == IMAGE_SCN_MEM_EXECUTE
                });
                let code = code.map(|section| {
                    let size = section.virtual_size.max(section.size_of_raw_data);
                    let start = pe.load_address() + u64::from(section.virtual_address);
                    start..start + u64::from(size)
                });
                let (functions, labels) = pe_symbols::functions_and_labels(pe);
                (code.collect(), functions, labels)
            }
            _ => (Vec::new(), object.symbols().collect(), Vec::new()),
        };
        Self {
            // These formats do not give sizes.
            sized: 0,
            ..Self::within(code, object.load_address(), functions, labels)
        }
    }

    /// Ends each symbol at the end of its code range. If the code ranges are known, removes symbols
    /// outside of them.
    pub(super) fn within(
        code: Vec<Range<u64>>,
        load_address: u64,
        functions: Vec<Symbol<'d>>,
        mut labels: Vec<Symbol<'d>>,
    ) -> Self {
        let (mut functions, mut unmeasured): (Vec<_>, Vec<_>) =
            functions.into_iter().partition(|symbol| symbol.size > 0);
        if !code.is_empty() {
            let ends = |symbol: &mut Symbol<'_>| {
                let address = symbol.address.wrapping_add(load_address);
                let Some(section) = code.iter().find(|section| section.contains(&address)) else {
                    return false;
                };
                let left = section.end - address;
                symbol.size = match symbol.size {
                    0 => left,
                    size => size.min(left),
                };
                true
            };
            functions.retain_mut(ends);
            unmeasured.retain_mut(ends);
            labels.retain_mut(ends);
        }
        let all = functions.len() + unmeasured.len();
        let is_in_reach = |function: &Symbol<'_>| u32::try_from(function.address).is_ok();
        functions.retain(is_in_reach);
        let sized = functions.len();
        functions.extend(unmeasured.into_iter().filter(is_in_reach));
        Self {
            has_code_out_of_reach: functions.len() < all,
            functions,
            sized,
            labels,
            code,
        }
    }

    /// Returns the lowest address of code, not relative to the load address, or `None` if the code
    /// ranges are unknown.
    pub(super) fn first_code(&self) -> Option<u64> {
        self.code.iter().map(|section| section.start).min()
    }
}

/// Returns the address that addresses in an ELF file are relative to; see [`base_of_segments`].
pub(super) fn elf_load_address(elf: &ElfObject<'_>) -> u64 {
    let base = segments(elf.data()).and_then(|segments| base_of_segments(&segments));
    base.unwrap_or_else(|| elf.load_address())
}

/// Returns the address that addresses in an ELF file with these segments are relative to: that of
/// its first loaded segment, as in `symbolic`. Returns `None` if no segment is loaded.
///
/// Some programs have segments that are not in the order of their addresses. If the first one has
/// no code, as when `lld` writes the headers behind the code, it is that of the lowest one.
pub fn base_of_segments(segments: &[ProgramHeader]) -> Option<u64> {
    let loaded = segments.iter().filter(|segment| segment.p_type == PT_LOAD);
    let first = loaded.clone().next()?;
    if first.is_executable() {
        Some(first.p_vaddr)
    } else {
        loaded.map(|segment| segment.p_vaddr).min()
    }
}

fn segments(elf: &[u8]) -> Option<Vec<ProgramHeader>> {
    let header = goblin::elf::Elf::parse_header(elf).ok()?;
    let context = Ctx::new(header.container().ok()?, header.endianness().ok()?);
    let table = usize::try_from(header.e_phoff).ok()?;
    ProgramHeader::parse(elf, table, header.e_phnum.into(), context).ok()
}

/// Returns the contents of the sections of an ELF file with this name, in their order. Returns
/// `None` if one of them cannot be read.
pub(super) fn sections_named<'d>(elf: &'d [u8], name: &[u8]) -> Option<Vec<&'d [u8]>> {
    let headers = SectionHeaders::parse(elf).ok()?;
    let names = headers.names()?;
    let sections = headers.sections.iter();
    let named = sections.filter(|section| is_named(section, names, name));
    named.map(|section| headers.bytes(section)).collect()
}

fn is_named(section: &SectionHeader, names: &[u8], name: &[u8]) -> bool {
    let rest = names.get(section.sh_name..);
    let found = rest.and_then(|rest| CStr::from_bytes_until_nul(rest).ok());
    found.is_some_and(|found| found.to_bytes() == name)
}

/// Returns the lowest address of code in an ELF file, or zero if it has no sections with code.
pub(super) fn first_code_of_elf(data: &[u8]) -> u64 {
    let sections = SectionHeaders::parse(data).map(|headers| headers.sections);
    let sections = sections.unwrap_or_default().into_iter();
    let code = sections.filter(|section| is_code(section) && section.sh_size > 0);
    let starts = code.map(|section| section.sh_addr);
    starts.min().unwrap_or_default()
}

/// The section headers of an ELF file.
struct SectionHeaders<'d> {
    data: &'d [u8],
    machine: u16,
    /// Whether the file is an object file.
    is_relocatable: bool,
    context: Ctx,
    sections: Vec<SectionHeader>,
    /// The number of the section with the names of the sections.
    names: usize,
}

impl<'d> SectionHeaders<'d> {
    fn parse(data: &'d [u8]) -> goblin::error::Result<Self> {
        let header = goblin::elf::Elf::parse_header(data)?;
        let context = Ctx::new(header.container()?, header.endianness()?);
        let table = usize::try_from(header.e_shoff).unwrap_or(usize::MAX);
        let sections = match table {
            0 => Vec::new(),
            table => SectionHeader::parse(data, table, header.e_shnum.into(), context)?,
        };
        Ok(Self {
            data,
            machine: header.e_machine,
            is_relocatable: header.e_type == ET_REL,
            context,
            sections,
            names: header.e_shstrndx.into(),
        })
    }

    fn bytes(&self, section: &SectionHeader) -> Option<&'d [u8]> {
        self.data.get(section.file_range()?)
    }

    /// Returns the names of the sections.
    fn names(&self) -> Option<&'d [u8]> {
        self.bytes(self.sections.get(self.names)?)
    }

    /// Returns the descriptors of functions, if symbols have their addresses.
    fn descriptors(&self) -> Option<Descriptors<'d>> {
        if self.machine != EM_PPC64 {
            return None;
        }
        let names = self.names()?;
        let mut sections = self.sections.iter();
        let section =
            sections.position(|section| is_named(section, names, descriptors::SECTION))?;
        let header = self.sections.get(section)?;
        let bytes = self.bytes(header).filter(|_| !self.is_relocatable);
        Some(Descriptors {
            section,
            address: header.sh_addr,
            bytes: bytes.unwrap_or_default(),
            is_little_endian: self.context.is_little_endian(),
        })
    }

    /// Returns the code ranges and symbols, including the symbols of the file `within` this one.
    fn image(&self, within: Option<&[u8]>, load_address: u64) -> CodeSymbols<'d> {
        let code = self.sections.iter().filter(|section| is_code(section));
        let code = code
            .map(|section| section.sh_addr..section.sh_addr.saturating_add(section.sh_size))
            .filter(|section| !section.is_empty())
            .collect();
        let (mut functions, mut labels) = self.named(load_address);
        if let Some(within) = within.and_then(|within| SectionHeaders::parse(within).ok()) {
            let (more_functions, more_labels) = within.named(load_address);
            functions.extend(more_functions.into_iter().map(owned));
            labels.extend(more_labels.into_iter().map(owned));
        }
        if lacks_trampolines(&functions) {
            let mut found = self.trampolines(load_address);
            keep_uncovered(&mut found, &functions);
            functions.extend(found);
        }
        keep_uncovered(&mut labels, &functions);
        // Assembly continues behind the size of a label.
        labels.iter_mut().for_each(|label| label.size = 0);
        CodeSymbols::within(code, load_address, functions, labels)
    }

    /// Returns symbols of the trampolines of signals that are in the code.
    fn trampolines(&self, load_address: u64) -> Vec<Symbol<'d>> {
        if self.is_relocatable || !self.context.is_little_endian() {
            return Vec::new();
        }
        let code = self.sections.iter().filter(|section| is_code(section));
        let code = code.filter_map(|section| Some((section.sh_addr, self.bytes(section)?)));
        // Sections of a malformed file may overlap.
        let mut left = self.data.len();
        let code = code.take_while(|(_, bytes)| {
            let is_apart = bytes.len() <= left;
            left = left.saturating_sub(bytes.len());
            is_apart
        });
        let found = code.flat_map(|(address, bytes)| trampolines(self.machine, address, bytes));
        let found = found.take(MAX_TRAMPOLINES);
        let symbols = found.map(|found| Symbol {
            name: Some(found.name.into()),
            address: found.address.wrapping_sub(load_address),
            size: found.size,
        });
        symbols.collect()
    }

    /// Returns the symbols of functions, and labels.
    fn named(&self, load_address: u64) -> (Vec<Symbol<'d>>, Vec<Symbol<'d>>) {
        let (mut functions, mut labels) = (Vec::new(), Vec::new());
        // The functions that choose an implementation. If they have another name, that counts.
        let mut choosing = Vec::new();
        let descriptors = self.descriptors();
        // Without the symbols of functions, the name of a stub would also be that of functions.
        let lacks_functions = descriptors.is_some_and(|all| all.bytes.is_empty());
        let is_hidden = |name: &[u8]| lacks_functions && descriptors::is_stub(name);
        let of_kind = |kind| {
            self.sections
                .iter()
                .filter(move |table| table.sh_type == kind)
        };
        for binding in SymbolBinding::IN_ORDER {
            for table in of_kind(SHT_SYMTAB).chain(of_kind(SHT_DYNSYM)) {
                for (symbol, name) in self.symbols(table, binding, descriptors) {
                    let table = match symbol.st_type() {
                        STT_FUNC => &mut functions,
                        STT_GNU_IFUNC => &mut choosing,
                        STT_NOTYPE if is_label(name) && !is_hidden(name) => &mut labels,
                        // Without a size, they mark constants of the code before them.
                        STT_OBJECT if is_label(name) && symbol.st_size > 0 => &mut labels,
                        _ => continue,
                    };
                    table.push(self.relative(&symbol, name, load_address));
                }
            }
        }
        functions.append(&mut choosing);
        // Of several symbols at one address, the first one counts, and one with a size says more.
        functions.sort_by_key(|symbol| symbol.size == 0);
        labels.sort_by_key(|symbol| symbol.size == 0);
        (functions, labels)
    }

    /// Returns the symbols of a table that have this binding and lie in code, each with its name.
    /// The symbols of descriptors have the addresses of their functions.
    fn symbols(
        &self,
        table: &SectionHeader,
        binding: SymbolBinding,
        descriptors: Option<Descriptors<'d>>,
    ) -> impl Iterator<Item = (Sym, &'d [u8])> {
        let entry = usize::try_from(table.sh_entsize).unwrap_or_default();
        let symbols = table.file_range().and_then(|range| {
            let count = range.len().checked_div(entry)?;
            Symtab::parse(self.data, range.start, count, self.context).ok()
        });
        let names = self.sections.get(table.sh_link as usize);
        let names = names.and_then(|names| self.bytes(names));
        let symbols = symbols.into_iter().flat_map(|symbols| symbols.iter());
        let symbols = symbols.filter(move |symbol| SymbolBinding::of(symbol) == binding);
        symbols.filter_map(move |symbol| {
            // Undefined symbols have section zero, which has no code.
            let section = self.sections.get(symbol.st_shndx)?;
            let symbol = if is_code(section) {
                symbol
            } else {
                descriptors?.resolved(symbol)?
            };
            let name = names.unwrap_or_default().get(symbol.st_name..)?;
            let name = CStr::from_bytes_until_nul(name).ok()?;
            Some((symbol, name.to_bytes()))
        })
    }

    /// Returns a symbol whose address is relative to the load address.
    fn relative(&self, symbol: &Sym, name: &'d [u8], load_address: u64) -> Symbol<'d> {
        let address = match self.machine {
            EM_ARM | EM_MIPS => symbol.st_value & !1,
            _ => symbol.st_value,
        };
        Symbol {
            name: Some(String::from_utf8_lossy(without_version(name))),
            // Below the load address, this is out of reach.
            address: address.wrapping_sub(load_address),
            size: symbol.st_size,
        }
    }
}

/// The binding of a symbol in an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SymbolBinding {
    Global,
    Weak,
    Local,
}

impl SymbolBinding {
    /// The order in which symbols count at one address. A local symbol may be one that the linker
    /// made for its own use, such as `local.main.run` of Go.
    const IN_ORDER: [Self; 3] = [Self::Global, Self::Weak, Self::Local];

    fn of(symbol: &Sym) -> Self {
        match symbol.st_bind() {
            STB_GLOBAL | STB_GNU_UNIQUE => Self::Global,
            STB_WEAK => Self::Weak,
            _ => Self::Local,
        }
    }
}

/// Returns the file within a file, or `None` if it cannot be decompressed or is too large.
fn decompressed(section: &[u8]) -> Option<Vec<u8>> {
    let mut within = Vec::new();
    let mut reader =
        XzReader::new_mem_limit(section, false, MAX_DECODER_KIB).take(MAX_MINIDEBUGINFO_BYTES + 1);
    reader.read_to_end(&mut within).ok()?;
    (within.len() as u64 <= MAX_MINIDEBUGINFO_BYTES).then_some(within)
}

fn owned<'d>(symbol: Symbol<'_>) -> Symbol<'d> {
    Symbol {
        name: symbol.name.map(|name| Cow::Owned(name.into_owned())),
        address: symbol.address,
        size: symbol.size,
    }
}

fn is_code(section: &SectionHeader) -> bool {
    section.is_executable() && section.is_alloc()
}

/// Returns whether the name of a symbol without a type can be a name of code. Local labels of
/// assemblers and mapping symbols, which mark Thumb, Arm and data, are not.
fn is_label(name: &[u8]) -> bool {
    !(name.is_empty() || name.starts_with(b"$") || name.starts_with(b".L"))
}

/// Returns the name of a symbol without its version, which follows `@@`, or `@` if it is not the
/// default version.
///
/// These remain: names that MSVC or Borland mangled, which contain both, the number of bytes of
/// parameters (`f@8`), and the stubs of procedure linkage tables (`f@plt`).
fn without_version(name: &[u8]) -> &[u8] {
    let is_of_version = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-+".contains(byte);
    let Some(at) = name.iter().rposition(|byte| *byte == b'@') else {
        return name;
    };
    let (before, version) = (&name[..at], &name[at + 1..]);
    let before = before.strip_suffix(b"@").unwrap_or(before);
    let is_number = version.iter().all(u8::is_ascii_digit);
    let is_stub = version.eq_ignore_ascii_case(b"plt");
    let has_version = !is_number && !is_stub && version.iter().all(is_of_version);
    let is_mangled = name.starts_with(b"?") || name.starts_with(b"@");
    if has_version && !before.is_empty() && !is_mangled {
        before
    } else {
        name
    }
}

/// Removes the labels that lie in a function.
fn keep_uncovered(labels: &mut Vec<Symbol<'_>>, functions: &[Symbol<'_>]) {
    let mut covered: Vec<_> = functions
        .iter()
        .map(|function| {
            (
                function.address,
                function.address.saturating_add(function.size),
            )
        })
        .collect();
    covered.sort_unstable();
    // Replaces each end with the largest end so far.
    let mut reaches = 0;
    for (_, end) in &mut covered {
        reaches = reaches.max(*end);
        *end = reaches;
    }
    labels.retain(|label| {
        let after = covered.partition_point(|(start, _)| *start <= label.address);
        let last = after.checked_sub(1).and_then(|last| covered.get(last));
        last.is_none_or(|(_, end)| *end <= label.address)
    });
}

#[cfg(test)]
mod tests {
    use super::without_version;

    #[test]
    fn the_version_of_a_symbol_is_not_part_of_its_name() {
        let check = |symbol: &str, name: &str| {
            assert_eq!(without_version(symbol.as_bytes()), name.as_bytes());
        };
        check("memcpy@@GLIBC_2.14", "memcpy");
        check("memcpy@GLIBC_2.2.5", "memcpy");
        check("_ZN3lib4frobEi@@LIBV_2", "_ZN3lib4frobEi");
        check("f@@libfoo-1.2.so.3", "f");
        check("a@b@@V_1", "a@b");
        for name in [
            "f",
            "",
            "@",
            "@@V",
            "f@",
            "f@@",
            "f@ V",
            "f@A#g",
            "?f@@YAHH@Z",
            "@System@@Halt",
            "f@8",
            "puts@plt",
        ] {
            check(name, name);
        }
    }
}
