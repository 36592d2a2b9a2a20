//! DIFs as they are filed under a module.

use serde::{Deserialize, Serialize};

use crate::cache::decide::Capabilities;
use crate::cache::key::ModuleKey;
use crate::cache::kind::Kind;
use crate::domain::{
    CompanionId, DifRef, Features, FileType, FormatVersion, Missing, MsSymCacheName,
};

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
