//! Links to source files: which of them the operator allows to be followed, and with which
//! credentials.
//!
//! Debug information may say where on the web its source files are. The uploader of a debug file
//! chooses these addresses. Therefore links are followed only where the operator says so, and
//! credentials of the operator are sent only to the addresses that they belong to.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Visitor};
use url::Url;

use super::source_checks::check_headers;
use super::{
    Access, Filters, HttpSource, InvalidSource, OriginPattern, SOURCE_LINK_ID, SourceLayout,
};

/// The links that may be followed; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLinks {
    /// The first rule that matches an address applies to it.
    rules: Vec<LinkRule>,
}

/// A rule: links to these addresses may be followed, with these headers.
#[derive(Clone, PartialEq, Eq)]
struct LinkRule {
    origin: OriginPattern,
    headers: BTreeMap<String, String>,
    /// Whether the rule was configured with headers, even if they were dropped since.
    has_credentials: bool,
}

/// A link that may be followed.
#[derive(Clone, Debug)]
pub struct AllowedLink {
    /// The source of the file. It consists of the addresses with the same scheme, host and port to
    /// which the same rule applies.
    pub source: HttpSource,
    /// Whether the operator has configured credentials for it. Credentials of a request are then
    /// not sent.
    pub has_credentials: bool,
}

impl SourceLinks {
    /// The maximum number of rules.
    const MAX_RULES: usize = 256;

    /// Returns the rules without the credentials in them.
    #[must_use]
    pub fn without_credentials(mut self) -> Self {
        for rule in &mut self.rules {
            rule.headers.clear();
        }
        self
    }

    /// Returns the source of a link with the headers of its rule; `None` if it may not be followed.
    pub fn allowed(&self, link: &Url) -> Option<AllowedLink> {
        let rule = self.rules.iter().find(|rule| rule.applies_to(link))?;
        let mut url = link.clone();
        url.set_path("/");
        url.set_query(None);
        url.set_fragment(None);
        let source = HttpSource {
            id: SOURCE_LINK_ID.to_owned(),
            url,
            query: None,
            headers: rule.headers.clone(),
            access: Access::Links {
                below: rule.origin.clone(),
            },
            layout: SourceLayout::default(),
            filters: Filters::default(),
            is_public: false,
            is_private: false,
            without_effect: Default::default(),
        };
        Some(AllowedLink {
            source,
            has_credentials: rule.has_credentials,
        })
    }
}

impl LinkRule {
    fn new(origin: &str, headers: BTreeMap<String, String>) -> Result<Self, InvalidSource> {
        let invalid = |problem: String| InvalidSource::Address {
            id: origin.chars().take(HttpSource::MAX_ID_BYTES).collect(),
            problem,
        };
        let pattern: OriginPattern = origin
            .parse()
            .map_err(|error| invalid(format!("{error}")))?;
        check_headers(origin, &headers)?;
        if !headers.is_empty() && !pattern.names_a_host() {
            let problem = "headers are for one host and the hosts below it: name it";
            return Err(invalid(problem.to_owned()));
        }
        Ok(Self {
            origin: pattern,
            has_credentials: !headers.is_empty(),
            headers,
        })
    }

    /// Returns whether the rule applies to an address. Credentials are sent without encryption only
    /// if the rule says so.
    fn applies_to(&self, link: &Url) -> bool {
        let is_safe =
            !self.has_credentials || self.origin.names_a_scheme() || link.scheme() == "https";
        is_safe && self.origin.matches(link)
    }
}

/// Returns the address that a link leads to; `None` if it is not one that can be requested:
/// without a host, with credentials in it, or longer than the limit for addresses.
pub fn link_target(link: &str) -> Option<Url> {
    if link.len() > HttpSource::MAX_URL_BYTES {
        return None;
    }
    let mut url = Url::parse(link).ok()?;
    url.set_fragment(None);
    let is_plain = url.username().is_empty() && url.password().is_none();
    let is_web = matches!(url.scheme(), "http" | "https") && url.host().is_some();
    (is_plain && is_web).then_some(url)
}

/// Headers are not shown.
impl fmt::Debug for LinkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkRule")
            .field("origin", &self.origin.as_str())
            .field("has_credentials", &self.has_credentials)
            .finish_non_exhaustive()
    }
}

impl<'de> Deserialize<'de> for LinkRule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Definition {
            origin: String,
            #[serde(default)]
            headers: BTreeMap<String, String>,
        }

        struct OriginOrRule;

        impl<'de> Visitor<'de> for OriginOrRule {
            type Value = LinkRule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an origin, or an object with `origin` and `headers`")
            }

            fn visit_str<E: de::Error>(self, origin: &str) -> Result<LinkRule, E> {
                LinkRule::new(origin, BTreeMap::new()).map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<LinkRule, A::Error> {
                let Definition { origin, headers } =
                    Definition::deserialize(MapAccessDeserializer::new(map))?;
                LinkRule::new(&origin, headers).map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(OriginOrRule)
    }
}

