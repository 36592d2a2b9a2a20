//! The model of prune runs and orphans: one prune run, builders that create blobs meanwhile,
//! readers, and the passage of time.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};
use symdepot::cache::{
    Capabilities, Change, Decision, Entry, Policy, Queue, ReleaseNumbers, apply, decide,
};

use super::record::{
    Answer, End, Product, SKEW, Update, build_of, clock, dif, publish, states, take, token,
};
use super::{Bounds, broken_by, check};

/// Blobs younger than this are never orphans, in seconds.
const ORPHAN_MIN_AGE: u64 = 3600;

/// The spans of time that may pass, in seconds: until a lease expires, until a blob is old enough,
/// and until an entry is unused for too long.
const SPANS: [u64; 3] = [61, 3601, 8 * 24 * 3600];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Builder {
    Idle,
    Taking(Update),
    Holding,
    /// The builder has created its blob.
    Created,
    Publishing(Update),
}

/// The next step of the prune run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Sweep {
    Idle,
    /// The run has read the record, and tries one change after the other.
    Entry {
        read: Entry,
        tried: usize,
    },
    Changing {
        read: Entry,
        tried: usize,
        update: Box<Update>,
    },
    /// Removes the blobs of the retired record.
    Remove {
        blobs: BTreeSet<u8>,
    },
    List,
    /// Has listed the old blobs, and checks which of them a record names.
    Name {
        old: BTreeSet<u8>,
    },
    /// Removes the blobs that no record names.
    RemoveOrphans {
        orphans: BTreeSet<u8>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    stored: Option<Entry>,
    /// The blobs, and the time at which each was created.
    blobs: BTreeMap<u8, u64>,
    builders: [Builder; 2],
    builds: [u8; 2],
    touching: Option<Update>,
    sweep: Sweep,
    /// The error of the prune run's clock, in seconds.
    off_by: i64,
    left: Left,
    /// The record as the run read it first, for the mistake of relying on it until the end.
    first_read: Option<Entry>,
    /// Blobs that were old orphans when the run began.
    due: BTreeSet<u8>,
    left_lying: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    builds: u8,
    sweeps: u8,
    crashes: u8,
    /// The number of responses that may be lost. It is zero in this model: a prune run without a
    /// response ends like one that crashed, and builders are covered by the model of leases.
    faults: u8,
    touches: u8,
    spans: [u8; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Pass(usize),
    RequestBuild,
    Begin(usize),
    Step(usize, Answer),
    Create(usize),
    Publish(usize),
    Crash(usize),
    Touch,
    StepTouch(Answer),
    Sweep,
    StepSweep(Answer),
    CrashSweep,
}

/// A mistake that is seeded into the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Reads which blobs the record names before it lists the blobs.
    BelievesTheFirstReading,
    /// Removes the blobs before the record.
    RemovesBlobsFirst,
    /// Removes only the blobs of the records that it retires, without listing blobs.
    ListsNothing,
}

struct Sweeps {
    bounds: Bounds,
    mistake: Mistake,
}

const CHANGES: [Change; 3] = [Change::Retire, Change::ClearLease, Change::DropOlder];

fn blobs_of(entry: &Entry) -> BTreeSet<u8> {
    states(Some(entry)).map(build_of).collect()
}

impl State {
    fn landed(&mut self, landed: bool) {
        if !landed {
            return;
        }
        for builder in &mut self.builders {
            if let Builder::Taking(update) | Builder::Publishing(update) = builder {
                update.go_stale();
            }
        }
        if let Some(touching) = &mut self.touching {
            touching.go_stale();
        }
        if let Sweep::Changing { update, .. } = &mut self.sweep {
            update.go_stale();
        }
    }

