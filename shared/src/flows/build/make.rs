//! Makes the caches of a module: opens the DIFs, derives from them, and stores the blobs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::try_join_all;

use super::builder::{Builder, OpenDif};
use super::companions::FiledCompanions;
use super::lease::Held;
use super::losses::Judged;
use super::made::{Made, MadeOf, NotMade, Origin};
use super::opaque::transcoding;
use super::partition::{Partition, failed_here};
use super::search::Search;
use super::work::{Target, Work};
use super::{opaque, search};
use crate::cache::{BlobRef, Converter, DeriveJob, Derived, Dif, Kind, ModuleKey, Ready, Seen};
use crate::debuginfo;
use crate::domain::{Cause, DebugId, FileType, Inspection, Missing, ModuleId, ObjectMeta, Rank};
use crate::flows::fetch;
use crate::flows::invocation::Invocation;
use crate::ports::{DifError, Fault, Parser};

/// Returns the objects of a module in a DIF.
pub(super) fn objects_of(inspection: &Inspection, module: &ModuleKey) -> Vec<ObjectMeta> {
    let sought = module.sought();
    // An archive may have ten thousand objects: compare debug ids as values, and format only code
    // ids.
    let debug_id = module.id.strip_prefix("debug_id:");
    let debug_id: Option<DebugId> = debug_id.and_then(|text| text.parse().ok());
    let is_filed_here = |object: &&ObjectMeta| match (&sought, debug_id) {
        (Some(sought), _) => search::is_sought(object, sought),
        (None, Some(debug_id)) => object.debug_id == Some(debug_id),
        (None, None) => ModuleId::of(object.debug_id, object.code_id.as_ref())
            .is_some_and(|id| id.to_string() == module.id),
    };
    inspection
        .objects
        .iter()
        .filter(is_filed_here)
        .cloned()
        .collect()
}

/// Returns the object that serves a kind best, the first one if several are equal.
pub(super) fn best_object(objects: &[ObjectMeta], kind: Kind) -> Option<&ObjectMeta> {
    let serves = |object: &&ObjectMeta| kind.comes_of(object.file_type);
    objects
        .iter()
        .filter(serves)
        .min_by_key(|object| Rank::of(&object.features, kind.purpose()))
}

impl Builder {
    /// Makes the kinds whose leases are held. Returns one result per lease, in order.
    pub(super) async fn make(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        held: &[Held],
        open: &mut Vec<OpenDif>,
        is_fetching: &AtomicBool,
    ) -> Result<Vec<Made>, NotMade> {
        let Partition {
            mut entries,
            mut difs,
            mut copies,
            ..
        } = self.look(module).await?;
        let mut given_up: Vec<(Kind, Missing)> = Vec::new();
        for entry in &mut entries {
            if held.iter().any(|lease| lease.kind == entry.kind()) {
                match self.judge_suspect(invocation, entry).await? {
                    Judged::Build(Some(judged)) => *entry = *judged,
                    Judged::Build(None) => {}
                    Judged::GiveUp(missing) => given_up.push((entry.kind(), missing)),
                }
            }
        }
        let mut search = Search::default();
        if let Some(sought) = module.sought() {
            let kinds: Vec<Kind> = held.iter().map(|lease| lease.kind).collect();
            if entries.iter().any(|entry| failed_here(entry, &kinds)) {
                // The file may have been replaced on the server since, so do not use its copy.
                copies.clear();
            }
            is_fetching.store(true, Ordering::Relaxed);
            let searching = self.search(invocation, module, &sought, &kinds, &copies, open);
            search = Box::pin(searching).await?;
            difs.append(&mut search.difs);
        }
        let companions = self.companions(module, &difs).await?;
        let mut work: Vec<Work> = held
            .iter()
            .map(|lease| {
                let entry = entries.iter().find(|entry| entry.kind() == lease.kind);
                let mut work = Work::begin(lease, entry, (&difs, &companions), &self.settings);
                if let Some((_, missing)) = given_up.iter().find(|(kind, _)| *kind == lease.kind) {
                    work.give_up(missing.clone());
                }
                work
            })
            .collect();
        // Each iteration opens one DIF, and derives all kinds for which it is the best untried one.
        while let Some(dif) = work.iter().find_map(Work::next_dif).cloned() {
            is_fetching.store(true, Ordering::Relaxed);
            let answers = match self
                .derive_from(
                    invocation,
                    (module, &dif),
                    &companions,
                    &work,
                    open,
                    is_fetching,
                )
                .await
            {
                Ok(answers) => answers,
                Err(DifError::Missing(missing)) => {
                    if missing.cause == Cause::NotFound && module.source.is_uploads() {
                        self.forget_if_stale(invocation, &dif).await?;
                    }
                    vec![Err(missing); work.len()]
                }
                Err(DifError::Changed) if module.source.is_uploads() => {
                    if !self.forget_if_stale(invocation, &dif).await? {
                        work.iter_mut().for_each(|work| work.is_awaiting(&dif));
                    }
                    let detail = "the file was overwritten; the event of the new version starts another build";
                    vec![Err(Missing::new(Cause::NotFound, detail)); work.len()]
                }
                Err(other) => return Err(other.into()),
            };
            let took = open
                .iter()
                .find(|open| open.dif == dif.file)
                .map(|open| open.took);
            let wanting = work
                .iter_mut()
                .filter(|work| work.next_dif().is_some_and(|next| next.file == dif.file));
            for (work, answer) in wanting.zip(answers) {
                work.settle(&dif, answer, took);
            }
        }
        Ok(work
            .into_iter()
            .map(|work| work.end((&difs, &companions), &search))
            .collect())
    }

