//! Serves Microsoft's SymCaches to the clients of Microsoft's protocol.
//!
//! The entries are like those of other caches: one per major version, in the partition of the PDB's
//! module. `derive` builds them, from an uploaded SymCache or with a transcoder. This module
//! decides how to respond to a client:
//!
//! 1. If a version that the client reads is ready, the highest one is served. If the client already
//!    has a version that is as good, and nothing better can be made, the response is `NotModified`.
//! 2. If nothing is ready, and no place that could have the PDB has it, the response is `Nothing`,
//!    which is final.
//! 3. Otherwise a build is requested. A client that retries is told to retry later. A client that
//!    does not is held for as long as a request may last.
//!
//! A requested SymCache that this service cannot make is recorded as *wanted*, for an operator who
//! has Microsoft's tool.

mod survey;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::build_requests::BuildToRequest;
use super::items::ItemQuery;
use super::memory::{ReadBy, Recalled};
use super::requests::MAX_WAIT;
use super::symbolicate::Symbolicator;
use super::waiting::Waiting;
use super::{Error, Invocation};
use crate::api::symcache_http::{SymCacheRequest, content_type};
use crate::cache::{
    Decision, Entry, Item, ItemKey, Kind, ModuleKey, Queue, Ready, Sought, Stored, Wanted, decide,
};
use crate::domain::{DebugId, FormatVersion, ObjectId, ObjectType, Scope, Timestamp};
use crate::flows::ms_symcache::survey::{
    Buildable, Client, Look, Survey, is_at_work, uploads_first,
};
use crate::ports::{Consistency, Fault};

/// The lifetime of a presigned URL. An instance may use a record for 45 s, so a removed file
/// disappears from all responses within a minute.
const URL_LIFETIME: Duration = Duration::from_secs(15);

/// The delay before a client retries: a build takes seconds.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The delay before a retry if the client was held for the maximum time, or if the source does not
/// respond.
const ASK_LATER: Duration = Duration::from_secs(10);

/// How long a wanted SymCache is recorded.
const WANTED_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// The number of wanted SymCaches per page.
const PAGE: usize = 1000;

/// A record that was updated within this time is not replaced by another PDB with the same key.
const WANTED_STILL: Duration = Duration::from_secs(3600);

/// The response to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymCacheResponse {
    /// A file.
    File {
        /// The presigned URL of the file.
        url: String,
        /// The media type, with the version.
        content_type: String,
    },
    /// The client's version is as good as any that it could get.
    NotModified,
    /// There is no file, and there will be none soon.
    Nothing,
    /// A build is pending: the client retries after this time.
    Pending(Duration),
    /// It is unknown whether there is a file: the client may retry after this time.
    Unknown(Duration),
}

