//! A function process with its runtime API: it is started, receives one event after the other, and
//! can be frozen in between.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};
use uuid::Uuid;

use super::environment::variables;
use super::error::FunctionError;
use super::groups::Memory;
use super::process::Process;
use super::runtime_api::{Asked, Event, serve};
use super::spec::{Invocation, Sandbox};

/// The time limit from the start of a process to its first request for an event ("Lambda execution
/// environment": the init phase).
const INIT_LIMIT: Duration = Duration::from_secs(10);

/// How often memory is sampled during an invocation. The peak of a child that lives shorter may be
/// missed.
const MEMORY_INTERVAL: Duration = Duration::from_millis(25);

/// A process that has requested an event at least once.
#[derive(Debug)]
pub(super) struct Worker<Seat> {
    process: Process,
    asked: mpsc::Receiver<Asked>,
    /// The pending request for an event.
    next: Option<oneshot::Sender<Event>>,
    deadline: Instant,
    /// The time from the start of the process to its first request, until it has been reported.
    pub(super) init: Option<Duration>,
    pub(super) max_rss: u64,
    /// When it became idle.
    pub(super) idle_since: Instant,
    pub(super) is_frozen: bool,
    server: JoinHandle<()>,
    seat: Seat,
}

/// Why a process has not requested an event.
#[derive(Debug)]
pub(super) struct EarlyEnd {
    pub(super) error: FunctionError,
    /// What it wrote last, if it was started.
    pub(super) last_lines: Option<String>,
}

/// The result of an invocation. It does not begin if the process died while it was frozen.
pub(super) enum Ran {
    Ended {
        outcome: Result<Bytes, FunctionError>,
        duration: Duration,
    },
    NeverBegan,
}

