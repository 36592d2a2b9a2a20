//! The kinds of derived caches.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{FileType, Purpose};

/// A kind of derived cache. Its text is the sort key of an entry and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum Kind {
    /// Unwind information, as Breakpad `STACK` records.
    CfiCache,
    /// Microsoft's SymCache, of this major version of its format. The bytes are opaque: they are
    /// stored and served, and never read here.
    MsSymCache(u16),
    /// Functions and lines of .NET modules.
    PpdbCache,
    /// Source files, by path and line.
    SourceCode,
    /// Functions and lines of native modules.
    SymCache,
}

impl Kind {
    /// Every kind that is derived here, in the order of the texts. Leases are taken in this order.
    pub const DERIVED: [Kind; 4] = [
        Kind::CfiCache,
        Kind::PpdbCache,
        Kind::SourceCode,
        Kind::SymCache,
    ];

    /// The prefix of the text of [`Kind::MsSymCache`].
    const MS_SYM_CACHE: &str = "mssymcache";

    /// Returns the kind with this text.
    pub fn from_text(text: &str) -> Option<Self> {
        let major = || text.strip_prefix(Self::MS_SYM_CACHE)?.parse().ok();
        let ms = major().map(Kind::MsSymCache);
        let mut kinds = Self::DERIVED.into_iter().chain(ms);
        kinds.find(|kind| kind.to_string() == text)
    }

    /// Returns the purpose that determines how well a DIF serves this kind.
    pub const fn purpose(self) -> Purpose {
        match self {
            Kind::CfiCache => Purpose::Unwind,
            Kind::SourceCode => Purpose::SourceCode,
            Kind::MsSymCache(_) | Kind::PpdbCache | Kind::SymCache => Purpose::Debug,
        }
    }

    /// Returns whether the bytes are opaque: other programs make and read them.
    pub const fn is_opaque(self) -> bool {
        matches!(self, Kind::MsSymCache(_))
    }

    /// Returns whether companions of a program complete it: they contain functions and lines only.
    pub const fn is_completed(self) -> bool {
        matches!(self, Kind::SymCache)
    }

    /// Returns whether files of this type complete it, although it is not made from them alone.
    pub const fn is_completed_by(self, file_type: FileType) -> bool {
        matches!(self, Kind::SymCache) && matches!(file_type, FileType::UuidMap | FileType::Il2Cpp)
    }

    /// Returns whether a symbol server is searched for it only if a request needs it. The other
    /// kinds come from files that are fetched anyway.
    pub const fn is_sought_on_request(self) -> bool {
        matches!(self, Kind::SourceCode)
    }

    /// Returns whether it can be made from a DIF of this type.
    pub fn comes_of(self, file_type: FileType) -> bool {
        match self {
            Kind::MsSymCache(_) => matches!(file_type, FileType::Pdb | FileType::MsSymCache),
            _ => Self::derived_from(file_type).contains(&self),
        }
    }

    /// Returns the kinds that are derived here from a DIF of this type.
    pub const fn derived_from(file_type: FileType) -> &'static [Kind] {
        match file_type {
            FileType::PortablePdb => &[Kind::PpdbCache, Kind::SourceCode],
            FileType::SourceBundle => &[Kind::SourceCode],
            FileType::MsSymCache | FileType::UuidMap | FileType::BcSymbolMap | FileType::Il2Cpp => {
                &[]
            }
            _ => &[Kind::CfiCache, Kind::SymCache],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::CfiCache => f.write_str("cficache"),
            Kind::MsSymCache(major) => write!(f, "{}{major}", Self::MS_SYM_CACHE),
            Kind::PpdbCache => f.write_str("ppdbcache"),
            Kind::SourceCode => f.write_str("sources"),
            Kind::SymCache => f.write_str("symcache"),
        }
    }
}

/// A text that does not name a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind of cache: {0:?}")]
pub struct UnknownKind(String);

impl TryFrom<String> for Kind {
    type Error = UnknownKind;

    fn try_from(text: String) -> Result<Self, UnknownKind> {
        Self::from_text(&text).ok_or(UnknownKind(text))
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_listed_in_the_order_of_their_texts() {
        let texts = Kind::DERIVED.map(|kind| kind.to_string());
        assert!(texts.is_sorted() && Kind::DERIVED.is_sorted());
        let ms = [Kind::MsSymCache(3), Kind::MsSymCache(u16::MAX)];
        for kind in Kind::DERIVED.into_iter().chain(ms) {
            assert_eq!(Kind::from_text(&kind.to_string()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.to_string());
        }
        for text in [
            "mssymcache",
            "mssymcache03",
            "mssymcache+3",
            "mssymcache65536",
            "SymCache",
        ] {
            assert_eq!(Kind::from_text(text), None, "{text}");
        }
    }
}
