//! What `/symbolicate` and `/requests/{id}` answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{CompletedFrame, CompletedModule, Hex};

/// After how many seconds a client is told to ask again. Clients that wait with `timeout` need not wait for it.
pub const RETRY_AFTER_SECONDS: u64 = 30;

/// The answer to a request; its HTTP status is 200 in every case.
///
/// ```
/// use symdepot::api::symbolicator::Response;
///
/// let response = Response::pending(uuid::Uuid::from_u128(7));
/// assert_eq!(
///     serde_json::to_string(&response).unwrap(),
///     r#"{"status":"pending","request_id":"00000000-0000-0000-0000-000000000007","retry_after":30}"#,
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one answer at a time, and nearly all are completed"
)]
pub enum Response {
    /// It is not finished.
    Pending {
        /// What to ask for it by.
        request_id: Uuid,
        /// After how many seconds to ask.
        retry_after: u64,
    },
    /// It is finished.
    Completed(Completed),
    /// What was sent cannot be read.
    Failed {
        /// Why.
        message: String,
    },
    /// It took too long, and was given up.
    Timeout,
    /// A fault of ours.
    InternalError,
}

impl Response {
    /// Returns that the request with this id is not finished.
    pub fn pending(request_id: Uuid) -> Self {
        Response::Pending {
            request_id,
            retry_after: RETRY_AFTER_SECONDS,
        }
    }
}

/// A symbolicated crash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completed {
    /// When the process crashed, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// The POSIX signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
    /// What the process ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_info: Option<SystemInfo>,
    /// Whether the process crashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashed: Option<bool>,
    /// Why the process crashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash_reason: Option<String>,
    /// What else is known of the crash.
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

/// What a process ran on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The frames, those of inlined functions included.
    pub frames: Vec<CompletedFrame>,
}
