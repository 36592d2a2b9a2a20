//! The body of `/symbolicate`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Frame, Hex, Module, Scraping, Sources, object, objects};
#[cfg(feature = "openapi")]
use crate::api::limits;

/// A crash to symbolicate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(rename = "SymbolicateRequest"))]
pub struct Request {
    /// The platform of the process. It has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The POSIX signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
    /// The sources to search.
    #[serde(default)]
    pub sources: Sources,
    /// The stack traces of its threads.
    #[serde(default, deserialize_with = "objects")]
    #[cfg_attr(feature = "openapi", schemars(length(max = limits::STACKTRACES)))]
    pub stacktraces: Vec<Stacktrace>,
    /// The modules in its address space.
    #[serde(default, deserialize_with = "objects")]
    #[cfg_attr(feature = "openapi", schemars(length(max = limits::MODULES)))]
    pub modules: Vec<Module>,
    /// The options of the response.
    #[serde(default, deserialize_with = "object")]
    pub options: Options,
    /// Whether links to source files may be followed.
    #[serde(
        default,
        skip_serializing_if = "Scraping::is_default",
        deserialize_with = "object"
    )]
    pub scraping: Scraping,
}

/// The stack trace of a thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Stacktrace {
    /// The id of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<u64>,
    /// The name of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_name: Option<String>,
    /// Whether this is the thread that crashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_requesting: Option<bool>,
    /// The registers in the topmost frame, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schemars(extend("maxProperties" = limits::REGISTERS)))]
    pub registers: BTreeMap<String, Hex>,
    /// The frames, in the order that the option `frame_order` says.
    #[serde(deserialize_with = "objects")]
    pub frames: Vec<Frame>,
}

/// The options of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Options {
    /// Whether modules list the DIFs that were considered for them.
    pub dif_candidates: bool,
    /// Whether frames show the surrounding source lines.
    pub apply_source_context: bool,
    /// The order of the frames, in the request and in the response.
    pub frame_order: FrameOrder,
    /// Whether frames list the variables of their functions.
    pub extract_variables: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dif_candidates: false,
            apply_source_context: true,
            frame_order: FrameOrder::default(),
            extract_variables: false,
        }
    }
}

/// An order of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FrameOrder {
    /// The topmost frame, which the thread is executing, comes first.
    #[default]
    CalleeFirst,
    /// The topmost frame comes last.
    CallerFirst,
}
