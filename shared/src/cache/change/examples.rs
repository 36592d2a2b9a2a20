//! Example entries and changes for the tests of the cache.

use super::{Applied, Change, Refused, Seen, apply};
use crate::cache::{BlobRef, Converter, Entry, Kind, ModuleKey, Policy, Queue, Ready, Token};
use crate::domain::{
    Cause, DifRef, Features, FileType, Location, Missing, ModuleId, Purpose, Rank, Scope, Timestamp,
};

/// The time at which every example begins.
pub(in crate::cache) const BEGIN: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A deadline that no example reaches.
pub(in crate::cache) const NEVER: Timestamp = Timestamp::from_secs(u64::MAX);

/// What a DIF contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Offer {
    Debug,
    Symbols,
    Nothing,
}

pub(in crate::cache) fn after(seconds: u64) -> Timestamp {
    Timestamp::from_secs(BEGIN.as_secs() + seconds)
}

pub(in crate::cache) fn entry() -> Entry {
    let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
    Entry::new(
        ModuleKey::uploads(Scope::Global, &id),
        Kind::SymCache,
        BEGIN,
    )
}

/// Returns an entry of a source that, unlike the uploads, does not announce its changes.
pub(in crate::cache) fn entry_of_a_symbol_server() -> Entry {
    let source = serde_json::from_value("a-symbol-server".into()).unwrap();
    let module = ModuleKey {
        source,
        ..entry().module().clone()
    };
    Entry::new(module, Kind::SymCache, BEGIN)
}

pub(in crate::cache) fn token(number: u128) -> Token {
    Token::from_random(number)
}

pub(in crate::cache) fn dif(name: &str) -> DifRef {
    DifRef {
        location: Location::new(format!("global/{name}")),
        etag: "1".to_owned(),
    }
}

/// Returns the state that the build with this token derives from a DIF.
pub(in crate::cache) fn state(
    entry: &Entry,
    build: u128,
    version: u32,
    offer: Offer,
    made_from: &DifRef,
) -> Ready {
    let features = Features {
        has_debug_info: offer == Offer::Debug,
        has_symbols: offer != Offer::Nothing,
        ..Features::default()
    };
    let rank = Rank::of(&features, Purpose::Debug);
    let path = entry
        .module()
        .entry(entry.kind())
        .blob(entry.kind(), version, &token(build));
    Ready {
        version,
        blob: BlobRef {
            path,
            bytes: 10,
            checksum: 1,
            index: None,
        },
        quality: rank.quality(),
        rank,
        features,
        arch: "x86_64".to_owned(),
        file_type: FileType::ElfDebug,
        made_from: vec![made_from.clone()],
        lacks: None,
        derived_at: BEGIN,
        converter: Converter::CURRENT,
    }
}

pub(in crate::cache) fn request_build(id: u128, queue: Queue) -> Change {
    Change::RequestBuild {
        id: token(id),
        queue,
    }
}

pub(in crate::cache) fn take(build: u128) -> Change {
    Change::TakeLease {
        holder: format!("request {build}"),
        token: token(build),
        deadline: NEVER,
    }
}

/// Returns the publish of a build that considered these DIFs.
pub(in crate::cache) fn publish(build: u128, ready: Ready, considered: &[DifRef]) -> Change {
    Change::Publish {
        token: token(build),
        ready: Box::new(ready),
        seen: seen(considered),
    }
}

pub(in crate::cache) fn fail(build: u128, cause: Cause, considered: &[DifRef]) -> Change {
    Change::Fail {
        token: token(build),
        missing: Missing::new(cause, "no good"),
        seen: seen(considered),
    }
}

pub(in crate::cache) fn seen(considered: &[DifRef]) -> Seen {
    Seen {
        considered: considered.to_vec(),
        has_unread: false,
        candidates: Vec::new(),
        retry_after: None,
        better_failed: None,
        lacks_companion: false,
        has_unasked: false,
    }
}

/// Applies a change `seconds` after [`BEGIN`].
pub(in crate::cache) fn applied(
    entry: &Entry,
    change: &Change,
    seconds: u64,
) -> Result<Entry, Refused> {
    match apply(entry, change, after(seconds), &Policy::default())? {
        Applied::Changed(next) => Ok(next),
        Applied::Retired => panic!("{change:?} retired the entry"),
    }
}

/// Applies a change that must not be refused.
pub(in crate::cache) fn then(entry: &Entry, change: &Change, seconds: u64) -> Entry {
    applied(entry, change, seconds)
        .unwrap_or_else(|refused| panic!("{change:?} was refused: {refused:?}"))
}

/// Returns an entry with this state, published at [`BEGIN`].
pub(in crate::cache) fn built(version: u32, offer: Offer, made_from: &DifRef) -> Entry {
    let entry = then(&entry(), &take(1), 0);
    let ready = state(&entry, 1, version, offer, made_from);
    then(
        &entry,
        &publish(1, ready, std::slice::from_ref(made_from)),
        0,
    )
}
