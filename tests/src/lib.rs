//! Shared code of the tests that span several packages.

#[cfg(feature = "bench")]
pub mod bench_latency;
#[cfg(feature = "bench")]
pub mod bench_plots;
#[cfg(feature = "bench")]
pub mod bench_real;
#[cfg(feature = "harness")]
pub mod contract;
pub mod grants;
#[cfg(feature = "harness")]
pub mod harness;
#[cfg(feature = "bench")]
pub mod hostile;
#[cfg(feature = "bench")]
pub mod hostile_server;
#[cfg(feature = "bench")]
pub mod made_up;
#[cfg(feature = "bench")]
pub mod made_up_dump;
#[cfg(feature = "harness")]
pub mod simulate;
pub mod stack;
