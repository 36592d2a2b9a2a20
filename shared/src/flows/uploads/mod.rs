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

mod arrival;
mod building;
mod companions;
mod filing;
mod item;
mod objects;
mod order;
mod reading;
mod removal;
mod room;

use std::collections::HashSet;

use arrival::ToBuild;
use filing::FiledModule;
use futures::future::{join, try_join};
pub(super) use objects::objects_of;
use reading::{ReadUpload, Reading};

use self::arrival::{
    Announced, Arrived, Before, announced, given_up, ignored, is_about, is_done_with, is_same,
    no_room, upload_in,
};
pub use self::arrival::{UploadChange, UploadEvent};
use self::order::side_by_side;
use super::build::Builder;
use super::update::KnownItem;
use super::{Error, Invocation, presence};
use crate::cache::{Dif, Item, ItemKey, Upload, UploadProgress, UploadState};
use crate::domain::{Cause, DebugId, DifRef, FileType, Location, Missing, Scope};
use crate::ports::{Consistency, DifError, Fault, FaultKind};
pub use crate::ports::{DifStat, ReconcileMessage};

/// The share of an invocation's remaining time that reading a file may take. The rest is for the
/// steps that follow.
const READING_SHARE: f64 = 0.75;

const NO_SCOPE: &str = "its key has no scope: copy it to global/… (or to <tenant>/…)";

impl Builder {
    /// Applies an event. An event that was already applied, or that is older than the last event of
    /// its key, has no effect.
    pub async fn upload(&self, invocation: &Invocation, event: &UploadEvent) -> Result<(), Error> {
        let mut keys = vec![ItemKey::upload(&Location::new(event.key.as_str()))];
        keys.extend(Scope::of_key(&event.key).map(|scope| ItemKey::generation(&scope)));
        let stat = async {
            match (event.change, &event.written) {
                // If the key has other bytes by now, reading these fails. The other bytes have an
                // event of their own.
                (UploadChange::Created, Some(written)) => Some(Ok(written.clone())),
                (UploadChange::Created, None) => {
                    Some(self.uploads.stat(&Location::new(&*event.key)).await)
                }
                (UploadChange::Removed, _) => None,
            }
        };
        let (loaded, stat) = join(self.records.load(&keys, Consistency::Strong), stat).await;
        let mut loaded = loaded?.into_iter().map(KnownItem::Before);
        let upload = loaded.next().unwrap_or_default();
        if upload_in(&upload).is_some_and(|known| is_done_with(event, known)) {
            return Ok(());
        }
        let generation = loaded.next().unwrap_or_default();
        let before = Before { upload, generation };
        self.apply_event(invocation, event, 0, before, stat).await
    }

    /// Does what a lost event of a key would have done: compares the upload item with the bucket.
    /// Also continues a pending upload.
    ///
    /// It counts as a repetition of the last event of the key, so an event that is processed at the
    /// same time wins.
    pub async fn reconcile(
        &self,
        invocation: &Invocation,
        message: &ReconcileMessage,
    ) -> Result<(), Error> {
        let key = message.reconcile.as_str();
        let known = self.known_upload(key).await?;
        let stat = match self.uploads.stat(&message.reconcile).await {
            Err(DifError::Store(error)) => return Err(error.into()),
            stat => stat,
        };
        let change = match &stat {
            Ok(stat) if known.as_ref().is_some_and(|known| is_about(known, stat)) => return Ok(()),
            Ok(_) | Err(DifError::Changed) => UploadChange::Created,
            Err(DifError::Missing(missing)) if missing.cause == Cause::NotFound => {
                let is_gone = |known: &Upload| known.state == UploadState::Gone;
                if known.as_ref().is_none_or(is_gone) {
                    return Ok(());
                }
                UploadChange::Removed
            }
            // The file exists, but cannot be read now.
            Err(_) => return Ok(()),
        };
        // Make the item pending, as if its last event was delivered again, unless the item changes
        // at the same time.
        if let Some(known) = &known {
            let by_the_sweep = u32::from(message.hops == 0);
            let pending = Upload {
                state: UploadState::Pending,
                reconciled: known.reconciled.saturating_add(by_the_sweep),
                ..known.clone()
            };
            let is_known = |present: Option<&Item>| present == Some(&Item::Upload(known.clone()));
            let again =
                |present: Option<&Item>| is_known(present).then(|| Item::Upload(pending.clone()));
            let item = ItemKey::upload(&message.reconcile);
            if !self.update(invocation).put_with(&item, again).await? {
                return Ok(());
            }
        }
        let event = UploadEvent {
            key: key.to_owned(),
            sequencer: known.map(|known| known.sequencer).unwrap_or_default(),
            change,
            written: None,
        };
        let stat = (change == UploadChange::Created).then_some(stat);
        self.apply_event(invocation, &event, message.hops, Before::default(), stat)
            .await
    }

