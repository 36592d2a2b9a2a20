//! The symbols of functions in a PE file.
//!
//! `symbolic` reads what a DLL exports. Compilers other than Microsoft's also write a symbol table,
//! as in object files (MinGW, Rust and Go for `windows-gnu`). Neither gives the sizes of functions.
//! If a symbol ended where the next one begins, the functions between two exports would have the
//! name of the first. But the unwind information says where almost every function ends, except for
//! 32-bit x86.
//!
//! Assembly and import libraries write symbols without a type, as for `___chkstk_ms` of MinGW.
//! Those that other object files can refer to are labels.
//!
//! Sources: the PE format specification, "COFF Symbol Table" and "COFF String Table"; Microsoft,
//! "x64 exception handling" and "ARM64 exception handling".

use std::borrow::Cow;
use std::ops::Range;

use goblin::pe::exception::ExceptionData;
use goblin::pe::header::Header;
use goblin::pe::section_table::IMAGE_SCN_CNT_CODE;
use goblin::pe::symbol::{
    IMAGE_SYM_CLASS_EXTERNAL, IMAGE_SYM_CLASS_STATIC, IMAGE_SYM_CLASS_WEAK_EXTERNAL,
    IMAGE_SYM_DTYPE_FUNCTION, IMAGE_SYM_TYPE_NULL, Symbol as TableEntry, SymbolTable,
};
use symbolic::common::Arch;
use symbolic::debuginfo::Symbol;
use symbolic::debuginfo::pe::PeObject;

use super::undecorate::undecorated;

/// The type of all symbols in programs of Go: an array of structures.
const TYPE_IN_GO: u16 = 0x308;

/// What a symbol in the symbol table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CoffKind {
    Function,
    Label,
}

impl CoffKind {
    /// Returns `None` for symbols of other kinds, most of which are of sections.
    fn of(entry: &TableEntry) -> Option<Self> {
        let is_function =
            entry.derived_type() == IMAGE_SYM_DTYPE_FUNCTION || entry.typ == TYPE_IN_GO;
        match entry.storage_class {
            IMAGE_SYM_CLASS_EXTERNAL | IMAGE_SYM_CLASS_STATIC | IMAGE_SYM_CLASS_WEAK_EXTERNAL
                if is_function =>
            {
                Some(Self::Function)
            }
            IMAGE_SYM_CLASS_EXTERNAL if entry.typ == IMAGE_SYM_TYPE_NULL => Some(Self::Label),
            _ => None,
        }
    }
}

/// Returns the symbols of functions, those of the symbol table first, and labels. Their addresses
/// are relative to the load address.
pub(super) fn functions_and_labels<'d>(pe: &PeObject<'d>) -> (Vec<Symbol<'d>>, Vec<Symbol<'d>>) {
    let (mut functions, mut labels) = (Vec::new(), Vec::new());
    for (kind, symbol) in symbol_table(pe).into_iter().flatten() {
        match kind {
            CoffKind::Function => functions.push(symbol),
            CoffKind::Label => labels.push(symbol),
        }
    }
    functions.extend(pe.symbols());
    let ranges = unwound_ranges(pe);
    labels.retain(|label| !is_within_function(label.address, &ranges));
    for symbol in functions.iter_mut().chain(&mut labels) {
        if let Some(end) = end_of_function(symbol.address, &ranges) {
            symbol.size = end - symbol.address;
        }
        symbol.name = symbol.name.take().map(|name| match name {
            Cow::Borrowed(name) => Cow::Borrowed(undecorated(name, pe.arch())),
            Cow::Owned(name) => Cow::Owned(undecorated(&name, pe.arch()).to_owned()),
        });
    }
    (functions, labels)
}

/// Returns whether a file has a symbol of a function.
pub(super) fn has_functions(pe: &PeObject<'_>) -> bool {
    let mut table = symbol_table(pe).into_iter().flatten();
    pe.has_symbols() || table.any(|(kind, _)| kind == CoffKind::Function)
}

/// Returns whether a file names a PDB as its debug information.
pub(super) fn names_pdb(pe: &PeObject<'_>) -> bool {
    let name = pe.debug_file_name();
    name.is_some_and(|name| name.to_ascii_lowercase().ends_with(".pdb"))
}

/// Returns the functions and labels in the symbol table, if there is one. What cannot be read is
/// left out.
fn symbol_table<'o, 'd>(
    pe: &'o PeObject<'d>,
) -> Option<impl Iterator<Item = (CoffKind, Symbol<'d>)> + use<'o, 'd>> {
    let bytes = pe.data();
    let header = Header::parse(bytes).ok()?.coff_header;
    let table = header.symbols(bytes).ok()??;
    let table_bytes = SymbolTable::size(header.number_of_symbol_table as usize);
    let strings = (header.pointer_to_symbol_table as usize).checked_add(table_bytes);
    let strings = strings.and_then(|at| bytes.get(at..)).unwrap_or_default();
    let symbols = table.iter().filter_map(move |(_, short_name, symbol)| {
        let kind = CoffKind::of(&symbol)?;
        // Sections are numbered from one.
        let section = usize::try_from(symbol.section_number)
            .ok()?
            .checked_sub(1)?;
        let section = pe.sections().get(section)?;
        if section.characteristics & IMAGE_SCN_CNT_CODE == 0 {
            return None;
        }
        let name = match short_name {
            Some(name) => name,
            None => {
                let [.., a, b, c, d] = symbol.name;
                let at = u32::from_le_bytes([a, b, c, d]) as usize;
                let name = strings.get(at..)?.split(|byte| *byte == 0).next()?;
                std::str::from_utf8(name).ok()?
            }
        };
        if kind == CoffKind::Label && !is_label(name) {
            return None;
        }
        let symbol = Symbol {
            name: Some(Cow::Borrowed(name)),
            address: u64::from(section.virtual_address) + u64::from(symbol.value),
            size: 0,
        };
        Some((kind, symbol))
    });
    Some(symbols)
}

