//! Items: everything that is stored beside the blobs.
//!
//! An item carries its schema. One of a newer schema is neither trusted nor written nor swept: it belongs to a newer
//! build that runs side by side with this one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    Capabilities, Converter, DifCopy, Drained, Entry, EvictionCut, ItemKey, Kind, Losses, Manifest,
    ModuleKey, Revision, SourceHealth, SweepItem, Tally, Token,
};
use crate::domain::{
    CodeId, CompanionId, DebugId, DifRef, Features, FileType, FormatVersion, Location, Missing,
    ModuleId, MsSymCacheName, Scope, SourceKey, Timestamp,
};

/// An item, and the revision that its next write must name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What the next write must name.
    pub revision: Revision,
    /// The item.
    pub item: Item,
}

/// Something stored under an [`ItemKey`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "most items are entries")]
pub enum Item {
    /// What is cached for one kind of one module.
    Entry(Entry),
    /// Where the second id of an object leads to.
    Alias(Alias),
    /// What became of an upload.
    Upload(Upload),
    /// An uploaded DIF that has this module's id.
    Dif(Dif),
    /// That a module has files among the uploads of a scope.
    Presence(Presence),
    /// The last change to the uploads of a scope.
    Generation(Generation),
    /// Some of the objects of an upload that has too many for its own item.
    Objects(ObjectChunk),
    /// Uploads that a module has no room for.
    Overflow(Overflow),
    /// Our copy of a DIF that a symbol server had.
    Copy(DifCopy),
    /// A request that was answered `pending`.
    Request(PendingRequest),
    /// A source that a request defined.
    Source(SourceDefinition),
    /// A PDB whose SymCache, of Microsoft's, is wanted and cannot be made here.
    Wanted(Wanted),
    /// What the fleet knows of a symbol server.
    Health(SourceHealth),
    /// How many blobs were taken for lost.
    Losses(Losses),
    /// Where the sweep is.
    Sweep(SweepCursor),
    /// Entries that are behind, or were asked for because they were.
    Manifest(Manifest),
    /// What the last whole pass of the sweep counted.
    Rollout(Rollout),
    /// Something that a newer build wrote, or that this build cannot read for another reason.
    #[serde(skip)]
    Newer {
        /// Its schema.
        schema: u32,
    },
}

/// The newest schema that this build reads and writes. Each item is written with the least that can
/// read it: [`Item::schema`].
///
/// History:
/// - 1: everything else.
/// - 2: [`Presence`], [`Generation`], [`ObjectChunk`], [`Overflow`]; an [`Upload`] whose objects
///   are in chunks.
/// - 3: an [`Upload`], an [`ObjectChunk`] and a [`Dif`] with a [`ModuleId::Companion`], or that need one.
pub const SCHEMA: u32 = 3;

/// That a module has, or had a moment ago, files among the uploads of a scope.
///
/// It is written after each [`Dif`] item, and removed only if it did not change since a query found no `Dif` item. So a
/// strongly consistent read that does not find it proves that no upload that was applied serves the module, whatever
/// became of the module's entries. See `docs/decisions/0010-absence-of-an-upload-is-knowledge.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// The module.
    pub module: ModuleKey,
    /// The write that brought it, new with every file.
    pub change: Token,
    /// Code ids of its files. Each has an [`Alias`], which is removed together with this item.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code_ids: Vec<CodeId>,
}

/// The last change to the uploads of a scope: as long as it stands, what was read of them after it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// The scope.
    pub scope: Scope,
    /// What tells this generation from every other.
    pub change: Token,
    /// When it began, by the clock of the builder that applied the change.
    pub began_at: Timestamp,
}

/// Where the second id of an object (its code id) leads to. Never leased, owns no blob.
///
/// It stands as long as its target has files: the [`Presence`] of the target names it, and the
/// builder that removes the target's last file removes both. Two modules with one code id share one
/// alias, which leads to the module that was filed last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alias {
    /// The module that the object is filed under.
    pub target: ModuleKey,
}

