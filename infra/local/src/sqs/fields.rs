//! Fields that several operations have.

use serde_json::Value;

use super::error::SqsError;
use crate::identity::{ACCOUNT, REGION};

/// Returns a text of a request.
pub(super) fn text<'a>(input: &'a Value, name: &str) -> Result<&'a str, SqsError> {
    input[name].as_str().ok_or_else(|| {
        SqsError::new(
            "MissingParameter",
            format!("the request must contain the string {name}"),
        )
    })
}

/// Returns the ARN of a queue.
pub(super) fn arn(name: &str) -> String {
    format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")
}
