//! `explain`: what the service knows about a module or an upload.

use std::fmt::{Display, Write as _};

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use symdepot::api::advice::WrittenAdvice;
use symdepot::api::explained::{
    CacheOfObject, CacheUsage, EntryUse, Explained, ExplainedObject, ExplainedUpload,
};
use symdepot::domain::{Cause, DebugId, UploadState};

use crate::arguments::{ExplainArguments, ModuleNames};
use crate::client::Client;
use crate::error::CliError;
use crate::settings::Settings;
use crate::visible::visible;
use crate::{Exit, Output, lists};

/// The number of digits of a SHA-1, which most build ids are.
const BUILD_ID_DIGITS: usize = 40;

/// The cause that the service names for a build id without its end.
const CUT_ID: &str = "code_id_length";

/// The number of digits of a UUID, which most debug ids begin with.
const UUID_DIGITS: usize = 32;

/// What an answer explains. The parts that this program cannot read, because the service is newer,
/// are kept as they are.
enum Explanation<'a> {
    /// The entries that a request for a module would read.
    Module(Vec<Result<Explained, &'a Value>>),
    Upload(Result<Box<ExplainedUpload>, &'a Value>),
}

pub(crate) async fn run(
    settings: &Settings,
    arguments: &ExplainArguments,
) -> Result<Output, CliError> {
    let client = Client::new(settings).await?;
    let subject = without_prefix(&arguments.subject);
    let readings = readings(subject, &arguments.module);
    let mut answers = Vec::new();
    for name in readings {
        let asked = (*name, subject);
        let answer = ask(&client, settings, asked, &arguments.module).await?;
        let is_known = Explanation::of(&answer).is_known();
        answers.push(answer);
        if is_known {
            return Ok(shown(
                answers.pop().unwrap_or_default(),
                arguments,
                Exit::Done,
            ));
        }
    }
    // Nothing is known under any of the readings. They say the same, so the likeliest is shown,
    // unless one says that the id was cut.
    let is_cut = |answer: &Value| Explanation::of(answer).says_that_the_id_is_cut();
    let shown_answer = answers.iter().position(is_cut).unwrap_or_default();
    let answer = answers.into_iter().nth(shown_answer).unwrap_or_default();
    Ok(shown(answer, arguments, Exit::Incomplete))
}

/// Returns an id without the prefix of hexadecimal numbers.
fn without_prefix(subject: &str) -> &str {
    let digits = subject
        .strip_prefix("0x")
        .or_else(|| subject.strip_prefix("0X"));
    digits.filter(|digits| may_be_id(digits)).unwrap_or(subject)
}

/// Returns whether a subject has the digits of an id, with or without dashes, and nothing else.
fn may_be_id(subject: &str) -> bool {
    let is_digit_or_dash = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    subject.bytes().all(is_digit_or_dash) && subject.bytes().any(|byte| byte != b'-')
}

fn shown(value: Value, arguments: &ExplainArguments, exit: Exit) -> Output {
    let text = if arguments.format.json {
        lists::json("explained", value)
    } else {
        let explanation = Explanation::of(&value);
        explanation.human() + explanation.hint(&arguments.module)
    };
    Output::ended(text, exit)
}

/// Asks for the subject under this parameter.
async fn ask(
    client: &Client,
    settings: &Settings,
    (name, subject): (&str, &str),
    module: &ModuleNames,
) -> Result<Value, CliError> {
    let mut query = vec![(name, subject)];
    query.extend(module.parameters());
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
            // A key begins with its scope.
            cause: if name == "key" && !subject.contains('/') {
                format!("{cause}; this is no id either, which has hexadecimal digits only")
            } else {
                cause
            },
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
    if !may_be_id(subject) {
        return &["key"];
    }
    let digits = subject.bytes().filter(u8::is_ascii_hexdigit).count();
    if module.code_id.is_some() {
        return &["debug_id"];
    }
    let is_build_id = digits == BUILD_ID_DIGITS && !subject.contains('-');
    match subject.parse::<DebugId>() {
        Err(_) => &["code_id"],
        Ok(_) if is_build_id || digits < UUID_DIGITS => &["code_id", "debug_id"],
        Ok(_) => &["debug_id", "code_id"],
    }
}

impl<'a> Explanation<'a> {
    fn of(answer: &'a Value) -> Self {
        match answer {
            Value::Array(records) => Self::Module(records.iter().map(read).collect()),
            upload => Self::Upload(read(upload).map(Box::new)),
        }
    }

    /// Returns whether the answer is about something: an upload, or records of a module of which
    /// one is more than the absence of files.
    fn is_known(&self) -> bool {
        match self {
            Self::Upload(_) => true,
            Self::Module(records) => records.iter().any(|record| match record {
                Ok(record) => is_more_than_absence(record),
                Err(_) => true,
            }),
        }
    }

    /// Returns whether the service finds that the id is a build id without its end.
    fn says_that_the_id_is_cut(&self) -> bool {
        let is_cut = |advice: &WrittenAdvice| advice.cause == CUT_ID;
        match self {
            Self::Module(records) => {
                let mut advice = records.iter().flatten().flat_map(|record| &record.advice);
                advice.any(is_cut)
            }
            Self::Upload(_) => false,
        }
    }

    /// Returns what to add to the command if symbol servers may know the module by more than its
    /// id.
    fn hint(&self, module: &ModuleNames) -> &'static str {
        let is_open = |record: &Explained| {
            let has_no_file = matches!(record.state, EntryUse::Absent | EntryUse::Unknown);
            has_no_file && !record.source.is_uploads()
        };
        match self {
            Self::Module(records) if module.is_empty() && records.iter().flatten().any(is_open) => {
                "Symbol servers are searched by the type and files of a module, too: add --type, \
                 --code-file and --debug-file, as a crash names them.\n"
            }
            Self::Module(_) | Self::Upload(_) => "",
        }
    }

    fn human(&self) -> String {
        let mut text = String::new();
        match self {
            Self::Module(records) => {
                for record in records {
                    match record {
                        Ok(record) => record_of(&mut text, record),
                        Err(unread) => as_it_is(&mut text, unread),
                    }
                }
            }
            Self::Upload(Ok(upload)) => upload_of(&mut text, upload),
            Self::Upload(Err(unread)) => as_it_is(&mut text, unread),
        }
        text
    }
}

