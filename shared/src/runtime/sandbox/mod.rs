//! The sandbox of processes that read what strangers send: the parser of DIFs and the demangler.
//!
//! Such a process needs memory, threads, time, and the files that it was started with; nothing else.
//! Before it reads the first byte of a stranger it gives up the rest for good, in this order:
//!
//! 1. `no_new_privs`: no program that it could start has more rights than it has.
//! 2. Landlock, where the kernel has it: no file can be opened and no port be bound or connected to.
//! 3. Seccomp filters: system calls that are not listed here end the process, which writes the
//!    number of the call first. There is no open, no socket, no exec, no ptrace, no signal to others,
//!    no new process, no executable memory.
//!
//! The list is what parsing needs: it was measured with `strace` over all formats that are read,
//! with glibc 2.36, and holds the calls that other versions of glibc make instead.
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

/// The newest rules of Landlock that are asked for; older kernels apply those that they know.
const LANDLOCK: ABI = ABI::V5;

/// Why a process is not in a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel refuses the seccomp filter.
    #[error("the kernel takes no seccomp filter")]
    Filter(#[from] seccompiler::Error),
    /// There is no filter for this architecture.
    #[error("there is no seccomp filter for this machine")]
    Machine(#[from] BackendError),
    /// The kernel takes no handler for the signal of refused calls.
    #[error("the kernel takes no signal handler")]
    Handler(#[from] io::Error),
    /// The kernel refuses Landlock's rules.
    #[error("the kernel takes no Landlock rules")]
    Landlock(#[from] landlock::RulesetError),
}

/// What a process is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Whether Landlock guards the files, too; the filter does in any case.
    pub has_landlock: bool,
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.has_landlock {
            true => "seccomp and Landlock",
            false => "seccomp alone: this kernel has no Landlock",
        })
    }
}

/// Puts the calling thread, and those that it starts from now on, into the sandbox. A process that is
/// ended by its filter writes which call it was to its standard error.
///
/// # Errors
///
/// The kernel, or what the kernel runs in, has no sandbox of this kind. Some of it may hold already.
pub fn enter() -> Result<Sandbox, SandboxError> {
    refusal::report()?;
    restrict()
}

fn restrict() -> Result<Sandbox, SandboxError> {
    // Looks for the kernel's clock once, in a file: afterwards none can be opened.
    let _now = clock_gettime(ClockId::ProcessCPUTime);
    let filters = [hiding_clone3()?, allowing_what_parsing_needs()?];
    let ruled = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .create()?
        // Seccomp wants the same, and sets it where Landlock does not.
        .no_new_privs(true)
        .restrict_self()?;
    for filter in &filters {
        apply_filter(filter)?;
    }
    Ok(Sandbox {
        has_landlock: ruled.ruleset != RulesetStatus::NotEnforced,
    })
}

/// Tells whether processes of this program can be put into the sandbox: a thread tries, and ends.
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

/// Keeps the calling thread, and what it starts from now on, in its process group: calls that leave
/// one succeed, and change nothing. What kills the group kills all that was started in it.
///
/// # Errors
///
/// As [`enter`].
pub fn stay_in_group() -> Result<(), SandboxError> {
    apply_filter(&answering(&[libc::SYS_setsid, libc::SYS_setpgid], 0)?)?;
    Ok(())
}

/// A filter that makes the kernel seem to have no `clone3`. The C library turns to `clone` then, which
/// has its flags where a filter can read them.
fn hiding_clone3() -> Result<BpfProgram, BackendError> {
    answering(&[libc::SYS_clone3], libc::ENOSYS)
}

/// A filter that answers these calls with an error, or with success for 0, instead of making them.
fn answering(calls: &[i64], error: i32) -> Result<BpfProgram, BackendError> {
    let filter = SeccompFilter::new(
        calls.iter().map(|call| (*call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(error.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

/// A filter that ends the process with `SIGSYS` at any call that is not listed.
fn allowing_what_parsing_needs() -> Result<BpfProgram, BackendError> {
    let always = ALWAYS.iter().map(|call| (*call, Vec::new()));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = always.collect();
    // Of several filters the one that refuses more decides.
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
    // To end itself, as `abort` does.
    for call in [libc::SYS_tgkill, libc::SYS_kill] {
        rules.insert(call, vec![rule([is(0, own)?])?]);
    }
    // Names of threads and of memory: glibc gives them.
    let prctl = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];
    let prctl = prctl.map(|option| rule([is(0, option.unsigned_abs().into())?]));
    rules.insert(
        libc::SYS_prctl,
        prctl.into_iter().collect::<Result<_, _>>()?,
    );
    // Limits are read; those of processor time and of the size of files are lowered for each command.
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

/// An argument has this value, as a number of 32 bits.
fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// An argument is zero, all 64 bits of it: a null pointer, for one.
fn is_zero(argument: u8) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// These bits of an argument are set so.
fn bits(argument: u8, mask: u64, set: u64) -> Result<SeccompCondition, BackendError> {
    let masked = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, masked, set)
}

/// Calls that are allowed whatever their arguments are.
const ALWAYS: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // The files and pipes that are open.
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
    // Signals that it handles itself: an overflow of the stack says so.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time and chance.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    // What it uses of the machine.
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
];

/// Keeps other processes of the same user from reading this one: its environment has credentials.
/// A child that starts a program is readable again, and must have a clean environment.
///
/// # Errors
///
/// The kernel refuses.
pub fn hide() -> io::Result<()> {
    let hidden = rustix::process::DumpableBehavior::NotDumpable;
    Ok(rustix::process::set_dumpable_behavior(hidden)?)
}
