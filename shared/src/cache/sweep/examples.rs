//! Example entries for the tests of sweeps.

use crate::cache::change::examples::{Offer, built, dif, entry, fail, take, then};
use crate::cache::{Converter, Entry, Ready, ReleaseNumbers};
use crate::domain::Cause;

pub(super) const NUMBERS: ReleaseNumbers = ReleaseNumbers::CURRENT;

/// Returns an entry with a current state, which `change` changes.
pub(super) fn ready(change: impl FnOnce(&mut Ready)) -> Entry {
    let mut entry = built(NUMBERS.symcache, Offer::Debug, &dif("a"));
    change(entry.ready.as_mut().unwrap());
    entry
}

/// Returns an entry whose last build failed for this cause with this converter.
pub(super) fn failed(mut with: Entry, cause: Cause, converter: Converter) -> Entry {
    let failed = then(&then(&entry(), &take(1), 0), &fail(1, cause, &[]), 0);
    with.missing = failed.missing;
    with.missing.as_mut().unwrap().converter = converter;
    with
}
