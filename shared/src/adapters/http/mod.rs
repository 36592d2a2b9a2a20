//! Symbol servers, and files that requests refer to (`remote_files`), over HTTP.
//!
//! - The status of a response decides: 401 and 403 are refusals; 404 and the other client errors,
//!   except 408 and 429, mean that the file is absent, unless it is a bucket that is; everything
//!   else is a temporary failure of the server. Failures on the way to the server (name resolution,
//!   connection, certificate) are temporary failures as well.
//! - Redirects are followed here, not by the HTTP client. Each step is checked, and credentials are
//!   sent only to the server that they belong to. Redirects from https to http are refused.
//! - Connections lead to the global internet. Only a configured source with `is_private` may be in
//!   a private network, at its own origin; redirects and pointers that leave the origin may not
//!   lead there. Addresses are checked when a connection is made, so that no name can resolve to
//!   another network afterwards, see `address`.
//! - Sources that requests define share no connections, neither with configured sources nor with
//!   each other: each of their requests opens its own connection.
//! - Only failures of a server as a whole count against it ([`Concerns`]): its own address cannot
//!   be reached, or the server itself asks for a back-off.
//! - Large files are received in several ranges at a time, see `ranges`.
//! - Details name hosts and paths. Queries, headers and bodies may contain secrets and are left
//!   out.
//!
//! This module knows neither the content of the files nor their size limits.

mod attempts;
mod clients;
mod collector;
mod download;
mod file_urls;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
mod ranges;
mod reach;
mod remote_files;
mod sentry;
mod short;
mod status;
mod symsrv;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT,
};
use reqwest::{Method, Request, Response, StatusCode, Url};

use self::attempts::{Answer, Attempts, FailingSources, failed, place, private};
use self::clients::HttpClients;
pub use self::clients::TimeLimits;
pub(super) use self::clients::client;
pub use self::collector::HttpCollector;
use self::download::download;
use self::file_urls::FileAddress;
use self::reach::Reach;
pub use self::remote_files::HttpRemoteFiles;
pub(super) use self::short::bytes_within;
use self::status::{Refusal, Retry};
use self::symsrv::{Folders, Tiers};
use crate::domain::{
    Access, Cause, FileType, GcsCredentials, HttpSource, Location, Missing, S3Credentials, S3Keys,
    SourceKey,
};
use crate::ports::{
    AwsRoles, Concerns, FileQuery, IncomingDif, ListQuery, RoleError, ServerFailure, SymbolServers,
};

/// How long a file is not requested again after a role could not be used.
const RETRY_ROLE_AFTER: Duration = Duration::from_secs(60);

/// The most redirects to follow.
const MAX_REDIRECTS: usize = 5;

/// The header with the checksum of the requested file. NuGet's symbol server requires it: "Symbol
/// server", <https://github.com/dotnet/symstore>, "SSQP Key Conventions".
const SYMBOL_CHECKSUM: HeaderName = HeaderName::from_static("symbolchecksum");

/// The value of the `User-Agent` header.
const AGENT: &str = concat!("symdepot/", env!("CARGO_PKG_VERSION"));

/// Fetches DIFs from symbol servers.
#[derive(Debug)]
pub struct HttpServers {
    clients: HttpClients,
    limits: TimeLimits,
    /// Gives the credentials of the roles of configured sources.
    roles: Option<Arc<dyn AwsRoles>>,
    allow_private: bool,
    tiers: Tiers,
    failing: FailingSources,
    /// Returns the time since 1970, for signatures.
    now: fn() -> Duration,
}

/// The source of a request.
#[derive(Clone, Copy)]
struct ServerQuery<'a> {
    key: &'a SourceKey,
    source: &'a HttpSource,
    /// The checksum of the requested file, as the crash names it.
    checksum: Option<&'a str>,
}

