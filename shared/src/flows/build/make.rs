//! Makes the caches of a module: opens the DIFs, derives from them, and stores the blobs.

use std::time::Duration;

use futures::future::try_join_all;

use super::builder::Build;
use super::companions::{Companion, FoundCompanions};
use super::deriving_time::DerivingTime;
use super::kind_build::{FoundFiles, KindBuild, Target};
use super::lease::HeldLease;
use super::made::{Made, MadeOutcome, NotMade, Origin};
use super::opaque::{opaque, transcoding};
use super::open_difs::{OpenDif, OpenDifs};
use super::partition::Partition;
use super::search::{FilesAtHand, Search, is_sought};
use crate::cache::{BlobRef, DeriveJob, Derived, Dif, Kind, ModuleKey, ModuleRef, Ready, Seen};
use crate::debuginfo;
use crate::domain::{Cause, FileType, Inspection, Missing, ModuleId, ObjectMeta, Rank};
use crate::flows::invocation::Invocation;
use crate::flows::update::KnownItem;
use crate::ports::{DifError, Fault};

/// Returns the objects of a module among those in a DIF.
pub(super) fn objects_for(module: &ModuleKey, inspection: &Inspection) -> Vec<ObjectMeta> {
    let reference = module.reference();
    let is_it = |object: &&ObjectMeta| match &reference {
        Some(ModuleRef::Search(sought)) => is_sought(object, sought),
        Some(ModuleRef::Filed(id)) => {
            let filed = ModuleId::of(object.debug_id, object.code_id.as_ref());
            filed.is_some_and(|filed| filed == *id)
        }
        None => false,
    };
    inspection.objects.iter().filter(is_it).cloned().collect()
}

/// Returns the object that serves a kind best, the first one if several are equal.
pub(super) fn best_object(objects: &[ObjectMeta], kind: Kind) -> Option<&ObjectMeta> {
    let serves = |object: &&ObjectMeta| kind.comes_of(object.file_type);
    objects
        .iter()
        .filter(serves)
        .min_by_key(|object| Rank::of(&object.features, kind.purpose()))
}

/// The making of the caches whose leases a build holds.
pub(super) struct Making<'a> {
    pub(super) build: Build<'a>,
    /// The fetched DIFs.
    pub(super) open_difs: &'a mut OpenDifs,
    /// The time that it spends deriving, rather than waiting for files.
    pub(super) deriving: &'a DerivingTime,
    /// The health of the module's source as it was read before the leases were taken.
    pub(super) health: KnownItem,
}

