//! The list of the outdated entries, in the order in which they are rebuilt.

use serde::{Deserialize, Serialize};

use crate::cache::{Entry, ItemKey, Kind, ModuleKey, Token};
use crate::domain::Timestamp;

/// The maximum number of items of a list.
const MAX_ITEMS: usize = 16;

/// The maximum number of entries in one item of a list.
const MAX_ITEM_ENTRIES: usize = 1500;

/// The maximum bytes of the entries in one item of a list; DynamoDB allows 400 KB per item.
const MAX_ITEM_BYTES: usize = 300 * 1024;

/// The bytes of an entry of a list besides its texts, rounded up.
const ENTRY_BYTES: usize = 120;

/// An entry that is outdated, or whose rebuild was requested for that reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutdatedEntry {
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

impl OutdatedEntry {
    /// Returns an entry's line in a list.
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
        ENTRY_BYTES + scope.as_str().len() + source.to_string().len() + module.len()
    }
}

/// Entries in the order of their last use, most recent first. A stored list is spread over
/// several items, each of which is a list of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutdatedList {
    /// When it was written.
    pub at: Timestamp,
    /// The token of the write, which all items of a stored list have. Absent on lists of one item,
    /// and on those that were written before this field existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<Token>,
    /// The entries.
    pub entries: Vec<OutdatedEntry>,
}

impl OutdatedList {
    /// The maximum number of entries of all items together.
    pub(super) const MAX_ENTRIES: usize = MAX_ITEMS * MAX_ITEM_ENTRIES;

    /// Adds an entry. Drops the least recently used ones if the list has grown too long.
    pub fn add(&mut self, outdated: OutdatedEntry) {
        self.entries.push(outdated);
        if self.entries.len() >= 2 * Self::MAX_ENTRIES {
            self.trim();
        }
    }

    /// Sorts the entries, and drops those that do not fit into the items.
    pub fn trim(&mut self) {
        self.entries
            .retain(|outdated| outdated.bytes() <= MAX_ITEM_BYTES);
        self.entries
            .sort_by_key(|outdated| std::cmp::Reverse(outdated.last_used_at));
        let room = self.lengths().into_iter().sum();
        self.entries.truncate(room);
    }

    /// Splits the list into the items that store it.
    pub fn into_items(mut self) -> Vec<Self> {
        self.trim();
        let (at, written_by, lengths) = (self.at, self.written_by.clone(), self.lengths());
        let mut entries = self.entries.into_iter();
        let mut item = |length| Self {
            at,
            written_by: written_by.clone(),
            entries: entries.by_ref().take(length).collect(),
        };
        lengths.into_iter().map(&mut item).collect()
    }

    /// Joins the items of a stored list. If a write ended early, the later items are those of an
    /// earlier list, and are left out.
    pub fn from_items(items: impl IntoIterator<Item = Self>) -> Self {
        let mut items = items.into_iter();
        let mut whole = items.next().unwrap_or_default();
        for item in items.filter(|item| item.written_by == whole.written_by) {
            whole.entries.extend(item.entries);
        }
        whole
    }

    /// Returns how many of the entries, in their order, each item holds.
    fn lengths(&self) -> Vec<usize> {
        let mut lengths = Vec::new();
        let mut bytes = 0;
        for outdated in &self.entries {
            bytes += outdated.bytes();
            let items = lengths.len();
            match lengths.last_mut() {
                Some(length) if *length < MAX_ITEM_ENTRIES && bytes <= MAX_ITEM_BYTES => {
                    *length += 1;
                }
                _ if items == MAX_ITEMS => break,
                _ => {
                    lengths.push(1);
                    bytes = outdated.bytes();
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
    fn a_list_keeps_the_most_recently_used_that_fit() {
        let outdated = |number: u64, module: String| {
            let mut line = OutdatedEntry::of(&entry());
            line.last_used_at = at(number);
            line.module.id = module;
            line
        };
        let mut list = OutdatedList {
            at: at(7),
            written_by: Some(Token::from_random(1)),
            entries: Vec::new(),
        };
        for number in 0..60_000 {
            list.add(outdated(number, "debug_id".to_owned()));
        }
        list.trim();
        assert_eq!(list.entries.len(), OutdatedList::MAX_ENTRIES);
        assert_eq!(list.entries[0].last_used_at, at(59_999));
        for number in 60_000..60_100 {
            list.add(outdated(number, "x".repeat(10_000)));
        }
        list.add(outdated(99_999, "x".repeat(MAX_ITEM_BYTES)));
        list.trim();
        assert_eq!(list.entries[0].last_used_at, at(60_099));
        let items = list.clone().into_items();
        assert_eq!(items.len(), MAX_ITEMS);
        for item in &items {
            let json = serde_json::to_vec(item).unwrap();
            assert!(json.len() < 400 << 10, "{}", json.len());
            assert!(item.entries.len() <= MAX_ITEM_ENTRIES && item.at == at(7));
        }
        assert_eq!(OutdatedList::from_items(items), list);
        assert_eq!(OutdatedList::default().into_items(), []);
    }

    #[test]
    fn a_list_has_no_items_of_an_earlier_list() {
        let item = |write: u128, last_used_at: u64| OutdatedList {
            at: at(7),
            written_by: Some(Token::from_random(write)),
            entries: vec![OutdatedEntry {
                last_used_at: at(last_used_at),
                ..OutdatedEntry::of(&entry())
            }],
        };
        let stored = [item(2, 9), item(2, 8), item(1, 7)];
        let list = OutdatedList::from_items(stored);
        let used: Vec<Timestamp> = list
            .entries
            .iter()
            .map(|entry| entry.last_used_at)
            .collect();
        assert_eq!(used, [at(9), at(8)]);
    }
}
