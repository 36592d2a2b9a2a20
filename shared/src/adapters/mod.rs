//! Implementations of the ports: on AWS, in memory, and with injected faults.
//!
//! An adapter knows its port and the service behind it, but no flow.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "http")]
mod backoff;
pub mod demangler;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod parser;
#[cfg(feature = "http")]
mod regions;
pub mod scratch;
