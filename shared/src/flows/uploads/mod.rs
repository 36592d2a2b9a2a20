//! Events of the uploads bucket: a DIF was created or removed.
//!
//! A creation, each step of which may be repeated:
//!
//! 1. The upload item becomes *pending*. Events of a key are ordered by their sequencer; an old one is done with.
//! 2. The file is fetched once, and its ids are read. A file without one serves nothing: *ignored*, with the reason.
//! 3. Each module gets a `dif` item, and an alias for its other id. DIFs of the same key that were there before go.
//! 4. The upload item is read again: was the file removed or overwritten meanwhile, its `dif` items go too.
//! 5. The module's entries are marked: what was missing is asked for, what is being built is looked at again.
//! 6. The caches are built from the file that is still open, and the upload item becomes *applied*.
//!
//! An event that was lost is made up for by the sweep, which asks to *reconcile* the key.
//!
//! A removal makes the upload item *gone*, removes the `dif` items, and revokes what was made from it.

mod filing;
mod reading;

use std::time::Duration;

use super::build::{Builder, OpenDif, Outcome};
use super::{Error, Invocation, presence};
use crate::cache::{Change, Dif, Item, ItemKey, Lane, Token, Upload, UploadState, UploadedObject};
use crate::domain::{Cause, DifRef, FileType, Location, Scope};
pub use crate::ports::ReconcileMessage;
use crate::ports::{Consistency, DifError, DifStat, LaneMessage, StoreError};

use filing::{FiledModule, scope_of};
use reading::{Found, Reading};

/// A tombstone stands this long: no event is older.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(15 * 24 * 3600);

/// An event of the uploads bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadEvent {
    /// The key, decoded.
    pub key: String,
    /// The order of the event among those of this key: hex digits, compared as padded numbers.
    pub sequencer: String,
    /// What happened.
    pub change: UploadChange,
    /// The etag of the bytes that were written, where the event tells.
    pub etag: Option<String>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadChange {
    /// It was written.
    Created,
    /// It was removed.
    Removed,
}

const NO_SCOPE: &str = "its key has no scope: copy it to global/… (or to <tenant>/…)";

impl Builder {
    /// Applies an event. Delivered again, or behind a later one of the same key, it does nothing.
    pub async fn upload(&self, invocation: &Invocation, event: &UploadEvent) -> Result<(), Error> {
        let known = self.known_upload(&event.key).await?;
        if known.is_some_and(|known| is_done_with(event, &known)) {
            return Ok(());
        }
        match event.change {
            UploadChange::Created => self.created(invocation, event).await,
            UploadChange::Removed => self.removed(invocation, event).await,
        }
    }

    /// Does what the lost event of a key would have done: compares what is known of it with what is there.
    ///
    /// It counts as a repetition of the last event that was seen, so that one processed meanwhile wins.
    pub async fn reconcile(&self, invocation: &Invocation, key: &str) -> Result<(), Error> {
        let known = self.known_upload(key).await?;
        let change = match self.uploads.stat(&Location::new(key)).await {
            Ok(stat) if known.as_ref().is_some_and(|known| is_about(known, &stat)) => return Ok(()),
            Ok(_) | Err(DifError::Changed) => UploadChange::Created,
            Err(DifError::Missing(missing)) if missing.cause == Cause::NotFound => {
                let is_gone = |known: &Upload| known.state == UploadState::Gone;
                if known.as_ref().is_none_or(is_gone) {
                    return Ok(());
                }
                UploadChange::Removed
            }
            // It is there, and cannot be read now.
            Err(DifError::Missing(_)) => return Ok(()),
            Err(DifError::Store(error)) => return Err(error.into()),
        };
        // Pending again, as if its last event had come a second time; unless something happens to it at this moment.
        if let Some(known) = &known {
            let again = |present: Option<&Item>| {
                let is_known = present == Some(&Item::Upload(known.clone()));
                let pending = Upload {
                    state: UploadState::Pending,
                    ..known.clone()
                };
                is_known.then_some(Item::Upload(pending))
            };
            let item = ItemKey::upload(&Location::new(key));
            if !self.update(invocation).make(&item, again).await? {
                return Ok(());
            }
        }
        let event = UploadEvent {
            key: key.to_owned(),
            sequencer: known.map(|known| known.sequencer).unwrap_or_default(),
            change,
            etag: None,
        };
        match change {
            UploadChange::Created => self.created(invocation, &event).await,
            UploadChange::Removed => self.removed(invocation, &event).await,
        }
    }

