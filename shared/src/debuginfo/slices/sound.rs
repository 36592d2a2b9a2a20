//! Checks that make a SymCache safe for lookups.

use symbolic::symcache::{SYMCACHE_VERSION, SymCache};

use super::{SymCacheTables, raw};
use crate::debuginfo::failure::chain;
use crate::domain::DebugId;

/// Checks that no lookup in a SymCache can fail. The error says what is wrong with it.
pub(in crate::debuginfo) fn validate(raw: &[u8], debug_id: Option<DebugId>) -> Result<(), String> {
    sound_tables(raw, debug_id).map(|_| ())
}

pub(in crate::debuginfo) fn sound_tables(
    raw: &[u8],
    debug_id: Option<DebugId>,
) -> Result<SymCacheTables<'_>, String> {
    let cache = SymCache::parse(raw).map_err(|error| chain(&error))?;
    if cache.version() != SYMCACHE_VERSION {
        return Err(format!("unsupported SymCache version {}", cache.version()));
    }
    if Some(cache.debug_id()).filter(|id| !id.is_nil()) != debug_id {
        return Err(format!(
            "its debug id is {}, which is not the one in the footer",
            cache.debug_id()
        ));
    }
    SymCacheTables::read(raw)
        .filter(|tables| tables.validate().is_some())
        .ok_or_else(|| "its tables are inconsistent".to_owned())
}

/// Returns the length of a SymCache from its header. Returns `None` if `begin` is not exactly a
/// header.
pub(in crate::debuginfo) fn length_of(begin: &[u8]) -> Option<u64> {
    (begin.len() == raw::HEADER_BYTES)
        .then(|| SymCacheTables::length_of(begin))
        .flatten()
}
