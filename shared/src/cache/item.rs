//! Items: everything that is stored besides blobs.
//!
//! Each item carries its schema. A release never trusts, writes or prunes an item of a newer
//! schema: the item belongs to a newer release that runs at the same time.

use serde::{Deserialize, Serialize};

use super::{
    DifCopy, Entry, ItemKey, Losses, ModuleKey, OutdatedList, Revision, SourceHealth, SweepItem,
};
use crate::cache::dif::Dif;
use crate::cache::{
    Generation, IssuedToken, ObjectChunk, Overflow, PendingRequest, Presence, RequestStage,
    Rollout, SourceDefinition, SweepCursor, Upload, UploadedObject, Wanted,
};
use crate::domain::{CompanionId, Location, ModuleId, Timestamp};

/// An item, and the revision that its next write must name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The revision that the next write must name.
    pub revision: Revision,
    /// The item.
    pub item: Item,
}

/// An item that is stored under an [`ItemKey`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "most items are entries")]
pub enum Item {
    /// What is cached for one kind of one module.
    Entry(Entry),
    /// The module that the second id of an object refers to.
    Alias(Alias),
    /// An upload and its state.
    Upload(Upload),
    /// An uploaded DIF that has this module's id.
    Dif(Dif),
    /// A module that has files in the uploads of a scope.
    Presence(Presence),
    /// The last change to the uploads of a scope.
    Generation(Generation),
    /// Some of the objects of an upload that has too many for its own item.
    Objects(ObjectChunk),
    /// Uploads that exceed a module's limit of files.
    Overflow(Overflow),
    /// The copy of a DIF that was found in a symbol server.
    Copy(DifCopy),
    /// A request whose response was `pending`.
    Request(PendingRequest),
    /// A source that a request defined.
    Source(SourceDefinition),
    /// A PDB whose Microsoft SymCache a client requested, and that cannot be made here.
    Wanted(Wanted),
    /// The health of a symbol server, shared by all functions.
    Health(SourceHealth),
    /// The number of blobs that were confirmed as lost.
    Losses(Losses),
    /// The progress of the pruner.
    Sweep(SweepCursor),
    /// Entries that are outdated, or whose rebuild was requested for that reason.
    #[serde(rename = "manifest")]
    OutdatedList(OutdatedList),
    /// The counts of the last complete pass of the pruner.
    Rollout(Rollout),
    /// An access token that was issued.
    IssuedToken(IssuedToken),
    /// An item that a newer release wrote, or that this release cannot read for another reason.
    #[serde(skip)]
    Newer {
        /// The schema of the item.
        schema: u32,
    },
}

/// The newest schema that this release reads and writes. Each item is written with the lowest
/// schema that can express it: [`Item::schema`].
///
/// History:
/// - 1: everything else.
/// - 2: [`Presence`], [`Generation`], [`ObjectChunk`], [`Overflow`]; an [`Upload`] whose objects
///   are in chunks.
/// - 3: an [`Upload`], an [`ObjectChunk`] or a [`Dif`] that is filed under a
///   [`ModuleId::Companion`] or needs a companion.
/// - 4: a [`PendingRequest`] that came from a crash file.
/// - 5: an [`Upload`], an [`ObjectChunk`], a [`Dif`] or a [`DifCopy`] of an auxiliary file, or of a
///   file with hidden names.
/// - 6: a [`PendingRequest`] whose answer has another format.
/// - 7: an [`IssuedToken`].
pub const SCHEMA: u32 = 7;

/// Refers from the second id of an object (its code id) to the module that it is filed under. It
/// has no lease and no blob.
///
/// It exists as long as its target has files: the [`Presence`] of the target names it, and the
/// builder that removes the target's last file removes both. Two modules with the same code id
/// share one alias, which refers to the module that was filed last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alias {
    /// The module that the object is filed under.
    pub target: ModuleKey,
}

/// Types whose items are alone under their keys.
macro_rules! of_item {
    ($($variant:ident($of:ty)),* $(,)?) => {
        $(impl TryFrom<Item> for $of {
            type Error = Item;

            fn try_from(item: Item) -> Result<Self, Item> {
                match item {
                    Item::$variant(of) => Ok(of),
                    other => Err(other),
                }
            }
        })*
    };
}

