//! The model of uploads, removals and invalidations: a bucket that changes, its events in any
//! order, and builders.
//!
//! Two keys contain files of one module: a good file and a worse one. The steps of an event are
//! those of `flows/uploads`; each read and each write is a separate step. A worker may start a
//! build whenever a build request is pending: an additional message does no harm, and a lost one is
//! sent again by the next reader.
//!
//! Each upload has other bytes. The tests of the flows and the simulation upload the same bytes
//! again.

use stateright::{Model, Property};
use symdepot::cache::{Change, Entry};
use symdepot::domain::{DifRef, Timestamp};

use super::record::{Answer, End, Product, Update, clock, dif, fail, publish, states, take, token};
use super::{Bounds, broken_by, check};

/// The keys, the better file first.
const KEYS: [u8; 2] = [0, 1];

/// An event of a key; its sequencer is also the etag of the bytes since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Event {
    key: u8,
    sequencer: u8,
    is_creation: bool,
}

/// The upload item of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Item {
    sequencer: u8,
    etag: u8,
    /// Whether it lists the objects in the file.
    has_objects: bool,
    progress: Progress,
    state: ItemState,
}

/// The progress of a pending item: completed steps are not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Progress {
    Begun,
    Withdrawn,
    Filed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ItemState {
    Pending,
    Applied,
    Gone,
}

/// A `dif` item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Filed {
    etag: u8,
    sequencer: u8,
}

/// A worker and its next step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Worker {
    Idle,
    /// Applies an event; `delivery` is the number of the delivery.
    Applying {
        event: Event,
        delivery: u8,
        at: At,
    },
    /// Builds the entry.
    Building {
        build: u8,
        at: Building,
    },
}

/// The next step of an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Reads the item of the key, and the current bytes in the bucket.
    Look,
    /// Writes the pending item, based on the item that it replaces.
    Announce {
        stale: Option<Item>,
        etag: u8,
    },
    RemoveFormer {
        former: u8,
        etag: u8,
    },
    RevokeFormer {
        update: Update,
        former: u8,
        etag: u8,
    },
    /// Records that the objects that the item lists are withdrawn.
    NoteWithdrawn {
        former: u8,
        etag: u8,
    },
    /// Reads the file.
    Read {
        etag: u8,
        is_filed: bool,
    },
    NameObjects {
        etag: u8,
        is_filed: bool,
    },
    File {
        etag: u8,
    },
    Recheck {
        etag: u8,
    },
    Undo {
        etag: u8,
    },
    Invalidate {
        update: Update,
        etag: u8,
    },
    /// Records that the file has its `dif` items and the entries are invalidated.
    NoteFiled {
        etag: u8,
    },
    Apply {
        etag: u8,
    },
    /// Removes the `dif` item of these bytes, for a removal.
    RemoveFiled {
        former: u8,
    },
    Revoke {
        update: Update,
        former: u8,
    },
    NoteGone {
        former: u8,
    },
    Bury,
}

/// The next step of a build.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Building {
    Take(Update),
    Find,
    /// Fetches the best file that was found.
    Fetch {
        found: [Option<Filed>; 2],
    },
    /// Derives the cache from the fetched file.
    Make {
        found: [Option<Filed>; 2],
        best: Option<u8>,
    },
    End(Update),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    bucket: [Option<u8>; 2],
    /// The number of the last change of each key.
    changes: [u8; 2],
    /// Events to be delivered, possibly several times.
    events: Vec<Event>,
    items: [Option<Item>; 2],
    filed: [Option<Filed>; 2],
    stored: Option<Entry>,
    workers: [Worker; 2],
    /// The number of deliveries so far.
    deliveries: u8,
    now: u64,
    left: Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    changes: [u8; 2],
    builds: u8,
    copies: u8,
    crashes: u8,
    faults: u8,
    ticks: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Put(u8),
    TakeAway(u8),
    /// An event is delivered once more than necessary.
    Copy(usize),
    Deliver(usize, usize),
    Build(usize),
    Step(usize, Answer),
    Crash(usize),
    Tick,
}

/// A mistake that is seeded into the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// An event writes its pending item based on an earlier read of the key, without regard to
    /// writes since then.
    ForgetsWhatCameBetween,
    /// An upload does not invalidate an entry with a lease.
    SparesTheLeased,
    /// A removal does not release the lease.
    LeavesTheLease,
}

