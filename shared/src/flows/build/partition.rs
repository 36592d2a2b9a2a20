//! The items in the partition of a module, as a build reads them.

use super::builder::Build;
use crate::cache::{Converter, Dif, DifCopy, Entry, Item, Kind, Placeholder, Stored};
use crate::flows::presence;
use crate::ports::Fault;

/// The items in the partition of a module.
#[derive(Default)]
pub(super) struct Partition {
    pub(super) entries: Vec<Entry>,
    /// The stored form of these entries.
    pub(super) stored: Vec<(Kind, Stored)>,
    pub(super) difs: Vec<Dif>,
    pub(super) copies: Vec<DifCopy>,
    /// Whether a newer release filed DIFs whose items this release cannot read.
    pub(super) has_unread: bool,
}

/// Returns whether this converter failed to build an entry, and the entry is of one of these kinds.
fn failed_here(entry: &Entry, kinds: &[Kind], converter: Converter) -> bool {
    let by_this = |placeholder: &Placeholder| {
        placeholder.missing.cause.belongs_to_the_converter() && placeholder.converter == converter
    };
    kinds.contains(&entry.kind()) && entry.missing().is_some_and(by_this)
}

/// Returns whether a kind can be made from any of these DIFs.
pub(super) fn comes_of(difs: &[Dif], kind: Kind) -> bool {
    difs.iter().any(|dif| dif.serves(kind))
}

impl Partition {
    /// Returns the entry of a kind.
    pub(super) fn entry(&self, kind: Kind) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.kind() == kind)
    }

    /// Returns the stored form of the entry of a kind.
    pub(super) fn stored(&self, kind: Kind) -> Option<&Stored> {
        let known = self.stored.iter().find(|(of, _)| *of == kind);
        known.map(|(_, stored)| stored)
    }

    /// Returns the copies of files from which a build of these kinds derives. After a failure of
    /// this converter, there are none: the file may have been replaced on the server since.
    pub(super) fn usable_copies(&self, kinds: &[Kind], converter: Converter) -> &[DifCopy] {
        let mut entries = self.entries.iter();
        if entries.any(|entry| failed_here(entry, kinds, converter)) {
            &[]
        } else {
            self.copies.as_slice()
        }
    }
}

impl Build<'_> {
    /// Reads the partition of the module with strong consistency.
    pub(super) async fn read_partition(&self) -> Result<Partition, Fault> {
        let records = &self.builder.records;
        let mut known = Partition::default();
        for (key, stored) in records.query(&self.module.partition()).await? {
            match stored.item {
                Item::Newer { .. } => known.has_unread |= presence::is_file(&key),
                Item::Entry(ref entry) => {
                    known.entries.push(entry.clone());
                    known.stored.push((entry.kind(), stored));
                }
                Item::Dif(dif) => known.difs.push(dif),
                Item::Copy(copy) => known.copies.push(copy),
                Item::Alias(_)
                | Item::Presence(_)
                | Item::Generation(_)
                | Item::Objects(_)
                | Item::Overflow(_)
                | Item::Upload(_)
                | Item::Request(_)
                | Item::Source(_)
                | Item::IssuedToken(_)
                | Item::Wanted(_)
                | Item::Health(_)
                | Item::Losses(_)
                | Item::Sweep(_)
                | Item::OutdatedList(_)
                | Item::Rollout(_) => {}
            }
        }
        Ok(known)
    }
}
