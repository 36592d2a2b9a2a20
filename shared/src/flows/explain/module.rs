//! The entries that a request for a module would read, for people.

use std::collections::BTreeSet;

use crate::api::advice::{Advice, WrittenAdvice};
use crate::api::explained::{
    EntryUse, Explained, ExplainedBuildRequest, ExplainedLease, ExplainedPlaceholder,
    ExplainedRecord, ExplainedState, place_text,
};
use crate::cache::{
    BuildRequest, Criteria, Decision, Entry, Item, ItemKey, Kind, ModuleKey, Placeholder,
    Preference, Ready, ServerSearch, UnreadableBlobs, decide,
};
use crate::domain::{FormatVersion, ObjectId, Scope, SourceKey, Timestamp};
use crate::flows::lookup::{CacheFinder, CachePlace, Items, Lookup};
use crate::flows::{Error, HttpService, Invocation, permits};
use crate::ports::Consistency;

impl HttpService {
    /// Returns the state of every entry that a request in this scope would read for a module.
    /// Changes nothing.
    ///
    /// Takes one round of reads, or two if a code id refers to a debug id, like a request.
    pub async fn explain_module(
        &self,
        invocation: &Invocation,
        module: &ObjectId,
        source: Option<&str>,
        scope: &Scope,
    ) -> Result<Vec<Explained>, Error> {
        let finder = CacheFinder::without_memory(self, invocation);
        let mut sources = finder.all_sources();
        if let Some(id) = source {
            let known: Vec<String> = sources
                .iter()
                .map(|source| source.key.id().to_owned())
                .collect();
            sources.retain(|source| source.key.id() == id);
            if sources.is_empty() {
                let detail =
                    format!("no source {id:?} is configured; the configured ones are {known:?}");
                return Err(Error::Invalid { detail });
            }
        }
        let mut modules = finder.places(module, scope, &sources, ServerSearch::new);
        let to_transcode = finder.places(module, scope, &sources, ServerSearch::to_transcode);
        modules.extend(
            to_transcode
                .into_iter()
                .filter(|module| !module.source.is_uploads()),
        );
        let mut lookup = self.lookup_of(module, modules.clone());
        let criteria = Criteria {
            capabilities: &self.settings.capabilities(),
            preference: Preference::BestDif,
            unreadable: &UnreadableBlobs::default(),
            may_wait: false,
            now: invocation.now(),
        };
        let lookups = &mut [&mut lookup];
        let items = finder.load(lookups, &criteria, Consistency::Strong).await?;
        // The entries of an id that is only an alias are reported by its target instead.
        let is_alias = |place: &CachePlace| items.target(&place.module.alias()).is_some();
        let (own, targets): (Vec<&CachePlace>, Vec<&CachePlace>) = lookup
            .places
            .iter()
            .partition(|place| modules.contains(&place.module));
        let explain = |place: &CachePlace| Explained::of(module, place, &items, &criteria);
        let mut records: Vec<Explained> = own
            .into_iter()
            .filter_map(|place| {
                explain(place).filter(|record| record.state != EntryUse::Absent || !is_alias(place))
            })
            .collect();
        records.extend(targets.into_iter().filter_map(explain));
        Ok(records)
    }

    /// Returns the lookup of every entry that a request would read in these places, and of the
    /// health of their servers.
    fn lookup_of(&self, object: &ObjectId, modules: Vec<ModuleKey>) -> Lookup {
        let opaque = self.opaque_kinds();
        let servers: BTreeSet<&SourceKey> = modules
            .iter()
            .map(|module| &module.source)
            .filter(|source| !source.is_uploads())
            .collect();
        let further = servers.into_iter().map(ItemKey::health).collect();
        let places = modules.into_iter().flat_map(|module| {
            let is_for_tools = module.sought().is_some_and(|sought| sought.to_transcode);
            let derived = Kind::DERIVED.into_iter().filter(move |_| !is_for_tools);
            let kinds = derived.chain(opaque.clone());
            kinds.map(move |kind| CachePlace::of(object, module.clone(), kind))
        });
        Lookup {
            further,
            reads_all: true,
            ..Lookup::of(places.collect())
        }
    }

    /// Returns the kinds of Microsoft's SymCaches to report: those of the first clients, and those
    /// that can be made.
    fn opaque_kinds(&self) -> Vec<Kind> {
        let made = self.settings.transcoded.iter().map(|version| version.major);
        let mut majors: Vec<u16> = made.chain([FormatVersion::FIRST.major]).collect();
        majors.sort_unstable();
        majors.dedup();
        majors.into_iter().map(Kind::MsSymCache).collect()
    }
}