/// What became of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// Its key in the uploads bucket.
    pub key: String,
    /// The etag of the bytes that this is about.
    pub etag: String,
    /// The order of the event among those of this key.
    pub sequencer: String,
    /// Its size in bytes.
    pub size: u64,
    /// The objects in it, if they fit here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<UploadedObject>,
    /// Where the objects are, if they do not fit here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_set: Option<ObjectSet>,
    /// What became of it.
    #[serde(flatten)]
    pub state: UploadState,
    /// How far a pending upload is.
    #[serde(default, skip_serializing_if = "UploadProgress::is_begun")]
    pub progress: UploadProgress,
    /// Modules that it does not serve, because they had as many files as they may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_room: Option<NoRoom>,
    /// What its reader passed over in it, and why: lines for a human, whose number and length are bounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<String>,
    /// Attempts to read these bytes that began and did not end well. Each is counted before it
    /// begins.
    #[serde(default)]
    pub crashes: u32,
    /// How often the sweep asked for it since its last event, in vain: the sweep asks ever more
    /// rarely.
    #[serde(default)]
    pub reconciled: u32,
    /// When it was last written: the last attempt, or what became of it.
    pub at: Timestamp,
    /// From when on it may be forgotten: tombstones only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// What became of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum UploadState {
    /// Its event is being worked on.
    Pending,
    /// Its modules know of it.
    Applied,
    /// It serves nothing.
    Ignored {
        /// Why.
        reason: String,
    },
    /// It was removed.
    Gone,
}

impl Upload {
    /// Returns an upload that is pending, of which nothing else is known.
    pub fn pending(key: impl Into<String>, at: Timestamp) -> Self {
        Self {
            key: key.into(),
            etag: String::new(),
            sequencer: String::new(),
            size: 0,
            objects: Vec::new(),
            object_set: None,
            state: UploadState::Pending,
            progress: UploadProgress::Begun,
            no_room: None,
            passed_over: Vec::new(),
            crashes: 0,
            reconciled: 0,
            at,
            expires_at: None,
        }
    }

    /// Returns where it is in the uploads bucket.
    pub fn location(&self) -> Location {
        Location::new(self.key.as_str())
    }

    /// Tells whether it names objects: modules may know of its file.
    pub fn names_objects(&self) -> bool {
        !self.objects.is_empty() || self.object_set.is_some()
    }

    /// Tells whether no module had room for it.
    pub fn is_left_out(&self) -> bool {
        let is_whole = |no_room: &NoRoom| no_room.modules == no_room.of;
        self.no_room.as_ref().is_some_and(is_whole)
    }
}

/// How far a pending upload is: what is done need not be done again when its message comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadProgress {
    /// Anything may be left to do.
    #[default]
    Begun,
    /// The bytes that the item names are out of every answer. What replaces them is left to build.
    Revoked,
    /// The modules that the item names know of the file, and their entries are marked. They are
    /// left to build.
    Filed,
}

impl UploadProgress {
    fn is_begun(&self) -> bool {
        *self == Self::Begun
    }
}

/// The objects of an upload that are in [`ObjectChunk`]s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectSet {
    /// What tells these chunks from those of every other reading.
    pub token: Token,
    /// How many objects there are.
    pub objects: u32,
    /// How many chunks there are.
    pub chunks: u32,
}

/// Some of the objects of an upload: it has too many for its own item.
///
/// The chunks of a reading are written before the upload item names them, and removed after it
/// names them no more. A builder that is killed in between leaves them to the sweep: chunks that no
/// upload item names a day after they were written ([`ObjectChunk::MAX_UNNAMED`]) are left over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChunk {
    /// The upload's key in the uploads bucket.
    pub key: String,
    /// The reading, as [`ObjectSet::token`] has it.
    pub token: Token,
    /// The place of this chunk among those of the reading, from zero.
    pub number: u32,
    /// The objects.
    pub objects: Vec<UploadedObject>,
    /// When it was written.
    pub at: Timestamp,
}

impl ObjectChunk {
    /// A chunk that no upload item names for longer than this is left over: no invocation takes as
    /// long.
    pub const MAX_UNNAMED: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

    /// Tells whether an upload item names the chunk.
    pub fn is_named_by(&self, upload: &Upload) -> bool {
        let set = upload.object_set.as_ref();
        set.is_some_and(|set| set.token == self.token && self.number < set.chunks)
    }
}

/// Modules that an upload does not serve, because they had as many files as they may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoRoom {
    /// How many they are.
    pub modules: u32,
    /// Of how many modules that the upload has.
    pub of: u32,
    /// The first [`NoRoom::MAX_NAMED`] of them, as [`ModuleKey::module`] has them.
    pub named: Vec<String>,
}

impl NoRoom {
    /// Modules that are named.
    pub const MAX_NAMED: usize = 20;
}

/// Uploads that a module has no room for: each gets its turn when one of the module's files is
/// removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overflow {
    /// The module.
    pub module: ModuleKey,
    /// Where they are, in the order in which they came.
    pub locations: Vec<Location>,
    /// The write that noted one of them, new with each.
    pub change: Token,
}

impl Overflow {
    /// Uploads that wait at most. Those that come after them have to be uploaded again.
    pub const MAX_LOCATIONS: usize = 200;
}

