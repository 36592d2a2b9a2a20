//! Limits of the sizes of auxiliary files.

/// The maximum size of a UUID map, in bytes. It usually has less than a kilobyte.
pub(super) const MAX_UUID_MAP_BYTES: usize = 16 << 10;

/// The maximum number of tags in a UUID map. Elements are nested, and the reader recurses once per
/// level.
pub(super) const MAX_UUID_MAP_TAGS: usize = 512;

/// The maximum size of a symbol map or a line map, in bytes.
pub(super) const MAX_MAP_BYTES: usize = 256 << 20;

/// The maximum number of names in a symbol map. Each takes 16 bytes of memory.
pub(super) const MAX_NAMES: usize = 8 << 20;

/// Checks the size of a file before it is read.
pub(super) fn check_size(data: &[u8], most: usize, what: &str) -> Result<(), String> {
    match data.len() {
        bytes if bytes > most => Err(format!(
            "a {what} of {bytes} bytes, more than the limit of {most} bytes"
        )),
        _ => Ok(()),
    }
}
