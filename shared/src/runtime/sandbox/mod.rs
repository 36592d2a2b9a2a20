//! The sandbox of processes that read untrusted data: the parser of DIFs and the demangler.
//!
//! Such a process needs only memory, threads, time, and the files that it was started with. Before
//! it reads the first untrusted byte it permanently gives up everything else, in this order:
//!
//! 1. `no_new_privs`: no program that it could start has more rights than it has.
//! 2. Landlock, if the kernel supports it: no file can be opened, and no port can be bound or
//!    connected to.
//! 3. A limit of no open files: what is open stays usable, but no file, socket or pipe can be
//!    opened.
//! 4. Seccomp filters: a system call that is not listed here ends the process, which first writes
//!    the number of the call. There is no open, socket, exec, ptrace, signal to other processes,
//!    new process, or executable memory.
//!
//! The list contains what parsing needs: it was measured with `strace` over all supported formats,
//! with glibc 2.36, and includes the calls that other versions of glibc make instead.
//!
//! Step 3 works everywhere. The others need `prctl`, which AWS Lambda refuses, as it refuses new
//! filters and `ptrace`: decision 0031. [`Sandbox`] says what is active.
//!
//! Sources: Linux, `Documentation/userspace-api/{no_new_privs,landlock,seccomp_filter}.rst`;
//! `man 2 getrlimit`, `RLIMIT_NOFILE`.

mod refusal;

use std::collections::BTreeMap;
use std::{fmt, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus,
};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, dumpable_behavior, getpid, getrlimit,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::time::{ClockId, clock_gettime};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

use crate::domain::chain;

/// The newest Landlock rules to request; older kernels apply those that they know.
const LANDLOCK: ABI = ABI::V5;

/// Why a process has no seccomp filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The kernel rejected the seccomp filter.
    #[error("the kernel rejected the seccomp filter")]
    Filter(#[from] seccompiler::Error),
    /// There is no filter for this architecture.
    #[error("no seccomp filter exists for this architecture")]
    Machine(#[from] BackendError),
    /// The kernel rejected Landlock's rules, or that they are permanent.
    #[error("the kernel rejected the Landlock rules")]
    Landlock(#[from] landlock::RulesetError),
}

/// What protects others from a process in the sandbox, besides the limit of no open files.
#[derive(Debug)]
pub enum Sandbox {
    /// It makes no system call that is not listed.
    Filtered {
        /// Whether Landlock is active, too.
        has_landlock: bool,
    },
    /// Nothing: the environment around it refuses filters.
    Unfiltered(FilterError),
}

impl Sandbox {
    /// Returns an error if system calls are not filtered.
    pub fn filtered(self) -> Result<(), FilterError> {
        match self {
            Self::Filtered { .. } => Ok(()),
            Self::Unfiltered(error) => Err(error),
        }
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filtered { has_landlock: true } => f.write_str("seccomp and Landlock"),
            Self::Filtered {
                has_landlock: false,
            } => f.write_str("seccomp: this kernel has no Landlock"),
            Self::Unfiltered(error) => write!(f, "limits only: {}", chain(error)),
        }
    }
}

/// Puts the calling thread, and the threads that it starts from now on, into the sandbox. The
/// process can open nothing afterwards. If its filter ends it, it first writes the refused call to
/// its standard error.
///
/// # Errors
///
/// The kernel refuses to lower a limit, or to handle a signal.
pub fn enter() -> io::Result<Sandbox> {
    refusal::report()?;
    // The first call locates the kernel's clock in a file.
    let _now = clock_gettime(ClockId::ProcessCPUTime);
    // Landlock's rules are a file until they apply. The filters refuse to lower this limit.
    let has_landlock = apply_landlock();
    lower(Resource::Nofile, 0)?;
    Ok(filtered(has_landlock))
}

/// Returns what [`enter`] would, by trying it in a thread.
///
/// # Errors
///
/// No thread can be started.
pub fn probe() -> io::Result<Sandbox> {
    let thread = std::thread::Builder::new().spawn(|| filtered(apply_landlock()))?;
    thread
        .join()
        .map_err(|_| io::Error::other("the thread that tried the sandbox panicked"))
}

/// Restricts the thread by Landlock, permanently. Returns whether the kernel supports it.
fn apply_landlock() -> Result<bool, FilterError> {
    let ruled = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .create()?
        // Seccomp requires it too.
        .no_new_privs(true)
        .restrict_self()?;
    Ok(ruled.ruleset != RulesetStatus::NotEnforced)
}

/// Filters the system calls of the thread, after Landlock.
fn filtered(has_landlock: Result<bool, FilterError>) -> Sandbox {
    let filter = |has_landlock| {
        for filter in [hiding_clone3()?, allowing_what_parsing_needs()?] {
            apply_filter(&filter)?;
        }
        Ok(Sandbox::Filtered { has_landlock })
    };
    has_landlock
        .and_then(filter)
        .unwrap_or_else(Sandbox::Unfiltered)
}

/// Keeps the calling thread, and processes that it starts from now on, in its process group: calls
/// that leave a group succeed without effect. Killing the group then kills everything that was
/// started in it.
///
/// # Errors
///
/// The environment refuses filters.
pub fn stay_in_group() -> Result<(), FilterError> {
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

/// Lowers a limit permanently.
pub(super) fn lower(resource: Resource, value: u64) -> io::Result<()> {
    let maximum = getrlimit(resource)
        .maximum
        .map_or(value, |maximum| maximum.min(value));
    Ok(setrlimit(
        resource,
        Rlimit {
            current: Some(maximum),
            maximum: Some(maximum),
        },
    )?)
}

/// Makes this process die with its parent, unless the environment refuses that. Then it ends when
/// it has read its input to the end, or when it writes its next reply.
pub(super) fn die_with_parent() {
    let _refused = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Prevents other processes of the same user from reading this one, whose environment contains
/// credentials, unless the environment refuses that: [`is_hidden`]. A process in the sandbox cannot
/// open `/proc` anyway.
///
/// A child that executes a program is readable again, so it must have a clean environment.
pub fn hide() {
    let _refused = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Returns whether other processes of the same user cannot read this one.
pub fn is_hidden() -> bool {
    dumpable_behavior().is_ok_and(|behavior| behavior == DumpableBehavior::NotDumpable)
}

/// Makes the calling thread, and the processes that it starts from now on, live as in AWS Lambda,
/// which refuses these calls.
///
/// # Errors
///
/// The kernel rejects the filter.
#[cfg(feature = "testing")]
pub fn refuse_as_lambda() -> Result<(), FilterError> {
    let calls = [
        libc::SYS_prctl,
        libc::SYS_seccomp,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_restrict_self,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
    ];
    apply_filter(&answering(&calls, libc::EPERM)?)?;
    Ok(())
}