of_item! {
    Copy(DifCopy),
    Health(SourceHealth),
    IssuedToken(IssuedToken),
    Request(PendingRequest),
    Rollout(Rollout),
    Source(SourceDefinition),
    Upload(Upload),
}

impl Item {
    /// Returns the schema that the item is written with: the lowest whose releases can read it.
    /// Releases with a lower schema do not touch the item.
    pub fn schema(&self) -> u32 {
        match self {
            Item::Upload(upload) if have_maps(&upload.objects) => 5,
            Item::Objects(chunk) if have_maps(&chunk.objects) => 5,
            Item::Dif(dif) if has_map(dif) => 5,
            Item::Copy(copy) if has_map(&copy.dif) => 5,
            Item::Upload(upload) if have_companions(&upload.objects) => 3,
            Item::Objects(chunk) if have_companions(&chunk.objects) => 3,
            Item::Dif(dif) if !dif.needs.is_empty() || dif.module.is_of_companions() => 3,
            Item::Presence(_) | Item::Generation(_) | Item::Objects(_) | Item::Overflow(_) => 2,
            Item::IssuedToken(_) => 7,
            // A release that knows one format would answer in that one.
            Item::Request(request) if !request.format.is_default() => 6,
            // A release that does not know crash files would omit what they say besides.
            Item::Request(request) if request.stage != RequestStage::Symbolicate => 4,
            // A release that does not know the chunks would assume that the upload has no objects.
            Item::Upload(upload) if upload.object_set.is_some() => 2,
            Item::Newer { schema } => *schema,
            Item::Entry(_)
            | Item::Alias(_)
            | Item::Upload(_)
            | Item::Dif(_)
            | Item::Copy(_)
            | Item::Request(_)
            | Item::Source(_)
            | Item::Wanted(_)
            | Item::Health(_)
            | Item::Losses(_)
            | Item::Sweep(_)
            | Item::OutdatedList(_)
            | Item::Rollout(_) => 1,
        }
    }

    /// Returns the entry, if the item is one.
    pub fn entry(&self) -> Option<&Entry> {
        match self {
            Item::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// Returns the upload, if the item is one.
    pub fn upload(&self) -> Option<&Upload> {
        match self {
            Item::Upload(upload) => Some(upload),
            _ => None,
        }
    }

    /// Returns when the store may delete the item by itself. Items that own a lease, or blobs that
    /// only the pruner removes, never expire.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match self {
            Item::Upload(upload) => upload.expires_at,
            Item::Request(request) => Some(request.expires_at),
            Item::Source(source) => Some(source.expires_at),
            Item::Wanted(wanted) => Some(wanted.expires_at),
            Item::Health(health) => Some(health.expires_at),
            Item::IssuedToken(token) => Some(token.expires_at),
            Item::Entry(_)
            | Item::Alias(_)
            | Item::Dif(_)
            | Item::Presence(_)
            | Item::Generation(_)
            | Item::Objects(_)
            | Item::Overflow(_)
            | Item::Copy(_)
            | Item::Losses(_)
            | Item::Sweep(_)
            | Item::OutdatedList(_)
            | Item::Rollout(_)
            | Item::Newer { .. } => None,
        }
    }

    /// Returns the key that the item is stored under; `None` if it cannot be computed from the
    /// item.
    pub fn key(&self) -> Option<ItemKey> {
        match self {
            Item::Entry(entry) => Some(entry.module().entry(entry.kind())),
            Item::Dif(dif) => Some(dif.module.dif(&dif.file.location)),
            Item::Presence(presence) => Some(presence.module.presence()),
            Item::Generation(generation) => Some(ItemKey::generation(&generation.scope)),
            Item::Objects(chunk) => {
                let location = Location::new(chunk.key.as_str());
                Some(ItemKey::objects(&location, &chunk.token, chunk.number))
            }
            Item::Overflow(overflow) => Some(overflow.module.overflow()),
            Item::Upload(upload) => Some(ItemKey::upload(&upload.location())),
            Item::Request(request) => Some(ItemKey::request(&request.id)),
            Item::Source(source) => Some(ItemKey::source(&source.key)),
            Item::Copy(copy) => Some(copy.key()),
            Item::Health(health) => Some(ItemKey::health(&health.source)),
            Item::Losses(_) => Some(ItemKey::losses()),
            Item::Wanted(wanted) => Some(ItemKey::wanted(&wanted.scope, wanted.debug_id)),
            Item::Sweep(_) => Some(ItemKey::sweep(SweepItem::Cursor)),
            Item::Rollout(_) => Some(ItemKey::sweep(SweepItem::Rollout)),
            Item::IssuedToken(token) => Some(ItemKey::issued_token(&token.id)),
            Item::Alias(_) | Item::OutdatedList(_) | Item::Newer { .. } => None,
        }
    }
}

