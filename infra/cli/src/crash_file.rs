//! Minidumps and Apple's crash reports, which the service reads itself: each is sent as a form,
//! with the file, or with a reference to where it was stored.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use symdepot::api::about::ServiceInfo;
use symdepot::api::limits::BODY_BYTES;
use symdepot::api::report::CrashReport;
use symdepot::api::symbolicator::{Completed, Options};
use symdepot::debuginfo;

use crate::attachment;
use crate::body::Body;
use crate::client::Client;
use crate::error::CliError;
use crate::files::Opened;
use crate::waiting::Waiting;

/// The maximum size of a crash file in a request, in bytes after decompression (docs/api.md, Crash
/// files).
const SENT_BYTES: u64 = 64 * 1024 * 1024;

/// How much crash files are compressed: a little, as people wait for it.
const ZSTD_LEVEL: i32 = 3;

/// The name in `GET /about` of storing files before a request.
const ATTACHMENTS: &str = "attachments";

/// The share of the limit of a body that a form may have: API Gateway passes binary bodies to
/// functions in base64, which has four characters for three bytes.
const BASE64: (usize, usize) = (3, 4);

/// Where a kind of crash file is sent.
struct Route {
    path: &'static str,
    /// The name in `GET /about`.
    feature: &'static str,
    /// The part of the form that has the file.
    part: &'static str,
    /// What the service reads there, for people.
    what: &'static str,
}

/// A crash file to send.
pub(crate) enum CrashFile {
    /// It is read when it is sent.
    Minidump(Opened),
    /// Its bytes, and what they say: the addresses of the response are not those of the report.
    Apple(Vec<u8>, Box<CrashReport>),
}

impl CrashFile {
    /// Reads one of Apple's crash reports.
    pub(crate) fn apple(path: &Path, bytes: &[u8]) -> Result<Self, CliError> {
        debuginfo::keep_panics_quiet();
        let report = debuginfo::caught(|| CrashReport::of_apple(bytes));
        let report = report.map_err(|cause| unreadable(path, &cause))?;
        let report = report.map_err(|error| unreadable(path, &error))?;
        Ok(Self::Apple(bytes.to_owned(), Box::new(report)))
    }

    fn route(&self) -> Route {
        match self {
            Self::Minidump(_) => Route {
                path: "/minidump",
                feature: "minidump",
                part: "upload_file_minidump",
                what: "minidumps",
            },
            Self::Apple(..) => Route {
                path: "/applecrashreport",
                feature: "applecrashreport",
                part: "apple_crash_report",
                what: "crash reports of Apple's systems",
            },
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Minidump(opened) => opened.bytes,
            Self::Apple(bytes, _) => bytes.len() as u64,
        }
    }

    /// Returns the compressed file; `None` if it is too large for a request, however small it may
    /// become.
    fn packed(&self) -> io::Result<Option<Vec<u8>>> {
        if self.bytes() > SENT_BYTES {
            return Ok(None);
        }
        let packed = match self {
            Self::Minidump(opened) => zstd::encode_all(&*opened.head(SENT_BYTES)?, ZSTD_LEVEL),
            Self::Apple(bytes, _) => zstd::encode_all(&**bytes, ZSTD_LEVEL),
        };
        packed.map(Some)
    }

    /// Returns the report in the file, given the response to it.
    fn report(&self, completed: &Completed) -> CrashReport {
        match self {
            Self::Minidump(_) => CrashReport::of_minidump(completed),
            Self::Apple(_, report) => (**report).clone(),
        }
    }
}

/// Sends a crash file, and returns it as a report, with the response; `None` if the response is
/// still pending after the time to wait.
pub(crate) async fn symbolicate(
    client: &Client,
    waiting: &Waiting<'_>,
    path: &Path,
    file: &CrashFile,
) -> Result<Option<(CrashReport, Completed)>, CliError> {
    let route = file.route();
    let about = client.about().await?;
    // Other services do not say what they can do. A 404 does.
    if let Some(about) = &about
        && !about.features.iter().any(|it| it == route.feature)
    {
        return Err(CliError::OlderService {
            url: client.shown(),
            version: about.version.clone(),
            what: route.what,
        });
    }
    let form = async || form_of(client, waiting, path, file, about.as_ref()).await;
    let FileForm { body, is_stored } = form().await?;
    let completed = match waiting.completed(route.path, body).await {
        // The service removes a stored file when it answers, and that answer may have been lost.
        Err(CliError::Status { status: 404, .. }) if is_stored => {
            let FileForm { body, .. } = form().await?;
            waiting.completed(route.path, body).await?
        }
        completed => completed?,
    };
    Ok(completed.map(|completed| (file.report(&completed), completed)))
}

