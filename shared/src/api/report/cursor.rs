//! Reads the parts of a line.

use std::ops::Range;

/// The maximum length of a line, in bytes. Longer lines are not searched for frames.
const LINE_BYTES: usize = 32 * 1024;

/// A line of a text, without its terminator.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextLine<'a> {
    pub(super) text: &'a str,
    /// Where it begins in the text, in bytes.
    pub(super) start: usize,
    /// Where the next line begins.
    pub(super) next: usize,
}

impl TextLine<'_> {
    /// Returns the place of the line in the text.
    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }
}

/// Returns a text without the byte order mark that Windows puts before UTF-8.
pub(super) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Returns the lines of a text. Lines that are too long or not UTF-8 are omitted.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = TextLine<'_>> {
    lines_from(bytes, bytes.len() - without_mark(bytes).len())
}

/// Returns the lines of a text from the one that begins at `start` on.
pub(super) fn lines_from(bytes: &[u8], mut start: usize) -> impl Iterator<Item = TextLine<'_>> {
    let rest = bytes.get(start..).unwrap_or_default();
    rest.split(|byte| *byte == b'\n').filter_map(move |line| {
        let at = start;
        start += line.len() + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = (line.len() <= LINE_BYTES).then(|| std::str::from_utf8(line).ok());
        Some(TextLine {
            text: text.flatten()?,
            start: at,
            next: start,
        })
    })
}

/// A position in a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineCursor<'a> {
    line: TextLine<'a>,
    /// The rest of the line.
    pub(super) rest: &'a str,
}

impl<'a> LineCursor<'a> {
    pub(super) fn new(line: TextLine<'a>) -> Self {
        Self {
            line,
            rest: line.text,
        }
    }

    /// Returns the position in the text.
    pub(super) fn at(&self) -> usize {
        self.line.start + self.line.text.len() - self.rest.len()
    }

    /// Passes over `text`; returns whether it comes next.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Passes over spaces and tabs; returns whether there were any.
    pub(super) fn spaces(&mut self) -> bool {
        let before = self.rest.len();
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        self.rest.len() < before
    }

    /// Passes over what is not a space or tab.
    pub(super) fn word(&mut self) {
        self.rest = self.rest.trim_start_matches(|c| c != ' ' && c != '\t');
    }

    /// Passes over the text before `end`, and over `end`.
    pub(super) fn until(&mut self, end: &str) -> Option<&'a str> {
        let (before, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(before)
    }

    /// Passes over a decimal number.
    pub(super) fn number(&mut self) -> Option<u64> {
        let end = self.end_of(|c| c.is_ascii_digit());
        let number = self.rest[..end].parse().ok()?;
        self.rest = &self.rest[end..];
        Some(number)
    }

    /// Passes over hexadecimal digits.
    pub(super) fn digits(&mut self) -> Option<u64> {
        let end = self.end_of(|c| c.is_ascii_hexdigit());
        let number = u64::from_str_radix(&self.rest[..end], 16).ok()?;
        self.rest = &self.rest[end..];
        Some(number)
    }

    /// Passes over a hexadecimal number with its prefix `0x`.
    pub(super) fn hex(&mut self) -> Option<u64> {
        let before = *self;
        let number = self.eat("0x").then(|| self.digits()).flatten();
        if number.is_none() {
            *self = before;
        }
        number
    }

    fn end_of(&self, belongs: fn(char) -> bool) -> usize {
        let end = self.rest.find(|c| !belongs(c));
        end.unwrap_or(self.rest.len())
    }
}

/// What the kernel adds to the path of a file that was removed or replaced.
pub(super) const DELETED: &str = " (deleted)";

/// The maximum number of `#` in a line that are tried as the beginning of a frame.
const MAX_TRIES: usize = 8;

/// Returns the number of the frame in a line, `#` and a decimal number, and what follows it, which
/// `follows` accepts.
pub(super) fn numbered<'a, T>(
    line: TextLine<'a>,
    follows: impl Fn(LineCursor<'a>) -> Option<T>,
) -> Option<(u64, T)> {
    let tries = line.text.match_indices('#').take(MAX_TRIES);
    tries.into_iter().find_map(|(at, _)| {
        let mut cursor = LineCursor {
            line,
            rest: &line.text[at + 1..],
        };
        let number = cursor.number()?;
        cursor
            .spaces()
            .then(|| follows(cursor))
            .flatten()
            .map(|found| (number, found))
    })
}

/// Returns the number in a `0x…` text.
pub(super) fn hex_of(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let is_hex = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Returns the build id that a text begins with.
pub(super) fn id_at(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_hexdigit());
    let id = &text[..end.unwrap_or(text.len())];
    // The shortest build id, that of a hash of 64 bits, has 16 digits.
    (id.len() >= 16 && id.len() <= 64).then_some(id)
}

/// Returns the path and the line in a text such as `/src/a.c:3:5`. A column is left out.
pub(super) fn source_of(text: &str) -> (&str, Option<u32>) {
    match without_number(text) {
        Some((before, last)) => match without_number(before) {
            Some((path, line)) => (path, Some(line)),
            None => (before, Some(last)),
        },
        None => (text, None),
    }
}

/// Returns a text without the number after its last colon, and the number.
fn without_number(text: &str) -> Option<(&str, u32)> {
    let (before, last) = text.rsplit_once(':')?;
    Some((before, last.parse().ok()?))
}
