//! Conversion of a function's result in payload format 2.0 to an HTTP response.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, SET_COOKIE};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A function's result in format 2.0.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FunctionResponse {
    #[serde(default, deserialize_with = "number")]
    status_code: Option<u16>,
    #[serde(default)]
    headers: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    cookies: Option<Vec<String>>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: Option<bool>,
}

/// Reads a number. A field without a value is not one that is absent.
fn number<'de, D: Deserializer<'de>>(field: D) -> Result<Option<u16>, D::Error> {
    u16::deserialize(field).map(Some)
}

/// Returns the response for a function's result. Valid JSON without a status code is itself the
/// body of a response with status 200.
pub(super) fn response(answer: &Bytes) -> Result<Answer, String> {
    // Parsed directly into its struct: a large body in a generic value would be copied twice.
    let parsed: FunctionResponse = match serde_json::from_slice(answer) {
        Ok(parsed) => parsed,
        Err(_) => {
            let value: Value = serde_json::from_slice(answer)
                .map_err(|error| format!("it is not JSON: {error}"))?;
            if value.get("statusCode").is_some() {
                return Err("its fields do not have the types of payload format 2.0".to_owned());
            }
            FunctionResponse::default()
        }
    };
    let Some(status_code) = parsed.status_code else {
        let mut response = Response::new(Full::new(answer.clone()));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Ok(response);
    };
    let status = StatusCode::from_u16(status_code)
        .ok()
        .filter(|status| !status.is_informational())
        .ok_or_else(|| format!("the status code {status_code} is invalid"))?;
    let body = parsed.body.unwrap_or_default();
    let body = if parsed.is_base64_encoded.unwrap_or(false) {
        Bytes::from(
            BASE64_STANDARD
                .decode(&body)
                .map_err(|error| format!("its body is not base64: {error}"))?,
        )
    } else {
        Bytes::from(body)
    };
    if body.len() > MAX_RESPONSE {
        return Err(format!(
            "its body has {} bytes, more than the maximum of {MAX_RESPONSE}",
            body.len()
        ));
    }
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in parsed.headers.unwrap_or_default() {
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            other => return Err(format!("the value of the header {name} is {other}")),
        };
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("{name:?} is not a header name"))?;
        if is_of_the_connection(&name) {
            continue;
        }
        let value = HeaderValue::from_str(&text)
            .map_err(|_| format!("the header {name} has the invalid value {text:?}"))?;
        headers.append(name, value);
    }
    for cookie in parsed.cookies.unwrap_or_default() {
        let value = HeaderValue::from_str(&cookie)
            .map_err(|_| format!("{cookie:?} is not a valid cookie"))?;
        headers.append(SET_COOKIE, value);
    }
    headers
        .entry(CONTENT_TYPE)
        .or_insert(HeaderValue::from_static("text/plain;charset=UTF-8"));
    Ok(response)
}

/// Returns whether a header belongs to the connection, so that a function cannot set it.
fn is_of_the_connection(name: &HeaderName) -> bool {
    [
        "connection",
        "content-length",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
    .contains(&name.as_str())
}

/// The maximum size of a response's body.
pub(super) const MAX_RESPONSE: usize = 6 * 1024 * 1024;

pub(super) type Answer = Response<Full<Bytes>>;

#[cfg(test)]
mod tests {
    use hyper::body::Body;

    use super::*;

    fn answer(json: &str) -> Result<Answer, String> {
        response(&Bytes::from(json.to_owned()))
    }

    #[test]
    fn an_answer_sets_status_headers_and_cookies() {
        let json = r#"{"statusCode":201,"headers":{"X-A":"b","X-N":7,"Connection":"close"},"cookies":["a=1","b=2"],"body":"hi"}"#;
        let response = answer(json).unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers()["x-a"], "b");
        assert_eq!(response.headers()["x-n"], "7");
        assert!(!response.headers().contains_key("connection"));
        assert_eq!(
            response.headers()["content-type"],
            "text/plain;charset=UTF-8"
        );
        assert_eq!(response.headers().get_all("set-cookie").iter().count(), 2);
    }

    #[test]
    fn json_without_a_status_is_the_body_of_a_200() {
        for json in [
            r#"{"hello":[1]}"#,
            r#"{"headers":5}"#,
            r#"{"body":"text"}"#,
            r#""text""#,
        ] {
            let response = answer(json).unwrap();
            assert_eq!(response.status(), 200, "{json}");
            assert_eq!(response.headers()["content-type"], "application/json");
            assert_eq!(response.body().size_hint().exact(), Some(json.len() as u64));
        }
        let null = answer(r#"{"statusCode":null,"body":"text"}"#);
        assert!(null.is_err(), "{null:?}");
    }

    #[test]
    fn results_that_are_no_response_are_reported_with_the_reason() {
        assert!(answer("nonsense").unwrap_err().contains("not JSON"));
        assert!(
            answer(r#"{"statusCode":42}"#)
                .unwrap_err()
                .contains("status code 42 is invalid")
        );
        assert!(
            answer(r#"{"statusCode":200,"body":5}"#)
                .unwrap_err()
                .contains("types")
        );
        let not_base64 = r#"{"statusCode":200,"body":"%%","isBase64Encoded":true}"#;
        assert!(answer(not_base64).unwrap_err().contains("not base64"));
        let long = format!(
            r#"{{"statusCode":200,"body":"{}"}}"#,
            "x".repeat(MAX_RESPONSE + 1)
        );
        assert!(answer(&long).unwrap_err().contains("more than"));
    }
}
