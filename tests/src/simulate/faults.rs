//! What goes wrong, and how often.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use symdepot::ports::Consistency;

use super::Plan;
use super::chance::Chance;
use super::gate::{Call, Fate};

/// How long a message is delayed at most.
const LONGEST_DELAY: Duration = Duration::from_secs(600);

/// How often things go wrong: so many times in a hundred thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// A call to a store fails, is repeated, or gets no response.
    pub calls: u32,
    /// A response arrives late.
    pub late: u32,
    /// An eventually consistent read returns the past.
    pub stale: u32,
    /// A parser is killed, for each call to a parser.
    pub parsers: u32,
    /// An instance is frozen, for each step.
    pub freezes: u32,
    /// An instance is killed, for each step.
    pub kills: u32,
    /// A message, an event or a response to a client is lost.
    pub lost: u32,
    /// A message or an event is delivered twice.
    pub doubled: u32,
    /// A message or an event is delayed.
    pub delayed: u32,
}

impl Rates {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        calls: 0,
        late: 0,
        stale: 0,
        parsers: 0,
        freezes: 0,
        kills: 0,
        lost: 0,
        doubled: 0,
        delayed: 0,
    };

    /// Messages are late and come twice, and nothing else goes wrong.
    pub const DISORDER: Self = Self {
        doubled: 30_000,
        delayed: 50_000,
        ..Self::NONE
    };

    /// Much goes wrong.
    pub const MANY: Self = Self {
        calls: 1500,
        late: 1000,
        stale: 10_000,
        parsers: 5000,
        freezes: 300,
        kills: 150,
        lost: 1000,
        doubled: 10_000,
        delayed: 30_000,
    };

    /// Much goes wrong, and many responses are late, so that others write in between.
    pub const CONTESTED: Self = Self {
        late: 8000,
        freezes: 500,
        kills: 300,
        ..Self::MANY
    };

    /// A little goes wrong, as in production.
    pub const FEW: Self = Self {
        calls: 50,
        late: 50,
        stale: 1000,
        parsers: 100,
        freezes: 10,
        kills: 5,
        lost: 20,
        doubled: 200,
        delayed: 500,
    };

    fn fields() -> [fn(&mut Self) -> &mut u32; 9] {
        [
            |rates| &mut rates.calls,
            |rates| &mut rates.late,
            |rates| &mut rates.stale,
            |rates| &mut rates.parsers,
            |rates| &mut rates.freezes,
            |rates| &mut rates.kills,
            |rates| &mut rates.lost,
            |rates| &mut rates.doubled,
            |rates| &mut rates.delayed,
        ]
    }

    /// Returns rates some of which are zero: what is rare together with many faults may be frequent
    /// with few.
    pub(super) fn some(mut self, chance: &mut Chance) -> Self {
        for field in Self::fields() {
            match chance.below(6) {
                0 | 1 => *field(&mut self) = 0,
                2 => *field(&mut self) *= 5,
                _ => {}
            }
        }
        self
    }

    /// Returns these rates with one of them set to zero, for each one that is not zero.
    pub(super) fn without_one(self) -> Vec<Self> {
        let without = Self::fields().into_iter().filter_map(|field| {
            let mut rates = self;
            (std::mem::take(field(&mut rates)) > 0).then_some(rates)
        });
        without.collect()
    }
}

/// Decides what goes wrong.
#[derive(Debug)]
pub(super) struct Faults {
    chance: Chance,
    rates: Rates,
    clocks_stop: bool,
}

