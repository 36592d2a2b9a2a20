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
    /// Streams share bytes, or the file is inconsistent in another way.
    #[error("the streams of the minidump overlap, so that there is no report of it in this format")]
    Overlapping,
    /// What is read of a large file is spread over too much of it.
    #[error(
        "the parts of the minidump that are read have more than {} bytes, or are in more than {} places",
        super::READ_BYTES,
        super::READ_PARTS
    )]
    Scattered,
}

impl DumpError {
    pub(super) fn too_many(what: &'static str, limit: usize) -> Self {
        Self::TooMany { what, limit }
    }
}
