//! The text of a report, whatever its encoding, line ends and indentation are.

use std::borrow::Cow;

/// Returns the text of a file in UTF-8, or in UTF-16 with a byte order mark. Its lines end with
/// line feeds, and are neither indented nor quoted if all of them were, in the same way. What is
/// not text is replaced.
pub(in crate::api) fn decoded(file: &[u8]) -> Cow<'_, str> {
    without_prefix(with_line_feeds(in_utf_8(file)))
}

fn in_utf_8(file: &[u8]) -> Cow<'_, str> {
    match file {
        [0xff, 0xfe, units @ ..] => Cow::Owned(from_utf_16(units, u16::from_le_bytes)),
        [0xfe, 0xff, units @ ..] => Cow::Owned(from_utf_16(units, u16::from_be_bytes)),
        [0xef, 0xbb, 0xbf, text @ ..] => String::from_utf8_lossy(text),
        text => String::from_utf8_lossy(text),
    }
}

fn from_utf_16(units: &[u8], from: fn([u8; 2]) -> u16) -> String {
    let (units, _) = units.as_chunks();
    let characters = char::decode_utf16(units.iter().map(|unit| from(*unit)));
    characters
        .map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

/// Replaces line ends of carriage returns alone. The last line may end otherwise.
fn with_line_feeds(text: Cow<'_, str>) -> Cow<'_, str> {
    let has_others = text.trim_end().contains('\n');
    if !has_others && text.contains('\r') {
        Cow::Owned(text.replace('\r', "\n"))
    } else {
        text
    }
}

/// Removes the indentation and the marks of a quotation with which all lines begin. Blank lines may
/// have less of it.
fn without_prefix(text: Cow<'_, str>) -> Cow<'_, str> {
    let lines = text
        .lines()
        .filter(|line| !after_quotation(line).is_empty());
    let prefix = lines
        .map(|line| &line[..line.len() - after_quotation(line).len()])
        .reduce(common_prefix)
        .unwrap_or_default();
    if prefix.is_empty() {
        return text;
    }
    let mut stripped = String::with_capacity(text.len());
    for line in text.lines() {
        stripped.push_str(line.strip_prefix(prefix).unwrap_or_default());
        stripped.push('\n');
    }
    Cow::Owned(stripped)
}

/// Returns a line without indentation and the marks of a quotation.
fn after_quotation(line: &str) -> &str {
    line.trim_start_matches([' ', '\t', '>'])
}

/// Returns what both texts begin with, of which the first is ASCII.
fn common_prefix<'a>(first: &'a str, second: &str) -> &'a str {
    let pairs = first.bytes().zip(second.bytes());
    &first[..pairs.take_while(|(first, second)| first == second).count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_utf_16_is_read_in_both_byte_orders() {
        let text = "Process: Übung 𝄞\n";
        let little = text.encode_utf16().flat_map(u16::to_le_bytes);
        let little: Vec<u8> = [0xff, 0xfe].into_iter().chain(little).collect();
        assert_eq!(decoded(&little), text);
        let big = text.encode_utf16().flat_map(u16::to_be_bytes);
        let big: Vec<u8> = [0xfe, 0xff].into_iter().chain(big).collect();
        assert_eq!(decoded(&big), text);
        // Half of a character, and half of a unit.
        assert_eq!(decoded(b"\xff\xfea\0\0\xd8b"), "a\u{fffd}");
        assert_eq!(decoded(b"\xef\xbb\xbfa\xff"), "a\u{fffd}");
    }

    #[test]
    fn carriage_returns_alone_end_lines() {
        assert_eq!(decoded(b"a\rb\r\rc\r"), "a\nb\n\nc\n");
        assert_eq!(decoded(b"a\rb\n"), "a\nb\n");
        assert_eq!(decoded(b"a\r\nb\r\n"), "a\r\nb\r\n");
    }

    #[test]
    fn what_all_lines_begin_with_is_removed() {
        assert_eq!(decoded(b"  a\n    b\n\n  c"), "a\n  b\n\nc\n");
        assert_eq!(decoded(b"> a\n>   b\n>\n> c\n"), "a\n  b\n\nc\n");
        assert_eq!(decoded(b">> {\n>> }\n"), "{\n}\n");
        for text in ["a\n  b\n", "  a\nb\n", "> a\n  b\n", "", "\n \n>\n"] {
            assert_eq!(decoded(text.as_bytes()), text);
        }
    }
}
