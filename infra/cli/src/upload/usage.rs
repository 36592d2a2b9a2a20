//! What requests use of a file that the service has applied.
//!
//! That the service has read a file and filed it under its modules is not enough: it may have
//! derived nothing from it, or prefer another file. `GET /explain` says so for each object.

use reqwest::Method;
use serde_json::Value;

use crate::client::Client;
use crate::error::CliError;

/// What the service says about a file that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServiceState {
    Pending,
    /// It is filed under its modules. What requests use of it was not asked.
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
        Ok(upload) => Ok(judge(&upload)),
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
fn judge(upload: &Value) -> ServiceState {
    let objects = list(upload, "objects");
    let caches: Vec<&Value> = objects.clone().flat_map(|it| list(it, "caches")).collect();
    let count = |state: &str| caches.iter().filter(|it| it["state"] == state).count();
    if upload["state"] == "gone" {
        return ServiceState::Removed;
    }
    if upload["state"] == "pending" || count("pending") > 0 {
        return ServiceState::Pending;
    }
    let mut reasons = objects.filter_map(|object| {
        let advice = object.get("advice")?;
        let text = |name: &str| advice.get(name).and_then(Value::as_str);
        let is_unused = matches!(text("cause")?, "unusable" | "shared_id");
        is_unused.then(|| [text("detail"), text("next_step")])
    });
    if let Some(reason) = reasons.next() {
        let reason = reason.into_iter().flatten().collect::<Vec<_>>().join("; ");
        return match count("used") + count("unbuilt") {
            0 => ServiceState::Unused(reason),
            _ => ServiceState::InPart(reason),
        };
    }
    let is_redundant = !caches.is_empty() && count("other_upload") == caches.len();
    let mut others = caches.iter().filter_map(|it| it["made_from"].as_str());
    match others.next().filter(|_| is_redundant) {
        Some(other) => ServiceState::NotNeeded(other.to_owned()),
        None => ServiceState::InUse,
    }
}

fn list<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> + Clone {
    value
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(caches: &Value, advice: &Value) -> ServiceState {
        let object = json!({"file_type": "elf_code", "caches": caches, "advice": advice});
        judge(&json!({"state": "applied", "objects": [object]}))
    }

    #[test]
    fn a_file_is_in_use_only_if_caches_are_made_of_it() {
        let cache = |state: &str| json!({"kind": "symcache", "state": state});
        let other = json!({"kind": "symcache", "state": "other_upload", "made_from": "global/1"});
        let none = Value::Null;
        let advice = |cause: &str| json!({"cause": cause, "detail": "why", "next_step": "what"});
        let reason = "why; what".to_owned();
        for (caches, advice, expected) in [
            (json!([cache("used")]), &none, ServiceState::InUse),
            (json!([cache("unbuilt")]), &none, ServiceState::InUse),
            (json!([]), &none, ServiceState::InUse),
            (none.clone(), &none, ServiceState::InUse),
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
            assert_eq!(judged(&caches, advice), expected, "{caches}");
        }
    }

    #[test]
    fn the_objects_whose_caches_are_not_listed_are_not_judged() {
        let other = json!({"kind": "symcache", "state": "other_upload", "made_from": "global/1"});
        let stripped = json!({"cause": "stripped", "detail": "why", "next_step": "what"});
        let listed = json!({"file_type": "elf_debug", "caches": [other]});
        let not_listed = json!({"file_type": "elf_debug", "advice": stripped});
        let judged = |objects: &[&Value]| judge(&json!({"state": "applied", "objects": objects}));
        let not_needed = ServiceState::NotNeeded("global/1".to_owned());
        assert_eq!(judged(&[&listed, &not_listed]), not_needed);
        assert_eq!(judged(&[&not_listed]), ServiceState::InUse);
    }

    #[test]
    fn a_file_that_is_gone_is_not_in_use() {
        let upload = json!({"key": "global/1", "state": "gone"});
        assert_eq!(judge(&upload), ServiceState::Removed);
    }
}