    /// Derives the kinds for which this DIF is the next one to try, and stores the blobs. Returns
    /// one result per such kind, in order.
    pub(super) async fn derive_from(
        &self,
        invocation: &Invocation,
        (module, dif): (&ModuleKey, &Dif),
        companions: &FiledCompanions,
        work: &[Work<'_>],
        open: &mut Vec<OpenDif>,
        is_fetching: &AtomicBool,
    ) -> Result<Vec<Result<Ready, Missing>>, DifError> {
        let targets: Vec<Target> = work.iter().filter_map(|work| work.target(dif)).collect();
        if dif.file_type == FileType::MsSymCache {
            return self.take_over(invocation, module, dif, &targets).await;
        }
        let needs_them = targets
            .iter()
            .map(|target| companions.of(&dif.file, target.lease.kind))
            .find(|companions| !companions.is_empty());
        let companions = needs_them.unwrap_or_default();
        let open = self.open(invocation, module, (dif, companions), open);
        let open = open.await?;
        is_fetching.store(false, Ordering::Relaxed);
        let objects = objects_of(&open.inspection, module);
        let mut answers: Vec<Option<Result<Ready, Missing>>> = vec![None; targets.len()];
        // All kinds of one object are derived in one call. The best object may differ between
        // kinds.
        for object in &objects {
            let kind = |at: usize| targets[at].lease.kind;
            let serves = |at: &usize| {
                best_object(&objects, kind(*at)).is_some_and(|best| best.index == object.index)
            };
            let here = (0..targets.len()).filter(serves);
            let (to_transcode, to_derive): (Vec<usize>, Vec<usize>) =
                here.partition(|at| kind(*at).is_opaque());
            let rank = |at: usize| Rank::of(&object.features, kind(at).purpose());
            let job = |at: &usize| DeriveJob {
                kind: kind(*at),
                rank: rank(*at),
            };
            let jobs: Vec<DeriveJob> = to_derive.iter().map(job).collect();
            let mut made: Vec<(usize, Result<Derived, Missing>)> = Vec::new();
            if !jobs.is_empty() {
                let derived = open.parser.derive(object.index, &jobs).await;
                made.extend(
                    to_derive
                        .into_iter()
                        .zip(derived.map_err(fetch::from_parse)?),
                );
            }
            for at in to_transcode {
                let transcoding = transcoding(module, dif, object, targets[at].version);
                let transcoded = open.parser.transcode(object.index, &transcoding).await;
                let transcoded = transcoded.map_err(fetch::from_parse)?;
                made.push((at, transcoded.map(|bytes| opaque(kind(at), bytes))));
            }
            let stored = made.into_iter().map(|(at, made)| {
                let about = Origin {
                    made_from: open.made_into(kind(at)),
                    rank: rank(at),
                    features: object.features.clone(),
                    arch: object.arch.clone(),
                    file_type: object.file_type,
                };
                let target = targets[at];
                async move {
                    Ok::<_, Fault>(match made {
                        Err(missing) => (at, Err(missing)),
                        Ok(derived) => {
                            let stored = self.store(invocation, module, target, about, derived);
                            (at, Ok(stored.await?))
                        }
                    })
                }
            });
            for (at, answer) in try_join_all(stored).await? {
                answers[at] = Some(answer);
            }
        }
        let none = || {
            Err(Missing::malformed(format!(
                "{} no longer contains the object",
                dif.file.location
            )))
        };
        Ok(answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(none))
            .collect())
    }

