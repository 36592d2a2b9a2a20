//! `explain`: what the service knows about a module or an upload.

use std::fmt::Write as _;

use reqwest::Method;
use serde_json::Value;

use crate::arguments::ExplainArguments;
use crate::client::Client;
use crate::error::CliError;
use crate::settings::Settings;
use crate::{Output, lists, view};

pub(crate) async fn run(
    settings: &Settings,
    arguments: &ExplainArguments,
) -> Result<Output, CliError> {
    let client = Client::new(settings).await?;
    let subject = arguments.subject.as_str();
    let name = parameter(subject);
    let mut query = vec![(name, subject)];
    // The scope of an upload is in its key.
    if name != "key" {
        query.extend(
            settings
                .scope
                .as_ref()
                .map(|scope| ("scope", scope.as_str())),
        );
    }
    let value: Value = client
        .json(Method::GET, "/explain", &query, Vec::new())
        .await?;
    Ok(Output::done(match arguments.format.json {
        true => lists::json("explained", value),
        false => human(&value),
    }))
}

/// Returns the parameter that a subject is a value of: a key has slashes, a debug id has dashes.
fn parameter(subject: &str) -> &'static str {
    if subject.contains('/') {
        "key"
    } else if subject.contains('-') {
        "debug_id"
    } else {
        "code_id"
    }
}

fn human(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Array(records) => {
            for record in records {
                record_of(&mut text, record);
            }
        }
        upload => upload_of(&mut text, upload),
    }
    text
}

fn field(value: &Value, name: &str) -> String {
    match value.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => view::visible(text),
        Some(other) => view::visible(&other.to_string()),
    }
}

/// Writes the advice in a value.
fn advice_of(text: &mut String, value: &Value) {
    let Some(advice) = value.get("advice").filter(|advice| advice.is_object()) else {
        return;
    };
    let _ = writeln!(
        text,
        "    {}: {}",
        field(advice, "cause"),
        field(advice, "detail")
    );
    let _ = writeln!(text, "    {}", field(advice, "next_step"));
}

/// Writes a record that a request for a module would read.
fn record_of(text: &mut String, record: &Value) {
    let (kind, state) = (field(record, "kind"), field(record, "state"));
    let place = format!("{} in {}", field(record, "scope"), field(record, "source"));
    let _ = writeln!(text, "{kind}, {place}: {}", words(&state));
    let stored = record.get("record");
    let made = stored
        .and_then(|stored| stored.get("ready"))
        .filter(|it| it.is_object());
    let files = made.and_then(|made| made.get("made_from")?.as_array());
    for file in files.into_iter().flatten() {
        let _ = writeln!(text, "    made from {}", field(file, "location"));
    }
    let missing = stored
        .and_then(|stored| stored.get("missing"))
        .filter(|it| it.is_object());
    if let Some(missing) = missing {
        let (cause, detail) = (field(missing, "cause"), field(missing, "detail"));
        let _ = writeln!(text, "    {cause}: {detail}");
    }
    advice_of(text, record);
}

/// Returns what a request does in a state.
fn words(state: &str) -> &str {
    match state {
        "use" => "ready",
        "use_and_upgrade" => "ready, and rebuilt at the next request",
        "use_older" => "ready, in an older version",
        "missing" => "missing",
        "wait" => "is being built",
        "build" => "known, and built at the next request",
        "absent" => "nothing was uploaded there",
        "unknown" => "not asked for yet",
        other => other,
    }
}

fn upload_of(text: &mut String, upload: &Value) {
    let _ = writeln!(text, "{}: {}", field(upload, "key"), field(upload, "state"));
    for name in ["reason", "note"] {
        let value = field(upload, name);
        if !value.is_empty() {
            let _ = writeln!(text, "    {value}");
        }
    }
    advice_of(text, upload);
    for object in upload
        .get("objects")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let (kind, arch) = (field(object, "file_type"), field(object, "arch"));
        let ids = (field(object, "debug_id"), field(object, "code_id"));
        let _ = writeln!(
            text,
            "  {kind} {arch}: debug id {}, code id {}",
            ids.0, ids.1
        );
        advice_of(text, object);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_subject_is_a_key_a_debug_id_or_a_code_id() {
        assert_eq!(parameter("global/app.debug"), "key");
        assert_eq!(
            parameter("502fc0a5-1ec1-3e47-9998-684fa139dca7"),
            "debug_id"
        );
        assert_eq!(parameter("8f3a8f3a"), "code_id");
    }

    #[test]
    fn an_explanation_is_in_words() {
        let advice =
            json!({"cause": "not_uploaded", "detail": "no file", "next_step": "upload it"});
        let record = json!([
            {"kind": "symcache", "scope": "global", "source": "uploads", "state": "absent", "advice": advice},
            {"kind": "cficache", "scope": "global", "source": "uploads", "state": "use", "record": {"ready": {"made_from": [{"location": "global/a", "etag": "1"}]}}},
        ]);
        assert_eq!(
            human(&record),
            "symcache, global in uploads: nothing was uploaded there\n    not_uploaded: no file\n    upload it\n\
             cficache, global in uploads: ready\n    made from global/a\n",
        );
        let upload = json!({
            "key": "global/a", "state": "ignored", "reason": "not a\u{1b}debug file",
            "objects": [{"file_type": "elf_code", "arch": "x86_64", "debug_id": "1-2", "code_id": "12"}],
        });
        assert_eq!(
            human(&upload),
            "global/a: ignored\n    not a\u{fffd}debug file\n  elf_code x86_64: debug id 1-2, code id 12\n",
        );
    }
}
