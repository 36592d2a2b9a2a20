//! Planted mistakes: what a bug in the product would do to the stores.
//!
//! They are made in the stores of the simulation and in its edge, not in the product. A simulation
//! that does not find one of them has a gap.

use serde_json::Value;
use symdepot::cache::{Item, ItemKey, Stored, Token};
use symdepot::ports::QueueMessage;

use super::stores::Stores;
use super::workload::module_key;

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mistake {
    /// A write replaces whatever is stored.
    WritesIgnoreRevisions,
    /// A writer takes a lost race for a write.
    LostRacesCountAsDone,
    /// Blobs are not written.
    BlobsAreNotStored,
    /// An upload does not mark the entry as dirty.
    DirtyMarksAreForgotten,
    /// A state stays when its file is removed.
    RevokedStatesStay,
    /// A lease never expires.
    LeasesNeverExpire,
    /// The end of a build keeps its lease.
    LeasesAreNotReturned,
    /// A removal leaves the lease of a build that read the file.
    RevocationsKeepTheLease,
    /// An attempt that ends without a result is not counted.
    AttemptsAreNotCounted,
    /// A placeholder never expires.
    PlaceholdersNeverExpire,
    /// The back-off of an entry never ends.
    BackOffsNeverEnd,
    /// The presence of a module is not written.
    PresencesAreNotWritten,
    /// The presence of a module is never removed.
    PresencesAreNotRemoved,
    /// A change of the uploads writes no generation.
    GenerationsAreNotWritten,
    /// The items of uploaded files are not written.
    DifsAreNotFiled,
    /// The items of uploaded files are never removed.
    DifsAreNotRemoved,
    /// An upload counts as applied before it is filed.
    UploadsAreAppliedTooSoon,
    /// An item for a removed file is not written.
    TombstonesAreNotWritten,
    /// Events are applied in the order of their arrival.
    SequencersAreIgnored,
    /// The messages of build requests name other build requests.
    MessagesNameOtherRequests,
    /// Messages are not sent.
    MessagesAreNotSent,
    /// The record of a retired entry stays, and its blobs are removed.
    RetiredRecordsStay,
    /// A build does not record which files it considered.
    ConsideredFilesAreForgotten,
    /// A tenant is shown the entries of another one.
    TenantsAreMixedUp,
    /// The memory of an instance expires by the monotonic clock alone.
    MemoryIgnoresTheWallClock,
}

impl Mistake {
    /// Every mistake.
    pub const ALL: [Self; 25] = [
        Self::WritesIgnoreRevisions,
        Self::LostRacesCountAsDone,
        Self::BlobsAreNotStored,
        Self::DirtyMarksAreForgotten,
        Self::RevokedStatesStay,
        Self::LeasesNeverExpire,
        Self::LeasesAreNotReturned,
        Self::RevocationsKeepTheLease,
        Self::AttemptsAreNotCounted,
        Self::PlaceholdersNeverExpire,
        Self::BackOffsNeverEnd,
        Self::PresencesAreNotWritten,
        Self::PresencesAreNotRemoved,
        Self::GenerationsAreNotWritten,
        Self::DifsAreNotFiled,
        Self::DifsAreNotRemoved,
        Self::UploadsAreAppliedTooSoon,
        Self::TombstonesAreNotWritten,
        Self::SequencersAreIgnored,
        Self::MessagesNameOtherRequests,
        Self::MessagesAreNotSent,
        Self::RetiredRecordsStay,
        Self::ConsideredFilesAreForgotten,
        Self::TenantsAreMixedUp,
        Self::MemoryIgnoresTheWallClock,
    ];

