//! Minidumps and Apple's crash reports, which the service reads itself: each is sent as a form,
//! with the file, or with a reference to where it was stored.

use std::path::Path;

use bytes::Bytes;
use symdepot::api::limits::BODY_BYTES;
use symdepot::api::report::{CrashFileKind, CrashReport};
use symdepot::api::symbolicator::{Completed, Options};
use symdepot::debuginfo;

use crate::attachment;
use crate::body::Body;
use crate::client::Client;
use crate::error::CliError;
use crate::waiting::Waiting;

/// The maximum size of a crash file, in bytes. It is held in memory; the service may accept less.
pub(crate) const FILE_BYTES: usize = 512 * 1024 * 1024;

/// The maximum size of a crash file in a request, in bytes after decompression (docs/api.md, Crash
/// files).
const SENT_BYTES: usize = 64 * 1024 * 1024;

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

fn route(kind: CrashFileKind) -> Route {
    match kind {
        CrashFileKind::Minidump => Route {
            path: "/minidump",
            feature: "minidump",
            part: "upload_file_minidump",
            what: "minidumps",
        },
        CrashFileKind::Apple => Route {
            path: "/applecrashreport",
            feature: "applecrashreport",
            part: "apple_crash_report",
            what: "crash reports of Apple's systems",
        },
    }
}

/// Sends a crash file, and returns it as a report, with the response; `None` if the response is
/// still pending after the time to wait.
pub(crate) async fn symbolicate(
    client: &Client,
    waiting: &Waiting<'_>,
    path: &Path,
    (kind, file): (CrashFileKind, Bytes),
) -> Result<Option<(CrashReport, Completed)>, CliError> {
    let route = route(kind);
    // The addresses as the report has them, which are not those of the response.
    let report = match kind {
        CrashFileKind::Minidump => None,
        CrashFileKind::Apple => Some(read_apple(path, &file)?),
    };
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
    let can_store = about.as_ref().is_some_and(|about| {
        let mut features = about.features.iter();
        features.any(|it| it == ATTACHMENTS)
    });
    let limit = about.map_or(BODY_BYTES, |about| about.limits.body_bytes);
    let options = Options {
        apply_source_context: false,
        ..Options::default()
    };
    let options = serde_json::to_vec(&options).map_err(|error| unreadable(path, &error))?;
    let packed = zstd::encode_all(&*file, ZSTD_LEVEL).map_err(|error| unreadable(path, &error))?;
    let mut body = form(&[(route.part, &packed), ("options", &options)]);
    let is_large = body.bytes.len() > limit / BASE64.1 * BASE64.0 || file.len() > SENT_BYTES;
    if can_store && is_large {
        // The service reads parts of a minidump, which it cannot do if it is compressed.
        let stored = match kind {
            CrashFileKind::Minidump => file,
            CrashFileKind::Apple => packed.into(),
        };
        let storage_url = attachment::store(client, waiting.scope(), path, stored).await?;
        body = form(&[
            ("storage_url", storage_url.as_bytes()),
            ("options", &options),
        ]);
    } else if body.bytes.len() > limit {
        return Err(CliError::TooLargeToSend {
            path: path.to_owned(),
            bytes: body.bytes.len(),
            url: client.shown(),
            limit,
        });
    }
    let completed = waiting.completed(route.path, body).await?;
    Ok(completed.map(|completed| {
        let report = report.unwrap_or_else(|| CrashReport::of_minidump(&completed));
        (report, completed)
    }))
}

fn read_apple(path: &Path, file: &[u8]) -> Result<CrashReport, CliError> {
    debuginfo::keep_panics_quiet();
    let report = debuginfo::caught(|| CrashReport::of_apple(file));
    let report = report.map_err(|cause| unreadable(path, &cause))?;
    report.map_err(|error| unreadable(path, &error))
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
