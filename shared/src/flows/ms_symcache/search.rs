//! One search for a SymCache that a client of Microsoft's protocol reads: load, select, and request
//! builds.

use std::time::Duration;

use crate::api::symcache_http::SymCacheRequest;
use crate::cache::{
    Capabilities, Criteria, Entry, Item, Kind, ModuleKey, PlaceToBuild, Preference, Queue, Ready,
    Selection, ServerSearch, UnreadableBlobs,
};
use crate::domain::{FormatVersion, ObjectId, ObjectType};
use crate::flows::build_requests::BuildToRequest;
use crate::flows::lookup::{CacheFinder, CachePlace, Items, Lookup};
use crate::ports::{Consistency, Fault};

/// The delay before a client retries: a build takes seconds.
pub(super) const RETRY_SOON: Duration = Duration::from_secs(1);

/// The delay before a retry if the client was held for the maximum time, and the longest delay if
/// a source does not respond.
pub(super) const RETRY_LATER: Duration = Duration::from_secs(10);

/// A client does not wait for a source that is called again later than this.
const LONGEST_OUTAGE: Duration = Duration::from_secs(30);

/// The maximum number of major versions that are looked up, beginning with the newest that the
/// client reads.
const MAX_MAJORS: usize = 8;

/// The versions that matter to a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    /// The version of the client.
    pub(super) version: FormatVersion,
    /// The version of the file that the client has.
    pub(super) present: Option<FormatVersion>,
    /// The highest version that can be made for the client.
    pub(super) made: Option<FormatVersion>,
}

/// The search for one client.
pub(super) struct SymCacheSearch<'a> {
    pub(super) finder: CacheFinder<'a>,
    pub(super) lookup: Lookup,
    pub(super) client: Client,
    pub(super) capabilities: Capabilities,
}

/// The result of one look at the entries.
pub(super) enum Look {
    Ready(Box<(Entry, Ready)>),
    NotModified,
    Nothing,
    /// A build is requested.
    Queued,
    /// A build is in progress.
    Building,
    /// A source does not respond. The time until a client retries.
    NoResponse(Duration),
    /// A source does not respond, and is not called again soon.
    Unreachable,
}

impl Look {
    /// Returns how these builds are waited for; `None` if there are none.
    fn for_any_of<'a>(awaited: impl Iterator<Item = &'a PlaceToBuild<'a>>) -> Option<Self> {
        let in_progress = awaited.map(|place| place.is_in_progress());
        in_progress
            .reduce(|any, in_progress| any || in_progress)
            .map(|any| if any { Self::Building } else { Self::Queued })
    }
}

impl Client {
    /// Returns the kinds that the client reads, the newest first.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let majors = FormatVersion::FIRST.major..=self.version.major;
        majors.rev().take(MAX_MAJORS).map(Kind::MsSymCache)
    }

    /// Returns the places of the entries that may exist. On a symbol server, there is only the kind
    /// that can be made here.
    fn places(&self, modules: &[ModuleKey]) -> Vec<CachePlace> {
        let made = self.made.map(|version| Kind::MsSymCache(version.major));
        let of_kind = |kind: Kind| {
            let modules = modules.iter();
            let modules =
                modules.filter(move |module| made == Some(kind) || module.source.is_uploads());
            modules.map(move |module| CachePlace::new(module.clone(), kind))
        };
        self.kinds().flat_map(of_kind).collect()
    }

    /// Returns whether the client has this version or a higher one.
    fn has(&self, version: FormatVersion) -> bool {
        self.present.is_some_and(|present| present >= version)
    }

    /// Returns whether the client has the newest version that can be made. If none can be made,
    /// returns whether it has any.
    fn has_the_newest(&self) -> bool {
        self.made
            .map_or(self.present.is_some(), |made| self.has(made))
    }
}

impl CacheFinder<'_> {
    /// Returns the lookup of the SymCaches of a PDB that a client reads.
    pub(super) fn lookup_of_pdb(&self, asked: &SymCacheRequest, client: &Client) -> Lookup {
        let pdb = ObjectId {
            debug_id: Some(asked.debug_id),
            debug_file: Some(asked.name.clone()),
            object_type: ObjectType::Pe,
            ..ObjectId::default()
        };
        let sources = self.all_sources();
        let modules = self.places(&pdb, &asked.scope, &sources, ServerSearch::to_transcode);
        Lookup::of(client.places(&modules))
    }
}

