//! Parts of copies of DIFs: a zstd frame each, with its length and a checksum of what is in it.

use std::io;

/// Half of the time of the level that blobs are encoded with: only `derive` reads chunks, and
/// rarely.
const ZSTD_LEVEL: i32 = 1;

/// Seals a part.
///
/// # Errors
///
/// Only without memory.
pub fn encode_chunk(chunk: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(chunk)
}

/// Opens a part that holds `length` bytes.
///
/// # Errors
///
/// Where it is not what was sealed.
pub fn open_chunk(encoded: &[u8], length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let chunk = zstd::bulk::decompress(encoded, length)?;
    if chunk.len() != length {
        let problem = format!("there are {} bytes instead of {length}", chunk.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_what_was_encoded_or_an_error() {
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
