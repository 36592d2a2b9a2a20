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
pub(super) enum FinalState {
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
}

/// Asks what requests use of the upload with this key. It is pending while its caches are built.
pub(super) async fn of(client: &Client, key: &str) -> Result<FinalState, CliError> {
    let query = [("key", key)];
    let asked = client.json::<Value>(Method::GET, "/explain", &query, Vec::new());
    match asked.await {
        Ok(upload) => Ok(judge(&upload)),
        // An older service does not have the route. Or the file was removed since.
        Err(CliError::Unsupported { .. } | CliError::Status { status: 404, .. }) => {
            Ok(FinalState::InUse)
        }
        Err(error) => Err(error),
    }
}

/// Returns what requests use of an explained upload. An older service does not say it, and its
/// uploads count as used.
fn judge(upload: &Value) -> FinalState {
    let objects = list(upload, "objects");
    let caches: Vec<&Value> = objects.clone().flat_map(|it| list(it, "caches")).collect();
    let count = |state: &str| caches.iter().filter(|it| it["state"] == state).count();
    if upload["state"] == "pending" || count("pending") > 0 {
        return FinalState::Pending;
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
            0 => FinalState::Unused(reason),
            _ => FinalState::InPart(reason),
        };
    }
    let is_redundant = !caches.is_empty() && count("other_upload") == caches.len();
    let mut others = caches.iter().filter_map(|it| it["made_from"].as_str());
    match others.next().filter(|_| is_redundant) {
        Some(other) => FinalState::NotNeeded(other.to_owned()),
        None => FinalState::InUse,
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

    fn judged(caches: &Value, advice: &Value) -> FinalState {
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
            (json!([cache("used")]), &none, FinalState::InUse),
            (json!([cache("unbuilt")]), &none, FinalState::InUse),
            (json!([]), &none, FinalState::InUse),
            (none.clone(), &none, FinalState::InUse),
            (
                json!([cache("used"), cache("pending")]),
                &none,
                FinalState::Pending,
            ),
            (
                json!([cache("used")]),
                &advice("no_build_id"),
                FinalState::InUse,
            ),
            (
                json!([cache("failed")]),
                &advice("unusable"),
                FinalState::Unused(reason.clone()),
            ),
            (
                json!([cache("used"), cache("failed")]),
                &advice("unusable"),
                FinalState::InPart(reason.clone()),
            ),
            (
                json!([other]),
                &advice("shared_id"),
                FinalState::Unused(reason),
            ),
            (
                json!([other]),
                &none,
                FinalState::NotNeeded("global/1".to_owned()),
            ),
            (json!([cache("used"), other]), &none, FinalState::InUse),
        ] {
            assert_eq!(judged(&caches, advice), expected, "{caches}");
        }
    }
}