impl SymCacheSearch<'_> {
    /// Looks the entries up, and requests builds of those that could be made.
    pub(super) async fn look(&mut self, consistency: Consistency) -> Result<Look, Fault> {
        let unreadable = UnreadableBlobs::default();
        let criteria = Criteria {
            capabilities: &self.capabilities,
            preference: Preference::HighestVersion {
                client: self.client.version,
                made: self.client.made,
            },
            unreadable: &unreadable,
            may_wait: true,
            now: self.finder.invocation.now(),
        };
        let span = self.finder.invocation.span("look up");
        let lookups = &mut [&mut self.lookup];
        let mut items = self.finder.load(lookups, &criteria, consistency).await?;
        let mut selection = self.select(&items, &criteria).await?;
        if self.may_request(&selection) {
            // The cached records may be seconds old, and another request may have had an entry
            // built since.
            let (awaited, to_improve) = (selection.waits_for.iter(), selection.to_improve.iter());
            let places: Vec<usize> = awaited.chain(to_improve).map(|place| place.at).collect();
            let places = places.into_iter().map(|at| &self.lookup.places[at]);
            self.finder.reload(&mut items, places).await?;
            selection = self.select(&items, &criteria).await?;
        }
        drop(span);
        self.act(&selection, &items).await
    }

    async fn select<'i>(
        &self,
        items: &'i Items,
        criteria: &Criteria<'_>,
    ) -> Result<Selection<'i>, Fault> {
        let selections = self.finder.select(&[&self.lookup], items, criteria).await?;
        Ok(selections
            .into_iter()
            .next()
            .expect("one selection per lookup"))
    }

    /// Returns whether builds would be requested for a selection.
    fn may_request(&self, selection: &Selection<'_>) -> bool {
        let needs_none = selection.best.is_none() && self.client.has_the_newest();
        let mut places = selection.waits_for.iter().chain(&selection.to_improve);
        !needs_none && places.any(|place| !place.is_requested())
    }

    async fn act(&self, selection: &Selection<'_>, items: &Items) -> Result<Look, Fault> {
        let newer = || selection.waits_for.iter().chain(&selection.to_improve);
        if let Some(best) = selection.best {
            let version = FormatVersion::from_u32(best.ready.version);
            if !self.client.has(version) {
                if self.request_retired(Some(version), items).await? {
                    return Ok(Look::Queued);
                }
                // The existing version is served. A newer one is built for later requests.
                self.request(newer(), Queue::Refresh, items).await?;
                return Ok(Look::Ready(Box::new((
                    best.entry.clone(),
                    best.ready.clone(),
                ))));
            }
            self.request(newer(), Queue::Eager, items).await?;
            return Ok(Look::for_any_of(newer()).unwrap_or(Look::NotModified));
        }
        if selection.waits_for.is_empty() {
            if self.request_retired(None, items).await? {
                return Ok(Look::Queued);
            }
            let now = self.finder.invocation.now();
            // A server whose circuit is open is called again as soon as one that has failed.
            let again_at = selection.circuit_open_until.or(selection.retry_at);
            return Ok(match again_at.map(|at| at.since(now)) {
                Some(outage) if outage <= LONGEST_OUTAGE => {
                    Look::NoResponse(outage.clamp(RETRY_SOON, RETRY_LATER))
                }
                _ if self.client.has_the_newest() => Look::NotModified,
                Some(_) => Look::Unreachable,
                None => Look::Nothing,
            });
        }
        if self.client.has_the_newest() {
            return Ok(Look::NotModified);
        }
        self.request(selection.waits_for.iter(), Queue::Eager, items)
            .await?;
        Ok(Look::for_any_of(selection.waits_for.iter()).unwrap_or(Look::Nothing))
    }

    /// Requests the builds of these places that are not requested yet.
    async fn request<'p>(
        &self,
        places: impl Iterator<Item = &'p PlaceToBuild<'p>>,
        queue: Queue,
        items: &Items,
    ) -> Result<(), Fault> {
        let unrequested = places.filter(|place| !place.is_requested());
        let build = |awaited: &PlaceToBuild<'_>| {
            BuildToRequest::of(&self.lookup.places[awaited.at], items, queue)
        };
        let to_request = unrequested.map(build).collect();
        self.finder.request_builds(to_request).await?;
        Ok(())
    }

    /// Requests the builds of uploaded SymCaches whose entries were retired because they were
    /// unused: those that the client reads, and that have a higher version than the best one that
    /// is ready. Returns whether there are any.
    async fn request_retired(
        &self,
        best: Option<FormatVersion>,
        items: &Items,
    ) -> Result<bool, Fault> {
        let mut to_request = Vec::new();
        let is_better = |version: &FormatVersion| {
            self.client.version.reads(*version) && best.is_none_or(|best| *version > best)
        };
        let unread = self.lookup.places.iter();
        let unread = unread.filter(|place| {
            // An item of a newer release is waited for only if there is nothing else.
            let is_retired = match best {
                Some(_) => items.lacks(place),
                None => items.entry(place).is_none(),
            };
            place.is_uploads() && items.may_have_files(place) && is_retired
        });
        let mut unread: Vec<&CachePlace> = unread.collect();
        unread.sort_by(|a, b| (&a.module, a.kind).cmp(&(&b.module, b.kind)));
        for of_module in unread.chunk_by(|a, b| a.module == b.module) {
            let partition = of_module[0].module.partition();
            let stored = self.finder.service.records.query(&partition).await?;
            let invocation = self.finder.invocation;
            invocation.note(|notes| notes.record_reads += stored.len());
            let kinds: Vec<Kind> = stored
                .into_iter()
                .filter_map(|(_, stored)| match stored.item {
                    Item::Dif(dif) => dif.uploaded_version(),
                    _ => None,
                })
                .filter(is_better)
                .map(|version| Kind::MsSymCache(version.major))
                .collect();
            let retired = of_module.iter();
            let retired = retired.filter(|place| kinds.contains(&place.kind));
            to_request.extend(retired.map(|place| BuildToRequest::of(place, items, Queue::Eager)));
        }
        let are_retired = !to_request.is_empty();
        self.finder.request_builds(to_request).await?;
        Ok(are_retired)
    }
}