struct Uploads {
    mistake: Mistake,
    /// The number of changes to each key.
    changes: [u8; 2],
    /// The number of repeated events, of lost responses, and of additional builds.
    disturbances: u8,
}

impl State {
    fn stands(&self, event: Event) -> bool {
        let known = self.items[usize::from(event.key)];
        known.is_none_or(|known| {
            event.sequencer > known.sequencer
                || (event.sequencer == known.sequencer && known.state == ItemState::Pending)
        })
    }

    /// Writes an item unless the item of a later event is stored.
    fn put(&mut self, event: Event, item: Item) -> bool {
        let present = &mut self.items[usize::from(event.key)];
        let is_first = present.is_none_or(|present| present.sequencer <= item.sequencer);
        if is_first {
            *present = Some(item);
        }
        is_first
    }

    fn landed(&mut self) {
        for worker in &mut self.workers {
            match worker {
                Worker::Applying {
                    at:
                        At::RevokeFormer { update, .. }
                        | At::Invalidate { update, .. }
                        | At::Revoke { update, .. },
                    ..
                }
                | Worker::Building {
                    at: Building::Take(update) | Building::End(update),
                    ..
                } => update.go_stale(),
                _ => {}
            }
        }
    }

    /// Changes the item of an event's key if it is about the same event and bytes.
    fn amend(&mut self, event: Event, etag: u8, change: impl FnOnce(&mut Item)) {
        if let Some(present) = &mut self.items[usize::from(event.key)]
            && (present.sequencer, present.etag) == (event.sequencer, etag)
        {
            change(present);
        }
    }

    /// Returns whether no event, worker or build request is pending, so that responses no longer
    /// change.
    fn is_quiet(&self) -> bool {
        self.events.is_empty()
            && self.workers.iter().all(|worker| *worker == Worker::Idle)
            && self
                .stored
                .as_ref()
                .is_none_or(|entry| entry.build_request().is_none())
    }

    /// Returns whether an event that is being applied has the file open: its own build does not
    /// fetch it again.
    fn has_open(&self, key: usize, of: Option<u8>) -> bool {
        self.workers.iter().any(|worker| match worker {
            Worker::Applying {
                event,
                at: At::Invalidate { etag, .. } | At::NoteFiled { etag } | At::Apply { etag },
                ..
            } => usize::from(event.key) == key && Some(*etag) == of,
            _ => false,
        })
    }

    /// Returns the file from which each state was derived.
    fn made_from(&self) -> Vec<DifRef> {
        states(self.stored.as_ref())
            .map(|ready| ready.made_from[0].clone())
            .collect()
    }
}

fn event_of(state: &State, key: u8, is_creation: bool) -> Event {
    Event {
        key,
        sequencer: state.changes[usize::from(key)],
        is_creation,
    }
}

/// Returns the invalidation of a delivery, whose mark is unique.
fn invalidate(event: Event, delivery: u8, etag: u8) -> Update {
    Update::new(Change::Invalidate {
        dif: dif(event.key, etag),
        mark: token(100 + 2 * delivery),
    })
}

/// Returns the revocation of a delivery, whose mark is unique.
fn revoke(event: Event, delivery: u8, etag: u8) -> Update {
    Update::new(Change::Revoke {
        dif: dif(event.key, etag),
        mark: token(101 + 2 * delivery),
    })
}

impl Uploads {
    /// Performs a step of an update; returns its result if it has ended.
    fn update(
        &self,
        state: &mut State,
        update: &mut Update,
        now: Timestamp,
        answer: Answer,
    ) -> Option<End> {
        let lease = state.stored.as_ref().and_then(Entry::lease).cloned();
        if self.mistake == Mistake::SparesTheLeased
            && lease.is_some()
            && matches!(update.change, Change::Invalidate { .. })
        {
            return Some(End::Refused(symdepot::cache::Refused::Leased));
        }
        let step = update.step(&mut state.stored, now, answer);
        if step.landed {
            if let (Mistake::LeavesTheLease, Change::Revoke { .. }, Some(lease), Some(entry)) =
                (self.mistake, &update.change, lease, &state.stored)
            {
                state.stored = Some(with_lease(entry, &lease));
            }
            state.landed();
        }
        step.end
    }

