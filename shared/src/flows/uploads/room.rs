//! Limits the number of files per module, and re-queues uploads when a module has room again.
//!
//! A module keeps [`MAX_DIFS`] files. A further upload is added to the [`Overflow`] item of the
//! module. If no other module has room for it, it becomes *ignored*. When a builder removes a file
//! of the module, it sends messages to reconcile as many uploads of the overflow as there is room
//! for.
//!
//! No upload is missed: an upload is added to the overflow before it checks for room a second time,
//! and a file is removed before its builder reads the overflow.

use std::time::Duration;

use super::changes::UploadChanges;
use crate::cache::{Item, ItemKey, ModuleKey, Overflow, Stored};
use crate::domain::Location;
use crate::flows::{Error, presence, sending};
use crate::ports::{Fault, ReconcileMessage};

/// The maximum number of files of a module. Their `dif` items, of 1 KB each, are read in every
/// build of the module.
pub(super) const MAX_DIFS: usize = 256;

impl UploadChanges<'_> {
    /// Adds a file to the overflow of a module, unless the overflow has
    /// [`Overflow::MAX_LOCATIONS`].
    pub(super) async fn note_overflow(
        &self,
        module: &ModuleKey,
        location: &Location,
    ) -> Result<(), Fault> {
        let change = self.token();
        let next = |present: Option<&Item>| {
            let mut locations = locations(present);
            // A location that is already listed is added again, so that a builder that read the
            // list before does not remove it.
            locations.retain(|noted| noted != location);
            let is_full = locations.len() >= Overflow::MAX_LOCATIONS;
            locations.push(location.clone());
            let noted = Overflow {
                module: module.clone(),
                locations,
                change: change.clone(),
            };
            (!is_full).then_some(Item::Overflow(noted))
        };
        let key = module.overflow();
        self.writer().put_with(&key, next).await?;
        Ok(())
    }

    /// Removes these locations from the overflow of a module, if `is_meant` accepts the stored
    /// overflow.
    pub(super) async fn forget_overflow(
        &self,
        module: &ModuleKey,
        gone: &[Location],
        is_meant: impl Fn(&Overflow) -> bool,
    ) -> Result<(), Fault> {
        let key = module.overflow();
        let writer = self.writer();
        let next = |present: Option<&Item>| match present {
            Some(Item::Overflow(present)) if is_meant(present) => {
                let mut left = present.clone();
                left.locations.retain(|location| !gone.contains(location));
                Some(Item::Overflow(left))
            }
            _ => None,
        };
        if writer.put_with(&key, next).await? {
            let is_empty =
                |item: &Item| matches!(item, Item::Overflow(it) if it.locations.is_empty());
            writer.remove(&key, is_empty).await?;
        }
        Ok(())
    }

    /// Re-queues the uploads that a module has room for now. `partition` holds its items after the
    /// removal of a file.
    pub(super) async fn requeue_overflow(
        &self,
        module: &ModuleKey,
        partition: &[(ItemKey, Stored)],
    ) -> Result<(), Error> {
        let room = MAX_DIFS.saturating_sub(presence::files(partition));
        let stored = self.writer().load(&module.overflow()).await?;
        let mut requeued = locations(stored.as_ref().map(|stored| &stored.item));
        requeued.truncate(room);
        if requeued.is_empty() {
            return Ok(());
        }
        for location in &requeued {
            let message = ReconcileMessage::new(location.clone());
            let queues = &*self.builder.queues;
            sending::reconcile(queues, self.invocation, message, Duration::ZERO).await?;
        }
        // An upload that found no room meanwhile has added itself again. Then nothing is removed,
        // and all are re-queued after the next removal.
        let is_as_read = |present: &Overflow| {
            stored.as_ref().is_some_and(
                |stored| matches!(&stored.item, Item::Overflow(read) if read.change == present.change),
            )
        };
        self.forget_overflow(module, &requeued, is_as_read).await?;
        Ok(())
    }
}

/// Returns whether a module has room for a file at this location, given the items of its partition.
pub(super) fn has_room(
    partition: &[(ItemKey, Stored)],
    module: &ModuleKey,
    location: &Location,
) -> bool {
    let key = module.dif(location);
    let others = partition.iter().filter(|(other, _)| *other != key);
    others.filter(|(key, _)| presence::is_file(key)).count() < MAX_DIFS
}

fn locations(item: Option<&Item>) -> Vec<Location> {
    match item {
        Some(Item::Overflow(overflow)) => overflow.locations.clone(),
        _ => Vec::new(),
    }
}
