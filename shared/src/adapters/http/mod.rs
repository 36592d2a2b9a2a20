//! Symbol servers over HTTP.
//!
//! - A server is answered for by what it says: 404 is absent, 401 and 403 are refused, everything else is its failure, for
//!   now. What stands between us and it (no address, no connection, a certificate) is its failure, too.
//! - Redirects are followed here, not by the client: each step is checked, and credentials go to nobody but the server they
//!   are for.
//! - Addresses of private networks are refused when a connection is made, so that no name can be made to lead there,
//!   see `address`.
//!
//! Nothing here knows what is in the files, or how large they may be.

mod address;
mod status;
mod symsrv;

use std::fmt;
use std::net::SocketAddr;
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

use self::symsrv::Tiers;
use crate::adapters::backoff::pause;
use crate::domain::{Cause, HttpSource, Location, Missing};
use crate::ports::{Download, ServerFailure, SymbolServers};

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
    /// Built when it is needed first: it takes time to read the root certificates, and a machine may have none.
    client: OnceLock<reqwest::Client>,
    allow_private: bool,
    tiers: Tiers,
}

impl HttpServers {
    /// Returns what connects to nothing yet; `allow_private` lets it connect to addresses of private networks and of this
    /// machine.
    pub fn new(allow_private: bool) -> Self {
        Self {
            client: OnceLock::new(),
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

    fn client(&self) -> Result<&reqwest::Client, Refusal> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        // A process has one; whoever set it before meant the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let names = CheckedNames {
            allow_private: self.allow_private,
        };
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(names))
            .build()
            .map_err(|error| {
                Refusal::forever(format!("no symbol server can be asked from here: {error}"))
            })?;
        Ok(self.client.get_or_init(|| client))
    }

    /// Puts a question once, in the way of the source.
    async fn find(&self, source: &HttpSource, location: &Location) -> Result<Response, Refusal> {
        let mut url = Url::parse(location.as_str())
            .map_err(|error| Refusal::forever(format!("{location} is not an address: {error}")))?;
        if !symsrv::is_asked_so(source) {
            return self.ask(source, &url).await;
        }
        let index2 = async {
            match self.ask(source, &symsrv::index2(source)).await {
                Ok(_) => Ok(true),
                Err(refusal) if refusal.missing.cause == Cause::NotFound => Ok(false),
                Err(refusal) => Err(refusal),
            }
        };
        if self.tiers.has_two(source, index2).await? {
            url = symsrv::in_two_tiers(source, &url);
        }
        let found = self.ask(source, &url).await?;
        if !symsrv::is_pointer(location) {
            return Ok(found);
        }
        let text = short_text(found, symsrv::MAX_POINTER_BYTES).await?;
        match symsrv::lead(&text, &url) {
            Ok(to) => self.ask(source, &to).await,
            Err((cause, detail)) => Err(Refusal {
                missing: Missing::new(cause, detail),
                retry: Retry::Never,
            }),
        }
    }

    /// Puts a question once, and follows where the answer leads. What the source is sent as its headers, nobody else is.
    async fn ask(&self, source: &HttpSource, begin: &Url) -> Result<Response, Refusal> {
        let mut url = begin.clone();
        for _ in 0..=MAX_REDIRECTS {
            self.check(&url)?;
            let mut headers = HeaderMap::new();
            // What is compressed on the way is longer than it says it is.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
            if url.origin() == source.url.origin() {
                headers.extend(source.headers.iter().filter_map(|(name, value)| {
                    Some((
                        name.parse::<HeaderName>().ok()?,
                        value.parse::<HeaderValue>().ok()?,
                    ))
                }));
            }
            let request = self.client()?.get(url.clone()).headers(headers);
            let response = request.send().await.map_err(|error| failed(&url, &error))?;
            if !response.status().is_redirection() {
                return status::judge(response, &url);
            }
            let next = response
                .headers()
                .get(LOCATION)
                .and_then(|next| next.to_str().ok());
            url = match next.map(|next| url.join(next)) {
                Some(Ok(next)) if matches!(next.scheme(), "http" | "https") => next,
                _ => {
                    let detail = format!("{url} answered {} without an address", response.status());
                    return Err(Refusal::now(Cause::DownloadFailed, detail));
                }
            };
        }
        Err(Refusal::forever(format!(
            "{begin} leads on more than {MAX_REDIRECTS} times"
        )))
    }

    /// Refuses addresses that need no name; the others are checked when they are looked up.
    fn check(&self, url: &Url) -> Result<(), Refusal> {
        let ip = match url.host() {
            Some(url::Host::Ipv4(ip)) => ip.into(),
            Some(url::Host::Ipv6(ip)) => ip.into(),
            _ => return Ok(()),
        };
        if self.allow_private || address::is_public(ip) {
            return Ok(());
        }
        let host = url.host_str().unwrap_or_default();
        Err(Refusal {
            missing: Missing::new(Cause::PermissionDenied, private(host)),
            retry: Retry::Never,
        })
    }
}

#[async_trait]
impl SymbolServers for HttpServers {
    async fn get(
        &self,
        source: &HttpSource,
        location: &Location,
    ) -> Result<Download, ServerFailure> {
        let mut attempts = 0;
        loop {
            let refusal = match self.find(source, location).await {
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
        }
    }

    fn forever(detail: String) -> Self {
        Self {
            missing: Missing::new(Cause::DownloadFailed, detail),
            retry: Retry::Never,
        }
    }
}

/// What stood between us and the server.
fn failed(url: &Url, error: &reqwest::Error) -> Refusal {
    let host = url.host_str().unwrap_or_default();
    let mut causes = String::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.downcast_ref::<OnlyPrivate>().is_some() {
            return Refusal {
                missing: Missing::new(Cause::PermissionDenied, private(host)),
                retry: Retry::Never,
            };
        }
        causes = format!("{causes}: {error}");
        cause = error.source();
    }
    if error.is_timeout() {
        // It had its time: two more attempts would take as long.
        return Refusal {
            missing: Missing::new(Cause::Timeout, format!("{host} did not answer in time")),
            retry: Retry::Never,
        };
    }
    Refusal::now(
        Cause::DownloadFailed,
        format!("{host} cannot be asked{causes}"),
    )
}

fn private(host: &str) -> String {
    format!(
        "{host} is in a private network, where sources may not be; the operator can set ALLOW_PRIVATE_SOURCES=1"
    )
}

/// Reads an answer that is to be short.
async fn short_text(mut answer: Response, limit: usize) -> Result<String, Refusal> {
    let url = answer.url().clone();
    let mut text = Vec::new();
    while let Some(bytes) = answer.chunk().await.map_err(|error| failed(&url, &error))? {
        text.extend_from_slice(&bytes);
        if text.len() > limit {
            let detail = format!("{url} has more than {limit} bytes");
            return Err(Refusal {
                missing: Missing::malformed(detail),
                retry: Retry::Never,
            });
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Turns a good answer into a download.
fn download(response: Response, location: &Location) -> Download {
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
            }
        })
    });
    Download {
        etag,
        size,
        body: body.boxed(),
    }
}

/// Looks up names, and passes over the addresses that may not be connected to.
#[derive(Debug)]
struct CheckedNames {
    allow_private: bool,
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
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let is_allowed = |found: &SocketAddr| allow_private || address::is_public(found.ip());
            let allowed: Vec<SocketAddr> = found.iter().copied().filter(is_allowed).collect();
            if allowed.is_empty() && !found.is_empty() {
                return Err(Box::new(OnlyPrivate) as Box<dyn std::error::Error + Send + Sync>);
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}
