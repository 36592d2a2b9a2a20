//! Sources that requests define: stored encrypted for a day, under a keyed hash of the whole
//! definition.
//!
//! A reader of the table learns neither the credentials in a definition nor which requests share
//! one. The keys for hashing and encryption are derived from one secret of the configuration.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::error::Unspecified;
use ring::{aead, hmac};

use super::{Invocation, RecordWriter};
use crate::cache::{Item, ItemKey, SourceDefinition};
use crate::domain::{HttpSource, SourceKey, Timestamp};
use crate::ports::{Fault, FaultKind, RecordStore};

/// How long a definition is stored after a request.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A definition that expires earlier than this is written again.
const RENEWED_BEFORE: Duration = Duration::from_secs(12 * 3600);

/// The secrets that name and encrypt definitions. The first one encrypts. Each of them decrypts
/// what it encrypted, so that a new secret can be introduced while texts of the old one are still
/// stored.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceSecret {
    first: NumberedSecret,
    others: Vec<NumberedSecret>,
}

/// A secret, with the number that encrypted texts refer to it by.
#[derive(Clone, PartialEq, Eq)]
struct NumberedSecret {
    number: u32,
    text: String,
}

/// Why a text is not a valid list of secrets. The message does not reveal them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    /// A secret is too short.
    #[error(
        "secret {at} of the list has fewer than {} characters",
        SourceSecret::MIN_CHARS
    )]
    Short {
        /// Its position, from 1.
        at: usize,
    },
    /// A secret has no number, and there are several.
    #[error("secret {at} of the list has no number (write `2:…,1:…`)")]
    Unnumbered {
        /// Its position, from 1.
        at: usize,
    },
    /// Two secrets have the same number.
    #[error("two secrets of the list have the number {0}")]
    Twice(u32),
}

impl SourceSecret {
    /// The minimum number of characters of a secret.
    const MIN_CHARS: usize = 32;

    /// Parses one secret, or several separated by commas, each with a number and a colon:
    /// `2:…,1:…`. A single secret without a number has the number 0.
    ///
    /// # Errors
    ///
    /// [`InvalidSecret`] if a secret is too short, or its number is missing or used twice.
    pub fn new(text: &str) -> Result<Self, InvalidSecret> {
        let texts: Vec<&str> = text.split(',').map(str::trim).collect();
        let mut secrets: Vec<NumberedSecret> = Vec::new();
        for (at, text) in (1..).zip(&texts) {
            let numbered = text.split_once(':');
            let numbered = numbered.and_then(|(number, text)| Some((number.parse().ok()?, text)));
            let (number, text) = match numbered {
                Some(numbered) => numbered,
                None if texts.len() == 1 => (0, *text),
                None => return Err(InvalidSecret::Unnumbered { at }),
            };
            if text.chars().count() < Self::MIN_CHARS {
                return Err(InvalidSecret::Short { at });
            }
            if secrets.iter().any(|secret| secret.number == number) {
                return Err(InvalidSecret::Twice(number));
            }
            let text = text.to_owned();
            secrets.push(NumberedSecret { number, text });
        }
        let mut secrets = secrets.into_iter();
        // A split has at least one element.
        let first = secrets.next().ok_or(InvalidSecret::Short { at: 1 })?;
        Ok(Self {
            first,
            others: secrets.collect(),
        })
    }

    /// Returns the key of a source that a request defines. Credentials that are replaced from time
    /// to time do not affect it.
    pub fn key_of(&self, source: &HttpSource) -> SourceKey {
        let mut lasting = source.clone();
        lasting.access.take_passing_credentials();
        let definition = serde_json::to_vec(&lasting).expect("its only map has texts as keys");
        source.defined_key(self.hash("name", &definition))
    }

    /// Returns a hash of the credentials that do not affect the key; empty if there are none.
    pub(super) fn passing_credentials(&self, source: &HttpSource) -> String {
        let passing = source.access.clone().take_passing_credentials();
        passing.map_or_else(String::new, |passing| {
            self.hash("passing", passing.as_bytes())
        })
    }

    fn hash(&self, used_to: &str, bytes: &[u8]) -> String {
        let hash = hmac::sign(&self.first.derived(used_to), bytes);
        let digits = hash.as_ref().iter().take(16);
        digits.map(|byte| format!("{byte:02x}")).collect()
    }

