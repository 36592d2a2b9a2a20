//! Stored requests: a request whose response was `pending` can be continued by any instance.
//!
//! Only the request itself is stored. Each continuation symbolicates it again, with the caches that
//! are ready by then; no response is stored.

use std::time::Duration;

use futures::future::try_join;

use super::symbolicate::Symbolicator;
use super::update::KnownItem;
use super::{Error, Invocation};
use crate::cache::{Item, ItemKey, PendingRequest, RequestBody};
use crate::domain::Scope;
use crate::ports::{Fault, FaultKind};

/// The maximum size of a body that is stored in the item, in bytes. DynamoDB charges writes by the
/// kilobyte, so a blob is cheaper for larger bodies.
const MAX_INLINE_BYTES: usize = 8 * 1024;

/// The longest time that a request waits for builds. API Gateway times out after 30 s.
pub const MAX_WAIT: Duration = Duration::from_secs(25);

/// The time that is reserved at the end of an invocation for the response.
const RESERVE: Duration = Duration::from_secs(2);

impl Symbolicator {
    /// Returns how long a request waits: the requested timeout, limited by [`MAX_WAIT`] and the
    /// time left in the invocation.
    pub fn wait(&self, invocation: &Invocation, timeout: Option<Duration>) -> Duration {
        timeout
            .unwrap_or(MAX_WAIT)
            .min(MAX_WAIT)
            .min(invocation.time_left().saturating_sub(RESERVE))
    }

    /// Stores a request under the id that its client receives. The body is encrypted if requests
    /// may define sources, because it may contain credentials.
    pub async fn keep_request(
        &self,
        invocation: &Invocation,
        id: &str,
        scope: &Scope,
        body: &[u8],
    ) -> Result<(), Error> {
        let corrupt = || Fault::new(FaultKind::Bug, "the request to store is not valid UTF-8");
        let text = std::str::from_utf8(body).map_err(|error| corrupt().caused_by(error))?;
        let secret = self.settings.request_sources.as_ref();
        let encrypted = secret
            .map(|secret| secret.encrypt(invocation.nonce(), id, body))
            .transpose()?;
        let is_encrypted = encrypted.is_some();
        let text = encrypted.as_deref().unwrap_or(text);
        let path = format!("requests/{id}");
        let is_inline = text.len() <= MAX_INLINE_BYTES;
        let body = match is_inline {
            true => RequestBody::Inline(text.to_owned()),
            false => RequestBody::Blob(path.clone()),
        };
        let blob = async {
            if !is_inline {
                self.caches.create(&path, text.to_owned().into()).await?;
            }
            Ok(())
        };
        let item = Item::Request(PendingRequest {
            id: id.to_owned(),
            scope: scope.clone(),
            body,
            encrypted: is_encrypted,
            expires_at: invocation.now().plus(self.settings.request_lifetime),
        });
        // The id is new, so no item exists.
        let known = KnownItem::Before(None);
        let (key, update) = (ItemKey::request(id), self.update(invocation));
        let written = update.write(&key, known, |_| Some(item.clone()));
        // The client receives the id only after both are stored.
        try_join(written, blob).await?;
        Ok(())
    }

    /// Returns a stored request with its scope; `None` if it does not exist, has expired or cannot
    /// be decrypted.
    pub async fn kept_request(
        &self,
        invocation: &Invocation,
        id: &str,
    ) -> Result<Option<(Scope, Vec<u8>)>, Error> {
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
        Ok(body.map(|body| (request.scope, body)))
    }
}
