//! Compression of files for the way, and their parts.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use futures::stream::{self, StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use symdepot::api::uploads::{BYTES_IN_PARTS, PART_BYTES};

use crate::error::CliError;

/// Debug information shrinks to a third or a quarter at this level of zstd, at some 300 MB/s.
const LEVEL: i32 = 3;

/// The first bytes of files that are compressed already.
const COMPRESSED: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"MSCF"];

/// A file as it is sent.
#[derive(Debug)]
pub(super) struct Packed {
    /// The file on this machine.
    pub(super) path: PathBuf,
    /// The bytes to send. A temporary file has no name, so it is gone when this process ends.
    pub(super) file: File,
    /// Their number.
    pub(super) bytes: u64,
    /// The SHA-256 of each part in hex; none of a small file.
    pub(super) parts: Vec<String>,
}

/// Compresses files, as many at a time as there are processors.
pub(super) async fn all(paths: Vec<PathBuf>) -> Result<Vec<Packed>, CliError> {
    let at_a_time = std::thread::available_parallelism().map_or(1, usize::from);
    let packed = stream::iter(paths).map(|path| async move {
        let failed = |error| CliError::File {
            path: path.clone(),
            error,
        };
        let of_thread = path.clone();
        let packed = tokio::task::spawn_blocking(move || pack(&of_thread)).await;
        let packed = packed.map_err(|error| failed(io::Error::other(error)))?;
        packed.map_err(failed)
    });
    packed.buffered(at_a_time).try_collect().await
}

fn pack(path: &Path) -> io::Result<Packed> {
    let mut original = File::open(path)?;
    let mut head = Vec::new();
    Read::by_ref(&mut original).take(4).read_to_end(&mut head)?;
    original.seek(SeekFrom::Start(0))?;
    let whole = original.metadata()?.len();
    let mut file = original;
    if !COMPRESSED.iter().any(|magic| head.starts_with(magic)) {
        let mut smaller = tempfile::tempfile()?;
        zstd::stream::copy_encode(&mut file, &mut smaller, LEVEL)?;
        if smaller.metadata()?.len() < whole {
            file = smaller;
        }
    }
    let bytes = file.metadata()?.len();
    Ok(Packed {
        path: path.to_owned(),
        parts: parts(&mut file, bytes)?,
        file,
        bytes,
    })
}

fn parts(file: &mut File, bytes: u64) -> io::Result<Vec<String>> {
    if bytes < BYTES_IN_PARTS {
        return Ok(Vec::new());
    }
    file.seek(SeekFrom::Start(0))?;
    let digests = (0..bytes.div_ceil(PART_BYTES)).map(|_| {
        let mut hasher = Sha256::new();
        io::copy(&mut Read::by_ref(file).take(PART_BYTES), &mut hasher)?;
        Ok(hex::encode(hasher.finalize()))
    });
    digests.collect()
}
