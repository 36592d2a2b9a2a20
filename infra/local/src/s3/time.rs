//! Times as S3 writes them.

use std::time::{Duration, UNIX_EPOCH};

use s3s::dto::Timestamp;

/// Returns a time as an S3 timestamp.
pub(crate) fn timestamp(epoch_ms: i64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(u64::try_from(epoch_ms).unwrap_or(0)))
}
