//! The stored form of a minidump whose walks wait for builds: one line of JSON with the other parts
//! of its form, then the file, compressed.

use bytes::Bytes;

use crate::api::crash::form::{CrashFields, decompressed};
use crate::flows::Error;
use crate::ports::{Fault, FaultKind};
use crate::unwind::dump::DUMP_BYTES;

/// The level of the compression. The file is read once, if at all.
const ZSTD_LEVEL: i32 = 1;

/// A stored minidump.
#[derive(Debug)]
pub struct KeptDump {
    /// The file.
    pub file: Bytes,
    /// How it is symbolicated.
    pub fields: CrashFields,
}

/// Returns the stored form of a minidump.
pub(super) fn encode(file: &[u8], fields: &CrashFields) -> Result<Vec<u8>, Error> {
    let failed = |error| Fault::new(FaultKind::Bug, "cannot encode a minidump").caused_by(error);
    let mut body = serde_json::to_vec(fields)
        .map_err(std::io::Error::other)
        .map_err(failed)?;
    body.push(b'\n');
    let compressed = zstd::bulk::compress(file, ZSTD_LEVEL).map_err(failed)?;
    body.extend_from_slice(&compressed);
    Ok(body)
}

/// Reads the stored form of a minidump.
///
/// # Errors
///
/// [`Error::Store`] if it is damaged.
pub fn kept_dump(body: &[u8]) -> Result<KeptDump, Error> {
    let damaged = || Fault::new(FaultKind::Corrupt, "a stored minidump is damaged");
    let mut parts = body.splitn(2, |byte| *byte == b'\n');
    let (fields, file) = (parts.next().unwrap_or_default(), parts.next());
    let fields = serde_json::from_slice(fields).map_err(|error| damaged().caused_by(error))?;
    let file = decompressed("the file", file.ok_or_else(damaged)?, DUMP_BYTES);
    let file = file.map_err(|error| damaged().caused_by(error))?;
    Ok(KeptDump {
        file: file.into_owned().into(),
        fields,
    })
}
