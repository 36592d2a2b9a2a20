//! The model of absence: presences, generations, the memory of an instance, and the prune run. An
//! instance may conclude that a module has no uploaded file.
//!
//! Two keys contain files. Either both are of one module, or the second is of another module of the
//! same scope. In the second case only the generation that its events write matters. The steps of
//! an event are those of `flows/uploads` and `flows/presence.rs`. The rules by which an instance
//! trusts its memory are those of `flows/memory.rs` and `flows/lookup/read_through.rs`. Each read
//! and each write of a presence or a generation is a separate step. A change of the entry is one
//! step, because the model of leases covers the loop of reads and writes behind it. A write whose
//! response is lost is a step followed by a crash: the event is delivered again, and every step is
//! repeated.
//!
//! The model assumes that the next change of a key comes after the event of the last one is applied
//! (the model of uploads has them in any order), and that a round of reads takes less than
//! [`SETTLED_AFTER`]. A builder may be frozen for that long between drawing a generation and
//! writing it: [`Frozen`].

use stateright::{Model, Property};
use symdepot::cache::{
    Applied, Capabilities, Change, Decision, Entry, Policy, Queue, ReleaseNumbers, Token, apply,
    decide,
};
use symdepot::domain::DifRef;

use super::record::{Product, clock, dif, fail, publish, take, token, unknown};
use super::{Bounds, broken_by, check};

const KEYS: [usize; 2] = [0, 1];

/// The age in seconds from which a generation validates items that were read at the same time, as
/// in `flows/memory.rs`.
const SETTLED_AFTER: u64 = 300;

/// The spans of time that may pass, in seconds: after the first, leases and build requests have
/// expired and generations are settled; after the second, an entry is unused for too long.
const SPANS: [u64; 2] = [700, 8 * 24 * 3600];

/// The revision of the stored presence, and that of an earlier one.
const CURRENT: u8 = 1;
const STALE: u8 = 0;

/// The time at which the model begins, in seconds: generations from before are settled.
const BEGIN: u64 = 1000;

/// The state of the last change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Standing {
    /// There is no file, and the event of its removal, if any, is applied.
    Absent,
    /// There is a file, and its event is not applied yet.
    Uploading,
    /// There is a file, and its event is applied.
    Applied,
    /// The file is removed, and the event is not applied yet.
    Removing,
}

/// A key of the bucket and its upload item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The etag of the last bytes; 0 if there never were any.
    etag: u8,
    standing: Standing,
}

impl Key {
    fn has_file(self) -> bool {
        matches!(self.standing, Standing::Uploading | Standing::Applied)
    }

    /// Returns whether the removal of these bytes is applied.
    fn is_gone(self, etag: u8) -> bool {
        etag < self.etag || (etag == self.etag && self.standing == Standing::Absent)
    }
}

/// The `generation` item of the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Generation {
    change: u8,
    began_at: u64,
}

/// A generation as an instance read it; `None` if there was none.
type Seen = Option<u8>;

/// A phase of an event, in the order of [`Absences::order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The `dif` item is written, or removed.
    Dif,
    /// The presence is written, or removed.
    Presence,
    /// The entry is invalidated, or revoked.
    Mark,
    Generation,
    /// The event is applied.
    Finish,
}

/// The next step of a builder or of the prune run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum At {
    /// At the beginning of a phase.
    Begin,
    /// `presence::write_presence` has read the presence.
    WritePresence { read: Option<u8> },
    /// `presence::remove_presence_if_empty` has read the presence.
    Query { presence: u8 },
    /// `presence::remove_presence_if_empty` has found no `dif` item.
    RemovePresence { presence: u8 },
    /// `presence::write_generation` has read the generation, and drawn the next one.
    WriteGeneration { read: Seen, began_at: u64 },
}

/// A builder that applies an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Worker {
    key: usize,
    is_upload: bool,
    /// The number of its phase.
    phase: usize,
    at: At,
}

/// A builder that derives a cache from the files that it finds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Building {
    Idle,
    Find {
        build: u8,
    },
    End {
        build: u8,
        found: Vec<DifRef>,
        best: Option<DifRef>,
    },
}

/// The next step of the prune run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sweep {
    Idle,
    /// Has found a presence, and checks whether the module has files.
    Forgets(At),
    /// Has found a `dif` item, and checks whether the module has a presence.
    Notes(At),
}

/// An item in the memory of an instance, and the generation that validates it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Known<T> {
    value: T,
    validated_by: Option<Seen>,
}

/// A warm instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Instance {
    /// The generation that the instance read within the last two seconds.
    generation: Option<Seen>,
    presence: Option<Known<bool>>,
    entry: Option<Known<Option<Entry>>>,
    round: Option<Round>,
}

