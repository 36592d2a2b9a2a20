//! Crash files: what a file says about a crash, in the form of a request to symbolicate.
//!
//! A file has two parts for the service. Its stack traces and modules become a [`Request`], which
//! is answered like any other one. Everything else ([`CrashFacts`]) is repeated in the response.
//!
//! [`apple`] reads the crash reports of Apple's systems.

pub mod apple;
mod facts;
pub mod form;
mod unwinding;

pub use facts::CrashFacts;
pub use unwinding::ModuleUnwinding;

use serde::{Deserialize, Serialize};

use self::form::CrashFields;
use super::symbolicator::{FrameOrder, Request};

/// A crash that was read from a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CrashFile {
    /// What the response repeats.
    #[serde(default)]
    pub facts: CrashFacts,
    /// The stack traces and modules, and how they are symbolicated.
    pub request: Request,
    /// How each module was unwound, in the order of the modules; empty if the file has stack traces
    /// already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unwinding: Vec<Option<ModuleUnwinding>>,
}

impl CrashFile {
    /// Sets what the file does not contain: the platform, the sources to search, and the options
    /// of the response.
    ///
    /// The frames of a file begin with the callee. They are put into the order of the options.
    #[must_use]
    pub fn asked_for(mut self, fields: CrashFields) -> Self {
        let CrashFields {
            platform,
            sources,
            options,
            scraping,
        } = fields;
        let request = &mut self.request;
        request.platform = platform;
        request.sources = sources;
        request.options = options;
        request.scraping = scraping;
        if options.frame_order == FrameOrder::CallerFirst {
            for stacktrace in &mut request.stacktraces {
                stacktrace.frames.reverse();
            }
        }
        self
    }
}
