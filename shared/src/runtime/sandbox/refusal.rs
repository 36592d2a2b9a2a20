//! Handles a system call that the filter refuses: the process writes the number of the call and
//! ends with `SIGSYS`. The call is not executed.
//!
//! One call fails instead: glibc opens a kernel setting when it frees a thread's memory, and
//! continues without it if that fails.
//!
//! Source: Linux, `Documentation/userspace-api/seccomp_filter.rst`, `SECCOMP_RET_TRAP`; glibc,
//! `check_may_shrink_heap`.
#![expect(
    unsafe_code,
    reason = "a signal handler can neither be installed nor read its arguments without it"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{self, Cursor, Write};
use std::mem::zeroed;
use std::ptr::null_mut;

use libc::{SA_NODEFER, SA_ONSTACK, SA_SIGINFO, SIGSYS, siginfo_t, ucontext_t};

use crate::adapters::parser::wire::REFUSED_CALL;

/// The file that glibc may try to open: the kernel's overcommit setting.
const TOLERATED: &CStr = c"/proc/sys/vm/overcommit_memory";

/// Installs the handler that writes the number of a refused call before the process ends.
pub(super) fn report() -> io::Result<()> {
    // SAFETY: all zeroes are a valid `sigaction`: no flags, no mask, the default action.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = on_refusal as *const () as usize;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    // SAFETY: `action` lives for the whole call. The handler has the signature that `SA_SIGINFO`
    // requires, and uses only async-signal-safe functions: it neither allocates nor takes a lock.
    match unsafe { libc::sigaction(SIGSYS, &raw const action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_refusal(_signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: for a handler with `SA_SIGINFO` the kernel has filled in both, and nothing else uses
    // them while it runs.
    let (call, context) = unsafe { ((*info).si_syscall(), &mut *context.cast::<ucontext_t>()) };
    if i64::from(call) == libc::SYS_openat {
        let path = registers::second_argument(context) as *const c_char;
        // SAFETY: a program that opens a file passes a zero-terminated path. A program that does
        // not is compromised, and an invalid read here ends it.
        if !path.is_null() && unsafe { CStr::from_ptr(path) } == TOLERATED {
            registers::set_result(context, -libc::EACCES);
            return;
        }
    }
    let mut line = Cursor::new([0; 64]);
    // The process ends even if the line cannot be written.
    let _ = writeln!(line, "{REFUSED_CALL}{call}");
    let written = usize::try_from(line.position()).unwrap_or_default();
    let line = line.get_ref().get(..written).unwrap_or_default();
    let _ = rustix::io::write(rustix::stdio::stderr(), line);
    // SAFETY: both functions are async-signal-safe. The default action ends the process within
    // `raise`.
    unsafe {
        libc::signal(SIGSYS, libc::SIG_DFL);
        libc::raise(SIGSYS);
    }
}

/// The registers of a thread at the refused call: arguments and result.
#[cfg(target_arch = "x86_64")]
mod registers {
    use libc::{REG_RAX, REG_RSI, c_int, ucontext_t};

    pub(super) fn second_argument(context: &ucontext_t) -> u64 {
        context.uc_mcontext.gregs[REG_RSI as usize].cast_unsigned()
    }

    pub(super) fn set_result(context: &mut ucontext_t, result: c_int) {
        context.uc_mcontext.gregs[REG_RAX as usize] = result.into();
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use libc::{c_int, ucontext_t};

    pub(super) fn second_argument(context: &ucontext_t) -> u64 {
        context.uc_mcontext.regs[1]
    }

    pub(super) fn set_result(context: &mut ucontext_t, result: c_int) {
        context.uc_mcontext.regs[0] = i64::from(result).cast_unsigned();
    }
}
