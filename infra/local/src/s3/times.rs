//! Conversion between stored times and those of S3's protocol.

use s3s::dto::Timestamp;
use time::OffsetDateTime;

/// Returns a stored time, in milliseconds since 1970, as an S3 timestamp.
pub(crate) fn timestamp(epoch_ms: i64) -> Timestamp {
    let nanoseconds = i128::from(epoch_ms.max(0)) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
        .into()
}

/// Returns a header's time in its stored form, in seconds since 1970.
pub(crate) fn epoch_seconds(time: Timestamp) -> i64 {
    OffsetDateTime::from(time).unix_timestamp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_header_is_stored_in_seconds() {
        assert_eq!(epoch_seconds(timestamp(1_700_000_000_999)), 1_700_000_000);
    }
}
