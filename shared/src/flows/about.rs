//! What this release of the service is, for `GET /about`.

use crate::api::about::ServiceInfo;
use crate::cache::Converter;

/// Returns what this release is.
pub fn about() -> ServiceInfo {
    ServiceInfo::of(Converter::CURRENT.0)
}
