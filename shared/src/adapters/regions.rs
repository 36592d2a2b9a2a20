//! The regions of AWS.

/// Returns the domain in which the services of AWS have their host names in a region.
///
/// Source: AWS General Reference, "AWS service endpoints", and `partitions.json` of the SDKs.
pub(in crate::adapters) fn domain_of(region: &str) -> &'static str {
    if region.starts_with("cn-") {
        "amazonaws.com.cn"
    } else if region.starts_with("eusc-") {
        "amazonaws.eu"
    } else {
        "amazonaws.com"
    }
}
