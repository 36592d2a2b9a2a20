//! Companions: files with debug information that a program leaves out or that several programs
//! share, and files with the names that a program hides.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CodeId, DebugId};

/// The id that a file and its companion both contain, by which they find each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CompanionId {
    /// The id of a unit of split DWARF, in 16 hex digits. The program contains its skeleton; a
    /// `.dwo` file or a package contains the unit itself.
    Unit(String),
    /// The build id of a file into which `dwz` moved the debug information that several programs
    /// share.
    Shared(#[cfg_attr(feature = "openapi", schemars(with = "super::schema::CodeIdText"))] CodeId),
    /// The id of a symbol map. The UUID map of a Mach-O file contains it; the symbol map has it in
    /// its name.
    SymbolMap(
        #[cfg_attr(feature = "openapi", schemars(with = "super::schema::DebugIdText"))] DebugId,
    ),
}

impl CompanionId {
    /// The maximum number of split units by whose ids a program finds their files one by one. The
    /// record of the program lists all files, and each request reads it.
    pub const MAX_UNITS: usize = 512;

    /// The maximum number of ids by which a package of split units is found.
    pub const MAX_OF_PACKAGE: usize = 32;

    /// Returns the id of a unit.
    pub fn unit(id: u64) -> Self {
        Self::Unit(format!("{id:016x}"))
    }
}

impl CompanionId {
    /// Reads the text of an id, as it is displayed; `None` if it is not one.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("unit", id) => Some(Self::Unit(id.to_owned())),
            ("shared", id) => Some(Self::Shared(CodeId::new(id.to_owned()))),
            ("symbol_map", id) => id.parse().ok().map(Self::SymbolMap),
            _ => None,
        }
    }
}

impl fmt::Display for CompanionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit(id) => write!(f, "unit:{id}"),
            Self::Shared(id) => write!(f, "shared:{id}"),
            Self::SymbolMap(id) => write!(f, "symbol_map:{id}"),
        }
    }
}
