//! The functions behind which, towards the caller, another one was interrupted.
//!
//! Handlers of signals return to a trampoline. The kernel enters a handler as if the trampoline had
//! called it. The return address of the handler is the first instruction of the trampoline, so the
//! instruction before it belongs to another function. The address behind the trampoline is that of
//! the instruction that was interrupted, to which nothing returns, either: the instruction before
//! it may have another line. On systems of Apple, the trampoline does call the handler, and only
//! the latter applies.
//!
//! Other functions are injected: the runtime of Go and Windows enter them as if the instruction
//! that was interrupted, by a fault for example, had called them. It may be the first one of its
//! function. Injected functions call others, as any function does, so nothing returns to their
//! first instruction.
//!
//! Sources of the names: glibc, musl and bionic (`sigaction`), the kernel of Linux (the images that
//! it maps into processes, `vdso`), the runtime of Go (`injectedCall` in `traceback.go`), Libc of
//! Darwin (`_sigtramp`), and Microsoft, "x64 exception handling": `ntdll.dll` exports
//! `KiUserExceptionDispatcher`, which its symbols on x86-64 call `KiUserExceptionDispatch`.

/// The trampolines, as the debug information names them.
const TRAMPOLINES: [&str; 14] = [
    "__default_rt_sa_restorer",
    "__default_sa_restorer",
    "__kernel_rt_sigreturn",
    "__kernel_sigreturn",
    "__kernel_sigtramp32",
    "__kernel_sigtramp_rt32",
    "__kernel_sigtramp_rt64",
    "__restore",
    "__restore_rt",
    "__rt_sigreturn_stub",
    "__vdso_rt_sigreturn",
    "_sigtramp",
    "runtime.sigreturn",
    "runtime.sigreturn__sigaction",
];

/// The functions that the runtime of Go injects.
const INJECTED_BY_GO: [&str; 3] = [
    "runtime.asyncPreempt",
    "runtime.debugCallV2",
    "runtime.sigpanic",
];

/// The functions that Windows injects on 64-bit processors. On 32-bit x86, what is behind the frame
/// of the dispatcher depends on how the stack was walked: it has no return address.
const INJECTED_BY_WINDOWS: [&str; 2] = ["KiUserExceptionDispatch", "KiUserExceptionDispatcher"];

/// The libraries of the system are at higher addresses in a 64-bit process.
const LAST_OF_32_BITS: u64 = u32::MAX as u64;

/// What the linker of Go adds to the name of a function in assembly that has a variant for Go.
const OF_ASSEMBLY: &str = ".abi0";

/// Returns whether handlers return to the first instruction of a function.
pub(crate) fn is_trampoline(function: &str) -> bool {
    TRAMPOLINES.contains(&without_variant(function))
}

/// Returns whether what is behind a function, towards the caller, was interrupted: the function is
/// a trampoline, or injected. `address` is one in it.
pub(crate) fn interrupts_its_caller(function: &str, address: u64) -> bool {
    is_trampoline(function)
        || INJECTED_BY_GO.contains(&without_variant(function))
        || address > LAST_OF_32_BITS && INJECTED_BY_WINDOWS.contains(&function)
}

fn without_variant(function: &str) -> &str {
    function.strip_suffix(OF_ASSEMBLY).unwrap_or(function)
}

#[cfg(test)]
mod tests {
    use super::{interrupts_its_caller, is_trampoline};

    #[test]
    fn nothing_returns_to_the_first_instruction_of_an_injected_function() {
        let check = |function: &str, address: u64, expected: [bool; 2]| {
            let interrupts = interrupts_its_caller(function, address);
            assert_eq!(
                [is_trampoline(function), interrupts],
                expected,
                "{function}"
            );
        };
        for trampoline in ["__restore_rt", "runtime.sigreturn.abi0", "_sigtramp"] {
            check(trampoline, 0x1000, [true, true]);
        }
        for injected in ["runtime.sigpanic", "runtime.asyncPreempt.abi0"] {
            check(injected, 0x1000, [false, true]);
        }
        for other in ["main", "runtime.sigpanic0", ".abi0", ""] {
            check(other, 0x7ff8_0000_1000, [false, false]);
        }
    }

    #[test]
    fn on_32_bit_windows_what_is_behind_the_dispatcher_is_a_return_address() {
        for function in ["KiUserExceptionDispatch", "KiUserExceptionDispatcher"] {
            assert!(
                interrupts_its_caller(function, 0x7ff8_0000_1000),
                "{function}"
            );
            assert!(!interrupts_its_caller(function, 0x77f0_1000), "{function}");
        }
    }
}
