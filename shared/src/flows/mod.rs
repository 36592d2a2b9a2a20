//! The three sentences, over the ports.
//!
//! - *An upload becomes derived caches*: [`uploads`] (events of the bucket) and [`mod@derive`] (messages of the lanes) both
//!   end in [`build`]: lease, [`find`], [`fetch`], parse, publish.
//! - *A request becomes a response*: [`symbolicate`], which reads through [`memory`], and [`requests`] for those that
//!   were answered `pending`.
//! - *A schedule removes what is no longer used*: [`prune`], which also counts for [`rollout`].
//!
//! Every write of a record goes through [`Update`]. The clock and chance are in [`Invocation`], which the edge makes.

pub mod build;
mod build_requests;
mod copies;
mod definitions;
pub mod derive;
mod error;
pub mod explain;
pub mod fetch;
pub mod find;
mod invocation;
mod items;
pub mod memory;
pub mod ms_symcache;
mod opening;
mod permits;
mod places;
pub mod plain;
mod presence;
pub mod prune;
pub mod requests;
pub mod retries;
pub mod rollout;
mod settings;
pub mod symbolicate;
mod symbolicator;
pub mod unwinding;
mod update;
pub mod uploads;
mod waiting;

pub use definitions::{InvalidSecret, SourceSecret};
pub use error::Error;
pub use invocation::Invocation;
pub use settings::{Server, Settings};
pub use update::{Update, Updated};
