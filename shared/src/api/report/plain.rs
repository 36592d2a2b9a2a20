//! The text of a report without what tools wrap around it: the JSON of log collectors, one object a
//! line, and the escape sequences of terminals.
//!
//! Readers find frames in the plain text. A [`PlainText`] knows where each part of it is in the
//! report, so that names are written there.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::value::RawValue;

use super::model::Place;

/// The maximum size of a text in JSON, in bytes. The stack traces of systemd-coredump are limited
/// to some hundred frames, and log collectors split lines; longer texts are not read.
const JSON_BYTES: usize = 4 * 1024 * 1024;

/// The fields in which log collectors have the text, in the order in which they are tried: Docker
/// and Kubernetes, the journal, others.
const FIELDS: [&str; 4] = ["log", "MESSAGE", "message", "msg"];

/// The character that begins an escape sequence.
const ESCAPE: u8 = 0x1b;

/// The maximum length of the title of a window in an escape sequence, in bytes.
const TITLE_BYTES: usize = 4 * 1024;

/// The fields of a JSON object.
pub(super) type JsonFields<'a> = BTreeMap<String, &'a RawValue>;

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
    /// Where it is in the report. A part that is as long there is written in the same bytes.
    source: Range<usize>,
    encoding: Encoding,
}

/// A plain text.
#[derive(Debug, Default)]
pub(super) struct PlainText {
    pub(super) bytes: Vec<u8>,
    /// In the order of the text, without gaps.
    parts: Vec<TextPart>,
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
            let next = rest.iter().position(|byte| *byte == ESCAPE);
            let length = next.unwrap_or(rest.len());
            text.push(&rest[..length], at..at + length, Encoding::Plain);
            at += length + length_of_escape(&rest[length..]);
        }
        Some(text)
    }

    /// Returns the text in a value of JSON that is a part of `bytes`: a string, or the numbers of
    /// its bytes, as the journal writes what is not UTF-8.
    pub(super) fn of_value(value: &RawValue, bytes: &[u8]) -> Option<Self> {
        let mut text = Self::default();
        text.push_value(value, bytes).then_some(text)
    }

    fn push(&mut self, piece: &[u8], source: Range<usize>, encoding: Encoding) {
        if piece.is_empty() {
            return;
        }
        self.parts.push(TextPart {
            at: self.bytes.len(),
            source,
            encoding,
        });
        self.bytes.extend_from_slice(piece);
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
        let before = (self.bytes.len(), self.parts.len());
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
        let mut at = 0;
        while at < inner.len() {
            let rest = &inner[at..];
            let plain = rest.find('\\').unwrap_or(rest.len());
            let here = start + at;
            self.push(
                &rest.as_bytes()[..plain],
                here..here + plain,
                Encoding::Json,
            );
            at += plain;
            if at == inner.len() {
                break;
            }
            let rest = &inner[at..];
            // Half of a character may precede any other.
            let Some(escape) = rest.get(..length_of_escaped(rest)) else {
                return false;
            };
            let Ok(character) = serde_json::from_str::<String>(&format!("\"{escape}\"")) else {
                return false;
            };
            let source = start + at..start + at + escape.len();
            self.push(character.as_bytes(), source, Encoding::Json);
            at += escape.len();
        }
        true
    }

    /// Returns the part that has a byte of the text, and where the part ends in the text.
    fn part_at(&self, at: usize) -> Option<(&TextPart, usize)> {
        let next = self.parts.partition_point(|part| part.at <= at);
        let part = self.parts.get(next.checked_sub(1)?)?;
        let end = self.parts.get(next).map_or(self.bytes.len(), |it| it.at);
        Some((part, end))
    }

    /// Returns where a range of the text is in the report.
    pub(super) fn range(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.part_at(range.start).map_or(0, |(part, _)| {
            let within = range.start - part.at;
            (part.source.start + within).min(part.source.end)
        });
        let last = range.end.checked_sub(1).filter(|_| !range.is_empty());
        let end = last.and_then(|last| self.part_at(last));
        let end = end.map_or(start, |(part, end)| {
            if range.end == end {
                part.source.end
            } else {
                (part.source.start + (range.end - part.at)).min(part.source.end)
            }
        });
        start..end.max(start)
    }

    /// Returns the place in the report of a place in the text; `None` if no name can be written
    /// there.
    pub(super) fn place(&self, place: &Place) -> Option<Place> {
        let (part, _) = self.part_at(place.line.start)?;
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
    line.trim_ascii_start().starts_with(b"{").then_some(())?;
    let fields: JsonFields<'_> = serde_json::from_slice(line).ok()?;
    let is_text = |value: &&RawValue| value.get().starts_with(['"', '[']);
    FIELDS
        .iter()
        .find_map(|name| fields.get(*name).copied().filter(is_text))
}

/// Returns the length of the escaped character that the inside of a JSON string begins with.
fn length_of_escaped(text: &str) -> usize {
    let is_high = |text: &str| {
        let unit = text
            .get(2..6)
            .and_then(|digits| u16::from_str_radix(digits, 16).ok());
        unit.is_some_and(|unit| (0xd800..0xdc00).contains(&unit))
    };
    let length = match text.as_bytes() {
        [_, b'u', ..] if is_high(text) => 12,
        [_, b'u', ..] => 6,
        _ => 2,
    };
    length.min(text.len())
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