    /// Returns the old blobs that no reader can ever read: no state names them, and no lease that
    /// can still publish.
    fn orphans(&self) -> BTreeSet<u8> {
        let named: BTreeSet<u8> = self.stored.iter().flat_map(blobs_of).collect();
        let lease = self.stored.as_ref().and_then(|entry| {
            let slowest = clock(self.now, -SKEW);
            entry.live_lease(slowest).map(|lease| lease.token.clone())
        });
        // Old by every clock, because the clock of the run may be behind.
        let is_old = |created: u64| self.now >= created + ORPHAN_MIN_AGE + SKEW.unsigned_abs();
        let blobs = self.blobs.iter();
        blobs
            .filter(|(build, created)| {
                is_old(**created)
                    && !named.contains(build)
                    && lease.as_ref() != Some(&token(**build))
            })
            .map(|(build, _)| *build)
            .collect()
    }
}

impl Sweeps {
    /// Returns whether the stored entry names a blob: in a state, or by the token of a lease, live
    /// or expired.
    fn names(stored: Option<&Entry>, build: u8) -> bool {
        stored.is_some_and(|entry| {
            let lease = entry.lease();
            let is_leased = lease.is_some_and(|lease| lease.token == token(build));
            is_leased || blobs_of(entry).contains(&build)
        })
    }

    fn begin(&self, state: &mut State) {
        state.due = state.orphans();
        state.first_read.clone_from(&state.stored);
        state.sweep = match &state.stored {
            None => Sweep::List,
            Some(entry) => Sweep::Entry {
                read: entry.clone(),
                tried: 0,
            },
        };
    }

    fn step(&self, state: &mut State, answer: Answer) {
        let now = clock(state.now, state.off_by);
        state.sweep = match std::mem::replace(&mut state.sweep, Sweep::Idle) {
            Sweep::Idle => Sweep::Idle,
            Sweep::Entry { read, tried } => {
                // The record that was read is a hint: changes that do not apply to it are skipped.
                let hint = |change: &Change| apply(&read, change, now, &Policy::default());
                let next = (tried..CHANGES.len()).find(|at| hint(&CHANGES[*at]).is_ok());
                match next {
                    None if self.mistake == Mistake::ListsNothing => self.finish(state),
                    None => Sweep::List,
                    Some(at) => {
                        let change = CHANGES[at].clone();
                        if change == Change::Retire && self.mistake == Mistake::RemovesBlobsFirst {
                            for blob in blobs_of(&read) {
                                state.blobs.remove(&blob);
                            }
                        }
                        Sweep::Changing {
                            read,
                            tried: at + 1,
                            update: Box::new(Update::new(change)),
                        }
                    }
                }
            }
            Sweep::Changing {
                read,
                tried,
                mut update,
            } => {
                let step = update.step(&mut state.stored, now, answer);
                state.landed(step.landed);
                match step.end {
                    None => Sweep::Changing {
                        read,
                        tried,
                        update,
                    },
                    Some(End::Retired(entry)) => Sweep::Remove {
                        blobs: blobs_of(&entry),
                    },
                    Some(_) => Sweep::Entry { read, tried },
                }
            }
            Sweep::Remove { mut blobs } => match blobs.pop_first() {
                None if self.mistake == Mistake::ListsNothing => self.finish(state),
                None => Sweep::List,
                Some(blob) => {
                    state.blobs.remove(&blob);
                    Sweep::Remove { blobs }
                }
            },
            Sweep::List => {
                let is_old =
                    |created: u64| now.since(clock(created, 0)).as_secs() >= ORPHAN_MIN_AGE;
                let old = state.blobs.iter().filter(|(_, created)| is_old(**created));
                Sweep::Name {
                    old: old.map(|(build, _)| *build).collect(),
                }
            }
            Sweep::Name { old } => {
                let stored = match self.mistake {
                    Mistake::BelievesTheFirstReading => state.first_read.as_ref(),
                    _ => state.stored.as_ref(),
                };
                let orphans = old.into_iter().filter(|build| !Self::names(stored, *build));
                Sweep::RemoveOrphans {
                    orphans: orphans.collect(),
                }
            }
            Sweep::RemoveOrphans { mut orphans } => match orphans.pop_first() {
                None => self.finish(state),
                Some(blob) => {
                    state.blobs.remove(&blob);
                    Sweep::RemoveOrphans { orphans }
                }
            },
        };
    }

