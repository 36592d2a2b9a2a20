//! The HTTP client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::{Method, RequestBuilder, StatusCode, redirect};
use serde::de::DeserializeOwned;
use symdepot::api::about::ServiceInfo;
use symdepot::api::symbolicator::ErrorBody;
use symdepot::domain::Scope;
use tokio::time::timeout;
use url::Url;

use crate::body::Body;
use crate::credentials::Signer;
use crate::error::{CliError, chain, root};
use crate::retry::{RetryReason, WaitLimit, retry_after};
use crate::settings::{Settings, TOKEN_VARIABLE, Token, shown};

/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time without a byte of a response after which its connection is broken.
const STALLED: Duration = Duration::from_secs(60);

/// What rustls says about a response that is not one of TLS.
const NOT_TLS: &str = "InvalidContentType";

/// What a service says about a token that it does not know if it needs none.
const NEEDS_NO_CREDENTIAL: &str = "needs no credential";

/// The maximum size of a response, in bytes. Those of the service have fewer.
const RESPONSE_BYTES: usize = 64 * 1024 * 1024;

const AGENT: &str = concat!("symdepot-cli/", env!("CARGO_PKG_VERSION"));

/// Returns an HTTP client that follows no redirects.
pub(crate) fn http_client() -> Result<reqwest::Client, CliError> {
    // A process has one provider. An error means that an earlier call installed the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .user_agent(AGENT)
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(redirect::Policy::none());
    builder
        .build()
        .map_err(|error| CliError::Settings(chain(&error)))
}

/// A client of one service.
#[derive(Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: Url,
    signer: Option<Signer>,
    token: Option<Token>,
    /// Whether the scope of the requests is the global one because none is set.
    assumes_global: bool,
    /// Whether the service has answered a request.
    has_answered: AtomicBool,
}

/// A request for JSON. It may be sent again: it changes nothing, or the same a second time. The one
/// exception is a crash file that was stored: the service removes it when it answers.
#[derive(Debug)]
pub(crate) struct JsonRequest<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) query: &'a [(&'a str, &'a str)],
    pub(crate) body: Body,
}

