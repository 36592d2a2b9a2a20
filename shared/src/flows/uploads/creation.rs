//! Applies the creation of a file: reads it, files it under its modules, and builds what it serves.

use std::collections::HashSet;

use futures::future::{join, try_join};

use super::building::{BuildProgress, ToBuild};
use super::changes::{EventContext, UploadChanges};
use super::event::{
    LoadedItems, UploadEvent, given_up, ignored, is_same, no_room, pending_creation,
};
use super::filing::{self, ServedModule};
use super::item::WrittenUpload;
use super::objects::objects_of;
use super::reading::{ReadUpload, Reading};
use super::room::MAX_DIFS;
use super::side_by_side::side_by_side;
use crate::cache::{Dif, Item, ItemKey, Upload, UploadProgress, UploadState, UploadedObject};
use crate::domain::{DebugId, DifRef, FileType, Location, Missing, Scope};
use crate::flows::build::OpenDifs;
use crate::flows::error::Error;
use crate::flows::notes::IGNORED;
use crate::flows::presence;
use crate::flows::update::KnownItem;
use crate::ports::{DifError, DifStat, Fault};

const NO_SCOPE: &str = "its key has no scope: copy it to global/… (or to <tenant>/…)";

impl UploadChanges<'_> {
    /// Applies the creation of a file; `stat` describes the bytes at its key.
    pub(super) async fn apply_creation(
        &self,
        event: &UploadEvent,
        hops: u32,
        loaded: LoadedItems,
        stat: Result<DifStat, DifError>,
    ) -> Result<(), Error> {
        let LoadedItems {
            upload: known,
            generation,
        } = loaded;
        let stat = match stat {
            Ok(stat) => stat,
            // The file was removed. The event of its removal follows, or was already applied.
            Err(DifError::Missing(_) | DifError::Changed) => return Ok(()),
            Err(DifError::Fault(error)) => return Err(error.into()),
        };
        let upload = Upload {
            etag: stat.etag.clone(),
            sequencer: event.sequencer.clone(),
            size: stat.size,
            ..Upload::pending(event.key.as_str(), self.invocation.now())
        };
        let Some(scope) = Scope::of_key(&event.key) else {
            let reason = NO_SCOPE.to_owned();
            self.invocation.note(|notes| notes.cause = Some(IGNORED));
            self.put_upload(ignored(&upload, reason), known).await?;
            return Ok(());
        };
        let pending = |known: Option<&Upload>| pending_creation(&upload, known, hops);
        let Some(written) = self.write_pending(event, known, pending).await? else {
            return Ok(());
        };
        let context = EventContext {
            changes: *self,
            key: &event.key,
            sequencer: &event.sequencer,
            scope: &scope,
            dif: DifRef {
                location: Location::new(event.key.as_str()),
                etag: stat.etag.clone(),
            },
            hops,
            generation,
        };
        let processed = Box::pin(context.process(upload, written, &stat)).await;
        if let Err(Error::Fault(_)) = &processed
            && let Err(error) = context.revert_attempt().await
        {
            tracing::warn!(key = event.key, %error, "cannot revert the count of a failed attempt");
        }
        processed
    }
}

