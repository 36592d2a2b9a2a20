//! The processes of one function: idle ones, busy ones, and the calls that wait for one.
//!
//! - A call uses an idle process before a new one is started; the most recently used one comes
//!   first.
//! - A process that has answered becomes idle soon. A call that would otherwise start a process
//!   waits a short time for it.
//! - There are never more processes than the function's concurrency; further calls wait in order of
//!   arrival.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::error::{EndedEarly, FunctionError};
use super::ledger::Ledger;
use super::log::{FunctionLog, Report};
use super::spec::{Answer, Endpoints, FunctionSpec, Invocation, Sandbox};
use super::stats::Counting;
use super::worker::{EarlyEnd, Ran, Worker};

/// How long a process is idle before it is frozen. Requests that follow each other within this time
/// do not stop and resume it each time, which costs both processes a change of context.
const BEFORE_FREEZING: Duration = Duration::from_millis(10);

/// The processes of one function.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) sandbox: Sandbox,
    pub(super) counting: Mutex<Counting>,
    state: Mutex<State>,
    seat_freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Worker<Seat>>,
    /// Whether a task will freeze the idle processes.
    freezes: bool,
    /// The number of seats in use, by generation.
    seats: BTreeMap<u64, usize>,
    /// Processes that have answered but not yet requested the next event.
    finishing: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
    generation: u64,
    closed: bool,
    /// Whether the stack kills the processes: how an invocation ends says nothing about its
    /// function.
    abandoned: bool,
}

/// What a call receives: an idle process, or the right to start one.
#[derive(Debug)]
enum Turn {
    Warm(Worker<Seat>),
    Cold(Seat),
}

/// The right to have a process. Dropping it passes the right to a waiting call.
#[derive(Debug)]
pub(super) struct Seat {
    pool: Arc<Pool>,
    generation: u64,
}

impl Pool {
    pub(super) fn new(
        spec: FunctionSpec,
        endpoints: Endpoints,
        ledger: Ledger,
        log: FunctionLog,
    ) -> Self {
        Self {
            sandbox: Sandbox {
                arn: crate::identity::function_arn(&spec.name).into(),
                spec,
                endpoints,
                ledger,
                log: Arc::new(log),
            },
            counting: Mutex::default(),
            state: Mutex::default(),
            seat_freed: Notify::new(),
        }
    }

    /// Runs an invocation on a process and sends the result to `answer`. Returns when the process
    /// is idle or has ended.
    pub(super) async fn run(
        self: Arc<Self>,
        invocation: Invocation,
        answer: oneshot::Sender<Answer>,
    ) {
        let (mut worker, outcome, duration) = loop {
            let turn = match self.turn().await {
                Ok(turn) => turn,
                Err(error) => return self.refuse(&invocation, error, answer),
            };
            let mut worker = match turn {
                Turn::Warm(worker) => worker,
                Turn::Cold(seat) => match Worker::start(&self.sandbox, seat).await {
                    Ok(worker) => {
                        self.counting().started(worker.init.unwrap_or_default());
                        worker
                    }
                    Err(EarlyEnd { error, last_lines }) => {
                        let error = self.cause(error);
                        if let Some(last_lines) = last_lines
                            && !error.is_stopping()
                        {
                            self.sandbox.log.ended_early(&last_lines);
                        }
                        return self.refuse(&invocation, error, answer);
                    }
                },
            };
            match worker.run(&self.sandbox, &invocation).await {
                Ran::Ended { outcome, duration } => break (worker, outcome, duration),
                Ran::NeverBegan => worker.end().await,
            }
        };
        let outcome = outcome.map_err(|error| self.cause(error));
        let cold = worker.init.take();
        self.count(&outcome, duration, worker.max_rss);
        self.report(&invocation, &outcome, duration, cold, worker.max_rss);

        let alive = worker.is_alive();
        if alive {
            self.state().finishing += 1;
        }
        let _ = answer.send(Answer {
            request_id: invocation.request_id,
            outcome,
            duration,
            cold,
        });
        if !alive {
            return worker.end().await;
        }
        if worker.settle().await {
            self.give_back(worker).await;
        } else {
            self.state().finishing -= 1;
            worker.end().await;
        }
    }