    /// Applies an event; `stat` describes the bytes at the key of a creation.
    async fn apply_event(
        &self,
        invocation: &Invocation,
        event: &UploadEvent,
        hops: u32,
        before: Before,
        stat: Option<Result<DifStat, DifError>>,
    ) -> Result<(), Error> {
        let applied = match stat {
            Some(stat) => Box::pin(self.created(invocation, event, hops, before, stat)).await,
            None => Box::pin(self.removed(invocation, event, hops, before)).await,
        };
        match applied {
            Err(Error::Store(error)) if error.kind() == FaultKind::TooLarge => {
                self.refuse(invocation, event, &error).await
            }
            applied => applied,
        }
    }

    async fn created(
        &self,
        invocation: &Invocation,
        event: &UploadEvent,
        hops: u32,
        before: Before,
        stat: Result<DifStat, DifError>,
    ) -> Result<(), Error> {
        let location = Location::new(event.key.as_str());
        let Before {
            upload: known,
            generation,
        } = before;
        let stat = match stat {
            Ok(stat) => stat,
            // The file was removed. The event of its removal follows, or was already applied.
            Err(DifError::Missing(_) | DifError::Changed) => return Ok(()),
            Err(DifError::Store(error)) => return Err(error.into()),
        };
        let upload = Upload {
            etag: stat.etag.clone(),
            sequencer: event.sequencer.clone(),
            size: stat.size,
            ..Upload::pending(event.key.as_str(), invocation.now())
        };
        let Some(scope) = Scope::of_key(&event.key) else {
            let reason = NO_SCOPE.to_owned();
            self.put_upload(invocation, ignored(&upload, reason), known)
                .await?;
            return Ok(());
        };
        let announced = |known: Option<&Upload>| announced(&upload, known, hops);
        let announced = self.announce(invocation, event, known, announced).await?;
        let Some(announced) = announced else {
            return Ok(());
        };
        let arrived = Arrived {
            key: &event.key,
            sequencer: &event.sequencer,
            scope: &scope,
            dif: DifRef {
                location,
                etag: stat.etag.clone(),
            },
            hops,
            generation,
        };
        let taken_in = Box::pin(self.take_in(invocation, &arrived, upload, announced, &stat)).await;
        if let Err(Error::Store(_)) = &taken_in
            && let Err(error) = self.give_attempt_back(invocation, &arrived).await
        {
            tracing::warn!(key = event.key, %error, "cannot revert the count of a failed attempt");
        }
        taken_in
    }

    /// Reads a file whose item is pending, and applies it.
    async fn take_in(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
        upload: Upload,
        announced: Announced,
        stat: &DifStat,
    ) -> Result<(), Error> {
        let before = &announced.upload;
        // Whatever the new file contains, the former bytes must no longer be served.
        let former = match before.names_objects() && before.etag != upload.etag {
            true => self.take_back(invocation, arrived, before).await?,
            false => Vec::new(),
        };
        let (attempts, most) = (before.crashes, self.settings.policy.max_attempts);
        let reading = match attempts > most {
            true => Reading::Ignored(given_up(most, "every attempt was interrupted")),
            false => {
                self.read_in_time(invocation, &arrived.dif, stat, attempts)
                    .await?
            }
        };
        match reading {
            Reading::Overtaken => Ok(()),
            // The message is delivered again for another attempt.
            Reading::Crashed(reason) if attempts < most => Err(Error::Crashed {
                what: format!("reading {}", arrived.key),
                reason,
            }),
            Reading::Crashed(reason) => {
                let reason = given_up(attempts, &reason);
                self.ignore(invocation, arrived, &announced, former, upload, reason)
                    .await
            }
            Reading::Ignored(reason) => {
                self.ignore(invocation, arrived, &announced, former, upload, reason)
                    .await
            }
            Reading::Found(found) => {
                let applied =
                    self.apply_upload(invocation, arrived, announced, former, upload, found);
                Box::pin(applied).await
            }
        }
    }