    /// Encrypts bytes for one purpose. The result begins with the number of the secret. Each nonce
    /// must be used only once.
    pub(super) fn encrypt(
        &self,
        nonce: [u8; 12],
        purpose: &str,
        plain: &[u8],
    ) -> Result<String, Fault> {
        let mut encrypted = plain.to_vec();
        let about = aead::Aad::from(purpose.as_bytes());
        let unique = aead::Nonce::assume_unique_for_key(nonce);
        self.first
            .encryption_key()
            .and_then(|key| key.seal_in_place_append_tag(unique, about, &mut encrypted))
            .map_err(|_| Fault::new(FaultKind::Bug, "encrypting a source or a request"))?;
        let text = STANDARD.encode([&nonce[..], &encrypted].concat());
        Ok(format!("{}.{text}", self.first.number))
    }

    /// Decrypts a text that was encrypted for this purpose with one of these secrets; `None` for
    /// any other text.
    pub(super) fn decrypt(&self, purpose: &str, encrypted: &str) -> Option<Vec<u8>> {
        // Releases that supported only one secret wrote no number.
        let (number, encrypted) = encrypted.split_once('.').unwrap_or(("0", encrypted));
        let number: u32 = number.parse().ok()?;
        let mut secrets = std::iter::once(&self.first).chain(&self.others);
        let secret = secrets.find(|secret| secret.number == number)?;
        let bytes = STANDARD.decode(encrypted).ok()?;
        let (nonce, encrypted) = bytes.split_at_checked(aead::NONCE_LEN)?;
        let mut encrypted = encrypted.to_vec();
        let about = aead::Aad::from(purpose.as_bytes());
        let nonce = aead::Nonce::try_assume_unique_for_key(nonce).ok()?;
        let key = secret.encryption_key().ok()?;
        let plain = key.open_in_place(nonce, about, &mut encrypted).ok()?;
        Some(plain.to_vec())
    }
}

impl NumberedSecret {
    fn encryption_key(&self) -> Result<aead::LessSafeKey, Unspecified> {
        let key = hmac::sign(&self.derived("seal"), b"");
        let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key.as_ref())?;
        Ok(aead::LessSafeKey::new(key))
    }

    /// Returns a key that is specific to this use.
    fn derived(&self, used_to: &str) -> hmac::Key {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, self.text.as_bytes());
        let derived = hmac::sign(&secret, used_to.as_bytes());
        hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref())
    }
}

impl fmt::Debug for SourceSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceSecret")
    }
}

/// Stores a definition for `derive`, unless it is stored and expires late enough.
pub(super) async fn store(
    writer: RecordWriter<'_>,
    secret: &SourceSecret,
    key: &SourceKey,
    source: &HttpSource,
) -> Result<(), Fault> {
    let definition = serde_json::to_vec(source).expect("its only map has texts as keys");
    let passing_credentials = secret.passing_credentials(source);
    let nonce = writer.invocation.nonce();
    let encrypted = secret.encrypt(nonce, &key.to_string(), &definition)?;
    let now = writer.invocation.now();
    let item = Item::Source(SourceDefinition {
        key: key.clone(),
        encrypted,
        passing_credentials: passing_credentials.clone(),
        expires_at: now.plus(LIFETIME),
    });
    let is_stored = |present: &Item| is_stored(present, &passing_credentials, now);
    writer.put(&ItemKey::source(key), item, is_stored).await?;
    Ok(())
}

/// Returns whether a definition is stored with these passing credentials, and expires late enough:
/// after any build that a request at `now` could start.
pub(super) fn is_stored(item: &Item, passing_credentials: &str, now: Timestamp) -> bool {
    matches!(item, Item::Source(kept) if kept.expires_at > now.plus(RENEWED_BEFORE)
        && kept.passing_credentials == passing_credentials)
}

