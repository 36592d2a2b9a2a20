//! Sources that requests define: named by a keyed hash of their whole definition, kept sealed, gone after a day.
//!
//! Whoever reads the table learns neither the credentials in a definition nor who shares one. Both keys come from one secret of
//! the configuration.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::error::Unspecified;
use ring::{aead, hmac};

use super::{Invocation, Update};
use crate::cache::{Item, ItemKey, SourceDefinition};
use crate::domain::{HttpSource, SourceKey, Timestamp};
use crate::ports::{Consistency, RecordStore, StoreError, StoreErrorKind};

/// How long a definition is kept after a request.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A definition that lives for less is written again.
const RENEWED_BEFORE: Duration = Duration::from_secs(12 * 3600);

/// The secret that definitions are named and sealed with.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceSecret(String);

impl SourceSecret {
    /// The fewest characters that a secret may have.
    pub const MIN_CHARS: usize = 32;

    /// Returns a secret; `None` where the text is too short to be one.
    pub fn new(text: &str) -> Option<Self> {
        (text.chars().count() >= Self::MIN_CHARS).then(|| Self(text.to_owned()))
    }

    /// Returns the key of a source that a request defines.
    pub fn key_of(&self, source: &HttpSource) -> SourceKey {
        let definition = serde_json::to_vec(source).unwrap_or_default();
        let hash = hmac::sign(&self.derived("name"), &definition);
        let digits = hash.as_ref().iter().take(16);
        let hash: String = digits.map(|byte| format!("{byte:02x}")).collect();
        SourceKey::defined(source, &hash)
    }

    /// Seals bytes for one purpose. A nonce is used once.
    pub(super) fn seal(
        &self,
        nonce: [u8; 12],
        purpose: &str,
        plain: &[u8],
    ) -> Result<String, StoreError> {
        let mut sealed = plain.to_vec();
        let about = aead::Aad::from(purpose.as_bytes());
        let unique = aead::Nonce::assume_unique_for_key(nonce);
        self.sealing_key()
            .and_then(|key| key.seal_in_place_append_tag(unique, about, &mut sealed))
            .map_err(|_| StoreError::new(StoreErrorKind::Bug, "sealing a source or a request"))?;
        Ok(STANDARD.encode([&nonce[..], &sealed].concat()))
    }

    /// Returns what was sealed for this purpose, with this secret; `None` for anything else.
    pub(super) fn unseal(&self, purpose: &str, sealed: &str) -> Option<Vec<u8>> {
        let bytes = STANDARD.decode(sealed).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(aead::NONCE_LEN)?;
        let mut sealed = sealed.to_vec();
        let about = aead::Aad::from(purpose.as_bytes());
        let nonce = aead::Nonce::try_assume_unique_for_key(nonce).ok()?;
        let key = self.sealing_key().ok()?;
        let plain = key.open_in_place(nonce, about, &mut sealed).ok()?;
        Some(plain.to_vec())
    }

    fn sealing_key(&self) -> Result<aead::LessSafeKey, Unspecified> {
        let key = hmac::sign(&self.derived("seal"), b"");
        let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key.as_ref())?;
        Ok(aead::LessSafeKey::new(key))
    }

    /// Returns a key of its own for each use.
    fn derived(&self, used_to: &str) -> hmac::Key {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes());
        let derived = hmac::sign(&secret, used_to.as_bytes());
        hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref())
    }
}

impl fmt::Debug for SourceSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceSecret")
    }
}

/// Keeps a definition for `derive`, unless it is kept for long enough already.
pub(super) async fn keep(
    update: Update<'_>,
    secret: &SourceSecret,
    key: &SourceKey,
    source: &HttpSource,
) -> Result<(), StoreError> {
    let definition = serde_json::to_vec(source).unwrap_or_default();
    let nonce = update.invocation.nonce();
    let sealed = secret.seal(nonce, key.as_str(), &definition)?;
    let now = update.invocation.now();
    let item = Item::Source(SourceDefinition {
        key: key.clone(),
        sealed,
        expires_at: now.plus(LIFETIME),
    });
    let is_kept = |present: &Item| is_kept(present, now);
    update.put(&ItemKey::source(key), item, is_kept).await?;
    Ok(())
}

/// Tells whether a definition is kept for long enough: for longer than any build that a request of now asks for.
pub(super) fn is_kept(item: &Item, now: Timestamp) -> bool {
    matches!(item, Item::Source(kept) if kept.expires_at > now.plus(RENEWED_BEFORE))
}

/// Returns a definition that is kept; `None` where there is none, or it has expired, or is not sealed with this secret.
pub(super) async fn kept(
    records: &dyn RecordStore,
    invocation: &Invocation,
    secret: &SourceSecret,
    key: &SourceKey,
) -> Result<Option<HttpSource>, StoreError> {
    let loaded = records
        .load(&[ItemKey::source(key)], Consistency::Strong)
        .await?;
    let definition = loaded
        .into_iter()
        .flatten()
        .find_map(|stored| match stored.item {
            Item::Source(kept) if kept.expires_at > invocation.now() => Some(kept),
            _ => None,
        });
    Ok(definition.and_then(|definition| {
        let json = secret.unseal(key.as_str(), &definition.sealed)?;
        serde_json::from_slice(&json).ok()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "a secret of at least thirty-two characters";
    const OTHER: &str = "another secret of thirty-two characters";

    fn secret(text: &str) -> SourceSecret {
        SourceSecret::new(text).unwrap()
    }

    fn source(authorization: &str) -> HttpSource {
        let json = serde_json::json!({
            "type": "http", "id": "mine", "url": "http://symbols.test", "headers": {"authorization": authorization},
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_definition_is_named_by_all_of_it_and_by_the_secret() {
        let key = secret(SECRET).key_of(&source("a"));
        assert_eq!((key.id(), key.is_defined()), ("mine", true));
        assert_eq!(key, secret(SECRET).key_of(&source("a")));
        assert_ne!(key, secret(SECRET).key_of(&source("b")));
        assert_ne!(key, secret(OTHER).key_of(&source("a")));
        assert!(!SourceKey::configured(&source("a")).is_defined());
    }

    #[test]
    fn what_is_sealed_is_opened_by_the_same_secret_for_the_same_purpose_alone() {
        let sealed = secret(SECRET)
            .seal([7; 12], "this", b"open sesame")
            .unwrap();
        let unseal = |text: &str, purpose: &str, sealed: &str| secret(text).unseal(purpose, sealed);
        assert_eq!(unseal(SECRET, "this", &sealed).unwrap(), b"open sesame");
        assert_eq!(unseal(SECRET, "that", &sealed), None);
        assert_eq!(unseal(OTHER, "this", &sealed), None);
        let bytes = STANDARD.decode(&sealed).unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(unseal(SECRET, "this", &STANDARD.encode(bad)), None, "{at}");
        }
        assert_eq!(unseal(SECRET, "this", ""), None);
    }

    #[test]
    fn a_short_text_is_no_secret_and_a_secret_is_not_shown() {
        assert_eq!(SourceSecret::new(&"x".repeat(31)), None);
        assert_eq!(format!("{:?}", secret(SECRET)), "SourceSecret");
    }
}
