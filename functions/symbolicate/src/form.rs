//! The form that a crash file is sent in.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use symdepot::api::crash::any::FileReference;
use symdepot::api::crash::apple;
use symdepot::api::crash::attachment::STORAGE_URL_BYTES;
use symdepot::api::crash::form::{CrashFields, PART_BYTES, PARTS_BYTES, decompressed};
use symdepot::api::limits;
use symdepot::api::symbolicator::RequestError;
use symdepot::flows::minidump::DUMP_BYTES;

use crate::extract::read_body;
use crate::failure::Failure;

/// The part of a form that has the file.
pub(crate) struct FilePart {
    name: &'static str,
    /// What the form lacks without it.
    missing: &'static str,
    /// The maximum size of the file, in bytes after decompression.
    limit: usize,
}

pub(crate) const APPLE_REPORT: FilePart = FilePart {
    name: "apple_crash_report",
    missing: "missing apple crash report",
    limit: apple::REPORT_BYTES,
};

pub(crate) const MINIDUMP: FilePart = FilePart {
    name: "upload_file_minidump",
    missing: "missing minidump",
    limit: DUMP_BYTES,
};

/// The part of a form that refers to a file in another place, and the part with its token.
const STORAGE_URL: &str = "storage_url";
const STORAGE_TOKEN: &str = "storage_token";

/// A form: a file, and how it is symbolicated.
pub(crate) struct CrashForm {
    pub(crate) file: SentFile,
    pub(crate) fields: CrashFields,
}

/// A file, as a request has it.
pub(crate) enum SentFile {
    /// In the request; decompressed.
    Inline(Bytes),
    /// In another place.
    Referenced(FileReference),
}

impl CrashForm {
    /// Reads a form whose body and file may be compressed.
    pub(crate) async fn read(request: Request, part: &FilePart) -> Result<Self, Failure> {
        let mut form = OpenForm::of(request, part.limit + PARTS_BYTES).await?;
        let (mut file, mut url, mut token) = (None, None, None);
        let (mut fields, mut set) = (CrashFields::default(), BTreeSet::new());
        while let Some(field) = form.next_part().await? {
            let name = field.name().unwrap_or_default().to_owned();
            let is_repeated = if name == part.name {
                let sent = content(field, part.name, limits::BODY_BYTES + part.limit).await?;
                let content = decompressed(part.name, &sent, part.limit)?;
                file.replace(content.into_owned()).is_some()
            } else if name == STORAGE_URL {
                url.replace(text(field, STORAGE_URL).await?).is_some()
            } else if name == STORAGE_TOKEN {
                token.replace(text(field, STORAGE_TOKEN).await?).is_some()
            } else if let Some(known) = CrashFields::NAMES.iter().find(|known| **known == name) {
                fields.set(known, &content(field, known, PART_BYTES).await?)?;
                !set.insert(known)
            } else {
                false
            };
            if is_repeated {
                let detail = format!("the part {name} is given more than once");
                return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
            }
        }
        let is_empty = file.as_ref().is_some_and(Vec::is_empty);
        let file = file.filter(|file| !file.is_empty());
        let file = match (file, url) {
            (Some(file), None) => SentFile::Inline(file.into()),
            (None, Some(storage_url)) => SentFile::Referenced(FileReference {
                storage_url,
                storage_token: token,
            }),
            (Some(_), Some(_)) => {
                let detail = format!("send either {} or {STORAGE_URL}", part.name);
                return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
            }
            (None, None) => {
                let FilePart { name, missing, .. } = part;
                let detail = if is_empty {
                    format!("{missing}: the part {name} is empty")
                } else {
                    format!("{missing}: send it as the part {name}, or its place as {STORAGE_URL}")
                };
                return Err(Failure::new(StatusCode::BAD_REQUEST, detail));
            }
        };
        Ok(Self { file, fields })
    }
}

/// A form whose parts are read one after the other.
struct OpenForm {
    parts: Multipart,
    /// The encoding that the header names, if it is not one in which forms may be compressed.
    encoding: Option<String>,
}

