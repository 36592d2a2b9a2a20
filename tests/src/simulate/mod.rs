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
//! What must always hold is checked after each write and each response (`stores`, `truth`).

mod chance;
mod coverage;
mod describe;
mod faults;
mod fleet;
mod gate;
mod instance;
mod mistakes;
mod ports;
mod shrink;
mod stores;
mod trace;
mod truth;
mod workload;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::coverage::Coverage;
pub use self::faults::Rates;
pub use self::mistakes::Mistake;
pub use self::shrink::shrink;
pub use self::stores::{Counts, Failure};

use self::chance::Chance;
use self::fleet::Fleet;
use self::stores::Stores;
use self::trace::Trace;
use self::workload::{Action, Busy};

/// A time, since the simulation began.
type Moment = Duration;

/// The time since 1970 at which each simulation begins.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

/// How often every module is requested while users are at work.
const ROUNDS: u32 = 12;

/// What happens in a run. The same plan gives the same run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed of what happens.
    pub seed: u64,
    /// The seed of who continues and what goes wrong. Usually the same.
    pub schedule: u64,
    /// How long users and faults are at work.
    pub busy_for: Duration,
    /// The number of modules in each scope.
    pub modules: usize,
    /// The number of scopes.
    pub scopes: usize,
    /// The time without use after which a cache is removed.
    pub max_unused: Duration,
    /// How often the pruner runs while users are at work.
    pub prunes_every: Duration,
    /// The number of instances of `symbolicate`.
    pub symbolicates: usize,
    /// The number of instances of `derive`.
    pub derives: usize,
    /// The number of instances of `prune`.
    pub prunes: usize,
    /// How often things go wrong.
    pub rates: Rates,
    /// Whether the wall clocks differ, by up to two minutes.
    pub clocks_differ: bool,
    /// Whether monotonic clocks may stand still while an instance is frozen.
    pub clocks_stop: bool,
    /// Whether blobs are damaged and removed.
    pub damages_blobs: bool,
    /// A planted mistake.
    pub mistake: Option<Mistake>,
    actions: Vec<(Moment, Action)>,
}

impl Plan {
    /// Returns the plan of a seed, with this many hours of work.
    pub fn of_seed(seed: u64, hours: f64) -> Self {
        let mut chance = Chance::of(seed, 0);
        // With few modules, more happens to each of them at the same time.
        let is_crowded = chance.one_in(2);
        let (modules, scopes) = match is_crowded {
            true => (1 + chance.index(2), 1),
            false => (2 + chance.index(3), 1 + chance.index(3)),
        };
        let hour = Duration::from_secs(3600);
        let mut plan = Self {
            seed,
            schedule: seed,
            busy_for: Duration::from_secs_f64(hours * 3600.0),
            modules,
            scopes,
            max_unused: match chance.below(3) {
                0 => hour / 12,
                1 => 2 * hour,
                _ => 7 * 24 * hour,
            },
            prunes_every: hour / (1 + chance.below(6) as u32),
            symbolicates: 2 + chance.index(2),
            derives: 2 + chance.index(3),
            prunes: 1 + chance.index(2),
            // Without faults, the checks are stricter.
            rates: match chance.below(6) {
                0 | 1 => Rates::NONE,
                2 => Rates::DISORDER,
                _ => Rates::MANY.some(&mut chance),
            },
            clocks_differ: true,
            clocks_stop: true,
            damages_blobs: chance.one_in(3),
            mistake: None,
            actions: Vec::new(),
        };
        let busy = Busy {
            modules,
            scopes,
            time: plan.busy_for,
            actions: 20 + (hours * 20.0) as usize,
            damages_blobs: plan.damages_blobs,
            pause: match chance.below(3) {
                0 => Duration::from_millis(50),
                1 => Duration::from_millis(500),
                _ => Duration::from_secs(3),
            },
        };
        plan.actions = busy.draw(&mut Chance::of(seed, 1));
        for round in 1..ROUNDS {
            let at = plan.busy_for * round / ROUNDS;
            let all = workload::crash_everywhere(modules, scopes);
            plan.actions.extend(all.map(|crash| (at, crash)));
        }
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the number of things that users do.
    pub fn actions(&self) -> usize {
        self.actions.len()
    }
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
    /// A hash of the trace.
    pub hash: u64,
    /// How much time was simulated.
    pub simulated: Duration,
    /// The trace, if it was requested.
    pub lines: Vec<String>,
}

/// Runs a plan. With `keeps_lines`, the result has the whole trace.
pub fn run(plan: &Plan, keeps_lines: bool) -> Run {
    let stores = Arc::new(Stores::new(plan.mistake, Trace::new(keeps_lines)));
    let mut fleet = Fleet::new(plan.clone(), stores.clone());
    fleet.run();
    drop(fleet);
    let mut ledger = stores.ledger();
    Run {
        failure: ledger.failure.clone(),
        counts: ledger.counts,
        coverage: ledger.coverage.clone(),
        hash: ledger.trace.hash(),
        simulated: ledger.now,
        lines: ledger.trace.take_lines(),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} actions, {} + {} + {} instances, schedule {}, {:?}",
            self.actions.len(),
            self.symbolicates,
            self.derives,
            self.prunes,
            self.schedule,
            self.rates
        )
    }
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
    pub fn never(&self) -> Vec<&'static str> {
        self.coverage.never()
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
