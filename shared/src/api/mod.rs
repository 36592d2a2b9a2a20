//! Wire formats, one module per protocol: request and response types, without handling logic.

pub mod advice;
pub mod crash;
pub mod explain;
pub mod limits;
pub mod symbolicator;
pub mod symcache_http;