fn have_companions(objects: &[UploadedObject]) -> bool {
    let is_of_companions =
        |object: &UploadedObject| matches!(object.module, ModuleId::Companion(_));
    objects
        .iter()
        .any(|object| !object.needs.is_empty() || is_of_companions(object))
}

/// Returns whether a DIF is an auxiliary file or needs one.
fn has_map(dif: &Dif) -> bool {
    let is_of_map = |id: &CompanionId| matches!(id, CompanionId::SymbolMap(_));
    dif.hides_names || dif.file_type.is_auxiliary() || dif.needs.iter().any(is_of_map)
}

fn have_maps(objects: &[UploadedObject]) -> bool {
    objects
        .iter()
        .any(|object| object.hides_names || object.file_type.is_auxiliary())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::UploadProgress;
    use crate::domain::{CodeId, FileType};

    #[test]
    fn releases_that_do_not_know_companions_do_not_touch_uploads_with_them() {
        let object = |module| UploadedObject::filed(module, FileType::ElfDebug);
        let plain = object(ModuleId::Code(CodeId::new("ac456ebc".to_owned())));
        let needing = UploadedObject {
            needs: vec![CompanionId::unit(7)],
            ..plain.clone()
        };
        let companion = object(ModuleId::Companion(CompanionId::unit(7)));
        let schema = |objects| {
            let upload = Upload::pending("global/a", Timestamp::from_secs(0));
            Item::Upload(Upload { objects, ..upload }).schema()
        };
        assert_eq!(schema(vec![plain.clone()]), 1);
        assert_eq!(schema(vec![plain.clone(), needing]), 3);
        assert_eq!(schema(vec![plain.clone(), companion]), 3);
        let hidden = UploadedObject {
            hides_names: true,
            ..plain.clone()
        };
        let map = UploadedObject {
            file_type: FileType::Il2Cpp,
            ..plain
        };
        assert_eq!((schema(vec![hidden]), schema(vec![map])), (5, 5));
    }

    #[test]
    fn uploads_and_objects_of_releases_without_the_newest_fields_are_read() {
        let object = serde_json::json!({
            "module": {"code": "ac456ebc"}, "code_id": "ac456ebc", "file_type": "elf_code", "arch": "x86_64",
            "features": {"has_debug_info": false, "has_unwind_info": true, "has_symbols": true, "has_sources": false}
        });
        let upload = serde_json::json!({
            "key": "global/a", "etag": "1", "sequencer": "00", "size": 7, "objects": [object], "state": "applied",
            "crashes": 0, "reconciled": 0, "at": 1000
        });
        let read: Upload = serde_json::from_value(upload.clone()).unwrap();
        assert_eq!(read.skipped, [""; 0]);
        assert_eq!(read.objects[0].fault, None);
        // Empty fields are omitted, so that those releases can read the items.
        assert_eq!(serde_json::to_value(&read).unwrap(), upload);
    }

    #[test]
    fn an_upload_that_was_withdrawn_is_stored_in_the_words_that_older_releases_read() {
        let upload = serde_json::json!({
            "key": "global/a", "etag": "1", "sequencer": "00", "size": 7, "state": "pending",
            "progress": "revoked", "passed_over": ["readme.txt: text"], "crashes": 1, "refused_by": 12,
            "reconciled": 2, "at": 1000
        });
        let read: Upload = serde_json::from_value(upload.clone()).unwrap();
        assert_eq!(read.progress, UploadProgress::Withdrawn);
        assert_eq!(
            (read.skipped.len(), read.attempts, read.reconciled),
            (1, 1, 2)
        );
        assert_eq!(serde_json::to_value(&read).unwrap(), upload);
    }
}
