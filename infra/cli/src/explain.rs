//! `explain`: what the service knows about a module or an upload.

use std::fmt::Write as _;

use reqwest::Method;
use serde_json::Value;
use symdepot::domain::DebugId;

use crate::arguments::{ExplainArguments, ModuleNames};
use crate::client::Client;
use crate::error::CliError;
use crate::settings::Settings;
use crate::visible::visible;
use crate::{Exit, Output, lists};

/// The number of digits of a SHA-1, which most build ids are.
const BUILD_ID_DIGITS: usize = 40;

/// The number of digits of a UUID, which most debug ids begin with.
const UUID_DIGITS: usize = 32;

pub(crate) async fn run(
    settings: &Settings,
    arguments: &ExplainArguments,
) -> Result<Output, CliError> {
    let client = Client::new(settings).await?;
    let readings = readings(&arguments.subject, &arguments.module);
    let mut answers = Vec::new();
    for name in readings {
        let answer = ask(&client, settings, name, arguments).await?;
        let is_known = is_known(&answer);
        answers.push(answer);
        if is_known {
            return Ok(shown(
                answers.pop().unwrap_or_default(),
                arguments,
                Exit::Done,
            ));
        }
    }
    // Nothing is known under any of the readings. They say the same, so the likeliest is shown.
    let first = answers.into_iter().next().unwrap_or_default();
    Ok(shown(first, arguments, Exit::Incomplete))
}

fn shown(value: Value, arguments: &ExplainArguments, exit: Exit) -> Output {
    let text = if arguments.format.json {
        lists::json("explained", value)
    } else {
        human(&value) + hint(&value, &arguments.module)
    };
    Output::ended(text, exit)
}

/// Asks for the subject under this parameter.
async fn ask(
    client: &Client,
    settings: &Settings,
    name: &str,
    arguments: &ExplainArguments,
) -> Result<Value, CliError> {
    let subject = arguments.subject.as_str();
    let mut query = vec![(name, subject)];
    query.extend(arguments.module.parameters());
    // The scope of an upload is in its key.
    if name != "key" {
        let scope = settings.scope.as_ref();
        query.extend(scope.map(|scope| ("scope", scope.as_str())));
    }
    let answer = client.json(Method::GET, "/explain", &query, Vec::new());
    answer.await.map_err(|error| match error {
        CliError::Status {
            status: 404, cause, ..
        } => CliError::NotFound {
            what: visible(subject),
            cause,
        },
        error => error,
    })
}

impl ModuleNames {
    /// Returns the parameters of `/explain` that are given.
    fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        let parameters = [
            ("type", &self.object_type),
            ("code_id", &self.code_id),
            ("code_file", &self.code_file),
            ("debug_file", &self.debug_file),
        ];
        let given = parameters.into_iter();
        given.filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }

    /// Returns whether nothing but an id is given.
    fn is_empty(&self) -> bool {
        self.parameters().all(|(name, _)| name == "code_id")
    }
}

/// Returns the parameters that a subject may be a value of, the likeliest first. An id may be a
/// debug id, with or without dashes and an age, and a code id: a short one is that of a PE file
/// rather than that of a PDB of version 2. Next to a code id, it is a debug id. What is no id is a
/// key, perhaps without its scope.
fn readings(subject: &str, module: &ModuleNames) -> &'static [&'static str] {
    let digits = subject.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = subject.bytes().filter(|byte| *byte == b'-').count();
    if digits == 0 || digits + dashes < subject.len() {
        return &["key"];
    }
    if module.code_id.is_some() {
        return &["debug_id"];
    }
    let is_build_id = digits == BUILD_ID_DIGITS && dashes == 0;
    match subject.parse::<DebugId>() {
        Err(_) => &["code_id"],
        Ok(_) if is_build_id || digits < UUID_DIGITS => &["code_id", "debug_id"],
        Ok(_) => &["debug_id", "code_id"],
    }
}

/// Returns whether an answer is about something: an upload, or records of a module of which one is
/// more than the absence of files.
fn is_known(answer: &Value) -> bool {
    let Some(records) = answer.as_array() else {
        return true;
    };
    records.iter().any(|record| {
        let cause = record.pointer("/record/missing/cause");
        match record.get("state").and_then(Value::as_str) {
            Some("absent" | "unknown") => false,
            Some("missing") => cause.is_none_or(|cause| cause != "not_found"),
            _ => true,
        }
    })
}

