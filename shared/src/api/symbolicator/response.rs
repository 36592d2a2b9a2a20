//! The responses of `/symbolicate` and `/requests/{id}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CompletedFrame, CompletedModule, Hex};

/// The number of seconds after which a client should ask for the result of a pending request.
/// Clients that wait with `timeout` can ask at once.
pub const RETRY_AFTER_SECONDS: u64 = 2;

/// The response to a request. Its HTTP status is 200 in every case.
///
/// ```
/// use symdepot::api::symbolicator::Response;
///
/// let response = Response::pending("00000000-0000-0000-0000-000000000007");
/// assert_eq!(
///     serde_json::to_string(&response).unwrap(),
///     r#"{"status":"pending","request_id":"00000000-0000-0000-0000-000000000007","retry_after":2}"#,
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(rename = "SymbolicateResponse"))]
#[serde(tag = "status", rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one answer at a time, and nearly all are completed"
)]
pub enum Response {
    /// The request is not complete.
    Pending {
        /// The id by which the client asks for the result.
        #[cfg_attr(feature = "openapi", schemars(with = "uuid::Uuid"))]
        request_id: String,
        /// The number of seconds after which to ask.
        retry_after: u64,
    },
    /// The request is complete.
    Completed(Completed),
    /// The request could not be parsed.
    Failed {
        /// The reason.
        message: String,
    },
    /// The request took too long.
    Timeout,
    /// An internal error.
    InternalError,
}

impl Response {
    /// Returns the response for a request that is not complete.
    pub fn pending(request_id: &str) -> Self {
        Response::Pending {
            request_id: request_id.to_owned(),
            retry_after: RETRY_AFTER_SECONDS,
        }
    }
}

/// A symbolicated crash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Completed {
    /// When the process crashed, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// The POSIX signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
    /// The system of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_info: Option<SystemInfo>,
    /// Whether the process crashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashed: Option<bool>,
    /// Why the process crashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash_reason: Option<String>,
    /// Further details of the crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash_details: Option<String>,
    /// The assertion that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assertion: Option<String>,
    /// The stack traces.
    pub stacktraces: Vec<CompletedStacktrace>,
    /// The modules, in the order of the request.
    pub modules: Vec<CompletedModule>,
}

/// The system that a process ran on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct SystemInfo {
    /// The name of the operating system.
    pub os_name: String,
    /// The version of the operating system.
    pub os_version: String,
    /// The build of the operating system.
    pub os_build: String,
    /// The architecture of the processor.
    pub cpu_arch: String,
    /// The model of the device.
    pub device_model: String,
}

/// A symbolicated stack trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CompletedStacktrace {
    /// The id of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<u64>,
    /// The name of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_name: Option<String>,
    /// Whether this is the thread that crashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_requesting: Option<bool>,
    /// The registers in the topmost frame, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub registers: BTreeMap<String, Hex>,
    /// The frames, including those of inlined functions.
    pub frames: Vec<CompletedFrame>,
}
