//! Finds the trampolines of signals in code, by their instructions.
//!
//! A handler of a signal returns to a trampoline, which calls the system. Without its name, the
//! function that was interrupted is taken for its caller (`domain::trampoline`), and may get the
//! line before its own. The trampoline is a local function of libc: a stripped libc has no symbol
//! for it. Debuggers and unwinders therefore recognise it by its instructions, which no other
//! function has: they load the number of `sigreturn` or `rt_sigreturn`, and enter the kernel.
//!
//! Only the code of files that define `sigaction` is searched: it gives the trampoline to the
//! kernel. The code of an upload of more than 16 MiB is not there (`inspect::needless`), but no
//! libc is that large.
//!
//! Sources: the tables of system calls of Linux (`sigreturn` and `rt_sigreturn` of each
//! architecture); the encodings that the assemblers of GNU and LLVM choose, in glibc, musl and
//! bionic.

use goblin::elf::header::{EM_386, EM_AARCH64, EM_ARM, EM_RISCV, EM_X86_64};
use memchr::memmem;
use symbolic::debuginfo::Symbol;

use crate::domain::is_trampoline;

/// The instructions of a trampoline on one architecture.
struct Pattern {
    machine: u16,
    name: &'static str,
    instructions: &'static [u8],
    /// The alignment of its first instruction, in bytes.
    alignment: u64,
}

impl Pattern {
    const fn new(
        machine: u16,
        name: &'static str,
        instructions: &'static [u8],
        alignment: u64,
    ) -> Self {
        Self {
            machine,
            name,
            instructions,
            alignment,
        }
    }
}

/// The patterns. On 64-bit Arm and RISC-V, only musl has a trampoline: other libraries use that in
/// the image that the kernel maps, which has symbols.
const PATTERNS: [Pattern; 10] = [
    // mov $15, %rax; syscall
    Pattern::new(
        EM_X86_64,
        "__restore_rt",
        b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05",
        1,
    ),
    // mov $15, %eax; syscall
    Pattern::new(
        EM_X86_64,
        "__restore_rt",
        b"\xb8\x0f\x00\x00\x00\x0f\x05",
        1,
    ),
    // pop %eax; mov $119, %eax; int $0x80
    Pattern::new(EM_386, "__restore", b"\x58\xb8\x77\x00\x00\x00\xcd\x80", 1),
    // mov $173, %eax; int $0x80
    Pattern::new(EM_386, "__restore_rt", b"\xb8\xad\x00\x00\x00\xcd\x80", 1),
    // mov r7, #119; svc 0
    Pattern::new(
        EM_ARM,
        "__default_sa_restorer",
        b"\x77\x70\xa0\xe3\x00\x00\x00\xef",
        4,
    ),
    // mov r7, #173; svc 0
    Pattern::new(
        EM_ARM,
        "__default_rt_sa_restorer",
        b"\xad\x70\xa0\xe3\x00\x00\x00\xef",
        4,
    ),
    // mov.w r7, #119; svc 0 (Thumb)
    Pattern::new(
        EM_ARM,
        "__default_sa_restorer",
        b"\x4f\xf0\x77\x07\x00\xdf",
        2,
    ),
    // mov.w r7, #173; svc 0 (Thumb)
    Pattern::new(
        EM_ARM,
        "__default_rt_sa_restorer",
        b"\x4f\xf0\xad\x07\x00\xdf",
        2,
    ),
    // mov x8, #139; svc 0
    Pattern::new(
        EM_AARCH64,
        "__restore_rt",
        b"\x68\x11\x80\xd2\x01\x00\x00\xd4",
        4,
    ),
    // li a7, 139; ecall
    Pattern::new(
        EM_RISCV,
        "__restore_rt",
        b"\x93\x08\xb0\x08\x73\x00\x00\x00",
        2,
    ),
];

/// The function of libc that gives the trampoline to the kernel.
const USER: &str = "sigaction";

/// Returns whether the code of a file with these symbols of functions has to be searched.
pub(super) fn lacks_trampolines(functions: &[Symbol<'_>]) -> bool {
    let names = functions.iter().filter_map(|symbol| symbol.name.as_deref());
    names.clone().any(|name| name == USER) && !names.into_iter().any(is_trampoline)
}

/// A trampoline: its address, its size in bytes, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trampoline {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) name: &'static str,
}

/// The most trampolines of a file. A libc has one or two; a malformed file may consist of them.
pub(super) const MAX_TRAMPOLINES: usize = 16;

/// Returns the trampolines in the bytes of a section with code of a little-endian file, which
/// begins at an address.
pub(super) fn trampolines(
    machine: u16,
    address: u64,
    code: &[u8],
) -> impl Iterator<Item = Trampoline> {
    let patterns = PATTERNS
        .iter()
        .filter(move |pattern| pattern.machine == machine);
    patterns.flat_map(move |pattern| {
        let places = memmem::find_iter(code, pattern.instructions);
        let addresses = places.map(move |place| address.saturating_add(place as u64));
        let aligned = addresses.filter(|address| address.is_multiple_of(pattern.alignment));
        aligned.map(|address| Trampoline {
            address,
            size: pattern.instructions.len() as u64,
            name: pattern.name,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trampoline_is_found_at_its_first_instruction() {
        for pattern in &PATTERNS {
            let size = pattern.instructions.len() as u64;
            let nops = [0x90; 4];
            let code = [&nops[..], pattern.instructions, &nops[..3]].concat();
            let found: Vec<_> = trampolines(pattern.machine, 0x1000, &code).collect();
            let expected = Trampoline {
                address: 0x1004,
                size,
                name: pattern.name,
            };
            assert_eq!(found, [expected]);

            let misaligned = trampolines(pattern.machine, 0x1001, &code);
            assert_eq!(misaligned.count() == 0, pattern.alignment > 1);
            let cut = code.get(..code.len() - 4).unwrap();
            assert_eq!(trampolines(pattern.machine, 0x1000, cut).count(), 0);
            assert_eq!(
                trampolines(goblin::elf::header::EM_MIPS, 0, &code).count(),
                0
            );
        }
    }

    #[test]
    fn only_a_libc_without_the_symbol_is_searched() {
        let check = |names: &[&'static str], expected| {
            let symbols = names.iter().map(|name| Symbol {
                name: Some((*name).into()),
                address: 0x1000,
                size: 1,
            });
            let symbols: Vec<_> = symbols.collect();
            assert_eq!(lacks_trampolines(&symbols), expected, "{names:?}");
        };
        check(&[], false);
        check(&["abort", "sigaction"], true);
        check(&["abort", "sigaction", "__restore_rt"], false);
        check(&["abort", "main"], false);
    }
}