impl ServerQuery<'_> {
    /// Returns whether an address has the source's own origin. Of a host that is linked to, a part
    /// may have credentials of its own.
    fn owns(self, url: &Url) -> bool {
        match &self.source.access {
            Access::Links { .. } => self.source.is_above(url),
            _ => url.origin() == file_urls::own(self.source).origin(),
        }
    }

    /// Returns the networks that a connection to this address may reach.
    fn reach(self, url: &Url) -> Reach {
        let is_private = self.source.is_private && !self.key.is_defined();
        if !is_private || !self.owns(url) {
            return Reach::Public;
        }
        let is_local = match file_urls::own(self.source).host() {
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(url::Host::Ipv4(ip)) => reach::is_local(ip.into()),
            Some(url::Host::Ipv6(ip)) => reach::is_local(ip.into()),
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
    /// Returns servers without connections. `allow_private` lets every source, redirect and pointer
    /// lead to any address: for the local stack, where tests serve files on loopback.
    pub fn new(allow_private: bool) -> Self {
        Self {
            clients: HttpClients::default(),
            limits: TimeLimits::default(),
            roles: None,
            allow_private,
            tiers: Tiers::default(),
            failing: FailingSources::default(),
            now: || Duration::ZERO,
        }
    }

    /// Signs requests by the wall clock, and makes cached knowledge about servers expire by it as
    /// well; `wall_clock` returns the time since 1970. Without it, signatures are not valid.
    #[must_use]
    pub fn with_wall_clock(self, wall_clock: fn() -> Duration) -> Self {
        Self {
            tiers: Tiers::by_wall_clock(wall_clock),
            now: wall_clock,
            ..self
        }
    }

    /// Sets the time limits.
    #[must_use]
    pub fn with_time_limits(self, limits: TimeLimits) -> Self {
        Self { limits, ..self }
    }

    /// Uses the credentials of these roles for configured sources that name one.
    #[must_use]
    pub fn with_roles(self, roles: Arc<dyn AwsRoles>) -> Self {
        let roles = Some(roles);
        Self { roles, ..self }
    }

    /// Returns the keys that requests to a bucket of S3 are signed with, if they are signed.
    ///
    /// A source that a request defines never uses a role: its sender would read what the operator's
    /// role can read.
    async fn keys(&self, asked: ServerQuery<'_>) -> Result<Option<S3Keys>, Refusal> {
        let Access::S3(access) = &asked.source.access else {
            return Ok(None);
        };
        let role = match &access.credentials {
            S3Credentials::Anonymous => return Ok(None),
            S3Credentials::Keys(keys) => return Ok(Some(keys.clone())),
            S3Credentials::Role(role) => role,
        };
        let roles = match &self.roles {
            Some(roles) if !asked.key.is_defined() => roles,
            _ => {
                return Err(Refusal::forever(
                    "no role may be used for the source".to_owned(),
                ));
            }
        };
        let keys = roles.credentials(role).await;
        keys.map(Some).map_err(|error| match error {
            RoleError::Denied(detail) => Refusal {
                missing: Missing::new(Cause::PermissionDenied, detail),
                retry: Retry::After(RETRY_ROLE_AFTER),
                concerns: Concerns::Location,
            },
            RoleError::Failed(detail) => Refusal::forever(detail),
        })
    }

    /// Limits the time until a response begins.
    async fn in_time<T>(
        &self,
        source: &HttpSource,
        answer: impl Future<Output = Result<T, ServerFailure>>,
    ) -> Result<T, ServerFailure> {
        let answered = tokio::time::timeout(self.limits.answer, answer).await;
        answered.unwrap_or_else(|_| {
            let own = file_urls::own(source);
            let host = own.host_str().unwrap_or_default();
            let seconds = self.limits.answer.as_secs_f64();
            let detail = format!("{host} did not answer within {seconds} s");
            Err(ServerFailure {
                missing: Missing::new(Cause::Timeout, detail),
                retry_after: None,
                concerns: Concerns::Location,
            })
        })
    }

    /// Requests a file once, by the protocol of the source.
    async fn find(&self, query: FileQuery<'_>) -> Result<Answer, Refusal> {
        let FileQuery {
            key,
            source,
            location,
            checksum,
        } = query;
        let asked = ServerQuery {
            key,
            source,
            checksum,
        };
        // Locations come from messages, whose senders are trusted less than the configuration of
        // sources.
        let mut url = Url::parse(location.as_str())
            .ok()
            .filter(|url| source.is_above(url))
            .ok_or_else(|| {
                let id = &source.id;
                Refusal::forever(format!(
                    "the location is not below the address of source {id}"
                ))
            })?;
        if !symsrv::is_symsrv(source) {
            return self.ask(asked, &url).await;
        }
        let folders = self.tiers.of(asked.key, self.probe_tiers(asked)).await?;
        if folders == Folders::TwoTiers {
            url = symsrv::in_two_tiers(source, &url);
        }
        let mut found = self.ask(asked, &url).await;
        let is_absent = |refusal: &Refusal| refusal.missing.cause == Cause::NotFound;
        // Some servers refuse what is absent.
        let is_refused = |refusal: &Refusal| refusal.missing.cause == Cause::PermissionDenied;
        let is_unsure = |refusal: &Refusal| is_absent(refusal) || is_refused(refusal);
        if folders == Folders::Unknown && found.as_ref().is_err_and(is_unsure) {
            let deeper = symsrv::in_two_tiers(source, &url);
            let second = self.ask(asked, &deeper).await;
            // A refusal in one tier says more than an absence in two.
            if second.is_ok() || found.as_ref().is_err_and(is_absent) {
                (url, found) = (deeper, second);
            }
        }
        let found = found?;
        if !symsrv::is_pointer(location) {
            return Ok(found);
        }
        let text = short_text(found.response, symsrv::MAX_POINTER_BYTES).await?;
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

    /// Requests the file that marks a server with two tiers of folders.
    ///
    /// A refusal means one tier: without the right to list a bucket, S3 refuses files that do not
    /// exist. Any other failure of this request alone, or a web page, leaves the question open, so
    /// that the source can be used nevertheless. Only a server that cannot be called now is a
    /// failure.
    async fn probe_tiers(&self, asked: ServerQuery<'_>) -> Result<Folders, Refusal> {
        let refusal = match self.ask(asked, &symsrv::index2(asked.source)).await {
            Ok(found) => return Ok(symsrv::folders_of(found.response).await),
            Err(refusal) => refusal,
        };
        let Missing { cause, detail } = &refusal.missing;
        let is_later = matches!(refusal.retry, Retry::After(_));
        if refusal.concerns == Concerns::Server || is_later {
            let detail = format!("{detail} (index2.txt)");
            let missing = Missing::new(*cause, detail);
            return Err(Refusal { missing, ..refusal });
        }
        Ok(match cause {
            Cause::NotFound | Cause::PermissionDenied => Folders::OneTier,
            _ => Folders::Unknown,
        })
    }

    /// Requests a listing once.
    async fn list_once(&self, query: ListQuery<'_>) -> Result<Vec<(FileType, Location)>, Refusal> {
        let Access::Sentry { api } = &query.source.access else {
            return Ok(Vec::new());
        };
        let asked = ServerQuery {
            key: query.key,
            source: query.source,
            checksum: None,
        };
        let answer = self.follow(asked, sentry::listing(api, query)).await?;
        let text = short_text(answer.response, sentry::MAX_LISTING_BYTES).await?;
        sentry::files(&query.source.url, &text).map_err(Refusal::forever)
    }

    /// Sends a request once and follows redirects. The headers and the query of the source are sent
    /// to the source only.
    async fn ask(&self, asked: ServerQuery<'_>, begin: &Url) -> Result<Answer, Refusal> {
        let source = asked.source;
        let address = if source.is_above(begin) {
            let keys = self.keys(asked).await?;
            file_urls::of(source, begin, keys.as_ref(), (self.now)()).map_err(Refusal::forever)?
        } else {
            // The target of a pointer.
            FileAddress {
                sent: begin.clone(),
                shown: begin.clone(),
            }
        };
        self.follow(asked, address).await
    }

    /// Sends a request to an address and follows redirects. In a redirect, the server chooses the
    /// query.
    async fn follow(
        &self,
        asked: ServerQuery<'_>,
        address: FileAddress,
    ) -> Result<Answer, Refusal> {
        let source = asked.source;
        let begin = address.shown.clone();
        let FileAddress {
            mut sent,
            shown: mut url,
        } = address;
        for _ in 0..=MAX_REDIRECTS {
            let reach = if self.allow_private {
                Reach::Everything
            } else {
                asked.reach(&url)
            };
            check(&url, reach)?;
            let is_own = asked.owns(&url);
            let client = self
                .clients
                .get(reach, asked.key.is_defined(), self.limits)?;
            let mut request = Request::new(Method::GET, sent);
            *request.headers_mut() = headers(asked, is_own);
            let again = request.try_clone().expect("it has no body");
            let response = client
                .execute(request)
                .await
                .map_err(|error| failed(&url, is_own, &error))?;
            if !response.status().is_redirection() {
                let is_of_bucket =
                    is_own && matches!(source.access, Access::S3(_) | Access::Gcs(_));
                if is_of_bucket && response.status() == StatusCode::NOT_FOUND {
                    return Err(status::absent_in_bucket(response, &url, source).await);
                }
                let judged = status::judge(response, &url, is_own);
                let response = judged.map_err(|refusal| match source.access {
                    Access::S3(_) if is_own => with_hint(refusal),
                    _ => refusal,
                })?;
                return Ok(Answer {
                    response,
                    client: client.clone(),
                    request: again,
                });
            }
            let next = response
                .headers()
                .get(LOCATION)
                .and_then(|next| next.to_str().ok());
            let next = match next.map(|next| url.join(next)) {
                Some(Ok(next)) if matches!(next.scheme(), "http" | "https") => next,
                _ => {
                    let status = response.status();
                    let detail = format!(
                        "{} answered {status} without a valid Location header",
                        place(&url)
                    );
                    return Err(Refusal::now(Cause::DownloadFailed, detail));
                }
            };
            stays_secure(&url, &next)?;
            if status::is_login_page(&url, &next) {
                return Err(Refusal::denied(format!(
                    "{} redirects to {}, which is probably a page to log in",
                    place(&url),
                    place(&next)
                )));
            }
            sent = next.clone();
            url = next;
        }
        Err(Refusal::forever(format!(
            "{} redirects more than {MAX_REDIRECTS} times",
            place(&begin)
        )))
    }
}

/// Returns the headers of a request; those for the source are included only if `is_own`.
fn headers(asked: ServerQuery<'_>, is_own: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    if is_own {
        let checksum = asked.checksum.and_then(|checksum| checksum.parse().ok());
        if let Some(checksum) = checksum {
            headers.insert(SYMBOL_CHECKSUM, checksum);
        }
        if let Access::Gcs(GcsCredentials::Token(token)) = &asked.source.access
            && let Ok(mut value) = format!("Bearer {token}").parse::<HeaderValue>()
        {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        for (name, value) in &asked.source.headers {
            if let (Ok(name), Ok(mut value)) =
                (name.parse::<HeaderName>(), value.parse::<HeaderValue>())
            {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
    }
    // Compression in transit would hide the size of the file. The client decodes the response of a
    // server that compresses nevertheless: gzip, deflate, Brotli and zstd.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}

/// Adds the reasons why S3 may refuse a request besides a missing `s3:GetObject`: the file does not
/// exist, or the credentials may not use its key. Source: Amazon S3 API Reference, "GetObject",
/// "Permissions".
fn with_hint(mut refusal: Refusal) -> Refusal {
    if refusal.missing.cause == Cause::PermissionDenied {
        refusal.missing.explain(
            "; S3 also answers this for a file that does not exist, if the credentials lack `s3:ListBucket`, \
             and for one that a KMS key encrypts, if they lack `kms:Decrypt`",
        );
    }
    refusal
}

/// Refuses IP addresses outside of the reach. Host names are checked when they are resolved.
fn check(url: &Url, reach: Reach) -> Result<(), Refusal> {
    let ip: IpAddr = match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.into(),
        Some(url::Host::Ipv6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    if reach.allows(ip) {
        Ok(())
    } else {
        Err(private(url))
    }
}

/// Refuses to continue over http after https.
fn stays_secure(from: &Url, to: &Url) -> Result<(), Refusal> {
    match (from.scheme(), to.scheme()) {
        ("https", "http") => Err(Refusal::forever(format!(
            "{} redirects from https to http, at {}",
            place(from),
            place(to)
        ))),
        _ => Ok(()),
    }
}

#[async_trait]
impl SymbolServers for HttpServers {
    async fn get(&self, query: FileQuery<'_>) -> Result<IncomingDif, ServerFailure> {
        let found = async {
            let mut attempts = self.failing.attempts(query.key);
            loop {
                match self.find(query).await {
                    Ok(answer) => return Ok(download(answer, query.location, self.limits.silence)),
                    Err(refusal) => attempts.pause_after(refusal).await?,
                }
            }
        };
        let found = Box::pin(self.in_time(query.source, found)).await;
        self.failing.note(query.key, found.as_ref().err());
        found
    }

    async fn list(&self, query: ListQuery<'_>) -> Result<Vec<(FileType, Location)>, ServerFailure> {
        let listed = async {
            let mut attempts = Attempts::default();
            loop {
                match self.list_once(query).await {
                    Ok(files) => return Ok(files),
                    Err(refusal) => attempts.pause_after(refusal).await?,
                }
            }
        };
        self.in_time(query.source, listed).await
    }
}

/// Reads a response that is at most `limit` bytes long.
async fn short_text(answer: Response, limit: usize) -> Result<String, Refusal> {
    let url = answer.url().clone();
    let text = bytes_within(answer, limit).await;
    match text.map_err(|error| failed(&url, false, &error))? {
        Some(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        None => {
            let detail = format!("{} is longer than {limit} bytes", place(&url));
            Err(Refusal {
                missing: Missing::malformed(detail),
                retry: Retry::Never,
                concerns: Concerns::Location,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn a_redirect_from_https_to_http_is_not_followed_and_its_error_hides_the_query() {
        let (secure, clear) = (
            url("https://x.test/a?t=sesame"),
            url("http://y.test/b?t=sesame"),
        );
        let refused = stays_secure(&secure, &clear).unwrap_err();
        assert_eq!(
            refused.missing,
            Missing::new(
                Cause::DownloadFailed,
                "x.test/a redirects from https to http, at y.test/b"
            )
        );
        for (from, to) in [(&secure, &secure), (&clear, &secure), (&clear, &clear)] {
            assert!(stays_secure(from, to).is_ok(), "{from} {to}");
        }
    }

    #[test]
    fn credentials_are_sent_to_the_source_itself_and_marked_as_sensitive() {
        let json = r#"{"type": "http", "id": "a", "url": "https://x.test", "headers": {"Authorization": "sesame",
            "User-Agent": "us"}}"#;
        let source: HttpSource = serde_json::from_str(json).unwrap();
        let key = source.configured_key();
        let asked = ServerQuery {
            key: &key,
            source: &source,
            checksum: Some("SHA256:00"),
        };
        let own = headers(asked, true);
        assert_eq!(own["SymbolChecksum"], "SHA256:00");
        assert!(own["authorization"].is_sensitive());
        assert_eq!(own["authorization"], "sesame");
        assert_eq!(own[USER_AGENT], "us");
        assert!(!format!("{own:?}").contains("sesame"), "{own:?}");
        assert_eq!(own[ACCEPT_ENCODING], "identity");
        let other = headers(asked, false);
        assert!(!other.contains_key("authorization") && !other.contains_key("SymbolChecksum"));
    }

    #[test]
    fn a_connection_reaches_only_the_networks_that_its_source_allows() {
        let reach = |base: &str, is_private, is_defined, to: &str| {
            let json = serde_json::json!({"type": "http", "id": "a", "url": base, "is_private": is_private});
            let source: HttpSource = serde_json::from_value(json).unwrap();
            let key = if is_defined {
                source.defined_key("1".to_owned())
            } else {
                source.configured_key()
            };
            ServerQuery {
                key: &key,
                source: &source,
                checksum: None,
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
