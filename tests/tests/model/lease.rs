//! The model of leases and publications: two builders of one entry, a reader that touches it, and
//! the passage of time.

use std::collections::BTreeSet;

use stateright::{Model, Property};
use symdepot::cache::{
    Capabilities, Change, Converter, Decision, Entry, LEASE_LENGTH, Queue, Ready, ReleaseNumbers,
    decide, violations,
};
use symdepot::domain::{DifRef, Timestamp};

use super::record::{
    Answer, End, Product, SKEW, Update, build_of, clock, dif, fail, publish, states, take, token,
};
use super::{Bounds, broken_by, check};

/// A builder and its current step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Builder {
    Idle,
    /// Takes the lease.
    Taking(Update),
    Holding,
    Extending(Update),
    /// Publishes, fails, or releases the lease.
    Ending(Update),
    /// The builder crashed at this time.
    Crashed {
        at: u64,
        heartbeat: Option<Update>,
    },
}

/// The properties of a builder's machine, which differ between initial states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Machine {
    /// The error of its clock, in seconds.
    off_by: i64,
    makes: Product,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    stored: Option<Entry>,
    /// The builds whose blobs exist.
    blobs: BTreeSet<u8>,
    machines: [Machine; 2],
    builders: [Builder; 2],
    /// The number of each builder's build.
    builds: [u8; 2],
    touching: Option<Update>,
    left: Left,
    /// The build that took the lease last.
    last_holder: Option<u8>,
    seen_wrong: Wrong,
}

/// The number of steps and faults that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    builds: u8,
    crashes: u8,
    faults: u8,
    touches: u8,
    extensions: u8,
    ticks: u8,
}

/// Violations, recorded when they happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Wrong {
    published_by_a_loser: bool,
    worse_over_better: bool,
    taken_by_a_failure: bool,
    published_without_end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Begin(usize),
    Step(usize, Answer),
    Create(usize),
    Extend(usize),
    Publish(usize),
    /// Publishes the ready state again, because nothing better would be made.
    PublishAgain(usize),
    Fail(usize),
    Release(usize),
    Crash(usize),
    Touch,
    StepTouch(Answer),
}

/// A mistake that is seeded into the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Publishes with the token of the record instead of the builder's own.
    PublishesUnfenced,
    /// Publishes before it creates the blob.
    PublishesFirst,
    /// A failed build revokes the ready state.
    FailureRevokes,
    /// The lease of a crashed builder continues to be extended.
    HeartbeatOutlives,
    /// The build does not evaluate the better file, so that the file counts as removed.
    ForgetsTheBetterFile,
}

struct Leases {
    bounds: Bounds,
    mistake: Mistake,
}

/// The seconds of a tick: two ticks are the length of a lease.
const TICK: u64 = 30;

/// Returns the only file, which is never removed.
fn file() -> DifRef {
    dif(0, 1)
}

impl Leases {
    fn considered(&self) -> Vec<DifRef> {
        if self.mistake == Mistake::ForgetsTheBetterFile {
            Vec::new()
        } else {
            vec![file()]
        }
    }

    /// Returns the change as it is written to the record.
    fn change(&self, state: &State, at: usize) -> Option<Change> {
        let update = match &state.builders[at] {
            Builder::Taking(update) | Builder::Extending(update) | Builder::Ending(update) => {
                update
            }
            Builder::Crashed { heartbeat, .. } => heartbeat.as_ref()?,
            Builder::Idle | Builder::Holding => return None,
        };
        let mut change = update.change.clone();
        let lease = state.stored.as_ref().and_then(Entry::lease);
        match (&mut change, self.mistake, lease) {
            (Change::Publish { token, .. }, Mistake::PublishesUnfenced, Some(lease)) => {
                *token = lease.token.clone();
            }
            (Change::Fail { .. }, Mistake::FailureRevokes, _) => {
                let mark = token(200);
                change = Change::Revoke { dif: file(), mark };
            }
            _ => {}
        }
        Some(change)
    }

