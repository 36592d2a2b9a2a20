//! The functions that handlers of signals return to: what is towards the caller was interrupted.
//!
//! The kernel enters a handler as if a trampoline had called it. The return address of the handler
//! is the first instruction of the trampoline, so the instruction before it belongs to another
//! function. The address behind the trampoline is that of the instruction that was interrupted, to
//! which nothing returns, either: the instruction before it may have another line. On systems of
//! Apple, the trampoline does call the handler, and only the latter applies.
//!
//! Sources of the names: glibc, musl and bionic (`sigaction`), the kernel of Linux (the images that
//! it maps into processes, `vdso`), the runtime of Go, and Libc of Darwin (`_sigtramp`).

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

/// Returns whether a function is a trampoline.
pub(crate) fn is_trampoline(function: &str) -> bool {
    TRAMPOLINES.contains(&function)
}
