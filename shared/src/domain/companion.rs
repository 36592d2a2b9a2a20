//! Files that complete others: what a program leaves out of its debug information, and several share.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::CodeId;

/// What a file and its companion both name, by which they find each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompanionId {
    /// The id of a unit of split DWARF, in 16 hex digits. The program has its skeleton, a `.dwo` or a package its contents.
    Unit(String),
    /// The build id of a file that `dwz` made of what several programs have in common.
    Shared(CodeId),
}

impl CompanionId {
    /// The most companions that a file is completed by; and the most ids that one companion is found by.
    pub const MOST: usize = 32;

    /// Returns the id of a unit.
    pub fn unit(id: u64) -> Self {
        Self::Unit(format!("{id:016x}"))
    }
}

impl fmt::Display for CompanionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit(id) => write!(f, "unit:{id}"),
            Self::Shared(id) => write!(f, "shared:{id}"),
        }
    }
}