    /// Performs one step of an event; returns the next one, or `None` if the event is complete.
    fn apply(
        &self,
        state: &mut State,
        (event, delivery): (Event, u8),
        at: At,
        answer: Answer,
    ) -> Option<At> {
        let key = usize::from(event.key);
        let now = clock(state.now, 0);
        let item = |etag, has_objects, progress, item_state| Item {
            sequencer: event.sequencer,
            etag,
            has_objects,
            progress,
            state: item_state,
        };
        match at {
            At::Look => {
                let stale = state.items[key];
                match (event.is_creation, state.bucket[key]) {
                    _ if !state.stands(event) => None,
                    (true, None) => None,
                    // The file was overwritten: the event of the new bytes follows.
                    (true, Some(etag)) if etag != event.sequencer => None,
                    (true, Some(etag)) => Some(At::Announce { stale, etag }),
                    (false, _) => Some(At::Announce { stale, etag: 0 }),
                }
            }
            At::Announce { stale, etag } => {
                let known = if self.mistake == Mistake::ForgetsWhatCameBetween {
                    stale
                } else {
                    state.items[key]
                };
                if !state.stands(event) {
                    return None;
                }
                let named = known.filter(|known| known.has_objects);
                let former = named
                    .map(|named| named.etag)
                    .filter(|former| !event.is_creation || *former != etag);
                let is_again = named.is_some_and(|named| named.sequencer == event.sequencer);
                let progress = match named.map(|named| named.progress) {
                    Some(Progress::Withdrawn) if former.is_some() => Progress::Withdrawn,
                    Some(Progress::Filed) if former.is_none() && is_again => Progress::Filed,
                    _ => Progress::Begun,
                };
                let etag_now = named.map_or(etag, |named| named.etag);
                let announced = item(etag_now, named.is_some(), progress, ItemState::Pending);
                state.put(event, announced);
                let former = former.filter(|_| progress != Progress::Withdrawn);
                let is_filed = progress == Progress::Filed;
                Some(match (event.is_creation, former) {
                    (true, Some(former)) => At::RemoveFormer { former, etag },
                    (true, None) => At::Read { etag, is_filed },
                    (false, Some(former)) => At::RemoveFiled { former },
                    (false, None) => At::Bury,
                })
            }
            At::RemoveFormer { former, etag } => {
                state.filed[key].take_if(|filed| filed.etag == former);
                let update = revoke(event, delivery, former);
                Some(At::RevokeFormer {
                    update,
                    former,
                    etag,
                })
            }
            At::RevokeFormer {
                mut update,
                former,
                etag,
            } => match self.update(state, &mut update, now, answer) {
                None => Some(At::RevokeFormer {
                    update,
                    former,
                    etag,
                }),
                Some(_) => Some(At::NoteWithdrawn { former, etag }),
            },
            At::NoteWithdrawn { former, etag } => {
                state.amend(event, former, |item| item.progress = Progress::Withdrawn);
                Some(At::Read {
                    etag,
                    is_filed: false,
                })
            }
            At::Read { etag, is_filed } => {
                let is_there = state.bucket[key] == Some(etag);
                is_there.then_some(At::NameObjects { etag, is_filed })
            }
            At::NameObjects { etag, is_filed } => {
                let (progress, next) = if is_filed {
                    (Progress::Filed, At::Apply { etag })
                } else {
                    (Progress::Begun, At::File { etag })
                };
                state
                    .put(event, item(etag, true, progress, ItemState::Pending))
                    .then_some(next)
            }
            At::File { etag } => {
                let sequencer = event.sequencer;
                let present = &mut state.filed[key];
                if present.is_none_or(|present| present.sequencer <= sequencer) {
                    *present = Some(Filed { etag, sequencer });
                }
                Some(At::Recheck { etag })
            }
            At::Recheck { etag } => {
                let is_current = state.items[key].is_some_and(|known| {
                    known.sequencer == event.sequencer
                        && known.etag == etag
                        && known.state != ItemState::Gone
                });
                Some(if is_current {
                    let update = invalidate(event, delivery, etag);
                    At::Invalidate { update, etag }
                } else {
                    At::Undo { etag }
                })
            }
            At::Undo { etag } => {
                let is_ours =
                    |filed: &mut Filed| filed.sequencer == event.sequencer && filed.etag == etag;
                state.filed[key].take_if(is_ours);
                None
            }
            At::Invalidate { mut update, etag } => {
                match self.update(state, &mut update, now, answer) {
                    None => Some(At::Invalidate { update, etag }),
                    Some(_) => Some(At::NoteFiled { etag }),
                }
            }
            At::NoteFiled { etag } => {
                state.amend(event, etag, |item| item.progress = Progress::Filed);
                Some(At::Apply { etag })
            }
            At::Apply { etag } => {
                state.amend(event, etag, |item| {
                    if item.state == ItemState::Pending {
                        (item.progress, item.state) = (Progress::Begun, ItemState::Applied);
                    }
                });
                None
            }
            At::RemoveFiled { former } => {
                state.filed[key].take_if(|filed| filed.etag == former);
                let update = revoke(event, delivery, former);
                Some(At::Revoke { update, former })
            }
            At::Revoke { mut update, former } => {
                match self.update(state, &mut update, now, answer) {
                    None => Some(At::Revoke { update, former }),
                    Some(_) => Some(At::NoteGone { former }),
                }
            }
            At::NoteGone { former } => {
                state.amend(event, former, |item| item.progress = Progress::Withdrawn);
                Some(At::Bury)
            }
            At::Bury => {
                let gone = item(0, false, Progress::Begun, ItemState::Gone);
                state.put(event, gone);
                None
            }
        }
    }

