//! Microsoft's SymCaches, which WPA and TraceProcessor read: format versions and file names.
//!
//! The format is proprietary. A file is recognized only by its name:
//! `app.pdb/<GUID><age>/app.pdb-v3.1.0.symcache`, with the age in hex. Apart from its name, it has
//! nothing in common with the SymCache of `symbolic`.
//!
//! Sources: Microsoft's sample server for SymCaches, `README.md` (versions, and which serve which
//! client); the folders of the Windows Performance Toolkit (names).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{DebugId, Location};

/// A version of the format.
///
/// A client reads files of its own and of earlier major versions, with any minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct FormatVersion {
    /// Changes if older clients cannot read the file.
    pub major: u16,
    /// Changes if older clients can ignore the change.
    pub minor: u8,
    /// Changes in all other cases.
    pub patch: u8,
}

impl FormatVersion {
    /// The first version that follows these rules.
    pub const FIRST: Self = Self {
        major: 3,
        minor: 0,
        patch: 0,
    };

    /// Returns the version as a number. Numbers have the order of the versions.
    pub const fn as_u32(self) -> u32 {
        (self.major as u32) << 16 | (self.minor as u32) << 8 | self.patch as u32
    }

    /// Returns the version with this number.
    pub const fn from_u32(number: u32) -> Self {
        let [high, low, minor, patch] = number.to_be_bytes();
        Self {
            major: u16::from_be_bytes([high, low]),
            minor,
            patch,
        }
    }

    /// Returns whether a client of this version can read a file of another version.
    pub fn reads(self, other: Self) -> bool {
        other >= Self::FIRST && other.major <= self.major
    }
}

/// A text that is not a version: three numbers separated by dots, the first up to 65,535, the
/// others up to 255.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid version {0:?}: expected three numbers separated by dots, as in 3.1.0")]
pub struct InvalidFormatVersion(String);

impl FromStr for FormatVersion {
    type Err = InvalidFormatVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidFormatVersion(text.to_owned());
        // `parse` accepts signs, which versions do not have.
        if !text.bytes().all(|c| c.is_ascii_digit() || c == b'.') {
            return Err(invalid());
        }
        let numbers: Vec<&str> = text.split('.').collect();
        let &[major, minor, patch] = numbers.as_slice() else {
            return Err(invalid());
        };
        Ok(Self {
            major: major.parse().map_err(|_| invalid())?,
            minor: minor.parse().map_err(|_| invalid())?,
            patch: patch.parse().map_err(|_| invalid())?,
        })
    }
}

impl TryFrom<String> for FormatVersion {
    type Error = InvalidFormatVersion;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<FormatVersion> for String {
    fn from(version: FormatVersion) -> Self {
        version.to_string()
    }
}

impl fmt::Display for FormatVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
        } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The name of a file, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MsSymCacheName {
    /// The file name of the PDB in lower case, because Windows file names are case-insensitive.
    pub pdb: String,
    /// The debug id of the PDB.
    pub debug_id: DebugId,
    /// The version of the format.
    pub version: FormatVersion,
}

impl MsSymCacheName {
    const SUFFIX: &'static str = ".symcache";

    /// Returns whether a file has the extension of a SymCache, whatever the rest of its name.
    pub fn is_suggested_by(location: &Location) -> bool {
        let text = location.as_str().as_bytes();
        let suffix = text.get(text.len().saturating_sub(Self::SUFFIX.len())..);
        suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case(Self::SUFFIX.as_bytes()))
    }

    /// Parses the last three segments of a location, in any case.
    pub fn of(location: &Location) -> Option<Self> {
        let text = location.as_str().to_ascii_lowercase();
        let mut segments = text.rsplit('/');
        let (file, id, pdb) = (segments.next()?, segments.next()?, segments.next()?);
        let version = file
            .strip_suffix(Self::SUFFIX)?
            .strip_prefix(pdb)?
            .strip_prefix("-v")?;
        Some(Self {
            pdb: pdb.to_owned(),
            debug_id: id_with_age(id)?,
            version: version.parse().ok()?,
        })
    }

    /// Returns the path of the file as Microsoft's tools store it, in lower case.
    pub fn path(&self) -> String {
        let Self {
            pdb,
            debug_id,
            version,
        } = self;
        let (guid, age) = (debug_id.uuid().simple(), debug_id.appendix());
        format!("{pdb}/{guid}{age:x}/{pdb}-v{version}{}", Self::SUFFIX)
    }
}

