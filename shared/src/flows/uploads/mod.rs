//! Applies the events of the uploads bucket: a file was created or removed.
//!
//! A creation takes these steps, each of which may be repeated:
//!
//! 1. The upload item becomes *pending*, and an attempt to read the file is counted. The sequencer
//!    orders the events of a key; an event that is older than the item is dropped. Only the bytes
//!    that the event names are read.
//! 2. If other bytes are filed under this key, they are withdrawn, see below.
//! 3. The file is fetched once, and its ids are read. A file without ids serves no module: it is
//!    *ignored*, with the reason.
//! 4. The upload item names the objects in the file (`objects`).
//! 5. Each module gets a `dif` item, and aliases for its other ids (`filing`). A module that has
//!    reached its limit of files gets none (`room`). The ids that the file has in common with its
//!    companions get `dif` items, too.
//! 6. The upload item is read again. If the file was removed or overwritten meanwhile, its `dif`
//!    items are removed.
//! 7. The entries of the modules, and of the programs that the file completes (`companions`), are
//!    marked dirty. Missing entries are requested, and entries that are being built are built
//!    again.
//! 8. The caches are built from the file, which is still open (`building`), in as many invocations
//!    as necessary. Meanwhile the scope gets a new generation, and the upload item records that it
//!    is filed.
//! 9. The scope gets a new generation, and the upload item becomes *applied*.
//!
//! To withdraw the bytes that are filed under a key, their `dif` items are removed and the entries
//! of all modules are revoked, in parallel. Then the scope gets a new generation. From then on no
//! reader uses the bytes. The replacements are built afterwards.
//!
//! A removal withdraws the bytes that are filed under the key, and the upload item becomes *gone*.
//!
//! If an event is lost, the pruner sends a message to *reconcile* the key.

mod building;
mod changes;
mod companions;
mod creation;
mod event;
mod filing;
mod item;
mod marks;
mod objects;
mod reading;
mod removal;
mod room;
mod side_by_side;

use futures::future::join;
pub(super) use objects::objects_of;

use self::changes::UploadChanges;
use self::event::{LoadedItems, is_outdated, missed_change};
pub use self::event::{UploadChange, UploadEvent};
use super::build::Builder;
use super::notes::IGNORED;
use super::update::KnownItem;
use super::{Error, Invocation, presence};
use crate::cache::{Item, ItemKey, UploadProgress, UploadState};
pub use crate::domain::Sequencer;
use crate::domain::{Location, Scope};
use crate::ports::{Consistency, DifError, Fault, FaultKind};
pub use crate::ports::{DifStat, ReconcileMessage};

impl Builder {
    /// Applies an event. An event that was already applied, or that is older than the last event of
    /// its key, has no effect.
    pub async fn apply_upload_event(
        &self,
        invocation: &Invocation,
        event: &UploadEvent,
    ) -> Result<(), Error> {
        let location = Location::new(event.key.as_str());
        let stat = async {
            match (event.change, &event.written) {
                // If the key has other bytes by now, reading these fails. The other bytes have an
                // event of their own.
                (UploadChange::Created, Some(written)) => Some(Ok(written.clone())),
                (UploadChange::Created, None) => Some(self.uploads.stat(&location).await),
                (UploadChange::Removed, _) => None,
            }
        };
        let (loaded, stat) = join(self.load_items(&location), stat).await;
        let loaded = loaded?;
        let known = loaded.upload.item().and_then(Item::upload);
        if known.is_some_and(|known| is_outdated(event, known)) {
            return Ok(());
        }
        if loaded.upload.is_of_newer_release() {
            // The event is delivered again, to a newer release if there is one by then.
            return Err(Error::Newer {
                what: event.key.clone(),
            });
        }
        let changes = self.changes(invocation);
        changes.apply_event(event, 0, loaded, stat).await
    }

