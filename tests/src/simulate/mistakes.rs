//! Planted mistakes: what a bug in the product would do to the stores.
//!
//! They are made in the stores of the simulation and in its edge, not in the product. A simulation
//! that does not find one of them has a gap.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use symdepot::cache::{Dif, Entry, Item, ItemKey, Kind, Stored, Token};
use symdepot::domain::Cause;
use symdepot::ports::{Fault, FaultKind, QueueMessage, RecordStore};

use super::fleet::Function;
use super::stores::{Stores, Writer, ready_now, states};
use super::workload::module_key;

/// Defines the mistakes, and the list of all of them.
macro_rules! mistakes {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// A planted mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Mistake {
            $($(#[doc = $doc])* $name,)*
        }

        impl Mistake {
            /// Every mistake.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

mistakes! {
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
    /// The messages of build requests name other build requests (S2).
    MessagesNameOtherRequests,
    /// Messages are not sent.
    MessagesAreNotSent,
    /// The record of a retired entry stays, and its blobs are removed.
    RetiredRecordsStay,
    /// A build does not record which files it considered.
    ConsideredFilesAreForgotten,
    /// A tenant is shown the entries of another one.
    TenantsAreMixedUp,
    /// The memory of an instance expires by the monotonic clock alone (P1).
    MemoryIgnoresTheWallClock,
    /// The 17th file of an id is dropped (P2; here the third).
    FilesWithoutRoomAreDropped,
    /// Uploads with many objects fail each time (P3; here with a hundred).
    LargeUploadsAreNotStored,
    /// The success of a worse file hides the failure of the better one (P4).
    PublishesClearFailures,
    /// Bad blobs are built again without a limit (P5).
    BadBlobsHaveNoBrake,
    /// One unreadable item fails all others of its read (P6).
    UnreadableItemsFailReads,
    /// A client that has the newest file never receives "not modified" (P7).
    NotModifiedIsNeverSaid,
    /// Messages for a newer release outlive their build request (P8, P12).
    MessagesOutliveTheirRequests,
    /// A reader of an older release causes a loop of builds (P9): it does not wait behind a newer
    /// one, whose builder does not know that.
    OutdatedReadersLoop,
    /// What a newer release failed to convert is never tried again by an older one (P11).
    RollbacksDoNotRecover,
    /// Attempts to read an upload are not counted (P14).
    UploadAttemptsAreNotCounted,
    /// Presigned URLs are valid for a quarter of an hour (P15).
    UrlsOutliveRemovals,
    /// A file that was absent in a build counts as considered (P16).
    AbsentFilesCountAsConsidered,
    /// A failed build removes the ready state (model of leases).
    FailuresRemoveStates,
    /// A state is published before its blob is stored (model of leases).
    BlobsAreStoredLate,
    /// The pruner does not see the records that name blobs (model of sweeps).
    PrunersSeeNoRecords,
    /// The pruner does not list blobs (model of sweeps).
    OrphansAreNotListed,
    /// An event writes its item without regard to other writes (model of uploads).
    UploadWritesIgnoreRevisions,
    /// An upload does not mark an entry with a lease (model of uploads).
    LeasedEntriesAreSpared,
    /// A presence is removed although it was written since it was read (model of absence).
    PresencesAreRemovedUnfenced,
    /// An existing presence is not written again (model of absence).
    ExistingPresencesAreSpared,
    /// The presence is removed together with the retired entry (model of absence).
    PresencesAreRetired,
    /// An older release does not record that it left files to a newer one (S7, S8).
    LeftFilesAreForgotten,
    /// An older release reads items of a newer schema as if they were its own.
    NewerItemsAreTrusted,
    /// A file that changed without an event is read again and again (P17).
    ChangedFilesAreReadForever,
    /// A kind that is only uploaded is not marked (L2).
    UploadedKindsAreNotMarked,
    /// A build removes the suspect state of an entry whose lease it does not hold (L3).
    SuspectsOfOthersAreRemoved,
    /// A server that a build does not know has no files (P10).
    UnknownServersHaveNothing,
    /// The use of a cache is not recorded (L4; here of any state).
    UsesAreNotRecorded,
    /// A message that failed waits for the visibility timeout of its queue (L8).
    FailedMessagesWaitForTheirTimeout,
    /// An alias outlives the files of its module (L5).
    AliasesAreNotRemoved,
    /// Giving up a build begins its attempts again (L1).
    GivingUpBeginsAgain,
    /// A file from a server that is too slow is malformed (P13).
    SlowServersAreMalformed,
    /// A build does not see one of the files of its module (model of leases).
    FilesAreOverlooked,
    /// What an older release could not read of an upload is never read by a newer one (S5).
    RefusalsAreFinal,
    /// The reports of readers get lost, and the builds that they request begin (S12).
    ReportsAreForgotten,
}

impl Mistake {
    /// Returns the mistake with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|mistake| format!("{mistake:?}") == name)
    }

    /// Returns whether the write of an item is forgotten.
    pub(super) fn forgets_write(self, stores: &Stores, before: Option<&Item>, item: &Item) -> bool {
        let entry = before.and_then(Item::entry);
        let is_marked = |next: &Entry| entry.is_some_and(|entry| entry.dirty() != next.dirty());
        let keeps_states = |next: &Entry| {
            entry
                .is_some_and(|entry| entry.ready() == next.ready() && entry.lease() == next.lease())
        };
        match (self, item) {
            (Self::FilesWithoutRoomAreDropped, Item::Dif(dif)) => {
                let filed = ready_now(stores.records.query(&dif.module.partition()));
                let others = filed.unwrap_or_default().into_iter().filter(|(_, stored)| {
                    let present = dif_of(&stored.item);
                    present.is_some_and(|present| present.file.location != dif.file.location)
                });
                others.count() >= 2
            }
            (Self::LeasedEntriesAreSpared, Item::Entry(next)) => {
                is_marked(next)
                    && keeps_states(next)
                    && entry.is_some_and(|entry| entry.lease().is_some())
            }
            (Self::AbsentFilesCountAsConsidered, Item::Entry(next)) => {
                let missing = entry.and_then(Entry::missing);
                let was_absent =
                    missing.is_some_and(|missing| missing.missing.cause == Cause::NotFound);
                is_marked(next) && keeps_states(next) && was_absent
            }
            (Self::UploadedKindsAreNotMarked, Item::Entry(next)) => {
                matches!(next.kind(), Kind::MsSymCache(_)) && is_marked(next)
            }
            (Self::UsesAreNotRecorded, Item::Entry(next)) => entry.is_some_and(|entry| {
                entry.last_used_at() != next.last_used_at()
                    && states(entry).eq(states(next))
                    && entry.lease() == next.lease()
                    && entry.build_request() == next.build_request()
            }),
            (Self::ExistingPresencesAreSpared, Item::Presence(_)) => before.is_some(),
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
                | (Self::AliasesAreNotRemoved, Item::Alias(_))
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
            return self.change_of_upload(is);
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
            Self::LeftFilesAreForgotten => {
                is.as_object_mut().map(|is| is.remove("left_by"));
            }
            Self::AttemptsAreNotCounted if ended => is["attempts"] = 0.into(),
            Self::PublishesClearFailures if ended && field(&is, "ready").is_some() => {
                is.as_object_mut().map(|is| is.remove("missing"));
            }
            Self::BadBlobsHaveNoBrake => {
                is.as_object_mut().map(|is| is.remove("lost_at"));
            }
            Self::OutdatedReadersLoop if field(&is, "ready").is_some() => {
                is["ready"]["derived_at"] = 0.into();
            }
            Self::FailuresRemoveStates if ended && field(&is, "missing").is_some() => {
                is.as_object_mut().map(|is| is.remove("ready"));
            }
            Self::RollbacksDoNotRecover if field(&is, "missing").is_some() => {
                let newer = symdepot::cache::Converter::CURRENT.0 + 1;
                if is["missing"]["converter"] == newer {
                    is["missing"]["retry_at"] = century.into();
                }
            }
            Self::PlaceholdersNeverExpire if field(&is, "missing").is_some() => {
                is["missing"]["retry_at"] = century.into();
            }
            Self::GivingUpBeginsAgain
                if was["attempts"].as_u64() > is["attempts"].as_u64()
                    && is["missing"]["cause"]["cause"] == "crashed" =>
            {
                is.as_object_mut().map(|is| is.remove("missing"));
                keep(&mut is, "ask");
            }
            Self::UnknownServersHaveNothing
                if is["missing"]["cause"]["cause"] == "download_failed"
                    && is["missing"]["detail"].as_str().is_some_and(is_unknown) =>
            {
                is["missing"]["cause"]["cause"] = "not_found".into();
            }
            Self::SlowServersAreMalformed if is["missing"]["cause"]["cause"] == "timeout" => {
                is["missing"]["cause"]["cause"] = "malformed".into();
            }
            Self::BackOffsNeverEnd if field(&is, "not_before").is_some() => {
                is["not_before"] = century.into();
            }
            _ => self.change_of_reports(was, &mut is),
        }
        is
    }

    /// Changes what is written about the reports of readers.
    fn change_of_reports(self, was: &Value, is: &mut Value) {
        let has = |item: &Value, name: &str| item.get(name).is_some();
        if self == Self::ReportsAreForgotten && !has(was, "suspect") && has(is, "suspect") {
            is.as_object_mut().map(|is| is.remove("suspect"));
        }
    }

    /// Returns the fields of an upload that are written instead of `is`.
    fn change_of_upload(self, mut is: Value) -> Value {
        match self {
            Self::UploadsAreAppliedTooSoon if is["state"] == "pending" => {
                is["state"] = "applied".into();
            }
            Self::UploadAttemptsAreNotCounted => is["crashes"] = 0.into(),
            Self::RefusalsAreFinal => {
                is.as_object_mut().map(|is| is.remove("refused_by"));
            }
            _ => {}
        }
        is
    }

    /// Returns the items that a build finds in a partition instead of these.
    pub(super) fn found(
        self,
        function: Function,
        mut found: Vec<(ItemKey, Stored)>,
    ) -> Vec<(ItemKey, Stored)> {
        let is_dif = |(_, stored): &(ItemKey, Stored)| dif_of(&stored.item).is_some();
        if self == Self::FilesAreOverlooked
            && function == Function::Derive
            && found.iter().filter(|item| is_dif(item)).count() > 1
            && let Some(at) = found.iter().position(is_dif)
        {
            found.remove(at);
        }
        found
    }

    /// Returns an entry without its suspect state.
    pub(super) fn without_suspect(entry: &Entry) -> Option<Entry> {
        let mut json = serde_json::to_value(entry).ok()?;
        let fields = json.as_object_mut()?;
        fields.remove("suspect")?;
        fields.remove("ready")?;
        serde_json::from_value(json).ok()
    }

    /// Returns whether a write replaces whatever is stored.
    pub(super) fn ignores_revision(self, item: &Item) -> bool {
        match self {
            Self::WritesIgnoreRevisions => true,
            Self::UploadWritesIgnoreRevisions => matches!(item, Item::Upload(_)),
            _ => false,
        }
    }

    /// Returns why a write fails each time, if it does.
    pub(super) fn refusal(self, item: &Item) -> Option<Fault> {
        let objects = item.upload().map_or(0, |upload| upload.objects.len());
        (self == Self::LargeUploadsAreNotStored && objects > 100)
            .then(|| Fault::new(FaultKind::Bug, "the item is too large"))
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
        writer: &Writer,
        keys: &[ItemKey],
        mut loaded: Vec<Option<Stored>>,
    ) -> Vec<Option<Stored>> {
        if self == Self::PrunersSeeNoRecords && writer.function == Function::Prune {
            for stored in &mut loaded {
                stored.take_if(|stored| stored.item.entry().is_some());
            }
        }
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

/// Returns whether the detail of a failure says that its server is unknown.
fn is_unknown(detail: &str) -> bool {
    detail.contains("has no source")
}

fn dif_of(item: &Item) -> Option<&Dif> {
    match item {
        Item::Dif(dif) => Some(dif),
        _ => None,
    }
}