/// Returns whether the name of a symbol without a type can be a name of code. Names with a dot in
/// front are of sections or local labels. GNU ld puts the lists of constructors and destructors
/// behind the code.
fn is_label(name: &str) -> bool {
    let plain = name.trim_start_matches('_');
    !(plain.is_empty() || name.starts_with('.') || plain == "CTOR_LIST__" || plain == "DTOR_LIST__")
}

/// Returns whether an address lies behind the start of a function that has unwind information.
fn is_within_function(address: u64, ranges: &[Range<u64>]) -> bool {
    let next = ranges.partition_point(|range| range.start < address);
    let before = next.checked_sub(1).and_then(|last| ranges.get(last));
    before.is_some_and(|range| range.contains(&address))
}

/// Returns the address ranges of functions that have unwind information, in their order. A part of
/// a function is joined with what is directly before it.
fn unwound_ranges(pe: &PeObject<'_>) -> Vec<Range<u64>> {
    let Some(data) = pe.exception_data() else {
        return Vec::new();
    };
    let mut ranges = match pe.arch() {
        Arch::Amd64 | Arch::Amd64h => ranges_on_amd64(pe, data),
        Arch::Arm64 | Arch::Arm64e => ranges_on_arm64(pe, data),
        _ => Vec::new(),
    };
    ranges.sort_by_key(|(range, _)| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for (range, is_part) in ranges {
        match joined.last_mut() {
            Some(last) if is_part && last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns the ranges of functions for x86-64, and whether each is a part of another function.
fn ranges_on_amd64(pe: &PeObject<'_>, data: &ExceptionData<'_>) -> Vec<(Range<u64>, bool)> {
    let functions = data.functions().map_while(Result::ok);
    let functions = functions.filter(|function| function.begin_address < function.end_address);
    functions
        .map(|function| {
            let range = function.begin_address.into()..function.end_address.into();
            // An odd address refers to the information of another function.
            let is_plain = function.unwind_info_address.is_multiple_of(2);
            let info = is_plain.then(|| data.get_unwind_info(function, pe.sections()).ok());
            let is_part = info
                .flatten()
                .is_some_and(|info| info.chained_info.is_some());
            (range, is_part)
        })
        .collect()
}

/// The same for 64-bit Arm, whose information does not say whether a function is a part of another.
fn ranges_on_arm64(pe: &PeObject<'_>, data: &ExceptionData<'_>) -> Vec<(Range<u64>, bool)> {
    let functions = data.functions_arm64().map_while(Result::ok);
    let sized = functions.filter_map(|function| {
        let size = if function.is_packed() {
            function.function_length()
        } else {
            let info = data.get_unwind_info_arm64(function, pe.sections())?;
            info.ok()?.header.function_length()
        };
        let begin = u64::from(function.begin_address);
        (size > 0).then(|| (begin..begin + u64::from(size), false))
    });
    sized.collect()
}

/// Returns where the function at an address ends at the latest; `None` if that is unknown. A
/// function without unwind information ends where the next one with it begins.
fn end_of_function(address: u64, ranges: &[Range<u64>]) -> Option<u64> {
    let next = ranges.partition_point(|range| range.start <= address);
    let around = next.checked_sub(1).and_then(|last| ranges.get(last));
    match around.filter(|range| range.contains(&address)) {
        Some(range) => Some(range.end),
        None => ranges.get(next).map(|range| range.start),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_without_a_type_are_labels_unless_they_name_sections_or_lists() {
        for name in ["___chkstk_ms", "__C_specific_handler", "Sleep", "_list"] {
            assert!(is_label(name), "{name}");
        }
        for name in [".text", ".l_start", "__CTOR_LIST__", "___DTOR_LIST__", ""] {
            assert!(!is_label(name), "{name}");
        }
    }

    #[test]
    fn the_class_and_the_type_of_a_symbol_say_what_it_is() {
        let kind = |typ, storage_class| {
            CoffKind::of(&TableEntry {
                typ,
                storage_class,
                ..TableEntry::default()
            })
        };
        assert_eq!(kind(0x20, IMAGE_SYM_CLASS_STATIC), Some(CoffKind::Function));
        assert_eq!(
            kind(TYPE_IN_GO, IMAGE_SYM_CLASS_EXTERNAL),
            Some(CoffKind::Function)
        );
        assert_eq!(kind(0, IMAGE_SYM_CLASS_EXTERNAL), Some(CoffKind::Label));
        assert_eq!(kind(0, IMAGE_SYM_CLASS_STATIC), None);
        assert_eq!(kind(4, IMAGE_SYM_CLASS_EXTERNAL), None);
    }

    #[test]
    fn a_label_at_the_start_of_a_function_is_not_within_it() {
        let ranges = [0x10..0x20, 0x20..0x30];
        let within = |address| is_within_function(address, &ranges);
        assert_eq!(
            [0x10, 0x11, 0x20, 0x2f, 0x30].map(within),
            [false, true, false, true, false]
        );
    }
}
