//! Applies removals, and withdraws the bytes of files that were removed or overwritten.

use std::time::Duration;

use super::building::{BuildProgress, ToBuild};
use super::changes::{EventContext, UploadChanges};
use super::event::{LoadedItems, UploadEvent, is_same, pending_removal};
use super::filing::{ConcernedModule, ServedModule};
use super::item::WrittenUpload;
use super::objects::objects_of;
use super::side_by_side::side_by_side;
use super::{companions, filing};
use crate::cache::{Dif, Upload, UploadProgress, UploadState};
use crate::domain::{DifRef, Scope};
use crate::flows::build::OpenDifs;
use crate::flows::error::Error;
use crate::flows::presence;
use crate::flows::update::{Entries, KnownItem};
use crate::ports::Fault;

/// How long the item of a removed file is kept. No event is delivered later than that.
const GONE_LIFETIME: Duration = Duration::from_secs(15 * 24 * 3600);

/// What has to be built after a file was withdrawn from a module.
enum WithdrawnFrom {
    /// Nothing: the module had reached its limit of files, so the file was not filed there.
    LeftOut,
    /// The module, from the files that are left.
    Module(ToBuild),
    /// These programs: the file was their companion.
    Companion(Vec<ConcernedModule>),
}

impl UploadChanges<'_> {
    /// Applies the removal of a file.
    pub(super) async fn apply_removal(
        &self,
        event: &UploadEvent,
        hops: u32,
        loaded: LoadedItems,
    ) -> Result<(), Error> {
        let LoadedItems {
            upload: known,
            generation,
        } = loaded;
        let nothing = Upload::pending(event.key.as_str(), self.invocation.now());
        let pending = |known: Option<&Upload>| pending_removal(event, known, &nothing);
        let written = self.write_pending(event, known, pending).await?;
        let Some(WrittenUpload {
            upload: pending,
            stored,
        }) = written
        else {
            return Ok(());
        };
        if let Some(scope) = Scope::of_key(&event.key).filter(|_| pending.names_objects()) {
            let context = EventContext {
                changes: *self,
                key: &event.key,
                sequencer: &event.sequencer,
                scope: &scope,
                dif: DifRef {
                    location: pending.location(),
                    etag: pending.etag.clone(),
                },
                hops,
                generation,
            };
            let left = context.withdraw(&pending).await?;
            let built = context.build_all(left, &mut OpenDifs::default()).await?;
            if built == BuildProgress::Continued {
                return Ok(());
            }
            context.write_generation().await?;
        }
        let gone = Upload {
            etag: pending.etag,
            sequencer: pending.sequencer,
            size: pending.size,
            state: UploadState::Gone,
            expires_at: Some(self.invocation.now().plus(GONE_LIFETIME)),
            ..nothing
        };
        self.put_upload(gone, stored).await?;
        Ok(())
    }

    /// Withdraws a DIF from these modules. Returns the builds that replace it.
    pub(super) async fn withdraw_from_all(
        &self,
        modules: &[ServedModule],
        dif: &DifRef,
        named: &Upload,
    ) -> Result<Vec<ToBuild>, Error> {
        let withdrawn = side_by_side(modules, |module| self.withdraw_from(module, dif, named));
        let (mut to_build, mut programs) = (Vec::new(), Vec::new());
        for from in withdrawn.await? {
            match from {
                WithdrawnFrom::LeftOut => {}
                WithdrawnFrom::Module(module) => to_build.push(module),
                WithdrawnFrom::Companion(of) => programs.extend(of),
            }
        }
        let programs = companions::each_once(programs);
        let revoked = side_by_side(&programs, |program| async move {
            self.revoke_in_entries(program, dif).await?;
            Ok::<_, Fault>(ToBuild {
                module: program.clone(),
                has_files: true,
            })
        });
        to_build.extend(revoked.await?);
        Ok(to_build)
    }

    /// Withdraws a DIF from a module: removes its `dif` item, and revokes it in the entries.
    async fn withdraw_from(
        &self,
        module: &ServedModule,
        dif: &DifRef,
        named: &Upload,
    ) -> Result<WithdrawnFrom, Error> {
        let key = module.key();
        if named.no_room.is_some() {
            let gone = std::slice::from_ref(&dif.location);
            self.forget_overflow(key, gone, |_| true).await?;
        }
        if named.is_left_out() {
            return Ok(WithdrawnFrom::LeftOut);
        }
        // The same bytes may have been uploaded again meanwhile: a later event filed them.
        let is_of_it = |present: &Dif| present.file == *dif && present.sequencer <= named.sequencer;
        let partition = self.take_out(key, &dif.location, is_of_it).await?;
        if key.is_of_companions() {
            self.requeue_overflow(key, &partition).await?;
            return Ok(WithdrawnFrom::Companion(if module.is_program() {
                Vec::new()
            } else {
                companions::programs(key, &partition)
            }));
        }
        let mut concerned = module.concerned.clone();
        concerned.add_opaque_kinds(&partition);
        concerned.entries = Entries::of(&partition);
        self.revoke_in_entries(&concerned, dif).await?;
        self.requeue_overflow(key, &partition).await?;
        Ok(WithdrawnFrom::Module(ToBuild {
            module: concerned,
            has_files: presence::files(&partition) > 0,
        }))
    }
}

impl EventContext<'_> {
    /// Withdraws the bytes that an upload item names from all responses. Returns the builds that
    /// replace them.
    ///
    /// Everything is withdrawn before anything is built.
    pub(super) async fn withdraw(&self, named: &Upload) -> Result<Vec<ToBuild>, Error> {
        let (changes, location) = (self.changes, &self.dif.location);
        let objects = objects_of(&*changes.builder.records, named, usize::MAX).await?;
        let modules = filing::modules(self.scope, &objects, location);
        if named.progress == UploadProgress::Withdrawn {
            return Ok(changes.left_to_build(modules).await?);
        }
        let dif = DifRef {
            location: location.clone(),
            etag: named.etag.clone(),
        };
        let to_build = changes.withdraw_from_all(&modules, &dif, named).await?;
        self.write_generation().await?;
        let amended = changes.amend(self.key, KnownItem::Unread, |present| {
            is_same(present, named).then(|| present.progress = UploadProgress::Withdrawn)
        });
        amended.await?;
        Ok(to_build)
    }
}
