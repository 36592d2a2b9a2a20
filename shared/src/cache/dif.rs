//! DIFs that are filed under a module.

use serde::{Deserialize, Serialize};

use crate::cache::decide::Capabilities;
use crate::cache::key::ModuleKey;
use crate::domain::{
    CompanionId, DebugId, DifRef, Features, FileType, FormatVersion, Kind, Missing, MsSymCacheName,
    Sequencer,
};

/// An uploaded DIF that has a module's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dif {
    /// The module.
    pub module: ModuleKey,
    /// The location and the etag.
    #[serde(rename = "dif")]
    pub file: DifRef,
    /// The sequencer of the event that added it. An older event must not undo this one.
    pub sequencer: Sequencer,
    /// The size in bytes, as uploaded.
    pub size: u64,
    /// The file type of the object.
    pub file_type: FileType,
    /// The features of the object.
    pub features: Features,
    /// Whether the upload contains other files that may complete the object. Of two otherwise equal
    /// DIFs, the accompanied one ranks higher.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_accompanied: bool,
    /// The ids of the companions that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// Whether names of the object are hidden: a symbol map has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hides_names: bool,
    /// The id of an auxiliary file, which may not be part of its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auxiliary_id: Option<DebugId>,
    /// If the DIF is filed under a companion's id: the modules that need it, as in
    /// [`ModuleKey::id`]. Empty for the companion itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<String>,
    /// Why it cannot be used, if it is too large: the limit may be another one later.
    #[serde(default, rename = "refused", skip_serializing_if = "Option::is_none")]
    pub over_limit: Option<Missing>,
    /// Why nothing can be derived from the object, according to its inspection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Missing>,
}

impl Dif {
    /// Returns a DIF of which only this is known.
    pub fn new(module: ModuleKey, file: DifRef, size: u64, file_type: FileType) -> Self {
        Self {
            module,
            file,
            sequencer: Sequencer::default(),
            size,
            file_type,
            features: Features::default(),
            is_accompanied: false,
            needs: Vec::new(),
            hides_names: false,
            auxiliary_id: None,
            needed_by: Vec::new(),
            over_limit: None,
            fault: None,
        }
    }

    /// Returns whether a cache of this kind can be made from this DIF.
    pub fn serves(&self, kind: Kind) -> bool {
        match kind {
            // An archive may contain a bundle beside the file that determines its type.
            Kind::SourceCode => self.features.has_sources,
            _ => kind.comes_of(self.file_type),
        }
    }

    /// Returns whether it can be used, as far as that is known without fetching it.
    pub fn is_sound(&self) -> bool {
        self.over_limit.is_none() && self.fault.is_none()
    }

    /// Returns whether companions from other DIFs complete the SymCache that is made from it.
    pub fn is_incomplete(&self) -> bool {
        let completes = |id: &CompanionId| match id {
            CompanionId::Unit(_) | CompanionId::Shared(_) => true,
            CompanionId::SymbolMap(_) => self.hides_names,
        };
        self.needs.iter().any(completes)
    }

    /// Returns whether an auxiliary file of this type may complete the SymCache that is made from
    /// it.
    pub fn is_completed_by(&self, auxiliary: FileType) -> bool {
        match auxiliary {
            FileType::UuidMap => self.hides_names,
            FileType::Il2Cpp => self.serves(Kind::SymCache) && self.features.has_debug_info,
            _ => false,
        }
    }

    /// Returns the id of the symbol map that it needs, if it is a UUID map, or contains one.
    pub fn symbol_map(&self) -> Option<DebugId> {
        self.needs.iter().find_map(|id| match id {
            CompanionId::SymbolMap(id) => Some(*id),
            _ => None,
        })
    }

    /// Returns the version of a cache of this kind that is made from this DIF; `None` if none can
    /// be made.
    pub fn version_for(&self, kind: Kind, capabilities: &Capabilities) -> Option<u32> {
        if !self.serves(kind) {
            return None;
        }
        match (kind, self.file_type) {
            (Kind::MsSymCache(major), FileType::MsSymCache) => {
                let version = self.uploaded_version();
                let of_it = version.filter(|version| version.major == major);
                of_it.map(FormatVersion::as_u32)
            }
            _ => capabilities.made_version(kind),
        }
    }

    /// Returns the version of a Microsoft SymCache that was uploaded as such.
    pub fn uploaded_version(&self) -> Option<FormatVersion> {
        let name = MsSymCacheName::of(&self.file.location);
        let version = name.map(|name| name.version);
        version.filter(|_| self.file_type == FileType::MsSymCache)
    }
}