impl Explained {
    /// Explains the entry of a place; `None` if it is one of Microsoft's SymCaches that no request
    /// was made for, which is normal.
    fn of(
        object: &ObjectId,
        place: &CachePlace,
        items: &Items,
        criteria: &Criteria<'_>,
    ) -> Option<Self> {
        let CachePlace { module, kind, .. } = place;
        let (kind, now) = (*kind, criteria.now);
        let entry = items.entry(place);
        if entry.is_none() && kind.is_opaque() {
            return None;
        }
        let decision = decide(entry, criteria.capabilities, now);
        let is_upload = place.is_uploads();
        let (mut waits_until, mut advice) = (None, None);
        let state = match decision {
            Decision::Use(ready) | Decision::UseAndUpgrade(ready) | Decision::UseOlder(ready) => {
                if kind == Kind::SymCache {
                    advice = Advice::of_features(&ready.features);
                }
                match decision {
                    Decision::UseAndUpgrade(_) => EntryUse::UseAndUpgrade,
                    Decision::UseOlder(_) => EntryUse::UseOlder,
                    _ => EntryUse::Use,
                }
            }
            Decision::Missing(_) => EntryUse::Missing,
            Decision::Wait { .. } | Decision::Build if !items.may_have_files(place) => {
                if kind == Kind::SymCache {
                    let searched = vec![place_text(&module.scope, &module.source)];
                    // A request that omits `sources` reads the uploads, too.
                    advice = Some(Advice::of_absent(object, searched, true));
                }
                EntryUse::Absent
            }
            Decision::Build if is_of_other_files(place, items) => EntryUse::Absent,
            Decision::Build if !is_upload && entry.is_none() => EntryUse::Unknown,
            Decision::Wait { until } => {
                waits_until = Some(until);
                EntryUse::Wait
            }
            Decision::Build => EntryUse::Build,
        };
        let health = items.item(&ItemKey::health(&module.source));
        let open_until = health
            .and_then(permits::health)
            .and_then(|health| health.open_until);
        Some(Self {
            scope: module.scope.clone(),
            source: module.source.clone(),
            module: module.id.clone(),
            kind,
            state,
            advice: advice.map(WrittenAdvice::from),
            waits_until,
            circuit_open_until: open_until.filter(|at| now < *at),
            record: entry.map(|entry| ExplainedRecord::of(entry, now)),
        })
    }
}

/// Returns whether an entry that does not exist is of a kind that is not made of the files of its
/// module: native ones, or those of .NET.
///
/// The entries of all kinds that may be made of an upload are created when it is filed. The pruner
/// removes those that are not used, so one of them says which files there are.
fn is_of_other_files(place: &CachePlace, items: &Items) -> bool {
    const NATIVE: [Kind; 2] = [Kind::CfiCache, Kind::SymCache];
    const DOTNET: [Kind; 1] = [Kind::PpdbCache];
    let module = &place.module;
    if let Some(sought) = module.sought() {
        return items.entry(place).is_none() && !sought.may_yield(place.kind);
    }
    let has_entry = |kind: &Kind| {
        let item = items.item(&module.entry(*kind));
        item.and_then(Item::entry).is_some()
    };
    let (own, others) = match place.kind {
        Kind::CfiCache | Kind::SymCache => (&NATIVE[..], &DOTNET[..]),
        Kind::PpdbCache => (&DOTNET[..], &NATIVE[..]),
        Kind::SourceCode | Kind::MsSymCache(_) => return false,
    };
    !own.iter().any(has_entry) && others.iter().any(has_entry)
}

impl ExplainedRecord {
    fn of(entry: &Entry, now: Timestamp) -> Self {
        let state = |ready: &Ready| ExplainedState {
            version: ready.version,
            converter: ready.converter,
            quality: ready.quality,
            bytes: ready.blob.bytes,
            file_type: ready.file_type,
            arch: ready.arch.clone(),
            made_from: ready.made_from.clone(),
            lacks: ready.lacks.clone(),
            derived_at: ready.derived_at,
        };
        let placeholder = |placeholder: &Placeholder| ExplainedPlaceholder {
            cause: placeholder.missing.cause,
            detail: placeholder.missing.detail.clone(),
            retry_at: placeholder.retry_at,
            converter: placeholder.converter,
            repeats: placeholder.repeats,
        };
        Self {
            ready: entry.ready().map(state),
            older: entry.older().map(state),
            missing: entry.missing().map(placeholder),
            lease: entry.lease().map(|lease| ExplainedLease {
                holder: lease.holder.clone(),
                until: lease.until,
                is_live: entry.live_lease(now).is_some(),
            }),
            build_request: entry.build_request().map(|BuildRequest { queue, at, .. }| {
                ExplainedBuildRequest {
                    queue: *queue,
                    at: *at,
                }
            }),
            attempts: entry.attempts(),
            not_before: entry.not_before(),
            last_used_at: entry.last_used_at(),
            candidates: entry.candidates().to_vec(),
        }
    }
}
