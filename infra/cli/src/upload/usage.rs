//! What requests use of a file that the service has applied.
//!
//! That the service has read a file and filed it under its modules is not enough: it may have
//! derived nothing from it, or prefer another file. `GET /explain` says so for each object.

use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;
use symdepot::api::explained::{CacheUsage, ExplainedUpload};
use symdepot::domain::UploadState;

use crate::client::Client;
use crate::error::CliError;

/// What the service says about a file that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServiceState {
    Pending,
    /// It is filed under its modules. What requests use of it was not asked, or the answer is that
    /// of a newer service.
    Applied,
    InUse,
    /// Requests use another upload of the same program, with this key.
    NotNeeded(String),
    /// Requests use only a part of it, for this reason.
    InPart(String),
    /// Requests do not use it, for this reason.
    Unused(String),
    Ignored(String),
    /// It was removed after the service had applied it.
    Removed,
}

/// Asks what requests use of the upload with this key. It is pending while its caches are built.
pub(super) async fn of(client: &Client, key: &str) -> Result<ServiceState, CliError> {
    let query = [("key", key)];
    let asked = client.json::<Value>(Method::GET, "/explain", &query, Vec::new());
    match asked.await {
        Ok(answer) => Ok(match ExplainedUpload::deserialize(&answer) {
            Ok(upload) => judge(&upload),
            // A newer service has something that this program does not know.
            Err(_) => ServiceState::Applied,
        }),
        // An older service does not have the route.
        Err(CliError::Unsupported { .. }) => Ok(ServiceState::InUse),
        // The service had an item of the file when it said that the file is applied.
        Err(CliError::Status { status: 404, .. }) => Ok(ServiceState::Removed),
        Err(error) => Err(error),
    }
}

/// Returns what requests use of an explained upload. An older service does not say it, and its
/// uploads count as used.
///
/// Only the objects that have `caches` are judged: the service lists the caches of the first 250
/// objects of a file, and an object for which no cache is made has none.
fn judge(upload: &ExplainedUpload) -> ServiceState {
    match &upload.state {
        UploadState::Pending => return ServiceState::Pending,
        UploadState::Ignored { reason } => return ServiceState::Ignored(reason.clone()),
        UploadState::Gone => return ServiceState::Removed,
        UploadState::Applied => {}
    }
    let caches = upload.objects.iter().flat_map(|object| &object.caches);
    let caches: Vec<&CacheUsage> = caches.map(|cache| &cache.usage).collect();
    if caches.contains(&&CacheUsage::Pending) {
        return ServiceState::Pending;
    }
    let mut advice = upload.objects.iter().flat_map(|object| &object.advice);
    if let Some(unused) = advice.find(|advice| advice.is_about_use()) {
        let reason = unused.to_string();
        return if caches.iter().any(|usage| is_of_the_upload(usage)) {
            ServiceState::InPart(reason)
        } else {
            ServiceState::Unused(reason)
        };
    }
    let others: Option<Vec<_>> = caches.into_iter().map(other_upload).collect();
    match others.unwrap_or_default().first() {
        Some(other) => ServiceState::NotNeeded((*other).to_owned()),
        None => ServiceState::InUse,
    }
}

/// Returns whether a cache is made of the upload, or will be.
fn is_of_the_upload(usage: &CacheUsage) -> bool {
    match usage {
        CacheUsage::Used | CacheUsage::Unbuilt => true,
        CacheUsage::OtherUpload { .. }
        | CacheUsage::Failed { .. }
        | CacheUsage::Unsupported { .. }
        | CacheUsage::Pending => false,
    }
}

/// Returns the key of the other upload that a cache is made of, if it is.
fn other_upload(usage: &CacheUsage) -> Option<&str> {
    match usage {
        CacheUsage::OtherUpload { made_from } => Some(made_from.as_str()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(caches: &Value, advice: &Value) -> Value {
        let features = json!({
            "has_debug_info": true, "has_unwind_info": true, "has_symbols": true,
            "has_sources": false,
        });
        json!({
            "file_type": "elf_code", "arch": "x86_64", "features": features, "caches": caches,
            "advice": advice,
        })
    }

    fn judged(state: &str, objects: &[Value]) -> ServiceState {
        let upload = json!({
            "key": "global/1", "state": state, "reason": "why", "etag": "1", "sequencer": "01",
            "size": 1, "at": 1, "objects": objects,
        });
        judge(&ExplainedUpload::deserialize(&upload).unwrap())
    }

    #[test]
    fn a_file_is_in_use_only_if_caches_are_made_of_it() {
        let cache = |state: &str| json!({"kind": "symcache", "state": state, "detail": "why"});
        let other = json!({"kind": "symcache", "state": "other_upload", "made_from": "global/1"});
        let none = Value::Null;
        let advice = |cause: &str| json!({"cause": cause, "detail": "why", "next_step": "what"});
        let reason = "why; what".to_owned();
        for (caches, advice, expected) in [
            (json!([cache("used")]), &none, ServiceState::InUse),
            (json!([cache("unbuilt")]), &none, ServiceState::InUse),
            (json!([]), &none, ServiceState::InUse),
            (
                json!([cache("used"), cache("pending")]),
                &none,
                ServiceState::Pending,
            ),
            (
                json!([cache("used")]),
                &advice("no_build_id"),
                ServiceState::InUse,
            ),
            (
                json!([cache("failed")]),
                &advice("unusable"),
                ServiceState::Unused(reason.clone()),
            ),
            (
                json!([cache("used"), cache("failed")]),
                &advice("unusable"),
                ServiceState::InPart(reason.clone()),
            ),
            (
                json!([other]),
                &advice("shared_id"),
                ServiceState::Unused(reason),
            ),
            (
                json!([other]),
                &none,
                ServiceState::NotNeeded("global/1".to_owned()),
            ),
            (json!([cache("used"), other]), &none, ServiceState::InUse),
        ] {
            let object = object(&caches, advice);
            assert_eq!(judged("applied", &[object]), expected, "{caches}");
        }
    }

    #[test]
    fn the_objects_whose_caches_are_not_listed_are_not_judged() {
        let other = json!({"kind": "symcache", "state": "other_upload", "made_from": "global/1"});
        let stripped = json!({"cause": "stripped", "detail": "why", "next_step": "what"});
        let listed = object(&json!([other]), &Value::Null);
        let not_listed = object(&json!([]), &stripped);
        let not_needed = ServiceState::NotNeeded("global/1".to_owned());
        let both = [listed, not_listed.clone()];
        assert_eq!(judged("applied", &both), not_needed);
        assert_eq!(judged("applied", &[not_listed]), ServiceState::InUse);
    }

    #[test]
    fn a_file_that_is_gone_or_ignored_is_not_in_use() {
        assert_eq!(judged("gone", &[]), ServiceState::Removed);
        let ignored = ServiceState::Ignored("why".to_owned());
        assert_eq!(judged("ignored", &[]), ignored);
    }
}
