//! Literal operators. The demangler prints the name of `operator"" _km` first:
//! `operator_km::operator ""`.

/// What the demangler prints behind the name.
const BEHIND_NAME: &str = "::operator \"\"";

const OPERATOR: &str = "operator";

/// Returns a demangled name with its literal operators as `c++filt` and `llvm-cxxfilt` print them;
/// `None` if it has none.
pub(in crate::symbolicate) fn with_literal_operators(demangled: &str) -> Option<String> {
    demangled.contains(BEHIND_NAME).then_some(())?;
    let mut written = String::new();
    let mut parts = demangled.split(BEHIND_NAME).peekable();
    while let Some(part) = parts.next() {
        let operator = parts.peek().and_then(|_| operator_at_end(part));
        match operator {
            Some((before, name)) => {
                written.push_str(before);
                written.push_str("operator\"\" ");
                written.push_str(name);
            }
            None => {
                written.push_str(part);
                written.push_str(parts.peek().map_or("", |_| BEHIND_NAME));
            }
        }
    }
    Some(written)
}

/// Returns what precedes `operator` and the name at the end of a text, and the name.
fn operator_at_end(text: &str) -> Option<(&str, &str)> {
    let word =
        text.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.'));
    let name = text[word.len()..].strip_prefix(OPERATOR)?;
    (!name.is_empty()).then_some((word, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_literal_operator_is_its_last_part() {
        for (demangled, want) in [
            (
                "operator_km::operator \"\"(unsigned long long)",
                Some("operator\"\" _km(unsigned long long)"),
            ),
            (
                "ns::operators::operator \"\"(char const*)::{lambda()#1}::operator()() const",
                Some("ns::operator\"\" s(char const*)::{lambda()#1}::operator()() const"),
            ),
            (
                "f<operator_a::operator \"\", operator_b::operator \"\">",
                Some("f<operator\"\" _a, operator\"\" _b>"),
            ),
            ("operator::operator \"\"", Some("operator::operator \"\"")),
            ("ns::operator==(int)", None),
        ] {
            assert_eq!(with_literal_operators(demangled).as_deref(), want);
        }
    }
}
