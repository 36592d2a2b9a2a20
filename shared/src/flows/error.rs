//! The errors of the flows. A missing DIF is not an error: it is a status in the response.

use crate::api::limits;
use crate::ports::Fault;

/// Why a flow failed. It is reported once, at the edge.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid.
    #[error("{detail}")]
    Invalid {
        /// What is invalid, and what to do instead.
        detail: String,
    },
    /// The caller may not do this.
    #[error("{detail}")]
    Refused {
        /// What is refused.
        detail: String,
    },
    /// The response exceeds its size limit.
    #[error(
        "the response has at least {bytes} bytes, and the limit is {}: send the threads in several requests",
        limits::ANSWER_BYTES
    )]
    TooLarge {
        /// The bytes that were counted before the response was abandoned.
        bytes: usize,
        /// The frames of the request that have these bytes.
        frames: usize,
    },
    /// An operation on a store, a queue or a child process failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The hourly limit of lost blobs is reached: the bucket may be the wrong one.
    #[error(
        "{blob} seems lost, and MAX_LOSSES_PER_HOUR is reached: check whether CACHES_BUCKET is the right bucket"
    )]
    Doubtful {
        /// The blob.
        blob: String,
    },
    /// A child process was killed, or its time was up; another attempt may succeed.
    #[error("{what} ended early: {reason}")]
    Crashed {
        /// The work.
        what: String,
        /// Why it ended.
        reason: String,
    },
    /// Another delivery of the same event had another result meanwhile, which stays. The event is
    /// received again, and finds that result.
    #[error(
        "another delivery of the event of {what} could read it, and this one could not: the event is received again"
    )]
    Superseded {
        /// What the event is about.
        what: String,
    },
    /// A newer release wrote the item, and only a newer release may change it.
    #[error(
        "a newer release wrote the item of {what}: this release, which is older, cannot change it"
    )]
    Newer {
        /// What the item describes.
        what: String,
    },
    /// Some calls of a run failed. The run continued with everything else, and a later run repeats
    /// the failed work.
    #[error("{failed} calls failed, the first with: {first}")]
    Incomplete {
        /// The number of failed calls.
        failed: u64,
        /// The error of the first one.
        first: String,
    },
}

impl Error {
    /// Returns the name of this error for alarms and clients.
    pub fn name(&self) -> &'static str {
        match self {
            Error::Invalid { .. } => "Invalid",
            Error::Refused { .. } => "Refused",
            Error::TooLarge { .. } => "TooLarge",
            // Alarms and clients know it by this name.
            Error::Fault(_) => "Store",
            Error::Doubtful { .. } => "Doubtful",
            Error::Crashed { .. } => "Crashed",
            Error::Superseded { .. } => "Superseded",
            Error::Newer { .. } => "Newer",
            Error::Incomplete { .. } => "Incomplete",
        }
    }

    /// Returns the HTTP status of this error.
    pub fn status(&self) -> u16 {
        match self {
            Error::Invalid { .. } => 422,
            Error::Refused { .. } => 403,
            Error::TooLarge { .. } => 413,
            Error::Crashed { .. } | Error::Incomplete { .. } => 500,
            // The request is valid, and may be sent again.
            Error::Fault(_)
            | Error::Doubtful { .. }
            | Error::Superseded { .. }
            | Error::Newer { .. } => 503,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::FaultKind;

    #[test]
    fn a_fault_of_a_store_is_not_the_fault_of_the_request() {
        for kind in [
            FaultKind::Transient,
            FaultKind::Denied,
            FaultKind::Corrupt,
            FaultKind::Bug,
        ] {
            assert_eq!(Error::from(Fault::new(kind, "a call")).status(), 503);
        }
    }
}