/// A lookup of the module in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Round {
    /// The keys when the lookup began; `None` if it relies on a generation that was read before.
    keys: Option<[Key; 2]>,
    /// The generation that was read before the items.
    before: Option<Seen>,
    reads: Reads,
    generation: Option<Option<Generation>>,
    presence: Option<bool>,
    entry: Option<Option<Entry>>,
    is_checked: bool,
}

/// The items that are still to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Reads {
    generation: bool,
    presence: bool,
    entry: bool,
}

/// The conclusion of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Conclusion {
    Uses(DifRef),
    Misses,
    Requests,
}

/// Events that happened at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Happened {
    wrong_answer: bool,
    /// A miss was concluded that a generation validates.
    miss: bool,
    /// A cached miss was used because the generation was unchanged.
    miss_over_generation: bool,
    /// After a miss, the instance learned of an upload.
    miss_ended: bool,
    retired: bool,
    requested_after_retirement: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    keys: [Key; 2],
    /// The etags of the `dif` items.
    difs: [Option<u8>; 2],
    /// The revision of the presence, which is [`CURRENT`]. All that matters about other revisions
    /// is that they are stale.
    presence: Option<u8>,
    generation: Option<Generation>,
    last_generation: u8,
    stored: Option<Entry>,
    workers: [Option<Worker>; 2],
    building: Building,
    sweep: Sweep,
    instance: Instance,
    left: Left,
    happened: Happened,
}

/// The number of steps and faults that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    /// The number of changes to each key.
    changes: [u8; 2],
    /// Events that are delivered to both builders at the same time.
    copies: u8,
    crashes: u8,
    builds: u8,
    sweeps: u8,
    looks: u8,
    spans: [u8; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A file is written to a key without one, or removed.
    Change(usize),
    Deliver(usize),
    Step(usize),
    Crash(usize),
    Build,
    StepBuild,
    CrashBuild,
    Retire,
    SweepPresence,
    SweepDif,
    StepSweep,
    CrashSweep,
    /// A reader looks the module up: either the generation that it read last has expired, or it is
    /// at most two seconds old.
    Look {
        within_moment: bool,
    },
    ReadGeneration,
    ReadPresence,
    ReadEntry,
    Pass(usize),
}

/// A mistake that is seeded into the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The generation is written before the presence and the marks.
    AnnouncesFirst,
    /// Items that were read at the same time as a generation are trusted while that generation is
    /// unchanged, even if it is recent.
    TrustsWhatIsBeside,
    /// The presence is written before the `dif` item, and not after it.
    NotesBeforeFiling,
    /// The presence is removed even if it was written since it was read.
    ForgetsUnfenced,
    /// An existing presence is not written again.
    SparesPresence,
    /// The presence is removed together with the retired entry.
    RetiresPresence,
    /// An upload is applied before its generation is written.
    AppliesBeforeGeneration,
    /// A file without usable objects replaces another one: its event revokes the states made from
    /// the old file, and writes no generation.
    RevokesWithoutGeneration,
}

/// What happens to a builder that is frozen for longer than [`SETTLED_AFTER`] between drawing its
/// generation and writing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frozen {
    /// It never writes. No test assumes this.
    Never,
    /// It writes, and another builder that loses the race accepts its generation as one that began
    /// after that builder's own marks.
    Accepted,
    /// It writes, and another builder that loses the race writes again, because that generation
    /// began before its own read.
    Replaced,
}

struct Absences {
    mistake: Mistake,
    frozen: Frozen,
    /// Whether the second key is of another module.
    is_elsewhere: bool,
    /// The initial states: whether the module has a file in the first key.
    begins: &'static [bool],
    left: Left,
}

fn reader() -> Capabilities {
    Capabilities {
        transcoded: Vec::new(),
        numbers: ReleaseNumbers::CURRENT,
        limits: Vec::new(),
    }
}

/// Returns the conclusion of a reader from what it knows of the module.
fn conclude(has_presence: bool, entry: Option<&Entry>, now: u64) -> Conclusion {
    match decide(entry, &reader(), clock(now, 0)) {
        Decision::Use(ready) | Decision::UseAndUpgrade(ready) | Decision::UseOlder(ready) => {
            Conclusion::Uses(ready.made_from[0].clone())
        }
        Decision::Missing(_) => Conclusion::Misses,
        Decision::Wait { .. } | Decision::Build if !has_presence => Conclusion::Misses,
        Decision::Wait { .. } | Decision::Build => Conclusion::Requests,
    }
}

/// Returns whether an entry has neither a build request nor a lease.
fn is_idle(entry: &Entry) -> bool {
    entry.build_request().is_none() && entry.lease().is_none()
}

