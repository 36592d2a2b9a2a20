//! What the tests across packages share.

#[cfg(feature = "harness")]
pub mod contract;
#[cfg(feature = "harness")]
pub mod harness;
pub mod bench_real;
pub mod stack;
