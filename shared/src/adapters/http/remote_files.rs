//! Files that requests refer to, on hosts that the operator allows.
//!
//! - The hosts may be in private networks, because the operator names them; a name that leads to
//!   this machine or its metadata service is refused all the same. Nothing is ever requested from
//!   another host: a redirect is an error. Which hosts are allowed, over https or http, was checked
//!   when the address was parsed (`StorageUrl`).
//! - A file that its host stores compressed, and sends with a `Content-Encoding`, is read as it is
//!   stored: ranges count its compressed bytes. A reader of gzip or zstd notices that by its first
//!   bytes. Other encodings are refused.
//! - Errors name the host only, because paths and queries may be secret.

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_RANGE, HeaderValue, RANGE,
};
use reqwest::{Response, StatusCode, Url};

use super::attempts::{MAX_ATTEMPTS, failed};
use super::reach::Reach;
use super::status::Refusal;
use super::{AGENT, HttpClients, TimeLimits, bytes_within, check};
use crate::adapters::backoff::pause;
use crate::domain::Cause;
use crate::ports::{RemoteFailure, RemoteFile, RemoteFiles, RemotePart};

/// Reads files from other hosts.
#[derive(Debug)]
pub struct HttpRemoteFiles {
    clients: HttpClients,
    allow_private: bool,
}

impl HttpRemoteFiles {
    /// Returns a reader without connections. `allow_private` lets files be at any address: for the
    /// local stack, where tests serve files on loopback.
    pub fn new(allow_private: bool) -> Self {
        Self {
            clients: HttpClients::of_raw_bodies(),
            allow_private,
        }
    }

    async fn ask(&self, file: &RemoteFile, range: &Range<u64>) -> Result<Response, RemoteFailure> {
        let RemoteFile { url, token } = file;
        let reach = if self.allow_private {
            Reach::Everything
        } else {
            Reach::Private
        };
        check(url, reach).map_err(refused)?;
        let client = self.clients.get(reach, true, TimeLimits::default());
        let client = client.map_err(refused)?;
        let last = range.end.saturating_sub(1);
        let mut request = client
            .get(url.clone())
            .header(reqwest::header::USER_AGENT, AGENT)
            .header(ACCEPT_ENCODING, "identity")
            .header(RANGE, format!("bytes={}-{last}", range.start));
        if let Some(token) = token {
            let bearer = HeaderValue::try_from(format!("Bearer {token}"));
            let mut bearer = bearer.map_err(|_| {
                RemoteFailure::Absent("the storage_token is not a valid header".to_owned())
            })?;
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        let response = request.send().await;
        let response = response.map_err(|error| refused(failed(url, true, &error)))?;
        judged(response, url)
    }

    async fn read_once(
        &self,
        file: &RemoteFile,
        range: &Range<u64>,
        most: u64,
    ) -> Result<RemotePart, RemoteFailure> {
        let response = self.ask(file, range).await?;
        let url = &file.url;
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let (part, length) = content_range(&response).ok_or_else(|| {
                let detail = format!("{} answered without a valid Content-Range", host(url));
                RemoteFailure::Unreachable(detail)
            })?;
            if part.start != range.start {
                let detail = format!(
                    "{} answered with another range than the requested one",
                    host(url)
                );
                return Err(RemoteFailure::Absent(detail));
            }
            let most = range.end - range.start;
            let bytes = body(response, url, most).await?;
            return Ok(RemotePart {
                start: part.start,
                bytes,
                length,
            });
        }
        let bytes = body(response, url, most).await?;
        Ok(RemotePart {
            start: 0,
            length: bytes.len() as u64,
            bytes,
        })
    }
}