    async fn created(&self, invocation: &Invocation, event: &UploadEvent) -> Result<(), Error> {
        let location = Location::new(event.key.as_str());
        let stat = match self.uploads.stat(&location).await {
            Ok(stat) => stat,
            // Removed already: its event follows, or has been here.
            Err(DifError::Missing(_) | DifError::Changed) => return Ok(()),
            Err(DifError::Store(error)) => return Err(error.into()),
        };
        if event.etag.as_ref().is_some_and(|etag| *etag != stat.etag) {
            // Overwritten already: the event of the bytes that are there now follows. Two deliveries of one event never read
            // different bytes.
            return Ok(());
        }
        let dif = DifRef {
            location,
            etag: stat.etag.clone(),
        };
        let upload = Upload {
            key: event.key.clone(),
            etag: stat.etag.clone(),
            sequencer: event.sequencer.clone(),
            size: stat.size,
            objects: Vec::new(),
            state: UploadState::Pending,
            crashes: 0,
            reconciled: 0,
            at: invocation.now(),
            expires_at: None,
        };
        let Some(scope) = scope_of(&event.key) else {
            self.put_upload(invocation, ignored(&upload, NO_SCOPE.to_owned()))
                .await?;
            return Ok(());
        };
        // Until it is out of every answer, the item names what was here before: an event that comes again undoes it.
        let announced = |known: Option<&Upload>| {
            let former = known.filter(|known| !known.objects.is_empty());
            let again = known.filter(|known| known.sequencer == event.sequencer);
            Upload {
                etag: former.map_or_else(|| stat.etag.clone(), |former| former.etag.clone()),
                objects: former.map_or_else(Vec::new, |former| former.objects.clone()),
                crashes: again.map_or(0, |again| again.crashes),
                ..upload.clone()
            }
        };
        let Some(announced) = self.announce(invocation, event, announced).await? else {
            return Ok(());
        };
        let crashes = announced.crashes;
        let former = (!announced.objects.is_empty()).then(|| announced.clone());
        let upload = Upload { crashes, ..upload };
        match self.read(invocation, &dif, &stat).await? {
            Reading::Overtaken => Ok(()),
            Reading::Crashed(reason) if crashes + 1 < self.settings.policy.max_attempts => {
                let crashed = Upload {
                    crashes: crashes + 1,
                    ..announced
                };
                self.put_upload(invocation, crashed).await?;
                // The message comes back, and with it another attempt.
                Err(Error::Crashed {
                    what: format!("reading {}", event.key),
                    reason,
                })
            }
            Reading::Crashed(reason) | Reading::Ignored(reason) => {
                self.replace_former(invocation, &scope, former.as_ref(), &dif)
                    .await?;
                self.put_upload(invocation, ignored(&upload, reason))
                    .await?;
                Ok(())
            }
            Reading::Found(found) => {
                self.replace_former(invocation, &scope, former.as_ref(), &dif)
                    .await?;
                self.apply_upload(invocation, &scope, upload, &dif, found)
                    .await
            }
        }
    }

    /// Makes a file known to its modules, and builds what it serves.
    async fn apply_upload(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        upload: Upload,
        dif: &DifRef,
        Found {
            objects,
            refused,
            mut open,
        }: Found,
    ) -> Result<(), Error> {
        let modules = self.filed(scope, &objects, &dif.location).await?;
        // The item names the objects before there is anything to undo, so that a removal finds what to undo.
        let upload = Upload { objects, ..upload };
        if !self.put_upload(invocation, upload.clone()).await? {
            return Ok(());
        }
        for module in &modules {
            self.add_dif(invocation, module, &upload, dif, refused.clone())
                .await?;
        }
        if !self.is_current(&upload).await? {
            let is_ours = |present: &Dif| {
                present.sequencer == upload.sequencer && present.dif.etag == dif.etag
            };
            return self
                .remove_difs(invocation, &modules, &dif.location, is_ours)
                .await;
        }
        for object in upload
            .objects
            .iter()
            .filter(|object| object.file_type == FileType::MsSymCache)
        {
            if let Some(debug_id) = object.debug_id {
                let wanted = ItemKey::wanted(scope, debug_id);
                self.update(invocation).remove(&wanted, |_| true).await?;
            }
        }
        let mut marks = Vec::with_capacity(modules.len());
        for module in &modules {
            marks.push(self.invalidate(invocation, module, dif).await?);
        }
        for (module, mark) in modules.iter().zip(marks) {
            self.build_or_ask(invocation, module, mark, &mut open)
                .await?;
        }
        presence::note_change(self.update(invocation), scope).await?;
        let applied = Upload {
            state: UploadState::Applied,
            at: invocation.now(),
            ..upload
        };
        self.put_upload(invocation, applied).await?;
        Ok(())
    }

