//! The code of a Mach-O file, and the symbols of functions in it.
//!
//! `symbolic` reads the symbols of the section `__text`. Programs can have more code: a game that
//! Unity translated with IL2CPP has most of its functions in a section of their own.
//!
//! Symbols have no sizes. If a symbol ended where the next one begins, a function whose symbol was
//! stripped would have the name of the one before it. But linkers also write a list of the
//! addresses at which functions start, which stripping leaves in the file.
//!
//! Sources: `mach-o/loader.h` and `mach-o/nlist.h` of XNU; for the list of function starts,
//! `llvm-objdump --macho --function-starts`.

use std::borrow::Cow;
use std::ops::Range;

use gimli::{EndianSlice, LittleEndian, Reader as _};
use goblin::mach::MachO;
use goblin::mach::constants::cputype::CPU_TYPE_ARM;
use goblin::mach::constants::{S_ATTR_PURE_INSTRUCTIONS, S_ATTR_SOME_INSTRUCTIONS};
use goblin::mach::load_command::CommandVariant;
use goblin::mach::segment::Section;
use goblin::mach::symbols::N_SECT;
use symbolic::debuginfo::Symbol;

/// The prefix of the names that a symbol map replaces. Their first underscore belongs to them.
const HIDDEN: &str = "__hidden#";

/// Returns the address ranges of code, and the symbols of functions, whose addresses are relative
/// to `load_address`. Leaves out what cannot be read.
pub(super) fn code_and_functions(
    data: &[u8],
    load_address: u64,
) -> (Vec<Range<u64>>, Vec<Symbol<'_>>) {
    let Ok(mach) = MachO::parse(data, 0) else {
        return Default::default();
    };
    let sections: Vec<Section> = mach
        .segments
        .into_iter()
        .flat_map(|segment| segment.sections().unwrap_or_default())
        .map(|(section, _)| section)
        .collect();
    let starts = function_starts(&mach, data).unwrap_or_default();
    let functions = mach.symbols().map_while(Result::ok);
    let functions = functions.filter_map(|(name, symbol)| {
        // Sections are numbered from one.
        let section = sections.get(symbol.n_sect.checked_sub(1)?)?;
        let is_function = !symbol.is_stab() && symbol.get_type() == N_SECT && has_code(section);
        let address = symbol.n_value.checked_sub(load_address)?;
        is_function.then(|| Symbol {
            name: Some(Cow::Borrowed(without_underscore(name))),
            address,
            size: size_of_function(address, &starts),
        })
    });
    let functions = functions.collect();
    let code = sections.iter().filter(|section| has_code(section));
    let code = code
        .map(|section| section.addr..section.addr.saturating_add(section.size))
        .collect();
    (code, functions)
}

fn has_code(section: &Section) -> bool {
    section.flags & (S_ATTR_PURE_INSTRUCTIONS | S_ATTR_SOME_INSTRUCTIONS) != 0
}

/// Returns the name that a function has in C. Compilers for Apple's systems prefix an underscore.
fn without_underscore(name: &str) -> &str {
    if name.starts_with(HIDDEN) {
        name
    } else {
        name.strip_prefix('_').unwrap_or(name)
    }
}

/// Returns the addresses at which functions start, relative to the load address, in ascending
/// order.
fn function_starts(mach: &MachO<'_>, data: &[u8]) -> Option<Vec<u64>> {
    let place = mach.load_commands.iter().find_map(|command| {
        let CommandVariant::FunctionStarts(place) = command.command else {
            return None;
        };
        Some(place)
    })?;
    let (at, length) = (place.dataoff as usize, place.datasize as usize);
    let mut steps = EndianSlice::new(data.get(at..)?.get(..length)?, LittleEndian);
    // On 32-bit Arm, an odd address stands for Thumb code at the even address below it.
    let mask = match mach.header.cputype() {
        CPU_TYPE_ARM => !1,
        _ => u64::MAX,
    };
    let (mut starts, mut address) = (Vec::new(), 0_u64);
    while let Ok(step @ 1..) = steps.read_uleb128() {
        address = address.checked_add(step)?;
        starts.push(address & mask);
    }
    Some(starts)
}

/// Returns the distance to the start of the next function, or zero if none is known.
fn size_of_function(address: u64, starts: &[u64]) -> u64 {
    let next = starts.partition_point(|start| *start <= address);
    starts.get(next).map_or(0, |next| next - address)
}
