//! Links Linux kernel modules in the same way as the kernel does when it loads them.
//!
//! A kernel module is a relocatable object file: its sections have no addresses yet, and references
//! to them are relocations. The kernel places sections with code first, then read-only sections,
//! then writable sections, each group in file order. It places the sections that initialize the
//! module elsewhere. Addresses count from the first section, whose address `/proc/modules` and
//! `/sys/module/<name>/sections/.text` show.
//!
//! Sources: the ELF specification (gABI), "Sections" and "Relocation"; the RISC-V ELF psABI,
//! "Relocations"; `layout_sections` in `kernel/module/main.c` of Linux 6.

use object::elf::{
    self, ET_DYN, ET_REL, EV_CURRENT, PT_LOAD, SHF_ALLOC, SHF_COMPRESSED, SHF_EXECINSTR, SHF_WRITE,
    SHN_LORESERVE, SHT_SYMTAB,
};
use object::{
    Architecture, Endianness, File, Object as _, ObjectSection as _, ObjectSymbol as _, Relocation,
    RelocationFlags, RelocationKind, RelocationTarget, Section, SectionFlags,
};
use symbolic::debuginfo::dwarf::Dwarf as _;
use symbolic::debuginfo::elf::ElfObject;

use super::reader::ByteReader;

/// The section that every kernel module has and no other object file has.
const MODINFO: &str = ".modinfo";

/// The alignment of decompressed sections and of the program header, in bytes.
const ALIGNMENT: usize = 16;

/// The address of the first section. It is not zero, because zero is the address of discarded
/// functions in DWARF.
const BASE: u64 = 0x1000;

/// Returns a kernel module as a linked file, or `None` if the file is not a kernel module.
///
/// # Errors
///
/// The module cannot be linked. The error is a text for a user.
pub(super) fn linked(data: &[u8]) -> Result<Option<Vec<u8>>, String> {
    // For most files, the header alone shows that they are not kernel modules.
    if !is_relocatable(data) {
        return Ok(None);
    }
    let Ok(file) = File::parse(data) else {
        return Ok(None);
    };
    if file.section_by_name(MODINFO).is_none() {
        return Ok(None);
    }
    let mut linker = Linker {
        wide: file.is_64(),
        endian: file.endianness(),
        bytes: data.to_vec(),
    };
    let addresses = linker.place(&file);
    linker.move_symbols(&file, &addresses);
    let placed = linker.bytes.clone();
    linker
        .relocate(&placed)
        .map_err(|reason| format!("the Linux kernel module cannot be linked: {reason}"))?;
    linker.put(TYPE_AT, 2, ET_DYN.0.into());
    linker.add_segment();
    Ok(Some(linker.bytes))
}

/// The offset of the file type in the ELF header.
const TYPE_AT: usize = 16;

fn is_relocatable(data: &[u8]) -> bool {
    let is_elf = data.starts_with(b"\x7fELF") && data.get(6) == Some(&EV_CURRENT.0);
    let kind = data.get(TYPE_AT..TYPE_AT + 2);
    let kind = kind
        .and_then(<[u8]>::first_chunk)
        .map(|kind| match data.get(5) {
            Some(2) => u16::from_be_bytes(*kind),
            _ => u16::from_le_bytes(*kind),
        });
    is_elf && kind == Some(ET_REL.0)
}

/// Changes a copy of a file in place.
struct Linker {
    wide: bool,
    endian: Endianness,
    bytes: Vec<u8>,
}

/// Fields of a section header, in order. Each has the size of a word.
#[derive(Clone, Copy)]
enum Field {
    Flags,
    Address,
    Offset,
    Size,
}

impl Linker {
    /// Gives each loaded section an address. Returns the addresses by section number.
    fn place(&mut self, file: &File<'_>) -> Vec<Option<u64>> {
        let mut loaded: Vec<_> = file
            .sections()
            .filter(|section| flags_of(section) & SHF_ALLOC.0 != 0)
            .collect();
        loaded.sort_by_key(|section| {
            let flags = flags_of(section);
            let class = match (flags & SHF_EXECINSTR.0 != 0, flags & SHF_WRITE.0 != 0) {
                (true, _) => 0,
                (false, false) => 1,
                (false, true) => 2,
            };
            let is_init = section.name().is_ok_and(|name| name.starts_with(".init"));
            (is_init, class, section.index().0)
        });
        let mut addresses = Vec::new();
        let mut end = BASE;
        for section in loaded {
            let number = section.index().0;
            let alignment = section.align().max(1);
            let address = end.checked_next_multiple_of(alignment).unwrap_or(end);
            end = address.saturating_add(section.size());
            if addresses.len() <= number {
                addresses.resize(number + 1, None);
            }
            if let Some(known) = addresses.get_mut(number) {
                *known = Some(address);
            }
            self.put_field(number, Field::Address, address);
        }
        addresses
    }