    /// Performs the next step of a builder's update.
    fn step(&self, state: &mut State, at: usize, answer: Answer) {
        let Some(change) = self.change(state, at) else {
            return;
        };
        let now = state.clock(at);
        let before = state.stored.clone();
        let mut builder = std::mem::replace(&mut state.builders[at], Builder::Idle);
        let (Builder::Taking(update) | Builder::Extending(update) | Builder::Ending(update)) =
            &mut builder
        else {
            if let Builder::Crashed {
                heartbeat: Some(update),
                ..
            } = &mut builder
            {
                let step = update.step(&mut state.stored, now, answer);
                state.landed(step.landed);
            }
            state.builders[at] = builder;
            return;
        };
        update.change = change;
        let step = update.step(&mut state.stored, now, answer);
        let change = update.change.clone();
        if step.landed {
            state.judge(&change, before.as_ref(), at);
        }
        if let (Change::Publish { token, .. }, Some(End::Done(_))) = (&change, &step.end) {
            let lease = state.stored.as_ref().and_then(Entry::lease);
            let is_left = lease.is_some_and(|lease| lease.token == *token);
            state.seen_wrong.published_without_end |= is_left;
        }
        state.builders[at] = match (builder, step.end) {
            (builder, None) => builder,
            (Builder::Taking(_), Some(End::Done(entry)))
                if entry
                    .lease()
                    .is_some_and(|lease| lease.token == token(state.builds[at])) =>
            {
                Builder::Holding
            }
            // The publication fails if the lease was not extended.
            (Builder::Extending(_), Some(_)) => Builder::Holding,
            (_, Some(_)) => Builder::Idle,
        };
        state.landed(step.landed);
    }

    fn end(&self, state: &mut State, at: usize, change: Change) {
        state.builders[at] = Builder::Ending(Update::new(change));
    }
}

impl State {
    fn clock(&self, at: usize) -> Timestamp {
        clock(self.now, self.machines[at].off_by)
    }

    /// Marks all reads as stale after a write.
    fn landed(&mut self, landed: bool) {
        if !landed {
            return;
        }
        for builder in &mut self.builders {
            match builder {
                Builder::Taking(update)
                | Builder::Extending(update)
                | Builder::Ending(update)
                | Builder::Crashed {
                    heartbeat: Some(update),
                    ..
                } => update.go_stale(),
                Builder::Idle | Builder::Holding | Builder::Crashed { .. } => {}
            }
        }
        if let Some(touching) = &mut self.touching {
            touching.go_stale();
        }
    }

    /// Checks the effect of a write without regard to tokens.
    fn judge(&mut self, change: &Change, before: Option<&Entry>, at: usize) {
        let after = self.stored.as_ref();
        let ready = |entry: Option<&Entry>| entry.and_then(Entry::ready).cloned();
        match change {
            Change::TakeLease { .. } if after.is_some_and(|entry| entry.lease().is_some()) => {
                self.last_holder = Some(self.builds[at]);
            }
            Change::Publish { .. } => {
                self.seen_wrong.published_by_a_loser |= self.last_holder != Some(self.builds[at]);
                self.seen_wrong.worse_over_better |= match (ready(before), ready(after)) {
                    (Some(before), Some(after)) => is_worse(&after, &before),
                    (Some(_), None) => true,
                    (None, _) => false,
                };
            }
            Change::Fail { .. } | Change::Revoke { .. } => {
                let lost = states(before).any(|state| !states(after).any(|left| left == state));
                self.seen_wrong.taken_by_a_failure |= lost;
            }
            _ => {}
        }
    }
}

