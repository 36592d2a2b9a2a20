//! The parser process, which isolates the parsing of untrusted DIFs.
//!
//! It first sets its own limits; then it reads commands and writes replies, see [`wire`], until its
//! input ends. Panics are caught here; everything else that a DIF causes ends the process, and its
//! parent interprets how it ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use symbolic::common::ByteView;

use super::arrivals::Arrivals;
use super::chain;
use super::sandbox::{self, lower};
pub use crate::adapters::parser::wire::COMMAND;
use crate::adapters::parser::wire::{self, ChildLimits, Command, MAX_BLOB_BYTES, Reply, Start};
use crate::adapters::scratch::inherited;
use crate::cache::{DeriveJob, Derived};
use crate::debuginfo::{self, Arriving, DifBytes, Failure, Layout, Room, RoomLimit, STACK_BYTES};
use crate::domain::{Cause, Missing, Written};

/// Address space in addition to the parser's allocations: the program, its stacks, and the unused
/// reserves of allocators.
const SPARE_ADDRESS_SPACE: u64 = 1 << 30;

/// Serves one parent. `arguments` are those after [`COMMAND`].
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let start = arguments
        .next()
        .and_then(|json| serde_json::from_str(json.to_str()?).ok());
    let Some(start) = start else {
        eprintln!(
            "{COMMAND} is an internal command of this program: it parses a file that its parent opens"
        );
        return ExitCode::FAILURE;
    };
    match serve(start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(Start { limits, arriving }: Start) -> io::Result<()> {
    debuginfo::keep_panics_quiet();
    let dif = inherited(wire::DIF_DESCRIPTOR, false)?;
    let unpacked = inherited(wire::UNPACKED_DESCRIPTOR, true)?;
    limit(limits, dif.metadata()?.len())?;
    let arrivals = arriving.map(|range| {
        let pipe = inherited(wire::ARRIVALS_DESCRIPTOR, false)?;
        Ok::<_, io::Error>(Arrivals::new(dif.try_clone()?, pipe, range))
    });
    let mut session = Session {
        limits,
        arrivals: arrivals.transpose()?,
        dif: ByteView::map_file(dif)?,
        unpacked: ByteView::map_file_ref(&unpacked)?,
        room: UnpackedFile(unpacked),
        layout: Layout::default(),
        out: Mutex::new(io::stdout()),
        cores: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
    };
    // All necessary files are open, and nothing of the DIF has been read yet.
    let sandbox = sandbox::enter()?;
    if limits.needs_seccomp {
        let filtered = sandbox.filtered();
        filtered.map_err(|error| io::Error::other(chain(&error)))?;
    }
    for line in io::stdin().lock().lines() {
        let command = serde_json::from_str(&line?)?;
        limit_cpu_time(limits.cpu_seconds)?;
        session.obey(command)?;
    }
    Ok(())
}

/// Limits the parser's resources, and makes it die with its parent.
fn limit(limits: ChildLimits, dif_bytes: u64) -> io::Result<()> {
    sandbox::die_with_parent();
    // Limits allocations only: the DIF and its unpacked members are mapped for reading and do not
    // count.
    lower(Resource::Data, limits.memory_bytes)?;
    // Limits all mappings, for systems on which only this limit works.
    let mapped = dif_bytes
        .saturating_add(limits.scratch_bytes)
        .saturating_add(SPARE_ADDRESS_SPACE);
    lower(Resource::As, limits.memory_bytes.saturating_add(mapped))?;
    // Lowered again when the room for unpacked members is known.
    lower(Resource::Fsize, limits.scratch_bytes)?;
    lower(Resource::Core, 0)?;
    lower(Resource::Nofile, 64)
}

/// Limits the CPU time of the command that begins now, in seconds.
fn limit_cpu_time(seconds: u64) -> io::Result<()> {
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec.unsigned_abs();
    let maximum = getrlimit(Resource::Cpu).maximum;
    // One second is added because the kernel counts whole seconds.
    let limit = used.saturating_add(seconds).saturating_add(1);
    let current = maximum.map_or(limit, |maximum| maximum.min(limit));
    Ok(setrlimit(
        Resource::Cpu,
        Rlimit {
            current: Some(current),
            maximum,
        },
    )?)
}

struct Session {
    limits: ChildLimits,
    /// The part of the DIF that may still arrive.
    arrivals: Option<Arrivals>,
    dif: ByteView<'static>,
    unpacked: ByteView<'static>,
    room: UnpackedFile,
    layout: Layout,
    out: Mutex<io::Stdout>,
    cores: usize,
}

impl Session {
    fn obey(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Inspect {
                written,
                room_bytes,
                budget_bytes,
            } => {
                let room = RoomLimit {
                    bytes: room_bytes,
                    budget: budget_bytes,
                };
                self.inspect(&written, room)
            }
            Command::Resume { layout } => {
                self.layout = serde_json::from_value(layout)?;
                Ok(())
            }
            Command::Derive { object, jobs } => self.derive(object, &jobs),
        }
    }

    fn inspect(&mut self, written: &Written, room: RoomLimit) -> io::Result<()> {
        lower(Resource::Fsize, room.bytes)?;
        let (dif, file) = (self.dif.clone(), &mut self.room);
        let unpacked = on_own_stack(|| {
            #[cfg(feature = "testing")]
            misbehaviour::on_inspect(&dif);
            debuginfo::caught(|| debuginfo::unpack(&dif, written, file, room))
        })?;
        let mut layout = match unpacked {
            Ok(Ok(layout)) => layout,
            Ok(Err(error)) => {
                return self.answer(
                    &Reply::Failed {
                        detail: format!("writing to scratch space: {error}"),
                    },
                    &[],
                );
            }
            Err(panic) => Layout {
                ignored: vec![panic],
                ..Layout::default()
            },
        };
        // Of a member that did not fit, the part beyond the counted bytes is dropped.
        self.room.0.set_len(layout.unpacked_bytes)?;
        self.unpacked = ByteView::map_file_ref(&self.room.0)?;
        let bytes = self.bytes();
        let inspection = on_own_stack(|| debuginfo::inspect(&mut layout, bytes))?;
        self.layout = layout;
        let answer = Reply::Inspected {
            inspection,
            layout: serde_json::to_value(&self.layout)?,
            unpacked_bytes: self.layout.unpacked_bytes,
            out_of_room: self.layout.out_of_room,
        };
        self.answer(&answer, &[])
    }

    /// Derives in parallel: the kinds of one object share only its bytes.
    fn derive(&self, object: usize, jobs: &[DeriveJob]) -> io::Result<()> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = jobs
                .iter()
                .enumerate()
                .map(|(number, job)| {
                    let work = move || self.derive_one(object, number, *job);
                    std::thread::Builder::new()
                        .stack_size(STACK_BYTES)
                        .spawn_scoped(scope, work)
                })
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread?.join().map_err(|_| {
                    io::Error::other("a thread of the parser panicked outside the parser")
                })?
            })
        })
    }

    fn derive_one(&self, object: usize, job: usize, what: DeriveJob) -> io::Result<()> {
        #[cfg(feature = "testing")]
        if let Some(panic) = misbehaviour::on_derive(&self.dif, what.kind) {
            return self.answer(
                &Reply::Missing {
                    job,
                    missing: Missing::malformed(panic),
                },
                &[],
            );
        }
        let missing = match debuginfo::derive(&self.layout, self.bytes(), object, what, self.cores)
        {
            Ok(Derived {
                kind,
                blob,
                checksum,
                lacks,
            }) if blob.len() as u64 <= MAX_BLOB_BYTES => {
                return self.answer(
                    &Reply::Derived {
                        job,
                        kind,
                        checksum,
                        lacks,
                    },
                    &blob,
                );
            }
            Ok(derived) => {
                let bytes = derived.blob.len();
                let detail = format!("its cache has {bytes} bytes; the limit is {MAX_BLOB_BYTES}");
                Missing::malformed(detail)
            }
            Err(Failure::Missing(missing)) => missing,
            Err(Failure::OutOfMemory) => {
                let limit = self.limits.memory_bytes;
                let detail = format!("parsing it needs more than {limit} bytes of memory");
                Missing::new(Cause::TooLarge { limit }, detail)
            }
        };
        self.answer(&Reply::Missing { job, missing }, &[])
    }

    fn bytes(&self) -> DifBytes<'_> {
        let arriving = self.arrivals.as_ref();
        DifBytes {
            dif: &self.dif,
            unpacked: &self.unpacked,
            arriving: arriving.map(|arrivals| arrivals as &dyn Arriving),
        }
    }

    fn answer(&self, answer: &Reply, payload: &[u8]) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        wire::write_answer(&mut *out, answer, payload)?;
        out.flush()
    }
}

