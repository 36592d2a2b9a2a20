//! Applies removals, and withdraws the bytes of files that were removed or overwritten.

use super::building::BuildProgress;
use super::changes::{EventContext, UploadChanges};
use super::event::{
    LoadedItems, Revoked, TOMBSTONE_LIFETIME, ToBuild, UploadEvent, WrittenUpload, is_same,
    pending_removal,
};
use super::filing::FiledModule;
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
        let tombstone = |known: Option<&Upload>| pending_removal(event, known, &nothing);
        let written = self.write_pending(event, known, tombstone).await?;
        let Some(WrittenUpload {
            upload: tombstone,
            stored,
        }) = written
        else {
            return Ok(());
        };
        if let Some(scope) = Scope::of_key(&event.key).filter(|_| tombstone.names_objects()) {
            let context = EventContext {
                changes: *self,
                key: &event.key,
                sequencer: &event.sequencer,
                scope: &scope,
                dif: DifRef {
                    location: tombstone.location(),
                    etag: tombstone.etag.clone(),
                },
                hops,
                generation,
            };
            let left = context.withdraw(&tombstone).await?;
            let built = context.build_all(left, &mut OpenDifs::default()).await?;
            if built == BuildProgress::Continued {
                return Ok(());
            }
            context.note_change().await?;
        }
        let gone = Upload {
            etag: tombstone.etag,
            sequencer: tombstone.sequencer,
            size: tombstone.size,
            state: UploadState::Gone,
            expires_at: Some(self.invocation.now().plus(TOMBSTONE_LIFETIME)),
            ..nothing
        };
        self.put_upload(gone, stored).await?;
        Ok(())
    }

    /// Removes a DIF and everything made from it from these modules. Returns the builds that
    /// replace it.
    pub(super) async fn revoke_all(
        &self,
        modules: &[FiledModule],
        dif: &DifRef,
        named: &Upload,
    ) -> Result<Vec<ToBuild>, Error> {
        let revoked = side_by_side(modules, |module| self.revoke(module, dif, named));
        let (mut to_build, mut programs) = (Vec::new(), Vec::new());
        for revoked in revoked.await? {
            match revoked {
                Revoked::LeftOut => {}
                Revoked::Module(module) => to_build.push(*module),
                Revoked::Companion(of) => programs.extend(of),
            }
        }
        let programs = companions::each_once(programs);
        let revoked = side_by_side(&programs, |program| async move {
            self.revoke_made(program, dif).await?;
            Ok::<_, Fault>(ToBuild {
                module: program.clone(),
                has_files: true,
            })
        });
        to_build.extend(revoked.await?);
        Ok(to_build)
    }

    /// Removes a DIF and everything made from it from a module.
    pub(super) async fn revoke(
        &self,
        module: &FiledModule,
        dif: &DifRef,
        named: &Upload,
    ) -> Result<Revoked, Error> {
        if named.no_room.is_some() {
            let gone = std::slice::from_ref(&dif.location);
            self.forget_overflow(&module.key, gone, |_| true).await?;
        }
        if named.is_left_out() {
            return Ok(Revoked::LeftOut);
        }
        // The same bytes may have been uploaded again meanwhile: a later event filed them.
        let is_of_it = |present: &Dif| present.file == *dif && present.sequencer <= named.sequencer;
        let partition = self.take_out(module, &dif.location, is_of_it).await?;
        let mut module = module.clone();
        module.add_opaque_kinds(&partition);
        module.entries = Entries::of(&partition);
        if module.key.is_of_companions() {
            self.requeue_overflow(&module.key, &partition).await?;
            return Ok(Revoked::Companion(if module.is_program() {
                Vec::new()
            } else {
                companions::programs(&module.key, &partition)
            }));
        }
        self.revoke_made(&module, dif).await?;
        self.requeue_overflow(&module.key, &partition).await?;
        Ok(Revoked::Module(Box::new(ToBuild {
            module,
            has_files: presence::files(&partition) > 0,
        })))
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
        if named.progress == UploadProgress::Revoked {
            return Ok(changes.left_to_build(modules).await?);
        }
        let dif = DifRef {
            location: location.clone(),
            etag: named.etag.clone(),
        };
        let revoked = changes.revoke_all(&modules, &dif, named).await?;
        self.note_change().await?;
        let amended = changes.amend(self.key, KnownItem::Unread, |present| {
            is_same(present, named).then(|| present.progress = UploadProgress::Revoked)
        });
        amended.await?;
        Ok(revoked)
    }
}