    /// Performs one step of a build; returns the next one, or `None` if the build has ended.
    fn build(
        &self,
        state: &mut State,
        build: u8,
        at: Building,
        answer: Answer,
    ) -> Option<Building> {
        let now = clock(state.now, 0);
        let considered = |found: &[Option<Filed>; 2]| {
            let filed = KEYS.into_iter().zip(found);
            let filed = filed.filter_map(|(key, filed)| Some(dif(key, filed.as_ref()?.etag)));
            filed.collect::<Vec<_>>()
        };
        match at {
            Building::Take(mut update) => match self.update(state, &mut update, now, answer) {
                None => Some(Building::Take(update)),
                Some(End::Done(entry))
                    if entry
                        .lease()
                        .is_some_and(|lease| lease.token == token(build)) =>
                {
                    Some(Building::Find)
                }
                Some(_) => None,
            },
            Building::Find => Some(Building::Fetch { found: state.filed }),
            Building::Fetch { found } => {
                let is_open = |key: usize| state.has_open(key, found[key].map(|filed| filed.etag));
                let is_there = |key: usize| state.bucket[key].is_some() || is_open(key);
                let best = (0..KEYS.len()).find(|key| found[*key].is_some() && is_there(*key));
                let is_changed = best.is_some_and(|key| {
                    state.bucket[key] != found[key].map(|filed| filed.etag) && !is_open(key)
                });
                if is_changed {
                    let token = token(build);
                    return Some(Building::End(Update::new(Change::ReleaseInterrupted {
                        token,
                    })));
                }
                let best = best.and_then(|best| u8::try_from(best).ok());
                Some(Building::Make { found, best })
            }
            Building::Make { found, best } => {
                let change = match best {
                    None => fail(build, considered(&found)),
                    Some(best) => {
                        let etag = found[usize::from(best)].map_or(0, |filed| filed.etag);
                        let product = Product {
                            has_debug_info: best == 0,
                            ..Product::GOOD
                        };
                        let ready = product.ready(build, dif(best, etag), clock(0, 0));
                        publish(build, ready, considered(&found))
                    }
                };
                Some(Building::End(Update::new(change)))
            }
            Building::End(mut update) => match self.update(state, &mut update, now, answer) {
                None => Some(Building::End(update)),
                Some(_) => None,
            },
        }
    }
}

/// Returns the entry with its lease restored, which the crate itself does not allow.
fn with_lease(entry: &Entry, lease: &symdepot::cache::Lease) -> Entry {
    let mut json = serde_json::to_value(entry).unwrap();
    json["lease"] = serde_json::to_value(lease).unwrap();
    json["attempts"] = 1.into();
    serde_json::from_value(json).unwrap()
}