    /// Starts a process before the first invocation, which then uses it.
    ///
    /// # Errors
    /// It ended, or requested no event.
    pub(super) async fn start_first(self: &Arc<Self>) -> Result<(), EndedEarly> {
        let ended_early = |EarlyEnd { error, last_lines }| EndedEarly {
            function: self.sandbox.spec.name.clone(),
            why: last_lines
                .filter(|lines| !lines.is_empty())
                .unwrap_or_else(|| error.to_string()),
            log: self.sandbox.log.path().to_owned(),
        };
        let turn = self.turn().await.map_err(|error| EarlyEnd {
            error,
            last_lines: None,
        });
        let worker = match turn.map_err(ended_early)? {
            Turn::Warm(worker) => worker,
            Turn::Cold(seat) => {
                let started = Worker::start(&self.sandbox, seat).await;
                let worker = started.map_err(ended_early)?;
                self.counting().started(worker.init.unwrap_or_default());
                worker
            }
        };
        self.state().finishing += 1;
        self.give_back(worker).await;
        Ok(())
    }

    fn refuse(
        &self,
        invocation: &Invocation,
        error: FunctionError,
        answer: oneshot::Sender<Answer>,
    ) {
        let outcome = Err(error);
        self.count(&outcome, Duration::ZERO, 0);
        self.report(invocation, &outcome, Duration::ZERO, None, 0);
        let request_id = invocation.request_id.clone();
        let _ = answer.send(Answer {
            request_id,
            outcome,
            duration: Duration::ZERO,
            cold: None,
        });
    }

    /// Returns why an invocation failed: for this error, unless the stop of the stack has killed
    /// it.
    fn cause(&self, error: FunctionError) -> FunctionError {
        if self.state().abandoned {
            FunctionError::stopping()
        } else {
            error
        }
    }

    fn count(
        &self,
        outcome: &Result<bytes::Bytes, FunctionError>,
        duration: Duration,
        max_rss: u64,
    ) {
        let mut counting = self.counting();
        counting.invocations += 1;
        if let Err(error) = outcome {
            counting.errors += 1;
            counting.timeouts += u64::from(error.is_timeout());
        }
        counting.max_rss = counting.max_rss.max(max_rss);
        counting.ran(duration);
    }

    fn report(
        &self,
        invocation: &Invocation,
        outcome: &Result<bytes::Bytes, FunctionError>,
        duration: Duration,
        init: Option<Duration>,
        max_rss: u64,
    ) {
        let error = outcome.as_ref().err();
        if error.is_some_and(FunctionError::is_stopping) {
            tracing::debug!(target: "function", function = %self.sandbox.spec.name, request_id = %invocation.request_id, "invocation ended by the stop of the stack");
            return;
        }
        if let Some(error) = error {
            tracing::warn!(target: "function", function = %self.sandbox.spec.name, request_id = %invocation.request_id, %error, "invocation failed");
        }
        self.sandbox.log.report(&Report {
            request_id: &invocation.request_id,
            status: match error {
                None => "success",
                Some(error) if error.is_timeout() => "timeout",
                Some(_) => "error",
            },
            error_type: error.map(|error| error.error_type.as_str()),
            duration,
            init,
            memory_mb: self.sandbox.spec.memory_mb,
            max_rss,
        });
    }

    /// Waits for an idle process, or for the right to start one.
    async fn turn(self: &Arc<Self>) -> Result<Turn, FunctionError> {
        let mut waits_for_idle = true;
        loop {
            let (dead, receiver) = {
                let mut state = self.state();
                if state.closed {
                    return Err(FunctionError::stopping());
                }
                match state.idle.pop() {
                    Some(worker) if worker.is_alive() => return Ok(Turn::Warm(worker)),
                    Some(dead) => (Some(dead), None),
                    None => {
                        let one_will_be_idle =
                            waits_for_idle && state.waiting.len() < state.finishing;
                        if !one_will_be_idle && state.taken() < self.sandbox.spec.concurrency {
                            return Ok(Turn::Cold(self.take_seat(&mut state)));
                        }
                        let (sender, receiver) = oneshot::channel();
                        state.waiting.push_back(sender);
                        (None, Some((receiver, one_will_be_idle)))
                    }
                }
            };
            // Dropped outside of the lock, because the seat of a dead worker is passed on under the
            // lock.
            drop(dead);
            match receiver {
                None => {}
                Some((receiver, false)) => {
                    return receiver.await.map_err(|_| FunctionError::stopping());
                }
                Some((receiver, true)) => {
                    match timeout(self.sandbox.spec.wait_for_idle, receiver).await {
                        Ok(turn) => return turn.map_err(|_| FunctionError::stopping()),
                        Err(_) => waits_for_idle = false,
                    }
                }
            }
        }
    }

