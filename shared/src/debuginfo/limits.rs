//! Limits of the bytes of derived caches.

use std::io;

/// The largest raw cache that is made or opened, in bytes.
pub const MAX_RAW_BYTES: u64 = 4 << 30;

/// The largest raw cache in a whole blob, in bytes: it is in memory at once, beside its compressed
/// bytes, in `symbolicate`. Larger ones are sliced, or not made.
pub const MAX_WHOLE_BYTES: u64 = 128 << 20;

/// The error of writing a cache that exceeds a limit in bytes.
pub(super) fn too_large(limit: u64) -> io::Error {
    let problem = format!("its cache would exceed {limit} bytes");
    io::Error::new(io::ErrorKind::FileTooLarge, problem)
}