/// Returns whether the removal of a file is applied.
fn is_gone(keys: &[Key; 2], file: &DifRef) -> bool {
    KEYS.into_iter().any(|key| {
        let etags = 1..=keys[key].etag;
        let mut gone = etags.filter(|etag| keys[key].is_gone(*etag));
        gone.any(|etag| dif_of(key, etag) == *file)
    })
}

/// Returns the mark of an event. All that matters about it is whether a lease has seen it.
fn mark_of(key: usize, etag: u8, is_upload: bool) -> Token {
    token(100 + 16 * u8::try_from(key).unwrap() + 2 * etag + u8::from(is_upload))
}

fn dif_of(key: usize, etag: u8) -> DifRef {
    dif(u8::try_from(key).unwrap(), etag)
}

impl State {
    /// Changes the entry if the change applies to the stored one.
    fn change(&mut self, change: &Change) -> bool {
        let now = clock(self.now, 0);
        let entry = match (&self.stored, change) {
            (Some(entry), _) => entry.clone(),
            (
                None,
                Change::RequestBuild { .. } | Change::TakeLease { .. } | Change::Invalidate { .. },
            ) => unknown(now),
            (None, _) => return false,
        };
        match apply(&entry, change, now, &Policy::default()) {
            Ok(Applied::Changed(next)) => self.stored = Some(next),
            Ok(Applied::Retired) => self.stored = None,
            Err(_) => return false,
        }
        true
    }

    /// Writes or removes the presence: earlier reads of it become stale.
    fn replace_presence(&mut self, presence: Option<u8>) {
        self.presence = presence;
        let workers = self.workers.iter_mut().flatten();
        let mut reads: Vec<&mut At> = workers.map(|worker| &mut worker.at).collect();
        if let Sweep::Forgets(at) | Sweep::Notes(at) = &mut self.sweep {
            reads.push(at);
        }
        for at in reads {
            match at {
                At::WritePresence { read: Some(read) } => *read = STALE,
                At::Query { presence } | At::RemovePresence { presence } => *presence = STALE,
                At::WritePresence { read: None } | At::Begin | At::WriteGeneration { .. } => {}
            }
        }
    }

    fn seen(&self) -> Seen {
        self.generation.map(|generation| generation.change)
    }

    fn is_at_work_on(&self, key: usize) -> bool {
        let mut workers = self.workers.iter().flatten();
        workers.any(|worker| worker.key == key)
    }

    fn free(&self) -> Option<usize> {
        self.workers.iter().position(Option::is_none)
    }
}

