//! Interprets the status of a response.

use std::time::Duration;

use reqwest::header::{DATE, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};

use super::bytes_within;
use crate::domain::{Cause, HttpSource, Missing};
use crate::ports::Concerns;

/// The longest back-off that a server can request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// The maximum size of an error of a bucket that is read, in bytes.
const MAX_ERROR_BYTES: usize = 16 << 10;

/// Returns a successful response, or the refusal that the status stands for.
///
/// `is_own` says whether the source itself responded: only its own request for a back-off concerns
/// the whole server.
pub(super) fn judge(response: Response, url: &Url, is_own: bool) -> Result<Response, Refusal> {
    let status = response.status();
    if status == StatusCode::OK {
        return Ok(response);
    }
    let header = |name| {
        let value = response.headers().get(name)?;
        value.to_str().ok()
    };
    let retry_after = header(RETRY_AFTER).and_then(|value| back_off(value, header(DATE)));
    Err(refusal(status, retry_after, url, is_own))
}

/// Parses `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date. A date is compared with the
/// date of the response, so that the clocks need not agree; without the latter it is ignored.
fn back_off(value: &str, date: Option<&str>) -> Option<Duration> {
    let wanted = match value.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = httpdate::parse_http_date(value.trim()).ok()?;
            let now = httpdate::parse_http_date(date?.trim()).ok()?;
            until.duration_since(now).unwrap_or_default()
        }
    };
    Some(wanted.min(MAX_RETRY_AFTER))
}

fn refusal(status: StatusCode, retry_after: Option<Duration>, url: &Url, is_own: bool) -> Refusal {
    let host = url.host_str().unwrap_or_default();
    let (cause, retry) = match (status, retry_after) {
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
            (Cause::PermissionDenied, Retry::Never)
        }
        (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS, None) => {
            (Cause::DownloadFailed, Retry::Soon)
        }
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(after)) => {
            (Cause::DownloadFailed, Retry::After(after))
        }
        // Azure DevOps answers 203 with a page to log in.
        (StatusCode::NON_AUTHORITATIVE_INFORMATION, _) => (Cause::PermissionDenied, Retry::Never),
        _ if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT => {
            (Cause::NotFound, Retry::Never)
        }
        _ => (Cause::DownloadFailed, Retry::Soon),
    };
    let wants_back_off =
        status == StatusCode::TOO_MANY_REQUESTS || matches!(retry, Retry::After(_));
    Refusal {
        missing: Missing::new(cause, format!("{host} answered {status}")),
        retry,
        concerns: if is_own && wants_back_off {
            Concerns::Server
        } else {
            Concerns::Location
        },
    }
}

/// Returns the refusal that a 404 of a source's bucket stands for. Its body says whether the file
/// or the bucket does not exist: a misspelled bucket would look like one that has no file of any
/// module. Sources: Amazon S3 API Reference, "Error responses"; Google Cloud Storage, "HTTP status
/// and error codes for XML".
pub(super) async fn absent_in_bucket(
    response: Response,
    url: &Url,
    source: &HttpSource,
) -> Refusal {
    let absent = refusal(response.status(), None, url, true);
    let body = bytes_within(response, MAX_ERROR_BYTES).await;
    let body = body.ok().flatten().unwrap_or_default();
    if !String::from_utf8_lossy(&body).contains("<Code>NoSuchBucket</Code>") {
        return absent;
    }
    let bucket = source.url.host_str().unwrap_or_default();
    let detail = absent.missing.detail;
    Refusal::forever(format!("{detail}: the bucket {bucket} does not exist"))
}

/// Returns whether a redirect probably leads to a page to log in: it ends in a path of that name
/// although the requested file does not. Servers of source code answer so in place of a refusal.
pub(super) fn is_login_page(from: &Url, to: &Url) -> bool {
    const PAGES: [&str; 7] = [
        "login", "log_in", "log-in", "signin", "_signin", "sign_in", "sign-in",
    ];
    let name = |url: &Url| {
        let segments = url.path_segments()?;
        let last = segments.rev().find(|segment| !segment.is_empty())?;
        Some(last.to_ascii_lowercase())
    };
    let to = name(to);
    to != name(from) && to.is_some_and(|to| PAGES.contains(&to.as_str()))
}

/// Why a request did not return a file.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) missing: Missing,
    pub(super) retry: Retry,
    pub(super) concerns: Concerns,
}

