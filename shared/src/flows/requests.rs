//! Stored requests: a request whose response was `pending` can be continued by any instance.
//!
//! Only the request itself is stored. Each continuation symbolicates it again, with the caches that
//! are ready by then. Of a crash file, what was read from it is stored. A response is stored only
//! if it is too large to be sent.
//!
//! A request that has been pending for [`MAX_PENDING`] is completed with what there is.

use std::time::Duration;

use futures::future::try_join;

use super::symbolicate::Symbolicator;
use super::update::KnownItem;
use super::{Error, Invocation};
use crate::api::crash::CrashFile;
use crate::api::symbolicator::Scraping;
pub use crate::cache::RequestStage;
use crate::cache::{Item, ItemKey, PendingRequest, RequestBody};
use crate::domain::{Cause, Missing, ResponseFormat, Scope};

/// The maximum size of a body that is stored in the item, in bytes. DynamoDB charges writes by the
/// kilobyte, so a blob is cheaper for larger bodies.
const MAX_INLINE_BYTES: usize = 8 * 1024;

/// The longest time that a request waits for builds. API Gateway times out after 30 s.
pub const MAX_WAIT: Duration = Duration::from_secs(25);

/// The time after which a pending request is completed with what there is: as in Symbolicator.
pub const MAX_PENDING: Duration = Duration::from_secs(15 * 60);

/// How long the URL of a stored response is valid.
const ANSWER_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// The time that is reserved at the end of an invocation for the response.
const RESERVE: Duration = Duration::from_secs(2);

/// A request to store.
#[derive(Clone, Copy, Debug)]
pub struct RequestToKeep<'a> {
    /// What the body contains.
    pub stage: RequestStage,
    /// The schema of the answer.
    pub format: ResponseFormat,
    /// The body.
    pub body: &'a [u8],
}

/// A stored request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRequest {
    /// The scope of the request.
    pub scope: Scope,
    /// What the body contains.
    pub stage: RequestStage,
    /// The body.
    pub body: Vec<u8>,
    /// How long the request has been pending.
    pub age: Duration,
}

/// Returns whether a request that has been pending for this long is completed with what there is.
pub(super) fn is_overdue(age: Duration) -> bool {
    age >= MAX_PENDING
}

/// Returns why a module of an overdue request has no cache.
pub(super) fn overdue() -> Missing {
    let minutes = MAX_PENDING.as_secs() / 60;
    let detail = format!("its build was not complete {minutes} minutes after the request");
    Missing::new(Cause::Timeout, detail)
}

impl<'a> RequestToKeep<'a> {
    /// Returns a request as it was received by `/symbolicate`.
    pub fn received(body: &'a [u8]) -> Self {
        Self {
            stage: RequestStage::Symbolicate,
            format: ResponseFormat::default(),
            body,
        }
    }

    /// Returns a crash that was read from a file; `body` is its JSON.
    pub fn crash_file(report: &CrashFile, body: &'a [u8]) -> Self {
        Self {
            stage: RequestStage::CrashFile,
            format: report.format(),
            body,
        }
    }
}

impl Symbolicator {
    /// Returns how long a request waits: the requested timeout, limited by [`MAX_WAIT`] and the
    /// time left in the invocation.
    pub fn wait(&self, invocation: &Invocation, timeout: Option<Duration>) -> Duration {
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
    pub async fn keep_request(
        &self,
        invocation: &Invocation,
        id: &str,
        scope: &Scope,
        RequestToKeep {
            stage,
            format,
            body,
        }: RequestToKeep<'_>,
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
            expires_at: invocation.now().plus(self.settings.request_lifetime),
        };
        // The id is new, so no item exists, except for a minidump whose stacks are walked by now.
        let known = KnownItem::Before(None);
        let (key, update) = (ItemKey::request(id), self.update(invocation));
        let written = update.write(&key, known, |present| {
            let asked_at = match present.item {
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

    /// Returns a stored request; `None` if it does not exist, has expired or cannot be decrypted.
    pub async fn kept_request(
        &self,
        invocation: &Invocation,
        id: &str,
    ) -> Result<Option<KeptRequest>, Error> {
        let request: Option<PendingRequest> = self.records.one(ItemKey::request(id)).await?;
        let Some(request) = request else {
            return Ok(None);
        };
        if request.expires_at <= invocation.now() {
            return Ok(None);
        }
        let text = match request.body {
            RequestBody::Inline(text) => text.into_bytes(),
            RequestBody::Blob(path) => match self.caches.get(&path, None).await? {
                Some(bytes) => bytes.to_vec(),
                None => return Ok(None),
            },
        };
        let body = match (&self.settings.request_sources, request.encrypted) {
            (_, false) => Some(text),
            (Some(secret), true) => {
                let encrypted = std::str::from_utf8(&text).unwrap_or_default();
                secret.decrypt(id, encrypted)
            }
            (None, true) => None,
        };
        let PendingRequest {
            scope,
            stage,
            asked_at,
            ..
        } = request;
        let age = asked_at.map_or(Duration::ZERO, |at| invocation.now().since(at));
        Ok(body.map(|body| KeptRequest {
            scope,
            stage,
            body,
            age,
        }))
    }

    /// Stores a response that is too large to be sent, and returns its URL. A response that is
    /// already stored under the id stays.
    pub async fn store_answer(&self, id: &str, body: Vec<u8>) -> Result<String, Error> {
        let path = format!("requests/{id}.json");
        self.caches.create(&path, body.into()).await?;
        let url = self
            .caches
            .presign(&path, ANSWER_LIFETIME, Some("application/json"));
        Ok(url.await?)
    }
}
