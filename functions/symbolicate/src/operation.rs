//! The operations of the service, and what each requires of its caller.

use symdepot::api::caller::{Need, Right};

/// What a route is for. Each operation has one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Symbolicate,
    Minidump,
    AppleCrashReport,
    SymbolicateAny,
    /// Mozilla's symbolication API.
    SymbolicateJobs,
    Attachments,
    ContinueRequest,
    Uploads,
    Explain,
    SymCache,
    Rollout,
    Wanted,
    IssueToken,
    ListTokens,
    RevokeToken,
    About,
    HealthCheck,
    /// A file of Microsoft's protocol. Its paths, which may have a prefix, differ from each other
    /// only in their shape, so they are served by the fallback.
    MsSymCache,
}

impl Operation {
    /// Returns what it requires of its caller.
    pub(crate) fn needs(self) -> Need {
        match self {
            Self::Symbolicate
            | Self::Minidump
            | Self::AppleCrashReport
            | Self::SymbolicateAny
            | Self::SymbolicateJobs
            | Self::Attachments
            | Self::ContinueRequest => Need::AnyOf(&[Right::Symbolicate]),
            Self::Uploads | Self::Wanted => Need::AnyOf(&[Right::Upload]),
            // It explains responses as well as uploads.
            Self::Explain => Need::AnyOf(&[Right::Symbolicate, Right::Upload]),
            Self::SymCache | Self::MsSymCache => Need::AnyOf(&[Right::Download]),
            Self::IssueToken | Self::ListTokens | Self::RevokeToken => Need::Admin,
            Self::Rollout => Need::AdminEverywhere,
            Self::About | Self::HealthCheck => Need::Credential,
        }
    }
}