    /// Makes the values of symbols absolute. Before, they are relative to the sections of the
    /// symbols.
    fn move_symbols(&mut self, file: &File<'_>, addresses: &[Option<u64>]) {
        let (entry, value_at, size, section_at) = if self.wide {
            (24, 8, 8, 6)
        } else {
            (16, 4, 4, 14)
        };
        for table in file.sections() {
            let Some((start, bytes)) = table.file_range().filter(|_| is_symbol_table(&table))
            else {
                continue;
            };
            let (Ok(start), Ok(bytes)) = (usize::try_from(start), usize::try_from(bytes)) else {
                continue;
            };
            let end = start.saturating_add(bytes).min(self.bytes.len());
            for symbol in (start..end).step_by(entry) {
                let section = self.get(symbol + section_at, 2).unwrap_or_default();
                let is_in_section = section < u64::from(SHN_LORESERVE);
                let address = usize::try_from(section)
                    .ok()
                    .filter(|_| is_in_section)
                    .and_then(|section| *addresses.get(section)?);
                let value = self.get(symbol + value_at, size);
                if let (Some(address), Some(value)) = (address, value) {
                    self.put(symbol + value_at, size, value.wrapping_add(address));
                }
            }
        }
    }

    /// Applies the relocations of debug information and unwind tables. `placed` is a copy of the
    /// file whose sections have addresses.
    fn relocate(&mut self, placed: &[u8]) -> Result<(), String> {
        let file = File::parse(placed).map_err(|error| error.to_string())?;
        let elf = ElfObject::parse(placed).map_err(|error| error.to_string())?;
        for section in file.sections() {
            let name = section.name().unwrap_or_default();
            let Some(plain_name) = name.strip_prefix('.') else {
                continue;
            };
            if !plain_name.starts_with("debug_") && plain_name != "eh_frame" {
                continue;
            }
            let mut relocations = section.relocations().peekable();
            let Some((start, bytes)) = section.file_range() else {
                continue;
            };
            let flags = flags_of(&section);
            let (start, bytes) = match flags & SHF_COMPRESSED.0 {
                0 => (start as usize, bytes as usize),
                _ if relocations.peek().is_none() => continue,
                _ => {
                    let section_data = elf.section(plain_name);
                    let plain =
                        section_data.ok_or_else(|| format!("{name} cannot be decompressed"))?;
                    let start = self.bytes.len().next_multiple_of(ALIGNMENT);
                    self.bytes.resize(start, 0);
                    self.bytes.extend_from_slice(&plain.data);
                    let number = section.index().0;
                    self.put_field(number, Field::Flags, flags & !SHF_COMPRESSED.0);
                    self.put_field(number, Field::Offset, start as u64);
                    self.put_field(number, Field::Size, plain.data.len() as u64);
                    (start, plain.data.len())
                }
            };
            for (offset, relocation) in relocations {
                let special = Special::of(file.architecture(), &relocation);
                let size = match special {
                    Some(special) => special.bytes(),
                    None => usize::from(relocation.size()) / 8,
                };
                let at = usize::try_from(offset).ok();
                let at = at.filter(|at| at.checked_add(size).is_some_and(|end| end <= bytes));
                let Some(at) = at.and_then(|at| at.checked_add(start)) else {
                    return Err(format!(
                        "a relocation of {name} lies outside of the section"
                    ));
                };
                let address = section.address().wrapping_add(offset);
                if let Some(special) = special {
                    if let Some(target) = target(&file, &relocation, 0) {
                        self.apply(special, at, start + bytes, target, address);
                    }
                    continue;
                }
                let present = self.get(at, size).unwrap_or_default();
                match value(&file, &relocation, address, present) {
                    Ok(Some(value)) => self.put(at, size, value),
                    Ok(None) => {}
                    Err(flags) => return Err(format!("{name} has a relocation of {flags}")),
                }
            }
        }
        Ok(())
    }

