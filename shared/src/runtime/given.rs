//! Limits that follow from the memory and the disk that a function was given.
//!
//! `auto` in `SCRATCH_BYTES`, `PARSER_MEMORY_BYTES` and `MEMORY_CACHE_BYTES` means these values,
//! because a template cannot calculate. Every function must compute the same limits of `derive`: a
//! file that is too large for them is not tried again as long as they are the same, and
//! `symbolicate` decides that. So they follow from the sizes that the template gives to `derive`
//! and tells every function, not from those of the function itself.

/// The value of a variable that is computed.
pub(super) const AUTO: &str = "auto";

const MIB: u64 = 1 << 20;

/// What `derive` itself needs beside its parser, at least: the program, and the parts of files and
/// blobs that it receives and sends.
const BESIDE_PARSER: u64 = 384 * MIB;

/// Returns the scratch space in a `/tmp` of this size: 95 % of it, because the file system needs
/// some.
pub(super) fn scratch_bytes(ephemeral_mb: u64) -> u64 {
    bytes(ephemeral_mb) / 20 * 19
}

/// Returns the memory of the parser in a function with this memory: what a tenth of it, or 384 MiB,
/// leaves; at least half.
pub(super) fn parser_memory_bytes(memory_mb: u64) -> u64 {
    let memory = bytes(memory_mb);
    let beside = (memory / 10).max(BESIDE_PARSER);
    memory - beside.min(memory / 2)
}

/// Returns the memory for open caches in a function with this memory: half of it. The other half is
/// for the program, the request, and what is read for it.
pub(super) fn memory_cache_bytes(memory_mb: u64) -> u64 {
    bytes(memory_mb) / 2
}

fn bytes(mebibytes: u64) -> u64 {
    mebibytes.saturating_mul(MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_leave_room_for_the_function_itself() {
        for (memory_mb, parser, caches) in [
            (128, 64, 64),
            (512, 256, 256),
            (1769, 1385, 884),
            (3008, 2624, 1504),
            (10_240, 9216, 5120),
        ] {
            assert_eq!(parser_memory_bytes(memory_mb) / MIB, parser, "{memory_mb}");
            assert_eq!(memory_cache_bytes(memory_mb) / MIB, caches, "{memory_mb}");
        }
        for (ephemeral_mb, scratch) in [(512, 486), (2048, 1945), (10_240, 9728)] {
            assert_eq!(scratch_bytes(ephemeral_mb) / MIB, scratch, "{ephemeral_mb}");
        }
        assert!(parser_memory_bytes(u64::MAX) > 0 && scratch_bytes(u64::MAX) > 0);
    }
}