impl Model for Uploads {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            bucket: [None, None],
            changes: [0, 0],
            events: Vec::new(),
            items: [None, None],
            filed: [None, None],
            stored: None,
            workers: [Worker::Idle, Worker::Idle],
            deliveries: 0,
            now: 0,
            left: Left {
                changes: self.changes,
                builds: 2 + self.disturbances,
                copies: self.disturbances,
                crashes: 1,
                faults: self.disturbances,
                ticks: 1,
            },
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        for key in KEYS {
            if left.changes[usize::from(key)] > 0 {
                actions.push(Action::Put(key));
                if state.bucket[usize::from(key)].is_some() {
                    actions.push(Action::TakeAway(key));
                }
            }
        }
        let is_requested = state
            .stored
            .as_ref()
            .is_some_and(|entry| entry.build_request().is_some());
        // Workers are interchangeable: the first idle one begins.
        let free = state
            .workers
            .iter()
            .position(|worker| *worker == Worker::Idle);
        if let Some(free) = free {
            for event in 0..state.events.len() {
                actions.push(Action::Deliver(free, event));
            }
            if is_requested && left.builds > 0 {
                actions.push(Action::Build(free));
            }
        }
        if left.copies > 0 {
            actions.extend((0..state.events.len()).map(Action::Copy));
        }
        for (at, worker) in state.workers.iter().enumerate() {
            let writing = match worker {
                Worker::Idle => continue,
                Worker::Applying {
                    at:
                        At::RevokeFormer { update, .. }
                        | At::Invalidate { update, .. }
                        | At::Revoke { update, .. },
                    ..
                }
                | Worker::Building {
                    at: Building::Take(update) | Building::End(update),
                    ..
                } => update.writes_next(),
                Worker::Applying { .. } | Worker::Building { .. } => false,
            };
            actions.push(Action::Step(at, Answer::Comes));
            if writing && left.faults > 0 {
                actions.push(Action::Step(at, Answer::IsLost));
                actions.push(Action::Step(at, Answer::IsOfRepetition));
            }
            if left.crashes > 0 {
                actions.push(Action::Crash(at));
            }
        }
        if left.ticks > 0 {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Put(key) | Action::TakeAway(key) => {
                let is_creation = matches!(action, Action::Put(_));
                let at = usize::from(key);
                state.left.changes[at] -= 1;
                state.changes[at] += 1;
                state.bucket[at] = is_creation.then_some(state.changes[at]);
                state.events.push(event_of(&state, key, is_creation));
                state.events.sort_unstable();
            }
            Action::Copy(at) => {
                state.left.copies -= 1;
                state.events.push(state.events[at]);
                state.events.sort_unstable();
            }
            Action::Deliver(worker, at) => {
                let event = state.events.remove(at);
                state.deliveries += 1;
                state.workers[worker] = Worker::Applying {
                    event,
                    delivery: state.deliveries,
                    at: At::Look,
                };
            }
            Action::Build(worker) => {
                state.left.builds -= 1;
                let build = state.left.builds + 1;
                let at = Building::Take(Update::new(take(build)));
                state.workers[worker] = Worker::Building { build, at };
            }
            Action::Step(worker, answer) => {
                state.left.faults -= u8::from(answer != Answer::Comes);
                let next = match std::mem::replace(&mut state.workers[worker], Worker::Idle) {
                    Worker::Idle => None,
                    Worker::Applying {
                        event,
                        delivery,
                        at,
                    } => self
                        .apply(&mut state, (event, delivery), at, answer)
                        .map(|at| Worker::Applying {
                            event,
                            delivery,
                            at,
                        }),
                    Worker::Building { build, at } => self
                        .build(&mut state, build, at, answer)
                        .map(|at| Worker::Building { build, at }),
                };
                state.workers[worker] = next.unwrap_or(Worker::Idle);
            }
            Action::Crash(worker) => {
                state.left.crashes -= 1;
                // Its message is delivered again.
                if let Worker::Applying { event, .. } =
                    std::mem::replace(&mut state.workers[worker], Worker::Idle)
                {
                    state.events.push(event);
                    state.events.sort_unstable();
                }
            }
            Action::Tick => {
                state.left.ticks -= 1;
                state.now += 61;
            }
        }
        state.workers.sort_by_key(|worker| *worker == Worker::Idle);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(
                "4. removed or overwritten bytes are in no state once their event is applied",
                |_, state: &State| {
                    KEYS.into_iter().all(|key| {
                        let Some(item) = state.items[usize::from(key)] else {
                            return true;
                        };
                        let is_done = item.state != ItemState::Pending;
                        // Later uploads have later events with higher sequencers.
                        let earlier = 1..item.sequencer + u8::from(item.state == ItemState::Gone);
                        let made_from = state.made_from();
                        !is_done
                            || !earlier
                                .into_iter()
                                .any(|etag| made_from.contains(&dif(key, etag)))
                    })
                },
            ),
            Property::always(
                "5. once an upload is applied, a build has evaluated it or is requested",
                |_, state: &State| {
                    KEYS.into_iter().all(|key| {
                        let at = usize::from(key);
                        let Some(item) = state.items[at] else {
                            return true;
                        };
                        if item.state != ItemState::Applied || state.bucket[at] != Some(item.etag) {
                            return true;
                        }
                        let upload = dif(key, item.etag);
                        state.stored.as_ref().is_some_and(|entry| {
                            entry.considered().contains(&upload)
                                || entry.build_request().is_some()
                                || states(Some(entry))
                                    .any(|ready| ready.made_from.contains(&upload))
                        })
                    })
                },
            ),
            Property::always(
                "5. when nothing is pending, the entry is made from the best existing file",
                |_, state: &State| {
                    if !state.is_quiet() {
                        return true;
                    }
                    let best = KEYS
                        .into_iter()
                        .find_map(|key| Some(dif(key, state.bucket[usize::from(key)]?)));
                    let ready = state.stored.as_ref().and_then(Entry::ready);
                    ready.map(|ready| ready.made_from[0].clone()) == best
                },
            ),
            Property::always(
                "5. when nothing is pending, every existing file has its `dif` item",
                |_, state: &State| {
                    let is_at_work = |worker: &Worker| *worker != Worker::Idle;
                    let is_filed = |at: usize| {
                        state.bucket[at].is_none()
                            || state.bucket[at] == state.filed[at].map(|filed| filed.etag)
                    };
                    !state.events.is_empty()
                        || state.workers.iter().any(is_at_work)
                        || (0..KEYS.len()).all(is_filed)
                },
            ),
            Property::sometimes("something is published", |_, state: &State| {
                states(state.stored.as_ref()).next().is_some()
            }),
        ];
        if self.changes[0] > 1 {
            properties.push(Property::sometimes(
                "a removal is applied",
                |_, state: &State| {
                    let mut items = state.items.iter().flatten();
                    items.any(|item| item.state == ItemState::Gone)
                },
            ));
        }
        properties
    }
}

