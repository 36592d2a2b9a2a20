//! What this build of the service is, for `GET /about`.

use crate::api::about::ServiceInfo;
use crate::cache::Converter;

/// Returns what this build is.
pub fn about() -> ServiceInfo {
    ServiceInfo::of(Converter::CURRENT.0)
}