impl Making<'_> {
    /// Makes the kinds whose leases are held. Returns one result per lease, in order.
    pub(super) async fn make(mut self, held: &[HeldLease]) -> Result<Vec<Made>, NotMade> {
        let mut partition = self.build.read_partition().await?;
        let given_up = self.build.judge_suspects(held, &mut partition).await?;
        let file = self.build.module.sought();
        if let Some(file) = file.filter(|sought| sought.is_source_file) {
            if let Some((_, missing)) = given_up.first() {
                return Ok(all_missing(held, missing));
            }
            return self.build.make_source_file(&file, held, self.health).await;
        }
        let mut search = self.find_difs(held, &mut partition).await?;
        let companions = self
            .find_companions(held, &partition.difs, &mut search)
            .await?;
        let files = FoundFiles {
            difs: &partition.difs,
            companions: &companions,
        };
        let settings = &self.build.builder.settings;
        let kind_builds = held.iter().map(|lease| {
            let kind = lease.kind;
            let mut kind_build = KindBuild::begin(lease, partition.entry(kind), files, settings);
            if let Some((_, missing)) = given_up.iter().find(|(of, _)| *of == kind) {
                kind_build.give_up(missing.clone(), partition.entry(kind), &companions);
            }
            kind_build
        });
        let mut kind_builds: Vec<KindBuild> = kind_builds.collect();
        // Each iteration opens one DIF, and derives all kinds for which it is the best untried one.
        while let Some(dif) = kind_builds.iter().find_map(KindBuild::next_dif).cloned() {
            self.try_dif(&dif, &companions, &mut kind_builds).await?;
        }
        let has_unread = partition.has_unread || companions.have_unread();
        Ok(kind_builds
            .into_iter()
            .map(|kind_build| kind_build.end(files, &search, has_unread))
            .collect())
    }

    /// Searches the symbol server for files, and adds them to the partition. Modules of uploads are
    /// not searched.
    async fn find_difs(
        &mut self,
        held: &[HeldLease],
        partition: &mut Partition,
    ) -> Result<Search, NotMade> {
        let Some(sought) = self.build.module.sought() else {
            return Ok(Search::default());
        };
        let kinds: Vec<Kind> = held.iter().map(|lease| lease.kind).collect();
        let copies = partition.usable_copies(&kinds, self.build.numbers().converter);
        let files = FilesAtHand {
            copies,
            open_difs: self.open_difs,
        };
        let health = std::mem::take(&mut self.health);
        let searching = self.build.search(&sought, &kinds, files, health);
        let mut search = Box::pin(searching).await?;
        partition.difs.append(&mut search.difs);
        Ok(search)
    }

    /// Finds the companions of the DIFs: in the uploads, then on symbol servers.
    async fn find_companions(
        &mut self,
        held: &[HeldLease],
        difs: &[Dif],
        search: &mut Search,
    ) -> Result<FoundCompanions, NotMade> {
        let mut companions = self.build.companions(difs).await?;
        let kinds: Vec<Kind> = held.iter().map(|lease| lease.kind).collect();
        let searching = self
            .build
            .search_companions(&companions, &kinds, self.open_difs, search);
        Box::pin(searching).await?;
        companions.add(&search.found_companions);
        Ok(companions)
    }

    /// Derives from a DIF all kinds for which it is the next one to try, and records the results.
    async fn try_dif(
        &mut self,
        dif: &Dif,
        companions: &FoundCompanions,
        kind_builds: &mut [KindBuild<'_>],
    ) -> Result<(), NotMade> {
        let is_upload = self.build.module.source.is_uploads();
        let derived = self.derive_from(dif, companions, kind_builds).await;
        self.deriving.end(self.build.invocation.elapsed());
        let results = match derived {
            Ok(results) => results,
            Err(DifError::Missing(missing)) => {
                if missing.cause == Cause::NotFound && is_upload {
                    self.build.forget_if_stale(dif).await?;
                }
                vec![Err(missing); kind_builds.len()]
            }
            Err(DifError::Changed) if is_upload => {
                if !self.build.forget_if_stale(dif).await? {
                    kind_builds
                        .iter_mut()
                        .for_each(|kind_build| kind_build.note_awaited_event(dif));
                }
                let detail =
                    "the file was overwritten; the event of the new version starts another build";
                vec![Err(Missing::new(Cause::NotFound, detail)); kind_builds.len()]
            }
            Err(other) => return Err(other.into()),
        };
        let opened = self.open_difs.find(&dif.file);
        let took = opened.map(|open| open.took);
        let left_out = opened.and_then(|open| open.left_out.clone());
        let absent = opened.map_or(&[][..], |open| &open.absent);
        let is_next = |next: &Dif| next.file == dif.file;
        let tried = kind_builds
            .iter_mut()
            .filter(|kind_build| kind_build.next_dif().is_some_and(is_next));
        for (kind_build, result) in tried.zip(results) {
            kind_build.record_result(dif, result, took);
            kind_build.leave_out(left_out.as_ref(), absent);
        }
        Ok(())
    }

    /// Derives the kinds for which this DIF is the next one to try, and stores the blobs. Returns
    /// one result per such kind, in order.
    async fn derive_from(
        &mut self,
        dif: &Dif,
        companions: &FoundCompanions,
        kind_builds: &[KindBuild<'_>],
    ) -> Result<Vec<Result<Ready, Missing>>, DifError> {
        let targets = kind_builds.iter();
        let targets = targets.filter_map(|kind_build| kind_build.target(dif));
        let targets: Vec<Target> = targets.collect();
        if dif.file_type == FileType::MsSymCache {
            return self.build.take_over(dif, &targets).await;
        }
        let companions = companions.of(&dif.file);
        let completes = |companion: &&Companion| {
            let mut kinds = targets.iter().map(|target| target.lease.kind);
            kinds.any(|kind| kind == companion.completes)
        };
        let companions: &[Companion] = if companions.iter().any(|it| completes(&it)) {
            companions
        } else {
            &[]
        };
        let opened = self.build.opened(dif, companions, self.open_difs).await?;
        // Until `try_dif` has the results.
        self.deriving.begin(self.build.invocation.elapsed());
        let objects = objects_for(self.build.module, &opened.inspection);
        let mut results: Vec<Option<Result<Ready, Missing>>> = vec![None; targets.len()];
        // All kinds of one object are derived in one call. The best object may differ between
        // kinds.
        for object in &objects {
            let is_best = |(_, target): &(usize, Target)| {
                best_object(&objects, target.lease.kind)
                    .is_some_and(|best| best.index == object.index)
            };
            let targets = targets.iter().copied().enumerate().filter(is_best);
            let targets: Vec<(usize, Target)> = targets.collect();
            let derived = self.build.derive_object(opened, dif, object, &targets);
            for (at, result) in derived.await? {
                results[at] = Some(result);
            }
        }
        let none = || {
            Err(Missing::malformed(format!(
                "{} no longer contains the object",
                dif.file.location
            )))
        };
        Ok(results
            .into_iter()
            .map(|result| result.unwrap_or_else(none))
            .collect())
    }
}

impl Build<'_> {
    /// Derives kinds from one object, and stores the blobs. Each target and its result have the
    /// same number.
    async fn derive_object(
        &self,
        opened: &mut OpenDif,
        dif: &Dif,
        object: &ObjectMeta,
        targets: &[(usize, Target<'_>)],
    ) -> Result<Vec<(usize, Result<Ready, Missing>)>, DifError> {
        let rank = |kind: Kind| Rank::of(&object.features, kind.purpose());
        let numbers = self.numbers();
        let (to_transcode, to_derive): (Vec<_>, Vec<_>) = targets
            .iter()
            .partition(|(_, target)| target.lease.kind.is_opaque());
        let jobs = to_derive
            .iter()
            .map(|(_, target)| DeriveJob::of(target.lease.kind, &object.features, numbers));
        let jobs: Vec<DeriveJob> = jobs.collect();
        let span = self.invocation.span("derive");
        let mut made: Vec<((usize, Target), Result<Derived, Missing>)> = Vec::new();
        if !jobs.is_empty() {
            let derived = opened.parser.derive(object.index, &jobs).await?;
            made.extend(to_derive.into_iter().zip(derived));
        }
        for (at, target) in to_transcode {
            let transcoding = transcoding(self.module, dif, object, target.version);
            let transcoded = opened.parser.transcode(object.index, &transcoding).await?;
            let kind = target.lease.kind;
            made.push(((at, target), transcoded.map(|bytes| opaque(kind, bytes))));
        }
        drop(span);
        let stored = made.into_iter().map(|((at, target), made)| {
            let kind = target.lease.kind;
            let origin = Origin {
                made_from: opened.inputs_of(kind),
                rank: rank(kind),
                features: object.features.clone(),
                arch: object.arch.clone(),
                file_type: object.file_type,
            };
            async move {
                Ok::<_, Fault>(match made {
                    Err(missing) => (at, Err(missing)),
                    Ok(derived) => (at, Ok(self.store(target, origin, derived).await?)),
                })
            }
        });
        Ok(try_join_all(stored).await?)
    }

    /// Returns the open DIF with these companions. If it is not open, closes the others, and opens
    /// it: alone, if its companions cannot be opened.
    async fn opened<'a>(
        &self,
        dif: &Dif,
        companions: &[Companion],
        open_difs: &'a mut OpenDifs,
    ) -> Result<&'a mut OpenDif, DifError> {
        if !open_difs.has(&dif.file, companions) {
            open_difs.close_all(); // frees scratch space before more is reserved
            let opened = self.open_afresh(dif, companions).await?;
            open_difs.add(opened);
        }
        open_difs
            .find_mut(&dif.file)
            .ok_or_else(|| DifError::Missing(Missing::not_found()))
    }

    /// Creates the blob of a derived cache. The path contains the lease's token, so if a blob with
    /// this path exists, this build wrote it.
    pub(super) async fn store(
        &self,
        Target { lease, version }: Target<'_>,
        origin: Origin,
        derived: Derived,
    ) -> Result<Ready, Fault> {
        let path = self
            .module
            .entry(lease.kind)
            .blob(lease.kind, version, &lease.token);
        let blob = BlobRef {
            path: path.clone(),
            bytes: derived.blob.len() as u64,
            checksum: derived.checksum,
            index: if lease.kind.is_opaque() {
                None
            } else {
                debuginfo::index_of(&derived.blob)
            },
        };
        let lacks = derived.lacks;
        self.builder.caches.create(&path, derived.blob).await?;
        Ok(Ready {
            version,
            blob,
            quality: origin.rank.quality(),
            rank: origin.rank,
            features: origin.features,
            arch: origin.arch,
            file_type: origin.file_type,
            made_from: origin.made_from,
            lacks,
            derived_at: self.invocation.now(),
            converter: self.numbers().converter,
        })
    }
}

