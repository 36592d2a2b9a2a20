//! Statistics of a symbolication.

use crate::api::limits;
use crate::api::symbolicator::{FrameStatus, ModuleStatus};

/// Statistics of a symbolication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Stack traces of the request.
    pub stacktraces: usize,
    /// Frames of the request, by status.
    pub frames: FrameCounts,
    /// Frames of the response that are not in the request: functions that others are inlined into.
    pub inlined: usize,
    /// Frames without some of the functions that others are inlined into, because there were too
    /// many.
    pub truncated: usize,
    /// Frames that the response leaves out.
    pub dropped: usize,
    /// Stack traces of a crash file without their outer frames, because the response would be too
    /// large.
    pub shortened: usize,
    /// Modules of the request, by status.
    pub modules: ModuleCounts,
    /// Reads of caches.
    pub reads: ReadCounts,
    /// The size of the frames in the response, or a lower bound of it, in bytes.
    pub answer_bytes: usize,
}

impl Stats {
    /// Returns whether the response is larger than allowed. It then lacks frames and must not be
    /// sent.
    pub fn is_too_large(&self) -> bool {
        self.answer_bytes > limits::ANSWER_BYTES
    }
}

/// Reads of caches for a request, counted by the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Reads of blobs: whole blobs, indexes and slices.
    pub reads: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Slices and whole caches that were already in the memory of the instance.
    pub memory_hits: u64,
}

macro_rules! counts {
    ($(#[$doc:meta])* $name:ident of $status:ident { $($(#[$field_doc:meta])* $field:ident: $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: usize,)*
        }

        impl $name {
            pub(super) fn count(&mut self, status: $status) {
                match status {
                    $($status::$variant => self.$field += 1,)*
                }
            }

            /// Returns the total number.
            pub fn total(&self) -> usize {
                0 $(+ self.$field)*
            }
        }
    };
}

counts! {
    /// The number of frames of each status.
    FrameCounts of FrameStatus {
        /// A function covers the address.
        symbolicated: Symbolicated,
        /// No function of the module covers it.
        missing_symbol: MissingSymbol,
        /// No module covers it.
        unknown_image: UnknownImage,
        /// The module has no debug information.
        missing: Missing,
        /// The debug information of the module cannot be read.
        malformed: Malformed,
    }
}

counts! {
    /// The number of modules of each status.
    ModuleCounts of ModuleStatus {
        /// The cache was found.
        found: Found,
        /// No frame lies in the module.
        unused: Unused,
        /// No source has it.
        missing: Missing,
        /// Its file cannot be read.
        malformed: Malformed,
        /// A source failed or refused access.
        fetching_failed: FetchingFailed,
        /// A source took too long.
        timeout: Timeout,
        /// Its format is not supported.
        unsupported: Unsupported,
        /// Any other failure.
        other: Other,
    }
}
