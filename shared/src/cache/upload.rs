//! Uploads: the state of each file in the uploads bucket, and the objects in it.

use serde::{Deserialize, Serialize};

use crate::cache::{ModuleKey, Token};
use crate::domain::{
    CodeId, CompanionId, Converter, DebugId, Features, FileType, Location, Missing, ModuleId,
    Sequencer, Timestamp, UploadState,
};

/// A file in the uploads bucket, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// The key in the uploads bucket.
    pub key: String,
    /// The etag of the bytes that this item describes.
    pub etag: String,
    /// The sequencer of the last event.
    pub sequencer: Sequencer,
    /// The size in bytes.
    pub size: u64,
    /// The objects, if they fit into this item.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<UploadedObject>,
    /// The chunks with the objects, if they do not fit into this item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_set: Option<ObjectSet>,
    /// The state.
    #[serde(flatten)]
    pub state: UploadState,
    /// The progress of a pending upload.
    #[serde(default, skip_serializing_if = "UploadProgress::is_begun")]
    pub progress: UploadProgress,
    /// Modules that the upload does not serve because they had reached their limit of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_room: Option<NoRoom>,
    /// What was skipped in the file, and why: lines for people, limited in number and length.
    #[serde(default, rename = "passed_over", skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Attempts to read these bytes that began and did not end well. Each is counted before it
    /// begins.
    #[serde(rename = "crashes", default)]
    pub attempts: u32,
    /// The converter that found nothing to file in these bytes. A newer one reads them again.
    #[serde(
        default,
        rename = "refused_by",
        skip_serializing_if = "Option::is_none"
    )]
    pub ignored_by: Option<Converter>,
    /// How often a message has reconciled it without effect since its last event. Messages that
    /// continue a reconciliation do not count. The pruner waits longer each time.
    #[serde(default)]
    pub reconciled: u32,
    /// When it was last written: at the last attempt, or with its result.
    pub at: Timestamp,
    /// When the store may delete the item; set only if the file was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl Upload {
    /// Returns a pending upload of which only the key is known.
    pub fn pending(key: impl Into<String>, at: Timestamp) -> Self {
        Self {
            key: key.into(),
            etag: String::new(),
            sequencer: Sequencer::default(),
            size: 0,
            objects: Vec::new(),
            object_set: None,
            state: UploadState::Pending,
            progress: UploadProgress::Begun,
            no_room: None,
            skipped: Vec::new(),
            attempts: 0,
            ignored_by: None,
            reconciled: 0,
            at,
            expires_at: None,
        }
    }

    /// Returns the location in the uploads bucket.
    pub fn location(&self) -> Location {
        Location::new(self.key.as_str())
    }

    /// Returns whether it names objects; if so, its file may be filed under modules.
    pub fn names_objects(&self) -> bool {
        !self.objects.is_empty() || self.object_set.is_some()
    }

    /// Returns whether an older converter found nothing to file in these bytes.
    pub fn was_ignored_by_older(&self, converter: Converter) -> bool {
        self.ignored_by.is_some_and(|by| by < converter)
    }

    /// Returns whether all its modules had reached their limit of files.
    pub fn is_left_out(&self) -> bool {
        let is_whole = |no_room: &NoRoom| no_room.modules == no_room.of;
        self.no_room.as_ref().is_some_and(is_whole)
    }
}

/// The progress of a pending upload. Completed steps are skipped when its message is delivered
/// again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadProgress {
    /// No step is known to be complete.
    #[default]
    Begun,
    /// The bytes that the item names were withdrawn and appear in no response. What replaces them
    /// still has to be built.
    #[serde(rename = "revoked")]
    Withdrawn,
    /// The file is filed under the modules that the item names, and their entries are marked dirty.
    /// The entries still have to be built.
    Filed,
}

impl UploadProgress {
    fn is_begun(&self) -> bool {
        *self == Self::Begun
    }
}

/// Refers to the [`ObjectChunk`]s with the objects of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectSet {
    /// The unique token of the read of the upload that wrote these chunks.
    pub token: Token,
    /// The number of objects.
    pub objects: u32,
    /// The number of chunks.
    pub chunks: u32,
}

/// Some of the objects of an upload that has too many for its own item.
///
/// The chunks are written before the upload item names them, and removed after it no longer names
/// them. A builder that is killed in between leaves them to the pruner, which removes chunks that
/// no upload item names [`ObjectChunk::MAX_UNNAMED`] after they were written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChunk {
    /// The upload's key in the uploads bucket.
    pub key: String,
    /// The token of the read, as in [`ObjectSet::token`].
    pub token: Token,
    /// The number of this chunk among those of the read, from zero.
    pub number: u32,
    /// The objects.
    pub objects: Vec<UploadedObject>,
    /// When it was written.
    pub at: Timestamp,
}

impl ObjectChunk {
    /// The age at which a chunk that no upload item names is removed. It is longer than any
    /// invocation.
    pub const MAX_UNNAMED: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

    /// Returns whether an upload item names this chunk.
    pub fn is_named_by(&self, upload: &Upload) -> bool {
        let set = upload.object_set.as_ref();
        set.is_some_and(|set| set.token == self.token && self.number < set.chunks)
    }
}

/// Modules that an upload does not serve because they had reached their limit of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoRoom {
    /// The number of these modules.
    pub modules: u32,
    /// The number of modules of the upload.
    pub of: u32,
    /// The first [`NoRoom::MAX_NAMED`] of these modules, as in [`ModuleKey::id`].
    pub named: Vec<String>,
}

impl NoRoom {
    /// The number of modules that are named.
    pub const MAX_NAMED: usize = 20;
}

/// Uploads that exceed a module's limit of files. They are re-queued when one of the module's files
/// is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overflow {
    /// The module.
    pub module: ModuleKey,
    /// The locations of the uploads, in the order of their arrival.
    pub locations: Vec<Location>,
    /// The token of the last write; every added location writes a new one.
    pub change: Token,
}

impl Overflow {
    /// The number of uploads that are kept. Further ones have to be uploaded again.
    pub const MAX_LOCATIONS: usize = 200;
}

/// One object in an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadedObject {
    /// The id that the object is filed under.
    pub module: ModuleId,
    /// The debug id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_id: Option<DebugId>,
    /// The code id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_id: Option<CodeId>,
    /// The file type.
    pub file_type: FileType,
    /// The architecture, as `symbolic` names it.
    pub arch: String,
    /// The features.
    pub features: Features,
    /// Whether the upload contains other files that may complete the object. Of two otherwise equal
    /// objects, the accompanied one ranks higher.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_accompanied: bool,
    /// The ids of the companions that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// Whether names are hidden: a symbol map has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hides_names: bool,
    /// Under a [`ModuleId::Companion`], the module that needs the companion; `None` for the
    /// companion itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed_by: Option<ModuleId>,
    /// Why nothing can be derived from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Missing>,
}

impl UploadedObject {
    /// Returns an object of which only the id and the file type are known.
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
            hides_names: false,
            needed_by: None,
            fault: None,
        }
    }
}
