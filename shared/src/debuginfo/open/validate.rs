//! Checks that no lookup in a raw cache can fail, whatever bytes it was derived from.

use symbolic::cfi::CfiCache;
use symbolic::common::ByteView;
use symbolic::ppdb::PortablePdbCache;

use crate::cache::Kind;
use crate::debuginfo::blob::{BlobFault, Contents};
use crate::debuginfo::failure::chain;
use crate::debuginfo::slices;

/// The number of bytes before the records of a raw CFI cache.
pub(in crate::debuginfo) const CFI_PREAMBLE_BYTES: usize = 8;

/// Checks a raw cache, which is not sliced.
pub(super) fn validate(raw: &[u8], contents: &Contents) -> Result<(), BlobFault> {
    match contents.kind {
        Kind::SymCache => slices::validate(raw, contents.debug_id),
        Kind::CfiCache => validate_cfi(raw),
        Kind::PpdbCache => PortablePdbCache::parse(raw)
            .map(drop)
            .map_err(|error| chain(&error)),
        Kind::MsSymCache(_) | Kind::SourceCode => return Err(BlobFault::Mismatch("kind")),
    }
    .map_err(BlobFault::Cache)
}

fn validate_cfi(raw: &[u8]) -> Result<(), String> {
    let cache = CfiCache::from_bytes(ByteView::from_slice(raw)).map_err(|error| chain(&error))?;
    if !cache.is_latest() || raw.len() < CFI_PREAMBLE_BYTES {
        return Err(format!("it is a CFI cache of version {}", cache.version()));
    }
    let records = std::str::from_utf8(cache.as_slice()).map_err(|error| error.to_string())?;
    let first = records.lines().next().unwrap_or_default();
    let begins_well = first.starts_with("STACK ") || first.starts_with("MODULE ");
    let is_whole = begins_well && records.ends_with('\n');
    if !records.is_empty() && !is_whole {
        return Err("it contains lines that are not records".to_owned());
    }
    Ok(())
}

/// Returns the records of a valid raw CFI cache.
pub(super) fn records(raw: &[u8]) -> &[u8] {
    raw.get(CFI_PREAMBLE_BYTES..).unwrap_or_default()
}
