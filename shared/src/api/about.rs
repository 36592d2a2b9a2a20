//! The response of `GET /about`: which service this is, and what it can do.

use serde::{Deserialize, Serialize};

use super::{limits, uploads};

/// What a service is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
    /// The limits of `POST /uploads`; absent in versions that do not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploads: Option<UploadLimits>,
}

/// The limits of `POST /uploads`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UploadLimits {
    /// The number of files of a request.
    pub files: usize,
    /// The size from which a file is sent in parts, in bytes.
    pub bytes_in_parts: u64,
    /// The size of each part but the last, in bytes.
    pub part_bytes: u64,
    /// The time for which a signed request is valid, in seconds.
    pub signature_seconds: u64,
}

impl ServiceInfo {
    /// The names of all features.
    pub const FEATURES: [&str; 13] = [
        "applecrashreport",
        "attachments",
        "explain",
        "minidump",
        "ms_symcache",
        "rollout",
        "source_lines",
        "symbolicate_any",
        "symbolicate_v5",
        "symcache",
        "tokens",
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
                uploads: Some(UploadLimits {
                    files: uploads::FILES,
                    bytes_in_parts: uploads::BYTES_IN_PARTS,
                    part_bytes: uploads::PART_BYTES,
                    signature_seconds: uploads::SIGNATURE_SECONDS,
                }),
            },
        }
    }
}