impl SymCacheResponse {
    /// Returns the name for logs. The URL must not be logged, because it grants access to the file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::NotModified => "not_modified",
            Self::Nothing => "nothing",
            Self::Pending(_) => "pending",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl Symbolicator {
    /// Answers a request for a file. `may_be_put_off` says that the client retries when it is told
    /// to.
    pub async fn ms_sym_cache(
        &self,
        invocation: &Invocation,
        asked: &SymCacheRequest,
        present: Option<FormatVersion>,
        may_be_put_off: bool,
    ) -> Result<SymCacheResponse, Error> {
        let is_asked_again = self.memory.note_asking(&asked.scope, asked.debug_id);
        let transcoded = self.settings.transcoded.iter().copied();
        let client = Client {
            asked,
            present,
            places: self.places_of_pdb(asked),
            transcoder: transcoded.filter(|made| asked.version.reads(*made)).max(),
        };
        let wait = match may_be_put_off {
            true => Duration::ZERO,
            false => self.wait(invocation, Some(MAX_WAIT)),
        };
        let mut waiting = Waiting::new(invocation, wait);
        loop {
            let consistency = waiting.consistency();
            let look = match self.look_for(invocation, &client, consistency).await {
                Err(error) if waiting.tolerates(&error) => Look::Waiting,
                look => look?,
            };
            match look {
                Look::Ready(found) => return self.file(invocation, *found).await,
                Look::NotModified => return Ok(SymCacheResponse::NotModified),
                Look::Nothing => {
                    // The first request for a PDB costs no write.
                    if is_asked_again {
                        self.note_wanted(invocation, asked).await?;
                    }
                    return Ok(SymCacheResponse::Nothing);
                }
                Look::Silent(time) if may_be_put_off => return Ok(SymCacheResponse::Pending(time)),
                Look::Silent(time) => return Ok(SymCacheResponse::Unknown(time)),
                Look::Waiting if may_be_put_off => return Ok(SymCacheResponse::Pending(ASK_AGAIN)),
                Look::Waiting => {}
            }
            if waiting.is_over() {
                return Ok(SymCacheResponse::Unknown(ASK_LATER));
            }
            waiting.pause().await;
        }
    }

    /// Lists the wanted SymCaches of a scope, those with the most requests first, and of these the
    /// oldest first. A page has 1,000 entries; the first page has the number 1.
    pub async fn wanted(&self, scope: &Scope, page: usize) -> Result<WantedList, Error> {
        let partition = ItemKey::wanted_partition(scope);
        let items = self.records.query(&partition).await?.into_iter();
        let mut wanted: Vec<Wanted> = items
            .filter_map(|(_, stored)| match stored.item {
                Item::Wanted(wanted) => Some(wanted),
                _ => None,
            })
            .collect();
        wanted.sort_by_key(|wanted| (Reverse(wanted.asked), wanted.first_at));
        let before = page.saturating_sub(1).saturating_mul(PAGE);
        let more = wanted.len().saturating_sub(before.saturating_add(PAGE));
        let listed = wanted.into_iter().skip(before).take(PAGE);
        Ok(WantedList {
            wanted: listed.map(WantedPdb::from).collect(),
            more,
        })
    }

    /// Returns the places where a PDB, or a SymCache of it, may be found.
    fn places_of_pdb(&self, asked: &SymCacheRequest) -> Vec<ModuleKey> {
        let pdb = ObjectId {
            debug_id: Some(asked.debug_id),
            debug_file: Some(asked.name.clone()),
            object_type: ObjectType::Pe,
            ..ObjectId::default()
        };
        let sources: Vec<_> = self.sources().into_iter().map(|key| (key, None)).collect();
        self.places(&pdb, &asked.scope, &sources, Sought::to_transcode)
    }

    /// Looks the entries up, and requests builds of those that could be made.
    async fn look_for(
        &self,
        invocation: &Invocation,
        client: &Client<'_>,
        consistency: Consistency,
    ) -> Result<Look, Fault> {
        let entries = client.entries();
        if let Some(found) = self.remembered(invocation, client, &entries) {
            return Ok(client.judge(found));
        }
        let uploads = client.places.iter();
        let uploads: Vec<&ModuleKey> = uploads.filter(|place| place.source.is_uploads()).collect();
        let wanted = |(place, kind): &(&ModuleKey, Kind)| ItemQuery::of(place, place.entry(*kind));
        let wanted = entries.iter().map(wanted);
        let presences = uploads
            .iter()
            .map(|place| ItemQuery::of(place, place.presence()));
        let wanted: Vec<ItemQuery> = wanted.chain(presences).collect();
        let items = self.load(invocation, &wanted, consistency).await?;
        let (items, presences) = items.split_at(entries.len());
        let with_files: Vec<&ModuleKey> = std::iter::zip(uploads, presences)
            .filter_map(|(place, presence)| presence.is_some().then_some(place))
            .collect();
        let (reader, now) = (self.settings.capabilities(), invocation.now());
        let mut survey = Survey::of(client, &entries, items, &with_files, &reader, now);
        if let Some(found) = survey.best.take() {
            let newer = survey.newer_than(&found.1, client);
            let look = client.judge(found);
            return Ok(match look {
                Look::Ready(found) => {
                    // The existing version is served. A newer one is built for later requests.
                    let unrequested = newer.into_iter().filter(|newer| !newer.is_requested);
                    self.ask_for(invocation, unrequested.collect(), Queue::Refresh)
                        .await?;
                    Look::Ready(found)
                }
                _ if self.ask_for(invocation, newer, Queue::Eager).await? => Look::Waiting,
                _ if survey.is_waited_for => Look::Waiting,
                other => other,
            });
        }
        if !survey.is_waited_for && survey.to_request.is_empty() {
            let retired = self.uploaded(client, &with_files, items).await?;
            if self.ask_for(invocation, retired, Queue::Eager).await? {
                return Ok(Look::Waiting);
            }
            return Ok(match survey.silent_for {
                Some(time) => Look::Silent(time.max(ASK_AGAIN)),
                None if client.has_the_newest() => Look::NotModified,
                None => Look::Nothing,
            });
        }
        if client.has_the_newest() {
            return Ok(Look::NotModified);
        }
        let to_request = uploads_first(survey.to_request, survey.is_upload_awaited);
        let is_requested = self.ask_for(invocation, to_request, Queue::Eager).await?;
        Ok(match survey.is_waited_for || is_requested {
            true => Look::Waiting,
            // The circuits of all sources that could be called are open.
            false => Look::Silent(ASK_LATER),
        })
    }

    /// Returns the entries of uploaded SymCaches that were retired because they were unused.
    async fn uploaded<'a>(
        &self,
        client: &Client<'_>,
        with_files: &[&'a ModuleKey],
        items: &[Option<Arc<Stored>>],
    ) -> Result<Vec<Buildable<'a>>, Fault> {
        let mut there: Vec<(&ModuleKey, Kind)> = Vec::new();
        for place in with_files.iter().copied() {
            for (_, stored) in self.records.query(&place.partition()).await? {
                let Item::Dif(dif) = stored.item else {
                    continue;
                };
                let version = dif.uploaded_version();
                let kind = version.map(|version| Kind::MsSymCache(version.major));
                let read = kind.filter(|kind| client.kinds().any(|read| read == *kind));
                there.extend(read.map(|kind| (place, kind)));
            }
        }
        there.sort_unstable();
        there.dedup();
        let known = items.iter().flatten();
        let known: Vec<ItemKey> = known.filter_map(|stored| stored.item.key()).collect();
        there.retain(|(place, kind)| !known.contains(&place.entry(*kind)));
        let open = |(place, kind)| Buildable {
            place,
            kind,
            is_requested: false,
        };
        Ok(there.into_iter().map(open).collect())
    }

