//! The model of outcomes: what the ends of builds leave in an entry, and what readers then request.
//!
//! Nothing changes outside: there are always the same two files. The better one is good, or fails,
//! or kills its parser, or yields a blob that readers cannot read. Readers request builds whenever
//! `decide` says so. However often they do, the number of builds is bounded.

use stateright::{Model, Property};
use symdepot::cache::{
    Applied, BuildNumbers, Capabilities, Change, Decision, Entry, Policy, Queue, Ready, Seen,
    apply, decide, violations,
};
use symdepot::domain::{Cause, DifRef, Missing, Timestamp};

use super::record::{Product, clock, dif, states, take, token, unknown};
use super::{Bounds, broken_by, check};

/// The short and the long passage of time, in seconds: beyond a back-off and a lease, and beyond
/// the limit on replacements of a blob.
const SHORT: u64 = 70;
const LONG: u64 = 3600;

/// The most builds that begin without a limit of time between them: those that are given up, and
/// one more for each state that a build replaces.
const MOST_AT_ONCE: u8 = 5;

/// What becomes of the better file when a cache is derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Nature {
    /// It succeeds.
    Good,
    /// It fails to convert, and the lesser file succeeds.
    LesserSucceeds,
    /// Both files fail.
    NoneSucceeds,
    /// The parser is killed each time.
    KillsParser,
    /// The function is killed each time.
    KillsFunction,
    /// It succeeds, and no reader can read the blob, which is intact.
    Unreadable,
    /// It succeeds, and its blob is lost each time.
    Lost,
}

const NATURES: [Nature; 7] = [
    Nature::Good,
    Nature::LesserSucceeds,
    Nature::NoneSucceeds,
    Nature::KillsParser,
    Nature::KillsFunction,
    Nature::Unreadable,
    Nature::Lost,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nature: Nature,
    stored: Option<Entry>,
    /// The build that holds the lease, if one is at work.
    at_work: bool,
    /// The builds that began, in all and since the last long passage of time.
    begun: u8,
    begun_in_this_hour: u8,
    long_left: u8,
    short_left: u8,
    gave_up_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A reader decides, and requests a build if it should.
    Read,
    Begin,
    End,
    Short,
    Long,
}

/// A mistake that is seeded into the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The success of a worse file hides the failure of the better one.
    HidesTheFailure,
    /// Attempts are not counted.
    CountsNoAttempts,
    /// The time of a replacement is not recorded.
    ReplacesWithoutLimit,
}

struct Outcomes {
    bounds: Bounds,
    mistake: Mistake,
}

fn better() -> DifRef {
    dif(0, 1)
}

fn lesser() -> DifRef {
    dif(1, 1)
}

fn seen(better_failed: Option<Missing>) -> Seen {
    Seen {
        considered: vec![better(), lesser()],
        better_failed,
        ..Seen::default()
    }
}

impl State {
    fn clock(&self) -> Timestamp {
        clock(self.now, 0)
    }

    fn entry(&self) -> Entry {
        let stored = self.stored.clone();
        stored.unwrap_or_else(|| unknown(self.clock()))
    }

    /// Applies a change. Returns whether it applied.
    fn apply(&mut self, change: &Change) -> bool {
        match apply(&self.entry(), change, self.clock(), &Policy::default()) {
            Ok(Applied::Changed(next)) => {
                self.stored = Some(next);
                true
            }
            Ok(Applied::Retired) | Err(_) => false,
        }
    }

