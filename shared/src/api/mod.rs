//! Wire formats, one module a protocol: what is said over HTTP, and nothing of how it is answered.

pub mod advice;
pub mod explain;
pub mod limits;
pub mod symbolicator;
pub mod symcache_http;