impl EventContext<'_> {
    /// Reads a file whose item is pending, and applies it.
    async fn process(
        &self,
        upload: Upload,
        written: WrittenUpload,
        stat: &DifStat,
    ) -> Result<(), Error> {
        let pending = &written.upload;
        // Whatever the new file contains, the former bytes must no longer be served.
        let former = if pending.names_objects() && pending.etag != upload.etag {
            self.withdraw(pending).await?
        } else {
            Vec::new()
        };
        let changes = self.changes;
        let (attempts, most) = (
            pending.attempts,
            changes.builder.settings.policy.max_attempts,
        );
        let reading = if attempts > most {
            Reading::Ignored(given_up(most, "every attempt was interrupted"))
        } else {
            changes.read_in_time(&self.dif, stat, attempts).await?
        };
        match reading {
            Reading::Overtaken => Ok(()),
            // The message is delivered again for another attempt.
            Reading::Interrupted(reason) if attempts < most => Err(Error::Crashed {
                what: format!("reading {}", self.key),
                reason,
            }),
            Reading::Interrupted(reason) => {
                let reason = given_up(attempts, &reason);
                self.ignore(&written, former, upload, reason).await
            }
            Reading::Ignored(reason) => self.ignore(&written, former, upload, reason).await,
            Reading::Found(found) => Box::pin(self.apply(written, former, upload, found)).await,
        }
    }

    /// Records that an upload serves no module. `former` are the builds that replace the former
    /// bytes.
    async fn ignore(
        &self,
        written: &WrittenUpload,
        mut former: Vec<ToBuild>,
        upload: Upload,
        reason: String,
    ) -> Result<(), Error> {
        let pending = &written.upload;
        let invocation = self.changes.invocation;
        invocation.note(|notes| notes.cause = Some(IGNORED));
        if pending.names_objects() {
            if pending.etag == upload.etag {
                // An earlier attempt could read the same bytes. The item will name no objects, so
                // nothing may stay filed.
                former = self.withdraw(pending).await?;
            }
            let built = self.build_all(former, &mut OpenDifs::default()).await?;
            if built == BuildProgress::Continued {
                return Ok(());
            }
            self.write_generation().await?;
        }
        let converter = self.changes.builder.settings.policy.numbers.converter;
        let ignored = Upload {
            ignored_by: Some(converter),
            ..ignored(&upload, reason)
        };
        if self.changes.put_ignored(ignored, written).await? {
            return Ok(());
        }
        // Nothing would undo what the other delivery files. This one is received again, and finds
        // its result.
        Err(Error::Superseded {
            what: self.key.to_owned(),
        })
    }

    /// Files an upload under its modules, and builds what it serves.
    async fn apply(
        &self,
        written: WrittenUpload,
        mut former: Vec<ToBuild>,
        mut upload: Upload,
        found: ReadUpload,
    ) -> Result<(), Error> {
        let (changes, dif) = (self.changes, &self.dif);
        let modules = filing::modules(self.scope, &found.objects, &dif.location);
        let keys: HashSet<_> = modules.iter().map(|module| module.key().clone()).collect();
        let pending = &written.upload;
        let mut is_named = false;
        if pending.names_objects() && pending.etag == upload.etag {
            let named = objects_of(&*changes.builder.records, pending, usize::MAX).await?;
            is_named = named == found.objects;
            // Another release may have read other ids from the same bytes.
            let mut dropped = filing::modules(self.scope, &named, &dif.location);
            dropped.retain(|module| !keys.contains(module.key()));
            former.extend(changes.withdraw_from_all(&dropped, dif, pending).await?);
        }
        // Build these while the item still names them. Modules that the new file also serves are
        // built from it below.
        former.retain(|former| !keys.contains(&former.module.key));
        let built = self.build_all(former, &mut OpenDifs::default()).await?;
        if built == BuildProgress::Continued {
            return Ok(());
        }
        upload.skipped = found.skipped;
        let named = if is_named {
            self.write_same_objects(written, upload).await?
        } else {
            self.write_objects(written, upload, found.objects).await?
        };
        match named {
            Some(named) => {
                let (over_limit, open_difs) = (found.over_limit, found.open_difs);
                Box::pin(self.file_and_build(named, modules, over_limit, open_difs)).await
            }
            None => Ok(()),
        }
    }

    /// Writes the upload item, which already names the objects in the file. Returns it; `None` if
    /// a later event of its key was received.
    async fn write_same_objects(
        &self,
        written: WrittenUpload,
        upload: Upload,
    ) -> Result<Option<WrittenUpload>, Fault> {
        let upload = Upload {
            attempts: 0,
            skipped: upload.skipped,
            ..written.upload
        };
        let put = self.changes.put_upload(upload.clone(), written.stored);
        Ok(put.await?.map(|stored| WrittenUpload { upload, stored }))
    }

    /// Names the objects in the file in its upload item, before anything is filed, so that a
    /// removal finds everything to undo. Returns the item; `None` if a later event of its key was
    /// received.
    async fn write_objects(
        &self,
        written: WrittenUpload,
        upload: Upload,
        objects: Vec<UploadedObject>,
    ) -> Result<Option<WrittenUpload>, Fault> {
        let changes = self.changes;
        let upload = changes.with_objects(upload, objects).await?;
        let put = changes.put_upload(upload.clone(), written.stored);
        if let Some(stored) = put.await? {
            return Ok(Some(WrittenUpload { upload, stored }));
        }
        if let Some(set) = upload.object_set {
            changes.remove_objects(&self.dif.location, &set).await?;
        }
        Ok(None)
    }

    /// Files an upload under its modules unless it is filed, builds what it serves, and ends the
    /// event.
    async fn file_and_build(
        &self,
        named: WrittenUpload,
        modules: Vec<ServedModule>,
        over_limit: Option<Missing>,
        mut open_difs: OpenDifs,
    ) -> Result<(), Error> {
        let WrittenUpload { mut upload, stored } = named;
        let generation = self.generation.clone();
        let is_filed = upload.progress == UploadProgress::Filed;
        let to_build = if is_filed {
            self.changes.left_to_build(modules).await?
        } else {
            match self.file(&mut upload, modules, over_limit).await? {
                Some(marked) => marked,
                None => return Ok(()),
            }
        };
        let writer = self.changes.writer();
        let recorded = async {
            if is_filed {
                Ok((generation, stored))
            } else {
                let written = presence::write_generation(writer, self.scope, generation);
                try_join(written, self.record_filed(&upload, stored)).await
            }
        };
        let built = Box::pin(self.build_all(to_build, &mut open_difs));
        // Await both, because a build that is dropped keeps its leases.
        let (recorded, built) = join(recorded, built).await;
        let (generation, stored) = recorded?;
        if built? == BuildProgress::Continued {
            return Ok(());
        }
        presence::write_generation(writer, self.scope, generation).await?;
        self.end(&upload, stored).await
    }

    /// Records that an upload is filed, so that a continuation skips this step. `known` is its item
    /// as it was last written. Returns the item as it is now.
    async fn record_filed(&self, filed: &Upload, known: KnownItem) -> Result<KnownItem, Fault> {
        let recorded = self.changes.amend(&filed.key, known, |present| {
            is_same(present, filed).then(|| {
                present.progress = filed.progress;
                present.no_room.clone_from(&filed.no_room);
            })
        });
        recorded.await
    }

    /// Files an upload under its modules, and marks their entries dirty. Returns the builds that
    /// are left to do; `None` if the file was removed or overwritten meanwhile, and its filing was
    /// undone.
    async fn file(
        &self,
        upload: &mut Upload,
        modules: Vec<ServedModule>,
        over_limit: Option<Missing>,
    ) -> Result<Option<Vec<ToBuild>>, Error> {
        let (changes, dif) = (self.changes, &self.dif);
        let filed = {
            let upload = &*upload;
            let over_limit = &over_limit;
            side_by_side(&modules, |module| {
                changes.add_dif(module, upload, dif, over_limit.clone())
            })
            .await?
        };
        let (mut with_room, mut without) = (Vec::new(), Vec::new());
        for (mut module, filed) in modules.into_iter().zip(filed) {
            if let Some(entries) = filed {
                module.concerned.entries = entries;
                with_room.push(module);
            } else {
                without.push(module);
            }
        }
        let (is_current, concerned) =
            try_join(changes.is_current(upload), changes.concerned(&with_room)).await?;
        if !is_current {
            with_room.append(&mut without);
            self.undo(upload, &with_room).await?;
            return Ok(None);
        }
        self.remove_wanted(upload).await?;
        let marked =
            side_by_side(&concerned, |module| changes.invalidate_entries(module, dif)).await?;
        upload.no_room = no_room(&without, with_room.len());
        upload.progress = UploadProgress::Filed;
        Ok(Some(marked))
    }

    /// Undoes the filing of an upload whose bytes are no longer at its key.
    async fn undo(&self, upload: &Upload, modules: &[ServedModule]) -> Result<(), Error> {
        let (changes, dif) = (self.changes, &self.dif);
        let is_ours =
            |present: &Dif| present.sequencer == upload.sequencer && present.file.etag == dif.etag;
        side_by_side(modules, |module| async move {
            let module = module.key();
            let partition = changes.take_out(module, &dif.location, is_ours).await?;
            changes.requeue_overflow(module, &partition).await
        })
        .await?;
        self.write_generation().await?;
        Ok(())
    }

    /// Removes the *wanted* items of the Microsoft SymCaches that were uploaded.
    async fn remove_wanted(&self, upload: &Upload) -> Result<(), Fault> {
        // An upload with object chunks is an archive, and an archive never contains these
        // SymCaches.
        let ready_made = upload
            .objects
            .iter()
            .filter(|object| object.file_type == FileType::MsSymCache);
        let pdbs: Vec<DebugId> = ready_made.filter_map(|object| object.debug_id).collect();
        for pdb in pdbs {
            let key = ItemKey::wanted(self.scope, pdb);
            let is_it =
                |item: &Item| matches!(item, Item::Wanted(wanted) if wanted.debug_id == pdb);
            self.changes.writer().remove(&key, is_it).await?;
        }
        Ok(())
    }

    /// Ends a creation: the upload is applied, or ignored if no module had room for it.
    async fn end(&self, upload: &Upload, known: KnownItem) -> Result<(), Error> {
        let now = self.changes.invocation.now();
        let ended = self.changes.amend(&upload.key, known, |present| {
            let is_pending = present.state == UploadState::Pending;
            let state = if upload.is_left_out() {
                // Another delivery of the event may have found room since.
                if !is_pending || present.no_room != upload.no_room {
                    return None;
                }
                let most = MAX_DIFS;
                let reason = format!(
                    "its modules have reached the limit of {most} files; it is processed again when one of these is removed"
                );
                UploadState::Ignored { reason }
            } else if is_pending || present.is_left_out() {
                UploadState::Applied
            } else {
                return None;
            };
            is_same(present, upload).then(|| {
                present.state = state;
                present.progress = UploadProgress::Begun;
                present.no_room.clone_from(&upload.no_room);
                (present.attempts, present.reconciled) = (0, 0);
                present.at = now;
            })
        });
        ended.await?;
        Ok(())
    }
}
