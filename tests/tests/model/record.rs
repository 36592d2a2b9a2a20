//! One record, and the steps of an update: the loop of `flows/update.rs`, one step at a time.
//!
//! Every write has a new revision. All that matters is whether another writer wrote since a read,
//! so [`Read`] stores only that. States that differ only in random values are therefore equal.

use symdepot::cache::{
    Applied, BlobRef, Change, Converter, Entry, Kind, ModuleKey, Policy, Ready, Refused, Seen,
    Token, apply,
};
use symdepot::domain::{
    Cause, DifRef, Features, FileType, Location, Missing, ModuleId, Purpose, Rank, Scope, Timestamp,
};

/// The time at which every model begins, in seconds.
const BEGIN: u64 = 1_700_000_000;

/// The maximum difference between two clocks, in seconds.
pub(crate) const SKEW: i64 = 60;

/// Returns the time of a clock that is off by some seconds.
pub(crate) fn clock(seconds: u64, off_by: i64) -> Timestamp {
    Timestamp::from_secs((BEGIN + seconds).saturating_add_signed(off_by))
}

pub(crate) fn token(number: u8) -> Token {
    Token::from_random(number.into())
}

pub(crate) fn module() -> ModuleKey {
    let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
    ModuleKey::uploads(Scope::Global, &id)
}

/// Returns a new entry.
pub(crate) fn unknown(now: Timestamp) -> Entry {
    Entry::new(module(), Kind::SymCache, now)
}

pub(crate) fn dif(name: u8, etag: u8) -> DifRef {
    DifRef {
        location: Location::new(format!("global/{name}")),
        etag: etag.to_string(),
    }
}

/// The properties of a cache that a builder derives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub(crate) version: u32,
    pub(crate) converter: u32,
    pub(crate) has_debug_info: bool,
}

impl Product {
    /// The cache that current builders derive from a good file.
    pub(crate) const GOOD: Self = Self {
        version: 1,
        converter: Converter::CURRENT.0,
        has_debug_info: true,
    };

    /// Returns the ready state that a build with this number derives from a DIF.
    pub(crate) fn ready(self, build: u8, made_from: DifRef, now: Timestamp) -> Ready {
        let features = Features {
            has_debug_info: self.has_debug_info,
            has_symbols: true,
            ..Features::default()
        };
        let rank = Rank::of(&features, Purpose::Debug);
        Ready {
            version: self.version,
            blob: BlobRef {
                path: format!("{}/{}", folder(), token(build)),
                bytes: 10,
                checksum: 1,
                index: None,
            },
            quality: rank.quality(),
            rank,
            features,
            arch: "x86_64".to_owned(),
            file_type: FileType::ElfDebug,
            made_from: vec![made_from],
            lacks: None,
            derived_at: now,
            converter: Converter(self.converter),
        }
    }
}

/// Returns the path prefix of the entry's blobs, which does not depend on their version.
fn folder() -> String {
    use std::sync::OnceLock;
    static FOLDER: OnceLock<String> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let key = module().entry(Kind::SymCache);
        let path = key.blob(Kind::SymCache, 1, &token(0));
        path.rsplit_once('/').unwrap().0.to_owned()
    });
    folder.clone()
}

/// Returns the number of the build that derived a state.
pub(crate) fn build_of(ready: &Ready) -> u8 {
    let token = ready.blob.path.rsplit('/').next().unwrap();
    u8::from_str_radix(token, 16).unwrap()
}

/// Returns all ready states of the stored entry.
pub(crate) fn states(stored: Option<&Entry>) -> impl Iterator<Item = &Ready> {
    let stored = stored.into_iter();
    stored.flat_map(|entry| entry.ready().into_iter().chain(entry.older()))
}

pub(crate) fn take(build: u8) -> Change {
    Change::TakeLease {
        holder: format!("request {build}"),
        token: token(build),
        deadline: clock(900, 0),
    }
}