/// One object in an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadedObject {
    /// The id it is filed under.
    pub module: ModuleId,
    /// Identity of the debug file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_id: Option<DebugId>,
    /// Identity of the code file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_id: Option<CodeId>,
    /// What it is.
    pub file_type: FileType,
    /// Its architecture, as `symbolic` names it.
    pub arch: String,
    /// What it offers.
    pub features: Features,
    /// Whether it came with files that may complete it: of two that are alike otherwise, it is the better one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_accompanied: bool,
    /// What companions of it have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// Under a [`ModuleId::Companion`]: the module that needs what this names. Without one, it is the companion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed_by: Option<ModuleId>,
    /// Why nothing can be derived from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Missing>,
}

impl UploadedObject {
    /// Returns an object that is filed under an id, of which nothing else is known.
    pub fn filed(module: ModuleId, file_type: FileType) -> Self {
        Self {
            module,
            debug_id: None,
            code_id: None,
            file_type,
            arch: String::new(),
            features: Features::default(),
            is_accompanied: false,
            needs: Vec::new(),
            needed_by: None,
            fault: None,
        }
    }
}

/// An uploaded DIF that has a module's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dif {
    /// The module.
    pub module: ModuleKey,
    /// Where it is, and which bytes.
    #[serde(rename = "dif")]
    pub file: DifRef,
    /// The event that brought it, in the order of those of its key: an older event may not undo it.
    pub sequencer: String,
    /// Its size in bytes, as uploaded.
    pub size: u64,
    /// What the object in it is.
    pub file_type: FileType,
    /// What the object offers.
    pub features: Features,
    /// Whether it came with files that may complete it: of two that are alike otherwise, it is the better one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_accompanied: bool,
    /// What companions of it have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// Where the module is what a file and its companion have in common: the modules that need it, as [`ModuleKey::module`] has them.
    /// Of the companion, none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<String>,
    /// Why it cannot serve, where that is known without fetching it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Missing>,
    /// Why nothing can be derived from the object, as its first reader found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Missing>,
}

impl Dif {
    /// Returns the version that a cache of this kind has which is made of it; `None` where none is.
    pub fn version_for(&self, kind: Kind, reader: &Capabilities) -> Option<u32> {
        if !kind.comes_of(self.file_type) {
            return None;
        }
        match (kind, self.file_type) {
            (Kind::MsSymCache(major), FileType::MsSymCache) => {
                let version = self.uploaded_version();
                let of_it = version.filter(|version| version.major == major);
                of_it.map(FormatVersion::as_u32)
            }
            _ => reader.made_version(kind),
        }
    }

    /// Returns the version of one of Microsoft's SymCaches that was uploaded ready-made.
    pub fn uploaded_version(&self) -> Option<FormatVersion> {
        let name = MsSymCacheName::of(&self.file.location);
        let version = name.map(|name| name.version);
        version.filter(|_| self.file_type == FileType::MsSymCache)
    }
}

/// A PDB whose SymCache was asked for, and neither is there nor can be made: somebody who has Microsoft's tool can make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The scope of who asks.
    pub scope: Scope,
    /// The file name of the PDB, as it was asked for last.
    pub pdb: String,
    /// Identity of the PDB.
    pub debug_id: DebugId,
    /// The highest version that a client asked for.
    pub version: FormatVersion,
    /// How often it was asked for, give or take what one instance was asked within a minute.
    pub asked: u64,
    /// When it was asked for first.
    pub first_at: Timestamp,
    /// When it was asked for last.
    pub last_at: Timestamp,
    /// From when on it may be forgotten.
    pub expires_at: Timestamp,
}

impl Wanted {
    /// The most that is remembered of a scope.
    pub const MAX_ITEMS: u64 = 4096;
}

/// A source that a request defined: how `derive` learns of it, since messages carry no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceDefinition {
    /// Its key.
    pub key: SourceKey,
    /// The definition, sealed.
    #[serde(rename = "sealed")]
    pub encrypted: String,
    /// From when on it may be forgotten.
    pub expires_at: Timestamp,
}

/// A request that was answered `pending`; any instance can continue it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRequest {
    /// The id that was answered.
    pub id: String,
    /// The scope it was made in.
    pub scope: Scope,
    /// What was asked.
    pub body: RequestBody,
    /// Whether that is sealed, because there are credentials in it.
    #[serde(default, rename = "sealed", skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// From when on it may be forgotten.
    pub expires_at: Timestamp,
}

/// What was asked, where it fits; else where it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestBody {
    /// The JSON itself.
    Inline(String),
    /// The path of a blob that holds the JSON.
    Blob(String),
}

