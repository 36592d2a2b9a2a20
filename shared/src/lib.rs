//! The crate that the three functions of symdepot share: native symbolication, serverless.
//!
//! There are three flows. *An upload becomes derived caches* ([`flows::uploads`],
//! [`flows::build_messages`]). *A request becomes a response* ([`flows::symbolicate`]). *A schedule
//! removes what is no longer used* ([`flows::prune`]).
//!
//! The layers, each of which uses only those before it: [`domain`], [`api`], [`cache`],
//! [`debuginfo`], [`symbolicate`], [`unwind`], [`ports`], [`flows`], [`adapters`] (which do not use
//! the flows), [`runtime`]. `ARCHITECTURE.md` has the complete table, which a test enforces.

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
