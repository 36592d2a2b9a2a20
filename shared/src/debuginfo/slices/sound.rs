//! What makes a SymCache safe to look up in.

use symbolic::symcache::{SYMCACHE_VERSION, SymCache};

use super::{SymCacheTables, raw};
use crate::debuginfo::failure::chain;
use crate::domain::DebugId;

/// Checks a SymCache so far that no lookup in it can go wrong; else says what is wrong with it.
pub(in crate::debuginfo) fn validate(raw: &[u8], debug_id: Option<DebugId>) -> Result<(), String> {
    sound_tables(raw, debug_id).map(|_| ())
}

pub(in crate::debuginfo) fn sound_tables(
    raw: &[u8],
    debug_id: Option<DebugId>,
) -> Result<SymCacheTables<'_>, String> {
    let cache = SymCache::parse(raw).map_err(|error| chain(&error))?;
    if cache.version() != SYMCACHE_VERSION {
        return Err(format!("it is a SymCache of version {}", cache.version()));
    }
    if Some(cache.debug_id()).filter(|id| !id.is_nil()) != debug_id {
        return Err(format!("it is the SymCache of {}", cache.debug_id()));
    }
    SymCacheTables::read(raw)
        .filter(|tables| tables.validate().is_some())
        .ok_or_else(|| "its inlined calls do not add up".to_owned())
}

/// Returns how long a SymCache is that begins with these bytes; `None` where its header is not
/// whole.
pub(in crate::debuginfo) fn length_of(begin: &[u8]) -> Option<u64> {
    (begin.len() == raw::HEADER_BYTES)
        .then(|| SymCacheTables::length_of(begin))
        .flatten()
}
