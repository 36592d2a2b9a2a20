//! The result of inspecting a DIF.

use serde::{Deserialize, Serialize};

use super::{AuxiliaryFile, CodeId, CompanionId, DebugId, Features, FileType, Missing};

/// The contents of a DIF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// The objects. Each object that cannot be parsed has a line in `skipped` instead.
    pub objects: Vec<ObjectMeta>,
    /// What was skipped, and why: `name: reason`, for people.
    #[serde(rename = "ignored")]
    pub skipped: Vec<String>,
    /// The companion ids under which this DIF completes objects of other DIFs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<CompanionId>,
    /// The auxiliary files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub auxiliary: Vec<AuxiliaryFile>,
}

/// How the bytes of a DIF are laid out in scratch space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// One file, complete except for sections that nothing reads.
    Whole,
    /// Ranges of one file. The rest reads as zeros. At best, this is enough to read the ids.
    InPart,
    /// Several files.
    Together(Vec<WrittenFile>),
}

/// One of several files in scratch space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The id of an auxiliary file, which is not part of its bytes.
    pub id: Option<DebugId>,
}

/// One object in a DIF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMeta {
    /// The index in the DIF, from zero.
    pub index: usize,
    /// The debug id; `None` if nil.
    pub debug_id: Option<DebugId>,
    /// The code id.
    pub code_id: Option<CodeId>,
    /// The file type.
    pub file_type: FileType,
    /// The architecture, as `symbolic` names it.
    pub arch: String,
    /// The features.
    pub features: Features,
    /// Whether the DIF contains other files that may complete the object. Of two otherwise equal
    /// objects, the accompanied one ranks higher.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_accompanied: bool,
    /// The ids of the companions that it needs from other DIFs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// Whether names are hidden: a symbol map has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hides_names: bool,
    /// Why nothing can be derived from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Missing>,
}
