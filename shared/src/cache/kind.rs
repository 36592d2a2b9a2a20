//! The kinds of derived caches.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::domain::{FileType, Purpose};

/// A kind of derived cache; it is the sort key of an entry, so its text is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Unwind information, as Breakpad `STACK` records.
    CfiCache,
    /// Functions and lines of .NET modules.
    PpdbCache,
    /// Functions and lines of native modules.
    SymCache,
}

impl Kind {
    /// Every kind, in the order of their texts, which is the order in which leases are taken.
    pub const ALL: [Kind; 3] = [Kind::CfiCache, Kind::PpdbCache, Kind::SymCache];

    /// Returns the text that keys and messages carry.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::CfiCache => "cficache",
            Kind::PpdbCache => "ppdbcache",
            Kind::SymCache => "symcache",
        }
    }

    /// Returns the kind with this text.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Returns what a DIF must offer to serve this kind well.
    pub const fn purpose(self) -> Purpose {
        match self {
            Kind::CfiCache => Purpose::Unwind,
            Kind::PpdbCache | Kind::SymCache => Purpose::Debug,
        }
    }

    /// Returns the kinds that are derived from a DIF of this type.
    pub const fn derived_from(file_type: FileType) -> &'static [Kind] {
        match file_type {
            FileType::PortablePdb => &[Kind::PpdbCache],
            FileType::SourceBundle => &[],
            _ => &[Kind::CfiCache, Kind::SymCache],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_listed_in_the_order_of_their_texts() {
        assert!(Kind::ALL.is_sorted_by_key(|kind| kind.as_str()) && Kind::ALL.is_sorted());
        for kind in Kind::ALL {
            assert_eq!(Kind::from_text(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