    /// Returns a cached entry that cannot be improved. Then no item is read.
    fn remembered(
        &self,
        invocation: &Invocation,
        client: &Client<'_>,
        entries: &[(&ModuleKey, Kind)],
    ) -> Option<(Entry, Ready)> {
        entries.iter().find_map(|(place, kind)| {
            let recalled = self.memory.recall(invocation, &place.entry(*kind));
            let Recalled::Believed(Some(stored)) = recalled else {
                return None;
            };
            let entry = stored.item.entry()?;
            let ready = entry.ready().filter(|_| entry.suspect().is_none())?;
            (client.reads(ready) && client.is_best(ready)).then(|| (entry.clone(), ready.clone()))
        })
    }

    /// Requests the builds that are due, except from sources whose circuit is open. Returns whether
    /// a build is in progress or was requested.
    ///
    /// The cached records may be seconds old, and another request may have had the entry built
    /// since. Therefore this reads them again.
    async fn ask_for(
        &self,
        invocation: &Invocation,
        entries: Vec<Buildable<'_>>,
        queue: Queue,
    ) -> Result<bool, Fault> {
        let wanted = |open: &Buildable<'_>| ItemQuery::of(open.place, open.key());
        let wanted: Vec<ItemQuery> = entries.iter().map(wanted).collect();
        wanted
            .iter()
            .for_each(|wanted| self.memory.forget(&wanted.key));
        let items = self.load(invocation, &wanted, Consistency::Strong).await?;
        let (reader, now) = (self.settings.capabilities(), invocation.now());
        let (mut to_request, mut is_at_work_on_any) = (Vec::new(), false);
        for (Buildable { place, kind, .. }, known) in entries.into_iter().zip(items) {
            if self.circuit_open(invocation, place).await?.is_some() {
                continue;
            }
            let entry = known.as_deref().and_then(|stored| stored.item.entry());
            is_at_work_on_any |= entry.is_some_and(|entry| is_at_work(entry, now));
            let decision = decide(entry, &reader, now);
            if matches!(decision, Decision::Build | Decision::UseOlder(_)) {
                to_request.push(BuildToRequest {
                    module: place.clone(),
                    kind,
                    queue,
                    known,
                });
            }
        }
        let is_any = is_at_work_on_any || !to_request.is_empty();
        self.request_builds(invocation, to_request).await?;
        Ok(is_any)
    }

