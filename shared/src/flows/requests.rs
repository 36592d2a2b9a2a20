//! Requests that were answered `pending`: any instance continues them.
//!
//! What is kept is the request itself. Asking for it answers it anew, from caches that are nearer to complete; nothing
//! is kept of its answer.

use std::time::Duration;

use futures::future::try_join;

use super::symbolicate::Symbolicator;
use super::update::KnownItem;
use super::{Error, Invocation};
use crate::cache::{Item, ItemKey, PendingRequest, RequestBody};
use crate::domain::Scope;
use crate::ports::{Consistency, Fault, FaultKind};

/// Bodies up to this are kept in the item. The store of items bills a write by the kilobyte: beyond this the other one is
/// cheaper.
const MAX_INLINE_BYTES: usize = 8 * 1024;

/// The longest a request waits for what is being built. The gateway answers in our stead after 30 s.
pub const MAX_WAIT: Duration = Duration::from_secs(25);

/// Time kept back at the end of an invocation for the answer.
const RESERVE: Duration = Duration::from_secs(2);

impl Symbolicator {
    /// Returns how long a request waits: as long as its caller says, and the gateway and the function allow.
    pub fn wait(&self, invocation: &Invocation, timeout: Option<Duration>) -> Duration {
        timeout
            .unwrap_or(MAX_WAIT)
            .min(MAX_WAIT)
            .min(invocation.time_left().saturating_sub(RESERVE))
    }

    /// Keeps a request under an id that its caller is told; sealed where there may be credentials
    /// in it.
    pub async fn keep_request(
        &self,
        invocation: &Invocation,
        id: &str,
        scope: &Scope,
        body: &[u8],
    ) -> Result<(), Error> {
        let corrupt = || Fault::new(FaultKind::Bug, "keeping a request that is no text");
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
        // Its id is new: nothing is stored there.
        let known = KnownItem::Before(None);
        let (key, update) = (ItemKey::request(id), self.update(invocation));
        let written = update.write(&key, known, |_| Some(item.clone()));
        // The caller receives its id only when both are stored.
        try_join(written, blob).await?;
        Ok(())
    }

    /// Returns a request that was kept, with its scope; `None` where there is none, or it has expired.
    pub async fn kept_request(
        &self,
        invocation: &Invocation,
        id: &str,
    ) -> Result<Option<(Scope, Vec<u8>)>, Error> {
        let loaded = self
            .records
            .load(&[ItemKey::request(id)], Consistency::Strong)
            .await?;
        let Some(Item::Request(request)) = loaded
            .into_iter()
            .flatten()
            .next()
            .map(|stored| stored.item)
        else {
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
