//! The features of an object, the purposes it can serve, and how well it serves them.

use serde::{Deserialize, Serialize};

use super::FileType;

/// The features of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Features {
    /// Functions with lines: DWARF, PDB modules, Breakpad `FUNC` records.
    pub has_debug_info: bool,
    /// Unwind information.
    pub has_unwind_info: bool,
    /// Names without lines: symbol tables, exports, Breakpad `PUBLIC` records.
    pub has_symbols: bool,
    /// Source files.
    pub has_sources: bool,
    /// The version control system that a PDB's source server stream names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub srcsrv_vcs: Option<String>,
}

impl Features {
    /// Returns whether the symbols of another file of the same module add names that the debug
    /// information lacks.
    pub fn lack_symbols(&self, file_type: FileType) -> bool {
        file_type.is_elf() && self.has_debug_info && !self.has_symbols
    }

    /// Adds the features of another object of the same module.
    pub fn merge(&mut self, other: &Features) {
        let Features {
            has_debug_info,
            has_unwind_info,
            has_symbols,
            has_sources,
            srcsrv_vcs,
        } = other;
        self.has_debug_info |= has_debug_info;
        self.has_unwind_info |= has_unwind_info;
        self.has_symbols |= has_symbols;
        self.has_sources |= has_sources;
        if self.srcsrv_vcs.is_none() {
            self.srcsrv_vcs.clone_from(srcsrv_vcs);
        }
    }
}

/// What an object is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Names and lines.
    Debug,
    /// Stack unwinding.
    Unwind,
    /// Source lines.
    Sources,
}

/// How well an object serves a purpose: lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(u8);

impl Rank {
    /// Ranks an object for a purpose: debug information over symbols over nothing.
    pub fn of(features: &Features, purpose: Purpose) -> Self {
        Self(match purpose {
            Purpose::Debug if features.has_debug_info => 0,
            Purpose::Debug if features.has_symbols => 1,
            Purpose::Unwind if features.has_unwind_info => 0,
            Purpose::Sources if features.has_sources => 0,
            Purpose::Debug | Purpose::Unwind | Purpose::Sources => 2,
        })
    }

    /// Returns whether a better object could be found.
    pub fn quality(self) -> Quality {
        if self.0 == 0 {
            Quality::Preferred
        } else {
            Quality::Fallback
        }
    }

    /// Returns the number, as caches store it.
    pub fn as_u8(self) -> u8 {
        self.0
    }
}

/// Whether a better object could be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// No better object can be found.
    Preferred,
    /// A better object may be found later.
    Fallback,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_information_outranks_symbols_which_outrank_nothing() {
        let symbols = Features {
            has_symbols: true,
            ..Features::default()
        };
        let debug = Features {
            has_debug_info: true,
            ..Features::default()
        };
        let nothing = Features::default();
        let rank = |features| Rank::of(features, Purpose::Debug);
        assert!(rank(&debug) < rank(&symbols) && rank(&symbols) < rank(&nothing));
        assert_eq!(rank(&debug).quality(), Quality::Preferred);
        assert_eq!(
            Rank::of(&debug, Purpose::Unwind).quality(),
            Quality::Fallback
        );
    }
}