/// Runs work on a stack of a known size.
fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)?;
        thread
            .join()
            .map_err(|_| io::Error::other("a thread of the parser panicked outside the parser"))
    })
}

/// The file for unpacked members.
struct UnpackedFile(File);

impl Room for UnpackedFile {
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
}

/// Simulates what hostile files can make a parser do, for tests of the parent.
///
/// A Breakpad file whose module is named `inspect:loop` makes the parser loop when it is inspected;
/// with `symcache:abort` it aborts when a SymCache is derived, and so on.
#[cfg(feature = "testing")]
mod misbehaviour {
    use crate::cache::Kind;
    use crate::debuginfo;

    pub(super) fn on_inspect(dif: &[u8]) {
        if let Some(what) = told(dif, "inspect") {
            misbehave(&what);
        }
    }

    /// Returns the panic message, if the misbehaviour was a panic.
    pub(super) fn on_derive(dif: &[u8], kind: Kind) -> Option<String> {
        let what = told(dif, &kind.to_string()).or_else(|| told(dif, "derive"))?;
        debuginfo::caught(|| misbehave(&what)).err()
    }

    fn told(dif: &[u8], when: &str) -> Option<String> {
        let line = std::str::from_utf8(dif.split(|byte| *byte == b'\n').next()?).ok()?;
        let name = line
            .strip_prefix("MODULE ")?
            .split_ascii_whitespace()
            .nth(3)?;
        name.strip_prefix(when)?
            .strip_prefix(':')
            .map(str::to_owned)
    }