impl<Seat> Worker<Seat> {
    /// Starts a process and waits until it requests an event.
    pub(super) async fn start(sandbox: &Sandbox, seat: Seat) -> Result<Self, EarlyEnd> {
        let failed = |error: std::io::Error| EarlyEnd {
            error: FunctionError::cannot_start(&sandbox.spec.binary, &error),
            last_lines: None,
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?.to_string();
        let scratch = sandbox
            .ledger
            .folder()
            .join(Uuid::new_v4().simple().to_string());
        std::fs::create_dir(&scratch).map_err(failed)?;

        let (sender, asked) = mpsc::channel(8);
        let server = tokio::spawn(serve(listener, sender));
        let environment = variables(&sandbox.spec, &sandbox.endpoints, &address, &scratch);
        let begun = Instant::now();
        let process = match Process::start(
            &sandbox.spec.binary,
            environment,
            &scratch,
            &sandbox.ledger,
            &sandbox.log,
        ) {
            Ok(process) => process,
            Err(error) => {
                server.abort();
                let _ = std::fs::remove_dir_all(&scratch);
                return Err(failed(error));
            }
        };
        let mut worker = Self {
            process,
            asked,
            next: None,
            deadline: begun + INIT_LIMIT,
            init: None,
            max_rss: 0,
            idle_since: begun,
            is_frozen: false,
            server,
            seat,
        };
        match timeout(INIT_LIMIT, worker.until_next()).await {
            Ok(Ok(())) => {
                worker.init = Some(begun.elapsed());
                Ok(worker)
            }
            Ok(Err(error)) => Err(worker.end_early(error).await),
            Err(_) => {
                let error = FunctionError::init_timeout(INIT_LIMIT);
                Err(worker.end_early(error).await)
            }
        }
    }

    async fn until_next(&mut self) -> Result<(), FunctionError> {
        loop {
            tokio::select! {
                biased;
                Some(asked) = self.asked.recv() => match asked {
                    Asked::Next(next) => {
                        self.next = Some(next);
                        return Ok(());
                    }
                    Asked::InitFailed(error) => return Err(error),
                    Asked::Finished { open, .. } => drop(open.send(false)),
                },
                status = self.process.ended() => return Err(exited(None, status)),
            }
        }
    }

    /// Sends an event to the process and waits for its response, its exit or the deadline. After
    /// the deadline the process has ended.
    pub(super) async fn run(&mut self, sandbox: &Sandbox, invocation: &Invocation) -> Ran {
        let Some(next) = self.next.take() else {
            return Ran::NeverBegan;
        };
        if !self.process.lives() {
            return Ran::NeverBegan;
        }
        let limit = sandbox.spec.timeout;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let begun = Instant::now();
        self.deadline = begun + limit;
        if std::mem::take(&mut self.is_frozen) {
            self.process.thaw();
        }
        let event = Event {
            request_id: invocation.request_id.clone(),
            deadline_ms: u64::try_from((now + limit).as_millis()).unwrap_or(u64::MAX),
            function_arn: Arc::clone(&sandbox.arn),
            trace_id: invocation.trace_id.clone(),
            payload: invocation.payload.clone(),
        };
        if next.send(event).is_err() {
            return Ran::NeverBegan;
        }
        let outcome = self.answer(&invocation.request_id, limit).await;
        let duration = begun.elapsed();
        // Children that live longer than the interval were measured during the invocation.
        self.add_memory(self.process.own_memory());
        Ran::Ended { outcome, duration }
    }

    async fn answer(&mut self, id: &str, limit: Duration) -> Result<Bytes, FunctionError> {
        let mut memory = interval_at(Instant::now() + MEMORY_INTERVAL, MEMORY_INTERVAL);
        memory.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(asked) = self.asked.recv() => match asked {
                    Asked::Finished { request_id, outcome, open } => {
                        let mine = request_id == id;
                        let _ = open.send(mine);
                        if mine {
                            return outcome;
                        }
                    }
                    // Dropping the sender refuses the request: the current event has no response
                    // yet.
                    Asked::Next(refused) => drop(refused),
                    Asked::InitFailed(error) => return Err(error),
                },
                status = self.process.ended() => return Err(exited(Some(id), status)),
                () = sleep_until(self.deadline) => {
                    self.read_memory();
                    self.process.kill();
                    self.process.ended().await;
                    return Err(FunctionError::timed_out(id, limit));
                }
                _ = memory.tick() => self.read_memory(),
            }
        }
    }

    /// Waits after a response until the process requests the next event. Returns false if the
    /// process ended or did not request it by its deadline.
    pub(super) async fn settle(&mut self) -> bool {
        let deadline = self.deadline;
        match tokio::time::timeout_at(deadline, self.until_next()).await {
            Ok(Ok(())) => true,
            Ok(Err(_)) => false,
            Err(_) => {
                tracing::warn!("function process did not request the next event by its deadline");
                false
            }
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    pub(super) fn freeze(&mut self) {
        self.process.freeze();
        self.is_frozen = true;
    }

    /// Returns the seat of the process.
    pub(super) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Kills the process and waits until all of its group has ended.
    pub(super) async fn end(mut self) {
        self.process.kill();
        self.process.ended().await;
    }

    /// Ends a process that has not requested an event.
    async fn end_early(self, error: FunctionError) -> EarlyEnd {
        let last_lines = self.process.last_lines().clone();
        self.end().await;
        let last_lines = Some(last_lines.text());
        EarlyEnd { error, last_lines }
    }

    fn read_memory(&mut self) {
        self.add_memory(self.process.memory());
    }

    fn add_memory(&mut self, memory: Memory) {
        self.max_rss = self.max_rss.max(memory.peak_of_one).max(memory.now_of_all);
    }
}

impl<Seat> Drop for Worker<Seat> {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Returns Lambda's error for a process that exits during its work.
fn exited(request_id: Option<&str>, status: ExitStatus) -> FunctionError {
    let how = match (status.code(), status.signal()) {
        (Some(0), _) => "Runtime exited without providing a reason".to_owned(),
        (Some(code), _) => format!("Runtime exited with error: exit status {code}"),
        (None, Some(signal)) => {
            format!("Runtime exited with error: signal: {}", signal_name(signal))
        }
        (None, None) => "Runtime exited".to_owned(),
    };
    FunctionError::crashed(request_id, &how)
}

/// Returns the names of Go's `syscall.Signal`, which Lambda prints.
fn signal_name(signal: i32) -> String {
    match signal {
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        15 => "terminated",
        other => return format!("signal {other}"),
    }
    .to_owned()
}