    /// Applies a relocation of one machine. A number in LEB128 keeps its length and ends before
    /// `end`.
    fn apply(&mut self, special: Special, at: usize, end: usize, target: u64, address: u64) {
        match special {
            Special::Relative => self.put(at, 4, target.wrapping_sub(address)),
            Special::Number(size, operation) => {
                let present = self.get(at, size).unwrap_or_default();
                self.put(at, size, operation.apply(present, target));
            }
            Special::LowBits(operation) => {
                let present = self.get(at, 1).unwrap_or_default();
                let low = operation.apply(present, target) & LOW_BITS;
                self.put(at, 1, present & !LOW_BITS | low);
            }
            Special::Uleb128(operation) => {
                let place = self.bytes.get(at..end).unwrap_or_default();
                let length = place
                    .iter()
                    .take(10)
                    .take_while(|byte| **byte >= 0x80)
                    .count()
                    + 1;
                let place = self.bytes.get_mut(at..at + length).unwrap_or_default();
                let present = place
                    .iter()
                    .rev()
                    .fold(0, |number: u64, byte| number << 7 | u64::from(*byte & 0x7f));
                let value = operation.apply(present, target);
                for (number, byte) in place.iter_mut().enumerate() {
                    let bits = value.checked_shr(7 * number as u32).unwrap_or_default() as u8;
                    *byte = *byte & 0x80 | bits & 0x7f;
                }
            }
        }
    }

    /// Adds a program header, which makes [`BASE`] the load address.
    fn add_segment(&mut self) {
        let (table_at, entry_size_at, word) = if self.wide {
            (0x20, 0x36, 8)
        } else {
            (0x1c, 0x2a, 4)
        };
        let (size, address_at) = (8 + 6 * word, 2 * word);
        let start = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(start + size, 0);
        self.put(start, 4, PT_LOAD.0.into());
        self.put(start + address_at, word, BASE);
        self.put(table_at, word, start as u64);
        self.put(entry_size_at, 2, size as u64);
        self.put(entry_size_at + 2, 2, 1);
    }

    fn put_field(&mut self, section: usize, field: Field, value: u64) {
        let (table_at, entry_size_at, word) = if self.wide {
            (0x28, 0x3a, 8)
        } else {
            (0x20, 0x2e, 4)
        };
        let (table, entry_size) = (self.get(table_at, word), self.get(entry_size_at, 2));
        // The name and the type come first, four bytes each.
        let field = 8 + word * field as usize;
        let at = table.zip(entry_size).and_then(|(table, entry_size)| {
            let header = (section as u64)
                .checked_mul(entry_size)?
                .checked_add(table)?;
            usize::try_from(header).ok()?.checked_add(field)
        });
        if let Some(at) = at {
            self.put(at, word, value);
        }
    }

    fn get(&self, at: usize, size: usize) -> Option<u64> {
        let is_little = self.endian == Endianness::Little;
        let mut reader = ByteReader::new(&self.bytes, is_little);
        reader.at = at;
        reader.unsigned(size)
    }

    /// Writes the lowest `size` bytes of a number, or nothing if they would exceed the end of the
    /// file.
    fn put(&mut self, at: usize, size: usize, value: u64) {
        let end = at.saturating_add(size);
        let Some(place) = self.bytes.get_mut(at..end) else {
            return;
        };
        for (number, byte) in place.iter_mut().enumerate() {
            let shift = match self.endian {
                Endianness::Little => number,
                Endianness::Big => size - 1 - number,
            };
            *byte = (value >> (8 * shift)) as u8;
        }
    }
}

fn flags_of(section: &Section<'_, '_>) -> u64 {
    match section.flags() {
        SectionFlags::Elf { sh_flags, .. } => sh_flags.0,
        _ => 0,
    }
}

fn is_symbol_table(section: &Section<'_, '_>) -> bool {
    matches!(section.flags(), SectionFlags::Elf { sh_type, .. } if sh_type == SHT_SYMTAB)
}

/// The bits of a byte that relocations of six bits change.
const LOW_BITS: u64 = 0x3f;

