//! The features of an object, the purposes it can serve, and how well it serves them.

use serde::{Deserialize, Deserializer, Serialize};

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
    pub srcsrv_vcs: Option<VersionControl>,
}

/// The version control system of a source server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum VersionControl {
    /// Git.
    Git,
    /// Perforce.
    Perforce,
    /// Another one, or a web server.
    Other,
}

impl VersionControl {
    /// Returns the version control system that a PDB names. The names are those of the tools that
    /// wrote the PDB, so they differ in case and may have additions.
    pub fn of_name(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        if name.contains("git") {
            Self::Git
        } else if name.contains("perforce") {
            Self::Perforce
        } else {
            Self::Other
        }
    }
}

/// Earlier releases stored the name as the PDB has it.
impl<'de> Deserialize<'de> for VersionControl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Ok(Self::of_name(&name))
    }
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
        self.srcsrv_vcs = self.srcsrv_vcs.or(*srcsrv_vcs);
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
    SourceCode,
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
            Purpose::SourceCode if features.has_sources => 0,
            Purpose::Debug | Purpose::Unwind | Purpose::SourceCode => 2,
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
    fn the_name_of_a_version_control_system_is_one_of_three_however_it_was_stored() {
        for (name, expected) in [
            ("Perforce", "perforce"),
            ("PERFORCE_SERVER", "perforce"),
            ("Git", "git"),
            ("TFS_GIT", "git"),
            ("git", "git"),
            ("http", "other"),
            ("Subversion", "other"),
            ("", "other"),
        ] {
            let read: VersionControl = serde_json::from_value(name.into()).unwrap();
            assert_eq!(read, VersionControl::of_name(name), "{name}");
            assert_eq!(serde_json::to_value(read).unwrap(), expected, "{name}");
            let again: VersionControl = serde_json::from_value(expected.into()).unwrap();
            assert_eq!(again, read, "{name}");
        }
    }

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
