//! Plans: everything that determines a run. A plan can be stored, as the story of a fault that was
//! found.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Moment;
use super::busy::{self, Busy};
use super::chance::Chance;
use super::faults::Rates;
use super::fleet::Function;
use super::mistakes::Mistake;
use super::releases::Difference;
use super::workload::{self, Action};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How often every module is requested while users are at work.
const ROUNDS: u32 = 12;

/// The byte budget of a busy team that has one: not all of its caches fit into it.
const BUDGET_OF_A_TEAM: u64 = 20_000;

/// The requests and uploads of a busy team in a day.
const REQUESTS_OF_A_DAY: usize = 2000;
const UPLOADS_OF_A_DAY: usize = 200;

/// The functions that a further symbol server is configured for.
const CONFIGURED: [Function; 3] = [Function::Symbolicate, Function::Derive, Function::Prune];

/// What happens in a run. The same plan gives the same run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The option of `simulate` that gives this kind of plan; empty: none.
    #[serde(default)]
    pub kind: Cow<'static, str>,
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
    /// The byte budget of derived caches; 0: no limit.
    pub budget: u64,
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
    /// Whether readers get other bytes than are stored, now and then.
    #[serde(default)]
    pub garbles_reads: bool,
    /// Whether the service searches three symbol servers: a slow one, a dead one, and one that
    /// lies.
    pub has_servers: bool,
    /// Whether a further symbol server is configured while the fleet runs.
    #[serde(default)]
    pub adds_server: bool,
    /// Whether there are programs whose debug information is in several files.
    #[serde(default)]
    pub has_programs: bool,
    /// Whether clients continue pending requests by their ids, and some do not get their responses.
    #[serde(default)]
    pub continues: bool,
    /// Whether the platform stops a message after 16 hops.
    pub stops_loops: bool,
    /// A planted mistake.
    pub mistake: Option<Mistake>,
    pub(super) difference: Difference,
    /// Whether the newer release runs in the end, if there were deploys.
    pub(super) ends_newer: bool,
    pub(super) actions: Vec<(Moment, Action)>,
}

