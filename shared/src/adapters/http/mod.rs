//! Symbol servers over HTTP.
//!
//! - A server is answered for by what it says: 404 is absent, 401 and 403 are refused, everything else is its failure, for
//!   now. What stands between us and it (no address, no connection, a certificate) is its failure, too.
//! - Redirects are followed here, not by the client: each step is checked, and credentials go to nobody but the server they
//!   are for. None leads from https to http.
//! - A connection leads to the global internet. Only a configured source with `is_private` may be in
//!   a private network, at its own origin; redirects and pointers that leave the origin may not lead
//!   there. Addresses are checked when a connection is made, so that no name can be made to lead
//!   elsewhere, see `address`.
//! - Sources that requests define share no connection, neither with configured ones nor with each
//!   other: each question of theirs has one of its own.
//! - Only what concerns a server as a whole counts against it ([`Concerns`]): that its own address
//!   cannot be reached, or its own wish to be left alone.
//! - Details name hosts and paths. Queries, headers and bodies may hold secrets.
//!
//! Nothing here knows what is in the files, or how large they may be.

mod address;
mod status;
mod symsrv;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::StreamExt;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
    LOCATION, USER_AGENT,
};
use reqwest::{Response, Url, redirect};

use self::address::Reach;
use self::symsrv::Tiers;
use crate::adapters::backoff::pause;
use crate::domain::{Cause, HttpSource, Location, Missing, SourceKey};
use crate::ports::{Concerns, IncomingDif, ServerFailure, SymbolServers};

/// A connection that is not there by then is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server that says nothing for this long is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Steps that an answer may lead on.
const MAX_REDIRECTS: usize = 5;

/// How often a question is put to a server that fails.
const MAX_ATTEMPTS: u32 = 3;

/// How we introduce ourselves.
const AGENT: &str = concat!("symdepot/", env!("CARGO_PKG_VERSION"));

/// Fetches DIFs from symbol servers.
#[derive(Debug)]
pub struct HttpServers {
    clients: HttpClients,
    allow_private: bool,
    tiers: Tiers,
}

/// The HTTP clients: one for each reach, twice. Each is built when it is needed first: it takes time
/// to read the root certificates, and a machine may have none.
#[derive(Debug, Default)]
struct HttpClients {
    /// For configured sources: connections are used again.
    kept: [OnceLock<reqwest::Client>; Reach::ALL.len()],
    /// For sources that requests define: no connection is used twice.
    single: [OnceLock<reqwest::Client>; Reach::ALL.len()],
}

impl HttpClients {
    fn get(&self, reach: Reach, is_defined: bool) -> Result<&reqwest::Client, Refusal> {
        let clients = if is_defined { &self.single } else { &self.kept };
        let client = &clients[reach as usize];
        if let Some(client) = client.get() {
            return Ok(client);
        }
        // A process has one provider; an earlier call set the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(CheckedNames { reach }));
        if is_defined {
            builder = builder.pool_max_idle_per_host(0);
        }
        let built = builder.build().map_err(|error| {
            Refusal::forever(format!("no symbol server can be asked from here: {error}"))
        })?;
        Ok(client.get_or_init(|| built))
    }
}

/// The source that is asked.
#[derive(Clone, Copy)]
struct ServerQuery<'a> {
    key: &'a SourceKey,
    source: &'a HttpSource,
}

impl ServerQuery<'_> {
    /// Tells whether an address is at the source's own origin.
    fn owns(self, url: &Url) -> bool {
        url.origin() == self.source.url.origin()
    }

    /// Returns where a connection to this address may lead.
    fn reach(self, url: &Url) -> Reach {
        let is_private = self.source.is_private && !self.key.is_defined();
        if !is_private || !self.owns(url) {
            return Reach::Public;
        }
        let is_local = match self.source.url.host() {
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(url::Host::Ipv4(ip)) => address::is_local(ip.into()),
            Some(url::Host::Ipv6(ip)) => address::is_local(ip.into()),
            None => false,
        };
        if is_local {
            Reach::Local
        } else {
            Reach::Private
        }
    }
}

impl HttpServers {
    /// Returns what connects to nothing yet; `allow_private` lets every source, redirect and pointer
    /// lead to any address: for the local stack, where tests serve files on loopback.
    pub fn new(allow_private: bool) -> Self {
        Self {
            clients: HttpClients::default(),
            allow_private,
            tiers: Tiers::default(),
        }
    }