fn of_one_key(bounds: Bounds, mistake: Mistake) -> Uploads {
    Uploads {
        mistake,
        changes: [2, 0],
        disturbances: bounds.choose(0, 1),
    }
}

fn of_two_keys(bounds: Bounds, mistake: Mistake) -> Uploads {
    Uploads {
        mistake,
        changes: [bounds.choose(1, 2), 1],
        disturbances: 0,
    }
}

#[test]
fn the_properties_of_uploads_to_one_key_hold_in_every_order() {
    let bounds = Bounds::asked_for();
    check("uploads of a key", of_one_key(bounds, Mistake::None));
}

#[test]
fn the_properties_of_uploads_to_two_keys_hold_in_every_order() {
    let bounds = Bounds::asked_for();
    check("uploads of two keys", of_two_keys(bounds, Mistake::None));
}

#[test]
fn each_seeded_mistake_in_uploads_is_detected() {
    let check = |model: Uploads, property: &str| {
        let mistake = model.mistake;
        let broken = broken_by(model);
        assert!(
            broken.iter().any(|broken| broken.starts_with(property)),
            "{mistake:?} breaks {broken:?}"
        );
    };
    let bounds = Bounds::Small;
    check(of_one_key(bounds, Mistake::ForgetsWhatCameBetween), "4.");
    check(of_one_key(bounds, Mistake::LeavesTheLease), "4.");
    check(of_two_keys(bounds, Mistake::SparesTheLeased), "5.");
}
