//! What a pass counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rollout_state::{RolloutState, rollout_state};
use crate::cache::{Ages, DifCopy, Entry, Kind, Queue, ReleaseNumbers};
use crate::domain::Timestamp;

/// The counts of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// The entries of each kind, by the kind's text. All versions of Microsoft's SymCaches count as
    /// one kind.
    pub kinds: BTreeMap<String, KindTally>,
    /// Upload items whose file was not removed.
    pub uploads: u64,
    /// The bytes of derived caches, by the age of their entry's last use.
    pub ages: Ages,
    /// Copies of DIFs.
    #[serde(default)]
    pub copies: u64,
    /// The bytes of copies, by the age of their last use.
    #[serde(default)]
    pub copy_ages: Ages,
}

/// The counts of a pass for one kind. Each entry counts in one of `current`, `behind`, `dif_gone`,
/// `failed` and `unbuilt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct KindTally {
    /// Entries that are current.
    pub current: u64,
    /// Entries that are outdated.
    pub behind: u64,
    /// Entries that are outdated and whose DIF no longer exists.
    pub dif_gone: u64,
    /// Entries without a ready state, or without a current one, by cause.
    pub failed: BTreeMap<String, u64>,
    /// Entries without a result yet.
    pub unbuilt: u64,
    /// Entries that keep a state of a lower version next to the newer one.
    pub older: u64,
    /// Entries whose build request waits in the refresh queue.
    #[serde(alias = "in_lane")]
    pub in_queue: u64,
    /// The bytes of their blobs.
    pub bytes: u64,
}

impl Tally {
    /// Counts an entry. Of entries of sources that a request defined, only the bytes count.
    pub fn count(&mut self, entry: &Entry, numbers: &ReleaseNumbers, now: Timestamp) {
        let bytes = entry_bytes(entry);
        self.ages.add(now.since(entry.last_used_at), bytes);
        if entry.module.source.is_defined() {
            return;
        }
        let kind = self.kinds.entry(counted_as(entry.kind)).or_default();
        match rollout_state(entry, numbers, now) {
            RolloutState::Current => kind.current += 1,
            RolloutState::Behind => kind.behind += 1,
            RolloutState::DifGone => kind.dif_gone += 1,
            RolloutState::Failed(cause) => {
                *kind.failed.entry(cause.as_str().to_owned()).or_default() += 1;
            }
            RolloutState::Unbuilt => kind.unbuilt += 1,
        }
        kind.older += u64::from(entry.older.is_some());
        let request = entry.live_request(now);
        let in_queue = request.is_some_and(|request| request.queue == Queue::Refresh);
        kind.in_queue += u64::from(in_queue);
        kind.bytes += bytes;
    }

    /// Counts a copy of a DIF.
    pub fn count_copy(&mut self, copy: &DifCopy, now: Timestamp) {
        self.copies += 1;
        self.copy_ages.add(now.since(copy.last_used_at), copy.bytes);
    }

    /// Adds other counts to these.
    pub fn merge(&mut self, other: &Self) {
        for (name, other) in &other.kinds {
            let KindTally {
                current,
                behind,
                dif_gone,
                failed,
                unbuilt,
                older,
                in_queue,
                bytes,
            } = other;
            let kind = self.kinds.entry(name.clone()).or_default();
            kind.current += current;
            kind.behind += behind;
            kind.dif_gone += dif_gone;
            for (cause, count) in failed {
                *kind.failed.entry(cause.clone()).or_default() += count;
            }
            kind.unbuilt += unbuilt;
            kind.older += older;
            kind.in_queue += in_queue;
            kind.bytes += bytes;
        }
        self.uploads += other.uploads;
        self.ages.merge(&other.ages);
        self.copies += other.copies;
        self.copy_ages.merge(&other.copy_ages);
    }

    /// Returns the number of outdated entries.
    pub fn behind(&self) -> u64 {
        self.kinds.values().map(|kind| kind.behind).sum()
    }
}

/// Returns the text that a kind is counted under. Uploads can name any number of versions of
/// Microsoft's SymCaches. These count as one kind, so that no upload can make the tally exceed its
/// item.
fn counted_as(kind: Kind) -> String {
    if kind.is_opaque() {
        "mssymcache".to_owned()
    } else {
        kind.to_string()
    }
}

/// Returns the bytes of the blobs that an entry names.
pub fn entry_bytes(entry: &Entry) -> u64 {
    entry.states().map(|ready| ready.blob.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Converter;
    use crate::cache::change::examples::{BEGIN, entry};
    use crate::cache::sweep::examples::{NUMBERS, failed, ready};
    use crate::domain::Cause;

    /// Finding L6 in `docs/protocol.md`.
    #[test]
    fn uploads_that_name_five_thousand_versions_do_not_make_the_tally_larger() {
        let mut tally = Tally::default();
        for major in 3..5003 {
            let mut entry = ready(|_| {});
            entry.kind = Kind::MsSymCache(major);
            tally.count(&entry, &NUMBERS, BEGIN);
        }
        assert_eq!(tally.kinds["mssymcache"].current, 5000);
        let json = serde_json::to_vec(&tally).unwrap();
        assert!(json.len() < 1000, "{}", json.len());
    }

    #[test]
    fn tallies_of_segments_add_up() {
        let entries = [
            ready(|_| {}),
            ready(|ready| ready.converter = Converter(0)),
            failed(entry(), Cause::Malformed, Converter::CURRENT),
            entry(),
        ];
        let (mut whole, mut parts) = (Tally::default(), Tally::default());
        for entry in &entries {
            whole.count(entry, &NUMBERS, BEGIN);
            let mut part = Tally::default();
            part.count(entry, &NUMBERS, BEGIN);
            parts.merge(&part);
        }
        assert_eq!(whole, parts);
        let kind = &whole.kinds["symcache"];
        assert_eq!(
            (
                kind.current,
                kind.behind,
                kind.failed["malformed"],
                kind.unbuilt
            ),
            (1, 1, 1, 1)
        );
        assert_eq!(whole.ages.bytes(), kind.bytes);
    }
}
