//! Crash files: what a file says about a crash, in the form of a request to symbolicate.
//!
//! A file has two parts for the service. Its stack traces and modules become a [`Request`], which
//! is answered like any other one. Everything else ([`CrashFacts`]) is repeated in the response.
//!
//! [`apple`] reads the crash reports of Apple's systems. [`attachment`] names files that are not
//! sent with a request.

pub mod any;
pub mod apple;
pub mod attachment;
mod facts;
pub mod form;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
pub mod rewrite;
pub mod stackwalk;
mod unwinding;

pub use facts::CrashFacts;
pub use unwinding::ModuleUnwinding;

use serde::{Deserialize, Serialize};

use self::form::CrashFields;
use self::stackwalk::StackwalkReport;
use super::symbolicator::{FrameOrder, Module, Options, Request};
use crate::domain::ResponseFormat;

/// A crash that was read from a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadCrash {
    /// What the response repeats.
    #[serde(default)]
    pub facts: CrashFacts,
    /// The stack traces and modules, and how they are symbolicated.
    pub request: Request,
    /// How each module was unwound, in the order of the modules; empty if the file has stack traces
    /// already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unwinding: Vec<Option<ModuleUnwinding>>,
    /// The module that is looked up under another name than that of its debug file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed: Option<RenamedModule>,
    /// What a minidump says in another schema, if the answer has that schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stackwalk: Option<StackwalkReport>,
}

/// A module that is looked up under another name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenamedModule {
    /// Its index in the request.
    pub index: usize,
    /// The name of its debug file, which the response repeats.
    pub debug_file: Option<String>,
}

/// Returns the module with the lowest address, with its index.
pub fn first_module<'a>(modules: impl Iterator<Item = &'a Module>) -> Option<(usize, &'a Module)> {
    modules
        .enumerate()
        .min_by_key(|(_, module)| module.image_addr)
}

impl ReadCrash {
    /// Returns the schema of the answer.
    pub fn format(&self) -> ResponseFormat {
        match self.stackwalk {
            Some(_) => ResponseFormat::Stackwalk,
            None => ResponseFormat::Symbolicator,
        }
    }

    /// Sets what the file does not contain: the platform, the sources to search, and the options
    /// of the response.
    ///
    /// The first module is renamed for lookups, if a rule says so.
    ///
    /// The frames of a file begin with the callee. They are put into the order of the options. The
    /// schema of `minidump-stackwalk` has one order, and neither source lines nor candidates.
    #[must_use]
    pub fn with_fields(mut self, fields: CrashFields) -> Self {
        let CrashFields {
            platform,
            sources,
            options,
            rewrite_first_module,
            scraping,
            format,
        } = fields;
        let options = match format {
            ResponseFormat::Symbolicator => options,
            ResponseFormat::Stackwalk => Options {
                apply_source_context: false,
                ..Options::default()
            },
        };
        let request = &mut self.request;
        request.platform = platform;
        request.sources = sources;
        request.options = options;
        request.scraping = scraping;
        let first = first_module(request.modules.iter());
        if let Some((index, debug_file)) = rewrite_first_module.renamed(first) {
            let module = &mut request.modules[index];
            self.renamed = Some(RenamedModule {
                index,
                debug_file: module.debug_file.replace(debug_file),
            });
        }
        if options.frame_order == FrameOrder::CallerFirst {
            for stacktrace in &mut request.stacktraces {
                stacktrace.frames.reverse();
            }
        }
        self
    }
}