/// Returns a stored definition; `None` if there is none, it has expired, or it was encrypted with
/// another secret.
pub(super) async fn load(
    records: &dyn RecordStore,
    invocation: &Invocation,
    secret: &SourceSecret,
    key: &SourceKey,
) -> Result<Option<HttpSource>, Fault> {
    let definition: Option<SourceDefinition> = records.one(ItemKey::source(key)).await?;
    let definition = definition.filter(|kept| kept.expires_at > invocation.now());
    Ok(definition.and_then(|definition| {
        let json = secret.decrypt(&key.to_string(), &definition.encrypted)?;
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
        assert!(!source("a").configured_key().is_defined());
    }

    #[test]
    fn a_token_that_is_replaced_every_hour_does_not_change_the_key() {
        let gcs = |token: &str| -> HttpSource {
            let json =
                serde_json::json!({"type": "gcs", "id": "a", "bucket": "b", "bearer_token": token});
            serde_json::from_value(json).unwrap()
        };
        let secret = secret(SECRET);
        assert_eq!(secret.key_of(&gcs("1")), secret.key_of(&gcs("2")));
        assert_ne!(
            secret.passing_credentials(&gcs("1")),
            secret.passing_credentials(&gcs("2"))
        );
        assert_eq!(secret.passing_credentials(&source("a")), "");
        let sentry = |token: &str| -> HttpSource {
            let json = serde_json::json!({"type": "sentry", "id": "a", "url": "http://x.test", "token": token});
            serde_json::from_value(json).unwrap()
        };
        assert_ne!(secret.key_of(&sentry("1")), secret.key_of(&sentry("2")));
    }

    #[test]
    fn a_text_is_decrypted_only_with_the_same_secret_and_purpose() {
        let encrypted = secret(SECRET)
            .encrypt([7; 12], "this", b"open sesame")
            .unwrap();
        let decrypt =
            |text: &str, purpose: &str, encrypted: &str| secret(text).decrypt(purpose, encrypted);
        assert_eq!(decrypt(SECRET, "this", &encrypted).unwrap(), b"open sesame");
        assert_eq!(decrypt(SECRET, "that", &encrypted), None);
        assert_eq!(decrypt(OTHER, "this", &encrypted), None);
        let bytes = STANDARD
            .decode(encrypted.strip_prefix("0.").unwrap())
            .unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let bad = format!("0.{}", STANDARD.encode(bad));
            assert_eq!(decrypt(SECRET, "this", &bad), None, "{at}");
        }
        // As a release without numbers encrypted it.
        let before = STANDARD.encode(bytes);
        assert_eq!(decrypt(SECRET, "this", &before).unwrap(), b"open sesame");
        assert_eq!(decrypt(SECRET, "this", ""), None);
    }

    #[test]
    fn a_new_secret_encrypts_and_the_old_one_still_decrypts() {
        let old = secret(&format!("1:{SECRET}"));
        let encrypted = old.encrypt([7; 12], "this", b"open sesame").unwrap();
        // First all functions get the new secret, then it becomes the first one, then the old one
        // is removed.
        let learned = secret(&format!("1:{SECRET},2:{OTHER}"));
        let rotated = secret(&format!("2:{OTHER}, 1:{SECRET}"));
        let alone = secret(&format!("2:{OTHER}"));
        let again = rotated.encrypt([8; 12], "this", b"open sesame").unwrap();
        assert!(encrypted.starts_with("1.") && again.starts_with("2."));
        for (secret, text, is_open) in [
            (&learned, &encrypted, true),
            (&learned, &again, true),
            (&rotated, &encrypted, true),
            (&rotated, &again, true),
            (&alone, &encrypted, false),
            (&alone, &again, true),
            (&old, &again, false),
        ] {
            assert_eq!(secret.decrypt("this", text).is_some(), is_open, "{text}");
        }
        assert_eq!(learned.key_of(&source("a")), old.key_of(&source("a")));
        assert_eq!(rotated.key_of(&source("a")), alone.key_of(&source("a")));
    }

    #[test]
    fn a_short_text_is_no_secret_and_a_secret_is_not_shown() {
        let short = "x".repeat(31);
        for (text, problem) in [
            (short.clone(), InvalidSecret::Short { at: 1 }),
            (format!("7:{short}"), InvalidSecret::Short { at: 1 }),
            (
                format!("2:{SECRET},1:{short}"),
                InvalidSecret::Short { at: 2 },
            ),
            (
                format!("2:{SECRET},{OTHER}"),
                InvalidSecret::Unnumbered { at: 2 },
            ),
            (format!("2:{SECRET},2:{OTHER}"), InvalidSecret::Twice(2)),
        ] {
            let found = SourceSecret::new(&text).unwrap_err();
            assert_eq!(found, problem);
            assert!(!found.to_string().contains(&short), "{found}");
        }
        assert_eq!(format!("{:?}", secret(SECRET)), "SourceSecret");
    }
}
