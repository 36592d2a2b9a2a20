//! Journal entries of systemd-coredump as `journalctl -o json` prints them, one after the other or
//! in an array: the message is in a field, and the ids of modules from packages in another.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::collector::Collector;
use super::cursor::without_mark;
use super::plain::{JSON_BYTES, JsonFields, PlainText};
use super::systemd;

/// A module in `COREDUMP_PACKAGE_JSON`.
#[derive(Deserialize)]
struct Package {
    #[serde(rename = "buildId")]
    build_id: Option<String>,
}

/// Returns whether a text begins with a journal entry.
pub(super) fn is_entry(bytes: &[u8]) -> bool {
    let entry = entries(bytes).next();
    let has = |entry: &JsonFields<'_>, name: &str| entry.get(name).is_some();
    entry.is_some_and(|entry| has(&entry, "__CURSOR") || has(&entry, "MESSAGE_ID"))
}

/// Returns whether the message of an entry is `null`, which `journalctl -o json` prints in place of
/// fields of more than 4,096 bytes, unless it is called with `--all`.
pub(super) fn lacks_messages(bytes: &[u8]) -> bool {
    let is_null = |entry: JsonFields<'_>| entry.get("MESSAGE").is_some_and(|it| it.get() == "null");
    entries(bytes).any(is_null)
}

/// Returns the entries in a text, one after the other or in an array. They are read one by one: a
/// map of few bytes of JSON takes a hundred times their size.
fn entries<'a>(bytes: &'a [u8]) -> Box<dyn Iterator<Item = JsonFields<'a>> + 'a> {
    let bytes = without_mark(bytes);
    if bytes.trim_ascii_start().starts_with(b"[") {
        let entries: Vec<&'a RawValue> = serde_json::from_slice(bytes).unwrap_or_default();
        let fields = |entry: &'a RawValue| serde_json::from_str::<JsonFields<'a>>(entry.get()).ok();
        return Box::new(entries.into_iter().map_while(fields));
    }
    let entries = serde_json::Deserializer::from_slice(bytes).into_iter::<JsonFields<'a>>();
    Box::new(entries.map_while(Result::ok))
}

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    for entry in entries(bytes) {
        let message = entry.get("MESSAGE");
        let Some(message) = message.and_then(|raw| PlainText::of_value(raw, bytes)) else {
            continue;
        };
        let first = out.count();
        out.new_process();
        let mut ids = Vec::new();
        if let Some(packages) = entry.get("COREDUMP_PACKAGE_JSON") {
            ids = package_ids(packages);
        }
        systemd::read_process(&message.bytes, &mut ids, out);
        out.relocate(first, &message);
    }
}

/// Returns the names and the ids of modules. A field that is too long has none.
fn package_ids(field: &RawValue) -> Vec<(String, String)> {
    if field.get().len() > JSON_BYTES {
        return Vec::new();
    }
    let text = serde_json::from_str::<String>(field.get()).unwrap_or_default();
    let values = serde_json::from_str::<BTreeMap<String, &RawValue>>(&text).unwrap_or_default();
    let package = |value: &RawValue| serde_json::from_str::<Package>(value.get()).ok();
    let ids = values
        .into_iter()
        .filter_map(|(name, value)| Some((name, package(value)?.build_id?)));
    ids.collect()
}

#[cfg(test)]
mod tests {
    use crate::api::report::tests::{frames, read, rewritten};
    use crate::api::report::{CrashReport, ReportFormat};

    const MESSAGE: &str = "Stack trace of thread 1:\n#0  0x0000000000001010 n/a (app + 0x10)\n";

    #[test]
    fn entries_may_be_in_an_array() {
        let entry = format!(r#"{{"__CURSOR": "x", "MESSAGE": {MESSAGE:?}}}"#);
        let report = read(&format!("[{entry},\n{entry}]"));
        assert_eq!(report.format, ReportFormat::Journal);
        assert_eq!(frames(&report), [(0x1010, false); 2]);
        let named = rewritten(&format!("[{entry}]"), &[("f", None)]);
        assert_eq!(named, format!("[{}]", entry.replace("n/a", "f")));
    }

    #[test]
    fn a_message_may_be_the_numbers_of_its_bytes() {
        let numbers = MESSAGE.as_bytes();
        let entry = format!(r#"{{"__CURSOR": "x", "MESSAGE": {numbers:?}}}"#);
        let report = read(&entry);
        assert_eq!(report.format, ReportFormat::Journal);
        assert_eq!(frames(&report), [(0x1010, false)]);
        // No name is written into numbers.
        assert!(!report.has_places());
        assert_eq!(rewritten(&entry, &[("f", None)]), entry);
    }

    #[test]
    fn the_lines_of_a_log_in_json_are_those_of_a_report() {
        let line = |text: &str| format!("{{\"log\":{text:?},\"stream\":\"stderr\"}}\n");
        let first = line("/srv/app(+0x121b) [0x55555555521b]\n");
        let second = line("/srv/app(+0x1315) [0x555555555315]");
        let text = format!("{first}{second}");
        let report = read(&text);
        assert_eq!(report.format, ReportFormat::Glibc);
        assert_eq!((report.stacks.len(), report.modules.len()), (1, 1));
        assert_eq!(report.modules[0].base, Some(0x5555_5555_4000));
        assert!(report.others.is_empty());
        let named = rewritten(&text, &[("a\"b", None), ("c", None)]);
        let expected = [
            line("/srv/app(a\"b) [0x55555555521b]\n/srv/app(c) [0x55555555521b]\n"),
            line("/srv/app(a\"b) [0x555555555315]\n/srv/app(c) [0x555555555315]"),
        ];
        assert_eq!(named, expected.concat());
        // A log without a stack trace is no request.
        let error = CrashReport::read(line("hello").repeat(2).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("no stack trace"), "{error}");
    }
}
