//! Microsoft's SymCaches for those who ask by its protocol: found, waited for, or said to be nowhere.
//!
//! The entries are those of every other cache: a record a major version beside the others of the PDB's module, built by `derive`, of what
//! was uploaded ready-made or by a transcoder. Here it is decided which of them a client is answered with:
//!
//! 1. Of all versions that the client reads, the highest that is ready. If the client has as good a one, and nothing better can be
//!    made, it is told so.
//! 2. Nothing is ready, and every place that could have the PDB is known to have nothing: final.
//! 3. Else the place is asked for a build. Who asks again is put off; who does not is held, as long as a request may last.
//!
//! What nobody here can make is noted as *wanted*, for somebody who has Microsoft's tool.

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
    Capabilities, Decision, Entry, Item, ItemKey, Kind, ModuleKey, Placeholder, Queue, Ready,
    Sought, Stored, Wanted, decide,
};
use crate::domain::{Cause, DebugId, FormatVersion, ObjectId, ObjectType, Scope, Timestamp};
use crate::ports::{Consistency, Fault};

/// How many major versions are looked for, the newest that a client reads first.
const MAX_MAJORS: usize = 8;

/// How long a URL leads to a file. With the 45 s for which an instance believes a record, what its owner removes is out of
/// every answer in a minute.
const URL_LIFETIME: Duration = Duration::from_secs(15);

/// When a client that is put off is to ask again: a build takes seconds.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// When a client is to ask again that was held as long as it could be, or met a server that does not answer.
const ASK_LATER: Duration = Duration::from_secs(10);

/// How long it is remembered that something is wanted.
const WANTED_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a page lists of what is wanted.
const PAGE: usize = 1000;

/// What was asked for within this time is not forgotten for another PDB with the same key.
const WANTED_STILL: Duration = Duration::from_secs(3600);

/// What a client is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymCacheResponse {
    /// There is a file.
    File {
        /// Where it can be had for a minute.
        url: String,
        /// What it is, with its version.
        content_type: String,
    },
    /// What the client has is as good as what it could have.
    NotModified,
    /// There is nothing, and it is no use to ask again soon.
    Nothing,
    /// It is being made: the client is to ask again after this time.
    Pending(Duration),
    /// It is not known whether there is something: the client may try again after this time.
    Unknown(Duration),
}

impl SymCacheResponse {
    /// Returns what a log calls it. A URL is for the client alone: whoever has it can read the file.
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

/// What one look tells.
enum Look {
    Ready(Box<(Entry, Ready)>),
    NotModified,
    Nothing,
    /// Somebody is at work, or asked.
    Waiting,
    /// Somebody who should know does not answer, until then.
    Silent(Duration),
}

/// A client, and where what it asks for may be.
struct Client<'a> {
    asked: &'a SymCacheRequest,
    /// The version that it has.
    present: Option<FormatVersion>,
    places: Vec<ModuleKey>,
    /// The best version that can be made for it.
    transcoder: Option<FormatVersion>,
}

impl Client<'_> {
    /// Returns the kinds that it reads, the newest first.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let majors = FormatVersion::FIRST.major..=self.asked.version.major;
        majors.rev().take(MAX_MAJORS).map(Kind::MsSymCache)
    }

    /// Returns the kind that can be made for it.
    fn made(&self) -> Option<Kind> {
        self.transcoder
            .map(|version| Kind::MsSymCache(version.major))
    }

    /// Returns the entries that there may be. A server's are made here, or not at all.
    fn entries(&self) -> Vec<(&ModuleKey, Kind)> {
        let of_kind = |kind: Kind| {
            let is_made = self.made() == Some(kind);
            let places = self.places.iter();
            let places = places.filter(move |place| is_made || place.source.is_uploads());
            places.map(move |place| (place, kind))
        };
        self.kinds().flat_map(of_kind).collect()
    }

    /// Tells whether a state may be handed out.
    fn reads(&self, ready: &Ready) -> bool {
        self.asked
            .version
            .reads(FormatVersion::from_u32(ready.version))
    }

    /// Tells whether nothing better than a state can be made.
    fn is_best(&self, ready: &Ready) -> bool {
        self.transcoder
            .is_none_or(|made| ready.version >= made.as_u32())
    }

    /// Tells whether a state is news to the client.
    fn judge(&self, (entry, ready): (Entry, Ready)) -> Look {
        match self.has(FormatVersion::from_u32(ready.version)) {
            true => Look::NotModified,
            false => Look::Ready(Box::new((entry, ready))),
        }
    }

    /// Tells whether the client has a file, and nothing newer can be made.
    fn has_the_newest(&self) -> bool {
        match self.transcoder {
            Some(made) => self.has(made),
            None => self.present.is_some(),
        }
    }

    /// Tells whether the client has a version, or a higher one.
    fn has(&self, version: FormatVersion) -> bool {
        self.present.is_some_and(|present| present >= version)
    }
}

/// An entry that a build could make, or make anew.
#[derive(Clone, Copy)]
struct Buildable<'a> {
    place: &'a ModuleKey,
    kind: Kind,
    /// Whether somebody is at work on it, or was asked to be.
    is_requested: bool,
}

impl Buildable<'_> {
    fn key(&self) -> ItemKey {
        self.place.entry(self.kind)
    }
}

