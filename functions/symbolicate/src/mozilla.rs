//! Mozilla's symbolication API: a body with jobs in, their results out.
//!
//! The protocol knows no `pending`, and no client of it would continue a request. So nothing of the
//! request is stored, and the client receives `Retry-After`.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use symdepot::api::limits;
use symdepot::api::mozilla::{self, JobResults, JobsError, TitledError};
use symdepot::api::symbolicator::{RETRY_AFTER_SECONDS, json_within};
use symdepot::flows::symbolicate::SymbolicateOutcome;

use crate::extract::{self, RequestContext, RequestQuery};
use crate::failure::Failure;
use crate::summary::{COMPLETED, PENDING};

/// The title of a response to a request whose files are not ready in time.
const NOT_READY: &str =
    "the debug files are being read: send the request again; GET /explain says what is awaited";

/// The title of a response to a request whose results are too large to be sent.
const TOO_LARGE: &str =
    "the results are too large for a response: send fewer stacks in a request, and accept gzip";

/// Serves `POST /symbolicate/v5`.
pub(crate) async fn symbolicate(
    call: RequestContext,
    RequestQuery(query): RequestQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let body = extract::read_body(body).await?;
    let jobs = match mozilla::parse_jobs(&body) {
        Ok(jobs) => jobs,
        Err(JobsError::TooLarge(error)) => return Err(error.into()),
        Err(error) => return Ok(titled(StatusCode::BAD_REQUEST, error.to_string())),
    };
    let id = call.invocation.uuid().to_string();
    let state = call.first_state(&id, &query).only();
    let answer = call.service.answer(&call.invocation, jobs.request(), state);
    match Box::pin(answer).await? {
        SymbolicateOutcome::Pending => {
            let later = [(header::RETRY_AFTER, RETRY_AFTER_SECONDS.to_string())];
            let response = titled(StatusCode::SERVICE_UNAVAILABLE, NOT_READY);
            Ok((Extension(PENDING), later, response).into_response())
        }
        SymbolicateOutcome::Completed(completed, stats) => {
            let response = sent(&jobs.results(&completed), accepts_gzip(&headers))?;
            Ok((Extension(COMPLETED), Extension(stats), response).into_response())
        }
    }
}

/// Returns the response with these results. Those that are too large for a response are compressed
/// if the client can read that; a redirect to a stored answer would lead a web page to another
/// origin, which does not let it read.
fn sent(results: &JobResults<'_>, accepts_gzip: bool) -> Result<Response, Failure> {
    let too_large = || titled(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE);
    let written = json_within(results, limits::ANSWER_BYTES).map_err(Failure::internal)?;
    let Some(written) = written else {
        return Ok(too_large());
    };
    let json = (header::CONTENT_TYPE, "application/json");
    let body = written.get();
    if body.len() <= limits::SENT_ANSWER_BYTES {
        return Ok(([json], body.to_owned()).into_response());
    }
    if accepts_gzip {
        let compressed = mozilla::gzip(body.as_bytes()).map_err(Failure::internal)?;
        if compressed.len() <= limits::SENT_ANSWER_BYTES {
            let gzip = (header::CONTENT_ENCODING, "gzip");
            return Ok(([json, gzip], compressed).into_response());
        }
    }
    Ok(too_large())
}

/// Returns an error response of the protocol.
fn titled(status: StatusCode, title: impl Into<String>) -> Response {
    let title = title.into();
    (status, Json(TitledError { title })).into_response()
}

/// Returns whether a client reads bodies that are compressed with gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    let accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|encoding| {
        let (name, quality) = encoding.split_once(';').unwrap_or((encoding, ""));
        name.trim().eq_ignore_ascii_case("gzip") && quality.trim() != "q=0"
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use symdepot::api::crash::form::decompressed;
    use symdepot::api::mozilla::{FunctionInFile, JobFrame, JobResult};

    use super::*;

    /// Returns results with a function of this name.
    fn results(function: &str) -> JobResults<'_> {
        let frame = JobFrame {
            frame: 0,
            module: "app",
            module_offset: "0x10".to_owned(),
            function: FunctionInFile {
                function: Some(function),
                ..FunctionInFile::default()
            },
            function_offset: None,
            inlines: Vec::new(),
        };
        let result = JobResult {
            stacks: vec![vec![frame]],
            found_modules: BTreeMap::new(),
            module_errors: BTreeMap::new(),
        };
        JobResults {
            results: vec![result],
        }
    }

    async fn body_of(response: Response) -> Vec<u8> {
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        body.unwrap().to_vec()
    }

    #[tokio::test]
    async fn results_that_are_too_large_to_be_sent_are_compressed_for_clients_that_read_that() {
        let small = sent(&results("f"), true).unwrap();
        assert!(!small.headers().contains_key(header::CONTENT_ENCODING));
        assert!(body_of(small).await.starts_with(b"{\"results\":"));

        let name = "f".repeat(limits::SENT_ANSWER_BYTES);
        let compressed = sent(&results(&name), true).unwrap();
        assert_eq!(compressed.status(), StatusCode::OK);
        assert_eq!(compressed.headers()[header::CONTENT_ENCODING], "gzip");
        let compressed = body_of(compressed).await;
        let body = decompressed("the answer", &compressed, limits::ANSWER_BYTES).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["results"][0]["stacks"][0][0]["function"], name);

        let refused = sent(&results(&name), false).unwrap();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let beyond = "f".repeat(limits::ANSWER_BYTES);
        let refused = sent(&results(&beyond), true).unwrap();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let body: TitledError = serde_json::from_slice(&body_of(refused).await).unwrap();
        assert_eq!(body.title, TOO_LARGE);
    }

    #[test]
    fn gzip_is_accepted_by_its_name_unless_its_quality_is_zero() {
        for (value, expected) in [
            ("gzip, deflate", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0, deflate", false),
            ("deflate", false),
            ("", false),
        ] {
            let value = value.parse().unwrap();
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]);
            assert_eq!(accepts_gzip(&headers), expected, "{headers:?}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