    /// Has what is remembered of servers end by the wall clock, too, which returns the time since 1970.
    #[must_use]
    pub fn with_wall_clock(self, wall_clock: fn() -> Duration) -> Self {
        Self {
            tiers: Tiers::by_wall_clock(wall_clock),
            ..self
        }
    }

    /// Puts a question once, in the way of the source.
    async fn find(&self, asked: ServerQuery<'_>, location: &Location) -> Result<Response, Refusal> {
        let source = asked.source;
        // A location comes with a message, and who may send one is not who configures sources.
        let mut url = Url::parse(location.as_str())
            .ok()
            .filter(|url| source.is_above(url))
            .ok_or_else(|| {
                let id = &source.id;
                Refusal::forever(format!("a location of {id} is not below its address"))
            })?;
        if !symsrv::is_asked_so(source) {
            return self.ask(asked, &url).await;
        }
        let index2 = async {
            match self.ask(asked, &symsrv::index2(source)).await {
                Ok(_) => Ok(true),
                Err(refusal) if refusal.missing.cause == Cause::NotFound => Ok(false),
                Err(refusal) => Err(refusal),
            }
        };
        if self.tiers.has_two(asked.key, index2).await? {
            url = symsrv::in_two_tiers(source, &url);
        }
        let found = self.ask(asked, &url).await?;
        if !symsrv::is_pointer(location) {
            return Ok(found);
        }
        let text = short_text(found, symsrv::MAX_POINTER_BYTES).await?;
        match symsrv::lead(&text, &url) {
            Ok(to) => {
                stays_secure(&url, &to)?;
                self.ask(asked, &to).await
            }
            Err((cause, detail)) => Err(Refusal {
                missing: Missing::new(cause, detail),
                retry: Retry::Never,
                concerns: Concerns::Location,
            }),
        }
    }

    /// Puts a question once, and follows where the answer leads. What the source is sent as its headers and its query,
    /// nobody else is.
    async fn ask(&self, asked: ServerQuery<'_>, begin: &Url) -> Result<Response, Refusal> {
        let source = asked.source;
        let mut url = begin.clone();
        // Where an answer leads, the server says the query, too.
        let mut sent = match source.is_above(begin) {
            true => source.with_query(begin),
            false => begin.clone(),
        };
        for _ in 0..=MAX_REDIRECTS {
            let reach = match self.allow_private {
                true => Reach::Everything,
                false => asked.reach(&url),
            };
            check(&url, reach)?;
            let is_own = asked.owns(&url);
            let client = self.clients.get(reach, asked.key.is_defined())?;
            let request = client.get(sent).headers(headers(source, is_own));
            let response = request
                .send()
                .await
                .map_err(|error| failed(&url, is_own, &error))?;
            if !response.status().is_redirection() {
                return status::judge(response, &url, is_own);
            }
            let next = response
                .headers()
                .get(LOCATION)
                .and_then(|next| next.to_str().ok());
            let next = match next.map(|next| url.join(next)) {
                Some(Ok(next)) if matches!(next.scheme(), "http" | "https") => next,
                _ => {
                    let status = response.status();
                    let detail = format!("{} answered {status} without an address", place(&url));
                    return Err(Refusal::now(Cause::DownloadFailed, detail));
                }
            };
            stays_secure(&url, &next)?;
            sent = next.clone();
            url = next;
        }
        Err(Refusal::forever(format!(
            "{} leads on more than {MAX_REDIRECTS} times",
            place(begin)
        )))
    }
}

