//! `rollout` and `wanted`: what the service lists, as tables.

use std::fmt::Write as _;

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use symdepot::api::wanted::WantedList;

use crate::arguments::ListFormat;
use crate::client::Client;
use crate::error::CliError;
use crate::settings::Settings;
use crate::visible::visible;
use crate::{Output, view};

/// Returns JSON of the service under a name, with the version of this program's JSON.
pub(crate) fn json(name: &str, value: Value) -> String {
    view::json(&json!({"schema": view::SCHEMA, name: value}))
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

pub(crate) async fn rollout(client: &Client, format: ListFormat) -> Result<Output, CliError> {
    let report: Value = client
        .json(Method::GET, "/rollout", &[], Vec::new())
        .await?;
    Ok(Output::done(if format.json {
        json("rollout", report)
    } else {
        rollout_text(&report)
    }))
}

fn rollout_text(report: &Value) -> String {
    let mut text = format!("converter {}\n", number(report, "converter"));
    if report.get("at").is_none_or(Value::is_null) {
        text.push_str("  no pass of prune is complete yet: the first one counts the caches\n");
        return text;
    }
    let kinds = report.get("kinds").and_then(Value::as_object);
    for (kind, counts) in kinds.into_iter().flatten() {
        let counted = |name: &str| number(counts, name);
        let failed = counts.get("failed").and_then(Value::as_object);
        let failed: u64 = failed
            .into_iter()
            .flatten()
            .filter_map(|(_, it)| it.as_u64())
            .sum();
        let (current, behind) = (counted("current"), counted("behind") + counted("dif_gone"));
        let percent = (current * 100).checked_div(current + behind).unwrap_or(100);
        let _ = writeln!(
            text,
            "  {kind}: {percent}% current ({current} current, {behind} behind, {failed} failed, {} unbuilt)",
            counted("unbuilt")
        );
    }
    let uploads = number(report, "uploads");
    let _ = writeln!(text, "  {uploads} uploads; {}", end_of(report));
    text
}

/// Returns when the rollout ends.
fn end_of(report: &Value) -> String {
    let of = |name: &str| report.get(name).and_then(Value::as_str).unwrap_or_default();
    match of("estimate") {
        "complete" => "the rollout is complete".to_owned(),
        "at" => {
            let end = view::date(number(report, "expected_at"));
            format!("at the rate of the last pass, the rollout is complete on {end}")
        }
        _ => format!(
            "when the rollout is complete is not known: {}",
            visible(of("reason"))
        ),
    }
}

pub(crate) async fn wanted(
    client: &Client,
    settings: &Settings,
    format: ListFormat,
) -> Result<Output, CliError> {
    let scope = settings
        .scope
        .as_ref()
        .map(|scope| ("scope", scope.as_str()));
    let query: Vec<_> = scope.into_iter().collect();
    let list: Value = client
        .json(Method::GET, "/wanted", &query, Vec::new())
        .await?;
    Ok(Output::done(if format.json {
        json("wanted", list)
    } else {
        wanted_text(&list)
    }))
}

/// Returns the list as a table. A list that this program cannot read, because the service is newer,
/// is shown as it is.
fn wanted_text(list: &Value) -> String {
    let Ok(WantedList { wanted, more }) = WantedList::deserialize(list) else {
        return view::json(list);
    };
    let mut text = String::new();
    for pdb in &wanted {
        let (id, name) = (visible(&pdb.id), visible(&pdb.pdb));
        let _ = writeln!(text, "{:>8}  {id}  {name}", pdb.asked);
    }
    if wanted.is_empty() {
        text.push_str("no PDB is wanted\n");
    } else if more > 0 {
        let _ = writeln!(text, "and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rollout_is_a_line_for_each_kind() {
        let report = json!({
            "converter": 2, "uploads": 5, "at": 1, "estimate": "at", "expected_at": 1_800_000_000_u64,
            "kinds": {"symcache": {"current": 9, "behind": 1, "failed": {"malformed": 3}, "unbuilt": 2}},
        });
        assert_eq!(
            rollout_text(&report),
            "converter 2\n  symcache: 90% current (9 current, 1 behind, 3 failed, 2 unbuilt)\n  5 uploads; at the rate of the last pass, the rollout is complete on Fri, 15 Jan 2027 08:00:00 GMT\n",
        );
        assert!(rollout_text(&json!({"converter": 2})).contains("no pass"));
    }

    #[test]
    fn wanted_pdbs_are_listed_with_their_ids() {
        let pdb = |version: &str| {
            json!({
                "pdb": "app.pdb", "debug_id": "502fc0a5-1ec1-3e47-9998-684fa139dca7-1",
                "id": "C7D41", "version": version, "asked": 31, "first_at": 1, "last_at": 2,
            })
        };
        let list = json!({"wanted": [pdb("4.0.0")], "more": 2});
        assert_eq!(wanted_text(&list), "      31  C7D41  app.pdb\nand 2 more\n");
        assert_eq!(
            wanted_text(&json!({"wanted": [], "more": 0})),
            "no PDB is wanted\n"
        );
        let newer = wanted_text(&json!({"wanted": [pdb("soon")], "more": 0}));
        assert!(newer.contains("\"version\": \"soon\""), "{newer}");
    }
}
