//! What a symbolication did, in numbers.

use crate::api::limits;
use crate::api::symbolicator::{FrameStatus, ModuleStatus};

/// What a symbolication did, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Stack traces of the request.
    pub stacktraces: usize,
    /// Frames of the request, by what came of them.
    pub frames: FrameCounts,
    /// Frames of the response that are not of the request: callers into which others are inlined.
    pub inlined: usize,
    /// Frames that lack outer callers because there were too many.
    pub truncated: usize,
    /// Frames that the response leaves out.
    pub dropped: usize,
    /// Modules of the request, by what came of them.
    pub modules: ModuleCounts,
    /// What was read of the caches.
    pub reads: ReadCounts,
    /// Bytes that the frames have in the answer, or fewer.
    pub answer_bytes: usize,
}

impl Stats {
    /// Tells whether the answer is larger than one may be. Then it lacks frames, and must not be given.
    pub fn is_too_large(&self) -> bool {
        self.answer_bytes > limits::ANSWER_BYTES
    }
}

/// What was read of the caches for a request; whoever reads them counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Reads of blobs: of whole ones, of indexes, of slices.
    pub reads: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Slices and whole caches that were opened already.
    pub remembered: u64,
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

            /// Returns how many there are of all together.
            pub fn total(&self) -> usize {
                0 $(+ self.$field)*
            }
        }
    };
}

counts! {
    /// How many frames have each status.
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
    /// How many modules have each status.
    ModuleCounts of ModuleStatus {
        /// The cache is here.
        found: Found,
        /// No frame lies in the module.
        unused: Unused,
        /// No source has it.
        missing: Missing,
        /// It cannot be read.
        malformed: Malformed,
        /// A source failed, or refused to hand it out.
        fetching_failed: FetchingFailed,
        /// A source took too long.
        timeout: Timeout,
        /// It is of a kind that does not serve.
        unsupported: Unsupported,
        /// Something else.
        other: Other,
    }
}
