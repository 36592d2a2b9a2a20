//! What the tests across packages share.

pub mod contract;
pub mod harness;
pub mod bench_real;
pub mod stack;
