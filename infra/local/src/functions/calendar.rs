//! Conversion of epoch seconds to AWS's date formats, all in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// A point in time in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    since_epoch: Duration,
    year: u64,
    month: u64,
    day: u64,
}

impl Moment {
    /// Returns the current time.
    pub(crate) fn now() -> Self {
        Self::at(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        )
    }

    /// Returns the time that is `since_epoch` after 1970.
    pub(crate) fn at(since_epoch: Duration) -> Self {
        // Years that begin in March have the leap day at their end; 400 of them always have the
        // same length.
        let days = since_epoch.as_secs() / 86_400 + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Self {
            since_epoch,
            year,
            month,
            day,
        }
    }

    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.since_epoch.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.since_epoch.as_secs()
    }

    /// `2026-03-01T09:05:00Z`.
    pub(crate) fn iso(&self) -> String {
        let (hour, minute, second) = self.clock();
        format!(
            "{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z",
            self.year, self.month, self.day
        )
    }

    /// `01/Mar/2026:09:05:00 +0000`.
    pub(crate) fn common_log(&self) -> String {
        let (hour, minute, second) = self.clock();
        let month = usize::try_from(self.month - 1)
            .ok()
            .and_then(|index| MONTHS.get(index))
            .unwrap_or(&"Jan");
        format!(
            "{:02}/{month}/{:04}:{hour:02}:{minute:02}:{second:02} +0000",
            self.day, self.year
        )
    }

    /// `2026/03/01`.
    pub(crate) fn path(&self) -> String {
        format!("{:04}/{:02}/{:02}", self.year, self.month, self.day)
    }

    fn clock(&self) -> (u64, u64, u64) {
        let second = self.since_epoch.as_secs() % 86_400;
        (second / 3_600, second / 60 % 60, second % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Oracle: `date -u -d @<seconds>`.
    #[test]
    fn known_seconds_become_known_dates() {
        for (seconds, iso) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_772_323_199, "2026-02-28T23:59:59Z"),
            (1_772_323_200, "2026-03-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Moment::at(Duration::from_secs(seconds)).iso(), iso);
        }
    }

    #[test]
    fn the_common_log_format_names_the_month() {
        let moment = Moment::at(Duration::from_secs(1_772_355_900));
        assert_eq!(moment.common_log(), "01/Mar/2026:09:05:00 +0000");
        assert_eq!(moment.path(), "2026/03/01");
    }
}
