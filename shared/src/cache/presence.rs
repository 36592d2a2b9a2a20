//! The state of a scope's uploads: which modules have files, and when that last changed.

use serde::{Deserialize, Serialize};

use crate::cache::{ModuleKey, Token};
use crate::domain::{CodeId, Scope, Timestamp};

/// Says that a module has, or had a moment ago, files in the uploads of a scope.
///
/// It is written after each [`Dif`](super::Dif) item. It is removed only if it has not changed
/// since a query found no `Dif` item. Therefore, if a strongly consistent read does not find it, no
/// applied upload serves the module, whatever the state of the module's entries. See
/// `docs/decisions/0010-absence-of-an-upload-is-knowledge.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// The module.
    pub module: ModuleKey,
    /// The token of its last write; every added file writes a new one.
    pub change: Token,
    /// The code ids of its files. Each has an [`Alias`](super::Alias), which is removed together
    /// with this item.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code_ids: Vec<CodeId>,
    /// Whether any of its files has, or had, source files. Without it, readers need not request
    /// a build to know that there are none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_sources: bool,
}

/// The last change to the uploads of a scope. Uploads that were read after this change stay valid
/// until the generation changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// The scope.
    pub scope: Scope,
    /// The unique token of this generation.
    pub change: Token,
    /// When it began, according to the clock of the builder that applied the change.
    pub began_at: Timestamp,
}
