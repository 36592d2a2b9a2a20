//! How a flow fails. A missing DIF is no failure: it is a status in the answer.

use crate::api::limits;
use crate::ports::Fault;

/// A flow did not come to its end. It is reported once, at the edge.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked for something that cannot be.
    #[error("{detail}")]
    Invalid {
        /// What, and what to do instead.
        detail: String,
    },
    /// The answer is larger than one may be.
    #[error(
        "the answer has {bytes} bytes and more; one may have {}: send its threads in several requests",
        limits::ANSWER_BYTES
    )]
    TooLarge {
        /// Bytes that were counted before it was given up.
        bytes: usize,
    },
    /// A store failed.
    #[error(transparent)]
    Store(#[from] Fault),
    /// So many blobs seem lost that none is taken for it: the bucket may be the wrong one.
    #[error(
        "{blob} seems lost, and so do more than MAX_LOSSES_PER_HOUR others: is CACHES_BUCKET the right bucket?"
    )]
    Doubtful {
        /// The blob.
        blob: String,
    },
    /// A process of ours was killed; another attempt may go better.
    #[error("{what} ended early: {reason}")]
    Crashed {
        /// The work.
        what: String,
        /// What is known of the end.
        reason: String,
    },
    /// Some calls of a run failed; it went on with everything else, and a later run repeats what they were for.
    #[error("{failed} calls failed, the first with: {first}")]
    Incomplete {
        /// How many.
        failed: u64,
        /// What the first one said.
        first: String,
    },
    /// The time was up before the work was done; what is stored is sound, and the work is asked for again.
    #[error("the time was up before {what} was done")]
    Deadline {
        /// The work.
        what: String,
    },
}

impl Error {
    /// Returns the word by which alarms and clients know this error.
    pub fn name(&self) -> &'static str {
        match self {
            Error::Invalid { .. } => "Invalid",
            Error::TooLarge { .. } => "TooLarge",
            Error::Store(_) => "Store",
            Error::Doubtful { .. } => "Doubtful",
            Error::Crashed { .. } => "Crashed",
            Error::Incomplete { .. } => "Incomplete",
            Error::Deadline { .. } => "Deadline",
        }
    }

    /// Returns the HTTP status that says so.
    pub fn status(&self) -> u16 {
        match self {
            Error::Invalid { .. } => 422,
            Error::TooLarge { .. } => 413,
            Error::Store(_)
            | Error::Doubtful { .. }
            | Error::Crashed { .. }
            | Error::Incomplete { .. } => 500,
            Error::Deadline { .. } => 503,
        }
    }
}
