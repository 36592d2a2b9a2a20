//! Limits of Lambda.

/// The maximum size of an event ("Lambda quotas": synchronous invocations).
pub const MAX_EVENT: usize = 6 * 1024 * 1024;

/// The maximum size of a response: 6 MB plus the 100 bytes that AWS allows.
pub(super) const MAX_ANSWER: usize = 6 * 1024 * 1024 + 100;
