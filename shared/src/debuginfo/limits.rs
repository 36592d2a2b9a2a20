//! Size limits of derived caches.

use std::io;

/// The maximum size of a raw cache that is written or opened, in bytes.
pub const MAX_RAW_BYTES: u64 = 4 << 30;

/// The maximum size of a raw cache in a whole blob, in bytes. `symbolicate` holds all of it in
/// memory, together with its compressed bytes. Larger caches are sliced or not made.
pub const MAX_WHOLE_BYTES: u64 = 128 << 20;

/// Returns the error for a cache that exceeds a limit in bytes.
pub(super) fn too_large(limit: u64) -> io::Error {
    let problem = format!("the derived cache would exceed {limit} bytes");
    io::Error::new(io::ErrorKind::FileTooLarge, problem)
}
