//! The results of a build.

use crate::cache::{NotAdmitted, Ready, Seen};
use crate::domain::{DifRef, Features, FileType, Missing, Rank};
use crate::ports::{DifError, Fault};

/// Why nothing was made and the leases are released.
pub(super) enum NotMade {
    /// An operation on a store, a source or a child process failed.
    Fault(Fault),
    /// A blob seems lost, but the hourly limit of losses is reached.
    Doubtful {
        /// The blob.
        blob: String,
    },
    /// The file has changed since it was found, or the time was up too soon.
    Interrupted,
    /// The source may not be called now. Nothing was tried.
    NotAdmitted(NotAdmitted),
}

impl From<Fault> for NotMade {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<DifError> for NotMade {
    fn from(error: DifError) -> Self {
        match error {
            DifError::Fault(fault) => Self::Fault(fault),
            // For uploads, the event of the new bytes has yet to be processed.
            DifError::Changed | DifError::Missing(_) => Self::Interrupted,
        }
    }
}

/// The origin of a derived cache.
pub(super) struct Origin {
    pub(super) made_from: Vec<DifRef>,
    pub(super) rank: Rank,
    pub(super) features: Features,
    pub(super) arch: String,
    pub(super) file_type: FileType,
}

/// The result of one kind, and the DIFs that were evaluated for it.
pub(super) struct Made {
    pub(super) outcome: MadeOutcome,
    pub(super) seen: Seen,
}

/// The result of one kind.
pub(super) enum MadeOutcome {
    /// A derived cache.
    Ready(Box<Ready>),
    /// Nothing, for a reason that is stored as a placeholder.
    Missing(Missing),
    /// Nothing yet: a DIF was replaced, and its event has yet to be processed.
    AwaitsEvent,
    /// Nothing yet: no copy serves the kind, and the source may not be called now.
    NotAdmitted(NotAdmitted),
}