    async fn removed(&self, invocation: &Invocation, event: &UploadEvent) -> Result<(), Error> {
        let location = Location::new(event.key.as_str());
        let nothing = Upload {
            key: event.key.clone(),
            etag: String::new(),
            sequencer: String::new(),
            size: 0,
            objects: Vec::new(),
            state: UploadState::Gone,
            crashes: 0,
            reconciled: 0,
            at: invocation.now(),
            expires_at: None,
        };
        let tombstone = |known: Option<&Upload>| Upload {
            sequencer: event.sequencer.clone(),
            state: UploadState::Pending,
            at: invocation.now(),
            ..known.unwrap_or(&nothing).clone()
        };
        let Some(tombstone) = self.announce(invocation, event, tombstone).await? else {
            return Ok(());
        };
        if let Some(scope) = scope_of(&event.key) {
            let dif = DifRef {
                location,
                etag: tombstone.etag.clone(),
            };
            self.revoke(invocation, &scope, &tombstone.objects, &dif)
                .await?;
            presence::note_change(self.update(invocation), &scope).await?;
        }
        let gone = Upload {
            state: UploadState::Gone,
            objects: Vec::new(),
            expires_at: Some(invocation.now().plus(TOMBSTONE_LIFETIME)),
            ..tombstone
        };
        self.put_upload(invocation, gone).await?;
        Ok(())
    }

    /// What was made from the bytes that were at this key before may not be served any more.
    async fn replace_former(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        former: Option<&Upload>,
        dif: &DifRef,
    ) -> Result<(), Error> {
        if let Some(former) = former.filter(|former| former.etag != dif.etag) {
            let former_dif = DifRef {
                location: dif.location.clone(),
                etag: former.etag.clone(),
            };
            self.revoke(invocation, scope, &former.objects, &former_dif)
                .await?;
        }
        Ok(())
    }

    /// Removes a DIF from its modules, with all that was made from it; what else they have is built instead.
    async fn revoke(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        objects: &[UploadedObject],
        dif: &DifRef,
    ) -> Result<(), Error> {
        let modules = self.filed(scope, objects, &dif.location).await?;
        self.remove_difs(invocation, &modules, &dif.location, |present| {
            present.dif == *dif
        })
        .await?;
        for module in &modules {
            let mark = invocation.token();
            for kind in &module.kinds {
                let change = Change::Revoke {
                    dif: dif.clone(),
                    mark: mark.clone(),
                };
                self.update(invocation)
                    .entry(&module.key, *kind, &change)
                    .await?;
            }
            self.build_or_ask(invocation, module, mark, &mut Vec::new())
                .await?;
        }
        Ok(())
    }

    /// Marks the entries that this DIF may serve. The mark is the ask's id, too.
    async fn invalidate(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        dif: &DifRef,
    ) -> Result<Token, Error> {
        let mark = invocation.token();
        for kind in &module.kinds {
            let change = Change::Invalidate {
                dif: dif.clone(),
                mark: mark.clone(),
            };
            self.update(invocation)
                .entry(&module.key, *kind, &change)
                .await?;
        }
        Ok(mark)
    }