/// What a build was doing that ran out of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unfinished {
    /// How long it has derived.
    pub(super) derived: Duration,
    /// Whether it waited for a file when the time was up.
    pub(super) is_fetching: bool,
    /// Whether copies are made of what it downloads, so that the next build finds them.
    pub(super) has_copies: bool,
}

/// Returns the results of a build that ran out of time. If the build had at least half of the
/// elapsed time, another invocation would not finish it either: it fails. Otherwise the leases are
/// released.
///
/// A slow download says nothing about the file, so it fails as a timeout rather than as malformed.
/// So does a build that had little time left after it: the next one begins with the copies.
pub(super) fn out_of_time(
    invocation: &Invocation,
    held: &[HeldLease],
    began: Duration,
    unfinished: Unfinished,
) -> Result<Vec<Made>, NotMade> {
    let worked = invocation.elapsed() - began;
    if worked < began {
        return Err(NotMade::Interrupted);
    }
    let derived = unfinished.derived;
    let fetched = worked.saturating_sub(derived);
    let [in_all, fetching, deriving] = [worked, fetched, derived].map(|time| time.as_secs());
    let had_little_time = unfinished.has_copies && derived < fetched;
    let missing = if unfinished.is_fetching || had_little_time {
        let detail = format!("fetching it took {fetching} s of the {in_all} s of a function");
        Missing::new(Cause::Timeout, detail)
    } else {
        Missing::malformed(format!(
            "deriving it took {deriving} s of the {in_all} s of a function, and was not complete"
        ))
    };
    Ok(all_missing(held, &missing))
}

/// Returns the same reason for all kinds, of which nothing was made. No file was evaluated.
fn all_missing(held: &[HeldLease], missing: &Missing) -> Vec<Made> {
    let made = held.iter().map(|_| Made {
        outcome: MadeOutcome::Missing(missing.clone()),
        seen: Seen::default(),
    });
    made.collect()
}
