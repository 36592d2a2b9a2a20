//! Wire formats, one module per protocol: request and response types, without handling logic.

pub mod about;
pub mod advice;
pub mod caller;
pub mod crash;
pub mod entrance;
pub mod explain;
pub mod explained;
pub mod limits;
pub mod mozilla;
pub mod report;
#[cfg(feature = "openapi")]
pub(crate) mod schema;
pub mod symbolicator;
pub mod symcache_http;
pub mod tokens;
pub mod uploads;
pub mod wanted;