/// Whether to retry.
#[derive(Debug)]
pub(super) enum Retry {
    /// After a short pause.
    Soon,
    /// Not now: the server says when.
    After(Duration),
    /// Never: the result would be the same.
    Never,
}

impl Refusal {
    pub(super) fn now(cause: Cause, detail: String) -> Self {
        Self {
            missing: Missing::new(cause, detail),
            retry: Retry::Soon,
            concerns: Concerns::Location,
        }
    }

    /// The server, or a rule of this client, does not permit the request.
    pub(super) fn denied(detail: String) -> Self {
        Self {
            missing: Missing::new(Cause::PermissionDenied, detail),
            retry: Retry::Never,
            concerns: Concerns::Location,
        }
    }

    pub(super) fn forever(detail: String) -> Self {
        Self {
            missing: Missing::new(Cause::DownloadFailed, detail),
            retry: Retry::Never,
            concerns: Concerns::Location,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_absent_only_if_the_server_says_so() {
        let url = Url::parse("http://symbols.test/a").unwrap();
        let judged = |status: u16, retry_after: Option<&str>| {
            let status = StatusCode::from_u16(status).unwrap();
            let refusal = refusal(
                status,
                retry_after.and_then(|value| back_off(value, None)),
                &url,
                true,
            );
            let retry = match refusal.retry {
                Retry::Soon => "soon".to_owned(),
                Retry::After(time) => format!("after {} s", time.as_secs()),
                Retry::Never => "never".to_owned(),
            };
            (refusal.missing.cause, retry)
        };
        let is = |cause, retry: &str| (cause, retry.to_owned());
        assert_eq!(judged(404, None), is(Cause::NotFound, "never"));
        assert_eq!(judged(410, None), is(Cause::NotFound, "never"));
        assert_eq!(judged(401, None), is(Cause::PermissionDenied, "never"));
        assert_eq!(judged(403, None), is(Cause::PermissionDenied, "never"));
        assert_eq!(judged(203, None), is(Cause::PermissionDenied, "never"));
        assert_eq!(judged(408, Some("5")), is(Cause::DownloadFailed, "soon"));
        assert_eq!(judged(429, None), is(Cause::DownloadFailed, "soon"));
        assert_eq!(
            judged(429, Some("7")),
            is(Cause::DownloadFailed, "after 7 s")
        );
        assert_eq!(
            judged(503, Some("999999")),
            is(Cause::DownloadFailed, "after 3600 s")
        );
        assert_eq!(
            judged(503, Some("Fri, 31 Dec 1999 23:59:59 GMT")),
            is(Cause::DownloadFailed, "soon")
        );
        assert_eq!(judged(500, Some("5")), is(Cause::DownloadFailed, "soon"));
        assert_eq!(judged(204, None), is(Cause::DownloadFailed, "soon"));
    }

    #[test]
    fn a_date_is_compared_with_the_date_of_the_response() {
        let until = "Fri, 31 Dec 1999 23:59:59 GMT";
        let at = |date: &str| back_off(until, Some(date)).map(|pause| pause.as_secs());
        assert_eq!(at("Fri, 31 Dec 1999 23:59:29 GMT"), Some(30));
        assert_eq!(at("Sat, 01 Jan 2000 00:00:09 GMT"), Some(0));
        assert_eq!(at("Fri, 31 Dec 1999 00:00:00 GMT"), Some(3600));
        assert_eq!(at("yesterday"), None);
        assert_eq!(back_off(until, None), None);
        assert_eq!(back_off("soon", Some(until)), None);
    }

    #[test]
    fn only_a_pause_that_the_source_itself_requests_applies_to_all() {
        let url = Url::parse("http://symbols.test/a").unwrap();
        let concerns = |status: u16, retry_after: Option<&str>, is_own| {
            let status = StatusCode::from_u16(status).unwrap();
            let retry_after = retry_after.and_then(|value| back_off(value, None));
            refusal(status, retry_after, &url, is_own).concerns
        };
        for (status, retry_after) in [(429, None), (429, Some("7")), (503, Some("7"))] {
            assert_eq!(concerns(status, retry_after, true), Concerns::Server);
            assert_eq!(concerns(status, retry_after, false), Concerns::Location);
        }
        for (status, retry_after) in [(500, None), (500, Some("7")), (503, None), (404, None)] {
            assert_eq!(concerns(status, retry_after, true), Concerns::Location);
        }
    }
}
