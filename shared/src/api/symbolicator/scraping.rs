//! What a request says about the web servers that debug information links to.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use url::Url;

use super::RequestError;
use crate::api::limits;
use crate::domain::{HttpSource, OriginPattern, check_headers};

/// Whether links to source files may be followed for a request, and with which headers.
///
/// The operator decides which links may be followed at all.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Scraping {
    /// Whether links may be followed.
    pub enabled: bool,
    /// The addresses that the headers are sent to. Texts that are not [`OriginPattern`]s match
    /// nothing.
    #[cfg_attr(feature = "openapi", schemars(length(max = limits::ORIGINS)))]
    pub allowed_origins: Vec<String>,
    /// The headers, usually credentials.
    #[serde(deserialize_with = "texts")]
    #[cfg_attr(
        feature = "openapi",
        schemars(schema_with = "crate::domain::schema::headers")
    )]
    pub headers: BTreeMap<String, String>,
}

/// Reads an object of texts. The error does not quote it.
fn texts<'de, D: Deserializer<'de>>(json: D) -> Result<BTreeMap<String, String>, D::Error> {
    let value = Value::deserialize(json)?;
    serde_json::from_value(value).map_err(|_| D::Error::custom("expected an object of texts"))
}

impl Default for Scraping {
    fn default() -> Self {
        Self {
            enabled: true,
            allowed_origins: vec!["*".to_owned()],
            headers: BTreeMap::new(),
        }
    }
}

/// Headers are not shown.
impl fmt::Debug for Scraping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraping")
            .field("enabled", &self.enabled)
            .field("allowed_origins", &self.allowed_origins)
            .finish_non_exhaustive()
    }
}

impl Scraping {
    /// The id under which errors refer to the headers.
    const ID: &str = "scraping";

    /// Returns whether the request says nothing else than the default.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the addresses that the headers are sent to; none if there are no headers.
    pub fn origins(&self) -> Vec<OriginPattern> {
        if self.headers.is_empty() {
            Vec::new()
        } else {
            let origins = self.allowed_origins.iter();
            origins.filter_map(|text| text.parse().ok()).collect()
        }
    }

    /// Returns the headers that are sent to an address, given [`Scraping::origins`].
    pub fn headers_for(&self, origins: &[OriginPattern], url: &Url) -> BTreeMap<String, String> {
        if origins.iter().any(|origin| origin.matches(url)) {
            self.headers.clone()
        } else {
            BTreeMap::new()
        }
    }

    /// Checks the headers and the number of origins against their limits.
    ///
    /// # Errors
    ///
    /// [`RequestError::Sources`] names the first limit that is exceeded, or the first header that
    /// cannot be sent. It contains no value of a header.
    pub(in crate::api) fn check_limits(&self) -> Result<(), RequestError> {
        let error = |field: &str, cause: String| RequestError::Sources {
            path: format!("{}.{field}", Self::ID),
            cause,
        };
        if self.allowed_origins.len() > limits::ORIGINS {
            let cause = format!("more than {} origins", limits::ORIGINS);
            return Err(error("allowed_origins", cause));
        }
        let bytes = |(name, value): (&String, &String)| name.len() + value.len();
        let bytes: usize = self.headers.iter().map(bytes).sum();
        if self.headers.len() > HttpSource::MAX_HEADERS || bytes > HttpSource::MAX_HEADER_BYTES {
            let (count, bytes) = (HttpSource::MAX_HEADERS, HttpSource::MAX_HEADER_BYTES);
            let cause = format!("more than {count} headers, or {bytes} bytes in them");
            return Err(error("headers", cause));
        }
        let checked = check_headers(Self::ID, &self.headers);
        checked.map_err(|invalid| error("headers", invalid.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::symbolicator::parse_request;

    fn parsed(scraping: serde_json::Value) -> Result<Scraping, RequestError> {
        let body = json!({"scraping": scraping}).to_string();
        parse_request(body.as_bytes()).map(|request| request.scraping)
    }

    #[test]
    fn what_is_left_out_has_symbolicators_defaults() {
        let default = Scraping::default();
        assert!(default.enabled && default.headers.is_empty());
        assert_eq!(default.allowed_origins, ["*"]);
        assert_eq!(parsed(json!({})).unwrap(), default);
        assert_eq!(parse_request(b"{}").unwrap().scraping, default);
        let off = parsed(json!({"enabled": false, "verify_ssl": false})).unwrap();
        assert!(!off.enabled);
    }

    #[test]
    fn headers_are_for_the_allowed_origins() {
        let scraping = parsed(json!({
            "enabled": true, "allowed_origins": ["*.a.test", "no pattern", "https://b.test/x/"], "headers": {"x-token": "sesame"},
        }));
        let scraping = scraping.unwrap();
        let origins = scraping.origins();
        let sent = |url: &str| {
            let url = Url::parse(url).unwrap();
            !scraping.headers_for(&origins, &url).is_empty()
        };
        assert!(sent("https://git.a.test/c.cs") && sent("https://b.test/x/c.cs"));
        assert!(!sent("https://b.test/y/c.cs") && !sent("https://c.test/"));
        assert!(!format!("{scraping:?}").contains("sesame"));
    }

    #[test]
    fn what_exceeds_a_limit_is_refused_without_its_value() {
        for (scraping, status, says) in [
            (
                json!({"headers": {"a b": "sesame"}}),
                400,
                "HTTP does not allow",
            ),
            (json!({"headers": {"Host": "sesame"}}), 400, "reserved"),
            (
                json!({"headers": {"a": "sesame".repeat(2000)}}),
                400,
                "8192 bytes",
            ),
            (
                json!({"allowed_origins": vec!["a"; 1025]}),
                400,
                "more than 1024 origins",
            ),
            (
                json!({"headers": {"a": ["sesame"]}}),
                422,
                "scraping.headers",
            ),
            (json!({"headers": "sesame"}), 422, "an object of texts"),
            (json!(null), 422, "scraping"),
        ] {
            let error = parsed(scraping).unwrap_err();
            assert_eq!(error.status(), status, "{error:?}");
            let text = format!("{:?}", error.body());
            assert!(text.contains(says) && !text.contains("sesame"), "{text}");
        }
    }
}