/// Returns whether one state is worse than another: of a lower version or of a worse rank, or of
/// the same version and rank but of an older converter.
fn is_worse(one: &Ready, other: &Ready) -> bool {
    one.version < other.version
        || one.rank > other.rank
        || (one.version == other.version
            && one.rank == other.rank
            && one.converter < other.converter)
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let good = Product::GOOD;
        let worse = Product {
            has_debug_info: false,
            ..good
        };
        let lower = Product { version: 0, ..good };
        let newer_and_worse = Product {
            version: 2,
            ..worse
        };
        let newer = Product {
            converter: Converter::CURRENT.0 + 1,
            ..good
        };
        let makes = [
            [good, good],
            [good, worse],
            [good, lower],
            [good, newer],
            [good, newer_and_worse],
        ];
        let skews: &[i64] = self.bounds.choose(&[SKEW], &[-SKEW, 0, SKEW]);
        let mut states = Vec::new();
        for makes in makes {
            for off_by in skews {
                let machine = |at: usize| Machine {
                    off_by: if at == 0 { 0 } else { *off_by },
                    makes: makes[at],
                };
                let mut stored = None;
                let build_request = Change::RequestBuild {
                    id: token(100),
                    queue: Queue::Eager,
                };
                let mut asking = Update::new(build_request);
                let _ = asking.step(&mut stored, clock(0, 0), Answer::Comes);
                let _ = asking.step(&mut stored, clock(0, 0), Answer::Comes);
                states.push(State {
                    now: 0,
                    stored,
                    blobs: BTreeSet::new(),
                    machines: [machine(0), machine(1)],
                    builders: [Builder::Idle, Builder::Idle],
                    builds: [0, 100],
                    touching: None,
                    left: Left {
                        builds: 2,
                        crashes: 1,
                        faults: 1,
                        touches: self.bounds.choose(0, 1),
                        extensions: 1,
                        ticks: self.bounds.choose(3, 4),
                    },
                    last_holder: None,
                    seen_wrong: Wrong::default(),
                });
            }
        }
        states
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        let mut answers = |update: &Update, action: &dyn Fn(Answer) -> Action| {
            actions.push(action(Answer::Comes));
            if update.writes_next() && left.faults > 0 {
                actions.push(action(Answer::IsLost));
                actions.push(action(Answer::IsOfRepetition));
            }
        };
        for (at, builder) in state.builders.iter().enumerate() {
            match builder {
                Builder::Taking(update)
                | Builder::Extending(update)
                | Builder::Ending(update)
                | Builder::Crashed {
                    heartbeat: Some(update),
                    ..
                } => answers(update, &|answer| Action::Step(at, answer)),
                Builder::Idle | Builder::Holding | Builder::Crashed { .. } => {}
            }
        }
        if let Some(touching) = &state.touching {
            answers(touching, &Action::StepTouch);
        }
        for (at, builder) in state.builders.iter().enumerate() {
            let is_requested = state
                .stored
                .as_ref()
                .is_some_and(|entry| entry.build_request().is_some());
            match builder {
                Builder::Idle if is_requested && left.builds > 0 => actions.push(Action::Begin(at)),
                Builder::Holding => {
                    let is_created = state.blobs.contains(&state.builds[at]);
                    if is_created || self.mistake == Mistake::PublishesFirst {
                        actions.push(Action::Publish(at));
                    }
                    if !is_created {
                        actions.extend([Action::Create(at), Action::Fail(at), Action::Release(at)]);
                        let ready = state.stored.as_ref().and_then(Entry::ready);
                        actions.extend(ready.map(|_| Action::PublishAgain(at)));
                    }
                    if left.extensions > 0 {
                        actions.push(Action::Extend(at));
                    }
                }
                _ => {}
            }
            let is_at_work = !matches!(builder, Builder::Idle | Builder::Crashed { .. });
            if is_at_work && left.crashes > 0 {
                actions.push(Action::Crash(at));
            }
        }
        if left.touches > 0 && state.touching.is_none() {
            actions.push(Action::Touch);
        }
        if left.ticks > 0 {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => {
                state.left.ticks -= 1;
                state.now += TICK;
            }
            Action::Begin(at) => {
                state.left.builds -= 1;
                state.builds[at] += 1;
                state.builders[at] = Builder::Taking(Update::new(take(state.builds[at])));
            }
            Action::Step(at, answer) => {
                state.left.faults -= u8::from(answer != Answer::Comes);
                self.step(&mut state, at, answer);
            }
            Action::Create(at) => {
                state.blobs.insert(state.builds[at]);
            }
            Action::Extend(at) => {
                state.left.extensions -= 1;
                state.builders[at] = Builder::Extending(Update::new(self.extension(&state, at)));
            }
            Action::Publish(at) => {
                let (build, makes) = (state.builds[at], state.machines[at].makes);
                let ready = makes.ready(build, file(), clock(0, 0));
                self.end(&mut state, at, publish(build, ready, self.considered()));
            }
            Action::PublishAgain(at) => {
                let ready = state.stored.as_ref().and_then(Entry::ready)?.clone();
                let change = publish(state.builds[at], ready, self.considered());
                self.end(&mut state, at, change);
            }
            Action::Fail(at) => {
                let change = fail(state.builds[at], self.considered());
                self.end(&mut state, at, change);
            }
            Action::Release(at) => {
                let token = token(state.builds[at]);
                self.end(&mut state, at, Change::ReleaseInterrupted { token });
            }
            Action::Crash(at) => {
                state.left.crashes -= 1;
                let goes_on = self.mistake == Mistake::HeartbeatOutlives;
                state.builders[at] = Builder::Crashed {
                    at: state.now,
                    heartbeat: goes_on.then(|| Update::new(self.extension(&state, at))),
                };
            }
            Action::Touch => {
                state.left.touches -= 1;
                state.touching = Some(Update::new(Change::Touch));
            }
            Action::StepTouch(answer) => {
                state.left.faults -= u8::from(answer != Answer::Comes);
                let mut touching = state.touching.take()?;
                // The reader's clock is two hours ahead, so that the last use is long ago.
                let now = clock(state.now + 7200, 0);
                let step = touching.step(&mut state.stored, now, answer);
                state.landed(step.landed);
                state.touching = step.end.is_none().then_some(touching);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "1. the blob of a published state was created by its builder",
                |_, state: &State| {
                    states(state.stored.as_ref())
                        .all(|ready| state.blobs.contains(&build_of(ready)))
                },
            ),
            Property::always(
                "2. a holder that lost its lease never publishes",
                |_, state: &State| !state.seen_wrong.published_by_a_loser,
            ),
            Property::always(
                "2. nothing worse replaces something better",
                |_, state: &State| !state.seen_wrong.worse_over_better,
            ),
            Property::always(
                "2. a holder that has published has no lease",
                |_, state: &State| !state.seen_wrong.published_without_end,
            ),
            Property::always(
                "3. the stored entry is valid and has its own key",
                |_, state: &State| {
                    state
                        .stored
                        .as_ref()
                        .is_none_or(|entry| violations(entry).is_empty())
                },
            ),
            Property::always(
                "4. a failed build removes no ready state",
                |_, state: &State| !state.seen_wrong.taken_by_a_failure,
            ),
            Property::always(
                "6. a crashed holder delays others by at most a minute",
                |_, state: &State| {
                    let lease = state.stored.as_ref().and_then(Entry::lease);
                    state.builders.iter().enumerate().all(|(at, builder)| {
                        let Builder::Crashed { at: crashed, .. } = builder else {
                            return true;
                        };
                        let last = clock(*crashed, SKEW).plus(LEASE_LENGTH);
                        lease.is_none_or(|lease| {
                            lease.token != token(state.builds[at]) || lease.until <= last
                        })
                    })
                },
            ),
            Property::always("6. every wait ends", |_, state: &State| {
                wait_ends(state.stored.as_ref(), clock(state.now, 0))
            }),
            Property::sometimes("something is published", |_, state: &State| {
                states(state.stored.as_ref()).next().is_some()
            }),
            Property::sometimes("two versions are stored", |_, state: &State| {
                states(state.stored.as_ref()).count() == 2
            }),
            Property::sometimes(
                "a lease expires while its holder works",
                |_, state: &State| {
                    let lease = state.stored.as_ref().and_then(Entry::lease);
                    state.builders.contains(&Builder::Holding)
                        && lease.is_some_and(|lease| lease.until <= clock(state.now, 0))
                },
            ),
        ]
    }
}

