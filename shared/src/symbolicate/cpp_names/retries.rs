//! Finds the names that the demangler could parse for hours.
//!
//! `cpp_demangle` (0.4.5) parses by trying one production after the other. Most alternatives differ
//! in their first letters. A few contain the same part, which is parsed again if it could not be
//! read:
//!
//! - the arguments after a substitution (`SaI…`, `S_I…`): those of a name, then those of a template
//!   template parameter
//! - what follows `St`: a name in `std`, then `std` itself as a type and the rest as another one
//! - the type of a literal (`L…`): a type, then a mangled name without a prefix, which is a type
//! - the operands of `dl`, `da`, `nw` and `na`: an expression with optional `gs`, then an operator
//! - an unscoped name: a name, then a template without its arguments. Closures (`Ul…`), conversions
//!   (`cv…`) and inherited constructors (`CI…`) contain types
//! - the arguments after a template parameter (`T_I…`) in a conversion, where the demangler looks
//!   ahead, even if it can read them
//!
//! Each of them doubles the time of what it contains, so `n` of them inside each other multiply the
//! time by up to 2ⁿ. No other production parses a part that may contain types or expressions twice:
//! the remaining alternatives fail at their first letters.
//!
//! [`most_retries`] counts all of these texts, also in identifiers, so it is never too low. Ordinary
//! names have many of them, but beside each other rather than inside each other, and the demangler
//! can read them, so that it tries nothing twice. [`retries`] therefore reads a name like the
//! demangler, and returns how many of these productions are inside each other: a limit for the case
//! that the demangler cannot read a part after all.

use super::reader::Keep;
use super::{read, start_of_encoding};

/// Types of one letter. The demangler never parses a literal of such a type again.
const LETTERS: &[u8] = b"vwbcahstijlmxynofdegz";

/// Returns how many of the productions that the demangler may parse twice are inside each other;
/// `None` if the name cannot be read in the remaining steps, or has a part that the demangler does
/// not support or parses twice in any case.
pub(in crate::symbolicate) fn retries(symbol: &str, steps_left: &mut usize) -> Option<u32> {
    let start = start_of_encoding(symbol)?;
    let (reader, _) = read(symbol, start, Keep::Known, steps_left)?;
    (!reader.has_changed && !reader.is_ambiguous).then_some(reader.most_retried)
}

/// Returns an upper bound of [`retries`] that needs no reader.
pub(in crate::symbolicate) fn most_retries(symbol: &str) -> u32 {
    let bytes = symbol.as_bytes();
    let mut count = 0_u32;
    // Whether the text after a place ends an `S<id>_` or `T<id>_` that has arguments.
    let mut has_arguments = false;
    for at in (0..bytes.len()).rev() {
        let rest = &bytes[at..];
        count += u32::from(is_retried(rest, has_arguments));
        has_arguments = match rest {
            [b'_', b'I', ..] => true,
            [b'0'..=b'9' | b'A'..=b'Z', ..] => has_arguments,
            _ => false,
        };
    }
    count
}

/// Returns whether a text may start with a production that the demangler parses twice.
fn is_retried(rest: &[u8], has_arguments: bool) -> bool {
    match rest {
        [b'S', b't', ..] | [b'S', b'a' | b'b' | b's' | b'i' | b'o' | b'd', b'I', ..] => true,
        [b'S' | b'T', ..] => has_arguments,
        [b'L', b'_', ..] => false,
        [b'L', next, ..] => !LETTERS.contains(next),
        [b'd', b'l' | b'a', ..] | [b'n', b'w' | b'a', ..] => true,
        [b'c', b'v', ..] | [b'U', b'l', ..] | [b'C', b'I', ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_retries(symbol: &str) -> Option<u32> {
        let mut steps_left = usize::MAX;
        retries(symbol, &mut steps_left)
    }

    #[test]
    fn productions_inside_each_other_are_counted() {
        for (symbol, most, inside) in [
            ("_Z1fv", 0, Some(0)),
            ("_Z1fSaIiESaIiE", 2, Some(1)),
            ("_Z1fSaISaIiEE", 2, Some(2)),
            ("_Z1fSt6vectorIiSaIiEE", 2, Some(2)),
            ("_Z1fILi1ELb0EEvv", 0, Some(2)),
            ("_Z1fIXdldlLi1EEEvv", 2, Some(4)),
            ("_Z1fIXnw_iEEEvv", 1, None),
            ("_Z1fSaI", 1, None),
            ("_Z1fIiQ1CIT_EEvv", 1, None),
            ("_Z1fvS0_IiET1_IiE", 2, None),
            ("main", 0, None),
        ] {
            assert_eq!(most_retries(symbol), most, "{symbol}");
            assert_eq!(read_retries(symbol), inside, "{symbol}");
        }
    }

    #[test]
    fn reading_ends_when_the_steps_of_a_request_are_used() {
        let symbol = "_Z1fSt6vectorIiSaIiEE";
        let mut steps_left = 100;
        assert!(retries(symbol, &mut steps_left).is_some());
        let steps = 100 - steps_left;
        let mut times = 1;
        while retries(symbol, &mut steps_left).is_some() {
            times += 1;
        }
        assert_eq!((times, steps_left), (100 / steps, 0));
    }
}