    /// Does what a reader does with the entry.
    fn read(&mut self) {
        let reader = Capabilities {
            transcoded: Vec::new(),
            numbers: BuildNumbers::CURRENT,
            limits: Vec::new(),
        };
        let entry = self.entry();
        let id = token(100 + self.begun);
        let decision = decide(self.stored.as_ref(), &reader, self.clock());
        match decision {
            Decision::Use(ready) | Decision::UseAndUpgrade(ready) | Decision::UseOlder(ready)
                if matches!(self.nature, Nature::Unreadable | Nature::Lost) =>
            {
                // As in `select`: if the rebuild of the unreadable blob has failed, that is the
                // answer.
                let now = self.clock();
                let failed = entry.missing().filter(|failed| now < failed.retry_at);
                if failed.is_none() {
                    let blob = ready.blob.path.clone();
                    self.apply(&Change::Suspect { blob, id });
                }
            }
            Decision::UseAndUpgrade(_) | Decision::UseOlder(_) => {
                let queue = Queue::Refresh;
                self.apply(&Change::RequestBuild { id, queue });
            }
            Decision::Build => {
                let queue = Queue::Eager;
                self.apply(&Change::RequestBuild { id, queue });
            }
            Decision::Use(_) | Decision::Missing(_) | Decision::Wait { .. } => {}
        }
    }

    /// Returns the state that this build makes of a file.
    fn made(&self, has_debug_info: bool, from: DifRef) -> Box<Ready> {
        let product = Product {
            version: BuildNumbers::CURRENT.symcache,
            has_debug_info,
            ..Product::GOOD
        };
        Box::new(product.ready(self.begun, from, self.clock()))
    }

    /// Removes a field of the stored entry.
    fn forget(&mut self, field: &str) {
        let mut json = serde_json::to_value(self.entry()).unwrap();
        json.as_object_mut().unwrap().remove(field);
        self.stored = Some(serde_json::from_value(json).unwrap());
    }
}

impl Outcomes {
    /// Takes the lease, and does what a builder does before it derives.
    fn begin(&self, state: &mut State) {
        let build = state.begun + 1;
        let gave_up = |entry: &Entry| {
            let missing = entry.missing();
            missing.is_some_and(|missing| missing.missing.detail.starts_with("gave up"))
        };
        let had_given_up = gave_up(&state.entry());
        if !state.apply(&take(build)) {
            return;
        }
        state.begun = build;
        state.at_work = state.entry().lease().is_some();
        state.begun_in_this_hour += u8::from(state.at_work);
        state.gave_up_twice |= had_given_up && !state.at_work && gave_up(&state.entry());
        let Some(suspect) = state.entry().suspect().cloned().filter(|_| state.at_work) else {
            return;
        };
        let (blob, id) = (suspect.blob, token(200));
        let is_replaced = match state.nature {
            Nature::Lost => state.apply(&Change::ConfirmLoss { blob, id }),
            _ => state.apply(&Change::Dispute { blob, id }),
        };
        if self.mistake == Mistake::ReplacesWithoutLimit {
            state.forget("lost_at");
        } else if !is_replaced {
            let detail = "it was replaced less than an hour ago";
            let missing = Missing::new(Cause::DownloadFailed, detail);
            self.fail(state, missing);
        }
    }

    fn fail(&self, state: &mut State, missing: Missing) {
        let token = token(state.begun);
        let seen = seen(None);
        state.apply(&Change::Fail {
            token,
            missing,
            seen,
        });
        state.at_work = false;
    }

    fn end(&self, state: &mut State) {
        let token = token(state.begun);
        let malformed = || Missing::malformed("it cannot be read");
        let publish = |ready, seen| Change::Publish {
            token: token.clone(),
            ready,
            seen,
        };
        match state.nature {
            Nature::Good | Nature::Unreadable | Nature::Lost => {
                state.apply(&publish(state.made(true, better()), seen(None)));
            }
            Nature::LesserSucceeds => {
                let seen = seen(Some(malformed()));
                state.apply(&publish(state.made(false, lesser()), seen));
                if self.mistake == Mistake::HidesTheFailure {
                    state.forget("missing");
                }
            }
            Nature::NoneSucceeds => self.fail(state, malformed()),
            Nature::KillsParser => {
                state.apply(&Change::Abandon { token });
            }
            // Its lease expires.
            Nature::KillsFunction => {}
        }
        if self.mistake == Mistake::CountsNoAttempts && state.entry().lease().is_none() {
            state.forget("attempts");
        }
        state.at_work = false;
    }
}

