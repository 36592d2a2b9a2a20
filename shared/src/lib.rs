//! Native symbolication with nothing to operate: what the three functions share.
//!
//! Three flows. *An upload becomes derived caches* ([`flows::uploads`], [`flows::derive`]). *A request becomes a
//! response* ([`flows::symbolicate`]). *A schedule removes what is no longer used* ([`flows::prune`]).
//!
//! The layers, each using only those before it: [`domain`], [`api`], [`cache`], [`debuginfo`], [`symbolicate`],
//! [`unwind`], [`ports`], [`flows`], [`adapters`] (which know no flow), [`runtime`]. A test holds the table.

pub mod adapters;
pub mod api;
pub mod cache;
pub mod debuginfo;
pub mod domain;
pub mod flows;
pub mod ports;
#[cfg(feature = "aws")]
pub mod runtime;
pub mod symbolicate;
pub mod unwind;
