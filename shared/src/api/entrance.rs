//! How a request enters: the prefixes of its path, and the credential that it carries.
//!
//! ```text
//! [/o][/t/<token>][/scope/<scope>]/<path of a protocol>
//! ```
//!
//! Many clients are configured with a base URL and nothing else, so the base may have the scope and
//! an access token. A token is also taken from the header `Authorization`: as `Bearer`, or as the
//! password of `Basic`, which clients send that were given `https://user:token@host`.
//!
//! Empty segments count as absent, because a base URL may end with a slash; only the place of a
//! token or a scope is not empty.
//!
//! The prefix `/o` is that of the gateway's routes with a JWT. A prefix never decides who the
//! caller is: only a credential does.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;

use crate::domain::{AccessToken, Scope};

/// The maximum length of a header that is decoded. A token has 47 bytes.
const MAX_HEADER_BYTES: usize = 1024;

/// A path without its prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrance<'a> {
    /// The access token, encoded as it was sent.
    token: Option<&'a str>,
    /// The scope, or the text in its place that is none.
    pub scope: Option<Result<Scope, String>>,
    /// The rest of the path, which begins with a slash and has no empty segments.
    pub path: Cow<'a, str>,
}

/// The credential of a request, besides what the gateway checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// None.
    Absent,
    /// A text that is not an access token.
    Malformed,
    /// An access token.
    Token(AccessToken),
}

impl<'a> Entrance<'a> {
    /// Parses a path in the percent-encoded form in which it was sent.
    pub fn of(path: &'a str) -> Self {
        let path = after(path, "o").unwrap_or(path);
        let (token, path) = named(path, "t");
        let (scope, path) = named(path, "scope");
        let scope = scope.map(|text| {
            let decoded = decoded(text).ok_or_else(|| text.to_owned())?;
            decoded.parse().map_err(|_| decoded)
        });
        let path = without_empty_segments(path);
        Self { token, scope, path }
    }

    /// Returns the credential of a request with this path and this header `Authorization`. A token
    /// in the path is the one that counts.
    pub fn credential(&self, authorization: Option<&str>) -> Credential {
        if let Some(token) = self.token {
            return credential(decoded(token).as_deref());
        }
        let Some((scheme, value)) = authorization.and_then(|header| header.split_once(' ')) else {
            return Credential::Absent;
        };
        let value = value.trim();
        let is_basic = scheme.eq_ignore_ascii_case("basic");
        if !is_basic && !scheme.eq_ignore_ascii_case("bearer") {
            // The signature of a request, for example, which the gateway checks.
            return Credential::Absent;
        }
        if value.len() > MAX_HEADER_BYTES {
            return Credential::Malformed;
        }
        if is_basic {
            credential(password(value).as_deref())
        } else {
            credential(Some(value))
        }
    }
}

fn credential(text: Option<&str>) -> Credential {
    let token = text.and_then(AccessToken::parse);
    token.map_or(Credential::Malformed, Credential::Token)
}

/// Returns the password of `Basic`; the user if there is no password, as in `https://token@host`.
fn password(value: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(value).ok()?;
    let pair = String::from_utf8(bytes).ok()?;
    let (user, password) = pair.split_once(':').unwrap_or((&pair, ""));
    let given = if password.is_empty() { user } else { password };
    Some(given.to_owned())
}

/// Returns a path without its empty segments. That of the root remains.
fn without_empty_segments(path: &str) -> Cow<'_, str> {
    let path = match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    };
    let mut path = Cow::Borrowed(path);
    while path.contains("//") {
        path = path.replace("//", "/").into();
    }
    path
}

/// Returns the rest of a path after its first segment that is not empty, if that is `name`.
fn after<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let rest = path.strip_prefix('/')?.trim_start_matches('/');
    let rest = rest.strip_prefix(name)?;
    rest.starts_with('/').then_some(rest)
}

/// Returns the second segment of a path if the first is `name`, and the rest of the path.
fn named<'a>(path: &'a str, name: &str) -> (Option<&'a str>, &'a str) {
    let Some(rest) = after(path, name) else {
        return (None, path);
    };
    let rest = &rest[1..];
    match rest.find('/') {
        Some(end) => (Some(&rest[..end]), &rest[end..]),
        None => (Some(rest), "/"),
    }
}