impl Absences {
    /// Returns the keys of the module.
    fn of_module(&self) -> &'static [usize] {
        if self.is_elsewhere { &[0] } else { &KEYS }
    }

    /// Returns whether the module has a file whose upload is applied.
    fn has_applied_file(&self, keys: &[Key; 2]) -> bool {
        let mut of_module = self.of_module().iter();
        of_module.any(|key| keys[*key].standing == Standing::Applied)
    }

    /// Returns the phases of an event.
    fn order(&self, key: usize, is_upload: bool) -> &'static [Phase] {
        use Phase::{Dif, Finish, Generation, Mark, Presence};
        match (is_upload, self.mistake) {
            _ if self.is_elsewhere && key == 1 => &[Generation, Finish],
            (_, Mistake::AnnouncesFirst) => &[Dif, Generation, Presence, Mark, Finish],
            (true, Mistake::NotesBeforeFiling) => &[Presence, Dif, Mark, Generation, Finish],
            (true, Mistake::AppliesBeforeGeneration) => &[Dif, Presence, Mark, Finish, Generation],
            (false, Mistake::RevokesWithoutGeneration) => &[Dif, Presence, Mark, Finish],
            _ => &[Dif, Presence, Mark, Generation, Finish],
        }
    }

    /// Performs one step of `presence::write_presence`; returns `None` when it is complete.
    fn write_presence(&self, state: &mut State, at: At, is_healing: bool) -> Option<At> {
        let At::WritePresence { read } = at else {
            let spares = is_healing || self.mistake == Mistake::SparesPresence;
            let read = state.presence;
            return (read.is_none() || !spares).then_some(At::WritePresence { read });
        };
        if state.presence == read {
            state.replace_presence(Some(CURRENT));
            return None;
        }
        // A presence of another builder is sufficient.
        state
            .presence
            .is_none()
            .then_some(At::WritePresence { read: None })
    }

    /// Performs one step of `presence::remove_presence_if_empty`; returns `None` when it is
    /// complete.
    fn remove_presence_if_empty(&self, state: &mut State, at: At) -> Option<At> {
        match at {
            At::Query { presence } => {
                let has_files = state.difs.iter().any(Option::is_some);
                (!has_files).then_some(At::RemovePresence { presence })
            }
            At::RemovePresence { presence } => {
                let is_unfenced = self.mistake == Mistake::ForgetsUnfenced;
                if state.presence == Some(presence) || is_unfenced {
                    state.replace_presence(None);
                }
                None
            }
            _ => state.presence.map(|presence| At::Query { presence }),
        }
    }

    /// Performs one step of `presence::write_generation`; returns `None` when it is complete.
    fn write_generation(&self, state: &mut State, at: At) -> Option<At> {
        let At::WriteGeneration { read, began_at } = at else {
            let (read, began_at) = (state.seen(), state.now);
            return Some(At::WriteGeneration { read, began_at });
        };
        if state.seen() == read {
            state.last_generation += 1;
            let change = state.last_generation;
            state.generation = Some(Generation { change, began_at });
            return None;
        }
        // The generation of the winner is sufficient.
        let other_began_at = state.generation.map_or(0, |other| other.began_at);
        let is_late = self.frozen == Frozen::Replaced && other_began_at < began_at;
        is_late.then(|| At::WriteGeneration {
            read: state.seen(),
            began_at: state.now,
        })
    }

    /// Performs one step of an event; returns `None` when it is complete.
    fn apply(&self, state: &mut State, worker: Worker) -> Option<Worker> {
        let Worker {
            key,
            is_upload,
            phase,
            at,
        } = worker;
        let order = self.order(key, is_upload);
        let etag = state.keys[key].etag;
        let mark = mark_of(key, etag, is_upload);
        let next = match (order[phase], is_upload) {
            (Phase::Dif, _) => {
                state.difs[key] = is_upload.then_some(etag);
                None
            }
            (Phase::Presence, true) => self.write_presence(state, at, false),
            (Phase::Presence, false) => self.remove_presence_if_empty(state, at),
            (Phase::Mark, true) => {
                let dif = dif_of(key, etag);
                state.change(&Change::Invalidate { dif, mark });
                None
            }
            (Phase::Mark, false) => {
                let dif = dif_of(key, etag);
                state.change(&Change::Revoke { dif, mark });
                None
            }
            (Phase::Generation, _) => self.write_generation(state, at),
            (Phase::Finish, _) => {
                state.keys[key].standing = if is_upload {
                    Standing::Applied
                } else {
                    Standing::Absent
                };
                None
            }
        };
        match next {
            Some(at) => Some(Worker { at, ..worker }),
            None => (phase + 1 < order.len()).then_some(Worker {
                phase: phase + 1,
                at: At::Begin,
                ..worker
            }),
        }
    }

    /// Performs one step of a build.
    fn build(&self, state: &mut State) {
        state.building = match std::mem::replace(&mut state.building, Building::Idle) {
            Building::Idle => Building::Idle,
            Building::Find { build } => {
                let filed = |key: usize| Some((key, state.difs[key]?));
                let found: Vec<(usize, u8)> = KEYS.into_iter().filter_map(filed).collect();
                let is_there = |(key, etag): &&(usize, u8)| {
                    state.keys[*key].has_file() && state.keys[*key].etag == *etag
                };
                let best = found.iter().find(is_there);
                Building::End {
                    build,
                    best: best.map(|(key, etag)| dif_of(*key, *etag)),
                    found: found
                        .into_iter()
                        .map(|(key, etag)| dif_of(key, etag))
                        .collect(),
                }
            }
            Building::End { build, found, best } => {
                let change = match best {
                    Some(best) => {
                        let ready = Product::GOOD.ready(build, best, clock(0, 0));
                        publish(build, ready, found)
                    }
                    None if found.is_empty() => fail(build, found),
                    // The event that removes the `dif` item has not been applied yet.
                    None => Change::ReleaseInterrupted {
                        token: token(build),
                    },
                };
                state.change(&change);
                Building::Idle
            }
        };
    }

    /// Begins a round of reads.
    fn look(&self, state: &mut State, within_moment: bool) {
        let instance = &mut state.instance;
        if !within_moment {
            instance.generation = None;
        }
        // Items that no generation validates are remembered for two seconds only. Items that
        // another generation validates are not used.
        let known = instance.generation;
        let is_believed = |validated_by: Option<Seen>| match known {
            Some(seen) => validated_by == Some(seen),
            None => validated_by.is_some(),
        };
        instance
            .presence
            .take_if(|presence| !is_believed(presence.validated_by));
        instance
            .entry
            .take_if(|entry| !is_believed(entry.validated_by));
        instance.round = Some(Round {
            keys: known.is_none().then_some(state.keys),
            before: known,
            reads: Reads {
                generation: known.is_none(),
                presence: instance.presence.is_none(),
                entry: instance.entry.is_none(),
            },
            generation: None,
            presence: None,
            entry: None,
            is_checked: false,
        });
        self.go_on(state);
    }

    /// Ends a round of reads if everything is read: caches the items and concludes.
    fn go_on(&self, state: &mut State) {
        let instance = &mut state.instance;
        let Some(round) = &mut instance.round else {
            return;
        };
        if round.reads.generation || round.reads.presence || round.reads.entry {
            return;
        }
        let beside = round.generation.take();
        let validated_by = match (round.before, beside) {
            (Some(seen), _) => Some(seen),
            (None, Some(None)) => Some(None),
            (None, Some(Some(generation))) => {
                let is_settled = state.now.saturating_sub(generation.began_at) >= SETTLED_AFTER;
                let is_trusted = is_settled || self.mistake == Mistake::TrustsWhatIsBeside;
                is_trusted.then_some(Some(generation.change))
            }
            (None, None) => None,
        };
        if let Some(value) = round.presence {
            instance.presence = Some(Known {
                value,
                validated_by,
            });
        }
        if let Some(value) = &round.entry {
            let is_idle = value.as_ref().is_none_or(is_idle);
            let value = value.clone();
            let validated_by = validated_by.filter(|_| is_idle);
            instance.entry = Some(Known {
                value,
                validated_by,
            });
        }
        if let Some(generation) = beside {
            let seen = generation.map(|generation| generation.change);
            instance.generation = Some(seen);
            // A cached item is valid if its generation is unchanged; otherwise it is read again
            // after the new generation.
            let is_over = |validated_by: Option<Seen>| validated_by != Some(seen);
            let presence = instance.presence.as_ref();
            let entry = instance.entry.as_ref();
            round.reads = Reads {
                generation: false,
                presence: round.presence.is_none()
                    && presence.is_none_or(|known| is_over(known.validated_by)),
                entry: round.entry.is_none()
                    && entry.is_none_or(|known| is_over(known.validated_by)),
            };
            round.before = Some(seen);
            round.is_checked = round.presence.is_none() && !round.reads.presence;
            // Items cached in this round are not cached again with another generation.
            if round.reads.presence || round.reads.entry {
                round.presence = None;
                round.entry = None;
                return;
            }
        }
        self.answer(state);
    }

    /// Concludes from the items that were read or cached.
    fn answer(&self, state: &mut State) {
        let Some(round) = state.instance.round.take() else {
            return;
        };
        let has_presence = state.instance.presence.as_ref();
        let has_presence = has_presence.is_some_and(|known| known.value);
        let entry = state.instance.entry.as_ref();
        let entry = entry.and_then(|known| known.value.as_ref());
        let conclusion = conclude(has_presence, entry, state.now);
        let is_wrong = round.keys.is_some_and(|keys| match &conclusion {
            Conclusion::Uses(file) => is_gone(&keys, file),
            Conclusion::Misses => self.of_module().iter().any(|key| {
                keys[*key].standing == Standing::Applied && keys[*key] == state.keys[*key]
            }),
            Conclusion::Requests => false,
        });
        let happened = &mut state.happened;
        happened.wrong_answer |= is_wrong;
        let is_miss = conclusion == Conclusion::Misses;
        happened.miss_ended |= happened.miss && !is_miss;
        happened.miss_over_generation |= round.is_checked && is_miss;
        happened.miss |= is_miss;
        // Entries with a build in progress are not cached, nor entries that the instance itself
        // changes.
        let is_unsettled = entry.is_some_and(|entry| entry.ready().is_none() && !is_idle(entry));
        if is_unsettled || conclusion == Conclusion::Requests {
            state.instance.entry = None;
        }
        if conclusion == Conclusion::Requests {
            let id = token(200 + state.left.looks);
            let queue = Queue::Eager;
            let is_requested = state.change(&Change::RequestBuild { id, queue });
            state.happened.requested_after_retirement |= is_requested && state.happened.retired;
        }
    }

    fn step_sweep(&self, state: &mut State) {
        state.sweep = match state.sweep {
            Sweep::Idle => Sweep::Idle,
            Sweep::Forgets(at) => self
                .remove_presence_if_empty(state, at)
                .map_or(Sweep::Idle, Sweep::Forgets),
            Sweep::Notes(at) => self
                .write_presence(state, at, true)
                .map_or(Sweep::Idle, Sweep::Notes),
        };
    }
}

