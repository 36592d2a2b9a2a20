//! The text of a report without what tools wrap around it: the JSON of log collectors, one object a
//! line, and the escape sequences of terminals.
//!
//! Readers find frames in the plain text. A [`PlainText`] knows where each part of it is in the
//! report, so that names are written there.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::cursor::without_mark;
use super::model::Place;

/// The maximum size of a text in JSON, in bytes. The stack traces of systemd-coredump are limited
/// to some hundred frames, and log collectors split lines; longer texts are not read.
pub(super) const JSON_BYTES: usize = 4 * 1024 * 1024;

/// The fields in which log collectors have the text, in the order in which they are tried: Docker
/// and Kubernetes, the journal, others.
const FIELDS: [&str; 4] = ["log", "MESSAGE", "message", "msg"];

/// The character that begins an escape sequence.
const ESCAPE: u8 = 0x1b;

/// The maximum length of the title of a window in an escape sequence, in bytes.
const TITLE_BYTES: usize = 4 * 1024;

/// The maximum number of fields of a JSON object that are kept. Journal entries have some dozens.
const MAX_FIELDS: usize = 1_024;

/// The maximum number of changes in a part of a plain text. A place in the part is searched among
/// them.
const PART_CHANGES: usize = 64;

/// The fields of a JSON object: the first [`MAX_FIELDS`] of them.
pub(super) struct JsonFields<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> JsonFields<'a> {
    /// Returns the value of a field.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied()
    }
}

