//! What identifies a module and the objects that belong to it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CodeId, CompanionId, DebugId, ObjectType};

/// The ids and names by which a module of a crash is looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Identity of the debug file.
    pub debug_id: Option<DebugId>,
    /// Identity of the code file.
    pub code_id: Option<CodeId>,
    /// Name of the debug file, path included.
    pub debug_file: Option<String>,
    /// Name of the code file, path included.
    pub code_file: Option<String>,
    /// What kind of module it is.
    pub object_type: ObjectType,
}

/// The id that a module's entries are filed under: its debug id, or else its code id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleId {
    /// By debug id.
    Debug(DebugId),
    /// By code id, for want of a debug id.
    Code(CodeId),
    /// By what a file and its companion have in common. No crash names it, and no cache is made for it: it is where the two meet.
    Companion(CompanionId),
}

impl ModuleId {
    /// How the text of a [`ModuleId::Companion`] begins, and no other.
    pub const COMPANION_PREFIX: &str = "companion:";

    /// Returns the id to file under; `None` where there is neither, or only nil ids.
    pub fn of(debug_id: Option<DebugId>, code_id: Option<&CodeId>) -> Option<Self> {
        match (debug_id, code_id) {
            (Some(id), _) if !id.is_nil() => Some(Self::Debug(id)),
            (_, Some(id)) if !is_nil(id) => Some(Self::Code(id.clone())),
            _ => None,
        }
    }
}

/// Tells whether a code id says nothing: no digits, or only zeros.
fn is_nil(id: &CodeId) -> bool {
    id.as_str().bytes().all(|digit| digit == b'0')
}

impl fmt::Display for ModuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debug(id) => write!(f, "debug_id:{id}"),
            Self::Code(id) => write!(f, "code_id:{id}"),
            Self::Companion(id) => write!(f, "{}{id}", Self::COMPANION_PREFIX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_id_files_a_module_and_nil_ids_do_not() {
        let debug: DebugId = "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap();
        let code = CodeId::new("f1c3bcc0".into());
        assert_eq!(
            ModuleId::of(Some(debug), Some(&code)),
            Some(ModuleId::Debug(debug))
        );
        assert_eq!(
            ModuleId::of(Some(DebugId::nil()), Some(&code)),
            Some(ModuleId::Code(code))
        );
        assert_eq!(
            ModuleId::of(Some(DebugId::nil()), Some(&CodeId::new("0000".into()))),
            None
        );
        assert_eq!(ModuleId::of(None, None), None);
    }
}