    async fn file(
        &self,
        invocation: &Invocation,
        (entry, ready): (Entry, Ready),
    ) -> Result<SymCacheResponse, Error> {
        let content_type = content_type(FormatVersion::from_u32(ready.version));
        let path = &ready.blob.path;
        let url = self
            .caches
            .presign(path, URL_LIFETIME, Some(&content_type))
            .await?;
        self.touch_if_due(invocation, &entry).await;
        Ok(SymCacheResponse::File { url, content_type })
    }

    /// Records that a SymCache is wanted, unless this instance did so a moment ago.
    async fn note_wanted(
        &self,
        invocation: &Invocation,
        asked: &SymCacheRequest,
    ) -> Result<(), Fault> {
        let key = ItemKey::wanted(&asked.scope, asked.debug_id);
        if let Recalled::Believed(Some(noted)) = self.memory.recall(invocation, &key)
            && matches!(&noted.item, Item::Wanted(noted) if noted.debug_id == asked.debug_id)
        {
            return Ok(());
        }
        let now = invocation.now();
        let mut noted = None;
        let note = |present: Option<&Item>| {
            let present = match present {
                Some(Item::Wanted(present)) => Some(present),
                _ => None,
            };
            let known = present.filter(|known| known.debug_id == asked.debug_id);
            let is_in_the_way = |other: &Wanted| now.since(other.last_at) < WANTED_STILL;
            if known.is_none() && present.is_some_and(is_in_the_way) {
                return None;
            }
            let wanted = Wanted {
                scope: asked.scope.clone(),
                pdb: asked.name.clone(),
                debug_id: asked.debug_id,
                version: known.map_or(asked.version, |known| known.version.max(asked.version)),
                asked: known.map_or(0, |known| known.asked) + 1,
                first_at: known.map_or(now, |known| known.first_at),
                last_at: now,
                expires_at: now.plus(WANTED_LIFETIME),
            };
            noted = Some(wanted.clone());
            Some(Item::Wanted(wanted))
        };
        self.update(invocation).put_with(&key, note).await?;
        let noted = noted.map(|wanted| {
            Arc::new(Stored {
                revision: invocation.revision(),
                item: Item::Wanted(wanted),
            })
        });
        self.memory
            .remember(invocation, key, noted, ReadBy::Otherwise);
        Ok(())
    }
}

/// The wanted SymCaches of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WantedList {
    /// The PDBs.
    pub wanted: Vec<WantedPdb>,
    /// The number of further ones, on the next pages.
    pub more: usize,
}

/// A PDB whose SymCache is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WantedPdb {
    /// The file name of the PDB.
    pub pdb: String,
    /// The debug id.
    pub debug_id: DebugId,
    /// The debug id as symbol servers and tools write it: GUID and age, in hex.
    pub id: String,
    /// The highest version that was requested.
    pub version: FormatVersion,
    /// The approximate number of requests.
    pub asked: u64,
    /// When it was first requested.
    pub first_at: Timestamp,
    /// When it was last requested.
    pub last_at: Timestamp,
}

impl From<Wanted> for WantedPdb {
    fn from(wanted: Wanted) -> Self {
        Self {
            pdb: wanted.pdb,
            debug_id: wanted.debug_id,
            id: wanted.debug_id.breakpad().to_string(),
            version: wanted.version,
            asked: wanted.asked,
            first_at: wanted.first_at,
            last_at: wanted.last_at,
        }
    }
}