/// A relocation of one machine that the crate `object` does not know.
///
/// Compilers for RISC-V write the distance of two labels as two relocations, because the linker may
/// shorten the code between them. Kernel modules are linked without that.
#[derive(Clone, Copy)]
enum Special {
    /// The distance from the place, in four bytes.
    Relative,
    /// A change of a number of so many bytes.
    Number(usize, Operation),
    /// A change of the lowest six bits of a byte.
    LowBits(Operation),
    /// A change of a number in unsigned LEB128.
    Uleb128(Operation),
}

#[derive(Clone, Copy)]
enum Operation {
    Set,
    Add,
    Subtract,
}

impl Operation {
    fn apply(self, present: u64, target: u64) -> u64 {
        match self {
            Self::Set => target,
            Self::Add => present.wrapping_add(target),
            Self::Subtract => present.wrapping_sub(target),
        }
    }
}

impl Special {
    fn of(architecture: Architecture, relocation: &Relocation) -> Option<Self> {
        use Operation::{Add, Set, Subtract};
        let RelocationFlags::Elf { r_type } = relocation.flags() else {
            return None;
        };
        let is_riscv = matches!(architecture, Architecture::Riscv32 | Architecture::Riscv64);
        Some(match r_type {
            elf::R_PPC_REL32 if architecture == Architecture::PowerPc => Self::Relative,
            _ if !is_riscv => return None,
            elf::R_RISCV_ADD8 => Self::Number(1, Add),
            elf::R_RISCV_ADD16 => Self::Number(2, Add),
            elf::R_RISCV_ADD32 => Self::Number(4, Add),
            elf::R_RISCV_ADD64 => Self::Number(8, Add),
            elf::R_RISCV_SUB8 => Self::Number(1, Subtract),
            elf::R_RISCV_SUB16 => Self::Number(2, Subtract),
            elf::R_RISCV_SUB32 => Self::Number(4, Subtract),
            elf::R_RISCV_SUB64 => Self::Number(8, Subtract),
            elf::R_RISCV_SUB6 => Self::LowBits(Subtract),
            elf::R_RISCV_SET6 => Self::LowBits(Set),
            elf::R_RISCV_SET8 => Self::Number(1, Set),
            elf::R_RISCV_SET16 => Self::Number(2, Set),
            elf::R_RISCV_SET32 => Self::Number(4, Set),
            elf::R_RISCV_32_PCREL => Self::Relative,
            elf::R_RISCV_SET_ULEB128 => Self::Uleb128(Set),
            elf::R_RISCV_SUB_ULEB128 => Self::Uleb128(Subtract),
            _ => return None,
        })
    }

    /// Returns the number of bytes that it changes at least.
    fn bytes(self) -> usize {
        match self {
            Self::Relative => 4,
            Self::Number(size, _) => size,
            Self::LowBits(_) | Self::Uleb128(_) => 1,
        }
    }
}

/// Returns the value that a relocation writes, or `None` if it writes nothing or its symbol is in
/// the kernel. `present` is the value at its address before.
fn value(
    file: &File<'_>,
    relocation: &Relocation,
    address: u64,
    present: u64,
) -> Result<Option<u64>, String> {
    let Some(target) = target(file, relocation, present) else {
        return Ok(None);
    };
    match relocation.kind() {
        RelocationKind::Absolute => Ok(Some(target)),
        RelocationKind::Relative | RelocationKind::PltRelative => {
            Ok(Some(target.wrapping_sub(address)))
        }
        RelocationKind::None => Ok(None),
        _ => Err(format!("an unknown type ({:?})", relocation.flags())),
    }
}

/// Returns the address that a relocation refers to, or `None` if that is in the kernel. `present`
/// is the value at the place of the relocation.
fn target(file: &File<'_>, relocation: &Relocation, present: u64) -> Option<u64> {
    let symbol = match relocation.target() {
        RelocationTarget::Symbol(symbol) => file.symbol_by_index(symbol).ok(),
        _ => None,
    };
    let symbol = symbol.filter(|symbol| !symbol.is_undefined())?;
    let addend = if relocation.has_implicit_addend() {
        present
    } else {
        relocation.addend() as u64
    };
    Some(symbol.address().wrapping_add(addend))
}
