//! What the tests across packages share.

pub mod contract;
pub mod bench_real;
pub mod stack;
