//! Thunks of virtual functions. The demangler prints their offsets; `c++filt` and `llvm-cxxfilt`
//! print what a thunk leads to.

use super::start_of_encoding;

/// Returns what is printed before the name of the function that a thunk leads to, and the mangled
/// name of that function; `None` for any other name.
pub(in crate::symbolicate) fn thunk(symbol: &str) -> Option<(&'static str, String)> {
    let (start, encoding) = symbol.split_at(start_of_encoding(symbol)?);
    let (kind, function) = if let Some(offsets) = encoding.strip_prefix("Tc") {
        (
            "covariant return thunk to ",
            after_offset(after_offset(offsets)?)?,
        )
    } else {
        let kind = match encoding.get(..2)? {
            "Th" => "non-virtual thunk to ",
            "Tv" => "virtual thunk to ",
            _ => return None,
        };
        (kind, after_offset(&encoding[1..])?)
    };
    // Thunks lead to functions.
    (!function.starts_with(['T', 'G'])).then(|| (kind, format!("{start}{function}")))
}

/// Returns what follows a `<call-offset>`: `h <number> _`, or `v <number> _ <number> _`.
fn after_offset(text: &str) -> Option<&str> {
    match text.strip_prefix('h') {
        Some(rest) => after_number(rest),
        None => after_number(after_number(text.strip_prefix('v')?)?),
    }
}

/// Returns what follows a number, which may be negative, and `_`.
fn after_number(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('n').unwrap_or(text);
    let rest = digits.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < digits.len()).then(|| rest.strip_prefix('_'))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thunk_leads_to_a_function() {
        for (symbol, kind) in [
            ("_ZThn8_N1C1gEv", "non-virtual thunk to "),
            ("_ZTh16_N1C1gEv", "non-virtual thunk to "),
            ("_ZTv0_n24_N1C1gEv", "virtual thunk to "),
            ("_ZTch0_h16_N1C1gEv", "covariant return thunk to "),
            ("_ZTcv0_n24_v0_n32_N1C1gEv", "covariant return thunk to "),
        ] {
            assert_eq!(thunk(symbol), Some((kind, "_ZN1C1gEv".to_owned())));
        }
        for other in [
            "",
            "_ZN1C1gEv",
            "_ZTV1C",
            "_ZTh_N1C1gEv",
            "_ZThn8N1C1gEv",
            "_ZTv0_N1C1gEv",
            "_ZTch0_N1C1gEv",
            "_ZThn8_Thn8_N1C1gEv",
            "_ZTn8_N1C1gEv",
        ] {
            assert_eq!(thunk(other), None, "{other}");
        }
    }
}
