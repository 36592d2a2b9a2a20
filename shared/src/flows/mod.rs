//! The three flows of the service, written against the ports.
//!
//! - *An upload becomes derived caches.* [`uploads`] processes the events of the uploads bucket,
//!   and [`build_messages`] the messages of the queues. Both end in [`build`]: take the leases,
//!   find the DIFs ([`ranking`]), fetch them ([`fetch`]; `download` from symbol servers), derive,
//!   publish.
//! - *A request becomes a response.* [`symbolicate`] answers requests through the instance's memory
//!   ([`memory`]). [`mod@minidump`] walks the stacks of a minidump, which then are a request.
//!   [`attachments`] are crash files that requests refer to.
//!   [`requests`] stores a request whose response was `pending`, so that any instance can continue
//!   it.
//! - *A schedule removes what is no longer used.* [`prune`] also counts the entries for
//!   [`rollout`].
//!
//! Entries and upload items are changed through [`RecordWriter`]; what is removed, and the cursor
//! of [`prune`], by compare-and-swap on the revision that was just read. [`Invocation`] provides
//! the clock and the randomness; `runtime` creates it.

pub mod about;
mod access;
pub mod attachments;
pub mod build;
pub mod build_messages;
mod build_requests;
mod copies;
mod definitions;
pub mod dif_parser;
mod download;
mod error;
mod explain;
pub mod fetch;
mod http_service;
mod invocation;
mod known_tokens;
mod lookup;
pub mod memory;
pub mod minidump;
mod moment;
pub mod ms_symcache;
mod notes;
mod opening;
pub mod parsing;
mod permits;
pub mod plain;
mod presence;
pub mod prune;
pub mod ranking;
pub mod requests;
pub mod retries;
pub mod rollout;
mod sending;
mod settings;
pub mod spans;
pub mod symbolicate;
pub mod unwinding;
mod update;
mod upload_requests;
pub mod uploads;
mod waiting;

pub use definitions::{InvalidSecret, SourceSecret};
pub use error::Error;
pub use http_service::HttpService;
pub use invocation::Invocation;
pub use notes::Notes;
pub use settings::{Server, Settings};
pub use update::{RecordWriter, Updated};