/// Where the sweep is: a run that stops before its deadline goes on in the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCursor {
    /// The number of the pass that is under way, from one.
    pub pass: u64,
    /// When that pass began.
    pub began_at: Timestamp,
    /// How far each segment of the records is walked.
    pub segments: Vec<SegmentProgress>,
    /// What this pass counted so far.
    pub tally: Tally,
    /// What the byte budget of derived caches costs in this pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<EvictionCut>,
    /// What the byte budget of copies costs in this pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_cut: Option<EvictionCut>,
    /// What became of the asks of the pass before.
    pub drained: Drained,
    /// The last key of the uploads bucket that was compared; none at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploads_after: Option<Location>,
    /// The last blob that was looked at; none where no walk over the blobs is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blobs_after: Option<String>,
    /// When the last walk over the blobs began.
    #[serde(default)]
    pub blobs_began_at: Timestamp,
    /// How many items each list of entries takes.
    #[serde(default)]
    pub lists: SweepLists,
    /// Scopes with repaired [`Presence`] items whose [`Generation`] could not be written yet.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unannounced: BTreeSet<Scope>,
}

/// How many items the lists of entries take which the sweep keeps. Builds before this field wrote one item a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepLists {
    /// The list of entries that the pass under way found behind so far.
    pub gathering: usize,
    /// The list of entries that the last whole pass found behind.
    pub manifest: usize,
    /// The list of entries that this pass asked for.
    #[serde(rename = "asked")]
    pub requested: usize,
}

/// How far a segment of the records is walked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentProgress {
    /// Not at all.
    #[default]
    Begin,
    /// Up to the item with this key.
    After(ItemKey),
    /// To its end.
    Done,
}

/// What a whole pass of the sweep counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The number of the pass.
    pub pass: u64,
    /// When it began.
    pub began_at: Timestamp,
    /// When it ended.
    pub at: Timestamp,
    /// The converter that it compared with.
    pub converter: Converter,
    /// What it counted.
    pub tally: Tally,
    /// What became of the asks of the pass before.
    pub drained: Drained,
}

impl Item {
    /// Returns the schema that the item is written with: the least whose builds can read it. A build of a lower schema
    /// leaves the item alone.
    pub fn schema(&self) -> u32 {
        match self {
            Item::Upload(upload) if have_companions(&upload.objects) => 3,
            Item::Objects(chunk) if have_companions(&chunk.objects) => 3,
            Item::Dif(dif) if !dif.needs.is_empty() || dif.module.is_of_companions() => 3,
            Item::Presence(_) | Item::Generation(_) | Item::Objects(_) | Item::Overflow(_) => 2,
            // A build that does not know of the chunks would take the upload for one without
            // objects.
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
            | Item::Manifest(_)
            | Item::Rollout(_) => 1,
        }
    }

    /// Returns the entry that it is, if it is one.
    pub fn entry(&self) -> Option<&Entry> {
        match self {
            Item::Entry(entry) => Some(entry),
            _ => None,
        }
    }

    /// Returns the upload that it is, if it is one.
    pub fn upload(&self) -> Option<&Upload> {
        match self {
            Item::Upload(upload) => Some(upload),
            _ => None,
        }
    }

    /// Returns when the store may forget the item by itself: only items that own neither blob nor lease say so.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match self {
            Item::Upload(upload) => upload.expires_at,
            Item::Request(request) => Some(request.expires_at),
            Item::Source(source) => Some(source.expires_at),
            Item::Wanted(wanted) => Some(wanted.expires_at),
            Item::Health(health) => Some(health.expires_at),
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
            | Item::Manifest(_)
            | Item::Rollout(_)
            | Item::Newer { .. } => None,
        }
    }

    /// Returns the key that the item is stored under; `None` where the item does not tell.
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
            Item::Alias(_) | Item::Manifest(_) | Item::Newer { .. } => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_knows_no_companions_leaves_uploads_with_them_alone() {
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
        assert_eq!(schema(vec![plain, companion]), 3);
    }

    #[test]
    fn an_upload_and_its_objects_are_read_as_builds_before_their_last_fields_wrote_them() {
        let object = serde_json::json!({
            "module": {"code": "ac456ebc"}, "code_id": "ac456ebc", "file_type": "elf_code", "arch": "x86_64",
            "features": {"has_debug_info": false, "has_unwind_info": true, "has_symbols": true, "has_sources": false}
        });
        let upload = serde_json::json!({
            "key": "global/a", "etag": "1", "sequencer": "00", "size": 7, "objects": [object], "state": "applied",
            "crashes": 0, "reconciled": 0, "at": 1000
        });
        let read: Upload = serde_json::from_value(upload.clone()).unwrap();
        assert_eq!(read.passed_over, [""; 0]);
        assert_eq!(read.objects[0].fault, None);
        // And written so where they say nothing, as those builds read them.
        assert_eq!(serde_json::to_value(&read).unwrap(), upload);
    }
}
