//! Workarounds for bugs of `symbolic`. Each says what the bug is, where it was seen, and what this
//! crate does instead.

use symbolic::debuginfo::dwarf::Dwarf as _;
use symbolic::debuginfo::{Object, ObjectKind};

/// Returns whether `symbolic` reads the `__eh_frame` of a dSYM from the wrong offset.
///
/// Case: `dsymutil` moves the section within its segment and writes the new offset to the header,
/// but `symbolic` 13.9 computes the offset from addresses. Seen in every x86-64 dSYM with this
/// section that LLVM 14 made. The bytes at the computed offset are not unwind information, but may
/// look like it, so no CFI is derived from such a file. The executable has the same information.
pub(super) fn eh_frame_is_misread(object: &Object<'_>) -> bool {
    let Object::MachO(mach) = object else {
        return false;
    };
    if mach.kind() != ObjectKind::Debug {
        return false;
    }
    // Length, then zero: every `eh_frame` begins with a CIE (Linux Standard Base, "The .eh_frame
    // section").
    mach.raw_section("eh_frame").is_some_and(|section| {
        let word = |at: usize| {
            Some(u32::from_le_bytes(
                section.data.get(at..at + 4)?.try_into().ok()?,
            ))
        };
        word(4) != Some(0)
            || !word(0).is_some_and(|length| length > 0 && (length as usize) < section.data.len())
    })
}
