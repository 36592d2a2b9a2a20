//! The sources that a request wants to search.

use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::RequestError;
use super::bounded::BoundedValue;
use crate::api::limits;
use crate::domain::{Access, HttpSource, SourceKey, UnsupportedSource};

/// The maximum memory of a definition while it is parsed, with fields that are not known, in bytes.
/// [`limits::SOURCE_BYTES`] is about what is kept of it.
const MAX_DEFINITION: usize = 16 * limits::SOURCE_BYTES;

/// The sources that a request wants to search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(from = "Option<Vec<SourceRef>>", into = "Option<Vec<SourceRef>>")]
#[cfg_attr(feature = "openapi", schemars(extend("examples" = [["uploads"]])))]
pub enum Sources {
    /// All configured sources, including the uploads.
    #[default]
    Configured,
    /// Only these.
    Listed(Vec<SourceRef>),
}

/// A source in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SourceRef {
    /// A configured source, by its id.
    Named(String),
    /// A source that the request defines.
    Defined(Box<HttpSource>),
    /// A source that the request defines, of a type that is not supported.
    Unsupported(UnsupportedSource),
}

/// A source to search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// A configured source.
    Configured(SourceKey),
    /// A source that the request defines.
    Defined(Box<HttpSource>),
}

impl Sources {
    /// Checks the sources against [`limits`], and each source that the request defines against its
    /// own limits.
    ///
    /// # Errors
    ///
    /// [`RequestError::Sources`] names the first source that exceeds a limit.
    pub(in crate::api) fn check_limits(&self) -> Result<(), RequestError> {
        let Sources::Listed(listed) = self else {
            return Ok(());
        };
        if listed.len() > limits::SOURCES {
            return Err(RequestError::Sources {
                path: "sources".to_owned(),
                cause: format!("more than {} sources", limits::SOURCES),
            });
        }
        let patterns = listed.iter().map(|source| match source {
            SourceRef::Named(_) | SourceRef::Unsupported(_) => 0,
            SourceRef::Defined(source) => source.pattern_bytes(),
        });
        let has_too_many = patterns.sum::<usize>() > limits::PATTERN_BYTES;
        for (index, source) in listed.iter().enumerate() {
            let problem = match source {
                SourceRef::Named(id) if id.len() > HttpSource::MAX_ID_BYTES => Some(format!(
                    "its id has more than {} bytes",
                    HttpSource::MAX_ID_BYTES
                )),
                SourceRef::Named(_) | SourceRef::Unsupported(_) => None,
                SourceRef::Defined(source) => {
                    let bytes = serde_json::to_vec(source).map_or(usize::MAX, |json| json.len());
                    let limit = limits::SOURCE_BYTES;
                    let own = source.check_limits().err().map(|error| error.to_string());
                    let too_long = || format!("{} has more than {limit} bytes as JSON", source.id);
                    own.or_else(|| (bytes > limit).then(too_long))
                }
            };
            if let Some(cause) = problem {
                let path = format!("sources[{index}]");
                return Err(RequestError::Sources { path, cause });
            }
        }
        if has_too_many {
            return Err(RequestError::Sources {
                path: "sources".to_owned(),
                cause: format!(
                    "more than {} bytes in all path_patterns",
                    limits::PATTERN_BYTES
                ),
            });
        }
        Ok(())
    }

    /// Returns the sources that are not searched, because their types are not supported.
    pub fn unsupported(&self) -> impl Iterator<Item = &UnsupportedSource> {
        let listed: &[SourceRef] = match self {
            Sources::Configured => &[],
            Sources::Listed(listed) => listed.as_slice(),
        };
        listed.iter().filter_map(|source| match source {
            SourceRef::Unsupported(source) => Some(source),
            SourceRef::Named(_) | SourceRef::Defined(_) => None,
        })
    }

