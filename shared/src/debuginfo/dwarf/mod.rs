//! Debug sessions on ELF files, whose line programs are mended: on all units at once, or on one run of units after the other.
//!
//! Most of a large debug file is `.debug_info`, compressed. Where no unit refers to another, it need not be in memory as a whole, nor
//! be decompressed before the first function is read: a *run* of units makes a session of its own, over the other sections, which
//! all runs share. What is found in two runs counts in the first, as it does within one session.

mod line_programs;
mod reader;
mod sections;
#[cfg(test)]
mod tests;
mod units;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashSet;

use self_cell::self_cell;
use symbolic::debuginfo::dwarf::{Dwarf, DwarfDebugSession, DwarfError, DwarfSection, Endian};
use symbolic::debuginfo::elf::ElfObject;
use symbolic::debuginfo::{Function, ObjectKind, SymbolMap};

use self::sections::Sections;
pub(super) use self::units::Units;

/// The least that a run has, in bytes: it is in memory with its functions, which take several times as much.
pub(super) const RUN_BYTES: usize = 4 << 20;

/// Opens a debug session on all units of an object.
pub(super) fn debug_session<'d>(
    object: &ElfObject<'d>,
) -> Result<DwarfDebugSession<'d>, DwarfError> {
    let mut names = sections::ALL.to_vec();
    names.push(units::SECTION);
    let all = Whole {
        object,
        sections: RefCell::new(Sections::open(object, &names)),
    };
    let (load_address, kind) = (load_address(object), object.kind());
    DwarfDebugSession::parse(&all, object.symbol_map(), load_address, kind)
}

fn load_address(object: &ElfObject<'_>) -> i64 {
    i64::try_from(object.load_address()).unwrap_or_default()
}

/// All sections of an object, those that were decompressed side by side and the others.
struct Whole<'a, 'd> {
    object: &'a ElfObject<'d>,
    sections: RefCell<Sections<'d>>,
}

impl<'d> Dwarf<'d> for Whole<'_, 'd> {
    fn endianity(&self) -> Endian {
        self.object.endianity()
    }

    fn raw_section(&self, name: &str) -> Option<DwarfSection<'d>> {
        self.object.raw_section(name)
    }

    fn section(&self, name: &str) -> Option<DwarfSection<'d>> {
        let taken = self.sections.borrow_mut().take(name);
        taken.or_else(|| self.object.section(name))
    }
}

/// Opens sessions on runs of the units of one object.
pub(super) struct Runs<'d> {
    /// All sections but `.debug_info`.
    sections: Sections<'d>,
    symbols: SymbolMap<'d>,
    load_address: i64,
    kind: ObjectKind,
    endianity: Endian,
}

impl<'d> Runs<'d> {
    /// Opens an object, and its units in runs of `run_bytes` or more; `None` where one unit may refer to another.
    pub(super) fn open(object: &ElfObject<'d>, run_bytes: usize) -> Option<(Self, Units<'d>)> {
        let symbols = object.symbol_map();
        // Each run copies the symbols, which must not take longer than to read it.
        let run_bytes = run_bytes.max(size_of_val(&*symbols) / 2);
        let units = Units::of(object, run_bytes)?;
        let runs = Self {
            sections: Sections::open(object, &sections::ALL),
            symbols,
            load_address: load_address(object),
            kind: object.kind(),
            endianity: object.endianity(),
        };
        Some((runs, units))
    }

    /// Reads the functions of a run, but for those that were `seen` in runs before: by address and size, in bytes.
    pub(super) fn read<'s>(
        &'s self,
        info: Cow<'d, [u8]>,
        seen: &mut HashSet<(u64, u64)>,
    ) -> Result<Run<'s>, DwarfError> {
        let view = View {
            runs: self,
            info: RefCell::new(info),
        };
        let session =
            DwarfDebugSession::parse(&view, self.symbols.clone(), self.load_address, self.kind)?;
        Run::try_new(session, |session| {
            let is_new = |function: &Result<Function<'_>, DwarfError>| {
                let range = function
                    .as_ref()
                    .map(|function| (function.address, function.size));
                range.map_or(true, |range| seen.insert(range))
            };
            session.functions().filter(is_new).collect()
        })
    }
}

self_cell!(
    /// The functions of a run of units.
    pub(super) struct Run<'s> {
        owner: DwarfDebugSession<'s>,
        #[covariant]
        dependent: Functions,
    }
);

type Functions<'r> = Vec<Function<'r>>;

impl Run<'_> {
    /// Returns the functions.
    pub(super) fn functions(&self) -> &[Function<'_>] {
        self.borrow_dependent()
    }
}

/// What a session sees of an object: a run of its units, and all other sections.
struct View<'s, 'd> {
    runs: &'s Runs<'d>,
    info: RefCell<Cow<'s, [u8]>>,
}

impl<'s> Dwarf<'s> for View<'s, '_> {
    fn endianity(&self) -> Endian {
        self.runs.endianity
    }

    fn raw_section(&self, name: &str) -> Option<DwarfSection<'s>> {
        if name == units::SECTION {
            return Some(DwarfSection {
                address: 0,
                offset: 0,
                align: 1,
                data: self.info.take(),
            });
        }
        self.runs.sections.get(name)
    }
}
