//! The names of the registers that compilers save, by their numbers in DWARF.
//!
//! Sources: the System V ABI for AMD64 and for Intel386, "DWARF Register Number Mapping"; DWARF for
//! the Arm 64-bit Architecture, "DWARF register names".

pub(super) const AMD64: &[&str] = &[
    "$rax", "$rdx", "$rcx", "$rbx", "$rsi", "$rdi", "$rbp", "$rsp", "$r8", "$r9", "$r10", "$r11",
    "$r12", "$r13", "$r14", "$r15", "$rip",
];

pub(super) const INTEL32: &[&str] = &[
    "$eax", "$ecx", "$edx", "$ebx", "$esp", "$ebp", "$esi", "$edi", "$eip",
];

pub(super) const ARM64: &[&str] = &[
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
    "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27",
    "x28", "x29", "x30", "sp",
];