impl Model for Outcomes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let older = |nature| {
            let product = Product {
                version: BuildNumbers::CURRENT.symcache - 1,
                ..Product::GOOD
            };
            let mut state = State {
                now: 0,
                nature,
                stored: None,
                at_work: false,
                begun: 0,
                begun_in_this_hour: 0,
                long_left: self.bounds.choose(1, 2),
                short_left: 6,
                gave_up_twice: false,
            };
            state.apply(&take(99));
            state.apply(&Change::Publish {
                token: token(99),
                ready: Box::new(product.ready(99, better(), clock(0, 0))),
                seen: seen(None),
            });
            state
        };
        let new = NATURES.map(|nature| State {
            stored: None,
            ..older(nature)
        });
        new.into_iter().chain(NATURES.map(older)).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Read);
        if state.at_work {
            actions.push(Action::End);
        } else if state.entry().build_request().is_some() && state.begun < 90 {
            actions.push(Action::Begin);
        }
        // Builds are short.
        if state.short_left > 0 && !state.at_work {
            actions.push(Action::Short);
        }
        if state.long_left > 0 && !state.at_work {
            actions.push(Action::Long);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Read => state.read(),
            Action::Begin => self.begin(&mut state),
            Action::End => self.end(&mut state),
            Action::Short => {
                state.short_left -= 1;
                state.now += SHORT;
            }
            Action::Long => {
                state.long_left -= 1;
                state.now += LONG;
                state.begun_in_this_hour = 0;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("8. the number of builds is bounded", |_, state: &State| {
                state.begun_in_this_hour <= MOST_AT_ONCE
            }),
            Property::always("3. the stored entry is valid", |_, state: &State| {
                let stored = state.stored.as_ref();
                stored.is_none_or(|entry| violations(entry).is_empty())
            }),
            Property::always(
                "4. a state stays, unless its blob is lost",
                |_, state: &State| {
                    let began_with_a_state = state.stored.is_some() && state.now == 0;
                    state.nature == Nature::Lost
                        || !began_with_a_state
                        || state.begun > 0
                        || states(state.stored.as_ref()).next().is_some()
                        || state.entry().build_request().is_some()
                },
            ),
            Property::always("an entry is given up once", |_, state: &State| {
                !state.gave_up_twice
            }),
            Property::sometimes("a lesser file is used", |_, state: &State| {
                state
                    .entry()
                    .ready()
                    .is_some_and(|ready| ready.made_from[0] == lesser())
            }),
            Property::sometimes("attempts run out", |_, state: &State| {
                let missing = state.entry().missing().cloned();
                missing.is_some_and(|missing| missing.missing.cause == Cause::Crashed)
            }),
            Property::sometimes("a blob is disputed", |_, state: &State| {
                let suspect = state.entry().suspect().cloned();
                suspect.is_some_and(|suspect| suspect.disputed.is_some())
            }),
            Property::sometimes("a lost blob is replaced", |_, state: &State| {
                state.nature == Nature::Lost && state.begun > 1
            }),
        ]
    }
}

#[test]
fn the_properties_of_outcomes_hold_in_every_order() {
    let bounds = Bounds::asked_for();
    let mistake = Mistake::None;
    check("outcomes", Outcomes { bounds, mistake });
}

#[test]
fn each_seeded_mistake_in_outcomes_is_detected() {
    for mistake in [
        Mistake::HidesTheFailure,
        Mistake::CountsNoAttempts,
        Mistake::ReplacesWithoutLimit,
    ] {
        let bounds = Bounds::Small;
        let broken = broken_by(Outcomes { bounds, mistake });
        assert_eq!(
            broken,
            ["8. the number of builds is bounded"],
            "{mistake:?}"
        );
    }
}