impl<'de> Deserialize<'de> for SourceLinks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rules: Vec<LinkRule> = Vec::deserialize(deserializer)?;
        match rules.len() {
            ..=Self::MAX_RULES => Ok(Self { rules }),
            _ => Err(de::Error::custom(format!(
                "more than {} rules",
                Self::MAX_RULES
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn links(rules: serde_json::Value) -> SourceLinks {
        serde_json::from_value(rules).unwrap()
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn links_are_followed_only_where_a_rule_says_so() {
        assert!(
            SourceLinks::default()
                .allowed(&url("https://a.test/x"))
                .is_none()
        );
        let links = links(json!(["a.test"]));
        let allowed = links.allowed(&url("https://a.test/x/y.c?z=1")).unwrap();
        assert_eq!(allowed.source.url.as_str(), "https://a.test/");
        assert!(!allowed.has_credentials && !allowed.source.has_credentials());
        assert!(links.allowed(&url("https://b.test/x")).is_none());
    }

    #[test]
    fn credentials_are_for_the_addresses_of_their_rule_and_need_encryption() {
        let links = links(json!([
            {"origin": "https://h.test/acme/", "headers": {"authorization": "of acme"}},
            {"origin": "git.test", "headers": {"private-token": "of git"}},
            {"origin": "http://old.test", "headers": {"x": "in clear text"}},
            "*",
        ]));
        let headers = |link: &str| {
            let allowed = links.allowed(&url(link)).unwrap();
            assert!(allowed.source.is_above(&url(link)), "{link}");
            assert_eq!(allowed.has_credentials, allowed.source.has_credentials());
            allowed.source.headers.into_values().next()
        };
        assert_eq!(headers("https://h.test/acme/a.c?v=1").unwrap(), "of acme");
        assert_eq!(headers("https://h.test/other/a.c"), None);
        assert_eq!(headers("https://git.test/a.c").unwrap(), "of git");
        assert_eq!(headers("http://git.test/a.c"), None);
        assert_eq!(headers("http://old.test/a.c").unwrap(), "in clear text");
        // Addresses with different credentials belong to different sources.
        let source = |link: &str| links.allowed(&url(link)).unwrap().source;
        let (of_acme, of_others) = (source("https://h.test/acme/a"), source("https://h.test/b"));
        assert_ne!(of_acme.configured_key(), of_others.configured_key());
        assert!(!of_acme.is_above(&url("https://h.test/b")));
        assert!(!of_acme.is_above(&url("https://other.test/acme/a")));
        let without = links.clone().without_credentials();
        let allowed = without.allowed(&url("https://h.test/acme/a")).unwrap();
        assert!(allowed.has_credentials && !allowed.source.has_credentials());
        assert_eq!(allowed.source.configured_key(), of_acme.configured_key());
        assert!(!format!("{links:?} {of_acme:?}").contains("of acme"));
    }

    #[test]
    fn an_invalid_rule_is_refused_with_the_reason() {
        for (rules, says) in [
            (json!(["a b"]), "it is neither"),
            (
                json!([{"origin": "*", "headers": {"x": "sesame"}}]),
                "name it",
            ),
            (
                json!([{"origin": "a.test", "headers": {"host": "sesame"}}]),
                "reserved",
            ),
            (json!([{"origin": "a.test", "header": {}}]), "unknown field"),
            (json!([{}]), "missing field `origin`"),
            (json!([1]), "an origin, or an object"),
            (json!(vec!["a.test"; 257]), "more than 256 rules"),
        ] {
            let error = serde_json::from_value::<SourceLinks>(rules).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(says) && !error.contains("sesame"), "{error}");
        }
    }

    #[test]
    fn a_link_that_is_no_plain_web_address_is_not_followed() {
        let long = format!("https://a.test/{}", "x".repeat(2048));
        for link in [
            "",
            "/src/a.c",
            "file:///etc/passwd",
            "ftp://a.test/a.c",
            "https://me:sesame@a.test/a.c",
            "https:///",
            "C:\\src\\a.c",
            &long,
        ] {
            assert_eq!(link_target(link), None, "{link}");
        }
        let target = link_target("HTTPS://A.test/b/../c.cs?path=/x%20y#L7").unwrap();
        assert_eq!(target.as_str(), "https://a.test/c.cs?path=/x%20y");
    }
}
