//! What the tests across packages share.

pub mod bench_latency;
pub mod bench_plots;
pub mod bench_real;
#[cfg(feature = "harness")]
pub mod contract;
#[cfg(feature = "harness")]
pub mod harness;
pub mod hostile;
pub mod made_up;
pub mod stack;
