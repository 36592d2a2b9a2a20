//! The schemas that an answer to a minidump may have.

use serde::{Deserialize, Serialize};

/// The schema of the answer to a minidump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFormat {
    /// That of all other answers.
    #[default]
    Symbolicator,
    /// That of `minidump-stackwalk`, a tool of rust-minidump, which writes it for Socorro.
    Stackwalk,
}

impl ResponseFormat {
    /// Returns whether it is that of all other answers.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the format of this name, as a client writes it.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "symbolicator" => Some(Self::Symbolicator),
            "stackwalk" => Some(Self::Stackwalk),
            _ => None,
        }
    }
}
