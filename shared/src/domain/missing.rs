//! Reasons why an entry is missing.

use serde::{Deserialize, Serialize};

/// The reason why an entry is missing, as stored in placeholders and shown to callers.
///
/// There is no cause for internal errors: they are never stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Missing {
    /// The cause.
    pub cause: Cause,
    /// The details, for people; at most [`Missing::MAX_DETAIL_BYTES`].
    pub detail: String,
}

/// The cause of a missing entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Cause {
    /// No source has a DIF for it.
    NotFound,
    /// A source denied access to the DIF.
    PermissionDenied,
    /// A source failed during the download.
    DownloadFailed,
    /// A source took too long.
    Timeout,
    /// The DIF cannot be parsed.
    Malformed,
    /// The DIF is of a kind that cannot serve this purpose.
    Unsupported,
    /// The DIF is larger than the limit. It is tried again after the limit was raised.
    TooLarge {
        /// The limit that it exceeded, in bytes.
        limit: u64,
    },
    /// Several builds of it crashed.
    Crashed,
}

impl Missing {
    /// The maximum length of a detail, in bytes.
    pub const MAX_DETAIL_BYTES: usize = 1024;

    /// What to do about a file on which a parser of this program panicked. The detail ends with it.
    pub const REPORT: &str = "report this with the file: building the file again does not help";

    /// Returns the cause with a detail. The detail is truncated to its limit at a character
    /// boundary.
    pub fn new(cause: Cause, detail: impl Into<String>) -> Self {
        let mut detail: String = detail.into();
        detail.truncate(detail.floor_char_boundary(Self::MAX_DETAIL_BYTES));
        Self { cause, detail }
    }

    /// Adds an explanation to the detail. If both together are too long, the detail before it is
    /// truncated.
    pub fn explain(&mut self, explanation: &'static str) {
        let room = Self::MAX_DETAIL_BYTES - explanation.len();
        self.detail.truncate(self.detail.floor_char_boundary(room));
        self.detail.push_str(explanation);
    }

    /// Returns the reason that no source has a DIF.
    pub fn not_found() -> Self {
        Self::new(
            Cause::NotFound,
            "no source has a debug information file for it",
        )
    }

    /// Returns the reason that the DIF cannot be parsed.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Cause::Malformed, detail)
    }
}

impl Cause {
    /// Returns the word for reports and metrics, without the limit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::NotFound => "not_found",
            Cause::PermissionDenied => "permission_denied",
            Cause::DownloadFailed => "download_failed",
            Cause::Timeout => "timeout",
            Cause::Malformed => "malformed",
            Cause::Unsupported => "unsupported",
            Cause::TooLarge { .. } => "too_large",
            Cause::Crashed => "crashed",
        }
    }

    /// Returns whether the source failed for a moment, which says nothing about its files.
    pub fn is_of_a_moment(self) -> bool {
        matches!(self, Cause::DownloadFailed | Cause::Timeout)
    }

    /// Returns whether a newer converter may succeed with the same bytes.
    pub fn belongs_to_the_converter(self) -> bool {
        match self {
            Cause::Malformed | Cause::Unsupported | Cause::TooLarge { .. } | Cause::Crashed => true,
            Cause::NotFound | Cause::PermissionDenied | Cause::DownloadFailed | Cause::Timeout => {
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_remains_whole_after_a_long_detail() {
        let mut missing = Missing::malformed("a");
        missing.explain("; b");
        assert_eq!(missing.detail, "a; b");
        let mut missing = Missing::malformed("ä".repeat(512));
        missing.explain("; b");
        assert_eq!(missing.detail, format!("{}; b", "ä".repeat(510)));
    }

    #[test]
    fn a_long_detail_is_cut_at_a_character() {
        let missing = Missing::malformed("ä".repeat(1000));
        assert_eq!(missing.detail.len(), 1024);
        assert_eq!(
            Missing::malformed(format!("a{}", missing.detail))
                .detail
                .len(),
            1023
        );
    }
}
