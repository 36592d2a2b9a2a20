//! The sandbox of processes that read untrusted data: the parser of DIFs and the demangler.
//!
//! Such a process needs only memory, threads, time, and the files that it was started with. Before
//! it reads the first untrusted byte it permanently gives up everything else, in this order:
//!
//! 1. `no_new_privs`: no program that it could start has more rights than it has.
//! 2. Landlock, if the kernel supports it: no file can be opened, and no port can be bound or
//!    connected to.
//! 3. Seccomp filters: a system call that is not listed here ends the process, which first writes
//!    the number of the call. There is no open, socket, exec, ptrace, signal to other processes,
//!    new process, or executable memory.
//!
//! The list contains what parsing needs: it was measured with `strace` over all supported formats,
//! with glibc 2.36, and includes the calls that other versions of glibc make instead.
//!
//! Sources: Linux, `Documentation/userspace-api/{no_new_privs,landlock,seccomp_filter}.rst`.

mod refusal;

use std::collections::BTreeMap;
use std::{fmt, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus,
};
use rustix::process::getpid;
use rustix::time::{ClockId, clock_gettime};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

/// The newest Landlock rules to request; older kernels apply those that they know.
const LANDLOCK: ABI = ABI::V5;

/// Why a process is not in a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel rejected the seccomp filter.
    #[error("the kernel rejected the seccomp filter")]
    Filter(#[from] seccompiler::Error),
    /// There is no filter for this architecture.
    #[error("no seccomp filter exists for this architecture")]
    Machine(#[from] BackendError),
    /// The kernel rejected the handler for the signal of refused calls.
    #[error("the kernel rejected the signal handler")]
    Handler(#[from] io::Error),
    /// The kernel rejected Landlock's rules.
    #[error("the kernel rejected the Landlock rules")]
    Landlock(#[from] landlock::RulesetError),
}

/// The sandbox of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Whether Landlock is active in addition to the seccomp filter.
    pub has_landlock: bool,
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.has_landlock {
            true => "seccomp and Landlock",
            false => "seccomp only: this kernel has no Landlock",
        })
    }
}

/// Puts the calling thread, and the threads that it starts from now on, into the sandbox. A process
/// that its filter ends writes the refused call to its standard error.
///
/// # Errors
///
/// The kernel, or the environment around it, does not support this sandbox. Parts of it may already
/// be active.
pub fn enter() -> Result<Sandbox, SandboxError> {
    refusal::report()?;
    restrict()
}

fn restrict() -> Result<Sandbox, SandboxError> {
    // The first call locates the kernel's clock in a file. Later, no file can be opened.
    let _now = clock_gettime(ClockId::ProcessCPUTime);
    let filters = [hiding_clone3()?, allowing_what_parsing_needs()?];
    let ruled = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .create()?
        // Seccomp requires it too, and sets it if Landlock does not.
        .no_new_privs(true)
        .restrict_self()?;
    for filter in &filters {
        apply_filter(filter)?;
    }
    Ok(Sandbox {
        has_landlock: ruled.ruleset != RulesetStatus::NotEnforced,
    })
}

/// Returns whether processes of this program can enter the sandbox, by trying it in a thread.
///
/// # Errors
///
/// As [`enter`]; or no thread can be started.
pub fn probe() -> io::Result<Result<Sandbox, SandboxError>> {
    let thread = std::thread::Builder::new().spawn(restrict)?;
    thread
        .join()
        .map_err(|_| io::Error::other("the thread that tried the sandbox panicked"))
}

/// Keeps the calling thread, and processes that it starts from now on, in its process group: calls
/// that leave a group succeed without effect. Killing the group then kills everything that was
/// started in it.
///
/// # Errors
///
/// As [`enter`].
pub fn stay_in_group() -> Result<(), SandboxError> {
    apply_filter(&answering(&[libc::SYS_setsid, libc::SYS_setpgid], 0)?)?;
    Ok(())
}

/// Returns a filter that hides `clone3`. The C library then uses `clone`, whose flags a filter can
/// read.
fn hiding_clone3() -> Result<BpfProgram, BackendError> {
    answering(&[libc::SYS_clone3], libc::ENOSYS)
}

/// Returns a filter that makes these calls return an error, or success for 0, without executing
/// them.
fn answering(calls: &[i64], error: i32) -> Result<BpfProgram, BackendError> {
    let filter = SeccompFilter::new(
        calls.iter().map(|call| (*call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(error.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

/// Returns a filter that ends the process with `SIGSYS` at any call that is not listed.
fn allowing_what_parsing_needs() -> Result<BpfProgram, BackendError> {
    let always = ALWAYS.iter().map(|call| (*call, Vec::new()));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = always.collect();
    // Of several filters, the strictest decides; `clone3` is handled by the other one.
    rules.insert(libc::SYS_clone3, Vec::new());
    let own = getpid().as_raw_nonzero().get().unsigned_abs().into();
    let thread = libc::CLONE_THREAD.unsigned_abs().into();
    let executable: u64 = libc::PROT_EXEC.unsigned_abs().into();
    let not_executable = |argument| bits(argument, executable, 0);
    // Threads, but no processes.
    rules.insert(libc::SYS_clone, vec![rule([bits(0, thread, thread)?])?]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![rule([not_executable(2)?])?]);
    }
    // Signals to the process itself, as `abort` sends.
    for call in [libc::SYS_tgkill, libc::SYS_kill] {
        rules.insert(call, vec![rule([is(0, own)?])?]);
    }
    // glibc names threads and memory areas.
    let prctl = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];
    let prctl = prctl.map(|option| rule([is(0, option.unsigned_abs().into())?]));
    rules.insert(
        libc::SYS_prctl,
        prctl.into_iter().collect::<Result<_, _>>()?,
    );
    // Limits may be read. Those of CPU time and file size are also lowered, for each command.
    rules.insert(
        libc::SYS_prlimit64,
        vec![
            rule([is_zero(0)?, is_zero(2)?])?,
            rule([is_zero(0)?, is(1, libc::RLIMIT_CPU.into())?])?,
            rule([is_zero(0)?, is(1, libc::RLIMIT_FSIZE.into())?])?,
        ],
    );
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Trap,
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

/// The condition that an argument has this value, as a 32-bit number.
fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// The condition that all 64 bits of an argument are zero, as in a null pointer.
fn is_zero(argument: u8) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// The condition that these bits of an argument have this value.
fn bits(argument: u8, mask: u64, set: u64) -> Result<SeccompCondition, BackendError> {
    let masked = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, masked, set)
}

/// Calls that are allowed with any arguments.
const ALWAYS: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Files and pipes that are open.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_ftruncate,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    // Threads.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_membarrier,
    // The process's own signal handlers, one of which reports stack overflows.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    // Resource usage.
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
];

/// Prevents other processes of the same user from reading this one, whose environment contains
/// credentials.
///
/// A child that executes a program is readable again, so it must have a clean environment.
///
/// # Errors
///
/// The kernel refuses.
pub fn hide() -> io::Result<()> {
    let hidden = rustix::process::DumpableBehavior::NotDumpable;
    Ok(rustix::process::set_dumpable_behavior(hidden)?)
}