impl<'de> Deserialize<'de> for JsonFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = JsonFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = from.next_entry::<String, &'de RawValue>()? {
                    if fields.len() < MAX_FIELDS || fields.contains_key(&name) {
                        fields.insert(name, value);
                    }
                }
                Ok(JsonFields(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// How a part of a plain text is written in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// As it is.
    Plain,
    /// In a string of JSON.
    Json,
    /// As the numbers of its bytes.
    Numbers,
}

/// A part of a plain text.
#[derive(Debug)]
struct TextPart {
    /// Where it begins in the plain text.
    at: usize,
    /// Where it is in the report. A part without changes that is as long there is written in the
    /// same bytes.
    source: Range<usize>,
    encoding: Encoding,
    /// The index of its first change. A part with changes ends with the last of them.
    changes: usize,
}

/// Text that is written otherwise in the report, or is there alone: an escaped character, or an
/// escape sequence. Hostile reports have millions of them.
#[derive(Clone, Copy, Debug)]
struct PlainChange {
    /// The number of bytes before it that are the same, since the last change.
    before: u16,
    /// The number of its bytes in the plain text.
    length: u8,
    /// The number of its bytes in the report.
    written: u8,
}

/// What has a byte of a plain text: a part without changes, or what is between changes, or a
/// change.
struct PlacedText {
    range: Range<usize>,
    /// Where it is in the report.
    source: Range<usize>,
    encoding: Encoding,
}

/// A plain text.
#[derive(Debug, Default)]
pub(super) struct PlainText {
    pub(super) bytes: Vec<u8>,
    /// In the order of the text, without gaps.
    parts: Vec<TextPart>,
    /// The changes of all parts.
    changes: Vec<PlainChange>,
    /// The number of changes that can be added to the last part.
    changes_left: usize,
}

impl PlainText {
    /// Removes what is wrapped around a text, the outermost first. Each of the texts is a part of
    /// the one before; the first one is a part of `bytes`.
    pub(super) fn unwrapped(bytes: &[u8]) -> Vec<Self> {
        let mut texts = Vec::new();
        texts.extend(Self::of_json_lines(bytes));
        let inner = texts
            .last()
            .map_or(bytes, |text: &Self| text.bytes.as_slice());
        if let Some(text) = Self::without_escapes(inner) {
            texts.push(text);
        }
        texts
    }

    /// Returns the text in the lines of a log in JSON, with its other lines; `None` if no line is
    /// JSON.
    fn of_json_lines(bytes: &[u8]) -> Option<Self> {
        let lines = || bytes.split_inclusive(|byte| *byte == b'\n');
        lines().find_map(logged)?;
        let mut text = Self::default();
        let mut start = 0;
        for line in lines() {
            let end = start + line.len();
            if !logged(line).is_some_and(|found| text.push_value(found, bytes)) {
                text.push(line, start..end, Encoding::Plain);
            }
            start = end;
        }
        Some(text)
    }

    /// Returns a text without escape sequences; `None` if it has none.
    fn without_escapes(bytes: &[u8]) -> Option<Self> {
        bytes.contains(&ESCAPE).then_some(())?;
        let mut text = Self::default();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let Some(next) = rest.iter().position(|byte| *byte == ESCAPE) else {
                text.push(rest, at..bytes.len(), Encoding::Plain);
                break;
            };
            let escape = length_of_escape(&rest[next..]);
            text.push_changed(&rest[..next], (&[], escape), at, Encoding::Plain);
            at += next + escape;
        }
        Some(text)
    }

    /// Returns the text in a value of JSON that is a part of `bytes`: a string, or the numbers of
    /// its bytes, as the journal writes what is not UTF-8.
    pub(super) fn of_value(value: &RawValue, bytes: &[u8]) -> Option<Self> {
        let mut text = Self::default();
        text.push_value(value, bytes).then_some(text)
    }

    /// Adds a text without changes.
    fn push(&mut self, piece: &[u8], source: Range<usize>, encoding: Encoding) {
        self.changes_left = 0;
        if piece.is_empty() {
            return;
        }
        let changes = self.changes.len();
        // Lines that follow each other in the report as well are one part.
        let continued = self.parts.last_mut().filter(|last| {
            (encoding, last.encoding) == (Encoding::Plain, Encoding::Plain)
                && last.source.end == source.start
                && last.changes == changes
        });
        match continued {
            Some(last) => last.source.end = source.end,
            None => self.parts.push(TextPart {
                at: self.bytes.len(),
                source,
                encoding,
                changes,
            }),
        }
        self.bytes.extend_from_slice(piece);
    }

    /// Adds a text without changes that begins in the report at `at`, and a change: its text, and
    /// the number of bytes that the report has for it. It follows the last change in the report,
    /// unless [`Self::push`] was called in between.
    fn push_changed(
        &mut self,
        piece: &[u8],
        change: (&[u8], usize),
        at: usize,
        encoding: Encoding,
    ) {
        let (text, written) = change;
        let (same, end) = (at + piece.len(), at + piece.len() + written);
        let before = u16::try_from(piece.len()).ok();
        let lengths = u8::try_from(text.len())
            .ok()
            .zip(u8::try_from(written).ok());
        let Some((before, (length, written))) = before.zip(lengths) else {
            self.push(piece, at..same, encoding);
            self.push(text, same..end, encoding);
            return;
        };
        if self.changes_left == 0 {
            self.changes_left = PART_CHANGES;
            self.parts.push(TextPart {
                at: self.bytes.len(),
                source: at..at,
                encoding,
                changes: self.changes.len(),
            });
        }
        self.changes_left -= 1;
        self.changes.push(PlainChange {
            before,
            length,
            written,
        });
        if let Some(part) = self.parts.last_mut() {
            part.source.end = end;
        }
        self.bytes.extend_from_slice(piece);
        self.bytes.extend_from_slice(text);
    }

    /// Adds the text in a value of JSON, and a line break if it ends with none. Returns whether the
    /// value is a text.
    fn push_value(&mut self, value: &RawValue, bytes: &[u8]) -> bool {
        let json = value.get();
        let start = (json.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize);
        let Some(start) = start.filter(|_| json.len() <= JSON_BYTES) else {
            return false;
        };
        let source = start..start + json.len();
        let before = (self.bytes.len(), self.parts.len(), self.changes.len());
        let inner = json.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
        let is_text = match inner {
            Some(inner) => self.push_string(inner, source.start + 1),
            None => match serde_json::from_str::<Vec<u8>>(json) {
                Ok(numbers) => {
                    self.push(&numbers, source.clone(), Encoding::Numbers);
                    true
                }
                Err(_) => false,
            },
        };
        if !is_text {
            self.bytes.truncate(before.0);
            self.parts.truncate(before.1);
            self.changes.truncate(before.2);
        } else if self.bytes[before.0..].last() != Some(&b'\n') {
            // What follows the text is written before the quote.
            let end = source.end - 1;
            self.push(b"\n", end..end, Encoding::Json);
        }
        is_text
    }

    /// Adds a string of JSON, of which `inner` is what is between the quotes. Returns whether it
    /// is valid.
    fn push_string(&mut self, inner: &str, start: usize) -> bool {
        self.changes_left = 0;
        let mut at = 0;
        while at < inner.len() {
            let rest = &inner[at..];
            let here = start + at;
            let Some(next) = rest.find('\\') else {
                self.push(rest.as_bytes(), here..start + inner.len(), Encoding::Json);
                break;
            };
            let (piece, escape) = rest.split_at(next);
            let Some((character, length)) = unescaped(escape) else {
                return false;
            };
            let mut buffer = [0; 4];
            let character = character.encode_utf8(&mut buffer).as_bytes();
            let change = (character, length);
            self.push_changed(piece.as_bytes(), change, here, Encoding::Json);
            at += next + length;
        }
        true
    }

    /// Returns what has a byte of the text.
    fn part_at(&self, at: usize) -> Option<PlacedText> {
        let next = self.parts.partition_point(|part| part.at <= at);
        let part = self.parts.get(next.checked_sub(1)?)?;
        let following = self.parts.get(next);
        let (end, last) = following.map_or((self.bytes.len(), self.changes.len()), |following| {
            (following.at, following.changes)
        });
        let mut found = PlacedText {
            range: part.at..end,
            source: part.source.clone(),
            encoding: part.encoding,
        };
        let changes = self.changes.get(part.changes..last).unwrap_or_default();
        for change in changes {
            let same = usize::from(change.before);
            for (length, written) in [
                (same, same),
                (usize::from(change.length), usize::from(change.written)),
            ] {
                let (end, source_end) = (found.range.start + length, found.source.start + written);
                if at < end {
                    found.range.end = end;
                    found.source.end = source_end;
                    return Some(found);
                }
                found.range.start = end;
                found.source.start = source_end;
            }
        }
        Some(found)
    }

    /// Returns where a range of the text is in the report.
    pub(super) fn range(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.part_at(range.start).map_or(0, |part| {
            let within = range.start - part.range.start;
            (part.source.start + within).min(part.source.end)
        });
        let last = range.end.checked_sub(1).filter(|_| !range.is_empty());
        let end = last.and_then(|last| self.part_at(last));
        let end = end.map_or(start, |part| {
            if range.end == part.range.end {
                part.source.end
            } else {
                let within = range.end - part.range.start;
                (part.source.start + within).min(part.source.end)
            }
        });
        start..end.max(start)
    }

    /// Returns the place in the report of a place in the text; `None` if no name can be written
    /// there.
    pub(super) fn place(&self, place: &Place) -> Option<Place> {
        let part = self.part_at(place.line.start)?;
        // A frame may have several lines, of which only some are in JSON.
        let end = place.line.end.saturating_sub(1).max(place.line.start);
        (self.part_at(end)?.encoding == part.encoding).then_some(())?;
        let in_json = match part.encoding {
            Encoding::Numbers => return None,
            Encoding::Json => true,
            Encoding::Plain => place.in_json,
        };
        let (name, line) = (self.range(&place.name), self.range(&place.line));
        Some(Place {
            line: line.start.min(name.start)..line.end.max(name.end),
            name,
            in_json,
        })
    }
}

