//! Scopes: which requests may see a cache entry.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The scope of an entry: all requests, or those of one tenant.
///
/// A request of a tenant reads its own scope first and then the global one. No request reads the
/// scope of another tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    /// Visible to every request. Its text is `global`.
    #[default]
    Global,
    /// Visible to the requests of one tenant.
    Tenant(String),
}

impl Scope {
    /// The maximum length of a tenant's name, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Texts that are no names of tenants: clients resolve the first two in paths, and the third
    /// means every scope where scopes are granted.
    pub const RESERVED: [&'static str; 3] = [".", "..", "*"];

    /// Returns the scope of a key of the uploads bucket: its first segment. `None` if nothing
    /// follows the segment.
    pub fn of_key(key: &str) -> Option<Self> {
        let (scope, rest) = key.split_once('/')?;
        match rest {
            "" => None,
            _ => scope.parse().ok(),
        }
    }

    /// Returns the scopes that a request in this scope reads, in order.
    pub fn readable(&self) -> Vec<Scope> {
        match self {
            Scope::Global => vec![Scope::Global],
            Scope::Tenant(_) => vec![self.clone(), Scope::Global],
        }
    }

    /// Returns the text for keys and messages.
    pub fn as_str(&self) -> &str {
        match self {
            Scope::Global => "global",
            Scope::Tenant(name) => name,
        }
    }
}

/// A text that is not a valid scope.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid scope {0:?}: use 1 to {max} bytes without slashes or control characters, and not `.`, `..` or `*`", max = Scope::MAX_BYTES)]
pub struct InvalidScope(String);

impl FromStr for Scope {
    type Err = InvalidScope;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c != '/' && !c.is_control();
        match text {
            "global" => Ok(Scope::Global),
            _ if (1..=Self::MAX_BYTES).contains(&text.len())
                && text.chars().all(allowed)
                && !Self::RESERVED.contains(&text) =>
            {
                Ok(Scope::Tenant(text.to_owned()))
            }
            _ => Err(InvalidScope(text.chars().take(64).collect())),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = InvalidScope;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.as_str().to_owned()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_is_the_first_segment_and_a_key_needs_more() {
        assert_eq!(Scope::of_key("global/a.debug"), Some(Scope::Global));
        assert_eq!(
            Scope::of_key("acme/deep/er/a.debug"),
            Some(Scope::Tenant("acme".into()))
        );
        for key in ["a.debug", "global/", "/a.debug", ""] {
            assert_eq!(Scope::of_key(key), None, "{key:?}");
        }
    }

    #[test]
    fn a_tenant_reads_its_own_scope_then_the_global_one() {
        let acme: Scope = "acme".parse().unwrap();
        assert_eq!(
            acme.readable(),
            [Scope::Tenant("acme".into()), Scope::Global]
        );
        assert_eq!(Scope::Global.readable(), [Scope::Global]);
    }

    #[test]
    fn the_text_global_is_the_global_scope_and_invalid_texts_are_refused() {
        assert_eq!("global".parse(), Ok(Scope::Global));
        for text in ["", "a/b", "a\nb", &"x".repeat(129), ".", "..", "*"] {
            assert!(text.parse::<Scope>().is_err(), "{text:?}");
        }
        for text in ["...", ".a", "a*", "a..b"] {
            assert_eq!(text.parse(), Ok(Scope::Tenant(text.into())));
        }
    }
}
