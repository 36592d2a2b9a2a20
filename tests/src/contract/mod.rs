//! What every implementation of a port guarantees: one function per guarantee.
//!
//! Each function uses its own keys, so that all can run on one store, sequentially or concurrently.
//! A function panics if the guarantee is violated.

#![expect(clippy::unwrap_used, reason = "a violated guarantee fails its test")]

pub mod blobs;
pub mod difs;
pub mod records;
