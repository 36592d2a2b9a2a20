//! A simulated fleet: several instances of each function, over stores in memory, in one thread.
//!
//! The flows are the product's own. Every call of an instance to a port waits at a *gate* until the
//! scheduler lets it pass; the scheduler draws from a seed who continues, how much time passes, and
//! what goes wrong. So the same plan gives the same run, line by line of its trace.
//!
//! A run has three phases. While it is *busy*, users upload, overwrite and remove files and send
//! crashes, and calls fail, instances are frozen and killed, and messages are lost. Then nothing is
//! disturbed any more. A day later every module is requested: each response is that of the
//! reference (`truth`). In the end no message and no orphan may be left.
//!
//! What must always hold is checked after each write (`checks`) and each response (`truth`).

mod absent;
mod busy;
mod chance;
mod checks;
mod coverage;
mod describe;
mod faults;
mod fleet;
mod gate;
mod index;
mod instance;
mod mistakes;
mod plan;
mod ports;
mod programs;
mod releases;
mod servers;
mod shrink;
mod stores;
mod stories;
mod trace;
mod truth;
mod workload;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use symdepot::domain::Timestamp;

pub use self::coverage::Coverage;
pub use self::faults::Rates;
pub use self::mistakes::Mistake;
pub use self::plan::Plan;
pub use self::shrink::shrink;
pub use self::stores::{Counts, Failure};
pub use self::stories::{keep_story, story};

use self::fleet::Fleet;
use self::stores::Stores;
use self::trace::Trace;

/// A time, since the simulation began.
type Moment = Duration;

/// The time since 1970 at which each simulation begins.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

/// Returns the time of day at a moment, by a clock that is right.
fn timestamp(moment: Moment) -> Timestamp {
    Timestamp::from_secs((EPOCH + moment).as_secs())
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What broke, if anything.
    pub failure: Option<Failure>,
    /// What happened, in numbers.
    pub counts: Counts,
    /// Which changes and decisions occurred.
    pub coverage: Coverage,
    /// The calls to stores and queues: how often each function made each of them.
    pub calls: Vec<(String, u64)>,
    /// A hash of the trace.
    pub hash: u64,
    /// How much time was simulated.
    pub simulated: Duration,
    /// The trace, if it was requested.
    pub lines: Vec<String>,
}

/// Runs a plan. With `keeps_lines`, the result has the whole trace.
pub fn run(plan: &Plan, keeps_lines: bool) -> Run {
    if plan.has_programs {
        programs::prepare_all();
    }
    let stores = Arc::new(Stores::new(plan, Trace::new(keeps_lines)));
    let mut fleet = Fleet::new(plan.clone(), stores.clone());
    fleet.run();
    drop(fleet);
    let mut ledger = stores.ledger();
    Run {
        failure: ledger.failure.clone(),
        counts: ledger.counts,
        coverage: ledger.coverage.clone(),
        calls: {
            let each = ledger.calls.iter();
            let shown =
                each.map(|((function, call), count)| (format!("{function:?}: {call:?}"), *count));
            shown.collect()
        },
        hash: ledger.trace.hash(),
        simulated: ledger.now,
        lines: ledger.trace.take_lines(),
    }
}

/// Runs plans on several threads, each plan on one of them. Calls `each` with the runs in the order
/// of their plans, until it returns [`ControlFlow::Break`].
pub fn run_all(
    plans: impl Iterator<Item = Plan> + Send,
    keeps_lines: bool,
    threads: usize,
    mut each: impl FnMut(Plan, Run) -> ControlFlow<()>,
) {
    let plans = Mutex::new(plans.enumerate().fuse());
    let is_over = AtomicBool::new(false);
    let (send, done) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (plans, is_over, send) = (&plans, &is_over, send.clone());
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let next = plans.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, plan)) = next else {
                        return;
                    };
                    let done = run(&plan, keeps_lines);
                    if send.send((number, plan, done)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        // Runs that wait for those of earlier plans.
        let mut waiting = BTreeMap::new();
        let mut next = 0;
        for (number, plan, run) in done {
            waiting.insert(number, (plan, run));
            while let Some((plan, run)) = waiting.remove(&next) {
                next += 1;
                if each(plan, run).is_break() {
                    is_over.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    });
}

/// The sums of several runs.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    runs: u64,
    simulated: Duration,
    counts: Counts,
    coverage: Coverage,
}

impl Totals {
    /// Returns what never happened.
    pub fn never(&self) -> Vec<String> {
        self.coverage.never()
    }

    /// Returns what is said to be impossible, and happened.
    pub fn contradictions(&self) -> Vec<String> {
        self.coverage.contradictions()
    }

    /// Adds a run.
    pub fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.simulated += run.simulated;
        self.counts.add(run.counts);
        self.coverage.add(&run.coverage);
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.simulated.as_secs_f64() / 86_400.0;
        writeln!(f, "{} runs, {days:.0} simulated days", self.runs)?;
        writeln!(f, "{}", self.counts)?;
        write!(f, "{}", self.coverage)
    }
}
