//! Parts of copies of DIFs: a zstd frame each, with its length and a checksum of what is in it.

use std::io;

/// Half of the time of the level that blobs are sealed with: nobody reads parts but `derive`, and seldom.
const ZSTD_LEVEL: i32 = 1;

/// Seals a part.
///
/// # Errors
///
/// Only for want of memory.
pub fn seal_part(part: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(part)
}

/// Opens a part that holds `length` bytes.
///
/// # Errors
///
/// Where it is not what was sealed.
pub fn open_part(sealed: &[u8], length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let part = zstd::bulk::decompress(sealed, length)?;
    if part.len() != length {
        let problem = format!("there are {} bytes instead of {length}", part.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_what_was_sealed_or_an_error() {
        let part: Vec<u8> = (0..100_000_u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        let sealed = seal_part(&part).unwrap();
        assert!(sealed.len() < part.len() / 2);
        assert_eq!(open_part(&sealed, part.len() as u64).unwrap(), part);
        for length in [0, 1, part.len() as u64 - 1, part.len() as u64 + 1] {
            assert!(open_part(&sealed, length).is_err(), "{length}");
        }
        for at in (0..sealed.len()).step_by(sealed.len() / 97) {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            let opened = open_part(&bad, part.len() as u64);
            assert!(opened.map_or(true, |opened| opened == part), "{at}");
            assert!(open_part(&sealed[..at], part.len() as u64).is_err(), "{at}");
        }
    }
}
