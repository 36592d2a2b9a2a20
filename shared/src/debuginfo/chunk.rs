//! Chunks of copies of DIFs. Each is a zstd frame with the length and a checksum of its content.

use std::io;

/// Encoding takes half as long as with the level of blobs. A better ratio is not worth the time,
/// because only `derive` reads chunks, and rarely.
const ZSTD_LEVEL: i32 = 1;

/// Encodes a chunk.
///
/// # Errors
///
/// Memory ran out.
pub fn encode_chunk(chunk: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(chunk)
}

/// Decodes a chunk of `length` bytes.
///
/// # Errors
///
/// The bytes are not an encoded chunk of this length.
pub fn open_chunk(encoded: &[u8], length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let chunk = zstd::bulk::decompress(encoded, length)?;
    if chunk.len() != length {
        let problem = format!("the chunk has {} bytes instead of {length}", chunk.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_chunk_is_rejected_or_decodes_to_the_original() {
        let chunk: Vec<u8> = (0..100_000_u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        let encoded = encode_chunk(&chunk).unwrap();
        assert!(encoded.len() < chunk.len() / 2);
        assert_eq!(open_chunk(&encoded, chunk.len() as u64).unwrap(), chunk);
        for length in [0, 1, chunk.len() as u64 - 1, chunk.len() as u64 + 1] {
            assert!(open_chunk(&encoded, length).is_err(), "{length}");
        }
        for at in (0..encoded.len()).step_by(encoded.len() / 97) {
            let mut bad = encoded.clone();
            bad[at] ^= 1;
            let opened = open_chunk(&bad, chunk.len() as u64);
            assert!(opened.map_or(true, |opened| opened == chunk), "{at}");
            assert!(
                open_chunk(&encoded[..at], chunk.len() as u64).is_err(),
                "{at}"
            );
        }
    }
}
