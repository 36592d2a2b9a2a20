//! The date formats of AWS, all in UTC.

use time::OffsetDateTime;
use time::format_description::StaticFormatDescription;
use time::macros::format_description;

const ISO: StaticFormatDescription =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");

const COMMON_LOG: StaticFormatDescription =
    format_description!("[day]/[month repr:short]/[year]:[hour]:[minute]:[second] +0000");

const PATH: StaticFormatDescription = format_description!("[year]/[month]/[day]");

/// `2026-03-01T09:05:00Z`.
pub(crate) fn iso(time: OffsetDateTime) -> String {
    written(time, ISO)
}

/// `01/Mar/2026:09:05:00 +0000`.
pub(crate) fn common_log(time: OffsetDateTime) -> String {
    written(time, COMMON_LOG)
}

/// `2026/03/01`.
pub(crate) fn path(time: OffsetDateTime) -> String {
    written(time, PATH)
}

/// Returns the milliseconds since 1970.
pub(crate) fn epoch_millis(time: OffsetDateTime) -> u64 {
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
}

fn written(time: OffsetDateTime, format: StaticFormatDescription) -> String {
    // The formats name only components that every time has.
    time.format(format).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_each_format() {
        let time = OffsetDateTime::from_unix_timestamp(1_772_355_900).unwrap();
        assert_eq!(iso(time), "2026-03-01T09:05:00Z");
        assert_eq!(common_log(time), "01/Mar/2026:09:05:00 +0000");
        assert_eq!(path(time), "2026/03/01");
        assert_eq!(epoch_millis(time), 1_772_355_900_000);
    }
}