impl Plan {
    /// Returns the plan of a seed, with this many hours of trouble.
    pub fn of_seed(seed: u64, hours: f64) -> Self {
        let mut chance = Chance::of(seed, 0);
        // With few modules, more happens to each of them at the same time.
        let is_crowded = chance.one_in(2);
        let (modules, scopes) = if is_crowded {
            (1 + chance.index(2), 1)
        } else {
            (2 + chance.index(3), 1 + chance.index(3))
        };
        let mut plan = Self {
            modules,
            scopes,
            max_unused: match chance.below(3) {
                0 => HOUR / 12,
                1 => 2 * HOUR,
                _ => 7 * DAY,
            },
            prunes_every: HOUR / (1 + chance.below(6) as u32),
            symbolicates: 2 + chance.index(2),
            derives: 2 + chance.index(3),
            prunes: 1 + chance.index(2),
            // Without faults, the checks are stricter.
            rates: match chance.below(6) {
                0 | 1 => Rates::NONE,
                2 => Rates::DISORDER,
                _ => Rates::MANY.some(&mut chance),
            },
            damages_blobs: chance.one_in(3),
            continues: false,
            ..Self::calm(seed, Duration::from_secs_f64(hours * 3600.0))
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
            has_deploys: chance.one_in(2),
            most_members: if chance.one_in(12) { 300 } else { 0 },
            has_programs: chance.one_in(4),
            renames: false,
        };
        plan.has_programs = busy.has_programs;
        plan.garbles_reads = plan.damages_blobs && chance.one_in(2);
        plan.difference = Difference {
            raises_versions: chance.one_in(2),
        };
        plan.ends_newer = chance.one_in(2);
        plan.has_servers = chance.one_in(3);
        plan.stops_loops = chance.one_in(4);
        plan.budget = if chance.one_in(4) { 4000 } else { 0 };
        plan.actions = busy.draw(&mut Chance::of(seed, 1));
        if busy.has_deploys {
            plan.draw_deploys(&mut chance, plan.busy_for);
        }
        plan.adds_server = plan.has_servers && chance.one_in(2);
        if plan.adds_server {
            plan.draw_configuration(&mut chance);
        }
        for round in 1..ROUNDS {
            let at = plan.busy_for * round / ROUNDS;
            let all = workload::crash_everywhere(modules, scopes);
            plan.actions.extend(all.map(|crash| (at, crash)));
        }
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of a busy team: each day 2,000 requests, 200 uploads and a deploy. Some
    /// teams have a budget, large archives, programs, or blobs that are damaged.
    pub fn team(seed: u64, days: u32) -> Self {
        Self::team_with(seed, days, true)
    }

    fn team_with(seed: u64, days: u32, is_varied: bool) -> Self {
        let mut chance = Chance::of(seed, 0);
        let (modules, scopes) = (20, 3);
        let mut plan = Self {
            kind: format!("--days {days}").into(),
            modules,
            scopes,
            max_unused: 7 * DAY,
            prunes_every: HOUR,
            symbolicates: 3,
            derives: 3,
            prunes: 1,
            rates: match chance.below(3) {
                0 => Rates::NONE,
                1 => Rates::DISORDER,
                _ => Rates::FEW,
            },
            has_servers: chance.one_in(2),
            ends_newer: chance.one_in(2),
            ..Self::calm(seed, DAY * days)
        };
        let (mut users, mut others) = (Chance::of(seed, 1), Chance::of(seed, 5));
        let mut has = || is_varied && others.one_in(3);
        plan.budget = if has() { BUDGET_OF_A_TEAM } else { 0 };
        plan.damages_blobs = has();
        plan.has_programs = has();
        let busy = Busy {
            modules,
            scopes,
            time: plan.busy_for,
            actions: 0,
            damages_blobs: plan.damages_blobs,
            pause: Duration::from_secs(60),
            has_deploys: true,
            most_members: if has() { 300 } else { 0 },
            has_programs: plan.has_programs,
            renames: is_varied,
        };
        plan.actions = busy.team(
            &mut users,
            REQUESTS_OF_A_DAY * days as usize,
            UPLOADS_OF_A_DAY * days as usize,
        );
        for day in 0..days {
            plan.actions
                .extend(busy.now_and_then(&mut others, DAY * day));
            let mut of_a_day = plan.clone();
            of_a_day.actions.clear();
            of_a_day.draw_deploys(&mut chance, DAY);
            if is_varied && plan.rates.freezes == 0 {
                of_a_day.fill_queues(&mut others, DAY);
            }
            let later = |(at, action)| (at + DAY * day, action);
            plan.actions.extend(of_a_day.actions.into_iter().map(later));
        }
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of an hour in which nothing goes wrong. Caches are removed soon.
    fn untroubled(seed: u64) -> Self {
        let mut plan = Self {
            rates: Rates::NONE,
            damages_blobs: false,
            garbles_reads: false,
            has_servers: false,
            adds_server: false,
            stops_loops: false,
            continues: true,
            budget: 0,
            max_unused: HOUR / 12,
            prunes_every: HOUR / 6,
            ..Self::of_seed(seed, 1.0)
        };
        let mut others = Chance::of(seed, 5);
        if others.one_in(4) {
            plan.fill_queues(&mut others, plan.busy_for);
            plan.actions.sort_by_key(|(at, _)| *at);
        }
        plan
    }

    /// Returns the plan of an hour in which nothing goes wrong, and a newer release is deployed and
    /// rolled back: readers follow builders late, so older readers meet newer builders first, and
    /// then newer readers meet older builders. Caches are removed soon, so that they meet at caches
    /// that only one of the releases has made.
    pub fn deploys(seed: u64) -> Self {
        let mut plan = Self {
            kind: "--deploys".into(),
            difference: Difference {
                raises_versions: true,
            },
            ends_newer: false,
            ..Self::untroubled(seed)
        };
        let stays = |action: &Action| {
            !matches!(
                action,
                Action::Deploy(..) | Action::Configure(_) | Action::Damage(..)
            )
        };
        plan.actions.retain(|(_, action)| stays(action));
        for (function, at, newer) in [
            (Function::Derive, 0.1, usize::MAX),
            (Function::Symbolicate, 0.45, usize::MAX),
            (Function::Prune, 0.5, usize::MAX),
            (Function::Derive, 0.6, 0),
            (Function::Symbolicate, 0.9, 0),
            (Function::Prune, 0.95, 0),
        ] {
            let deploy = Action::Deploy(function, newer);
            plan.actions.push((plan.busy_for.mul_f64(at), deploy));
        }
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of an hour in which nothing goes wrong, except that some files are
    /// overwritten and the events of this are lost. Caches are removed soon, so that builds find
    /// files that have changed.
    pub fn unannounced(seed: u64) -> Self {
        let mut plan = Self {
            kind: "--unannounced".into(),
            ..Self::untroubled(seed)
        };
        let stays = |action: &Action| {
            !matches!(
                action,
                Action::Deploy(..) | Action::Configure(_) | Action::Damage(..)
            )
        };
        plan.actions.retain(|(_, action)| stays(action));
        let mut chance = Chance::of(seed, 4);
        let mut known = BTreeSet::new();
        for (_, action) in &mut plan.actions {
            if let Action::Put(key, file) = action
                && !known.insert(key.clone())
                && chance.one_in(2)
            {
                *action = Action::PutSilently(key.clone(), file.clone());
            }
        }
        plan
    }

    /// Returns the plan of trouble in which everything happens to few modules at once, and many
    /// responses are late: instances meet at the same items. It takes an hour, or a day with an
    /// hour of trouble at either end, so that the pruner drops older states in the last one.
    pub fn contested(seed: u64) -> Self {
        let mut chance = Chance::of(seed, 0);
        let (modules, scopes) = (1 + chance.index(2), 1);
        let takes_a_day = chance.one_in(2);
        let last = HOUR * 49 / 2;
        let mut plan = Self {
            kind: "--contested".into(),
            modules,
            scopes,
            max_unused: if takes_a_day { 7 * DAY } else { HOUR / 12 },
            prunes_every: HOUR / 30,
            symbolicates: 3,
            derives: 4,
            prunes: 2,
            rates: Rates::CONTESTED,
            damages_blobs: true,
            garbles_reads: chance.one_in(2),
            ends_newer: chance.one_in(2),
            ..Self::calm(seed, if takes_a_day { last + HOUR } else { HOUR })
        };
        let busy = Busy {
            modules,
            scopes,
            time: HOUR,
            actions: 150,
            damages_blobs: true,
            pause: Duration::from_secs(5),
            has_deploys: chance.one_in(2),
            most_members: 0,
            has_programs: false,
            renames: false,
        };
        plan.actions = busy.draw(&mut Chance::of(seed, 1));
        if busy.has_deploys {
            plan.draw_deploys(&mut chance, HOUR);
        }
        if takes_a_day {
            let again = busy.draw(&mut Chance::of(seed, 4)).into_iter();
            let later = |(at, action)| (at + last, action);
            plan.actions.extend(again.map(later));
        }
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of trouble an hour long, and a day later of a quarter of an hour in which
    /// passes of the pruner, builders and readers meet at the states that are a day old.
    pub fn aged(seed: u64) -> Self {
        let mut chance = Chance::of(seed, 0);
        let (modules, last) = (12, HOUR * 51 / 2);
        let mut plan = Self {
            kind: "--aged".into(),
            modules,
            prunes_every: 2 * DAY,
            symbolicates: 3,
            derives: 4,
            prunes: 2,
            rates: Rates::CONTESTED,
            ends_newer: chance.one_in(2),
            ..Self::calm(seed, last + HOUR / 4)
        };
        let busy = Busy {
            modules,
            scopes: 1,
            time: HOUR,
            actions: 60,
            damages_blobs: false,
            pause: Duration::from_secs(60),
            has_deploys: chance.one_in(2),
            most_members: 0,
            has_programs: false,
            renames: false,
        };
        plan.actions = busy.draw(&mut Chance::of(seed, 1));
        let aged = busy::aged(&mut Chance::of(seed, 4), modules, last);
        plan.actions.extend(aged);
        if busy.has_deploys {
            plan.draw_deploys(&mut chance, HOUR);
        }
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of an hour in which a newer release is a canary, and readers of both
    /// releases get other bytes than are stored: both report the caches that they read, at about
    /// the same time.
    pub fn doubted(seed: u64) -> Self {
        let mut chance = Chance::of(seed, 0);
        let (modules, readers, builders) = (6, 6, 4);
        let mut plan = Self {
            kind: "--doubted".into(),
            modules,
            symbolicates: readers,
            derives: builders,
            // A builder often waits for the blob that it verifies.
            rates: Rates {
                late: 30_000,
                ..Rates::NONE
            },
            garbles_reads: true,
            ends_newer: chance.one_in(2),
            ..Self::calm(seed, HOUR)
        };
        plan.actions = busy::doubted(&mut Chance::of(seed, 1), modules, HOUR);
        let mut deploy = |at: Duration, function, newer| {
            plan.actions.push((at, Action::Deploy(function, newer)));
        };
        // Newer builders make newer states beside the older ones.
        deploy(HOUR / 12, Function::Derive, builders);
        let mut at = HOUR / 10;
        while at < HOUR {
            // Instances that have just been started have nothing in memory.
            deploy(at, Function::Symbolicate, 1 + chance.index(readers - 1));
            at += HOUR / 30;
        }
        // Now builders of both releases verify what readers of both report.
        deploy(HOUR / 3, Function::Derive, builders / 2);
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of an hour in which files come from symbol servers, a newer release is a
    /// canary, and instances are often frozen while they search or fetch.
    pub fn served(seed: u64) -> Self {
        let mut plan = Self {
            kind: "--served".into(),
            rates: Rates {
                freezes: Rates::CONTESTED.freezes * 2,
                ..Rates::CONTESTED
            },
            has_servers: true,
            ..Self::of_seed(seed, 1.0)
        };
        let is_deploy = |action: &Action| matches!(action, Action::Deploy(..));
        plan.actions.retain(|(_, action)| !is_deploy(action));
        for function in [Function::Derive, Function::Symbolicate] {
            let deploy = Action::Deploy(function, 1);
            plan.actions.push((plan.busy_for / 50, deploy));
        }
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of three weeks in which some modules are requested every day, and others
    /// are forgotten for more than a week.
    pub fn weeks(seed: u64) -> Self {
        let mut chance = Chance::of(seed, 0);
        let (modules, scopes, days) = (6, 2, 21);
        let mut plan = Self {
            kind: "--weeks".into(),
            modules,
            scopes,
            symbolicates: 2,
            derives: 2,
            clocks_differ: false,
            has_servers: chance.one_in(2),
            ..Self::calm(seed, DAY * days)
        };
        plan.actions = busy::weeks(&mut Chance::of(seed, 1), modules, scopes, days);
        plan
    }

    /// Returns the plan of a day of a busy team on which nothing goes wrong, and nothing is
    /// deployed.
    pub fn calm_day() -> Self {
        let mut plan = Self {
            rates: Rates::NONE,
            has_servers: false,
            ..Self::team_with(1, 1, false)
        };
        let is_deploy = |action: &Action| matches!(action, Action::Deploy(..));
        plan.actions.retain(|(_, action)| !is_deploy(action));
        plan
    }

    /// Returns a plan in which nothing happens.
    fn calm(seed: u64, busy_for: Duration) -> Self {
        Self {
            kind: "".into(),
            seed,
            schedule: seed,
            busy_for,
            modules: 1,
            scopes: 1,
            max_unused: 7 * DAY,
            budget: 0,
            prunes_every: HOUR,
            symbolicates: 1,
            derives: 1,
            prunes: 1,
            rates: Rates::NONE,
            clocks_differ: true,
            clocks_stop: true,
            damages_blobs: false,
            garbles_reads: false,
            has_servers: false,
            adds_server: false,
            has_programs: false,
            continues: true,
            stops_loops: false,
            mistake: None,
            difference: Difference {
                raises_versions: true,
            },
            ends_newer: false,
            actions: Vec::new(),
        }
    }

    /// Adds deploys: a canary, function by function, which is completed or rolled back, and comes
    /// again.
    fn draw_deploys(&mut self, chance: &mut Chance, time: Duration) {
        let functions = [Function::Symbolicate, Function::Derive, Function::Prune];
        let rounds = 1 + chance.below(3) as u32;
        for round in 0..rounds {
            let begin = time * round / rounds;
            let canary = begin + (time / rounds).mul_f64(0.1 + 0.3 * chance.fraction());
            let end = begin + (time / rounds).mul_f64(0.5 + 0.4 * chance.fraction());
            let is_completed = chance.one_in(2);
            for function in functions {
                let apart = (time / rounds).mul_f64(0.1 * chance.fraction());
                let deploy = Action::Deploy(function, 1);
                self.actions.push((canary + apart, deploy));
                let apart = (time / rounds).mul_f64(0.1 * chance.fraction());
                let all = if is_completed { usize::MAX } else { 0 };
                self.actions
                    .push((end + apart, Action::Deploy(function, all)));
            }
        }
    }

    /// Fills the queues at a time with some hundred messages.
    fn fill_queues(&mut self, chance: &mut Chance, time: Duration) {
        let at = time.mul_f64(chance.fraction());
        let count = 200 + chance.index(300);
        self.actions.push((at, Action::Fill(count)));
    }

    /// Adds the configuration of a further symbol server, function by function.
    fn draw_configuration(&mut self, chance: &mut Chance) {
        let begin = self.busy_for.mul_f64(0.7 * chance.fraction());
        for function in CONFIGURED {
            let apart = self.busy_for.mul_f64(0.2 * chance.fraction());
            let configure = Action::Configure(function);
            self.actions.push((begin + apart, configure));
        }
    }

    /// Removes the configuration of the further symbol server unless each function gets it: the
    /// reference expects what the server has.
    pub(super) fn forget_half_configured(&mut self) {
        let configures = |(_, action): &(_, Action)| matches!(action, Action::Configure(_));
        let configured = self.actions.iter().filter(|action| configures(action));
        if configured.count() < CONFIGURED.len() {
            self.adds_server = false;
            self.actions.retain(|action| !configures(action));
        }
    }

    /// Returns the time without use after which a cache is removed, if neither a budget nor a
    /// fault removes it earlier.
    pub(super) fn kept_for(&self) -> Option<Duration> {
        let is_kept = self.rates == Rates::NONE && self.budget == 0 && !self.damages_blobs;
        is_kept.then_some(self.max_unused)
    }

    /// Returns the number of things that users do.
    pub fn actions(&self) -> usize {
        self.actions.len()
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