    #[expect(clippy::disallowed_methods, reason = "the sandbox is to refuse it")]
    fn misbehave(what: &str) {
        match what {
            "loop" => loop {
                std::hint::spin_loop();
            },
            "overflow" => {
                std::hint::black_box(recurse(0));
            }
            "memory" => {
                let mut hoard: Vec<Vec<u8>> = Vec::new();
                loop {
                    hoard.push(vec![1; 1 << 20]);
                    std::hint::black_box(&hoard);
                }
            }
            "abort" => std::process::abort(),
            "exit" => std::process::exit(3),
            "noise" => {
                for line in 0..100_000 {
                    eprintln!("line {line} of noise");
                }
                std::process::abort();
            }
            "panic" => panic!("told to"),
            "socket" => drop(std::net::UdpSocket::bind(("127.0.0.1", 0))),
            "connect" => drop(std::net::TcpStream::connect(("127.0.0.1", 9))),
            "open" => drop(std::fs::File::open("/etc/hostname")),
            "create" => drop(std::fs::write("/tmp/parser-was-here", "x")),
            "environ" => drop(std::fs::read("/proc/1/environ")),
            "pidfd" => {
                let flags = rustix::process::PidfdFlags::empty();
                drop(rustix::process::pidfd_open(
                    rustix::process::Pid::INIT,
                    flags,
                ));
            }
            "openings" => assert_nothing_opens(),
            "overcommit" => assert_refused(std::fs::read("/proc/sys/vm/overcommit_memory")),
            "fork" => drop(std::process::Command::new("/bin/true").status()),
            "exec" => {
                use std::os::unix::process::CommandExt;
                drop(std::process::Command::new("/bin/true").exec());
            }
            "kill" => {
                let signal = rustix::process::Signal::TERM;
                let killed = rustix::process::kill_process(rustix::process::Pid::INIT, signal);
                std::hint::black_box(killed.is_ok());
            }
            "limits" => drop(rustix::process::setrlimit(
                rustix::process::Resource::Data,
                rustix::process::Rlimit {
                    current: None,
                    maximum: None,
                },
            )),
            _ => {}
        }
    }

    fn assert_refused<T>(opened: std::io::Result<T>) {
        match opened {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            _ => std::process::abort(),
        }
    }

    /// Aborts if a file, a socket or a pipe can be opened.
    fn assert_nothing_opens() {
        let errors = [
            std::fs::File::open("/proc/1/environ").err(),
            std::net::UdpSocket::bind(("127.0.0.1", 0)).err(),
            std::io::pipe().err(),
        ];
        let refused = |error: std::io::Error| error.raw_os_error() == Some(libc::EMFILE);
        if !errors.into_iter().all(|error| error.is_some_and(refused)) {
            std::process::abort();
        }
    }

    #[expect(unconditional_recursion, reason = "this is the point")]
    fn recurse(depth: u64) -> u64 {
        let room = std::hint::black_box([depth; 64]);
        recurse(depth + 1) + room[0]
    }
}
