//! Refusals: why a change does not apply.

use crate::domain::Timestamp;

/// Why a change does not apply to the stored entry. A refusal is an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A build request is already pending.
    Requested,
    /// Another builder holds the lease.
    Leased,
    /// The entry backs off until this time.
    BackingOff {
        /// The end of the back-off.
        until: Timestamp,
    },
    /// The lease expired or was revoked.
    LeaseLost,
    /// The same change was made too recently.
    TooSoon,
    /// The last build already considered this DIF.
    Considered,
    /// The entry has nothing that the change applies to.
    Nothing,
    /// The entry or its older state is in use, or is being built.
    InUse,
}