impl Model for Absences {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |has_file: &bool| {
            let number = u8::from(*has_file);
            let standing = if *has_file {
                Standing::Applied
            } else {
                Standing::Absent
            };
            let nothing = Key {
                etag: 0,
                standing: Standing::Absent,
            };
            State {
                now: BEGIN,
                keys: [
                    Key {
                        etag: number,
                        standing,
                    },
                    nothing,
                ],
                difs: [has_file.then_some(1), None],
                presence: has_file.then_some(CURRENT),
                generation: has_file.then_some(Generation {
                    change: 1,
                    began_at: 0,
                }),
                last_generation: number,
                stored: None,
                workers: [None, None],
                building: Building::Idle,
                sweep: Sweep::Idle,
                instance: Instance::default(),
                left: self.left,
                happened: Happened::default(),
            }
        };
        self.begins.iter().map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        for key in KEYS {
            let standing = state.keys[key].standing;
            let is_settled = matches!(standing, Standing::Absent | Standing::Applied);
            let is_at_work = state.is_at_work_on(key);
            if is_settled && left.changes[key] > 0 && !is_at_work {
                actions.push(Action::Change(key));
            }
            if !is_settled && state.free().is_some() && (!is_at_work || left.copies > 0) {
                actions.push(Action::Deliver(key));
            }
        }
        for (at, worker) in state.workers.iter().enumerate() {
            if worker.is_some() {
                actions.push(Action::Step(at));
                if left.crashes > 0 {
                    actions.push(Action::Crash(at));
                }
            }
        }
        if state.building == Building::Idle {
            let build_request = state.stored.as_ref().and_then(Entry::build_request);
            if build_request.is_some() && left.builds > 0 {
                actions.push(Action::Build);
            }
        } else {
            actions.push(Action::StepBuild);
            if left.crashes > 0 {
                actions.push(Action::CrashBuild);
            }
        }
        if state.sweep != Sweep::Idle {
            actions.push(Action::StepSweep);
            if left.crashes > 0 {
                actions.push(Action::CrashSweep);
            }
        } else if left.sweeps > 0 {
            if state.stored.is_some() {
                actions.push(Action::Retire);
            }
            if state.presence.is_some() {
                actions.push(Action::SweepPresence);
            }
            if state.difs.iter().any(Option::is_some) {
                actions.push(Action::SweepDif);
            }
        }
        match &state.instance.round {
            None if left.looks > 0 => {
                actions.push(Action::Look {
                    within_moment: false,
                });
                if state.instance.generation.is_some() {
                    actions.push(Action::Look {
                        within_moment: true,
                    });
                }
            }
            None => {}
            Some(round) => {
                let reads = [
                    (round.reads.generation, Action::ReadGeneration),
                    (round.reads.presence, Action::ReadPresence),
                    (round.reads.entry, Action::ReadEntry),
                ];
                let due = reads.into_iter().filter(|(is_due, _)| *is_due);
                actions.extend(due.map(|(_, action)| action));
            }
        }
        let spans = (0..SPANS.len()).filter(|span| left.spans[*span] > 0);
        actions.extend(spans.map(Action::Pass));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Change(key) => {
                state.left.changes[key] -= 1;
                let changed = &mut state.keys[key];
                let is_upload = changed.standing == Standing::Absent;
                changed.etag += u8::from(is_upload);
                changed.standing = if is_upload {
                    Standing::Uploading
                } else {
                    Standing::Removing
                };
            }
            Action::Deliver(key) => {
                let is_upload = state.keys[key].standing == Standing::Uploading;
                state.left.copies -= u8::from(state.is_at_work_on(key));
                let free = state.free()?;
                state.workers[free] = Some(Worker {
                    key,
                    is_upload,
                    phase: 0,
                    at: At::Begin,
                });
            }
            Action::Step(at) => {
                let worker = state.workers[at].take()?;
                state.workers[at] = self.apply(&mut state, worker);
            }
            Action::Crash(at) => {
                state.left.crashes -= 1;
                state.workers[at] = None;
            }
            Action::Build => {
                let build = state.left.builds;
                state.left.builds -= 1;
                if !state.change(&take(build)) {
                    return None;
                }
                state.building = Building::Find { build };
            }
            Action::StepBuild => self.build(&mut state),
            Action::CrashBuild => {
                state.left.crashes -= 1;
                state.building = Building::Idle;
            }
            Action::Retire => {
                state.left.sweeps -= 1;
                if !state.change(&Change::Retire) {
                    return None;
                }
                state.happened.retired = true;
                if self.mistake == Mistake::RetiresPresence {
                    state.replace_presence(None);
                }
            }
            Action::SweepPresence => {
                state.left.sweeps -= 1;
                state.sweep = Sweep::Forgets(At::Begin);
            }
            Action::SweepDif => {
                state.left.sweeps -= 1;
                state.sweep = Sweep::Notes(At::Begin);
            }
            Action::StepSweep => self.step_sweep(&mut state),
            Action::CrashSweep => {
                state.left.crashes -= 1;
                state.sweep = Sweep::Idle;
            }
            Action::Look { within_moment } => {
                state.left.looks -= 1;
                self.look(&mut state, within_moment);
            }
            Action::ReadGeneration => {
                let generation = state.generation;
                let round = state.instance.round.as_mut()?;
                round.reads.generation = false;
                round.generation = Some(generation);
                self.go_on(&mut state);
            }
            Action::ReadPresence => {
                let has_presence = state.presence.is_some();
                let round = state.instance.round.as_mut()?;
                round.reads.presence = false;
                round.presence = Some(has_presence);
                self.go_on(&mut state);
            }
            Action::ReadEntry => {
                let entry = state.stored.clone();
                let round = state.instance.round.as_mut()?;
                round.reads.entry = false;
                round.entry = Some(entry);
                self.go_on(&mut state);
            }
            Action::Pass(span) => {
                state.left.spans[span] -= 1;
                state.now += SPANS[span];
                // A request does not take this long, and a builder does not take this long to write
                // a generation that it drew.
                state.instance.round = None;
                state.instance.generation = None;
                for worker in &mut state.workers {
                    let is_drawn = |worker: &mut Worker| {
                        matches!(worker.at, At::WriteGeneration { .. })
                            && self.frozen == Frozen::Never
                    };
                    worker.take_if(is_drawn);
                }
            }
        }
        // Builders are interchangeable.
        state.workers.sort_unstable_by(|a, b| b.cmp(a));
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(
                "a. a reader that reads now does not miss a module with an applied file",
                |model: &Self, state: &State| {
                    let entry = state.stored.as_ref();
                    !model.has_applied_file(&state.keys)
                        || conclude(state.presence.is_some(), entry, state.now)
                            != Conclusion::Misses
                },
            ),
            Property::always(
                "b. a cached miss is correct while its generation is unchanged",
                |model: &Self, state: &State| {
                    let stands = |validated_by: Option<Seen>| validated_by == Some(state.seen());
                    let Instance {
                        presence, entry, ..
                    } = &state.instance;
                    let absent = presence.as_ref();
                    let absent =
                        absent.is_some_and(|known| !known.value && stands(known.validated_by));
                    let missing = entry.as_ref().filter(|known| stands(known.validated_by));
                    let missing = missing.is_some_and(|known| {
                        let entry = known.value.as_ref();
                        conclude(true, entry, state.now) == Conclusion::Misses
                    });
                    !model.has_applied_file(&state.keys) || !(absent || missing)
                },
            ),
            Property::always(
                "b. a cached ready state is correct while its generation is unchanged",
                |_, state: &State| {
                    let known = state.instance.entry.as_ref();
                    let known = known.filter(|known| known.validated_by == Some(state.seen()));
                    let ready = known.and_then(|known| known.value.as_ref()?.ready());
                    !ready.is_some_and(|ready| is_gone(&state.keys, &ready.made_from[0]))
                },
            ),
            Property::always(
                "b. a conclusion is correct for what was applied when the instance began to read",
                |_, state: &State| !state.happened.wrong_answer,
            ),
            Property::always(
                "c. an applied file has a presence",
                |model: &Self, state: &State| {
                    state.presence.is_some() || !model.has_applied_file(&state.keys)
                },
            ),
        ];
        if self.left.looks > 1 && self.left.spans[1] == 0 {
            properties.extend([
                Property::sometimes(
                    "a cached miss is used because its generation is unchanged",
                    |_, state: &State| state.happened.miss_over_generation,
                ),
                Property::sometimes("an upload ends a cached miss", |_, state: &State| {
                    state.happened.miss_ended
                }),
            ]);
        }
        if self.left.spans[1] > 0 && self.left.looks > 0 {
            properties.push(Property::sometimes(
                "a retired entry is requested again",
                |_, state: &State| state.happened.requested_after_retirement,
            ));
        }
        if self.left.looks == 0 {
            properties.push(Property::sometimes(
                "the last file of a module is removed, and its presence too",
                |_, state: &State| {
                    state.keys[0].etag > 0
                        && state.keys.iter().all(|key| !key.has_file())
                        && state.presence.is_none()
                },
            ));
        }
        properties
    }
}

