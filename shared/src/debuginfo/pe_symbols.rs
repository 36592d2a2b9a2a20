//! The symbols of functions in a PE file.
//!
//! `symbolic` reads what a DLL exports. Compilers other than Microsoft's also write a symbol table,
//! as in object files (MinGW, Rust and Go for `windows-gnu`). Neither gives the sizes of functions.
//! If a symbol ended where the next one begins, the functions between two exports would have the
//! name of the first. But the unwind information says where almost every function ends, except for
//! 32-bit x86.
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
    IMAGE_SYM_DTYPE_FUNCTION, SymbolTable,
};
use symbolic::common::Arch;
use symbolic::debuginfo::Symbol;
use symbolic::debuginfo::pe::PeObject;

use super::undecorate::undecorated;

/// The type of all symbols in programs of Go: an array of structures.
const TYPE_IN_GO: u16 = 0x308;

/// Returns the symbols of functions, those of the symbol table first. Their addresses are relative
/// to the load address.
pub(super) fn functions<'d>(pe: &PeObject<'d>) -> Vec<Symbol<'d>> {
    let table = symbol_table(pe).into_iter().flatten();
    let mut symbols: Vec<_> = table.chain(pe.symbols()).collect();
    let ranges = unwound_ranges(pe);
    for symbol in &mut symbols {
        if let Some(end) = end_of_function(symbol.address, &ranges) {
            symbol.size = end - symbol.address;
        }
        symbol.name = symbol.name.take().map(|name| match name {
            Cow::Borrowed(name) => Cow::Borrowed(undecorated(name, pe.arch())),
            Cow::Owned(name) => Cow::Owned(undecorated(&name, pe.arch()).to_owned()),
        });
    }
    symbols
}

/// Returns whether a file has a symbol of a function.
pub(super) fn has_functions(pe: &PeObject<'_>) -> bool {
    let mut table = symbol_table(pe).into_iter().flatten();
    pe.has_symbols() || table.next().is_some()
}

/// Returns whether a file names a PDB as its debug information.
pub(super) fn names_pdb(pe: &PeObject<'_>) -> bool {
    let name = pe.debug_file_name();
    name.is_some_and(|name| name.to_ascii_lowercase().ends_with(".pdb"))
}

/// Returns the functions in the symbol table, if there is one. What cannot be read is left out.
fn symbol_table<'o, 'd>(
    pe: &'o PeObject<'d>,
) -> Option<impl Iterator<Item = Symbol<'d>> + use<'o, 'd>> {
    let bytes = pe.data();
    let header = Header::parse(bytes).ok()?.coff_header;
    let table = header.symbols(bytes).ok()??;
    let table_bytes = SymbolTable::size(header.number_of_symbol_table as usize);
    let strings = (header.pointer_to_symbol_table as usize).checked_add(table_bytes);
    let strings = strings.and_then(|at| bytes.get(at..)).unwrap_or_default();
    let functions = table.iter().filter_map(move |(_, short_name, symbol)| {
        let is_function = (symbol.derived_type() == IMAGE_SYM_DTYPE_FUNCTION
            || symbol.typ == TYPE_IN_GO)
            && matches!(
                symbol.storage_class,
                IMAGE_SYM_CLASS_EXTERNAL | IMAGE_SYM_CLASS_STATIC | IMAGE_SYM_CLASS_WEAK_EXTERNAL
            );
        // Sections are numbered from one.
        let section = usize::try_from(symbol.section_number)
            .ok()?
            .checked_sub(1)?;
        let section = pe.sections().get(section).filter(|_| is_function)?;
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
        Some(Symbol {
            name: Some(Cow::Borrowed(name)),
            address: u64::from(section.virtual_address) + u64::from(symbol.value),
            size: 0,
        })
    });
    Some(functions)
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
        let size = match function.is_packed() {
            true => function.function_length(),
            false => {
                let info = data.get_unwind_info_arm64(function, pe.sections())?;
                info.ok()?.header.function_length()
            }
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