/// A form with a crash file.
struct FileForm {
    body: Body,
    /// Whether the file was stored before, and the form refers to it.
    is_stored: bool,
}

/// Returns the form with a file, or with a reference to the file, which is stored first: a file of
/// more than 64 MiB, and what does not fit into a request when it is compressed.
async fn form_of(
    client: &Client,
    waiting: &Waiting<'_>,
    path: &Path,
    file: &CrashFile,
    about: Option<&ServiceInfo>,
) -> Result<FileForm, CliError> {
    let options = Options {
        apply_source_context: false,
        ..Options::default()
    };
    let options = serde_json::to_vec(&options).map_err(|error| unreadable(path, &error))?;
    let limit = about.map_or(BODY_BYTES, |about| about.limits.body_bytes);
    let packed = file.packed().map_err(|error| unreadable(path, &error))?;
    let sent = packed.as_ref().map(|packed| {
        let part = file.route().part;
        form(&[(part, packed), ("options", &options)])
    });
    let can_store = about.is_some_and(|about| about.features.iter().any(|it| it == ATTACHMENTS));
    // What the service cannot store is sent whole if it may fit.
    let most = if can_store {
        limit / BASE64.1 * BASE64.0
    } else {
        limit
    };
    let too_large = |bytes: u64, how, limit: u64| CliError::TooLargeToSend {
        path: path.to_owned(),
        bytes,
        how,
        url: client.shown(),
        limit,
    };
    match sent {
        Some(body) if body.bytes.len() <= most => {
            return Ok(FileForm {
                body,
                is_stored: false,
            });
        }
        _ if can_store => {}
        Some(body) => {
            let bytes = body.bytes.len() as u64;
            return Err(too_large(bytes, " when it is compressed", limit as u64));
        }
        None => return Err(too_large(file.bytes(), "", SENT_BYTES)),
    }
    let storage_url = match file {
        // The service reads parts of a minidump, which it cannot do if it is compressed.
        CrashFile::Minidump(opened) => {
            attachment::store(client, waiting.scope(), path, opened).await?
        }
        CrashFile::Apple(bytes, _) => {
            let stored = in_a_file(packed.as_ref().unwrap_or(bytes));
            let stored = stored.map_err(|error| unreadable(path, &error))?;
            attachment::store(client, waiting.scope(), path, &stored).await?
        }
    };
    let parts: [(&str, &[u8]); 2] = [
        ("storage_url", storage_url.as_bytes()),
        ("options", &options),
    ];
    Ok(FileForm {
        body: form(&parts),
        is_stored: true,
    })
}

/// Writes bytes to a temporary file without a name.
fn in_a_file(bytes: &[u8]) -> io::Result<Opened> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(Opened {
        file,
        bytes: bytes.len() as u64,
    })
}

fn unreadable(path: &Path, cause: &impl ToString) -> CliError {
    CliError::Unreadable {
        path: path.to_owned(),
        cause: cause.to_string(),
    }
}

/// Returns a form with these parts (RFC 7578).
fn form(parts: &[(&str, &[u8])]) -> Body {
    let boundary = boundary(parts);
    let mut bytes = Vec::new();
    for (name, content) in parts {
        let head =
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n");
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(content);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    Body::of_type(format!("multipart/form-data; boundary={boundary}"), bytes)
}

/// Returns a boundary that is in none of the parts.
fn boundary(parts: &[(&str, &[u8])]) -> String {
    let contains = |content: &[u8], boundary: &str| {
        let mut windows = content.windows(boundary.len());
        windows.any(|window| window == boundary.as_bytes())
    };
    let mut number = 0;
    loop {
        let boundary = format!("symdepot-boundary-{number:08}");
        if !parts
            .iter()
            .any(|(_, content)| contains(content, &boundary))
        {
            return boundary;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_a_boundary_that_its_parts_do_not_have() {
        let content = b"--symdepot-boundary-00000000\r\nsymdepot-boundary-00000001";
        let body = form(&[("file", content), ("options", b"{}")]);
        let boundary = "symdepot-boundary-00000002";
        let content_type = format!("multipart/form-data; boundary={boundary}");
        assert_eq!(body.headers, [("content-type", content_type)]);
        let text = String::from_utf8(body.bytes).unwrap();
        assert_eq!(text.matches(boundary).count(), 3, "{text}");
        assert!(text.contains("name=\"options\"\r\n\r\n{}\r\n--"));
    }
}