    /// Returns the sources to search, in the order in which the request names them. `allow_defined`
    /// says whether the request may define sources.
    ///
    /// # Errors
    ///
    /// [`RequestError::Schema`] for a source that is not configured, or that the request may not
    /// define.
    pub fn select(
        &self,
        configured: &[SourceKey],
        allow_defined: bool,
    ) -> Result<Vec<Selected>, RequestError> {
        let Sources::Listed(listed) = self else {
            return Ok(configured
                .iter()
                .cloned()
                .map(Selected::Configured)
                .collect());
        };
        let mut selected = Vec::with_capacity(listed.len());
        for (index, source) in listed.iter().enumerate() {
            let error = |cause| RequestError::Schema {
                path: format!("sources[{index}]"),
                cause,
            };
            let one = match source {
                SourceRef::Named(id) => match configured.iter().find(|key| key.id() == id) {
                    Some(key) => Selected::Configured(key.clone()),
                    None => {
                        let known: Vec<_> = configured.iter().map(SourceKey::id).collect();
                        return Err(error(format!(
                            "no source {id:?} is configured; the configured ones are {known:?}"
                        )));
                    }
                },
                SourceRef::Defined(source) if allow_defined && source.is_private => {
                    return Err(error(format!(
                        "the request defines the source {:?} with `is_private`, which is not allowed: only the \
                         operator can configure sources in private networks, in SOURCES",
                        source.id
                    )));
                }
                SourceRef::Defined(source) if allow_defined => Selected::Defined(source.clone()),
                SourceRef::Unsupported(_) if allow_defined => continue,
                SourceRef::Defined(_) | SourceRef::Unsupported(_) => {
                    let id = source.id();
                    return Err(error(format!(
                        "the request defines the source {id:?}, which is not allowed here: name a configured source \
                         by its id, or ask the operator to set ALLOW_REQUEST_SOURCES"
                    )));
                }
            };
            if !selected.contains(&one) {
                selected.push(one);
            }
        }
        Ok(selected)
    }
}

impl SourceRef {
    fn id(&self) -> &str {
        match self {
            Self::Named(id) => id,
            Self::Defined(source) => &source.id,
            Self::Unsupported(source) => &source.id,
        }
    }
}

impl From<Option<Vec<SourceRef>>> for Sources {
    fn from(sources: Option<Vec<SourceRef>>) -> Self {
        sources.map_or(Sources::Configured, Sources::Listed)
    }
}

impl From<Sources> for Option<Vec<SourceRef>> {
    fn from(sources: Sources) -> Self {
        match sources {
            Sources::Configured => None,
            Sources::Listed(listed) => Some(listed),
        }
    }
}

