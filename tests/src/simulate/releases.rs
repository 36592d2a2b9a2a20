//! The two releases that a deploy runs side by side.
//!
//! Both are this code. They differ in their numbers ([`ReleaseNumbers`]), in what their parsers can
//! read, and in the newest schema of the items that they read.

use std::fmt;

use serde::{Deserialize, Serialize};
use symdepot::cache::{Converter, Item, ReleaseNumbers, SCHEMA};

use super::workload::FUTURE;

/// A release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Release {
    /// The release that runs at the beginning.
    #[default]
    Older,
    /// The release that deploys bring.
    Newer,
}

/// How a newer release differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Difference {
    /// It makes caches of higher versions, which the older release cannot read.
    pub(super) raises_versions: bool,
}

impl Release {
    /// Every release, in the order of their numbers.
    pub(super) const ALL: [Self; 2] = [Self::Older, Self::Newer];

    /// Returns the numbers of this release.
    pub(super) fn numbers(self, difference: Difference) -> ReleaseNumbers {
        let older = ReleaseNumbers::CURRENT;
        if self == Self::Older {
            return older;
        }
        let raised = u32::from(difference.raises_versions);
        ReleaseNumbers {
            converter: Converter(older.converter.0 + 1),
            symcache: older.symcache + raised,
            cfi_cache: older.cfi_cache + raised,
            ..older
        }
    }

    /// Returns the schema that this release writes an item with. The newer release has a schema of
    /// its own for what it files of files that only it knows.
    pub(super) fn schema(self, item: &Item) -> u32 {
        let names_future = match item {
            Item::Upload(upload) => upload.key.contains(FUTURE),
            Item::Dif(dif) => dif.file.location.as_str().contains(FUTURE),
            _ => false,
        };
        match (self, names_future) {
            (Self::Newer, true) => SCHEMA + 1,
            _ => item.schema(),
        }
    }

    /// Returns whether this release can read items of a schema.
    pub(super) fn reads(self, schema: u32) -> bool {
        schema <= SCHEMA || self == Self::Newer
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Older => "older",
            Self::Newer => "newer",
        })
    }
}
