//! The ports made real: by AWS, in memory, and broken on purpose.
//!
//! An adapter knows its port and what is behind it; it knows no flow.

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
pub mod scratch;