/// A response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    /// The time of the service, from the header `date`.
    pub(crate) date: Option<SystemTime>,
    /// Where the response is instead, from the header `location`.
    pub(crate) location: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    /// Returns a client; fails if requests have to be signed and there are no credentials. With an
    /// access token, they are not signed.
    pub(crate) async fn new(settings: &Settings) -> Result<Self, CliError> {
        let Some(token) = settings.token.clone() else {
            return Self::at(settings.url.clone()).await;
        };
        // The gateway routes requests by their path: below `/scope`, the service checks the token.
        let mut url = settings.url.clone();
        let scope = settings.scope.clone().unwrap_or_default();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["scope", scope.as_str()]);
        }
        let client = Self::with(url, None)?;
        Ok(Self {
            token: Some(token),
            assumes_global: settings.scope.is_none(),
            ..client
        })
    }

    /// Returns a client of the service at this address.
    pub(crate) async fn at(url: Url) -> Result<Self, CliError> {
        let signer = Signer::of(&url).await?;
        Self::with(url, signer)
    }

    /// Returns a client whose requests are signed.
    #[cfg(feature = "serve")]
    pub(crate) fn signed(url: Url, signer: Signer) -> Result<Self, CliError> {
        Self::with(url, Some(signer))
    }

    fn with(url: Url, signer: Option<Signer>) -> Result<Self, CliError> {
        let http = http_client()?;
        Ok(Self {
            http,
            url,
            signer,
            token: None,
            assumes_global: false,
            has_answered: AtomicBool::new(false),
        })
    }

    /// Returns what the service is; `None` if it does not say so, as Symbolicator does not.
    pub(crate) async fn about(&self) -> Result<Option<ServiceInfo>, CliError> {
        match self.json(Method::GET, "/about", &[], Vec::new()).await {
            Err(CliError::Unsupported { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Returns whether requests are signed.
    pub(crate) fn is_signed(&self) -> bool {
        self.signer.is_some()
    }

    /// Returns whether requests have an access token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the address of the service, for people.
    pub(crate) fn shown(&self) -> String {
        shown(&self.url)
    }

    /// Returns the address of a path with a query.
    fn address(&self, path: &str, query: &[(&str, &str)]) -> Url {
        let mut url = self.url.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}{path}"));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    /// Sends a request once, and returns the response, whatever its status is.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<HttpResponse, CliError> {
        let url = self.address(path, query);
        self.send_to(method, url, &Body::json(body)).await
    }

    /// Posts a body to the root of the host, whatever the path of the address is, and returns the
    /// response, whatever its status is.
    pub(crate) async fn post_to_root(&self, body: Body) -> Result<HttpResponse, CliError> {
        let mut url = self.url.clone();
        url.set_path("/");
        self.send_to(Method::POST, url, &body).await
    }

    /// Puts a body to the address itself, and returns the response, whatever its status is.
    #[cfg(feature = "serve")]
    pub(crate) async fn put(&self, body: Body) -> Result<HttpResponse, CliError> {
        self.send_to(Method::PUT, self.url.clone(), &body).await
    }

    async fn send_to(
        &self,
        method: Method,
        url: Url,
        body: &Body,
    ) -> Result<HttpResponse, CliError> {
        let request = self.request(method, url, body)?;
        let limit = WaitLimit::usual().request_timeout(body.bytes.len());
        self.receive(request, limit).await.map(|(answer, _)| answer)
    }

    /// Returns a request with its credential.
    fn request(&self, method: Method, url: Url, body: &Body) -> Result<RequestBuilder, CliError> {
        let mut request = self.http.request(method.clone(), url.clone());
        if let Some(token) = &self.token {
            request = request.header("authorization", token.header());
        }
        if let Some(signer) = &self.signer {
            let headers = signer.headers(method.as_str(), &url, body, SystemTime::now());
            let headers = headers.map_err(|cause| CliError::Credentials {
                host: url.host_str().unwrap_or_default().to_owned(),
                cause,
            })?;
            for (name, value) in headers {
                request = request.header(name, value);
            }
        }
        if !body.bytes.is_empty() {
            for (name, value) in &body.headers {
                request = request.header(*name, value);
            }
            request = request.body(body.bytes.clone());
        }
        Ok(request)
    }

    /// Sends a request, and returns the response, with the pause that it asks for. The response
    /// has to begin within the limit.
    async fn receive(
        &self,
        request: RequestBuilder,
        limit: Duration,
    ) -> Result<(HttpResponse, Option<Duration>), CliError> {
        let failed = |error: reqwest::Error| {
            // The URL of a stored response is a credential.
            let (url, is_connect) = (self.shown(), error.is_connect());
            let error = error.without_url();
            if is_connect {
                let cause = match root(&error) {
                    cause if self.url.scheme() == "https" && cause.contains(NOT_TLS) => {
                        "it does not speak TLS: use http:// instead of https://".to_owned()
                    }
                    cause => cause,
                };
                CliError::NoAnswer { url, cause }
            } else {
                CliError::Connection {
                    url,
                    cause: chain(&error),
                }
            }
        };
        let sent = timeout(limit, request.send()).await;
        let sent = sent.map_err(|_| CliError::NoAnswer {
            url: self.shown(),
            cause: format!("nothing came within {:.0} s", limit.as_secs_f64()),
        })?;
        let mut response = sent.map_err(failed)?;
        self.has_answered.store(true, Ordering::Relaxed);
        let status = response.status();
        let header = |name| {
            let value = response.headers().get(name)?;
            value.to_str().ok()
        };
        let date = header("date").and_then(|date| httpdate::parse_http_date(date).ok());
        let location = header("location").map(str::to_owned);
        let pause = header("retry-after").and_then(|it| retry_after(it, SystemTime::now()));
        let mut bytes = Vec::new();
        loop {
            let chunk = timeout(STALLED, response.chunk()).await;
            let chunk = chunk.map_err(|_| CliError::Connection {
                url: self.shown(),
                cause: format!("nothing of the response came for {} s", STALLED.as_secs()),
            })?;
            let Some(chunk) = chunk.map_err(failed)? else {
                break;
            };
            if bytes.len() + chunk.len() > RESPONSE_BYTES {
                return Err(CliError::Answer {
                    url: self.shown(),
                    cause: format!("it has more than {RESPONSE_BYTES} bytes"),
                });
            }
            bytes.extend_from_slice(&chunk);
        }
        let answer = HttpResponse {
            status,
            date,
            location,
            body: bytes,
        };
        Ok((answer, pause))
    }

    /// Sends a request and returns the JSON of a successful response.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<T, CliError> {
        let request = JsonRequest {
            method,
            path,
            query,
            body: Body::json(body),
        };
        self.request_json(&request, &WaitLimit::usual()).await
    }

    /// Posts a body and returns the JSON of a successful response.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: Body,
    ) -> Result<T, CliError> {
        let request = JsonRequest {
            method: Method::POST,
            path,
            query,
            body,
        };
        self.request_json(&request, &WaitLimit::usual()).await
    }

    /// Sends a request, again if the service is busy or the connection breaks, and returns the JSON
    /// of a successful response. A large response of the service is stored, and read there without
    /// credentials.
    pub(crate) async fn request_json<T: DeserializeOwned>(
        &self,
        request: &JsonRequest<'_>,
        limit: &WaitLimit,
    ) -> Result<T, CliError> {
        let JsonRequest {
            method,
            path,
            query,
            body,
        } = request;
        let url = self.address(path, query);
        let request = || self.request(method.clone(), url.clone(), body);
        let mut answer = self.receive_with_retries(limit, body, request).await?;
        if answer.status == StatusCode::SEE_OTHER
            && let Some(location) = answer.location.take()
        {
            let (limit, nothing) = (WaitLimit::usual(), Body::json(Vec::new()));
            let request = || Ok(self.http.get(&location));
            answer = self.receive_with_retries(&limit, &nothing, request).await?;
        }
        if !answer.status.is_success() {
            let refusal = self.with_scope_remedy(self.refused(path, &answer));
            return Err(with_address_remedy(refusal, &answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| CliError::Answer {
            url: self.shown(),
            cause: error.to_string(),
        })
    }

    /// Sends a request, again if another attempt may succeed, and returns the last response.
    async fn receive_with_retries(
        &self,
        limit: &WaitLimit,
        body: &Body,
        request: impl Fn() -> Result<RequestBuilder, CliError>,
    ) -> Result<HttpResponse, CliError> {
        let attempt = async || {
            let received = match request() {
                Ok(request) => {
                    let timeout = limit.request_timeout(body.bytes.len());
                    self.receive(request, timeout).await
                }
                Err(error) => Err(error),
            };
            let reason = self.retry_reason_of(&received);
            (received, reason)
        };
        let received = limit.repeat(attempt).await;
        received.map(|(answer, _)| answer)
    }

    /// Returns why an attempt failed, if another one may succeed. A service that has never answered
    /// does not run, or its address is wrong.
    fn retry_reason_of(
        &self,
        received: &Result<(HttpResponse, Option<Duration>), CliError>,
    ) -> Option<RetryReason> {
        match received {
            Ok((answer, pause)) if is_of_a_moment(answer) => Some(RetryReason::Busy(*pause)),
            Err(CliError::Connection { .. }) => Some(RetryReason::Broken),
            Err(CliError::NoAnswer { .. }) if self.has_answered.load(Ordering::Relaxed) => {
                Some(RetryReason::Broken)
            }
            _ => None,
        }
    }

    /// Returns what to do about a request whose credential was refused for this cause.
    fn token_remedy(&self, cause: &str) -> String {
        if self.has_token() && cause.contains(NEEDS_NO_CREDENTIAL) {
            format!("remove the access token from {TOKEN_VARIABLE} or config.toml")
        } else if self.has_token() {
            format!(
                "the access token in {TOKEN_VARIABLE} or in config.toml is not valid: set another one"
            )
        } else {
            format!("set {TOKEN_VARIABLE}, or `token` in config.toml, to an access token")
        }
    }

    /// Adds to a refusal that the scope may be the wrong one, if the user has not chosen it.
    fn with_scope_remedy(&self, error: CliError) -> CliError {
        match error {
            CliError::Forbidden { url, cause } if self.assumes_global => CliError::Forbidden {
                url,
                cause: format!(
                    "{cause}; no scope is set, so this program asks in `{}`: pass the scope of the token with --scope, or set SYMDEPOT_SCOPE",
                    Scope::Global
                ),
            },
            error => error,
        }
    }

    /// Returns the error for a response that is not a success.
    pub(crate) fn refused(&self, path: &str, answer: &HttpResponse) -> CliError {
        let url = self.shown();
        let body = serde_json::from_slice::<ErrorBody>(&answer.body).ok();
        // A 404 of the service itself lists its routes or says what is missing.
        let no_route = body
            .as_ref()
            .is_none_or(|body| body.detail.starts_with("no such route"));
        let cause = match &body {
            Some(body) if body.causes.is_empty() => body.detail.clone(),
            Some(body) => format!("{}: {}", body.detail, body.causes.join(": ")),
            None => message_of_gateway(&answer.body).unwrap_or_else(|| first_line(&answer.body)),
        };
        match answer.status {
            StatusCode::UNAUTHORIZED => CliError::Unauthorized {
                url,
                remedy: self.token_remedy(&cause),
                cause,
            },
            StatusCode::FORBIDDEN => CliError::Forbidden { url, cause },
            StatusCode::NOT_FOUND if no_route => CliError::Unsupported {
                url,
                path: path.to_owned(),
            },
            status => CliError::Status {
                url,
                status: status.as_u16(),
                cause,
            },
        }
    }
}

/// Returns whether the service takes no more requests at the moment, or its gateway reports that a
/// function has ended or has not answered, which another attempt may not meet. An error of the
/// service itself has another body, and is final.
fn is_of_a_moment(answer: &HttpResponse) -> bool {
    match answer.status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::GATEWAY_TIMEOUT => message_of_gateway(&answer.body).is_some(),
        _ => false,
    }
}

/// Returns the message in a response of API Gateway: `{"message": …}`.
fn message_of_gateway(body: &[u8]) -> Option<String> {
    let body = serde_json::from_slice::<serde_json::Value>(body).ok()?;
    let message = body.get("message")?.as_str()?;
    Some(message.to_owned())
}

/// Returns the first line of a response, which may be the page of another web server.
fn first_line(body: &[u8]) -> String {
    const SHOWN: usize = 300;
    let text = String::from_utf8_lossy(body);
    let line = text.lines().find(|line| !line.trim().is_empty());
    match line {
        Some(line) => line.trim().chars().take(SHOWN).collect(),
        None => "it says nothing".to_owned(),
    }
}

/// Adds to a refusal that is neither of the service nor of its gateway how to check the address.
fn with_address_remedy(error: CliError, answer: &HttpResponse) -> CliError {
    let is_of_service = message_of_gateway(&answer.body).is_some()
        || serde_json::from_slice::<ErrorBody>(&answer.body).is_ok();
    match error {
        CliError::Status { url, status, cause } if !is_of_service => CliError::Status {
            url,
            status,
            cause: format!(
                "{cause}; this is no answer of symdepot: `symdepot doctor` checks the address"
            ),
        },
        error => error,
    }
}
