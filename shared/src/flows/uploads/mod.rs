//! Events of the uploads bucket: a DIF was created or removed.
//!
//! A creation, each step of which may be repeated:
//!
//! 1. The upload item becomes *pending*, and an attempt to read the file is counted. Events of a
//!    key are ordered by their sequencer; an event that is older than the item ends here. The event
//!    says which bytes it is about: those are read, or none.
//! 2. Are other bytes filed under this key, they are taken back: see below.
//! 3. The file is fetched once, and its ids are read. A file without one serves nothing: *ignored*,
//!    with the reason.
//! 4. The upload item names the objects in the file (`objects`).
//! 5. Each module gets a `dif` item, and an alias for its other id (`filing`). A module that is
//!    full gets none (`room`). So does what the file has in common with its companions.
//! 6. The upload item is read again: was the file removed or overwritten meanwhile, its `dif` items
//!    are removed.
//! 7. The entries of the modules, and of the programs that the file completes (`companions`), are
//!    marked: what was missing is asked for, what is being built is built again.
//! 8. The caches are built from the file that is still open (`building`), in as many invocations as
//!    that takes. Meanwhile the scope gets a new generation, and the upload item says that it is
//!    filed.
//! 9. The scope gets a new generation, and the upload item becomes *applied*.
//!
//! To take back what is filed under a key: the `dif` items are removed and the entries of all
//! modules revoked, side by side; the scope gets a new generation. From then on no reader uses the
//! bytes. Then what replaces them is built.
//!
//! A removal takes back what is filed under the key, and the upload item becomes *gone*.
//!
//! An event that was lost is made up for by the sweep, which asks to *reconcile* the key.

mod building;
mod companions;
mod filing;
mod objects;
mod reading;
mod room;

use std::collections::HashSet;
use std::time::Duration;

use building::ToBuild;
use filing::FiledModule;
use futures::future::{BoxFuture, FutureExt, join, try_join};
use futures::stream::{self, StreamExt, TryStreamExt};
pub(super) use objects::objects_of;
use reading::{ReadUpload, Reading};

use super::build::Builder;
use super::update::{Entries, KnownItem, Present};
use super::{Error, Invocation, presence};
use crate::cache::{
    Change, Dif, Item, ItemKey, NoRoom, Stored, Token, Upload, UploadProgress, UploadState,
};
use crate::domain::{Cause, DebugId, DifRef, FileType, Location, Missing, Scope};
use crate::ports::{Consistency, DifError, Fault, FaultKind};
pub use crate::ports::{DifStat, ReconcileMessage};

/// A tombstone stands this long: no event is older.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(15 * 24 * 3600);

/// The part of what is left of an invocation that reading a file may take. The rest is for what
/// follows.
const READING_SHARE: f64 = 0.75;

/// Modules that are worked on side by side.
const SIDE_BY_SIDE: usize = 16;

/// An event of the uploads bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadEvent {
    /// The key, decoded.
    pub key: String,
    /// The order of the event among those of this key: hex digits, compared as padded numbers.
    pub sequencer: String,
    /// What happened.
    pub change: UploadChange,
    /// The bytes that were written, where the event tells.
    pub written: Option<DifStat>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadChange {
    /// It was written.
    Created,
    /// It was removed.
    Removed,
}

/// An event that is being applied.
struct Arrived<'a> {
    key: &'a str,
    sequencer: &'a str,
    scope: &'a Scope,
    /// The bytes that are at the key now; of a removal, those that were.
    dif: DifRef,
    /// How many messages went on with it so far.
    hops: u32,
    /// The generation of the scope, as it was read when the event came.
    generation: KnownItem,
}

/// The items that an event changes, as they were read when it came; by default they were not.
#[derive(Default)]
struct Before {
    upload: KnownItem,
    generation: KnownItem,
}

/// The upload item with which an event began.
struct Announced {
    upload: Upload,
    /// The same, as it is stored.
    stored: KnownItem,
}

/// What became of a module that a file was removed from.
enum Revoked {
    /// It had no room for the file.
    LeftOut,
    /// It is to be built of what is left.
    Module(Box<ToBuild>),
    /// The file was a companion there: of these programs.
    Companion(Vec<FiledModule>),
}

