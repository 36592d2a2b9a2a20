//! Bugs of `symbolic` that this crate works around: each with the case, where it was seen, and what
//! is done.

use symbolic::debuginfo::dwarf::Dwarf as _;
use symbolic::debuginfo::{Object, ObjectKind};

/// Tells whether `symbolic` looks for the `__eh_frame` of a dSYM where it is not.
///
/// Case: `dsymutil` moves the section within its segment and notes the new offset; `symbolic` 13.9
/// computes the offset from addresses. Seen in every dSYM of x86-64 with the section that LLVM 14
/// made. What is read instead is no unwind information, but may look like some: then nothing is
/// taken from it. The executable has the same information.
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
