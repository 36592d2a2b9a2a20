//! The specification of a function, its invocations and their results.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::functions::error::FunctionError;
use crate::functions::ledger::Ledger;
use crate::functions::log::FunctionLog;

/// How to run a function.
#[derive(Clone, Debug)]
pub struct FunctionSpec {
    /// Its name.
    pub name: String,
    /// Its binary.
    pub binary: PathBuf,
    /// `AWS_LAMBDA_FUNCTION_MEMORY_SIZE`.
    pub memory_mb: u64,
    /// The timeout of an invocation.
    pub timeout: Duration,
    /// The maximum number of simultaneous processes.
    pub concurrency: usize,
    /// How long a call that may start a process waits for one that has answered.
    pub wait_for_idle: Duration,
    /// `RecursiveLoop: Allow`: chains of events that invoke it again and again are not ended.
    pub allows_recursion: bool,
    /// `AWS_LAMBDA_LOG_FORMAT`.
    pub log_format: String,
    /// `AWS_LAMBDA_LOG_GROUP_NAME`.
    pub log_group: String,
    /// The function's own variables.
    pub environment: BTreeMap<String, String>,
}

impl FunctionSpec {
    /// The usual [`FunctionSpec::wait_for_idle`].
    pub const WAIT_FOR_IDLE: Duration = Duration::from_millis(100);
}

/// The addresses of the services, as URLs without a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// S3.
    pub s3: String,
    /// DynamoDB.
    pub dynamodb: String,
    /// SQS.
    pub sqs: String,
}

/// One event for a function.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    pub(super) request_id: String,
    pub(super) trace_id: String,
    pub(super) payload: Bytes,
}

/// The result of an invocation.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The invocation's id.
    pub request_id: String,
    /// The function's response, or its error.
    pub outcome: Result<Bytes, FunctionError>,
    /// The time from the event to the response; zero if no process received the event.
    pub duration: Duration,
    /// How long the process took to start, if it was started for this event.
    pub cold: Option<Duration>,
}

/// The environment in which the processes of a function run.
#[derive(Debug)]
pub(super) struct Sandbox {
    pub(super) spec: FunctionSpec,
    pub(super) arn: Arc<str>,
    pub(super) endpoints: Endpoints,
    pub(super) ledger: Ledger,
    pub(super) log: Arc<FunctionLog>,
}