/// Returns the model of the stored items: builders of two keys of a module, and the prune run.
fn of_presence(bounds: Bounds, mistake: Mistake) -> Absences {
    Absences {
        mistake,
        frozen: Frozen::Replaced,
        is_elsewhere: false,
        begins: &[false, true],
        left: Left {
            changes: [2, 2],
            copies: bounds.choose(0, 1),
            crashes: 1,
            builds: bounds.choose(0, 1),
            sweeps: 1,
            looks: 0,
            spans: [0, 0],
        },
    }
}

/// Returns the model of the cached items: an instance, and builders of a key of the module and of
/// one of another module.
fn of_memory(bounds: Bounds, mistake: Mistake) -> Absences {
    Absences {
        mistake,
        frozen: Frozen::Replaced,
        is_elsewhere: true,
        begins: &[false, true],
        left: Left {
            changes: bounds.choose([1, 1], [2, 1]),
            copies: 0,
            crashes: bounds.choose(0, 1),
            builds: 1,
            sweeps: 0,
            looks: bounds.choose(2, 3),
            spans: [bounds.choose(0, 1), 0],
        },
    }
}

/// Returns the model of retirement: an instance, one key, and the prune run.
fn of_retirement(bounds: Bounds, mistake: Mistake) -> Absences {
    Absences {
        mistake,
        frozen: Frozen::Replaced,
        is_elsewhere: false,
        begins: bounds.choose(&[true], &[false, true]),
        left: Left {
            changes: [2, 0],
            copies: 0,
            crashes: bounds.choose(0, 1),
            builds: 1,
            sweeps: 1,
            looks: bounds.choose(1, 2),
            spans: [0, 1],
        },
    }
}

