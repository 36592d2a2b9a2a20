//! What is found in a DIF when it is opened.

use serde::{Deserialize, Serialize};

use super::{CodeId, CompanionId, DebugId, Features, FileType, Missing};

/// What is in a DIF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// Its objects; those that cannot be parsed have left a line in `ignored`.
    pub objects: Vec<ObjectMeta>,
    /// What was passed over, and why: `name: reason`, for a human.
    pub ignored: Vec<String>,
    /// What it has that completes objects of other DIFs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<CompanionId>,
}

/// How the bytes of a DIF lie in scratch space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// All of one file.
    Whole,
    /// Parts of one file: the rest reads as zeros, which is enough for its ids at best.
    InPart,
    /// Several files, each from an offset on, in bytes, and with a length.
    Together(Vec<(u64, u64)>),
}

/// One object in a DIF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMeta {
    /// Its place in the DIF, counted from zero.
    pub index: usize,
    /// Identity of the debug file; `None` if nil.
    pub debug_id: Option<DebugId>,
    /// Identity of the code file.
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
    /// What companions of it have, in other DIFs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// Why nothing can be derived from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Missing>,
}
