//! Limits of a request and of its response.
//!
//! Each limit is far above what real crashes need. It bounds the cost of a hostile body: memory for
//! parsed values, time for lookups.

/// The maximum size of a request body, in bytes: what the gateway passes to a function. The code
/// that reads the body enforces it.
pub const BODY_BYTES: usize = 6 * 1024 * 1024;

/// The maximum size of a response body that is sent, in bytes. A larger body is stored. The
/// platform accepts a result of 6 MB, in which the body is in base64, a third larger.
pub const SENT_ANSWER_BYTES: usize = 4_500 * 1024;

/// The maximum size of a response body, in bytes. It bounds the memory of a request. The largest
/// crashes need about a third of it.
pub const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// The maximum number of stack traces in a request. No process has more threads in practice.
pub const STACKTRACES: usize = 16_384;

/// The maximum number of frames in all stack traces of a request. At sixty bytes of JSON per frame,
/// more do not fit into the body. Only those of Mozilla's API are shorter: ten bytes.
pub const FRAMES: usize = 131_072;

/// The maximum number of frames of a response in the schema of `minidump-stackwalk`, in which each
/// takes several times the memory.
pub const STACKWALK_FRAMES: usize = 32_768;

/// The maximum number of modules in a request. The largest processes, with every system library
/// mapped, have about three thousand.
pub const MODULES: usize = 16_384;

/// The maximum number of jobs in a request of Mozilla's symbolication API, as in Mozilla's server.
/// The Firefox Profiler sends no more.
pub const JOBS: usize = 10;

/// The maximum number of registers of a stack trace. The largest register files that clients send
/// have about a hundred.
pub const REGISTERS: usize = 1_024;

/// The maximum number of sources in a request. Each is searched for each module.
pub const SOURCES: usize = 32;

/// The maximum number of origins that a request allows for its headers. Each is compared with each
/// link.
pub const ORIGINS: usize = 1_024;

/// The maximum number of source files of a request that are looked up one by one, on servers or
/// behind links. Each may cost a download.
pub const SOURCE_FILES: usize = 64;

/// The maximum size of the `path_patterns` of all sources in a request, in bytes. Each is compared
/// with the paths of each module.
pub const PATTERN_BYTES: usize = 8 * 1024;

/// The maximum size of a source that a request defines, in bytes of JSON. The definition is
/// encrypted and stored.
pub const SOURCE_BYTES: usize = 8 * 1024;