    /// Returns the mistake with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|mistake| format!("{mistake:?}") == name)
    }

    /// Returns whether the write of an item is forgotten.
    pub(super) fn forgets_write(self, item: &Item) -> bool {
        match (self, item) {
            (Self::PresencesAreNotWritten, Item::Presence(_))
            | (Self::GenerationsAreNotWritten, Item::Generation(_))
            | (Self::DifsAreNotFiled, Item::Dif(_)) => true,
            (Self::TombstonesAreNotWritten, Item::Upload(upload)) => {
                upload.state == symdepot::cache::UploadState::Gone
            }
            _ => false,
        }
    }

    /// Returns whether the removal of an item is forgotten.
    pub(super) fn forgets_removal(self, item: &Item) -> bool {
        matches!(
            (self, item),
            (Self::PresencesAreNotRemoved, Item::Presence(_))
                | (Self::DifsAreNotRemoved, Item::Dif(_))
                | (Self::RetiredRecordsStay, Item::Entry(_))
        )
    }

    /// Returns the item that is written instead of `next`.
    pub(super) fn altered(self, before: Option<&Item>, next: Item) -> Item {
        let json = |item: &Item| serde_json::to_value(item).unwrap_or_default();
        let was = before.map(json).unwrap_or_default();
        let is = json(&next);
        match (&next, self.change(&was, is.clone())) {
            (Item::Entry(_) | Item::Upload(_), changed) if changed != is => {
                serde_json::from_value(changed).unwrap_or(next)
            }
            _ => next,
        }
    }

    /// Returns the fields that are written instead of `is`; `was` is what is stored.
    fn change(self, was: &Value, mut is: Value) -> Value {
        let is_entry = is.get("kind").is_some();
        if !is_entry {
            if self == Self::UploadsAreAppliedTooSoon && is["state"] == "pending" {
                is["state"] = "applied".into();
            }
            return is;
        }
        let field = |item: &Value, name: &str| item.get(name).cloned();
        let keep = |is: &mut Value, name: &str| {
            if let Some(value) = field(was, name) {
                is[name] = value;
            }
        };
        let ended = field(was, "lease").is_some() && field(&is, "lease").is_none();
        let marked = field(was, "dirty") != field(&is, "dirty");
        let century = 3_000_000_000_u64;
        match self {
            Self::DirtyMarksAreForgotten if marked => match field(was, "dirty") {
                Some(dirty) => is["dirty"] = dirty,
                None => {
                    is.as_object_mut().map(|is| is.remove("dirty"));
                }
            },
            Self::RevokedStatesStay if marked => keep(&mut is, "ready"),
            Self::LeasesNeverExpire if field(&is, "lease").is_some() => {
                is["lease"]["until"] = century.into();
            }
            Self::LeasesAreNotReturned if ended => {
                keep(&mut is, "lease");
                is["attempts"] = 1.into();
            }
            Self::RevocationsKeepTheLease if ended && marked => {
                keep(&mut is, "lease");
                is["attempts"] = 1.into();
            }
            Self::ConsideredFilesAreForgotten => {
                is.as_object_mut().map(|is| is.remove("considered"));
            }
            Self::AttemptsAreNotCounted if ended => is["attempts"] = 0.into(),
            Self::PlaceholdersNeverExpire if field(&is, "missing").is_some() => {
                is["missing"]["retry_at"] = century.into();
            }
            Self::BackOffsNeverEnd if field(&is, "not_before").is_some() => {
                is["not_before"] = century.into();
            }
            _ => {}
        }
        is
    }

    /// Returns the messages that are sent instead of these.
    pub(super) fn sent(self, messages: &[QueueMessage]) -> Vec<QueueMessage> {
        if self == Self::MessagesAreNotSent {
            return Vec::new();
        }
        let each = messages.iter().cloned().map(|mut message| {
            if self == Self::MessagesNameOtherRequests {
                message.build_request = Token::from_random(7);
            }
            message
        });
        each.collect()
    }

    /// Returns the items that are read instead of these.
    pub(super) fn loaded(
        self,
        stores: &Stores,
        keys: &[ItemKey],
        loaded: Vec<Option<Stored>>,
    ) -> Vec<Option<Stored>> {
        if self != Self::TenantsAreMixedUp {
            return loaded;
        }
        let mixed = |(key, stored): (&ItemKey, Option<Stored>)| {
            let others = (0..64).map(|module| (module_key("acme", module), module));
            let other = others
                .filter(|(acme, _)| acme.partition() == key.partition)
                .map(|(_, module)| module_key("beta", module).partition())
                .next();
            let beta = other.map(|partition| ItemKey {
                partition,
                sort: key.sort.clone(),
            });
            beta.and_then(|key| stores.records.peek(&key)).or(stored)
        };
        keys.iter().zip(loaded).map(mixed).collect()
    }
}
