//! Access tokens: credentials that this service issues, for clients that cannot sign requests.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// The number of random bytes of a token.
const BYTES: usize = 32;

/// What every token begins with, so that scanners for secrets find tokens in sources and logs.
const PREFIX: &str = "sdt_";

/// An access token: 256 random bits as text.
///
/// Only its hash is stored ([`AccessToken::id`]). A plain SHA-256 is enough: 256 random bits cannot
/// be found by trying, so a salt or a slow hash would add nothing. A token is looked up by its
/// hash, so that no comparison takes longer for a better guess.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken(String);

/// The token is not shown.
impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken")
    }
}

impl AccessToken {
    /// The length of a token.
    const LENGTH: usize = PREFIX.len() + (BYTES * 4).div_ceil(3);

    /// Returns the token of random bytes.
    pub fn from_random(bytes: [u8; BYTES]) -> Self {
        Self(format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Parses a token; `None` if no token has this form.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != Self::LENGTH {
            return None;
        }
        let encoded = text.strip_prefix(PREFIX)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?;
        (bytes.len() == BYTES).then(|| Self(text.to_owned()))
    }

    /// Returns the id of the token: its SHA-256 in hex. The token cannot be computed from it.
    pub fn id(&self) -> String {
        format!("{:x}", Sha256::digest(&self.0))
    }

    /// Returns the token, for the only response that shows it.
    pub fn reveal(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_parsed_in_its_only_form_and_is_not_shown() {
        let token = AccessToken::from_random([7; BYTES]);
        let text = token.clone().reveal();
        assert_eq!(AccessToken::parse(&text), Some(token.clone()));
        assert_eq!(format!("{token:?}"), "AccessToken");
        assert_eq!(token.id().len(), 64);
        assert_ne!(token.id(), AccessToken::from_random([8; BYTES]).id());
        let cut = &text[..text.len() - 1];
        for wrong in [
            "",
            PREFIX,
            cut,
            &format!("{text}A"),
            &text.to_uppercase(),
            &format!("{cut}*"),
            &format!("{cut}="),
            // The last digit has bits that do not belong to any byte.
            &format!("{cut}d"),
            text.trim_start_matches(PREFIX),
        ] {
            assert_eq!(AccessToken::parse(wrong), None, "{wrong}");
        }
    }
}
