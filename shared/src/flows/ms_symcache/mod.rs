//! Serves Microsoft's SymCaches to the clients of Microsoft's protocol.
//!
//! The entries are like those of other caches: one per major version, in the partition of the PDB's
//! module. `derive` builds them, from an uploaded SymCache or with a transcoder. This module
//! decides how to respond to a client:
//!
//! 1. If a version that the client reads is ready, the highest one is served. If the client already
//!    has a version that is as good, and nothing better can be made, the response is `NotModified`.
//! 2. If nothing is ready, and no place that could have the PDB has it, the response is `Nothing`,
//!    which is final. So is it if a symbol server that could have it has failed, and is not called
//!    again within half a minute: a client that is put off until then shows no names at all.
//! 3. Otherwise a build is requested. A client that retries receives `Retry-After`. A client that
//!    does not is held for as long as a request may last, also while its build is in a queue: no
//!    other call continues it.
//!
//! A requested SymCache that this service cannot make is recorded as *wanted*, for an operator who
//! has Microsoft's tool.

mod search;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use self::search::{Client, Look, RETRY_LATER, RETRY_SOON, SymCacheSearch};
use super::HttpService;
use super::lookup::CacheFinder;
use super::memory::{ReadBy, Recalled};
use super::moment::Moment;
use super::requests::MAX_WAIT;
use super::update::{KnownItem, Present};
use super::waiting::Waiting;
use super::{Error, Invocation};
use crate::api::symcache_http::{SymCacheRequest, content_type};
use crate::api::wanted::{WantedList, WantedPdb};
use crate::cache::{Entry, Item, ItemKey, Ready, Wanted};
use crate::domain::{FormatVersion, Scope};
use crate::ports::Fault;

/// The lifetime of a presigned URL. An instance may use a record for 45 s, so a removed file
/// disappears from all responses within a minute.
const URL_LIFETIME: Duration = Duration::from_secs(15);

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

impl HttpService {
    /// Answers a request for a file. `may_be_put_off` says that the client obeys `Retry-After`.
    pub async fn ms_sym_cache(
        &self,
        invocation: &Invocation,
        asked: &SymCacheRequest,
        present: Option<FormatVersion>,
        may_be_put_off: bool,
    ) -> Result<SymCacheResponse, Error> {
        let is_repeated = self.memory.note_request(&asked.scope, asked.debug_id);
        let finder = CacheFinder::new(self, invocation);
        let transcoded = self.settings.transcoded.iter().copied();
        let client = Client {
            version: asked.version,
            present,
            made: transcoded.filter(|made| asked.version.reads(*made)).max(),
        };
        let mut search = SymCacheSearch {
            finder,
            lookup: finder.lookup_of_pdb(asked, &client),
            client,
            capabilities: self.settings.capabilities(),
        };
        let wait = if may_be_put_off {
            Duration::ZERO
        } else {
            self.wait_limit(invocation, Some(MAX_WAIT))
        };
        let mut waiting = Waiting::new(invocation, wait, None, Duration::ZERO);
        loop {
            let look = match search.look(waiting.consistency()).await {
                Err(error) if waiting.tolerates(&error) => Look::Building,
                look => look?,
            };
            waiting.note(matches!(look, Look::Queued));
            match look {
                Look::Ready(found) => return finder.file(*found).await,
                Look::NotModified => return Ok(SymCacheResponse::NotModified),
                Look::Nothing => {
                    // The first request for a PDB costs no write.
                    if is_repeated {
                        self.note_wanted(invocation, asked).await?;
                    }
                    return Ok(SymCacheResponse::Nothing);
                }
                Look::Unreachable => return Ok(SymCacheResponse::Nothing),
                Look::NoResponse(time) if may_be_put_off => {
                    return Ok(SymCacheResponse::Pending(time));
                }
                Look::NoResponse(time) => return Ok(SymCacheResponse::Unknown(time)),
                Look::Queued | Look::Building if may_be_put_off => {
                    return Ok(SymCacheResponse::Pending(RETRY_SOON));
                }
                Look::Queued | Look::Building => {}
            }
            if waiting.is_over() {
                return Ok(SymCacheResponse::Unknown(RETRY_LATER));
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

    /// Records that a SymCache is wanted, unless this instance did so a moment ago.
    async fn note_wanted(
        &self,
        invocation: &Invocation,
        asked: &SymCacheRequest,
    ) -> Result<(), Fault> {
        let key = ItemKey::wanted(&asked.scope, asked.debug_id);
        if let Recalled::Valid(Some(noted)) = self.memory.recall(invocation, &key)
            && matches!(&noted.item, Item::Wanted(noted) if noted.debug_id == asked.debug_id)
        {
            return Ok(());
        }
        let (now, read_at) = (invocation.now(), Moment::now(invocation));
        let note = |present: Present<'_>| {
            let present = match present.item {
                Some(Item::Wanted(present)) => Some(present),
                _ => None,
            };
            let known = present.filter(|known| known.debug_id == asked.debug_id);
            let is_in_the_way = |other: &Wanted| now.since(other.last_at) < WANTED_STILL;
            if known.is_none() && present.is_some_and(is_in_the_way) {
                return None;
            }
            Some(Item::Wanted(Wanted {
                scope: asked.scope.clone(),
                pdb: asked.name.clone(),
                debug_id: asked.debug_id,
                version: known.map_or(asked.version, |known| known.version.max(asked.version)),
                asked: known.map_or(0, |known| known.asked) + 1,
                first_at: known.map_or(now, |known| known.first_at),
                last_at: now,
                expires_at: now.plus(WANTED_LIFETIME),
            }))
        };
        let writer = self.writer(invocation);
        if let Some(noted) = writer.write(&key, KnownItem::Unread, note).await? {
            let (noted, read) = (Some(Arc::new(noted)), ReadBy::Unvalidated.at(read_at));
            self.memory.remember(invocation, key, noted, read);
        }
        Ok(())
    }
}

impl CacheFinder<'_> {
    /// Returns the URL of a file, and touches its entry.
    async fn file(&self, (entry, ready): (Entry, Ready)) -> Result<SymCacheResponse, Error> {
        let content_type = content_type(FormatVersion::from_u32(ready.version));
        let path = &ready.blob.path;
        let url = self
            .service
            .caches
            .presign(path, URL_LIFETIME, Some(&content_type))
            .await?;
        self.touch_all(vec![&entry]).await;
        Ok(SymCacheResponse::File { url, content_type })
    }
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
