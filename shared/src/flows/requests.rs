//! Stored requests: a request whose response was `pending` can be continued by any instance.
//!
//! While it is pending, only the request itself is stored, and each call that continues it
//! symbolicates it again, with the caches that are ready by then. Of a crash file, what was read
//! from it is stored. The call that completes it stores the answer beside it, and later calls send
//! that. A response that is too large to be sent is always stored.
//!
//! A request that has been pending for [`MAX_PENDING`] is completed with the caches that are ready.

use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join;

use super::HttpService;
use super::update::KnownItem;
use super::{Error, Invocation};
use crate::api::crash::ReadCrash;
use crate::api::limits;
use crate::api::symbolicator::Scraping;
pub use crate::cache::RequestStage;
use crate::cache::{Item, ItemKey, PendingRequest, RequestBody, Stored, StoredAnswer};
use crate::domain::{Cause, Missing, ResponseFormat, Scope, Timestamp};
use crate::ports::Consistency;

/// The maximum size of a body that is stored in the item, in bytes. DynamoDB charges writes by the
/// kilobyte, so a blob is cheaper for larger bodies.
const MAX_INLINE_BYTES: usize = 8 * 1024;

/// The longest time that a request waits for builds. API Gateway times out after 30 s.
pub const MAX_WAIT: Duration = Duration::from_secs(25);

/// The time after which a pending request is completed with the caches that are ready: as in
/// Symbolicator.
pub const MAX_PENDING: Duration = Duration::from_secs(15 * 60);

/// How long the URL of a stored response is valid.
const ANSWER_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// The time that is reserved at the end of an invocation for the response.
const RESERVE: Duration = Duration::from_secs(2);

/// A request to store.
#[derive(Clone, Copy, Debug)]
pub struct RequestToStore<'a> {
    /// What the body contains.
    pub stage: RequestStage,
    /// The schema of the answer.
    pub format: ResponseFormat,
    /// The body.
    pub body: &'a [u8],
}

/// The item of a stored request that has not expired.
#[derive(Clone, Debug)]
pub struct FoundRequest {
    stored: Stored,
    request: PendingRequest,
}

impl FoundRequest {
    /// Returns the scope of the request.
    pub fn scope(&self) -> &Scope {
        &self.request.scope
    }

    /// Returns what the body of the request contains.
    pub fn stage(&self) -> RequestStage {
        self.request.stage
    }

    /// Returns how long the request has been pending.
    pub fn age(&self, now: Timestamp) -> Duration {
        let asked_at = self.request.asked_at;
        asked_at.map_or(Duration::ZERO, |asked_at| now.since(asked_at))
    }
}

/// The state of one call for a request: the first one, or one that continues it.
#[derive(Clone, Copy, Debug)]
pub struct CallState<'a> {
    /// The id of the request, which the client receives.
    pub id: &'a str,
    /// The scope whose caches are read.
    pub scope: &'a Scope,
    /// How long this call waits for builds at most.
    pub wait_limit: Duration,
    /// How long the request has been pending.
    pub age: Duration,
    /// The item of the request, if this call continues it.
    pub found: Option<&'a FoundRequest>,
    /// What to store if the request has to wait; `None` if it is stored already, if the flow
    /// encodes it, or if no other call can continue it.
    pub to_store: Option<RequestToStore<'a>>,
    /// Whether no other call can continue the request, so that this one waits as long as it may,
    /// also while all builds are in queues.
    pub is_only_call: bool,
}

impl<'a> CallState<'a> {
    /// Returns the state of the first call for a request.
    pub const fn first(id: &'a str, scope: &'a Scope, wait_limit: Duration) -> Self {
        Self {
            id,
            scope,
            wait_limit,
            age: Duration::ZERO,
            found: None,
            to_store: None,
            is_only_call: false,
        }
    }

    /// Returns the state of a call that continues a request now.
    pub fn continued(found: &'a FoundRequest, now: Timestamp, wait_limit: Duration) -> Self {
        Self {
            id: &found.request.id,
            scope: &found.request.scope,
            wait_limit,
            age: found.age(now),
            found: Some(found),
            to_store: None,
            is_only_call: false,
        }
    }

    /// Returns the state of a call that stores this if the request has to wait.
    #[must_use]
    pub const fn storing(self, request: RequestToStore<'a>) -> Self {
        Self {
            to_store: Some(request),
            ..self
        }
    }

