//! Why something cannot be had.

use serde::{Deserialize, Serialize};

/// Why an entry cannot be had, as it is stored in placeholders and shown to callers.
///
/// There is no cause for faults of our own: those are never remembered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Missing {
    /// What stood in the way.
    pub cause: Cause,
    /// What exactly, for a human; at most [`Missing::MAX_DETAIL_BYTES`].
    pub detail: String,
}

/// What stands in the way of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Cause {
    /// No source has a DIF for it.
    NotFound,
    /// A source refused to hand it out.
    PermissionDenied,
    /// A source failed while handing it out.
    DownloadFailed,
    /// A source took too long.
    Timeout,
    /// The DIF cannot be parsed.
    Malformed,
    /// The DIF is of a kind that cannot serve this purpose.
    Unsupported,
    /// The DIF is larger than the limit in bytes; heals when the limit grows.
    TooLarge {
        /// The limit that it exceeded, in bytes.
        limit: u64,
    },
    /// Several builders vanished over it.
    Crashed,
}

impl Missing {
    /// The longest detail kept, in bytes.
    pub const MAX_DETAIL_BYTES: usize = 1024;

    /// Returns the cause with a detail, cut to its limit at a character boundary.
    pub fn new(cause: Cause, detail: impl Into<String>) -> Self {
        let mut detail: String = detail.into();
        detail.truncate(detail.floor_char_boundary(Self::MAX_DETAIL_BYTES));
        Self { cause, detail }
    }

    /// Returns that no source has it.
    pub fn not_found() -> Self {
        Self::new(
            Cause::NotFound,
            "no source has a debug information file for it",
        )
    }

    /// Returns that the DIF cannot be parsed.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Cause::Malformed, detail)
    }
}

impl Cause {
    /// Returns the word that reports and metrics carry, without the limit.
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

    /// Tells whether a newer converter may succeed where this one failed, on the same bytes.
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
