//! One instance of a function: its clocks, and the invocation that it runs.
//!
//! Each instance has a tokio runtime of its own, because its monotonic clock is that of the
//! runtime, and the clocks of two instances differ. The runtime has no thread: it runs while the
//! scheduler polls the invocation, and its clock advances only when the scheduler says so.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::{Instant, advance, sleep};

use super::Moment;
use super::gate::Gate;

/// A sleeping invocation is looked at again after this time, even if it has no timer.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// An invocation that runs.
type Running<T> = Pin<Box<dyn Future<Output = T>>>;

/// One instance of a function.
pub(super) struct Instance<T> {
    pub(super) name: String,
    pub(super) gate: Gate,
    runtime: Runtime,
    running: Option<Running<T>>,
    /// What its monotonic clock shows.
    monotonic: Duration,
    /// How long its monotonic clock stood still.
    stood_still: Duration,
    /// When its next timer is due.
    wakes_at: Moment,
    /// It does nothing until then.
    pub(super) frozen_until: Moment,
    /// How often it is chosen, compared with other instances.
    pub(super) weight: u32,
    /// The error of its wall clock, in seconds.
    pub(super) clock_error: i64,
    /// The time by its monotonic clock at which the platform ends the invocation.
    ends_at: Duration,
}

/// The result of a poll.
pub(super) enum Polled<T> {
    /// The invocation has ended.
    Ended(T),
    /// It waits for its calls and its timers.
    Waits,
}

impl<T> Instance<T> {
    /// Returns an instance that was started now.
    pub(super) fn new(name: String, now: Moment, clock_error: i64) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap_or_else(|error| panic!("cannot create a runtime: {error}"));
        Self {
            name,
            gate: Gate::default(),
            runtime,
            running: None,
            monotonic: Duration::ZERO,
            stood_still: now,
            wakes_at: now,
            frozen_until: now,
            weight: 1,
            clock_error,
            ends_at: Duration::ZERO,
        }
    }

    /// Returns whether it runs an invocation.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts an invocation that may run for `time`. `begin` is called in the context of the
    /// instance's runtime.
    pub(super) fn start<F>(&mut self, now: Moment, time: Duration, begin: impl FnOnce() -> F)
    where
        F: Future<Output = T> + 'static,
    {
        self.advance_to(now);
        let running = {
            let _entered = self.runtime.enter();
            begin()
        };
        self.running = Some(Box::pin(running));
        self.wakes_at = now;
        self.ends_at = self.monotonic + time;
    }

    /// Returns what its monotonic clock shows, as a time of the simulation.
    pub(super) fn monotonic_time(&self, now: Moment) -> Moment {
        now.saturating_sub(self.stood_still)
    }

    /// Returns whether the invocation has used up its time.
    pub(super) fn is_out_of_time(&self, now: Moment) -> bool {
        self.is_running() && now.saturating_sub(self.stood_still) > self.ends_at
    }

    /// Returns whether the invocation can continue.
    pub(super) fn can_continue(&self, now: Moment) -> bool {
        self.is_running()
            && self.frozen_until <= now
            && (self.wakes_at <= now || self.gate.is_ready(now))
    }

    /// Returns when the invocation can continue at the latest, unless something else happens.
    pub(super) fn continues_at(&self) -> Option<Moment> {
        let earliest = self.gate.earliest().unwrap_or(Moment::MAX);
        self.is_running()
            .then(|| self.wakes_at.min(earliest).max(self.frozen_until))
    }

    /// Freezes the instance. With `stands_still`, its monotonic clock stops meanwhile.
    pub(super) fn freeze(&mut self, now: Moment, time: Duration, stands_still: bool) {
        self.advance_to(now);
        self.frozen_until = now + time;
        if stands_still {
            self.stood_still += time;
            self.wakes_at = self.wakes_at.saturating_add(time);
        }
    }

    /// Makes a call of the invocation reach its store later. Meanwhile its timers run.
    pub(super) fn postpone(&mut self, call: u64, now: Moment, time: Duration) {
        self.gate.postpone(call, now + time);
        self.wakes_at = now;
    }

    /// Kills the invocation: nothing of it runs any more.
    pub(super) fn kill(&mut self) {
        let _entered = self.runtime.enter();
        self.running = None;
    }

    /// Polls the invocation once, at a time.
    pub(super) fn poll(&mut self, now: Moment) -> Polled<T> {
        self.advance_to(now);
        let Some(mut running) = self.running.take() else {
            return Polled::Waits;
        };
        let polled = self.runtime.block_on(poll_fn(|context| {
            Poll::Ready(running.as_mut().poll(context))
        }));
        match polled {
            Poll::Ready(ended) => {
                let _entered = self.runtime.enter();
                drop(running);
                Polled::Ended(ended)
            }
            Poll::Pending => {
                self.running = Some(running);
                if self.gate.is_ready(now) {
                    self.wakes_at = Moment::MAX;
                } else {
                    self.sleep(now);
                }
                Polled::Waits
            }
        }
    }

    /// Returns the number of tasks that outlive their invocation.
    pub(super) fn detached_tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }

    /// Advances the monotonic clock.
    fn advance_to(&mut self, now: Moment) {
        let shows = now.saturating_sub(self.stood_still);
        let passes = shows.saturating_sub(self.monotonic);
        if !passes.is_zero() {
            self.runtime.block_on(advance(passes));
            self.monotonic = shows;
        }
    }

    /// Finds out when the next timer is due. The runtime sets its clock to that time, so the
    /// invocation is not polled before.
    fn sleep(&mut self, now: Moment) {
        let earliest = self.gate.earliest();
        let most = earliest.map_or(LONGEST_SLEEP, |at| at.saturating_sub(now));
        let most = most.clamp(Duration::from_millis(1), LONGEST_SLEEP);
        let slept = self.runtime.block_on(async {
            let began = Instant::now();
            let mut longest = std::pin::pin!(sleep(most));
            let mut is_first = true;
            poll_fn(|context| {
                let is_over = longest.as_mut().poll(context).is_ready();
                if is_over || !std::mem::take(&mut is_first) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            began.elapsed()
        });
        self.monotonic += slept;
        self.wakes_at = self.stood_still + self.monotonic;
    }
}

impl<T> fmt::Debug for Instance<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("name", &self.name)
            .field("gate", &self.gate)
            .field("is_running", &self.is_running())
            .finish_non_exhaustive()
    }
}