    /// Returns the state of the only call for a request of a protocol that has none to continue it.
    #[must_use]
    pub const fn only(self) -> Self {
        Self {
            is_only_call: true,
            ..self
        }
    }

    /// Returns the state after this call has taken `elapsed` of the time that it may wait.
    #[must_use]
    pub fn after(self, elapsed: Duration) -> Self {
        Self {
            wait_limit: self.wait_limit.saturating_sub(elapsed),
            ..self
        }
    }
}

/// The stored answer to a request that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishedAnswer {
    /// The JSON of the response.
    Body(Bytes),
    /// It is too large to be sent, and is at this URL.
    Url(String),
}

/// Returns whether a request that has been pending for this long is completed with the caches that
/// are ready.
pub(super) fn is_overdue(age: Duration) -> bool {
    age >= MAX_PENDING
}

/// Returns why a module of an overdue request has no cache.
pub(super) fn overdue() -> Missing {
    let minutes = MAX_PENDING.as_secs() / 60;
    let detail = format!("its build was not complete {minutes} minutes after the request");
    Missing::new(Cause::Timeout, detail)
}

impl<'a> RequestToStore<'a> {
    /// Returns a request as it was received by `/symbolicate`.
    pub fn received(body: &'a [u8]) -> Self {
        Self {
            stage: RequestStage::Symbolicate,
            format: ResponseFormat::default(),
            body,
        }
    }

    /// Returns a crash that was read from a file; `body` is its JSON.
    pub fn crash_file(crash: &ReadCrash, body: &'a [u8]) -> Self {
        Self {
            stage: RequestStage::CrashFile,
            format: crash.format(),
            body,
        }
    }
}

impl HttpService {
    /// Returns how long a call waits at most: the requested timeout, limited by [`MAX_WAIT`] and
    /// the time left in the invocation.
    pub fn wait_limit(&self, invocation: &Invocation, timeout: Option<Duration>) -> Duration {
        timeout
            .unwrap_or(MAX_WAIT)
            .min(MAX_WAIT)
            .min(invocation.time_left().saturating_sub(RESERVE))
    }

    /// Removes the headers for links from a request if this deployment has no secret: it can
    /// neither use nor encrypt them. Returns whether there were any.
    pub fn drop_unusable_headers(&self, scraping: &mut Scraping) -> bool {
        let is_unusable = self.settings.request_sources.is_none() && !scraping.headers.is_empty();
        if is_unusable {
            scraping.headers.clear();
        }
        is_unusable
    }

    /// Stores a request under the id that its client receives. The body is encrypted if requests
    /// may define sources, because it may contain credentials.
    pub async fn store_request(
        &self,
        invocation: &Invocation,
        id: &str,
        scope: &Scope,
        RequestToStore {
            stage,
            format,
            body,
        }: RequestToStore<'_>,
    ) -> Result<(), Error> {
        let secret = self.settings.request_sources.as_ref();
        let encrypted = secret
            .map(|secret| secret.encrypt(invocation.nonce(), id, body))
            .transpose()?;
        let is_encrypted = encrypted.is_some();
        let stored = encrypted.map_or_else(|| body.to_vec(), String::into_bytes);
        let path = stage.path(id);
        let (body, blob) = match String::from_utf8(stored) {
            Ok(text) if text.len() <= MAX_INLINE_BYTES => (RequestBody::Inline(text), None),
            Ok(text) => (RequestBody::Blob(path.clone()), Some(text.into_bytes())),
            Err(bytes) => (RequestBody::Blob(path.clone()), Some(bytes.into_bytes())),
        };
        let blob = async {
            if let Some(blob) = blob {
                self.caches.create(&path, blob.into()).await?;
            }
            Ok(())
        };
        let request = PendingRequest {
            id: id.to_owned(),
            scope: scope.clone(),
            stage,
            format,
            body,
            encrypted: is_encrypted,
            asked_at: Some(invocation.now()),
            answer: None,
            expires_at: invocation.now().plus(self.settings.request_lifetime),
        };
        // The id is new, so no item exists, except for a minidump whose stacks are walked by now.
        let known = KnownItem::Read(None);
        let (key, writer) = (ItemKey::request(id), self.writer(invocation));
        let written = writer.write(&key, known, |present| {
            let asked_at = match present.item {
                // Another call has completed it since.
                Some(Item::Request(complete)) if complete.answer.is_some() => return None,
                Some(Item::Request(walked)) => walked.asked_at,
                _ => request.asked_at,
            };
            Some(Item::Request(PendingRequest {
                asked_at,
                ..request.clone()
            }))
        });
        // The client receives the id only after both are stored.
        try_join(written, blob).await?;
        Ok(())
    }