    fn finish(&self, state: &mut State) -> Sweep {
        let still = state.orphans();
        state.left_lying |= state.due.iter().any(|blob| still.contains(blob));
        state.due = BTreeSet::new();
        state.first_read = None;
        Sweep::Idle
    }

    fn build(&self, state: &mut State, at: usize, answer: Answer) {
        let now = clock(state.now, 0);
        state.builders[at] = match std::mem::replace(&mut state.builders[at], Builder::Idle) {
            Builder::Taking(mut update) => {
                let step = update.step(&mut state.stored, now, answer);
                state.landed(step.landed);
                match step.end {
                    None => Builder::Taking(update),
                    Some(End::Done(entry))
                        if entry
                            .lease()
                            .is_some_and(|lease| lease.token == token(state.builds[at])) =>
                    {
                        Builder::Holding
                    }
                    Some(_) => Builder::Idle,
                }
            }
            Builder::Publishing(mut update) => {
                let step = update.step(&mut state.stored, now, answer);
                state.landed(step.landed);
                match step.end {
                    None => Builder::Publishing(update),
                    Some(_) => Builder::Idle,
                }
            }
            other => other,
        };
    }
}

impl Model for Sweeps {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |off_by: i64| State {
            now: 0,
            stored: None,
            blobs: BTreeMap::new(),
            builders: [Builder::Idle, Builder::Idle],
            builds: [0, 100],
            touching: None,
            sweep: Sweep::Idle,
            off_by,
            left: Left {
                builds: 2,
                sweeps: 1,
                crashes: self.bounds.choose(0, 1),
                faults: 0,
                touches: self.bounds.choose(0, 1),
                spans: [1, 1, 1],
            },
            first_read: None,
            due: BTreeSet::new(),
            left_lying: false,
        };
        let skews: &[i64] = self.bounds.choose(&[SKEW], &[-SKEW, SKEW]);
        skews.iter().copied().map(state).collect()
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
            if let Builder::Taking(update) | Builder::Publishing(update) = builder {
                answers(update, &|answer| Action::Step(at, answer));
            }
        }
        if let Some(touching) = &state.touching {
            answers(touching, &Action::StepTouch);
        }
        match &state.sweep {
            Sweep::Idle => {}
            Sweep::Changing { update, .. } => answers(update, &Action::StepSweep),
            _ => actions.push(Action::StepSweep(Answer::Comes)),
        }
        for (at, builder) in state.builders.iter().enumerate() {
            let is_requested = state
                .stored
                .as_ref()
                .is_some_and(|entry| entry.build_request().is_some());
            match builder {
                Builder::Idle if is_requested && left.builds > 0 && at == 0 => {
                    actions.push(Action::Begin(at));
                }
                Builder::Holding => actions.push(Action::Create(at)),
                Builder::Created => actions.push(Action::Publish(at)),
                _ => {}
            }
            if *builder != Builder::Idle && left.crashes > 0 {
                actions.push(Action::Crash(at));
            }
        }
        let reader = Capabilities {
            transcoded: Vec::new(),
            numbers: ReleaseNumbers::CURRENT,
            limits: Vec::new(),
        };
        let decision = decide(state.stored.as_ref(), &reader, clock(state.now, 0));
        if decision == Decision::Build && left.builds > 0 {
            actions.push(Action::RequestBuild);
        }
        if left.touches > 0 && matches!(decision, Decision::Use(_)) {
            actions.push(Action::Touch);
        }
        if state.sweep == Sweep::Idle && left.sweeps > 0 {
            actions.push(Action::Sweep);
        }
        if state.sweep != Sweep::Idle && left.crashes > 0 {
            actions.push(Action::CrashSweep);
        }
        let spans = (0..SPANS.len()).filter(|span| left.spans[*span] > 0);
        actions.extend(spans.map(Action::Pass));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Pass(span) => {
                state.left.spans[span] -= 1;
                state.now += SPANS[span];
            }
            Action::RequestBuild => {
                let id = token(200);
                let queue = Queue::Eager;
                let mut asking = Update::new(Change::RequestBuild { id, queue });
                let now = clock(state.now, 0);
                for _ in 0..2 {
                    let step = asking.step(&mut state.stored, now, Answer::Comes);
                    state.landed(step.landed);
                }
            }
            Action::Begin(at) => {
                state.left.builds -= 1;
                state.builds[at] += 1;
                let take = with_deadline(take(state.builds[at]), state.now);
                state.builders[at] = Builder::Taking(Update::new(take));
            }
            Action::Step(at, answer) => {
                state.left.faults -= u8::from(answer != Answer::Comes);
                self.build(&mut state, at, answer);
            }
            Action::Create(at) => {
                state.blobs.insert(state.builds[at], state.now);
                state.builders[at] = Builder::Created;
            }
            Action::Publish(at) => {
                let file = dif(0, 1);
                let now = clock(state.now, 0);
                let ready = Product::GOOD.ready(state.builds[at], file.clone(), now);
                let change = publish(state.builds[at], ready, vec![file]);
                state.builders[at] = Builder::Publishing(Update::new(change));
            }
            Action::Crash(at) => {
                state.left.crashes -= 1;
                state.builders[at] = Builder::Idle;
            }
            Action::Touch => {
                state.left.touches -= 1;
                state.touching = Some(Update::new(Change::Touch));
            }
            Action::StepTouch(answer) => {
                state.left.faults -= u8::from(answer != Answer::Comes);
                let mut touching = state.touching.take()?;
                let now = clock(state.now, 0);
                let step = touching.step(&mut state.stored, now, answer);
                state.landed(step.landed);
                state.touching = step.end.is_none().then_some(touching);
            }
            Action::Sweep => {
                state.left.sweeps -= 1;
                self.begin(&mut state);
            }
            Action::StepSweep(answer) => {
                state.left.faults -= u8::from(answer != Answer::Comes);
                self.step(&mut state, answer);
            }
            Action::CrashSweep => {
                state.left.crashes -= 1;
                state.sweep = Sweep::Idle;
                state.first_read = None;
                state.due = BTreeSet::new();
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "7. no record points at a blob that is gone",
                |_, state: &State| {
                    states(state.stored.as_ref())
                        .all(|ready| state.blobs.contains_key(&build_of(ready)))
                },
            ),
            Property::always(
                "7. no old orphan outlives the next prune run",
                |_, state: &State| !state.left_lying,
            ),
            Property::sometimes("an entry is retired and built again", |_, state: &State| {
                state.now > SPANS[2]
                    && state.left.sweeps == 0
                    && states(state.stored.as_ref())
                        .any(|ready| ready.derived_at > clock(SPANS[2], 0))
            }),
            Property::sometimes("an orphan exists", |_, state: &State| {
                !state.orphans().is_empty()
            }),
        ]
    }
}

/// Sets the deadline of a lease to the function's full timeout from now on.
fn with_deadline(take: Change, seconds: u64) -> Change {
    match take {
        Change::TakeLease { holder, token, .. } => Change::TakeLease {
            holder,
            token,
            deadline: clock(seconds + 900, 0),
        },
        other => other,
    }
}

#[test]
fn the_properties_of_prune_runs_hold_in_every_order() {
    let bounds = Bounds::asked_for();
    check(
        "prune",
        Sweeps {
            bounds,
            mistake: Mistake::None,
        },
    );
}

#[test]
fn each_seeded_mistake_in_prune_runs_is_detected() {
    for (mistake, property) in [
        (
            Mistake::BelievesTheFirstReading,
            "7. no record points at a blob that is gone",
        ),
        (
            Mistake::RemovesBlobsFirst,
            "7. no record points at a blob that is gone",
        ),
        (
            Mistake::ListsNothing,
            "7. no old orphan outlives the next prune run",
        ),
    ] {
        let bounds = Bounds::Small;
        assert_eq!(broken_by(Sweeps { bounds, mistake }), [property]);
    }
}