impl Leases {
    fn extension(&self, state: &State, at: usize) -> Change {
        Change::Extend {
            token: token(state.builds[at]),
            deadline: clock(900, 0),
        }
    }
}

/// Returns whether a reader that waits until the given time, several times if necessary, eventually
/// receives a decision other than to wait.
fn wait_ends(stored: Option<&Entry>, mut now: Timestamp) -> bool {
    let reader = Capabilities {
        transcoded: Vec::new(),
        numbers: ReleaseNumbers::CURRENT,
        limits: Vec::new(),
    };
    for _ in 0..4 {
        match decide(stored, &reader, now) {
            Decision::Wait { until } if until > now => now = until,
            Decision::Wait { .. } => return false,
            _ => return true,
        }
    }
    false
}

#[test]
fn the_properties_of_leases_hold_in_every_order() {
    let bounds = Bounds::asked_for();
    check(
        "lease",
        Leases {
            bounds,
            mistake: Mistake::None,
        },
    );
}

#[test]
fn each_seeded_mistake_in_leases_is_detected() {
    for (mistake, property) in [
        (
            Mistake::PublishesFirst,
            "1. the blob of a published state was created by its builder",
        ),
        (
            Mistake::PublishesUnfenced,
            "2. a holder that lost its lease never publishes",
        ),
        (
            Mistake::ForgetsTheBetterFile,
            "2. nothing worse replaces something better",
        ),
        (
            Mistake::FailureRevokes,
            "4. a failed build removes no ready state",
        ),
        (
            Mistake::HeartbeatOutlives,
            "6. a crashed holder delays others by at most a minute",
        ),
    ] {
        let bounds = Bounds::Small;
        assert_eq!(broken_by(Leases { bounds, mistake }), [property]);
    }
}
