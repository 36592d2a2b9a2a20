//! How much one request may ask for.
//!
//! Each limit lies far above what real crashes need and bounds what a hostile body costs: memory for what was read,
//! time for what is looked up.

/// The longest body of a request, in bytes: what the gateway hands to a function. Whoever reads the body enforces it.
pub const BODY_BYTES: usize = 6 * 1024 * 1024;

/// Bytes of an answer's body: the platform takes 6 MB, in which the body stands as an escaped text.
pub const ANSWER_BYTES: usize = 4_500 * 1024;

/// The most stack traces in a request. A process with this many threads has run out of them.
pub const STACKTRACES: usize = 16_384;

/// The most frames in all stack traces of a request together. At sixty bytes of JSON a frame, more do not fit the
/// body; only shorter ones, such as no client sends, do.
pub const FRAMES: usize = 131_072;

/// The most modules in a request. The largest processes, with every system library mapped, have some three thousand.
pub const MODULES: usize = 16_384;

/// The most registers of a stack trace. The largest register files that clients send have some hundred.
pub const REGISTERS: usize = 1_024;

/// The most sources that a request may list. Each is looked up for each module.
pub const SOURCES: usize = 32;

/// The most bytes of a source that a request defines, as JSON: it is sealed and stored.
pub const SOURCE_BYTES: usize = 8 * 1024;
