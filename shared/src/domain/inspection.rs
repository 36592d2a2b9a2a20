//! The result of inspecting a DIF.

use serde::{Deserialize, Serialize};

use super::{CodeId, CompanionId, DebugId, Features, FileType, Missing};

/// The contents of a DIF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// The objects. Each object that cannot be parsed has a line in `ignored` instead.
    pub objects: Vec<ObjectMeta>,
    /// What was skipped, and why: `name: reason`, for people.
    pub ignored: Vec<String>,
    /// The companion ids under which this DIF completes objects of other DIFs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<CompanionId>,
}

/// How the bytes of a DIF are laid out in scratch space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// One file, complete except for sections that nothing reads.
    Whole,
    /// Ranges of one file. The rest reads as zeros. At best, this is enough to read the ids.
    InPart,
    /// Several files, each with its offset and length in bytes.
    Together(Vec<(u64, u64)>),
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
    /// Why nothing can be derived from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Missing>,
}
