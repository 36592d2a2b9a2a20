//! From the bytes of a body to a request, or to what is wrong with them.

use serde::de::IgnoredAny;
use serde_json::error::Category;

use super::{Request, RequestError};
use crate::api::limits;

/// Reads the body of `/symbolicate`.
///
/// The caller has bounded the length of the body: see [`limits::BODY_BYTES`].
///
/// # Errors
///
/// [`RequestError::Syntax`] where it is not JSON, [`RequestError::Schema`] where it is JSON of another shape,
/// [`RequestError::TooLarge`] where it has more of something than [`limits`] allows.
pub fn parse_request(body: &[u8]) -> Result<Request, RequestError> {
    // A struct may be read from a list of its values, which nobody means.
    let is_object = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    match serde_json::from_slice::<Request>(body) {
        Ok(request) if is_object => check_limits(&request).map(|()| request),
        _ => Err(explain(body)),
    }
}

/// Finds out what is wrong with a body, which may take several passes as it happens rarely.
fn explain(body: &[u8]) -> RequestError {
    // What is malformed further down counts more than what is wrong before it.
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(body) {
        return RequestError::Syntax { cause: error.to_string() };
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, Request>(&mut deserializer) {
        Ok(_) => RequestError::Schema { path: String::new(), cause: "a request is an object".to_owned() },
        Err(error) => {
            let path = error.path().to_string();
            let cause = error.into_inner();
            match cause.classify() {
                Category::Data => {
                    RequestError::Schema { path: if path == "." { String::new() } else { path }, cause: cause.to_string() }
                }
                Category::Syntax | Category::Eof | Category::Io => RequestError::Syntax { cause: cause.to_string() },
            }
        }
    }
}

/// Holds a request against the limits on numbers.
fn check_limits(request: &Request) -> Result<(), RequestError> {
    let frames = request.stacktraces.iter().map(|stacktrace| stacktrace.frames.len()).sum();
    let registers = request.stacktraces.iter().map(|stacktrace| stacktrace.registers.len()).max().unwrap_or_default();
    for (what, count, limit) in [
        ("stack traces", request.stacktraces.len(), limits::STACKTRACES),
        ("frames", frames, limits::FRAMES),
        ("modules", request.modules.len(), limits::MODULES),
        ("registers of one stack trace", registers, limits::REGISTERS),
    ] {
        if count > limit {
            return Err(RequestError::TooLarge { what, limit });
        }
    }
    Ok(())
}
