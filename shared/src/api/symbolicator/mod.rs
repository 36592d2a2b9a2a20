//! Symbolicator's wire format: the body of `/symbolicate`, and the responses of `/symbolicate` and
//! `/requests/{id}`.
//!
//! The types are plain data in both directions. Unknown fields are ignored; fields without a value
//! are omitted.
//!
//! Symbolicator's peculiarities are handled as follows:
//!
//! - *kept*: the end of a module is inclusive; `in_app` is lost on frames that were symbolicated;
//!   the first frame of every stack trace counts as the crashing one, unless
//!   [`Frame::adjust_instruction_addr`] says otherwise; `original_index` counts from the callee,
//!   also if the frames were sent caller first;
//! - *fixed*: `?scope=global` is the global scope; the body must be an object, not a list of its
//!   values; every error has a JSON body; a module whose frames were all dropped keeps the status
//!   that it had because of them;
//! - *added*: an element of `sources` may be a string, which names a configured source;
//!   [`CompletedModule::debug_detail`] and the details of [`Derivation::Malformed`] say what is
//!   wrong with a DIF.
//!
//! ```
//! use symdepot::api::symbolicator::{AddrMode, parse_request};
//!
//! let request = parse_request(br#"{
//!     "stacktraces": [{"frames": [{"instruction_addr": "0x100000fa0"}, {"instruction_addr": 140, "addr_mode": "rel:0"}]}],
//!     "modules": [{"type": "macho", "debug_id": "502fc0a51ec13e479998684fa139dca7", "image_addr": "0x100000000"}]
//! }"#)?;
//! assert_eq!(request.stacktraces[0].frames[1].addr_mode, AddrMode::Rel(0));
//! assert_eq!(request.modules[0].debug_id.unwrap().to_string(), "502fc0a5-1ec1-3e47-9998-684fa139dca7");
//! # Ok::<(), symdepot::api::symbolicator::RequestError>(())
//! ```

mod bounded;
mod candidate;
mod error;
mod frame;
mod hex;
mod module;
mod object;
mod parse;
mod query;
mod request;
mod response;
mod scraping;
mod size;
mod sources;

pub use candidate::{CandidateReport, Derivation, DownloadStatus};
pub use error::{ErrorBody, RequestError};
pub use frame::{AddrMode, CompletedFrame, Frame, FrameStatus, FrameTrust, Variables};
pub use hex::Hex;
pub use module::{CompletedModule, Module, ModuleStatus};
pub(in crate::api) use object::{JsonObject, object, objects, optional_object};
pub use parse::parse_request;
pub(in crate::api) use parse::{parse_body, without_byte_order_mark};
pub use query::Query;
pub(in crate::api) use query::{pasted_pairs, query_pairs};
pub use request::{FrameOrder, Options, Request, Stacktrace};
pub use response::{Completed, CompletedStacktrace, RETRY_AFTER_SECONDS, Response, SystemInfo};
pub use scraping::Scraping;
pub use size::{ThreadSize, frames_left, json_bytes, json_within};
pub use sources::{Selected, SourceRef, Sources};