/// Reads a part of an answer, or returns it if this program does not know what is in it.
fn read<'a, T: Deserialize<'a>>(value: &'a Value) -> Result<T, &'a Value> {
    T::deserialize(value).map_err(|_| value)
}

/// Returns whether a record says more than that there is no file.
fn is_more_than_absence(record: &Explained) -> bool {
    match record.state {
        EntryUse::Absent | EntryUse::Unknown => false,
        EntryUse::Missing => {
            let stored = record.record.as_ref();
            let missing = stored.and_then(|stored| stored.missing.as_ref());
            missing.is_none_or(|missing| missing.cause != Cause::NotFound)
        }
        EntryUse::Use
        | EntryUse::UseAndUpgrade
        | EntryUse::UseOlder
        | EntryUse::Wait
        | EntryUse::Build => true,
    }
}

/// Writes a part of an answer that this program cannot read.
fn as_it_is(text: &mut String, value: &Value) {
    let _ = writeln!(text, "{}", shown_value(value));
}

fn shown_value(value: impl Display) -> String {
    visible(&value.to_string())
}

fn shown_option(value: Option<&impl Display>) -> String {
    value.map(shown_value).unwrap_or_default()
}

/// Returns a value that is a text in JSON, for people.
fn name_of(value: impl Serialize) -> String {
    let name = serde_json::to_value(value).unwrap_or_default();
    visible(name.as_str().unwrap_or_default())
}

fn advice_of(text: &mut String, advice: &WrittenAdvice) {
    let (cause, detail) = (visible(&advice.cause), visible(&advice.detail));
    let _ = writeln!(text, "    {cause}: {detail}");
    let _ = writeln!(text, "    {}", visible(&advice.next_step));
}

/// Writes a record that a request for a module would read.
fn record_of(text: &mut String, record: &Explained) {
    let (scope, source) = (shown_value(&record.scope), shown_value(&record.source));
    let words = words(record.state);
    let _ = writeln!(text, "{}, {scope} in {source}: {words}", record.kind);
    if let Some(stored) = &record.record {
        let made = stored.ready.iter();
        for file in made.flat_map(|ready| &ready.made_from) {
            let _ = writeln!(text, "    made from {}", shown_value(&file.location));
        }
        if let Some(missing) = &stored.missing {
            let (cause, detail) = (missing.cause.as_str(), visible(&missing.detail));
            let _ = writeln!(text, "    {cause}: {detail}");
        }
    }
    if let Some(advice) = &record.advice {
        advice_of(text, advice);
    }
}

/// Returns what a request does in a state.
fn words(state: EntryUse) -> &'static str {
    match state {
        EntryUse::Use => "ready",
        EntryUse::UseAndUpgrade => "ready; the next request starts a search for a better file",
        EntryUse::UseOlder => "ready, in an older version",
        EntryUse::Missing => "missing",
        EntryUse::Wait => "is being built",
        EntryUse::Build => "known, and built at the next request",
        EntryUse::Absent => "no file was found for it",
        EntryUse::Unknown => "no request has searched it yet",
    }
}

