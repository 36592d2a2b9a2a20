//! The texts in responses: their length limit, and their size as JSON.

use std::borrow::Cow;

/// The longest name or path that is not truncated, in bytes.
pub(super) const LONGEST_SHOWN: usize = 16 * 1024;

/// Returns a name or a path as it is shown. A long one is truncated, with a note.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST_SHOWN {
        return text.into();
    }
    let cut = text.floor_char_boundary(LONGEST_SHOWN);
    let (kept, bytes) = (&text[..cut], text.len());
    format!("{kept}… (cut: {bytes} bytes)").into()
}

/// Returns the bytes of a text as a JSON string, without its quotes.
pub(super) fn escaped_bytes(text: &str) -> usize {
    let is_escaped = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    // Few texts need escapes. Without branches, this loop is vectorized.
    if !text.bytes().fold(false, |any, byte| any | is_escaped(byte)) {
        return text.len();
    }
    let further = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => "u0000".len(),
        _ => 0,
    });
    text.len() + further.sum::<usize>()
}
