//! The names of changes and refusals, in traces and in docs/protocol.md.

use super::{Change, Refused};

impl Change {
    /// Returns the name.
    pub fn name(&self) -> &'static str {
        match self {
            Change::RequestBuild { .. } => "request a build",
            Change::TakeLease { .. } => "take the lease",
            Change::Extend { .. } => "extend",
            Change::Publish { .. } => "publish",
            Change::Fail { .. } => "fail",
            Change::ReleaseInterrupted { .. } => "release interrupted",
            Change::ReleaseUntried { .. } => "release untried",
            Change::ReleaseKilled { .. } => "release killed",
            Change::Touch => "touch",
            Change::Invalidate { .. } => "invalidate",
            Change::Revoke { .. } => "revoke",
            Change::Suspect { .. } => "suspect",
            Change::ConfirmLoss { .. } => "confirm loss",
            Change::Dispute { .. } => "dispute",
            Change::ClearLease => "clear lease",
            Change::DropOlder => "drop older",
            Change::Retire => "retire",
        }
    }
}

impl Refused {
    /// Returns the name.
    pub fn name(&self) -> &'static str {
        match self {
            Refused::Requested => "requested",
            Refused::Leased => "leased",
            Refused::BackingOff { .. } => "backing off",
            Refused::LeaseLost => "lease lost",
            Refused::TooSoon => "too soon",
            Refused::Considered => "considered",
            Refused::Nothing => "nothing",
            Refused::InUse => "in use",
        }
    }
}
