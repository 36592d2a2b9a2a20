//! Patterns of web addresses: which hosts, ports and paths.
//!
//! The forms are those of `allowed_origins` in requests to Symbolicator:
//!
//! ```text
//! *                            every address
//! example.com                  this host, with any scheme and port
//! *.example.com                this host and the hosts below it
//! example.com:8080, *:8080     this port only
//! https://example.com          this scheme, host and port
//! https://example.com/a        this path, and the paths below it
//! https://example.com/a*       the paths that begin with this text
//! ```
//!
//! Names of hosts are compared in the form in which they are resolved (IDNA).

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// A pattern of web addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OriginPattern {
    text: String,
    /// Any if there is none.
    scheme: Option<String>,
    host: HostPattern,
    /// Any if there is none.
    port: Option<u16>,
    /// Any if there is none.
    path: Option<PathPattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Any,
    One(Host),
    /// A name, and all names below it.
    Below(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathPattern {
    /// A path without a slash at its end, and the paths below it.
    Below(String),
    /// The paths that begin with this text.
    Begins(String),
}

/// A text that is not a pattern of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is neither *, a host, *.host, host:port nor a URL")]
pub struct InvalidOrigin;

impl OriginPattern {
    /// The maximum length of a pattern, in bytes.
    pub const MAX_BYTES: usize = 2048;

    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the pattern limits the hosts.
    pub fn names_a_host(&self) -> bool {
        self.host != HostPattern::Any
    }

    /// Returns whether the pattern limits the scheme.
    pub fn names_a_scheme(&self) -> bool {
        self.scheme.is_some()
    }

    /// Returns whether an address matches the pattern.
    pub fn matches(&self, url: &Url) -> bool {
        let is_scheme = self
            .scheme
            .as_deref()
            .is_none_or(|scheme| scheme == url.scheme());
        let is_port = self
            .port
            .is_none_or(|port| url.port_or_known_default() == Some(port));
        let is_path = self.path.as_ref().is_none_or(|path| path.matches(url));
        is_scheme && is_port && is_path && self.host.matches(url)
    }
}

impl HostPattern {
    /// Parses the host of a pattern, which may begin with `*.`.
    fn parse(text: &str) -> Result<Self, InvalidOrigin> {
        let name = text.strip_prefix("*.");
        let host = Host::parse(name.unwrap_or(text)).map_err(|_| InvalidOrigin)?;
        match (name, host) {
            _ if text == "*" => Ok(Self::Any),
            (None, host) => Ok(Self::One(host)),
            (Some(_), Host::Domain(name)) => Ok(Self::Below(name)),
            (Some(_), _) => Err(InvalidOrigin),
        }
    }

    fn matches(&self, url: &Url) -> bool {
        match (self, url.host()) {
            (Self::Any, Some(_)) => true,
            (Self::One(host), Some(of)) => *host == of.to_owned(),
            (Self::Below(name), Some(Host::Domain(of))) => of
                .strip_suffix(name.as_str())
                .is_some_and(|above| above.is_empty() || above.ends_with('.')),
            _ => false,
        }
    }
}

impl PathPattern {
    /// Parses the path of a pattern; `None` if it allows every path.
    fn parse(path: &str) -> Option<Self> {
        match path.strip_suffix('*') {
            Some("" | "/") => None,
            Some(begin) => Some(Self::Begins(begin.to_owned())),
            None => match path.trim_end_matches('/') {
                "" => None,
                path => Some(Self::Below(path.to_owned())),
            },
        }
    }

    /// Returns whether the path of an address matches. An encoded path that leads upwards does not,
    /// because a server may decode it.
    fn matches(&self, url: &Url) -> bool {
        let decoded = percent_decode_str(url.path()).decode_utf8_lossy();
        if decoded.split(['/', '\\']).any(|segment| segment == "..") {
            return false;
        }
        match self {
            Self::Begins(begin) => url.path().starts_with(begin),
            Self::Below(path) => url
                .path()
                .strip_prefix(path.as_str())
                .is_some_and(|below| below.is_empty() || below.starts_with('/')),
        }
    }
}

impl FromStr for OriginPattern {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidOrigin);
        }
        let (scheme, host, port, path) = match text.split_once("://") {
            Some(_) => {
                let url = Url::parse(text).map_err(|_| InvalidOrigin)?;
                let host = url.host_str().ok_or(InvalidOrigin)?;
                let is_plain = url.query().is_none()
                    && url.fragment().is_none()
                    && url.username().is_empty()
                    && url.password().is_none();
                if !is_plain || !matches!(url.scheme(), "http" | "https") {
                    return Err(InvalidOrigin);
                }
                (
                    Some(url.scheme().to_owned()),
                    HostPattern::parse(host)?,
                    url.port_or_known_default(),
                    PathPattern::parse(url.path()),
                )
            }
            None => {
                let is_port = |port: &str| !port.is_empty() && !port.contains([':', ']']);
                let with_port = text.rsplit_once(':').filter(|(_, port)| is_port(port));
                let (host, port) = match with_port {
                    Some((host, port)) => (host, Some(port.parse().map_err(|_| InvalidOrigin)?)),
                    None => (text, None),
                };
                (None, HostPattern::parse(host)?, port, None)
            }
        };
        Ok(Self {
            text: text.to_owned(),
            scheme,
            host,
            port,
            path,
        })
    }
}