    /// Returns the open DIF with its companions; opens them if they are not open.
    pub(super) async fn open<'a>(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        (dif, companions): (&Dif, &[Dif]),
        open: &'a mut Vec<OpenDif>,
    ) -> Result<&'a mut OpenDif, DifError> {
        let is_it = |open: &OpenDif| {
            let beside = open.beside.iter();
            open.dif == dif.file && beside.eq(companions.iter().map(|companion| &companion.file))
        };
        if !open.iter().any(is_it) {
            open.clear(); // frees its scratch space before more is reserved
            if module.source.is_uploads() {
                open.push(self.open_upload(invocation, dif, companions).await?);
            } else {
                self.open_again(invocation, module, dif, open).await?;
            }
        }
        open.iter_mut()
            .find(|open| open.dif == dif.file)
            .ok_or_else(|| DifError::Missing(Missing::not_found()))
    }

    /// Opens an uploaded DIF together with its companions, or alone if they cannot be fetched.
    pub(super) async fn open_upload(
        &self,
        invocation: &Invocation,
        dif: &Dif,
        companions: &[Dif],
    ) -> Result<OpenDif, DifError> {
        let began = invocation.elapsed();
        let (mut parser, beside) = match self.fetch_upload(dif, companions).await {
            // A change to a companion has an event of its own, which leads to another build.
            Err(DifError::Missing(_) | DifError::Changed) if !companions.is_empty() => {
                (self.fetch_upload(dif, &[]).await?, &[][..])
            }
            fetched => (fetched?, companions),
        };
        let took = invocation.elapsed() - began;
        let inspection = parser.inspect().await.map_err(fetch::from_parse)?;
        let beside = beside.iter().map(|companion| companion.file.clone());
        Ok(OpenDif {
            dif: dif.file.clone(),
            beside: beside.collect(),
            parser,
            inspection,
            took,
        })
    }

    pub(super) async fn fetch_upload(
        &self,
        dif: &Dif,
        companions: &[Dif],
    ) -> Result<Box<dyn Parser>, DifError> {
        let difs: Vec<&Dif> = std::iter::once(dif).chain(companions).collect();
        let max = self.settings.dif_max_bytes;
        fetch::fetch_together(&*self.uploads, &*self.deriver, &difs, max).await
    }

    /// Creates the blob of a derived cache. The path contains the lease's token, so if a blob with
    /// this path exists, this build wrote it.
    pub(super) async fn store(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        Target { lease, version }: Target<'_>,
        origin: Origin,
        derived: Derived,
    ) -> Result<Ready, Fault> {
        let path = module
            .entry(lease.kind)
            .blob(lease.kind, version, &lease.token);
        let blob = BlobRef {
            path: path.clone(),
            bytes: derived.blob.len() as u64,
            checksum: derived.checksum,
            index: match lease.kind.is_opaque() {
                true => None,
                false => debuginfo::index_of(&derived.blob),
            },
        };
        let lacks = derived.lacks;
        self.caches.create(&path, derived.blob).await?;
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
            derived_at: invocation.now(),
            converter: Converter::CURRENT,
        })
    }
}

/// Returns the results of a build that ran out of time. If the build had at least half of the
/// elapsed time, another invocation would not finish it either: it fails. Otherwise the leases are
/// released.
///
/// A slow download says nothing about the file, so it fails as a timeout rather than as malformed.
pub(super) fn out_of_time(
    invocation: &Invocation,
    held: &[Held],
    began: Duration,
    is_fetching: bool,
) -> Result<Vec<Made>, NotMade> {
    let worked = invocation.elapsed() - began;
    if worked < began {
        return Err(NotMade::Later);
    }
    let seconds = worked.as_secs();
    let missing = match is_fetching {
        true => {
            let detail = format!("fetching it took longer than {seconds} s");
            Missing::new(Cause::Timeout, detail)
        }
        false => Missing::malformed(format!(
            "deriving it took longer than {seconds} s, the time that a function has"
        )),
    };
    Ok(held
        .iter()
        .map(|_| Made {
            outcome: MadeOf::Missing(missing.clone()),
            seen: Seen::default(),
        })
        .collect())
}