    /// Passes a process that was finishing to the call that waits longest. If no call waits, it
    /// becomes idle.
    async fn give_back(self: &Arc<Self>, worker: Worker<Seat>) {
        let mut worker = worker;
        let obsolete = {
            let mut state = self.state();
            state.finishing -= 1;
            loop {
                if state.closed || worker.seat().generation() != state.generation {
                    break Some(worker);
                }
                match state.waiting.pop_front() {
                    Some(waiting) => match waiting.send(Turn::Warm(worker)) {
                        Ok(()) => break None,
                        Err(Turn::Warm(back)) => worker = back,
                        Err(Turn::Cold(_)) => break None,
                    },
                    None => {
                        worker.idle_since = Instant::now();
                        state.idle.push(worker);
                        if !std::mem::replace(&mut state.freezes, true) {
                            tokio::spawn(Arc::clone(self).freeze_idle());
                        }
                        break None;
                    }
                }
            }
        };
        if let Some(worker) = obsolete {
            worker.end().await;
        }
    }

    /// Freezes each idle process at its time. Returns when all are frozen.
    async fn freeze_idle(self: Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state();
                let now = Instant::now();
                let awake = state.idle.iter_mut().filter(|worker| !worker.is_frozen);
                let next = awake.filter_map(|worker| {
                    let at = worker.idle_since + BEFORE_FREEZING;
                    if at <= now {
                        worker.freeze();
                        return None;
                    }
                    Some(at)
                });
                let next = next.min();
                state.freezes = next.is_some();
                next
            };
            match next {
                Some(at) => sleep_until(at).await,
                None => return,
            }
        }
    }

    /// Ends all existing processes: idle ones at once, others after their invocation. Waits until
    /// all have ended, and returns how many were idle.
    pub(super) async fn end_warm(&self) -> usize {
        let (idle, generation) = {
            let mut state = self.state();
            state.generation += 1;
            (std::mem::take(&mut state.idle), state.generation)
        };
        let ended = idle.len();
        futures::future::join_all(idle.into_iter().map(Worker::end)).await;
        loop {
            let freed = self.seat_freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self
                .state()
                .seats
                .range(..generation)
                .all(|(_, taken)| *taken == 0)
            {
                return ended;
            }
            freed.await;
        }
    }

    /// Refuses waiting calls and all further ones.
    pub(super) fn close(&self) {
        let (waiting, idle) = {
            let mut state = self.state();
            state.closed = true;
            (
                std::mem::take(&mut state.waiting),
                std::mem::take(&mut state.idle),
            )
        };
        drop(waiting);
        drop(idle);
    }

    /// Says that the processes are killed from now on.
    pub(super) fn abandon(&self) {
        self.state().abandoned = true;
    }

    pub(super) fn counting(&self) -> MutexGuard<'_, Counting> {
        self.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_seat(self: &Arc<Self>, state: &mut State) -> Seat {
        *state.seats.entry(state.generation).or_default() += 1;
        Seat {
            pool: Arc::clone(self),
            generation: state.generation,
        }
    }
}

impl State {
    fn taken(&self) -> usize {
        self.seats.values().sum()
    }
}

impl Seat {
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let passed_on = {
            let mut state = self.pool.state();
            if let Some(taken) = state.seats.get_mut(&self.generation) {
                *taken -= 1;
                if *taken == 0 {
                    state.seats.remove(&self.generation);
                }
            }
            let waiting = if state.closed || state.taken() >= self.pool.sandbox.spec.concurrency {
                None
            } else {
                state.waiting.pop_front()
            };
            waiting.map(|waiting| (waiting, self.pool.take_seat(&mut state)))
        };
        self.pool.seat_freed.notify_waiters();
        // If the waiting call was cancelled, dropping the new seat passes it to the next call.
        if let Some((waiting, seat)) = passed_on {
            drop(waiting.send(Turn::Cold(seat)));
        }
    }
}