/// Parses a GUID that is followed by an age, in hex.
fn id_with_age(text: &str) -> Option<DebugId> {
    const GUID_DIGITS: usize = 32;
    if !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let (guid, age) = text.split_at_checked(GUID_DIGITS)?;
    let guid = uuid::Uuid::try_parse(guid).ok()?;
    let age = u32::from_str_radix(age, 16).ok()?;
    (!guid.is_nil()).then(|| DebugId::from_parts(guid, age))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> FormatVersion {
        text.parse().unwrap()
    }

    #[test]
    fn versions_and_their_numbers_have_the_same_order() {
        let texts = [
            "0.0.1",
            "2.9.9",
            "3.0.0",
            "3.0.255",
            "3.1.0",
            "4.0.0",
            "65535.255.255",
        ];
        let versions = texts.map(version);
        assert!(versions.is_sorted());
        assert!(versions.is_sorted_by_key(|version| version.as_u32()));
        for (version, text) in versions.into_iter().zip(texts) {
            assert_eq!(version.to_string(), text);
            assert_eq!(FormatVersion::from_u32(version.as_u32()), version);
        }
    }

    #[test]
    fn an_invalid_version_is_refused() {
        for text in [
            "",
            "3",
            "3.1",
            "3.1.0.0",
            "3.1.x",
            "3.256.0",
            "3.0.256",
            "65536.0.0",
            "-3.1.0",
            "+3.1.0",
            " 3.1.0",
            "3..0",
            "3.1.0-rc",
            "x3.0.0y",
        ] {
            assert!(text.parse::<FormatVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_client_reads_older_majors_and_every_minor_version_of_its_own() {
        let reads = |client: &str, file: &str| version(client).reads(version(file));
        assert!(reads("4.1.0", "3.2.0") && reads("4.1.0", "4.5.0") && reads("3.0.0", "3.1.0"));
        assert!(!reads("4.1.0", "5.0.0") && !reads("4.1.0", "2.9.9"));
    }

    #[test]
    fn a_name_is_parsed_in_any_case_and_in_any_folder() {
        let name = |at: &str| MsSymCacheName::of(&Location::new(at));
        let at = "global/SymCache/My App.PDB/0123456789ABCDEF0123456789abcdef1F/My App.pdb-V3.1.0.SymCache";
        let found = name(at).unwrap();
        assert_eq!(found.pdb, "my app.pdb");
        assert_eq!(found.version, version("3.1.0"));
        assert_eq!(
            found.debug_id.to_string(),
            "01234567-89ab-cdef-0123-456789abcdef-1f"
        );
        assert_eq!(
            found.path(),
            "my app.pdb/0123456789abcdef0123456789abcdef1f/my app.pdb-v3.1.0.symcache"
        );
        assert_eq!(name(&format!("x/{}", found.path())), Some(found));
    }

    #[test]
    fn an_inconsistent_name_is_rejected() {
        let id = "0123456789abcdef0123456789abcdef1";
        for at in [
            format!("a.pdb/{id}/b.pdb-v3.1.0.symcache"),
            format!("a.pdb/{id}/a.pdb-v3.1.symcache"),
            format!("a.pdb/{id}/a.pdb.symcache"),
            format!("{id}/a.pdb-v3.1.0.symcache"),
            "a.pdb/0123456789abcdef0123456789abcdef/a.pdb-v3.1.0.symcache".to_owned(),
            "a.pdb/g123456789abcdef0123456789abcdef1/a.pdb-v3.1.0.symcache".to_owned(),
            format!("a.pdb/{}1/a.pdb-v3.1.0.symcache", "0".repeat(32)),
            "app.exe-012345672345v1.symcache".to_owned(),
        ] {
            let at = Location::new(at);
            assert!(MsSymCacheName::is_suggested_by(&at), "{at}");
            assert_eq!(MsSymCacheName::of(&at), None, "{at}");
        }
        assert!(!MsSymCacheName::is_suggested_by(&Location::new("a.pdb")));
    }
}