    /// Returns the item of a stored request; `None` if it does not exist or has expired.
    pub async fn find_request(
        &self,
        invocation: &Invocation,
        id: &str,
    ) -> Result<Option<FoundRequest>, Error> {
        let key = [ItemKey::request(id)];
        invocation.note(|notes| notes.record_reads += key.len());
        let mut loaded = self.records.load(&key, Consistency::Strong).await?;
        let Some(stored) = loaded.pop().flatten() else {
            return Ok(None);
        };
        let request = PendingRequest::try_from(stored.item.clone()).ok();
        let request = request.filter(|request| request.expires_at > invocation.now());
        Ok(request.map(|request| FoundRequest { stored, request }))
    }

    /// Returns the body of a pending request; `None` if its blob is gone, or if it cannot be
    /// decrypted.
    pub async fn stored_body(
        &self,
        FoundRequest { request, .. }: &FoundRequest,
    ) -> Result<Option<Vec<u8>>, Error> {
        let text = match &request.body {
            RequestBody::Inline(text) => text.clone().into_bytes(),
            RequestBody::Blob(path) => match self.caches.get(path, None).await? {
                Some(bytes) => bytes.to_vec(),
                None => return Ok(None),
            },
        };
        Ok(match (&self.settings.request_sources, request.encrypted) {
            (_, false) => Some(text),
            (Some(secret), true) => {
                let encrypted = std::str::from_utf8(&text).unwrap_or_default();
                secret.decrypt(&request.id, encrypted)
            }
            (None, true) => None,
        })
    }

    /// Returns the answer to a stored request; `None` if it is not complete, or if the answer is
    /// gone, so that it has to be computed again.
    pub async fn finished_answer(
        &self,
        FoundRequest { request, .. }: &FoundRequest,
    ) -> Result<Option<FinishedAnswer>, Error> {
        let Some(answer) = &request.answer else {
            return Ok(None);
        };
        let most = limits::SENT_ANSWER_BYTES;
        if answer.bytes <= most as u64 {
            match self.caches.get(&answer.path, None).await? {
                None => return Ok(None),
                Some(body) if body.len() <= most => return Ok(Some(FinishedAnswer::Body(body))),
                // The answer of another call was stored first.
                Some(_) => {}
            }
        }
        let url = self.answer_url(&request.id).await?;
        Ok(Some(FinishedAnswer::Url(url)))
    }

    /// Stores the answer to a request under its id. An answer that is already stored stays. Later
    /// calls that continue `request`, the stored one, send it without computing it again.
    ///
    /// # Errors
    ///
    /// A store failed. Later calls compute the answer again, or find it.
    pub async fn store_answer(
        &self,
        invocation: &Invocation,
        id: &str,
        request: Option<&FoundRequest>,
        body: Vec<u8>,
    ) -> Result<(), Error> {
        let answer = StoredAnswer {
            path: StoredAnswer::path_of(id),
            bytes: body.len() as u64,
        };
        let is_sent = body.len() <= limits::SENT_ANSWER_BYTES;
        let created = self.caches.create(&answer.path, body.into());
        let noted = async {
            if let Some(FoundRequest { stored, .. }) = request {
                let known = KnownItem::Read(Some(stored.clone()));
                let (key, writer) = (ItemKey::request(id), self.writer(invocation));
                let written = writer.write(&key, known, |present| match present.item {
                    Some(Item::Request(pending)) if pending.answer.is_none() => {
                        let answer = Some(answer.clone());
                        Some(Item::Request(PendingRequest {
                            answer,
                            ..pending.clone()
                        }))
                    }
                    _ => None,
                });
                written.await?;
            }
            Ok(())
        };
        if is_sent {
            // A later call reads the answer, and takes an item whose answer does not exist for one
            // that is not complete.
            try_join(created, noted).await?;
        } else {
            // A later call sends the URL without reading the answer.
            created.await?;
            noted.await?;
        }
        Ok(())
    }

    /// Returns the URL of a stored answer.
    pub async fn answer_url(&self, id: &str) -> Result<String, Error> {
        let path = StoredAnswer::path_of(id);
        let url = self
            .caches
            .presign(&path, ANSWER_LIFETIME, Some("application/json"));
        Ok(url.await?)
    }
}