#[test]
fn stored_absence_is_correct_in_every_order() {
    let bounds = Bounds::asked_for();
    check("absence, presence", of_presence(bounds, Mistake::None));
}

#[test]
fn cached_absence_is_correct_in_every_order() {
    let bounds = Bounds::asked_for();
    check("absence, memory", of_memory(bounds, Mistake::None));
}

#[test]
fn absence_is_correct_after_retirement_in_every_order() {
    let bounds = Bounds::asked_for();
    check("absence, retirement", of_retirement(bounds, Mistake::None));
}

/// Asserts that a mistake breaks one of these properties.
fn finds(model: Absences, properties: &[&str]) {
    let mistake = model.mistake;
    let broken = broken_by(model);
    let is_meant = |broken: &&str| {
        properties
            .iter()
            .any(|property| broken.starts_with(property))
    };
    assert!(broken.iter().any(is_meant), "{mistake:?} breaks {broken:?}");
}

#[test]
fn writing_the_generation_before_the_marks_is_detected() {
    finds(of_memory(Bounds::Small, Mistake::AnnouncesFirst), &["b."]);
}

#[test]
fn trusting_items_read_beside_a_recent_generation_is_detected() {
    finds(
        of_memory(Bounds::Small, Mistake::TrustsWhatIsBeside),
        &["b."],
    );
}