impl OpenForm {
    /// Reads the body of a request, which may have `limit` bytes when it is decompressed.
    async fn of(request: Request, limit: usize) -> Result<Self, Failure> {
        let (parts, body) = request.into_parts();
        let encoding = unsupported_encoding(&parts.headers);
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let is_form = content_type.is_some_and(|value| {
            let essence = value.split(';').next().unwrap_or_default();
            essence.trim().eq_ignore_ascii_case("multipart/form-data")
        });
        if !is_form {
            let detail = "send the file as multipart/form-data";
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let body = read_body(body).await?;
        let body = decompressed("the body", &body, limit)?.into_owned();
        let mut request = Request::from_parts(parts, Body::from(body));
        // The body is limited already.
        DefaultBodyLimit::disable().apply(&mut request);
        match Multipart::from_request(request, &()).await {
            Ok(parts) => Ok(Self { parts, encoding }),
            Err(rejection) => Err(explained(bad_form(rejection), encoding.as_deref())),
        }
    }

    async fn next_part(&mut self) -> Result<Option<Field<'_>>, Failure> {
        let part = self.parts.next_field().await;
        part.map_err(|error| explained(bad_part(error), self.encoding.as_deref()))
    }
}

/// Explains a body that is no form by its encoding. The header may remain after a proxy has decoded
/// the body, so it alone refuses none.
fn explained(failure: Failure, encoding: Option<&str>) -> Failure {
    match encoding {
        Some(encoding) => Failure::new(
            StatusCode::BAD_REQUEST,
            format!(
                "the body is compressed with {encoding}, which is not supported: send it uncompressed, or compressed with gzip or zstd"
            ),
        ),
        None => failure,
    }
}

/// Returns the encoding of a body, if it is not one in which forms may be compressed.
fn unsupported_encoding(headers: &HeaderMap) -> Option<String> {
    let encoding = headers.get(header::CONTENT_ENCODING)?.to_str().ok()?.trim();
    let is_supported = ["", "identity", "gzip", "x-gzip", "zstd"]
        .iter()
        .any(|supported| encoding.eq_ignore_ascii_case(supported));
    (!is_supported).then(|| encoding.to_owned())
}

/// Reads a part of a form.
async fn content(
    mut field: Field<'_>,
    what: &'static str,
    limit: usize,
) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    while let Some(chunk) = field.chunk().await.map_err(bad_part)? {
        if content.len() + chunk.len() > limit {
            return Err(RequestError::TooLong { what, limit }.into());
        }
        content.extend_from_slice(&chunk);
    }
    Ok(content)
}

/// Reads a short part of a form that is plain text.
async fn text(field: Field<'_>, what: &'static str) -> Result<String, Failure> {
    let content = content(field, what, STORAGE_URL_BYTES).await?;
    let text = String::from_utf8(content).map_err(|_| RequestError::Part {
        name: what.to_owned(),
        cause: "it is not UTF-8".to_owned(),
    })?;
    Ok(text.trim().to_owned())
}

fn bad_form(rejection: MultipartRejection) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, rejection.body_text())
}

fn bad_part(error: MultipartError) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, error.body_text())
}

/// Entry points for fuzzing. The fuzz targets are in `tests/fuzz`.
#[cfg(any(test, feature = "testing"))]
pub mod hostile {
    use super::{Body, CrashForm, FilePart, MINIDUMP, SentFile, header};

    /// The maximum size of the file, so that each input is fast.
    const FILE_BYTES: usize = 1 << 20;

    /// Takes the first line of bytes as a content type, and the others as a body of that type.
    /// Panics if the form could do harm.
    pub fn multipart(bytes: &[u8]) {
        let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
        let content_type = lines.next().unwrap_or_default();
        let body = lines.next().unwrap_or_default().to_vec();
        let request = axum::http::Request::post("/minidump")
            .header(header::CONTENT_TYPE, content_type)
            .body(Body::from(body));
        let Ok(request) = request else {
            return;
        };
        let part = FilePart {
            limit: FILE_BYTES,
            ..MINIDUMP
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime starts");
        match runtime.block_on(CrashForm::read(request, &part)) {
            Ok(CrashForm { file, fields }) => {
                assert!(fields.checked().is_ok(), "the parts have no limits");
                if let SentFile::Inline(file) = file {
                    assert!((1..=FILE_BYTES).contains(&file.len()), "{}", file.len());
                }
            }
            Err(failure) => assert!(failure.status().is_client_error(), "{failure:?}"),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_seeds_of_the_fuzz_target_cause_no_panic() {
            let seeds = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../tests/fuzz/seeds/multipart"
            );
            let mut read = 0;
            for seed in std::fs::read_dir(seeds).unwrap() {
                multipart(&std::fs::read(seed.unwrap().path()).unwrap());
                read += 1;
            }
            assert!(read >= 4, "{read} seeds");
        }
    }
}