fn upload_of(text: &mut String, upload: &ExplainedUpload) {
    let (state, reason) = match &upload.state {
        UploadState::Pending => ("pending", None),
        UploadState::Applied => ("applied", None),
        UploadState::Ignored { reason } => ("ignored", Some(reason)),
        UploadState::Gone => ("gone", None),
    };
    let _ = writeln!(text, "{}: {state}", visible(&upload.key));
    for line in reason.into_iter().chain(&upload.note) {
        let _ = writeln!(text, "    {}", visible(line));
    }
    for advice in &upload.advice {
        advice_of(text, advice);
    }
    for object in &upload.objects {
        object_of(text, object);
    }
}

fn object_of(text: &mut String, object: &ExplainedObject) {
    let (file_type, arch) = (name_of(object.file_type), visible(&object.arch));
    let debug_id = shown_option(object.debug_id.as_ref());
    let code_id = shown_option(object.code_id.as_ref());
    let ids = format!("debug id {debug_id}, code id {code_id}");
    let _ = writeln!(text, "  {file_type} {arch}: {ids}");
    for cache in &object.caches {
        cache_of(text, cache);
    }
    if let Some(advice) = &object.advice {
        advice_of(text, advice);
    }
}

/// Writes whether a cache is made of an upload.
fn cache_of(text: &mut String, cache: &CacheOfObject) {
    let usage = match &cache.usage {
        CacheUsage::Used => "made from it".to_owned(),
        CacheUsage::OtherUpload { made_from } => format!("made from {}", shown_value(made_from)),
        CacheUsage::Failed { detail } => format!("cannot be made from it: {}", visible(detail)),
        CacheUsage::Unsupported { detail } => visible(detail),
        CacheUsage::Pending => "is being built".to_owned(),
        CacheUsage::Unbuilt => "built at the next request".to_owned(),
    };
    let _ = writeln!(text, "    {}: {usage}", cache.kind);
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
    fn an_id_may_have_the_prefix_of_hexadecimal_numbers() {
        for (subject, expected) in [
            ("0xac456ebc7f48", "ac456ebc7f48"),
            ("0X8F3A", "8F3A"),
            ("0x", "0x"),
            ("0xyz", "0xyz"),
            ("global/0x12", "global/0x12"),
        ] {
            assert_eq!(without_prefix(subject), expected);
        }
    }

    #[test]
    fn advice_about_a_cut_id_is_found() {
        let advised = |cause: &str| {
            let mut absent = record("uploads", "absent");
            absent["advice"] = json!({"cause": cause, "detail": "38 digits", "next_step": "x"});
            json!([record("company#1", "unknown"), absent])
        };
        for (cause, expected) in [("code_id_length", true), ("build_id_as_debug_id", false)] {
            let answer = advised(cause);
            let explanation = Explanation::of(&answer);
            assert_eq!(explanation.says_that_the_id_is_cut(), expected, "{cause}");
        }
    }

    /// Returns a record of a module as the service writes it.
    fn record(source: &str, state: &str) -> Value {
        json!({
            "scope": "global", "source": source, "module": "code_id:12", "kind": "symcache",
            "state": state,
        })
    }

    /// Returns a record with this as what is stored.
    fn stored(state: &str, ready: &Value, missing: &Value) -> Value {
        let mut record = record("uploads", state);
        record["record"] = json!({
            "ready": ready, "missing": missing, "attempts": 0, "last_used_at": 1, "candidates": [],
        });
        record
    }

    fn missing(cause: &str) -> Value {
        let placeholder =
            json!({"cause": cause, "detail": "why", "retry_at": 1, "converter": 1, "repeats": 0});
        stored("missing", &Value::Null, &placeholder)
    }

    fn upload(state: &str, objects: &[Value]) -> Value {
        json!({
            "key": "global/a", "state": state, "reason": "not a\u{1b}debug file", "etag": "1",
            "sequencer": "01", "size": 1, "at": 1, "objects": objects,
        })
    }

    fn object(debug_id: &Value, caches: &Value, advice: &Value) -> Value {
        let features = json!({
            "has_debug_info": true, "has_unwind_info": true, "has_symbols": true,
            "has_sources": false,
        });
        json!({
            "debug_id": debug_id, "code_id": "12", "file_type": "elf_code", "arch": "x86_64",
            "features": features, "caches": caches, "advice": advice,
        })
    }

    fn human(answer: &Value) -> String {
        Explanation::of(answer).human()
    }

    #[test]
    fn names_are_asked_for_where_a_symbol_server_may_know_them() {
        let (alone, named) = (
            ModuleNames::default(),
            ModuleNames {
                code_file: Some("libc.so.6".to_owned()),
                ..ModuleNames::default()
            },
        );
        for (answer, names, expected) in [
            (json!([record("company#1", "unknown")]), &alone, true),
            (json!([record("company#1", "absent")]), &alone, true),
            (json!([record("company#1", "use")]), &alone, false),
            (json!([record("uploads", "absent")]), &alone, false),
            (json!([record("company#1", "unknown")]), &named, false),
            (upload("applied", &[]), &alone, false),
        ] {
            let hint = Explanation::of(&answer).hint(names);
            assert_eq!(hint.contains("--code-file"), expected, "{answer}");
        }
    }

    #[test]
    fn records_that_only_lack_files_are_no_finding() {
        let absent = record("uploads", "absent");
        for (answer, expected) in [
            (json!([]), false),
            (
                json!([absent, record("uploads", "unknown"), missing("not_found")]),
                false,
            ),
            (json!([absent, record("uploads", "use")]), true),
            (json!([absent, missing("malformed")]), true),
            (upload("ignored", &[]), true),
        ] {
            assert_eq!(Explanation::of(&answer).is_known(), expected, "{answer}");
        }
    }

    #[test]
    fn an_explanation_is_in_words() {
        let advice =
            json!({"cause": "not_uploaded", "detail": "no file", "next_step": "upload it"});
        let mut absent = record("uploads", "absent");
        absent["advice"] = advice.clone();
        let ready = json!({
            "version": 2, "converter": 1, "quality": "preferred", "bytes": 1, "file_type": "elf_code",
            "arch": "x86_64", "made_from": [{"location": "global/a", "etag": "1"}],
            "derived_at": 1,
        });
        let used = stored("use", &ready, &Value::Null);
        assert_eq!(
            human(&json!([absent, used])),
            "symcache, global in uploads: no file was found for it\n    not_uploaded: no file\n    upload it\n\
             symcache, global in uploads: ready\n    made from global/a\n",
        );
        let no_caches = json!([]);
        let plain = object(&Value::Null, &no_caches, &Value::Null);
        assert_eq!(
            human(&upload("ignored", &[plain])),
            "global/a: ignored\n    not a\u{fffd}debug file\n  elf_code x86_64: debug id , code id 12\n",
        );
        let caches = json!([
            {"kind": "cficache", "state": "other_upload", "made_from": "global/b"},
            {"kind": "symcache", "state": "failed", "detail": "bad\tfile"},
        ]);
        let debug_id = json!("502fc0a5-1ec1-3e47-9998-684fa139dca7");
        let mut applied = upload("applied", &[object(&debug_id, &caches, &advice)]);
        applied["advice"] =
            json!([{"cause": "tenants_scope", "detail": "of acme", "next_step": "name it"}]);
        assert_eq!(
            human(&applied),
            "global/a: applied\n    tenants_scope: of acme\n    name it\n  \
             elf_code x86_64: debug id 502fc0a5-1ec1-3e47-9998-684fa139dca7, code id 12\n    \
             cficache: made from global/b\n    symcache: cannot be made from it: bad\u{fffd}file\n    \
             not_uploaded: no file\n    upload it\n",
        );
    }

    #[test]
    fn what_only_a_newer_service_has_is_shown_as_it_is() {
        let newer = record("uploads", "frozen\u{1b}");
        let answer = json!([newer, record("uploads", "use")]);
        let explanation = Explanation::of(&answer);
        assert!(explanation.is_known());
        let text = explanation.human();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("\"state\":\"frozen"), "{text}");
        assert_eq!(lines[1], "symcache, global in uploads: ready");

        let answer = upload("frozen", &[]);
        assert!(human(&answer).contains("\"state\":\"frozen\""));
        assert!(Explanation::of(&answer).is_known());
    }
}
