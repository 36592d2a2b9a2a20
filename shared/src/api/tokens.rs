//! `/tokens`: issues, lists and revokes access tokens.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::symbolicator::{RequestError, parse_body};
use crate::domain::{Right, Timestamp};

/// The maximum length of a name, in bytes.
pub const NAME_BYTES: usize = 128;

/// How long a token is valid if the request does not say, in days.
const DEFAULT_DAYS: u32 = 365;

/// The longest time for which a token is valid, in days.
pub const MAX_DAYS: u32 = 3650;

/// The body of `POST /tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// What it is for, as the list shows it.
    #[cfg_attr(
        feature = "openapi",
        schemars(
            length(min = 1, max = NAME_BYTES),
            regex(pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")
        )
    )]
    pub name: String,
    /// The scope in which it is valid; `*` is every scope.
    #[cfg_attr(
        feature = "openapi",
        schemars(
            length(min = 1, max = 128),
            regex(pattern = r"^[^/\u0000-\u001f\u007f-\u009f]+$")
        )
    )]
    pub scope: String,
    /// What its holder may do.
    // A right that is given twice counts once.
    #[cfg_attr(feature = "openapi", schemars(with = "Vec<Right>", length(min = 1)))]
    pub rights: BTreeSet<Right>,
    /// For how many days it is valid.
    #[serde(default = "default_days")]
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = MAX_DAYS)))]
    pub days: u32,
}

fn default_days() -> u32 {
    DEFAULT_DAYS
}

/// An access token, without the token itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TokenInfo {
    /// Its id: the SHA-256 of the token in hex.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// The scope in which it is valid; `*` is every scope.
    pub scope: String,
    /// What its holder may do.
    pub rights: BTreeSet<Right>,
    /// When it was issued.
    pub issued_at: Timestamp,
    /// When it ceases to be valid.
    pub valid_until: Timestamp,
}

/// The response of `POST /tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TokenIssued {
    /// The token. No later response shows it.
    pub token: String,
    /// What it grants.
    #[serde(flatten)]
    pub info: TokenInfo,
}

/// The response of `GET /tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TokenList {
    /// The valid tokens that the caller may revoke, the newest first.
    pub tokens: Vec<TokenInfo>,
}

/// Parses the body of `POST /tokens`.
///
/// # Errors
///
/// [`RequestError`] if it is not JSON, or has another shape.
pub fn parse_token_request(body: &[u8]) -> Result<TokenRequest, RequestError> {
    parse_body(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_a_token_names_scope_and_rights() {
        let parse = |json: &str| parse_token_request(json.as_bytes());
        let request = parse(r#"{"name": "ci", "scope": "acme", "rights": ["upload"]}"#).unwrap();
        assert_eq!(request.days, DEFAULT_DAYS);
        assert_eq!(request.rights, [Right::Upload].into());
        let twice = r#"{"name": "ci", "scope": "a", "rights": ["upload", "upload"]}"#;
        assert_eq!(parse(twice).unwrap().rights, [Right::Upload].into());
        for (json, status) in [
            ("{", 400),
            (r#"{"name": "ci", "rights": ["upload"]}"#, 422),
            (r#"{"name": "ci", "scope": "a"}"#, 422),
            (r#"{"name": "ci", "scope": "a", "rights": ["root"]}"#, 422),
            (
                r#"{"name": "ci", "scope": "a", "rights": [], "expires": 1}"#,
                422,
            ),
        ] {
            assert_eq!(parse(json).unwrap_err().status(), status, "{json}");
        }
    }
}
