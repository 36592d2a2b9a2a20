//! The model of outcomes: what the ends of builds leave in an entry, and what readers then request.
//!
//! There are always the same two files. The better one is good, or fails, or kills its parser, or
//! yields a blob that readers cannot read; then lesser files are uploaded besides, which end every
//! failure. Requests come one after the other, and do in each of their rounds what `select` says.
//! However often they come, the number of builds is bounded; each request that meets a blob that it
//! cannot read, and each upload, is a reason for a few more.

use stateright::{Model, Property};
use symdepot::cache::{
    Applied, Capabilities, Change, Criteria, Entry, PlaceRecord, PlaceState, PlaceToBuild, Policy,
    Preference, Queue, Ready, ReleaseNumbers, Seen, UnreadableBlobs, apply, select, violations,
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
const MAX_AT_ONCE: u8 = 5;

/// The builds for which a request that meets a blob that it cannot read is a reason: it reports the
/// blob at most twice.
const MAX_OF_A_REQUEST: u8 = 2;

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
    /// What a request knows, while it waits.
    request: Option<UnreadableBlobs>,
    /// The requests that met a blob that cannot be read, or may meet one.
    met: u8,
    /// The lesser files that were uploaded, and how many of them the build at work has seen.
    uploaded: u8,
    seen: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A request comes.
    Ask,
    /// The request selects, reads the blob, and requests builds.
    Read,
    /// A lesser file is uploaded.
    Upload,
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
    /// A request that knows that a blob cannot be read requests builds without saying so.
    ReportsNothingAgain,
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

fn uploaded(number: u8) -> DifRef {
    dif(2, number)
}

fn seen(better_failed: Option<Missing>, uploads: u8) -> Seen {
    let uploads = (1..=uploads).map(uploaded);
    Seen {
        considered: [better(), lesser()].into_iter().chain(uploads).collect(),
        better_failed,
        ..Seen::default()
    }
}

impl Nature {
    /// Returns whether a reader cannot read what is made.
    fn is_unreadable(self) -> bool {
        matches!(self, Self::Unreadable | Self::Lost)
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

    /// Does what a request does in a round.
    fn read(&mut self, mistake: Mistake) {
        let Some(mut unreadable) = self.request.take() else {
            return;
        };
        let reader = Capabilities {
            transcoded: Vec::new(),
            numbers: ReleaseNumbers::CURRENT,
            limits: Vec::new(),
        };
        let stored = self.stored.clone();
        let place = PlaceState {
            kind: self.entry().kind(),
            record: match &stored {
                Some(entry) => PlaceRecord::Entry(entry),
                None => PlaceRecord::Absent,
            },
            is_uploads: true,
            may_have_files: true,
            circuit: None,
        };
        let criteria = Criteria {
            capabilities: &reader,
            preference: Preference::BestDif,
            unreadable: &unreadable.clone(),
            may_wait: true,
            now: self.clock(),
        };
        let selection = select(&[place], &criteria);
        let unrequested = |places: &[PlaceToBuild<'_>]| -> Vec<Option<String>> {
            let places = places.iter().filter(|place| !place.is_requested());
            places
                .map(|place| place.suspect.map(str::to_owned))
                .collect()
        };
        for _ in unrequested(&selection.to_improve) {
            self.request(Queue::Refresh);
        }
        for suspect in unrequested(&selection.waits_for) {
            match suspect {
                Some(_) if mistake == Mistake::ReportsNothingAgain => self.request(Queue::Eager),
                Some(blob) => {
                    self.report(&blob);
                    unreadable.note_reported_again(vec![blob]);
                }
                None => self.request(Queue::Eager),
            }
        }
        let best = selection.best.filter(|_| selection.waits_for.is_empty());
        let waits = match best {
            Some(best) if self.nature.is_unreadable() => {
                self.report(&best.ready.blob.path);
                unreadable.add(best.ready.blob.path.clone());
                true
            }
            _ => !selection.waits_for.is_empty(),
        };
        self.request = waits.then_some(unreadable);
    }

    fn request(&mut self, queue: Queue) {
        let id = token(100 + self.begun);
        self.apply(&Change::RequestBuild { id, queue });
    }

    fn report(&mut self, blob: &str) {
        let (blob, id) = (blob.to_owned(), token(100 + self.begun));
        self.apply(&Change::Suspect { blob, id });
    }

    /// Files a lesser file.
    fn upload(&mut self) {
        self.uploaded += 1;
        let (dif, mark) = (uploaded(self.uploaded), token(220 + self.uploaded));
        self.apply(&Change::Invalidate { dif, mark });
    }

    /// Returns the state that this build makes of a file.
    fn made(&self, has_debug_info: bool, from: DifRef) -> Box<Ready> {
        let product = Product {
            version: ReleaseNumbers::CURRENT.symcache,
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
        state.seen = state.uploaded;
        state.gave_up_twice |= had_given_up && !state.at_work && gave_up(&state.entry());
        let Some(suspect) = state.entry().suspect().cloned().filter(|_| state.at_work) else {
            return;
        };
        let (token, blob, id) = (token(state.begun), suspect.blob, token(200));
        let is_replaced = match state.nature {
            Nature::Lost => state.apply(&Change::ConfirmLoss { token, blob, id }),
            _ => state.apply(&Change::Dispute { token, blob, id }),
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
        let seen = seen(None, state.seen);
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
                // A ready state that is what would be made stays, unless it is suspect.
                let entry = state.entry();
                let is_made = |ready: &&Ready| {
                    ready.version == ReleaseNumbers::CURRENT.symcache
                        && ready.made_from == [better()]
                        && entry.suspect().is_none()
                };
                let ready = entry.ready().filter(is_made).cloned();
                let ready = ready.map_or_else(|| state.made(true, better()), Box::new);
                state.apply(&publish(ready, seen(None, state.seen)));
            }
            Nature::LesserSucceeds => {
                let seen = seen(Some(malformed()), state.seen);
                state.apply(&publish(state.made(false, lesser()), seen));
                if self.mistake == Mistake::HidesTheFailure {
                    state.forget("missing");
                }
            }
            Nature::NoneSucceeds => self.fail(state, malformed()),
            Nature::KillsParser => {
                state.apply(&Change::ReleaseKilled { token });
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
                version: ReleaseNumbers::CURRENT.symcache - 1,
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
                // Only attempts that run out take longer.
                short_left: if nature.is_unreadable() { 2 } else { 6 },
                gave_up_twice: false,
                request: None,
                met: 0,
                uploaded: 0,
                seen: 0,
            };
            state.apply(&take(99));
            state.apply(&Change::Publish {
                token: token(99),
                ready: Box::new(product.ready(99, better(), clock(0, 0))),
                seen: seen(None, 0),
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
        let is_unreadable = state.nature.is_unreadable();
        match &state.request {
            Some(_) => actions.push(Action::Read),
            None if !is_unreadable || state.met < self.bounds.choose(2, 3) => {
                actions.push(Action::Ask);
            }
            None => {}
        }
        if is_unreadable && state.uploaded < self.bounds.choose(1, 2) {
            actions.push(Action::Upload);
        }
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
            Action::Ask => {
                state.request = Some(UnreadableBlobs::default());
                state.met += u8::from(state.nature.is_unreadable());
            }
            Action::Read => state.read(self.mistake),
            Action::Upload => state.upload(),
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
                let more = MAX_OF_A_REQUEST * state.met + state.uploaded;
                state.begun_in_this_hour <= MAX_AT_ONCE + more
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
        Mistake::ReportsNothingAgain,
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
