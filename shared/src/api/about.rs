//! The response of `GET /about`: which service this is, and what it can do.

use serde::{Deserialize, Serialize};

use super::limits;

/// What a service is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceInfo {
    /// The version of the program.
    pub version: String,
    /// The number of the code that derives caches.
    pub converter: u32,
    /// What the service can do beyond `/symbolicate`, by name. Clients ignore unknown names.
    pub features: Vec<String>,
    /// The limits of a request.
    pub limits: ServiceLimits,
}

/// The limits of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceLimits {
    /// The size of a body, in bytes.
    pub body_bytes: usize,
    /// The size of a response, in bytes.
    pub answer_bytes: usize,
    /// The number of stack traces.
    pub stacktraces: usize,
    /// The number of frames in all stack traces.
    pub frames: usize,
    /// The number of modules.
    pub modules: usize,
    /// The number of sources.
    pub sources: usize,
}

impl ServiceInfo {
    /// The names of all features.
    pub const FEATURES: [&str; 9] = [
        "applecrashreport",
        "explain",
        "minidump",
        "ms_symcache",
        "rollout",
        "source_lines",
        "symcache",
        "uploads",
        "wanted",
    ];

    /// Returns what a service with this converter is.
    pub fn of(converter: u32) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            converter,
            features: Self::FEATURES.map(str::to_owned).to_vec(),
            limits: ServiceLimits {
                body_bytes: limits::BODY_BYTES,
                answer_bytes: limits::ANSWER_BYTES,
                stacktraces: limits::STACKTRACES,
                frames: limits::FRAMES,
                modules: limits::MODULES,
                sources: limits::SOURCES,
            },
        }
    }
}