/// Returns what to add to the command if symbol servers may know the module by more than its id.
fn hint(value: &Value, module: &ModuleNames) -> &'static str {
    let is_open = |record: &Value| {
        let of_server = field(record, "source") != "uploads";
        of_server && matches!(field(record, "state").as_str(), "absent" | "unknown")
    };
    let records = value.as_array();
    if module.is_empty() && records.is_some_and(|records| records.iter().any(is_open)) {
        "Symbol servers are searched by the type and files of a module, too: add --type, \
         --code-file and --debug-file, as a crash names them.\n"
    } else {
        ""
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
        Some(Value::String(text)) => visible(text),
        Some(other) => visible(&other.to_string()),
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
        "use_and_upgrade" => "ready; the next request has a better file searched for",
        "use_older" => "ready, in an older version",
        "missing" => "missing",
        "wait" => "is being built",
        "build" => "known, and built at the next request",
        "absent" => "no file for it is there",
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
        for cache in object
            .get("caches")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            cache_of(text, cache);
        }
        advice_of(text, object);
    }
}

/// Writes whether a cache is made of an upload.
fn cache_of(text: &mut String, cache: &Value) {
    let (kind, detail) = (field(cache, "kind"), field(cache, "detail"));
    let usage = match field(cache, "state").as_str() {
        "used" => "made from it".to_owned(),
        "other_upload" => format!("made from {}", field(cache, "made_from")),
        "failed" => format!("cannot be made from it: {detail}"),
        "unsupported" => detail,
        "pending" => "is being built".to_owned(),
        "unbuilt" => "built at the next request".to_owned(),
        other => other.to_owned(),
    };
    let _ = writeln!(text, "    {kind}: {usage}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_subject_is_a_key_a_debug_id_a_code_id_or_either() {
        for (subject, expected) in [
            ("global/app.debug", &["key"][..]),
            ("toplevel.debug", &["key"]),
            ("nope", &["key"]),
            ("-", &["key"]),
            ("8f3a8f3a", &["code_id"]),
            ("5F1D7A2B1c000", &["code_id", "debug_id"]),
            (
                "502fc0a5-1ec1-3e47-9998-684fa139dca7",
                &["debug_id", "code_id"],
            ),
            (
                "502fc0a5-1ec1-3e47-9998-684fa139dca7-1",
                &["debug_id", "code_id"],
            ),
            (
                "C7D4C24F1FB854084C4C44205044422E1",
                &["debug_id", "code_id"],
            ),
            ("C7D4C24F1FB854084C4C44205044422E", &["debug_id", "code_id"]),
            (
                "ac456ebc7f4825f4367208b89f51ad481774aae7",
                &["code_id", "debug_id"],
            ),
        ] {
            let alone = ModuleNames::default();
            assert_eq!(readings(subject, &alone), expected, "{subject}");
        }
        let beside = ModuleNames {
            code_id: Some("8f3a8f3a".to_owned()),
            ..ModuleNames::default()
        };
        let subject = "C7D4C24F1FB854084C4C44205044422E";
        assert_eq!(readings(subject, &beside), ["debug_id"]);
    }

    #[test]
    fn names_are_asked_for_where_a_symbol_server_may_know_them() {
        let record = |source: &str, state: &str| json!([{"source": source, "state": state}]);
        let (alone, named) = (
            ModuleNames::default(),
            ModuleNames {
                code_file: Some("libc.so.6".to_owned()),
                ..ModuleNames::default()
            },
        );
        for (records, names, expected) in [
            (record("company#1", "unknown"), &alone, true),
            (record("company#1", "absent"), &alone, true),
            (record("company#1", "use"), &alone, false),
            (record("uploads", "absent"), &alone, false),
            (record("company#1", "unknown"), &named, false),
            (
                json!({"key": "global/a", "state": "applied"}),
                &alone,
                false,
            ),
        ] {
            let hint = hint(&records, names);
            assert_eq!(hint.contains("--code-file"), expected, "{records}");
        }
    }

    #[test]
    fn records_that_only_lack_files_are_no_finding() {
        let missing =
            |cause: &str| json!({"state": "missing", "record": {"missing": {"cause": cause}}});
        let absent = json!({"state": "absent"});
        for (records, expected) in [
            (json!([]), false),
            (
                json!([absent, {"state": "unknown"}, missing("not_found")]),
                false,
            ),
            (json!([absent, {"state": "use"}]), true),
            (json!([absent, missing("malformed")]), true),
            (json!({"state": "ignored"}), true),
        ] {
            assert_eq!(is_known(&records), expected, "{records}");
        }
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
            "symcache, global in uploads: no file for it is there\n    not_uploaded: no file\n    upload it\n\
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
        let caches = json!([
            {"kind": "cficache", "state": "other_upload", "made_from": "global/b"},
            {"kind": "symcache", "state": "failed", "detail": "bad\tfile"},
        ]);
        let object = json!({"file_type": "elf_code", "arch": "arm", "debug_id": "1-2", "code_id": "", "caches": caches, "advice": advice});
        let upload = json!({"key": "global/a", "state": "applied", "objects": [object]});
        assert_eq!(
            human(&upload),
            "global/a: applied\n  elf_code arm: debug id 1-2, code id \n    cficache: made from global/b\n    \
             symcache: cannot be made from it: bad\u{fffd}file\n    not_uploaded: no file\n    upload it\n",
        );
    }
}
