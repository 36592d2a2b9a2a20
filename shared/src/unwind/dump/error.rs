//! Why a minidump cannot be read.

/// Why a minidump cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The file is not a minidump, or is damaged.
    #[error("Failed to read minidump: {0}")]
    Unreadable(#[from] minidump::Error),
    /// The system is unknown.
    #[error("The system information stream was not found")]
    NoSystemInfo,
    /// There are no threads.
    #[error("The thread list stream was not found")]
    NoThreads,
    /// The file has more of something than is read.
    #[error("the minidump has more than {limit} {what}")]
    TooMany {
        /// What exceeds the limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl DumpError {
    pub(super) fn too_many(what: &'static str, limit: usize) -> Self {
        Self::TooMany { what, limit }
    }
}