fn decoded(segment: &str) -> Option<String> {
    let decoded = percent_decode_str(segment).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(byte: u8) -> AccessToken {
        AccessToken::from_random([byte; 32])
    }

    fn basic(pair: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(pair))
    }

    #[test]
    fn a_path_has_a_token_and_a_scope_before_the_path_of_a_protocol() {
        let text = token(1).reveal();
        let check = |path: &str, has_token: bool, scope: Option<&str>, rest: &str| {
            let entrance = Entrance::of(path);
            assert_eq!(entrance.token.is_some(), has_token, "{path}");
            assert_eq!(entrance.path, rest, "{path}");
            let found = entrance.scope.map(Result::unwrap);
            assert_eq!(found.as_ref().map(Scope::as_str), scope, "{path}");
        };
        check("/symbolicate", false, None, "/symbolicate");
        check(&format!("/t/{text}/explain"), true, None, "/explain");
        let both = format!("/t/{text}/scope/acme/v3.1.0/a.pdb/1/1");
        check(&both, true, Some("acme"), "/v3.1.0/a.pdb/1/1");
        let encoded = "/scope/a%20b/requests/7";
        check(encoded, false, Some("a b"), "/requests/7");
        check("/o/scope/acme/wanted", false, Some("acme"), "/wanted");
        check("/o/wanted", false, None, "/wanted");
        check(&format!("/t/{text}"), true, None, "/");
        check("/scope/acme", false, Some("acme"), "/");
        // These are not prefixes.
        for path in [
            "/tokens",
            "/tokens/7",
            "/scopes/acme/x",
            "/explain/t/x",
            "/o",
            "/",
        ] {
            check(path, false, None, path);
        }
        // A scope follows a token, and each occurs once.
        let twice = "/scope/acme/scope/b/x";
        check(twice, false, Some("acme"), "/scope/b/x");
        for path in ["/scope/a%2Fb/x", "/scope//x", "/scope/%ff/x"] {
            assert!(matches!(Entrance::of(path).scope, Some(Err(_))), "{path}");
        }
    }

    #[test]
    fn empty_segments_are_absent_except_in_the_place_of_a_token_or_a_scope() {
        let text = token(1).reveal();
        for (path, scope, rest) in [
            ("//v3.1.0/a.pdb/1/1".to_owned(), None, "/v3.1.0/a.pdb/1/1"),
            (format!("/t/{text}//about"), None, "/about"),
            (
                format!("//t/{text}//scope/acme///about"),
                Some("acme"),
                "/about",
            ),
            ("/o//wanted".to_owned(), None, "/wanted"),
            (
                "/symcache//v3.1.0/a.pdb//1/1".to_owned(),
                None,
                "/symcache/v3.1.0/a.pdb/1/1",
            ),
            ("/requests/7//".to_owned(), None, "/requests/7"),
            ("/about/".to_owned(), None, "/about"),
            ("/scope/acme/about/".to_owned(), Some("acme"), "/about"),
            ("//".to_owned(), None, "/"),
        ] {
            let entrance = Entrance::of(&path);
            assert_eq!(entrance.token.is_some(), path.contains("/t/"), "{path}");
            let found = entrance.scope.map(Result::unwrap);
            assert_eq!(found.as_ref().map(Scope::as_str), scope, "{path}");
            assert_eq!(entrance.path, rest, "{path}");
        }
        let no_token = Entrance::of("/t//about").credential(None);
        assert_eq!(no_token, Credential::Malformed);
        assert!(matches!(Entrance::of("/scope//about").scope, Some(Err(_))));
    }

    #[test]
    fn a_token_is_taken_from_the_path_or_from_the_header() {
        let of = |path: &str, header: Option<&str>| Entrance::of(path).credential(header);
        let (one, other) = (token(1), token(2));
        let text = one.clone().reveal();
        let found = Credential::Token(one);
        assert_eq!(of(&format!("/t/{text}/x"), None), found);
        let bearer = format!("Bearer {}", other.reveal());
        assert_eq!(of(&format!("/t/{text}/x"), Some(&bearer)), found);
        for header in [
            format!("Bearer {text}"),
            format!("bearer  {text}"),
            basic(&format!("user:{text}")),
            basic(&format!(":{text}")),
            basic(&format!("{text}:")),
            basic(&text),
        ] {
            assert_eq!(of("/x", Some(&header)), found, "{header}");
        }
    }

    #[test]
    fn what_is_no_token_is_malformed_and_other_schemes_are_not_ours() {
        let of = |path: &str, header: Option<&str>| Entrance::of(path).credential(header);
        for (path, header) in [
            ("/t/x/y", None),
            ("/t//y", None),
            ("/t/%ff/y", None),
            ("/x", Some("Bearer x".to_owned())),
            ("/x", Some("Basic !".to_owned())),
            ("/x", Some(basic("user:password"))),
            ("/x", Some(format!("Bearer {}", "x".repeat(5000)))),
        ] {
            let found = of(path, header.as_deref());
            assert_eq!(found, Credential::Malformed, "{path} {header:?}");
        }
        let signed = format!("AWS4-HMAC-SHA256 Credential={}", "x".repeat(2000));
        for header in [None, Some(signed.as_str()), Some("Bearer"), Some("")] {
            assert_eq!(of("/x", header), Credential::Absent, "{header:?}");
        }
    }
}