    /// Reads a file, within the time that the invocation can spare.
    async fn read_in_time(
        &self,
        invocation: &Invocation,
        dif: &DifRef,
        stat: &DifStat,
        attempt: u32,
    ) -> Result<Reading, Error> {
        let most = invocation.time_left().mul_f64(READING_SHARE);
        let read = Box::pin(self.read(invocation, dif, stat));
        tokio::time::timeout(most, read).await.unwrap_or_else(|_| {
            let seconds = most.as_secs();
            tracing::warn!(%dif.location, attempt, seconds, "reading upload timed out");
            let reason = format!("fetching and reading it took longer than {seconds} s");
            Ok(Reading::Crashed(reason))
        })
    }

    /// Records that an upload serves no module. `former` are the builds that replace the former
    /// bytes.
    async fn ignore(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
        announced: &Announced,
        mut former: Vec<ToBuild>,
        upload: Upload,
        reason: String,
    ) -> Result<(), Error> {
        let before = &announced.upload;
        if before.names_objects() {
            if before.etag == upload.etag {
                // An earlier attempt could read the same bytes. The item will name no objects, so
                // nothing may stay filed.
                former = self.take_back(invocation, arrived, before).await?;
            }
            if !self
                .build_all(invocation, arrived, former, &mut Vec::new())
                .await?
            {
                return Ok(());
            }
            self.note_change(invocation, arrived).await?;
        }
        self.put_upload(
            invocation,
            ignored(&upload, reason),
            announced.stored.clone(),
        )
        .await?;
        Ok(())
    }

    /// Files an upload under its modules, and builds what it serves.
    async fn apply_upload(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
        announced: Announced,
        former: Vec<ToBuild>,
        upload: Upload,
        ReadUpload {
            objects,
            passed_over,
            refused,
            mut open,
        }: ReadUpload,
    ) -> Result<(), Error> {
        let (scope, dif) = (arrived.scope, &arrived.dif);
        let modules = filing::modules(scope, &objects, &dif.location);
        let keys: HashSet<_> = modules.iter().map(|module| module.key.clone()).collect();
        let mut is_named = false;
        let mut former = former;
        let before = &announced.upload;
        if before.names_objects() && before.etag == upload.etag {
            let named = objects_of(&*self.records, before, usize::MAX).await?;
            is_named = named == objects;
            // Another build of the code may have read other ids from the same bytes.
            let mut dropped = filing::modules(scope, &named, &dif.location);
            dropped.retain(|module| !keys.contains(&module.key));
            former.extend(self.revoke_all(invocation, &dropped, dif, before).await?);
        }
        // Build these while the item still names them. Modules that the new file also serves are
        // built from it below.
        former.retain(|former| !keys.contains(&former.module.key));
        if !self
            .build_all(invocation, arrived, former, &mut Vec::new())
            .await?
        {
            return Ok(());
        }
        // The item names the objects before anything is filed, so that a removal finds everything
        // to undo.
        let upload = Upload {
            passed_over,
            ..upload
        };
        let mut upload = match is_named {
            true => Upload {
                crashes: 0,
                passed_over: upload.passed_over,
                ..before.clone()
            },
            false => self.with_objects(invocation, upload, objects).await?,
        };
        let put = self.put_upload(invocation, upload.clone(), announced.stored);
        let Some(stored) = put.await? else {
            if let Some(set) = upload.object_set.filter(|_| !is_named) {
                self.remove_objects(&dif.location, &set).await?;
            }
            return Ok(());
        };
        let generation = arrived.generation.clone();
        let is_filed = upload.progress == UploadProgress::Filed;
        let to_build = match is_filed {
            true => self.left_to_build(modules).await?,
            false => {
                let marked = self.file(invocation, arrived, &mut upload, modules, refused);
                match marked.await? {
                    Some(marked) => marked,
                    None => return Ok(()),
                }
            }
        };
        let update = self.update(invocation);
        let noted = async {
            match is_filed {
                true => Ok((generation, stored)),
                false => {
                    let changed = presence::note_change(update, scope, generation);
                    try_join(changed, self.note_filed(invocation, &upload, stored)).await
                }
            }
        };
        let built = Box::pin(self.build_all(invocation, arrived, to_build, &mut open));
        // Await both, because a build that is dropped keeps its leases.
        let (noted, built) = join(noted, built).await;
        let (generation, stored) = noted?;
        if !built? {
            return Ok(());
        }
        presence::note_change(update, scope, generation).await?;
        self.end(invocation, &upload, stored).await
    }