#[test]
fn writing_the_presence_before_the_dif_is_detected() {
    let model = of_presence(Bounds::Small, Mistake::NotesBeforeFiling);
    finds(model, &["a.", "c."]);
}

#[test]
fn removing_a_presence_of_another_revision_is_detected() {
    let model = of_presence(Bounds::Small, Mistake::ForgetsUnfenced);
    finds(model, &["a.", "c."]);
}

#[test]
fn not_rewriting_an_existing_presence_is_detected() {
    let model = of_presence(Bounds::Small, Mistake::SparesPresence);
    finds(model, &["a.", "c."]);
}

#[test]
fn retiring_the_presence_with_its_entry_is_detected() {
    let model = of_retirement(Bounds::Small, Mistake::RetiresPresence);
    finds(model, &["a.", "c."]);
}

#[test]
fn applying_an_upload_before_its_generation_is_detected() {
    let model = of_memory(Bounds::Small, Mistake::AppliesBeforeGeneration);
    finds(model, &["b."]);
}

#[test]
fn replacing_a_file_by_a_useless_one_without_a_generation_is_detected() {
    let model = of_memory(Bounds::Small, Mistake::RevokesWithoutGeneration);
    finds(model, &["b."]);
}

/// Returns the model of the cached items in which time passes while builders work, and builders may
/// be frozen meanwhile.
fn of_frozen_builders(frozen: Frozen) -> Absences {
    let model = of_memory(Bounds::Small, Mistake::None);
    Absences {
        frozen,
        begins: &[true],
        left: Left {
            spans: [1, 0],
            ..model.left
        },
        ..model
    }
}

/// Shows why a builder compares the times of generations: otherwise a builder that loses the race
/// would accept a generation that began before its own marks.
#[test]
fn writing_a_generation_long_after_it_was_drawn_is_detected() {
    finds(of_frozen_builders(Frozen::Accepted), &["b."]);
}

#[test]
fn a_builder_that_replaces_older_generations_may_be_frozen() {
    let model = of_frozen_builders(Frozen::Replaced);
    assert_eq!(broken_by(model), Vec::<&str>::new());
}
