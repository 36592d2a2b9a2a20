//! Applies removals, and withdraws the bytes of files that were removed or overwritten.

use super::arrival::{Announced, Arrived, Before, Revoked, TOMBSTONE_LIFETIME, ToBuild, is_same};
use super::filing::FiledModule;
use super::objects::objects_of;
use super::order::side_by_side;
use super::{UploadEvent, companions, filing};
use crate::cache::{Change, Token, Upload, UploadProgress, UploadState};
use crate::domain::{DifRef, Scope};
use crate::flows::build::Builder;
use crate::flows::error::Error;
use crate::flows::invocation::Invocation;
use crate::flows::presence;
use crate::flows::update::{Entries, KnownItem};
use crate::ports::Fault;

impl Builder {
    pub(super) async fn removed(
        &self,
        invocation: &Invocation,
        event: &UploadEvent,
        hops: u32,
        before: Before,
    ) -> Result<(), Error> {
        let Before {
            upload: known,
            generation,
        } = before;
        let nothing = Upload::pending(event.key.as_str(), invocation.now());
        let tombstone = |known: Option<&Upload>| {
            let again = known.filter(|known| known.sequencer == event.sequencer);
            let known = known.unwrap_or(&nothing);
            Upload {
                sequencer: event.sequencer.clone(),
                state: UploadState::Pending,
                progress: match known.progress {
                    UploadProgress::Revoked => UploadProgress::Revoked,
                    UploadProgress::Begun | UploadProgress::Filed => UploadProgress::Begun,
                },
                crashes: 0,
                reconciled: again.map_or(0, |again| again.reconciled),
                at: invocation.now(),
                expires_at: None,
                ..known.clone()
            }
        };
        let announced = self.announce(invocation, event, known, tombstone).await?;
        let Some(Announced {
            upload: tombstone,
            stored,
        }) = announced
        else {
            return Ok(());
        };
        if let Some(scope) = Scope::of_key(&event.key).filter(|_| tombstone.names_objects()) {
            let arrived = Arrived {
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
            let left = self.take_back(invocation, &arrived, &tombstone).await?;
            if !self
                .build_all(invocation, &arrived, left, &mut Vec::new())
                .await?
            {
                return Ok(());
            }
            self.note_change(invocation, &arrived).await?;
        }
        let gone = Upload {
            etag: tombstone.etag,
            sequencer: tombstone.sequencer,
            size: tombstone.size,
            state: UploadState::Gone,
            expires_at: Some(invocation.now().plus(TOMBSTONE_LIFETIME)),
            ..nothing
        };
        self.put_upload(invocation, gone, stored).await?;
        Ok(())
    }

    /// Withdraws the bytes that an upload item names from all responses. Returns the builds that
    /// replace them.
    ///
    /// Everything is withdrawn before anything is built.
    pub(super) async fn take_back(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
        named: &Upload,
    ) -> Result<Vec<ToBuild>, Error> {
        let location = &arrived.dif.location;
        let objects = objects_of(&*self.records, named, usize::MAX).await?;
        let modules = filing::modules(arrived.scope, &objects, location);
        if named.progress == UploadProgress::Revoked {
            return Ok(self.left_to_build(modules).await?);
        }
        let dif = DifRef {
            location: location.clone(),
            etag: named.etag.clone(),
        };
        let revoked = self.revoke_all(invocation, &modules, &dif, named).await?;
        self.note_change(invocation, arrived).await?;
        self.amend(invocation, arrived.key, KnownItem::Nothing, |present| {
            is_same(present, named).then(|| present.progress = UploadProgress::Revoked)
        })
        .await?;
        Ok(revoked)
    }

    /// Removes a DIF and everything made from it from these modules. Returns the builds that
    /// replace it.
    pub(super) async fn revoke_all(
        &self,
        invocation: &Invocation,
        modules: &[FiledModule],
        dif: &DifRef,
        named: &Upload,
    ) -> Result<Vec<ToBuild>, Error> {
        let revoked = side_by_side(modules, |module| {
            self.revoke(invocation, module, dif, named)
        });
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
            let build_request = self.revoke_made(invocation, program, dif).await?;
            Ok::<_, Fault>(ToBuild {
                module: program.clone(),
                build_request,
                has_files: true,
            })
        });
        to_build.extend(revoked.await?);
        Ok(to_build)
    }

    /// Revokes a DIF in the entries of a module. Returns the dirty mark, which is also the id of
    /// the build request.
    pub(super) async fn revoke_made(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        dif: &DifRef,
    ) -> Result<Token, Fault> {
        let dif = dif.clone();
        let revoke = |mark| Change::Revoke { dif, mark };
        self.mark(invocation, module, revoke).await
    }

    /// Changes the entries of a module. Returns the dirty mark, which is also the id of the build
    /// request.
    pub(super) async fn mark(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        change: impl FnOnce(Token) -> Change,
    ) -> Result<Token, Fault> {
        let (mark, known) = (invocation.token(), &module.entries);
        let change = change(mark.clone());
        self.update(invocation)
            .apply_all(&module.key, &module.kinds, &change, known)
            .await?;
        Ok(mark)
    }

    /// Removes a DIF and everything made from it from a module.
    pub(super) async fn revoke(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        dif: &DifRef,
        named: &Upload,
    ) -> Result<Revoked, Error> {
        if named.no_room.is_some() {
            let gone = std::slice::from_ref(&dif.location);
            self.forget_overflow(invocation, &module.key, gone, |_| true)
                .await?;
        }
        if named.is_left_out() {
            return Ok(Revoked::LeftOut);
        }
        let partition = self
            .take_out(invocation, module, &dif.location, |present| {
                present.file == *dif
            })
            .await?;
        let mut module = module.clone();
        module.add_opaque_kinds(&partition);
        module.entries = Entries::of(&partition);
        if module.key.is_of_companions() {
            self.call_overflow(invocation, &module.key, &partition)
                .await?;
            return Ok(Revoked::Companion(match module.is_program() {
                true => Vec::new(),
                false => companions::programs(&module.key, &partition),
            }));
        }
        let build_request = self.revoke_made(invocation, &module, dif).await?;
        self.call_overflow(invocation, &module.key, &partition)
            .await?;
        Ok(Revoked::Module(Box::new(ToBuild {
            module,
            build_request,
            has_files: presence::files(&partition) > 0,
        })))
    }

    /// Invalidates the entries that this DIF may serve. The dirty mark is also the id of the build
    /// request.
    pub(super) async fn invalidate(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        dif: &DifRef,
    ) -> Result<ToBuild, Fault> {
        let dif = dif.clone();
        let invalidate = |mark| Change::Invalidate { dif, mark };
        let mark = self.mark(invocation, module, invalidate).await?;
        Ok(ToBuild {
            module: module.clone(),
            build_request: mark,
            has_files: true,
        })
    }

    /// Ends an event that needs an item larger than the store accepts: a retry would fail, too.
    /// What is filed so far stays filed. The upload item names it, so that a removal finds it.
    pub(super) async fn refuse(
        &self,
        invocation: &Invocation,
        event: &UploadEvent,
        error: &Fault,
    ) -> Result<(), Error> {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let reason = format!(
            "{error}{}; split it into several files",
            cause.unwrap_or_default()
        );
        tracing::error!(key = event.key, reason, "upload rejected");
        let now = invocation.now();
        let refused = self.amend(invocation, &event.key, KnownItem::Nothing, |present| {
            let is_ours =
                present.sequencer == event.sequencer && present.state == UploadState::Pending;
            is_ours.then(|| {
                let reason = reason.clone();
                present.state = UploadState::Ignored { reason };
                present.progress = UploadProgress::Begun;
                present.at = now;
            })
        });
        refused.await?;
        if let Some(scope) = Scope::of_key(&event.key) {
            presence::note_change(self.update(invocation), &scope, KnownItem::Nothing).await?;
        }
        Ok(())
    }
}