const NO_SCOPE: &str = "its key has no scope: copy it to global/… (or to <tenant>/…)";

impl Builder {
    /// Applies an event. Delivered again, or behind a later one of the same key, it does nothing.
    pub async fn upload(&self, invocation: &Invocation, event: &UploadEvent) -> Result<(), Error> {
        let mut keys = vec![ItemKey::upload(&Location::new(event.key.as_str()))];
        keys.extend(Scope::of_key(&event.key).map(|scope| ItemKey::generation(&scope)));
        let stat = async {
            match (event.change, &event.written) {
                // Where other bytes are there by now, reading these fails, and another event tells of those.
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

    /// Does what the lost event of a key would have done: compares what is known of it with what is
    /// there. Goes on with an upload that is pending.
    ///
    /// It counts as a repetition of the last event that was seen, so that one processed meanwhile
    /// wins.
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
            // It is there, and cannot be read now.
            Err(_) => return Ok(()),
        };
        // Pending again, as if its last event had come a second time; unless something happens to it at this moment.
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

    /// Applies an event: of a creation, with what is at its key.
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
            // Removed already: its event follows, or has been here.
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
            tracing::warn!(key = event.key, %error, "an attempt that failed for our own reasons stays counted");
        }
        taken_in
    }

    /// Reads a file that was announced, and applies it.
    async fn take_in(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
        upload: Upload,
        announced: Announced,
        stat: &DifStat,
    ) -> Result<(), Error> {
        let before = &announced.upload;
        // Whatever the file is: the bytes that were here before must not be served any more.
        let former = match before.names_objects() && before.etag != upload.etag {
            true => self.take_back(invocation, arrived, before).await?,
            false => Vec::new(),
        };
        let (attempts, most) = (before.crashes, self.settings.policy.max_attempts);
        let reading = match attempts > most {
            true => Reading::Ignored(given_up(most, "all of them ended without a word")),
            false => {
                self.read_in_time(invocation, &arrived.dif, stat, attempts)
                    .await?
            }
        };
        match reading {
            Reading::Overtaken => Ok(()),
            // The message comes back, and with it another attempt.
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

    /// Reads a file, as long as the invocation can spare the time.
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
            tracing::warn!(%dif.location, attempt, seconds, "reading an upload did not end in time");
            let reason = format!("fetching and reading it did not end within {seconds} s");
            Ok(Reading::Crashed(reason))
        })
    }

    /// Notes that an upload serves nothing. `former` is what is left to build of the bytes that
    /// were there before.
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
                // The same bytes could be read before. The item names nothing from now on: nothing
                // may stay.
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

    /// Makes a file known to its modules, and builds what it serves.
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
            // Another build of ours may have read other ids in the same bytes.
            let mut dropped = filing::modules(scope, &named, &dif.location);
            dropped.retain(|module| !keys.contains(&module.key));
            former.extend(self.revoke_all(invocation, &dropped, dif, before).await?);
        }
        // Before the item forgets them. What the file serves, too, is built from it below.
        former.retain(|former| !keys.contains(&former.module.key));
        if !self
            .build_all(invocation, arrived, former, &mut Vec::new())
            .await?
        {
            return Ok(());
        }
        // The item names the objects before there is anything to undo, so that a removal finds what to undo.
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
        // Both to their ends: a build that is dropped keeps its leases.
        let (noted, built) = join(noted, built).await;
        let (generation, stored) = noted?;
        if !built? {
            return Ok(());
        }
        presence::note_change(update, scope, generation).await?;
        self.end(invocation, &upload, stored).await
    }

    /// Notes that an upload is filed: who goes on with it need not do that again. `known` is its
    /// item as it was written before; returns it as it is now.
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

    /// Files an upload under its modules and marks their entries. Returns what is to be built;
    /// `None` if the file was removed or overwritten meanwhile, and nothing is left of it.
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

    /// Undoes the filing of an upload that is not what its key holds any more.
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

    /// Forgets that SymCaches of Microsoft's are wanted that were uploaded.
    async fn satisfy(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        upload: &Upload,
    ) -> Result<(), Fault> {
        // An upload with chunks is an archive, and these are never in one.
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
                // Another delivery may have found room since.
                true if !is_pending || present.no_room != upload.no_room => return None,
                true => {
                    let most = room::MAX_DIFS;
                    let reason = format!(
                        "what it serves has {most} other files already: it gets its turn when one of them is removed"
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

    async fn removed(
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

    /// Takes the bytes that an upload item names out of every answer; returns what is left to build
    /// instead of them.
    ///
    /// All of it is out of every answer before anything is built.
    async fn take_back(
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

    /// Removes a DIF from modules, with all that was made from it; returns what is to be built instead.
    async fn revoke_all(
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

    /// Takes what was made from a DIF out of the entries of a module. Returns the mark, which is the ask's id, too.
    async fn revoke_made(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        dif: &DifRef,
    ) -> Result<Token, Fault> {
        let dif = dif.clone();
        let revoke = |mark| Change::Revoke { dif, mark };
        self.mark(invocation, module, revoke).await
    }

    /// Changes the entries of a module. Returns the mark, which is the ask's id, too.
    async fn mark(
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

    /// Removes a DIF from a module, with all that was made from it.
    async fn revoke(
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

    /// Marks the entries that this DIF may serve. The mark is the ask's id, too.
    async fn invalidate(
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

    /// Ends an event that asks for an item which the store does not take: however often it is
    /// tried, it takes none that is as large. What is filed already stays filed, and is named: its
    /// removal removes it.
    async fn refuse(
        &self,
        invocation: &Invocation,
        event: &UploadEvent,
        error: &Fault,
    ) -> Result<(), Error> {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let reason = format!(
            "{error}{}; divide it into several files",
            cause.unwrap_or_default()
        );
        tracing::error!(key = event.key, reason, "an upload is refused");
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

    async fn known_upload(&self, key: &str) -> Result<Option<Upload>, Fault> {
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
        known: KnownItem,
        mut item: impl FnMut(Option<&Upload>) -> Upload,
    ) -> Result<Option<Announced>, Fault> {
        let key = ItemKey::upload(&Location::new(event.key.as_str()));
        let next = |present: Present<'_>| {
            let known = present.item.and_then(Item::upload);
            let is_done_with = known.is_some_and(|known| is_done_with(event, known));
            (!is_done_with).then(|| Item::Upload(item(known)))
        };
        let stored = self.update(invocation).write(&key, known, next).await?;
        let upload = |stored: &Stored| stored.item.upload().cloned();
        Ok(stored.and_then(|stored| {
            Some(Announced {
                upload: upload(&stored)?,
                stored: KnownItem::Before(Some(stored)),
            })
        }))
    }

    /// Writes an upload item unless a later event of its key was here; `known` is what it replaces,
    /// as it was read or written before. Returns what was written. Chunks of objects that the item
    /// named before go.
    async fn put_upload(
        &self,
        invocation: &Invocation,
        upload: Upload,
        known: KnownItem,
    ) -> Result<Option<KnownItem>, Fault> {
        let location = upload.location();
        let mut former = None;
        let next = |present: Present<'_>| {
            if let Some(present) = present.item.and_then(Item::upload) {
                if order(&upload.sequencer, &present.sequencer).is_lt() {
                    return None;
                }
                former.clone_from(&present.object_set);
            }
            Some(Item::Upload(upload.clone()))
        };
        let key = ItemKey::upload(&location);
        let written = self.update(invocation).write(&key, known, next).await?;
        let superseded = former.filter(|former| Some(former) != upload.object_set.as_ref());
        if let Some(superseded) = superseded.filter(|_| written.is_some()) {
            self.remove_objects(&location, &superseded).await?;
        }
        Ok(written.map(|written| KnownItem::Before(Some(written))))
    }

    /// Changes the upload item of a key as it is stored, if `change` says that it applies. `known`
    /// is the item as it was read or written before; returns it as it was written now.
    async fn amend(
        &self,
        invocation: &Invocation,
        key: &str,
        known: KnownItem,
        mut change: impl FnMut(&mut Upload) -> Option<()>,
    ) -> Result<KnownItem, Fault> {
        let next = |present: Present<'_>| {
            let mut next = present.item.and_then(Item::upload)?.clone();
            change(&mut next).map(|()| Item::Upload(next))
        };
        let key = ItemKey::upload(&Location::new(key));
        let written = self.update(invocation).write(&key, known, next).await?;
        Ok(KnownItem::written(written))
    }

    /// Tells whether an upload is still what its key holds. Two deliveries of one event may have
    /// read different bytes: the item names those of the later one.
    async fn is_current(&self, upload: &Upload) -> Result<bool, Fault> {
        let known = self.known_upload(&upload.key).await?;
        Ok(known.is_some_and(|known| is_same(&known, upload) && known.state != UploadState::Gone))
    }
}

/// Returns the item that announces the reading of a file. Until they are out of every answer, it
/// names the bytes that were here before: an event that comes again takes them back.
fn announced(upload: &Upload, known: Option<&Upload>, hops: u32) -> Upload {
    let again = known.filter(|known| known.sequencer == upload.sequencer);
    let mut announced = Upload {
        crashes: again.map_or(0, |again| again.crashes).saturating_add(1),
        reconciled: again.map_or(0, |again| again.reconciled),
        ..upload.clone()
    };
    if let Some(named) = known.filter(|known| known.names_objects()) {
        let is_the_same = named.etag == upload.etag;
        // The bytes of a module that had no room are filed again, unless this only goes on.
        let is_filed = is_the_same && again.is_some() && (hops > 0 || named.no_room.is_none());
        announced.progress = match named.progress {
            UploadProgress::Filed if is_filed => UploadProgress::Filed,
            UploadProgress::Revoked if !is_the_same => UploadProgress::Revoked,
            _ => UploadProgress::Begun,
        };
        announced.etag.clone_from(&named.etag);
        announced.objects.clone_from(&named.objects);
        announced.object_set.clone_from(&named.object_set);
        announced.no_room.clone_from(&named.no_room);
        announced.passed_over.clone_from(&named.passed_over);
    }
    announced
}

fn ignored(upload: &Upload, reason: String) -> Upload {
    Upload {
        state: UploadState::Ignored { reason },
        ..upload.clone()
    }
}

/// Says why an upload is not read any more, and what to do.
fn given_up(attempts: u32, reason: &str) -> String {
    format!("after {attempts} attempts to read it: {reason}; upload it again to have it read again")
}

/// Returns the modules of an upload that have no room for it.
fn no_room(without: &[FiledModule], with_room: usize) -> Option<NoRoom> {
    let names = without.iter().map(|module| module.key.id.clone());
    (!without.is_empty()).then(|| NoRoom {
        modules: objects::count(without.len()),
        of: objects::count(without.len() + with_room),
        named: names.take(NoRoom::MAX_NAMED).collect(),
    })
}

/// Returns the upload that is known.
fn upload_in(known: &KnownItem) -> Option<&Upload> {
    match known {
        KnownItem::Before(Some(stored)) => stored.item.upload(),
        KnownItem::Before(None) | KnownItem::Nothing => None,
    }
}

/// Tells whether an item is about the same event and bytes.
fn is_same(known: &Upload, upload: &Upload) -> bool {
    known.sequencer == upload.sequencer && known.etag == upload.etag
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
    is_done && known.etag == stat.etag && known.no_room.is_none()
}

/// Does work for each of some things, side by side; returns what came of each, in their order.
/// After an error nothing further is begun.
fn side_by_side<'a, T, R, E, Work>(
    of: &'a [T],
    work: impl FnMut(&'a T) -> Work,
) -> BoxFuture<'a, Result<Vec<R>, E>>
where
    Work: Future<Output = Result<R, E>> + Send + 'a,
    R: Send + 'a,
    E: Send + 'a,
{
    // Behind boxes: else the compiler cannot tell that what borrows so much may be sent to other
    // threads.
    let work: Vec<BoxFuture<'a, Result<R, E>>> =
        of.iter().map(work).map(FutureExt::boxed).collect();
    stream::iter(work)
        .buffered(SIDE_BY_SIDE)
        .try_collect()
        .boxed()
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
