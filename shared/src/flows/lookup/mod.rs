//! Looks entries up: the way in which every protocol finds its caches.
//!
//! A protocol describes what it looks for as [`Lookup`]s, each with the places that may have it.
//! [`CacheFinder`] then does two steps, in as many rounds as the protocol waits:
//!
//! 1. *Load* the items of all places, in one round of reads. A second round follows aliases.
//! 2. *Select* among them (pure: [`crate::cache::select()`]). Only for the symbol servers that a
//!    build would be requested from, it also loads whether their circuit is open.
//!
//! The protocol acts on the selection: it reads the blob, waits, or requests builds.

mod chosen;
mod finder;
mod health;
mod load;
mod loaded;
mod lookups;
mod places;
mod read_through;
mod sources;

pub(super) use chosen::Chosen;
pub(super) use finder::CacheFinder;
pub(super) use loaded::Items;
pub(super) use lookups::Lookup;
pub(super) use places::CachePlace;
pub(super) use sources::SelectedSource;