    /// Reads the items that an event of a key changes.
    async fn load_items(&self, location: &Location) -> Result<LoadedItems, Fault> {
        let mut keys = vec![ItemKey::upload(location)];
        keys.extend(Scope::of_key(location.as_str()).map(|scope| ItemKey::generation(&scope)));
        let loaded = self.records.load(&keys, Consistency::Strong).await?;
        let mut loaded = loaded.into_iter().map(KnownItem::Read);
        Ok(LoadedItems {
            upload: loaded.next().unwrap_or_default(),
            generation: loaded.next().unwrap_or_default(),
        })
    }

    /// Does what a lost event of a key would have done: compares the upload item with the bucket.
    /// Also continues a pending upload.
    ///
    /// It counts as a repetition of the last event of the key, so an event that is processed at the
    /// same time wins. What a newer release has filed is left to newer releases.
    pub async fn reconcile(
        &self,
        invocation: &Invocation,
        message: &ReconcileMessage,
    ) -> Result<(), Error> {
        let (location, hops) = (&message.key, message.hops);
        let LoadedItems { upload, generation } = self.load_items(location).await?;
        if upload.is_of_newer_release() {
            return Ok(());
        }
        // Only after the items were read: a file that is uploaded and applied between an early stat
        // and a late read would be withdrawn as if it was removed.
        let stat = match self.uploads.stat(location).await {
            Err(DifError::Fault(error)) => return Err(error.into()),
            stat => stat,
        };
        let converter = self.settings.policy.numbers.converter;
        let known = upload.item().and_then(Item::upload);
        let Some(change) = missed_change(known, &stat, converter) else {
            return Ok(());
        };
        let changes = self.changes(invocation);
        let Some(upload) = changes.write_pending_again(upload, hops).await? else {
            return Ok(());
        };
        let known = upload.item().and_then(Item::upload);
        let event = UploadEvent {
            key: location.as_str().to_owned(),
            sequencer: known
                .map(|known| known.sequencer.clone())
                .unwrap_or_default(),
            change,
            written: None,
        };
        let loaded = LoadedItems { upload, generation };
        let stat = (change == UploadChange::Created).then_some(stat);
        changes.apply_event(&event, hops, loaded, stat).await
    }
}

impl UploadChanges<'_> {
    /// Applies an event; `stat` describes the bytes at the key of a creation.
    async fn apply_event(
        &self,
        event: &UploadEvent,
        hops: u32,
        loaded: LoadedItems,
        stat: Option<Result<DifStat, DifError>>,
    ) -> Result<(), Error> {
        let applied = match stat {
            Some(stat) => Box::pin(self.apply_creation(event, hops, loaded, stat)).await,
            None => Box::pin(self.apply_removal(event, hops, loaded)).await,
        };
        match applied {
            Err(Error::Fault(error)) if error.kind() == FaultKind::TooLarge => {
                self.ignore_too_large(event, &error).await
            }
            applied => applied,
        }
    }

    /// Ends an event that needs an item larger than the store accepts: a retry would fail, too.
    /// What is filed so far stays filed. The upload item names it, so that a removal finds it.
    async fn ignore_too_large(&self, event: &UploadEvent, error: &Fault) -> Result<(), Error> {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let reason = format!(
            "{error}{}; split it into several files",
            cause.unwrap_or_default()
        );
        tracing::error!(key = event.key, reason, "upload rejected");
        self.invocation.note(|notes| notes.cause = Some(IGNORED));
        let now = self.invocation.now();
        let ignored = self.amend(&event.key, KnownItem::Unread, |present| {
            let is_ours =
                present.sequencer == event.sequencer && present.state == UploadState::Pending;
            is_ours.then(|| {
                let reason = reason.clone();
                present.state = UploadState::Ignored { reason };
                present.progress = UploadProgress::Begun;
                present.at = now;
            })
        });
        ignored.await?;
        if let Some(scope) = Scope::of_key(&event.key) {
            presence::write_generation(self.writer(), &scope, KnownItem::Unread).await?;
        }
        Ok(())
    }
}