#[async_trait]
impl RemoteFiles for HttpRemoteFiles {
    async fn read(
        &self,
        file: &RemoteFile,
        range: Range<u64>,
        most: u64,
    ) -> Result<RemotePart, RemoteFailure> {
        let mut attempts = 0;
        loop {
            match self.read_once(file, &range, most).await {
                Err(RemoteFailure::Unreachable(_)) if attempts + 1 < MAX_ATTEMPTS => {
                    attempts += 1;
                    pause(attempts).await;
                }
                read => return read,
            }
        }
    }
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

fn refused(refusal: Refusal) -> RemoteFailure {
    match refusal.missing.cause {
        Cause::PermissionDenied | Cause::NotFound => RemoteFailure::Absent(refusal.missing.detail),
        _ => RemoteFailure::Unreachable(refusal.missing.detail),
    }
}

/// Returns a response that has a file, or the failure that its status stands for.
fn judged(response: Response, url: &Url) -> Result<Response, RemoteFailure> {
    let (status, host) = (response.status(), host(url));
    match status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => match unreadable_encoding(&response) {
            None => Ok(response),
            Some(encoding) => Err(RemoteFailure::Absent(format!(
                "{host} sent the file with the Content-Encoding {encoding}: only gzip and zstd are \
                 supported"
            ))),
        },
        _ if status.is_redirection() => {
            let detail = format!("{host} redirects, and redirects of attachments are not followed");
            Err(RemoteFailure::Absent(detail))
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(
            RemoteFailure::Unreachable(format!("{host} answered {status}")),
        ),
        _ if status.is_client_error() => {
            Err(RemoteFailure::Absent(format!("{host} answered {status}")))
        }
        _ => Err(RemoteFailure::Unreachable(format!(
            "{host} answered {status}"
        ))),
    }
}

/// Returns the encoding of a body that nothing here decodes. What some stores add, such as
/// `aws-chunked`, does not change the bytes: these tell whether they can be read.
fn unreadable_encoding(response: &Response) -> Option<&str> {
    const UNREADABLE: [&str; 4] = ["br", "deflate", "compress", "x-compress"];
    let headers = response.headers().get_all(CONTENT_ENCODING).into_iter();
    let lists = headers.filter_map(|header| header.to_str().ok());
    let mut encodings = lists.flat_map(|list| list.split(',')).map(str::trim);
    encodings.find(|encoding| {
        let mut unreadable = UNREADABLE.iter();
        unreadable.any(|known| known.eq_ignore_ascii_case(encoding))
    })
}

/// Parses `Content-Range` (RFC 9110, section 14.4): the range of the part, which lies in the file,
/// and the length of the file.
fn content_range(response: &Response) -> Option<(Range<u64>, u64)> {
    parse_content_range(response.headers().get(CONTENT_RANGE)?.to_str().ok()?)
}

fn parse_content_range(value: &str) -> Option<(Range<u64>, u64)> {
    let (range, length) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
    let length: u64 = length.parse().ok()?;
    (start <= last && last < length).then(|| (start..last + 1, length))
}

/// Reads a body of at most this many bytes.
async fn body(response: Response, url: &Url, most: u64) -> Result<Bytes, RemoteFailure> {
    let too_long = || {
        let detail = format!(
            "{} sent more than {most} bytes: it must support range requests for larger files",
            host(url)
        );
        RemoteFailure::Absent(detail)
    };
    if response
        .content_length()
        .is_some_and(|length| length > most)
    {
        return Err(too_long());
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let bytes = bytes_within(response, most).await;
    let bytes = bytes.map_err(|error| refused(failed(url, false, &error)))?;
    bytes.map(Bytes::from).ok_or_else(too_long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_has_the_range_of_the_part_and_the_length_of_the_file() {
        assert_eq!(parse_content_range("bytes 5-9/100"), Some((5..10, 100)));
        assert_eq!(parse_content_range("bytes 0-9/10"), Some((0..10, 10)));
        for invalid in [
            "",
            "bytes */100",
            "bytes 5-9/*",
            "items 5-9/100",
            "bytes 5/100",
            "bytes 9-5/100",
            "bytes 5-10/10",
            "bytes 5-18446744073709551615/100",
        ] {
            assert_eq!(parse_content_range(invalid), None, "{invalid}");
        }
    }

    #[tokio::test]
    async fn no_address_of_this_machine_is_requested() {
        for address in [
            "http://127.0.0.1/a",
            "http://169.254.169.254/latest/meta-data/",
            "https://127.0.0.1/a",
            "https://[::1]/a",
            "https://169.254.169.254/latest/meta-data/",
            "https://[fd00:ec2::254]/latest/meta-data/",
            "https://0.0.0.0/a",
        ] {
            let file = RemoteFile {
                url: address.parse().unwrap(),
                token: None,
            };
            let read = HttpRemoteFiles::new(false).read(&file, 0..10, 10).await;
            assert!(
                matches!(read, Err(RemoteFailure::Absent(_))),
                "{address} {read:?}"
            );
        }
    }
}