impl TryFrom<String> for OriginPattern {
    type Error = InvalidOrigin;

    fn try_from(text: String) -> Result<Self, InvalidOrigin> {
        text.parse()
    }
}

impl From<OriginPattern> for String {
    fn from(pattern: OriginPattern) -> Self {
        pattern.text
    }
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_addresses_that_it_describes() {
        for (pattern, matching, others) in [
            ("*", &["http://a.test/x", "https://[::1]:8/"][..], &[][..]),
            (
                "Example.com",
                &["http://example.com/", "https://EXAMPLE.com:8080/a"],
                &["http://a.example.com/", "http://example.com.evil.test/"],
            ),
            (
                "*.example.com",
                &["http://example.com/", "https://a.b.example.com/"],
                &["http://notexample.com/", "http://example.com.evil.test/"],
            ),
            (
                "example.com:8080",
                &["http://example.com:8080/"],
                &["http://example.com/", "http://a.test:8080/"],
            ),
            ("*:443", &["https://a.test/"], &["http://a.test/"]),
            ("[::1]:80", &["http://[::1]/"], &["http://[::2]/"]),
            (
                "127.0.0.1",
                &["http://127.0.0.1:9/"],
                &["http://127.0.0.2/"],
            ),
            ("bücher.test", &["https://xn--bcher-kva.test/"], &[]),
            (
                "https://example.com",
                &["https://example.com/a", "https://example.com:443/"],
                &["http://example.com/", "https://example.com:444/"],
            ),
            (
                "https://*.example.com/",
                &["https://a.example.com/x"],
                &["http://a.example.com/x"],
            ),
            (
                "https://example.com/acme/",
                &["https://example.com/acme", "https://example.com/acme/b?q"],
                &[
                    "https://example.com/acme-evil/",
                    "https://example.com/acme/../b",
                    "https://example.com/acme/%2e%2e%2fb",
                    "https://example.com/acme/..%5cb",
                ],
            ),
            (
                "https://example.com/ac*",
                &["https://example.com/acme/b"],
                &[
                    "https://example.com/bcme",
                    "https://example.com/ac/%2E%2E/x",
                ],
            ),
        ] {
            let parsed: OriginPattern = pattern.parse().unwrap();
            assert_eq!(parsed.to_string(), pattern);
            for url in matching {
                assert!(parsed.matches(&Url::parse(url).unwrap()), "{pattern} {url}");
            }
            for url in others {
                assert!(
                    !parsed.matches(&Url::parse(url).unwrap()),
                    "{pattern} {url}"
                );
            }
        }
    }

    #[test]
    fn a_text_that_is_no_pattern_is_refused() {
        let long = "a".repeat(OriginPattern::MAX_BYTES + 1);
        for text in [
            "",
            "a b",
            "example.com:port",
            "example.com:99999",
            "*.127.0.0.1",
            "ftp://example.com",
            "https://me@example.com",
            "https://example.com/?q",
            "https://",
            &long,
        ] {
            assert_eq!(text.parse::<OriginPattern>(), Err(InvalidOrigin), "{text}");
        }
    }
}