impl<'de> Deserialize<'de> for SourceRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SourceVisitor;

        impl<'de> Visitor<'de> for SourceVisitor {
            type Value = SourceRef;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the id of a source, or an object that defines one")
            }

            fn visit_str<E: de::Error>(self, id: &str) -> Result<SourceRef, E> {
                Ok(SourceRef::Named(id.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SourceRef, A::Error> {
                let mut left = MAX_DEFINITION;
                let fields = BoundedValue { left: &mut left }.object(map)?;
                if let Some(unsupported) = UnsupportedSource::of(&fields) {
                    return Ok(SourceRef::Unsupported(unsupported));
                }
                let source = serde_json::from_value::<HttpSource>(fields.into());
                let source = source.map_err(de::Error::custom)?;
                if matches!(source.access, Access::Links { .. }) {
                    let what = "links are not sources of debug information files";
                    return Err(de::Error::custom(what));
                }
                Ok(SourceRef::Defined(Box::new(source)))
            }
        }

        deserializer.deserialize_any(SourceVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_searches_all_sources_or_those_it_names() {
        let uploads = [SourceKey::Uploads];
        let configured = vec![Selected::Configured(SourceKey::Uploads)];
        let check = |json: &str, want: &[Selected]| {
            let sources: Sources = serde_json::from_str(json).unwrap();
            assert_eq!(sources.select(&uploads, false).unwrap(), want, "{json}");
            sources
        };
        check("null", &configured);
        check("[]", &[]);
        check(r#"["uploads", "uploads"]"#, &configured);
        for json in ["null", "[]", r#"["uploads"]"#] {
            let sources: Sources = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&sources).unwrap(), json);
        }
    }

    #[test]
    fn a_source_that_is_not_configured_is_refused_by_name() {
        let check = |json: &str, want: &str| {
            let sources: Sources = serde_json::from_str(json).unwrap();
            let error = sources.select(&[SourceKey::Uploads], false).unwrap_err();
            assert_eq!(error.status(), 422);
            assert!(error.body().causes[0].contains(want), "{error:?}");
        };
        check(
            r#"["uploads", "microsoft"]"#,
            r#"sources[1]: no source "microsoft" is configured; the configured ones are ["uploads"]"#,
        );
        check(
            r#"[{"id": "mine", "type": "http", "url": "http://127.0.0.1/"}]"#,
            "ALLOW_REQUEST_SOURCES",
        );
    }

    #[test]
    fn a_source_that_the_request_defines_is_searched_where_that_is_allowed() {
        let json = r#"["uploads", {"id": "mine", "type": "http", "url": "http://127.0.0.1/"}]"#;
        let sources: Sources = serde_json::from_str(json).unwrap();
        let selected = sources.select(&[SourceKey::Uploads], true).unwrap();
        assert!(matches!(&selected[1], Selected::Defined(source) if source.id == "mine"));
    }

    /// Finding F9 in `docs/security.md`.
    #[test]
    fn a_request_defines_no_source_of_a_private_network() {
        let json =
            r#"[{"id": "mine", "type": "http", "url": "http://10.0.0.1/", "is_private": true}]"#;
        let sources: Sources = serde_json::from_str(json).unwrap();
        let error = sources.select(&[], true).unwrap_err();
        assert_eq!(error.status(), 422);
        assert!(error.body().causes[0].contains("`is_private`"), "{error:?}");
    }

    /// Finding F10 in `docs/security.md`.
    #[test]
    fn a_request_has_few_and_small_sources() {
        let defined = |number: usize, more: serde_json::Value| {
            let mut source = serde_json::json!({
                "id": format!("source-{number}"), "type": "http", "url": "https://x.test/",
            });
            let fields = source.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            source
        };
        let parse = |sources: Vec<serde_json::Value>| {
            let body = serde_json::json!({"sources": sources}).to_string();
            crate::api::symbolicator::parse_request(body.as_bytes())
        };
        let many = |count: usize| (0..count).map(|number| defined(number, serde_json::json!({})));
        assert!(parse(many(limits::SOURCES).collect()).is_ok());
        let patterns = serde_json::json!({"filters": {"path_patterns": vec!["p".repeat(250); 32]}});
        let half = serde_json::json!({"filters": {"path_patterns": vec!["p".repeat(250); 20]}});
        let headers = serde_json::json!({"headers": {"x": "v".repeat(9000)}});
        let url = serde_json::json!({"url": format!("https://x.test/{}", "p".repeat(2048))});
        for (sources, says) in [
            (many(33).collect(), "sources: more than 32 sources"),
            (
                vec![serde_json::json!("x".repeat(257))],
                "sources[0]: its id has more than 256 bytes",
            ),
            (
                vec![serde_json::json!("uploads"), defined(1, patterns)],
                "sources[1]: source-1 has more than 8192 bytes as JSON",
            ),
            (
                vec![defined(0, half.clone()), defined(1, half)],
                "sources: more than 8192 bytes in all path_patterns",
            ),
            (
                vec![defined(0, headers)],
                "sources[0]: source-0 has more than 8192 bytes in its headers",
            ),
            (
                vec![defined(0, url)],
                "sources[0]: source-0 has more than 2048 bytes in its url",
            ),
        ] {
            let error = parse(sources).unwrap_err();
            assert_eq!(error.status(), 400);
            assert_eq!(error.body().causes, [says]);
        }
    }

    #[test]
    fn a_request_defines_no_links() {
        let json =
            r#"[{"type": "sourcelink", "url": "http://x.test/", "below": "*", "headers": {}}]"#;
        let error = serde_json::from_str::<Sources>(json).unwrap_err();
        assert!(
            error.to_string().contains("links are not sources"),
            "{error}"
        );
    }

    #[test]
    fn a_source_of_an_unknown_type_is_left_out_where_requests_may_define_sources() {
        let json = r#"["uploads", {"type": "azure", "id": "mine", "sas_token": "secret"}]"#;
        let sources: Sources = serde_json::from_str(json).unwrap();
        let selected = sources.select(&[SourceKey::Uploads], true).unwrap();
        assert_eq!(selected, [Selected::Configured(SourceKey::Uploads)]);
        let unsupported: Vec<&str> = sources.unsupported().map(|source| &*source.id).collect();
        assert_eq!(unsupported, ["mine"]);
        let again = serde_json::to_string(&sources).unwrap();
        assert!(!again.contains("secret"), "{again}");
        assert_eq!(serde_json::from_str::<Sources>(&again).unwrap(), sources);
        let error = sources.select(&[SourceKey::Uploads], false).unwrap_err();
        assert!(
            error.body().causes[0].contains("ALLOW_REQUEST_SOURCES"),
            "{error:?}"
        );
    }

    #[test]
    fn a_source_without_a_type_is_refused() {
        for json in [r#"[{"id": "mine"}]"#, "[1]", "[null]", "{}", r#""uploads""#] {
            assert!(serde_json::from_str::<Sources>(json).is_err(), "{json}");
        }
    }
}
