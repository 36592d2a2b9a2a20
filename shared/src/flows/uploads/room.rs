//! Files that a module has no room for, and how they get their turn.
//!
//! A module keeps [`MAX_DIFS`] files. An upload that comes when there are as many is noted in the
//! [`Overflow`] of the module and, if no other module has room for it, becomes *ignored*. The
//! builder that removes a file of the module asks to reconcile as many of the noted uploads as
//! there is room for now.
//!
//! Neither side misses the other: the upload is noted before it looks a second time whether there
//! is room, the file is removed before its builder looks who was noted.

use std::time::Duration;

use super::super::build::Builder;
use super::super::{Error, Invocation, presence};
use crate::cache::{Item, ItemKey, ModuleKey, Overflow, Stored};
use crate::domain::Location;
use crate::ports::{Fault, ReconcileMessage};

/// Files that a module keeps. Their `dif` items, of 1 KB each, are read with every build of the
/// module.
pub(super) const MAX_DIFS: usize = 256;

impl Builder {
    /// Notes that a module has no room for a file; those beyond [`Overflow::MAX_LOCATIONS`] are not
    /// noted.
    pub(super) async fn note_overflow(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        location: &Location,
    ) -> Result<(), Fault> {
        let change = invocation.token();
        let next = |present: Option<&Item>| {
            let mut locations = locations(present);
            // One that is noted already is noted again: who called it meanwhile must not forget it.
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
        self.update(invocation).put_with(&key, next).await?;
        Ok(())
    }

    /// Forgets that a module had no room for a file.
    pub(super) async fn forget_overflow(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        gone: &[Location],
        is_meant: impl Fn(&Overflow) -> bool,
    ) -> Result<(), Fault> {
        let key = module.overflow();
        let update = self.update(invocation);
        let next = |present: Option<&Item>| match present {
            Some(Item::Overflow(present)) if is_meant(present) => {
                let mut left = present.clone();
                left.locations.retain(|location| !gone.contains(location));
                Some(Item::Overflow(left))
            }
            _ => None,
        };
        if update.put_with(&key, next).await? {
            update
                .remove(&key, |item| locations(Some(item)).is_empty())
                .await?;
        }
        Ok(())
    }

    /// Asks for the uploads that a module has room for now. `partition` is what it holds since a
    /// file was removed.
    pub(super) async fn call_overflow(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        partition: &[(ItemKey, Stored)],
    ) -> Result<(), Error> {
        let room = MAX_DIFS.saturating_sub(presence::files(partition));
        let stored = self.update(invocation).load(&module.overflow()).await?;
        let mut called = locations(stored.as_ref().map(|stored| &stored.item));
        called.truncate(room);
        if called.is_empty() {
            return Ok(());
        }
        for location in &called {
            let message = ReconcileMessage::new(location.clone());
            self.queues.reconcile(&message, Duration::ZERO).await?;
        }
        // One that found no room in the meantime noted itself again: then nothing is forgotten, and
        // all of them are called again when the next file is removed.
        let is_as_called = |present: &Overflow| {
            stored.as_ref().is_some_and(
                |stored| matches!(&stored.item, Item::Overflow(read) if read.change == present.change),
            )
        };
        self.forget_overflow(invocation, module, &called, is_as_called)
            .await?;
        Ok(())
    }
}

/// Tells whether a module has room for a file at this location, by what is in its partition.
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