/// Returns the text in a line of a log in JSON.
fn logged(line: &[u8]) -> Option<&RawValue> {
    let line = without_mark(line);
    line.trim_ascii_start().starts_with(b"{").then_some(())?;
    let fields: JsonFields<'_> = serde_json::from_slice(line).ok()?;
    let is_text = |value: &&RawValue| value.get().starts_with(['"', '[']);
    FIELDS
        .iter()
        .find_map(|name| fields.get(name).filter(is_text))
}

/// Returns the escaped character that the inside of a JSON string begins with, and the number of
/// its bytes there; `None` for half of a character.
fn unescaped(text: &str) -> Option<(char, usize)> {
    let character = match *text.as_bytes().get(1)? {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let first = unit_of(text)?;
            // The first half of a character in UTF-16 precedes the second.
            let is_half = (0xd800..0xdc00).contains(&first);
            let second = is_half.then(|| unit_of(text.get(6..)?)).flatten();
            let units = [first].into_iter().chain(second);
            let character = char::decode_utf16(units).next()?.ok()?;
            return Some((character, if is_half { 12 } else { 6 }));
        }
        character @ (b'"' | b'\\' | b'/') => char::from(character),
        _ => return None,
    };
    Some((character, 2))
}

/// Returns the unit of UTF-16 that a text begins with, as JSON escapes it.
fn unit_of(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// Returns the length of the escape sequence that a text begins with (ECMA-48).
fn length_of_escape(text: &[u8]) -> usize {
    let length = match text.get(1) {
        // A control sequence: parameters, and the byte that ends it.
        Some(b'[') => {
            let parameters = text.iter().skip(2);
            let parameters = parameters.take_while(|byte| (0x20..=0x3f).contains(*byte));
            let end = 2 + parameters.count();
            let is_ended = text.get(end).is_some_and(|byte| byte.is_ascii_graphic());
            end + usize::from(is_ended)
        }
        // The title of a window or the target of a link, up to BEL or another escape sequence.
        Some(b']') => {
            let title = &text[2..text.len().min(TITLE_BYTES)];
            let is_end = |byte: &u8| matches!(*byte, 0x07 | ESCAPE | b'\n');
            match title.iter().position(is_end) {
                Some(end) if title[end] == 0x07 => 2 + end + 1,
                Some(end) if title[end] == ESCAPE => 2 + end,
                _ => 2,
            }
        }
        // The choice of a character set.
        Some(b'(' | b')') => 3,
        Some(b'\n' | b'\r') | None => 1,
        Some(_) => 2,
    };
    length.min(text.len())
}

/// Returns the escape sequences in a text, without what is between them.
pub(super) fn escapes_in(bytes: &[u8]) -> Vec<u8> {
    let mut escapes = Vec::new();
    let mut rest = bytes;
    while let Some(next) = rest.iter().position(|byte| *byte == ESCAPE) {
        let (escape, after) = rest[next..].split_at(length_of_escape(&rest[next..]));
        escapes.extend_from_slice(escape);
        rest = after;
    }
    escapes
}

/// Returns a text in UTF-16 with a byte order mark, as PowerShell writes it, in UTF-8; `None` for
/// other texts.
pub(super) fn of_utf_16(bytes: &[u8]) -> Option<Vec<u8>> {
    let (units, is_little) = match bytes {
        [0xff, 0xfe, units @ ..] => (units, true),
        [0xfe, 0xff, units @ ..] => (units, false),
        _ => return None,
    };
    let from = if is_little {
        u16::from_le_bytes
    } else {
        u16::from_be_bytes
    };
    let (units, _) = units.as_chunks();
    let characters = char::decode_utf16(units.iter().map(|unit| from(*unit)));
    let text: String = characters
        .map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect();
    Some(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrapped(text: &str) -> String {
        let texts = PlainText::unwrapped(text.as_bytes());
        let inner = texts.last().map(|text| text.bytes.clone());
        String::from_utf8(inner.unwrap_or_else(|| text.as_bytes().to_vec())).unwrap()
    }

    #[test]
    fn the_text_of_a_log_in_json_is_that_of_its_fields() {
        let docker = "{\"log\":\"a\\tb\\n\",\"stream\":\"stderr\"}\n{\"log\":\"\\u00fc\"}\nplain\n";
        assert_eq!(unwrapped(docker), "a\tb\nü\nplain\n");
        let others =
            "{\"level\": 1, \"message\": \"a\"}\n{\"MESSAGE\": [98, 10]}\n{\"msg\": \"c\"}";
        assert_eq!(unwrapped(others), "a\nb\nc\n");
        for text in [
            "{\"log\": 1}",
            "{\"other\": \"a\"}",
            "{",
            "a\n",
            "",
            "[\"log\"]",
        ] {
            assert_eq!(unwrapped(text), text);
        }
    }

    #[test]
    fn escape_sequences_are_no_text() {
        for (text, plain) in [
            ("\u{1b}[33mmain\u{1b}[m ()", "main ()"),
            ("\u{1b}[1;38;5;4m#0\u{1b}[0m", "#0"),
            ("\u{1b}]8;;http://a\u{7}link\u{1b}]8;;\u{1b}\\.", "link."),
            ("\u{1b}(0a\u{1b}7b\u{1b}", "ab"),
            ("\u{1b}[", ""),
            ("\u{1b}]title without an end\n", "title without an end\n"),
            ("\u{1b}\na", "\na"),
        ] {
            assert_eq!(unwrapped(text), plain, "{text:?}");
        }
        let escapes = escapes_in(b"a\x1b[1mb\x1b[m\x1b[2mc");
        assert_eq!(escapes, b"\x1b[1m\x1b[m\x1b[2m");
    }

    #[test]
    fn each_part_of_a_text_is_found_in_the_report() {
        let report = "{\"log\": \"\\u001b[1m\\u00fcber\\u001b[m \\\"x\\\"\\n\"}\n";
        let texts = PlainText::unwrapped(report.as_bytes());
        assert_eq!(texts.len(), 2);
        let text = String::from_utf8(texts[1].bytes.clone()).unwrap();
        assert_eq!(text, "über \"x\"\n");
        let source = |part: &str| {
            let at = text.find(part).unwrap();
            let range = texts[0].range(&texts[1].range(&(at..at + part.len())));
            &report[range]
        };
        assert_eq!(source("über"), "\\u00fcber");
        assert_eq!(source("ber"), "ber");
        assert_eq!(source("\"x\""), "\\\"x\\\"");
        assert_eq!(source("x"), "x");
    }

    #[test]
    fn each_character_is_found_where_it_is_written() {
        let inner = r#"plain\n\t\"\\\/\b\f\rä\u00e4\ud834\udd1e𝄞\u20AC end"#.repeat(20);
        let long = "a".repeat(70_000);
        let json = format!("\"{long}{inner}{long}\\n{inner}\"");
        let value: &RawValue = serde_json::from_str(&json).unwrap();
        // Where the value is in a report is counted from the beginning of the report.
        let report = value.get();
        let text = PlainText::of_value(value, report.as_bytes()).unwrap();
        let plain = String::from_utf8(text.bytes.clone()).unwrap();
        let expected: String = serde_json::from_str(&json).unwrap();
        assert_eq!(plain, format!("{expected}\n"));
        for (at, character) in expected.char_indices() {
            let source = &report[text.range(&(at..at + character.len_utf8()))];
            let written: String = serde_json::from_str(&format!("\"{source}\"")).unwrap();
            assert_eq!(written, character.to_string(), "{at}");
        }
        for half in [r"\ud834", r"\udd1e", r"\ud834\ud834", r"\ud834x\udd1e"] {
            let json = format!("{{\"log\": \"a{half}\"}}");
            assert_eq!(unwrapped(&json), json);
        }
    }

    #[test]
    fn the_text_between_escape_sequences_is_found_in_the_report() {
        let sequences = ["\u{1b}[1m", "\u{1b}7", "\u{1b}]0;a title\u{7}"];
        let title = format!("\u{1b}]0;{}\u{7}", "t".repeat(300));
        let sequences = sequences.into_iter().chain([title.as_str()]);
        let report: String = sequences.map(|it| format!("{it}ab{it}{it}c")).collect();
        let report = report.repeat(100);
        let texts = PlainText::unwrapped(report.as_bytes());
        let text = &texts[0];
        assert_eq!(text.bytes, b"abc".repeat(400));
        for (at, byte) in text.bytes.iter().enumerate() {
            let source = text.range(&(at..at + 1));
            assert_eq!(&report.as_bytes()[source], [*byte], "{at}");
        }
    }

    #[test]
    fn a_text_has_few_parts_however_many_escapes_and_lines_it_has() {
        let count = |report: &str| {
            let texts = PlainText::unwrapped(report.as_bytes());
            let text = texts.last().unwrap();
            (text.parts.len(), text.changes.len())
        };
        let escapes = "\\n\\ta".repeat(PART_CHANGES * 50);
        let json = format!("{{\"log\": \"{escapes}\"}}\n");
        // The rest of the string, and the line break after it.
        assert_eq!(count(&json), (100 + 2, PART_CHANGES * 100));
        let lines = format!("{{\"log\": \"a\"}}\n{}", "b\n".repeat(1_000));
        assert_eq!(count(&lines), (3, 0));
        let sequences = "\u{1b}7a".repeat(PART_CHANGES * 50);
        assert_eq!(count(&sequences), (50 + 1, PART_CHANGES * 50));
    }

    #[test]
    fn a_json_object_has_its_first_fields() {
        let fields: String = (1..2 * MAX_FIELDS)
            .map(|number| format!("\"{number}\": 1, "))
            .collect();
        let json = format!("{{\"log\": 2, {fields}\"log\": \"last\"}}");
        let fields: JsonFields<'_> = serde_json::from_str(&json).unwrap();
        assert_eq!(fields.0.len(), MAX_FIELDS);
        assert_eq!(fields.get("log").map(RawValue::get), Some("\"last\""));
        assert!(fields.get("1").is_some() && fields.get("1024").is_none());
        assert!(serde_json::from_str::<JsonFields<'_>>("[]").is_err());
    }

    #[test]
    fn text_in_utf_16_is_decoded_in_both_byte_orders() {
        let units = || "Übung 𝄞\n".encode_utf16();
        let little: Vec<u8> = units().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = units().flat_map(u16::to_be_bytes).collect();
        let decoded = Some("Übung 𝄞\n".as_bytes().to_vec());
        assert_eq!(of_utf_16(&[&[0xff, 0xfe][..], &little].concat()), decoded);
        assert_eq!(of_utf_16(&[&[0xfe, 0xff][..], &big].concat()), decoded);
        assert_eq!(of_utf_16(b"\xff\xfea\0b"), Some(b"a".to_vec()));
        assert_eq!(of_utf_16(b"text"), None);
    }
}
