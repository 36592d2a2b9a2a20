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

/// The functions that are injected.
const INJECTED: [&str; 5] = [
    "KiUserExceptionDispatch",
    "KiUserExceptionDispatcher",
    "runtime.asyncPreempt",
    "runtime.debugCallV2",
    "runtime.sigpanic",
];

/// What the linker of Go adds to the name of a function in assembly that has a variant for Go.
const OF_ASSEMBLY: &str = ".abi0";

/// Returns whether a function is a trampoline or injected, so that what is towards the caller was
/// interrupted. A return address at its first instruction (`is_first`) is in a trampoline only: it
/// is not in an injected function, but behind the function before.
pub(crate) fn is_trampoline(function: &str, is_first: bool) -> bool {
    let function = function.strip_suffix(OF_ASSEMBLY).unwrap_or(function);
    TRAMPOLINES.contains(&function) || !is_first && INJECTED.contains(&function)
}

#[cfg(test)]
mod tests {
    use super::is_trampoline;

    #[test]
    fn nothing_returns_to_the_first_instruction_of_an_injected_function() {
        let check = |function: &str, expected: [bool; 2]| {
            let found = [true, false].map(|is_first| is_trampoline(function, is_first));
            assert_eq!(found, expected, "{function}");
        };
        for trampoline in ["__restore_rt", "runtime.sigreturn.abi0", "_sigtramp"] {
            check(trampoline, [true, true]);
        }
        for injected in [
            "runtime.sigpanic",
            "runtime.asyncPreempt.abi0",
            "KiUserExceptionDispatch",
            "KiUserExceptionDispatcher",
        ] {
            check(injected, [false, true]);
        }
        for other in ["main", "runtime.sigpanic0", ".abi0", ""] {
            check(other, [false, false]);
        }
    }
}