/// Returns the headers of a question; those of the source only where the source itself is asked.
fn headers(source: &HttpSource, is_own: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    if is_own {
        for (name, value) in &source.headers {
            if let (Ok(name), Ok(mut value)) =
                (name.parse::<HeaderName>(), value.parse::<HeaderValue>())
            {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
    }
    // What is compressed on the way is longer than it says it is.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}

/// Refuses addresses that need no name; the others are checked when they are looked up.
fn check(url: &Url, reach: Reach) -> Result<(), Refusal> {
    let ip: IpAddr = match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.into(),
        Some(url::Host::Ipv6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match reach.allows(ip) {
        true => Ok(()),
        false => Err(private(url)),
    }
}

/// Refuses to go on in clear where a connection was private.
fn stays_secure(from: &Url, to: &Url) -> Result<(), Refusal> {
    match (from.scheme(), to.scheme()) {
        ("https", "http") => Err(Refusal::forever(format!(
            "{} leads from https to http, at {}",
            place(from),
            place(to)
        ))),
        _ => Ok(()),
    }
}

/// Returns what details say of an address: its host and its path.
fn place(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}"));
    format!("{host}{}{}", port.unwrap_or_default(), url.path())
}

#[async_trait]
impl SymbolServers for HttpServers {
    async fn get(
        &self,
        key: &SourceKey,
        source: &HttpSource,
        location: &Location,
    ) -> Result<IncomingDif, ServerFailure> {
        let mut attempts = 0;
        loop {
            let refusal = match self.find(ServerQuery { key, source }, location).await {
                Ok(response) => return Ok(download(response, location)),
                Err(refusal) => refusal,
            };
            attempts += 1;
            if attempts == MAX_ATTEMPTS || !matches!(refusal.retry, Retry::Soon) {
                let retry_after = match refusal.retry {
                    Retry::After(retry_after) => Some(retry_after),
                    Retry::Soon | Retry::Never => None,
                };
                return Err(ServerFailure {
                    missing: refusal.missing,
                    retry_after,
                    concerns: refusal.concerns,
                });
            }
            pause(attempts).await;
        }
    }
}

/// Why a question got no file.
#[derive(Debug)]
struct Refusal {
    missing: Missing,
    retry: Retry,
    concerns: Concerns,
}

/// Whether to put the question again.
#[derive(Debug)]
enum Retry {
    /// At once.
    Soon,
    /// Not now: the server says when.
    After(Duration),
    /// The answer would be the same.
    Never,
}

impl Refusal {
    fn now(cause: Cause, detail: String) -> Self {
        Self {
            missing: Missing::new(cause, detail),
            retry: Retry::Soon,
            concerns: Concerns::Location,
        }
    }

    fn forever(detail: String) -> Self {
        Self {
            missing: Missing::new(Cause::DownloadFailed, detail),
            retry: Retry::Never,
            concerns: Concerns::Location,
        }
    }
}

/// What stood between us and the server. `is_own` tells whether the source itself was asked.
fn failed(url: &Url, is_own: bool, error: &reqwest::Error) -> Refusal {
    let host = url.host_str().unwrap_or_default();
    let mut causes = String::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.downcast_ref::<OnlyPrivate>().is_some() {
            return private(url);
        }
        causes = format!("{causes}: {error}");
        cause = error.source();
    }
    // No address, no connection, no agreement on encryption, or none of these in time.
    let concerns = match is_own && error.is_connect() {
        true => Concerns::Server,
        false => Concerns::Location,
    };
    if error.is_timeout() {
        // It had its time: two more attempts would take as long.
        return Refusal {
            missing: Missing::new(Cause::Timeout, format!("{host} did not answer in time")),
            retry: Retry::Never,
            concerns,
        };
    }
    let detail = format!("{host} cannot be asked{causes}");
    Refusal {
        concerns,
        ..Refusal::now(Cause::DownloadFailed, detail)
    }
}

fn private(url: &Url) -> Refusal {
    let host = url.host_str().unwrap_or_default();
    let detail = format!(
        "{host} is in a private network, where only a source that the operator lists in SOURCES with \
         \"is_private\": true may be, at its own address"
    );
    Refusal {
        missing: Missing::new(Cause::PermissionDenied, detail),
        retry: Retry::Never,
        concerns: Concerns::Location,
    }
}

/// Reads an answer that is to be short.
async fn short_text(mut answer: Response, limit: usize) -> Result<String, Refusal> {
    let url = answer.url().clone();
    let mut text = Vec::new();
    while let Some(bytes) = answer
        .chunk()
        .await
        .map_err(|error| failed(&url, false, &error))?
    {
        text.extend_from_slice(&bytes);
        if text.len() > limit {
            let detail = format!("{} has more than {limit} bytes", place(&url));
            return Err(Refusal {
                missing: Missing::malformed(detail),
                retry: Retry::Never,
                concerns: Concerns::Location,
            });
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Turns a good answer into a download.
fn download(response: Response, location: &Location) -> IncomingDif {
    let header = |name| {
        let value: Option<&HeaderValue> = response.headers().get(name);
        value
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    // The client knows no length of an answer that is encoded in spite of our wish.
    let size = response.content_length();
    let etag = match header(ETAG) {
        Some(etag) => etag,
        None => format!(
            "{}/{}",
            header(LAST_MODIFIED).unwrap_or_default(),
            header(CONTENT_LENGTH).unwrap_or_default()
        ),
    };
    let location = location.clone();
    let body = response.bytes_stream().map(move |bytes| {
        bytes.map_err(|error| {
            let (cause, what) = match error.is_timeout() {
                true => (Cause::Timeout, "stopped in the middle of"),
                false => (Cause::DownloadFailed, "broke off in the middle of"),
            };
            ServerFailure {
                missing: Missing::new(cause, format!("the server {what} {location}")),
                retry_after: None,
                concerns: Concerns::Location,
            }
        })
    });
    IncomingDif {
        etag,
        size,
        body: body.boxed(),
    }
}

/// Looks up names, and passes over the addresses that may not be connected to.
#[derive(Debug)]
struct CheckedNames {
    reach: Reach,
}

/// A name leads only to addresses that may not be connected to.
#[derive(Debug)]
struct OnlyPrivate;

impl fmt::Display for OnlyPrivate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it has only addresses in private networks")
    }
}

impl std::error::Error for OnlyPrivate {}

impl Resolve for CheckedNames {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.reach;
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let is_allowed = |found: &SocketAddr| reach.allows(found.ip());
            let allowed: Vec<SocketAddr> = found.iter().copied().filter(is_allowed).collect();
            if allowed.is_empty() && !found.is_empty() {
                return Err(Box::new(OnlyPrivate) as Box<dyn std::error::Error + Send + Sync>);
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    /// F21.
    #[test]
    fn no_step_leads_from_https_to_http_and_what_says_so_shows_no_query() {
        let (secure, clear) = (
            url("https://x.test/a?t=sesame"),
            url("http://y.test/b?t=sesame"),
        );
        let refused = stays_secure(&secure, &clear).unwrap_err();
        assert_eq!(
            refused.missing,
            Missing::new(
                Cause::DownloadFailed,
                "x.test/a leads from https to http, at y.test/b"
            )
        );
        for (from, to) in [(&secure, &secure), (&clear, &secure), (&clear, &clear)] {
            assert!(stays_secure(from, to).is_ok(), "{from} {to}");
        }
    }

    /// F11.
    #[test]
    fn credentials_are_sent_to_the_source_itself_and_marked_as_sensitive() {
        let json = r#"{"type": "http", "id": "a", "url": "https://x.test", "headers": {"Authorization": "sesame",
            "User-Agent": "us"}}"#;
        let source: HttpSource = serde_json::from_str(json).unwrap();
        let own = headers(&source, true);
        assert!(own["authorization"].is_sensitive());
        assert_eq!(own["authorization"], "sesame");
        assert_eq!(own[USER_AGENT], "us");
        assert!(!format!("{own:?}").contains("sesame"), "{own:?}");
        assert_eq!(own[ACCEPT_ENCODING], "identity");
        assert!(!headers(&source, false).contains_key("authorization"));
    }

    /// F9.
    #[test]
    fn a_connection_leads_where_its_source_allows_and_no_further() {
        let reach = |base: &str, is_private, is_defined, to: &str| {
            let json = serde_json::json!({"type": "http", "id": "a", "url": base, "is_private": is_private});
            let source: HttpSource = serde_json::from_value(json).unwrap();
            let key = match is_defined {
                true => SourceKey::defined(&source, "1"),
                false => SourceKey::configured(&source),
            };
            ServerQuery {
                key: &key,
                source: &source,
            }
            .reach(&url(to))
        };
        for (base, is_private, is_defined, to, expected) in [
            (
                "http://a.corp/s",
                false,
                false,
                "http://a.corp/s/x",
                Reach::Public,
            ),
            (
                "http://a.corp/s",
                true,
                false,
                "http://a.corp/y",
                Reach::Private,
            ),
            (
                "http://a.corp/s",
                true,
                true,
                "http://a.corp/y",
                Reach::Public,
            ),
            (
                "http://a.corp/s",
                true,
                false,
                "http://b.corp/y",
                Reach::Public,
            ),
            (
                "http://a.corp/s",
                true,
                false,
                "http://a.corp:81/y",
                Reach::Public,
            ),
            (
                "http://10.0.0.1/s",
                true,
                false,
                "http://10.0.0.1/y",
                Reach::Private,
            ),
            (
                "http://127.0.0.1/s",
                true,
                false,
                "http://127.0.0.1/y",
                Reach::Local,
            ),
            (
                "http://[::1]/s",
                true,
                false,
                "http://[::1]/y",
                Reach::Local,
            ),
            (
                "http://localhost/s",
                true,
                false,
                "http://localhost/y",
                Reach::Local,
            ),
            (
                "http://127.0.0.1/s",
                true,
                false,
                "http://10.0.0.1/y",
                Reach::Public,
            ),
        ] {
            assert_eq!(
                reach(base, is_private, is_defined, to),
                expected,
                "{base} {to}"
            );
        }
    }
}
