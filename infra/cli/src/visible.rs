//! Texts that come from files, reports and services, for a terminal.

/// Returns a text without control characters: names come from files that may be hostile, and must
/// neither move the cursor of the terminal nor change the order of what it shows.
pub(crate) fn visible(text: &str) -> String {
    let shown = |c: char| {
        if c.is_control() || is_bidi_control(c) {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(shown).collect()
}

/// Returns whether a character changes the direction in which the text around it is shown (Unicode
/// Standard Annex 9, section 2).
fn is_bidi_control(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_neither_moves_the_cursor_nor_reverses_the_text() {
        assert_eq!(visible("a\u{1b}[2Jb\rc"), "a\u{fffd}[2Jb\u{fffd}c");
        assert_eq!(visible("lib\u{202e}fed.so"), "lib\u{fffd}fed.so");
        assert_eq!(
            visible("a\u{2067}b\u{2069}\u{200f}"),
            "a\u{fffd}b\u{fffd}\u{fffd}"
        );
        assert_eq!(visible("שלום – Grüße 你好"), "שלום – Grüße 你好");
    }
}