    /// Records that an upload is filed, so that a continuation skips this step. `known` is its item
    /// as it was last written. Returns the item as it is now.
    async fn note_filed(
        &self,
        invocation: &Invocation,
        filed: &Upload,
        known: KnownItem,
    ) -> Result<KnownItem, Fault> {
        let noted = self.amend(invocation, &filed.key, known, |present| {
            is_same(present, filed).then(|| {
                present.progress = filed.progress;
                present.no_room.clone_from(&filed.no_room);
            })
        });
        noted.await
    }

    /// Gives the scope of an event a new generation.
    async fn note_change(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
    ) -> Result<(), Fault> {
        let known = arrived.generation.clone();
        presence::note_change(self.update(invocation), arrived.scope, known).await?;
        Ok(())
    }

    /// Files an upload under its modules, and marks their entries dirty. Returns the builds that
    /// are left to do; `None` if the file was removed or overwritten meanwhile, and its filing was
    /// undone.
    async fn file(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
        upload: &mut Upload,
        modules: Vec<FiledModule>,
        refused: Option<Missing>,
    ) -> Result<Option<Vec<ToBuild>>, Error> {
        let (scope, dif) = (arrived.scope, &arrived.dif);
        let filed = {
            let upload = &*upload;
            let refused = &refused;
            side_by_side(&modules, |module| {
                self.add_dif(invocation, module, upload, dif, refused.clone())
            })
            .await?
        };
        let (mut with_room, mut without) = (Vec::new(), Vec::new());
        for (module, filed) in modules.into_iter().zip(filed) {
            match filed {
                Some(entries) => with_room.push(FiledModule { entries, ..module }),
                None => without.push(module),
            }
        }
        let (is_current, concerned) =
            try_join(self.is_current(upload), self.concerned(&with_room)).await?;
        if !is_current {
            with_room.append(&mut without);
            self.undo(invocation, arrived, upload, &with_room).await?;
            return Ok(None);
        }
        self.satisfy(invocation, scope, upload).await?;
        let marked = side_by_side(&concerned, |module| {
            self.invalidate(invocation, module, dif)
        })
        .await?;
        upload.no_room = no_room(&without, with_room.len());
        upload.progress = UploadProgress::Filed;
        Ok(Some(marked))
    }

    /// Undoes the filing of an upload whose bytes are no longer at its key.
    async fn undo(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
        upload: &Upload,
        modules: &[FiledModule],
    ) -> Result<(), Error> {
        let dif = &arrived.dif;
        let is_ours =
            |present: &Dif| present.sequencer == upload.sequencer && present.file.etag == dif.etag;
        side_by_side(modules, |module| async move {
            let partition = self
                .take_out(invocation, module, &dif.location, is_ours)
                .await?;
            self.call_overflow(invocation, &module.key, &partition)
                .await
        })
        .await?;
        self.note_change(invocation, arrived).await?;
        Ok(())
    }

    /// Removes the *wanted* items of the Microsoft SymCaches that were uploaded.
    async fn satisfy(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        upload: &Upload,
    ) -> Result<(), Fault> {
        // An upload with object chunks is an archive, and an archive never contains these
        // SymCaches.
        let ready_made = upload
            .objects
            .iter()
            .filter(|object| object.file_type == FileType::MsSymCache);
        let pdbs: Vec<DebugId> = ready_made.filter_map(|object| object.debug_id).collect();
        for pdb in pdbs {
            let key = ItemKey::wanted(scope, pdb);
            let is_it =
                |item: &Item| matches!(item, Item::Wanted(wanted) if wanted.debug_id == pdb);
            self.update(invocation).remove(&key, is_it).await?;
        }
        Ok(())
    }

    /// Ends a creation: the upload is applied, or ignored if no module had room for it.
    async fn end(
        &self,
        invocation: &Invocation,
        upload: &Upload,
        known: KnownItem,
    ) -> Result<(), Error> {
        let now = invocation.now();
        self.amend(invocation, &upload.key, known, |present| {
            let is_pending = present.state == UploadState::Pending;
            let state = match upload.is_left_out() {
                // Another delivery of the event may have found room since.
                true if !is_pending || present.no_room != upload.no_room => return None,
                true => {
                    let most = room::MAX_DIFS;
                    let reason = format!(
                        "its modules have reached the limit of {most} files; it is processed again when one of these is removed"
                    );
                    UploadState::Ignored { reason }
                }
                false if is_pending || present.is_left_out() => UploadState::Applied,
                false => return None,
            };
            is_same(present, upload).then(|| {
                present.state = state;
                present.progress = UploadProgress::Begun;
                present.no_room.clone_from(&upload.no_room);
                (present.crashes, present.reconciled) = (0, 0);
                present.at = now;
            })
        })
        .await?;
        Ok(())
    }
}
