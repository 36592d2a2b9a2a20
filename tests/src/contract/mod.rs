//! What every implementation of a port must do, whatever is behind it: one function a promise.
//!
//! Each function uses keys of its own, so that all can run on one store, one after the other or at
//! once. They panic where the promise is broken.

#![expect(
    clippy::unwrap_used,
    reason = "a promise that is broken fails its test"
)]

pub mod blobs;
pub mod difs;
pub mod records;
