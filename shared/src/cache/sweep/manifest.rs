//! The list of the outdated entries, in the order in which they are rebuilt.

use serde::{Deserialize, Serialize};

use crate::cache::{Entry, ItemKey, Kind, ModuleKey, Token};
use crate::domain::Timestamp;

/// The maximum number of items of a manifest.
const MANIFEST_ITEMS: usize = 16;

/// The maximum number of entries in one item of a manifest.
const MANIFEST_ENTRIES: usize = 1500;

/// The maximum bytes of the entries in one item of a manifest; DynamoDB allows 400 KB per item.
const MANIFEST_BYTES: usize = 300 * 1024;

/// The bytes of an entry of a manifest besides its texts, rounded up.
const BEHIND_BYTES: usize = 120;

/// An entry that is outdated, or whose rebuild was requested for that reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// The module.
    #[serde(flatten)]
    pub module: ModuleKey,
    /// The kind.
    pub kind: Kind,
    /// When the entry was last used.
    pub last_used_at: Timestamp,
    /// The id of the build request, if there is one.
    #[serde(default, rename = "ask", skip_serializing_if = "Option::is_none")]
    pub build_request: Option<Token>,
}

impl Behind {
    /// Returns an entry's line in a manifest.
    pub fn of(entry: &Entry) -> Self {
        Self {
            module: entry.module.clone(),
            kind: entry.kind,
            last_used_at: entry.last_used_at,
            build_request: None,
        }
    }

    /// Returns the entry's key.
    pub fn key(&self) -> ItemKey {
        self.module.entry(self.kind)
    }

    fn bytes(&self) -> usize {
        let ModuleKey {
            scope,
            source,
            id: module,
        } = &self.module;
        BEHIND_BYTES + scope.as_str().len() + source.to_string().len() + module.len()
    }
}

/// Entries in the order of their last use, most recent first. A stored manifest is spread over
/// several items, each of which is a manifest of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// When it was written.
    pub at: Timestamp,
    /// The entries.
    pub entries: Vec<Behind>,
}

impl Manifest {
    /// The maximum number of entries of all items together.
    pub(super) const MAX_ENTRIES: usize = MANIFEST_ITEMS * MANIFEST_ENTRIES;

    /// Adds an entry. Drops the least recently used ones if the list has grown too long.
    pub fn add(&mut self, behind: Behind) {
        self.entries.push(behind);
        if self.entries.len() >= 2 * Self::MAX_ENTRIES {
            self.trim();
        }
    }

    /// Sorts the entries, and drops those that do not fit into the items.
    pub fn trim(&mut self) {
        self.entries
            .retain(|behind| behind.bytes() <= MANIFEST_BYTES);
        self.entries
            .sort_by_key(|behind| std::cmp::Reverse(behind.last_used_at));
        let room = self.lengths().into_iter().sum();
        self.entries.truncate(room);
    }

    /// Splits the manifest into the items that store it.
    pub fn into_items(mut self) -> Vec<Self> {
        self.trim();
        let (at, lengths) = (self.at, self.lengths());
        let mut entries = self.entries.into_iter();
        let mut item = |length| Self {
            at,
            entries: entries.by_ref().take(length).collect(),
        };
        lengths.into_iter().map(&mut item).collect()
    }

    /// Joins the items of a stored manifest.
    pub fn from_items(items: impl IntoIterator<Item = Self>) -> Self {
        let mut items = items.into_iter();
        let mut whole = items.next().unwrap_or_default();
        whole.entries.extend(items.flat_map(|item| item.entries));
        whole
    }

    /// Returns how many of the entries, in their order, each item holds.
    fn lengths(&self) -> Vec<usize> {
        let mut lengths = Vec::new();
        let mut bytes = 0;
        for behind in &self.entries {
            bytes += behind.bytes();
            let items = lengths.len();
            match lengths.last_mut() {
                Some(length) if *length < MANIFEST_ENTRIES && bytes <= MANIFEST_BYTES => {
                    *length += 1;
                }
                _ if items == MANIFEST_ITEMS => break,
                _ => {
                    lengths.push(1);
                    bytes = behind.bytes();
                }
            }
        }
        lengths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::change::examples::entry;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn a_manifest_keeps_the_most_recently_used_that_fit() {
        let behind = |number: u64, module: String| {
            let mut line = Behind::of(&entry());
            line.last_used_at = at(number);
            line.module.id = module;
            line
        };
        let mut manifest = Manifest {
            at: at(7),
            entries: Vec::new(),
        };
        for number in 0..60_000 {
            manifest.add(behind(number, "debug_id".to_owned()));
        }
        manifest.trim();
        assert_eq!(manifest.entries.len(), Manifest::MAX_ENTRIES);
        assert_eq!(manifest.entries[0].last_used_at, at(59_999));
        for number in 60_000..60_100 {
            manifest.add(behind(number, "x".repeat(10_000)));
        }
        manifest.add(behind(99_999, "x".repeat(MANIFEST_BYTES)));
        manifest.trim();
        assert_eq!(manifest.entries[0].last_used_at, at(60_099));
        let items = manifest.clone().into_items();
        assert_eq!(items.len(), MANIFEST_ITEMS);
        for item in &items {
            let json = serde_json::to_vec(item).unwrap();
            assert!(json.len() < 400 << 10, "{}", json.len());
            assert!(item.entries.len() <= MANIFEST_ENTRIES && item.at == at(7));
        }
        assert_eq!(Manifest::from_items(items), manifest);
        assert_eq!(Manifest::default().into_items(), []);
    }
}