impl Faults {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            chance: Chance::of(plan.schedule, 3),
            rates: plan.rates,
            clocks_stop: plan.clocks_stop,
        }
    }

    /// Returns the time within which each event is applied, and known to each instance; `None` if
    /// something may go wrong.
    pub(super) fn settled_within(&self) -> Option<Duration> {
        match self.rates {
            Rates::NONE => Some(Duration::from_secs(200)),
            Rates::DISORDER => Some(LONGEST_DELAY * 2 + Duration::from_secs(200)),
            _ => None,
        }
    }

    /// Decides the fate of a call.
    pub(super) fn fate(&mut self, call: Call, is_calm: bool) -> Fate {
        let (chance, rates) = (&mut self.chance, self.rates);
        let is_parser = matches!(call, Call::Inspect | Call::Derive);
        if is_parser && chance.one_in(3) {
            // That is no fault: files are large.
            return Fate::Late(chance.seconds(0.01, 10.0));
        }
        if call == Call::Download {
            // Up to a minute, servers are slow. Beyond that, they are too slow.
            let most = if is_calm { 60.0 } else { 90.0 };
            return Fate::Late(chance.seconds(0.5, most));
        }
        if is_calm {
            return Fate::Succeeds;
        }
        if is_parser {
            return if chance.happens(rates.parsers) {
                Fate::ParserKilled
            } else if chance.happens(rates.late) {
                Fate::Late(chance.seconds(1.0, 300.0))
            } else {
                Fate::Succeeds
            };
        }
        if !call.is_remote() {
            return Fate::Succeeds;
        }
        if call == Call::Load(Consistency::Eventual) && chance.happens(rates.stale) {
            return Fate::Stale(chance.seconds(0.01, 2.0));
        }
        if chance.happens(rates.late) {
            return Fate::Late(chance.seconds(0.1, 30.0));
        }
        if !chance.happens(rates.calls) {
            return Fate::Succeeds;
        }
        match chance.below(if call.writes() { 5 } else { 2 }) {
            0 => Fate::Throttled,
            1 => Fate::Silent(chance.seconds(1.0, 30.0), call.writes() && chance.one_in(2)),
            2 => Fate::FailsAfter,
            3 => Fate::Repeated,
            _ => Fate::FailsBefore,
        }
    }

    /// Decides how much later than usual a call reaches its store. That is no fault.
    pub(super) fn detour(&mut self) -> Option<Duration> {
        let is_long = self.chance.one_in(60);
        is_long.then(|| self.chance.seconds(0.02, 5.0))
    }

    /// Decides whether a client does not receive a response.
    pub(super) fn loses_response(&mut self) -> bool {
        let lost = self.rates.lost;
        lost > 0 && self.chance.happens(lost)
    }

    /// Decides how often a message arrives, and how late.
    pub(super) fn delivery(&mut self) -> (u32, Duration) {
        let (chance, rates) = (&mut self.chance, self.rates);
        let copies = if chance.happens(rates.lost) {
            0
        } else {
            1 + u32::from(chance.happens(rates.doubled))
        };
        let late = if chance.happens(rates.delayed) {
            chance.seconds(0.1, LONGEST_DELAY.as_secs_f64())
        } else {
            Duration::from_millis(30)
        };
        (copies, late)
    }

    /// Decides whether an instance is frozen: for how long, and whether its monotonic clock stops.
    pub(super) fn freeze(&mut self) -> Option<(Duration, bool)> {
        let freezes = self.rates.freezes;
        self.chance.happens(freezes).then(|| {
            let time = self.chance.seconds(1.0, 2.0 * 3600.0);
            (time, self.stops())
        })
    }

    /// Decides whether an instance is frozen after an invocation.
    pub(super) fn idle(&mut self) -> Option<(Duration, bool)> {
        let is_frozen = self.rates.freezes > 0 && self.chance.one_in(2);
        is_frozen.then(|| (self.chance.seconds(0.1, 600.0), self.stops()))
    }

    fn stops(&mut self) -> bool {
        let stops = self.chance.one_in(2);
        stops && self.clocks_stop
    }

    /// Decides whether an instance is killed.
    pub(super) fn kills(&mut self) -> bool {
        let kills = self.rates.kills;
        self.chance.happens(kills)
    }

    /// Returns how often an invocation is chosen, compared with others.
    pub(super) fn weight(&mut self) -> u32 {
        match self.chance.below(4) {
            0 => 1,
            1 => 10,
            _ => 100,
        }
    }
}