/// What the entries say, taken together.
#[derive(Default)]
struct Survey<'a> {
    /// The newest state that the client reads.
    best: Option<(Entry, Ready)>,
    /// Entries that have nothing, and that a build could make.
    to_request: Vec<Buildable<'a>>,
    /// Entries that a build would make anew.
    behind: Vec<Buildable<'a>>,
    is_waited_for: bool,
    /// Whether one that is waited for is of the uploads.
    is_upload_awaited: bool,
    /// How long a source has to be left alone that did not answer.
    silent_for: Option<Duration>,
}

impl<'a> Survey<'a> {
    fn of(
        client: &Client<'_>,
        entries: &[(&'a ModuleKey, Kind)],
        items: &[Option<Arc<Stored>>],
        with_files: &[&ModuleKey],
        reader: &Capabilities,
        now: Timestamp,
    ) -> Self {
        let mut survey = Self::default();
        for ((place, kind), item) in entries.iter().copied().zip(items) {
            // Uploads announce themselves: what no event told of is not there.
            let may_come = !place.source.is_uploads() || with_files.contains(&place);
            let entry = item.as_deref().and_then(|stored| stored.item.entry());
            let open = Buildable {
                place,
                kind,
                is_requested: entry.is_some_and(|entry| is_at_work(entry, now)),
            };
            match decide(entry, reader, now) {
                Decision::Use(ready) | Decision::UseAndUpgrade(ready) => {
                    survey.meet(client, entry, ready);
                }
                Decision::UseOlder(ready) => {
                    survey.behind.push(open);
                    survey.meet(client, entry, ready);
                }
                Decision::Wait { .. } if may_come => {
                    survey.is_waited_for = true;
                    survey.is_upload_awaited |= place.source.is_uploads();
                }
                Decision::Missing(Placeholder {
                    missing, retry_at, ..
                }) => {
                    if matches!(missing.cause, Cause::DownloadFailed | Cause::Timeout) {
                        let time = retry_at.since(now);
                        survey.silent_for = survey.silent_for.max(Some(time));
                    }
                }
                Decision::Build if may_come && client.made() == Some(kind) => {
                    survey.to_request.push(open);
                }
                Decision::Build | Decision::Wait { .. } => {}
            }
        }
        survey
    }

    fn meet(&mut self, client: &Client<'_>, entry: Option<&Entry>, ready: &Ready) {
        let best = self.best.as_ref();
        let beats = best.is_none_or(|(_, best)| best.version < ready.version);
        if let Some(entry) = entry
            && client.reads(ready)
            && beats
        {
            self.best = Some((entry.clone(), ready.clone()));
        }
    }

    /// Returns the entries of which something newer than a state may come.
    fn newer_than(&self, ready: &Ready, client: &Client<'_>) -> Vec<Buildable<'a>> {
        if client.is_best(ready) {
            return Vec::new();
        }
        let could_be = [self.behind.as_slice(), &self.to_request].concat();
        uploads_first(could_be, self.is_upload_awaited)
    }
}

impl Symbolicator {
    /// Answers a client that asks for a file; `may_be_put_off` says that it asks again when it is told to.
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
                    // What is asked for once costs no write.
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

    /// Lists what clients of a scope want and nothing here can make: what is asked for most, and of that the oldest first.
    /// A page has 1,000; the first is number 1.
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

    /// Returns where a PDB, or what was made of it, may be.
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

    /// Looks at what there is, and asks for what could be.
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
                    // What is there is served; what could be newer is for the next who asks.
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
            // All that could be asked are sources that do not answer now.
            false => Look::Silent(ASK_LATER),
        })
    }

    /// Returns the entries that there would be of what was uploaded ready-made, and that are gone: nobody had used them.
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

    /// Returns what this instance remembers and nothing could be better than: then nobody else is asked.
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

    /// Asks for builds that are due, but of sources that are not asked now; tells whether it asked, or somebody is at work.
    ///
    /// What this instance remembers may be seconds old: somebody may have asked since, and been answered. So it looks once more.
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

    /// Notes that a file is wanted, unless this instance did so just now.
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

/// Tells whether somebody is at work on an entry, or was asked to be.
fn is_at_work(entry: &Entry, now: Timestamp) -> bool {
    entry.live_request(now).is_some() || entry.live_lease(now).is_some()
}

/// Leaves out servers as long as it may be that what they would be asked for is among the uploads.
fn uploads_first(entries: Vec<Buildable<'_>>, is_upload_awaited: bool) -> Vec<Buildable<'_>> {
    let is_upload = |open: &Buildable<'_>| open.place.source.is_uploads();
    let only_uploads = is_upload_awaited || entries.iter().any(is_upload);
    let is_next = |open: &Buildable<'_>| !only_uploads || is_upload(open);
    entries.into_iter().filter(is_next).collect()
}

/// What is wanted in a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WantedList {
    /// The PDBs.
    pub wanted: Vec<WantedPdb>,
    /// How many more there are, on the next pages.
    pub more: usize,
}

/// A PDB whose SymCache is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WantedPdb {
    /// Its file name.
    pub pdb: String,
    /// Its identity.
    pub debug_id: DebugId,
    /// The same as symbol servers and the tools write it: GUID and age, in hex.
    pub id: String,
    /// The highest version that was asked for.
    pub version: FormatVersion,
    /// How often it was asked for, about.
    pub asked: u64,
    /// When it was asked for first.
    pub first_at: Timestamp,
    /// When it was asked for last.
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