    /// Builds a module's caches while there is time; else has them built by a message of their own.
    async fn build_or_ask(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        ask: Token,
        open: &mut Vec<OpenDif>,
    ) -> Result<(), Error> {
        let (key, kinds) = (module.key.clone(), module.kinds.clone());
        let message = LaneMessage::new(Lane::Uploads, key, kinds, ask);
        if invocation.time_left() < invocation.elapsed() {
            return self
                .send_again(invocation, &message, invocation.now())
                .await;
        }
        match self
            .build(invocation, &module.key, &module.kinds, open)
            .await?
        {
            Outcome::Settled => Ok(()),
            Outcome::Later(at) => self.send_again(invocation, &message, at).await,
        }
    }

    async fn known_upload(&self, key: &str) -> Result<Option<Upload>, StoreError> {
        let key = ItemKey::upload(&Location::new(key));
        let loaded = self.records.load(&[key], Consistency::Strong).await?;
        Ok(loaded
            .into_iter()
            .flatten()
            .find_map(|stored| match stored.item {
                Item::Upload(upload) => Some(upload),
                _ => None,
            }))
    }

    /// Writes the upload item with which an event begins, made of what it replaces: what an earlier event of the key did
    /// meanwhile is seen, and so undone. Returns it, or `None` where the event is done with.
    async fn announce(
        &self,
        invocation: &Invocation,
        event: &UploadEvent,
        mut item: impl FnMut(Option<&Upload>) -> Upload,
    ) -> Result<Option<Upload>, StoreError> {
        let key = ItemKey::upload(&Location::new(event.key.as_str()));
        let mut announced = None;
        let next = |present: Option<&Item>| {
            let known = match present {
                Some(Item::Upload(known)) => Some(known),
                _ => None,
            };
            if known.is_some_and(|known| is_done_with(event, known)) {
                return None;
            }
            announced = Some(item(known));
            announced.clone().map(Item::Upload)
        };
        let is_written = self.update(invocation).make(&key, next).await?;
        Ok(announced.filter(|_| is_written))
    }

    /// Writes an upload item unless a later event of its key was here; tells whether it did.
    async fn put_upload(
        &self,
        invocation: &Invocation,
        upload: Upload,
    ) -> Result<bool, StoreError> {
        let key = ItemKey::upload(&Location::new(upload.key.as_str()));
        let sequencer = upload.sequencer.clone();
        let is_later = |present: &Item| matches!(present, Item::Upload(present) if order(&sequencer, &present.sequencer).is_lt());
        self.update(invocation)
            .put(&key, Item::Upload(upload), is_later)
            .await
    }

    /// Tells whether an upload is still what its key holds. Two deliveries of one event may have read different bytes: the item
    /// names those of the later one.
    async fn is_current(&self, upload: &Upload) -> Result<bool, StoreError> {
        let known = self.known_upload(&upload.key).await?;
        Ok(known.is_some_and(|known| {
            known.sequencer == upload.sequencer
                && known.etag == upload.etag
                && known.state != UploadState::Gone
        }))
    }
}

fn ignored(upload: &Upload, reason: String) -> Upload {
    Upload {
        state: UploadState::Ignored { reason },
        ..upload.clone()
    }
}

/// Tells whether an event came before, and was applied, or came behind a later one of its key.
fn is_done_with(event: &UploadEvent, known: &Upload) -> bool {
    let order = order(&event.sequencer, &known.sequencer);
    order.is_lt() || (order.is_eq() && known.state != UploadState::Pending)
}

/// Tells whether nothing is left to do about an upload: its item is about these bytes, and says what became of them.
fn is_about(known: &Upload, stat: &DifStat) -> bool {
    let is_done = matches!(
        known.state,
        UploadState::Applied | UploadState::Ignored { .. }
    );
    is_done && known.etag == stat.etag
}

/// Compares sequencers: hex digits of different lengths, the shorter padded with zeros on the right.
fn order(a: &str, b: &str) -> std::cmp::Ordering {
    let length = a.len().max(b.len());
    format!("{a:0<length$}")
        .to_ascii_lowercase()
        .cmp(&format!("{b:0<length$}").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequencers_of_different_lengths_are_compared_as_if_padded() {
        assert!(order("0055", "0055aa").is_lt());
        assert!(order("0056", "0055AA").is_gt());
        assert!(order("00aa", "00AA00").is_eq());
        assert!(order("", "00").is_eq());
    }
}
