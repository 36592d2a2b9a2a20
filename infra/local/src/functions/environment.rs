//! The environment of a function process: the variables of Lambda and of the template, and no
//! variable of this machine except `PATH`.
//!
//! Source: AWS Lambda developer guide, "Defined runtime environment variables". Two variables are
//! omitted because the stack has no use for them: `AWS_SESSION_TOKEN` and `_X_AMZN_TRACE_ID` (each
//! event carries its trace id).

use std::path::Path;

use time::OffsetDateTime;
use uuid::Uuid;

use super::spec::{Endpoints, FunctionSpec};
use crate::dates;
use crate::identity::{self, FunctionProcess};

/// Returns the variables of one process.
pub(super) fn variables(
    spec: &FunctionSpec,
    endpoints: &Endpoints,
    runtime_api: &str,
    scratch: &Path,
) -> Vec<(String, std::ffi::OsString)> {
    let task_root = spec.binary.parent().unwrap_or(Path::new("."));
    let process = Uuid::new_v4().simple().to_string();
    let stream = format!(
        "{}/[$LATEST]{process}",
        dates::path(OffsetDateTime::now_utc())
    );
    let signer = FunctionProcess {
        function: &spec.name,
        process: &process,
    };
    let mut variables: Vec<(String, std::ffi::OsString)> = spec
        .environment
        .iter()
        .map(|(name, value)| (name.clone(), value.into()))
        .collect();
    let lambda: [(&str, std::ffi::OsString); 23] = [
        ("AWS_LAMBDA_RUNTIME_API", runtime_api.into()),
        ("AWS_LAMBDA_FUNCTION_NAME", (&spec.name).into()),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".into()),
        (
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
            spec.memory_mb.to_string().into(),
        ),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".into()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", (&spec.log_group).into()),
        ("AWS_LAMBDA_LOG_STREAM_NAME", stream.into()),
        ("AWS_LAMBDA_LOG_FORMAT", (&spec.log_format).into()),
        ("AWS_REGION", identity::REGION.into()),
        ("AWS_DEFAULT_REGION", identity::REGION.into()),
        ("AWS_ACCESS_KEY_ID", signer.access_key().into()),
        (
            "AWS_SECRET_ACCESS_KEY",
            identity::FUNCTION.secret_access_key.into(),
        ),
        ("AWS_ENDPOINT_URL_S3", (&endpoints.s3).into()),
        ("AWS_ENDPOINT_URL_DYNAMODB", (&endpoints.dynamodb).into()),
        ("AWS_ENDPOINT_URL_SQS", (&endpoints.sqs).into()),
        // Without a region or keys the SDK looks for a metadata service, which does not exist on
        // this machine.
        ("AWS_EC2_METADATA_DISABLED", "true".into()),
        ("_HANDLER", "bootstrap".into()),
        ("LAMBDA_TASK_ROOT", task_root.into()),
        ("LAMBDA_RUNTIME_DIR", task_root.into()),
        ("LANG", "en_US.UTF-8".into()),
        ("TZ", ":UTC".into()),
        (
            "PATH",
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
        ),
        ("TMPDIR", scratch.into()),
    ];
    variables.extend(
        lambda
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value)),
    );
    variables
}