pub(crate) fn publish(build: u8, ready: Ready, considered: Vec<DifRef>) -> Change {
    Change::Publish {
        token: token(build),
        ready: Box::new(ready),
        seen: seen(considered),
    }
}

pub(crate) fn fail(build: u8, considered: Vec<DifRef>) -> Change {
    Change::Fail {
        token: token(build),
        missing: Missing::new(Cause::NotFound, "no good"),
        seen: seen(considered),
    }
}

fn seen(considered: Vec<DifRef>) -> Seen {
    Seen {
        better_failed: None,
        considered,
        has_unread: false,
        candidates: Vec::new(),
        retry_after: None,
        lacks_companion: false,
        has_unasked: false,
    }
}

/// What happens to the response to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Comes,
    /// The write lands, and its response is lost.
    IsLost,
    /// The write lands, its response is lost, and the client repeats the write.
    IsOfRepetition,
}

/// A change that is being written to the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Update {
    pub(crate) change: Change,
    read: Option<Read>,
    /// Whether a response was lost. If so, the update checks whether its change already has effect.
    is_unsure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Read {
    entry: Option<Entry>,
    is_stale: bool,
}

/// The result of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done(Entry),
    Retired(Entry),
    Refused(Refused),
}

/// The result of a step of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Whether the stored entry was changed: everything that others have read is stale.
    pub(crate) landed: bool,
    /// The result, if the update has ended.
    pub(crate) end: Option<End>,
}

impl Step {
    fn on(landed: bool) -> Self {
        Self { landed, end: None }
    }

    fn end(landed: bool, end: End) -> Self {
        Self {
            landed,
            end: Some(end),
        }
    }
}

impl Update {
    pub(crate) fn new(change: Change) -> Self {
        Self {
            change,
            read: None,
            is_unsure: false,
        }
    }

    /// Returns whether the next step writes, if the change applies.
    pub(crate) fn writes_next(&self) -> bool {
        self.read.is_some()
    }

    /// Records that another writer wrote.
    pub(crate) fn go_stale(&mut self) {
        if let Some(read) = &mut self.read {
            read.is_stale = true;
        }
    }

    /// Performs one step: a read, or the write based on it.
    pub(crate) fn step(
        &mut self,
        stored: &mut Option<Entry>,
        now: Timestamp,
        answer: Answer,
    ) -> Step {
        let Some(read) = &self.read else {
            return self.look(stored, false);
        };
        let entry = match &read.entry {
            Some(entry) => entry.clone(),
            None if creates(&self.change) => unknown(now),
            None => return Step::end(false, End::Refused(Refused::Nothing)),
        };
        let applied = match apply(&entry, &self.change, now, &Policy::default()) {
            Ok(applied) => applied,
            Err(refused) => return Step::end(false, End::Refused(refused)),
        };
        if read.is_stale {
            // A rejected write returns the stored entry.
            self.is_unsure = true;
            return self.look(stored, false);
        }
        let end = match applied {
            Applied::Changed(next) => {
                *stored = Some(next.clone());
                End::Done(next)
            }
            Applied::Retired => {
                *stored = None;
                End::Retired(entry)
            }
        };
        match answer {
            Answer::Comes => Step::end(true, end),
            Answer::IsLost => {
                self.read = None;
                self.is_unsure = true;
                Step::on(true)
            }
            Answer::IsOfRepetition => {
                self.is_unsure = true;
                self.look(stored, true)
            }
        }
    }

    fn look(&mut self, stored: &Option<Entry>, landed: bool) -> Step {
        if let Some(entry) = stored
            && self.is_unsure
            && self.change.has_effect(entry)
        {
            return Step::end(landed, End::Done(entry.clone()));
        }
        self.read = Some(Read {
            entry: stored.clone(),
            is_stale: false,
        });
        Step::on(landed)
    }
}

/// Returns whether a change applies if no entry is stored.
fn creates(change: &Change) -> bool {
    matches!(
        change,
        Change::RequestBuild { .. } | Change::TakeLease { .. } | Change::Invalidate { .. }
    )
}
