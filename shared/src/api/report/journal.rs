//! Journal entries of systemd-coredump as `journalctl -o json` prints them: the message is in a
//! field, and the ids of modules from packages in another.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::collector::Collector;
use super::systemd;

/// The maximum size of a message, in bytes. The stack traces of systemd-coredump are limited to
/// some hundred frames; longer messages are not read.
const MESSAGE_BYTES: usize = 4 * 1024 * 1024;

type JournalEntry<'a> = BTreeMap<String, &'a RawValue>;

/// A module in `COREDUMP_PACKAGE_JSON`.
#[derive(Deserialize)]
struct Package {
    #[serde(rename = "buildId")]
    build_id: Option<String>,
}

/// Returns whether a text begins with a journal entry.
pub(super) fn is_entry(bytes: &[u8]) -> bool {
    let entry = entries(bytes).next();
    entry.is_some_and(|entry| entry.contains_key("__CURSOR") || entry.contains_key("MESSAGE_ID"))
}

/// Returns whether the message of an entry is `null`, which `journalctl -o json` prints in place of
/// fields of more than 4,096 bytes, unless it is called with `--all`.
pub(super) fn lacks_messages(bytes: &[u8]) -> bool {
    let is_null =
        |entry: JournalEntry<'_>| entry.get("MESSAGE").is_some_and(|it| it.get() == "null");
    entries(bytes).any(is_null)
}

fn entries(bytes: &[u8]) -> impl Iterator<Item = JournalEntry<'_>> {
    let entries = serde_json::Deserializer::from_slice(bytes).into_iter::<JournalEntry<'_>>();
    entries.map_while(Result::ok)
}

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    for entry in entries(bytes) {
        let Some(message) = entry.get("MESSAGE").and_then(|raw| Decoded::of(raw, bytes)) else {
            continue;
        };
        let first = out.count();
        out.new_process();
        let mut ids = Vec::new();
        if let Some(packages) = entry.get("COREDUMP_PACKAGE_JSON") {
            ids = package_ids(packages);
        }
        systemd::read_process(message.text.as_bytes(), &mut ids, out);
        out.relocate(first, |place| {
            place.in_json = true;
            place.name = message.range(&place.name);
            place.line = message.range(&place.line);
        });
    }
}

/// Returns the names and the ids of modules.
fn package_ids(field: &RawValue) -> Vec<(String, String)> {
    let text = serde_json::from_str::<String>(field.get()).unwrap_or_default();
    let values = serde_json::from_str::<BTreeMap<String, &RawValue>>(&text).unwrap_or_default();
    let package = |value: &RawValue| serde_json::from_str::<Package>(value.get()).ok();
    let ids = values
        .into_iter()
        .filter_map(|(name, value)| Some((name, package(value)?.build_id?)));
    ids.collect()
}

/// A JSON string, with the place of each of its bytes.
struct Decoded {
    text: String,
    /// The place in the report of each byte of the text, and of its end.
    places: Vec<usize>,
}

impl Decoded {
    /// Decodes a string that is a part of `bytes`; `None` for other values and long strings.
    fn of(raw: &RawValue, bytes: &[u8]) -> Option<Self> {
        let start = (raw.get().as_ptr() as usize).checked_sub(bytes.as_ptr() as usize)?;
        let inner = raw.get().strip_prefix('"')?.strip_suffix('"')?;
        if inner.len() > MESSAGE_BYTES {
            return None;
        }
        let mut decoded = Self {
            text: String::with_capacity(inner.len()),
            places: Vec::with_capacity(inner.len() + 1),
        };
        let mut at = 0;
        while at < inner.len() {
            let length = length_of_character(&inner[at..]);
            let piece = &inner[at..at + length];
            // A single escape is decoded as the string that it makes.
            let text = match piece.starts_with('\\') {
                true => serde_json::from_str::<String>(&format!("\"{piece}\"")).ok()?,
                false => piece.to_owned(),
            };
            decoded.places.extend(text.bytes().map(|_| start + 1 + at));
            decoded.text.push_str(&text);
            at += length;
        }
        decoded.places.push(start + 1 + inner.len());
        Some(decoded)
    }

    fn range(&self, range: &Range<usize>) -> Range<usize> {
        let place = |at: usize| self.places.get(at).copied().unwrap_or_default();
        place(range.start)..place(range.end)
    }
}

/// Returns the length of the first character of the inside of a JSON string, which may be an
/// escape. The string is valid and not empty.
fn length_of_character(text: &str) -> usize {
    let is_high = |text: &str| {
        let unit = text
            .get(2..6)
            .and_then(|digits| u16::from_str_radix(digits, 16).ok());
        unit.is_some_and(|unit| (0xd800..0xdc00).contains(&unit))
    };
    let length = match text.as_bytes() {
        [b'\\', b'u', ..] if is_high(text) => 12,
        [b'\\', b'u', ..] => 6,
        [b'\\', ..] => 2,
        _ => text.chars().next().map_or(1, char::len_utf8),
    };
    length.min(text.len())
}
