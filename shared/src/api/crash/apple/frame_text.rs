//! What a report in text says about a frame after its address: the function, its offset, its module
//! and its place in the source, as Xcode and `atos` write them.

/// The text of a frame after its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::api) struct FrameText<'a> {
    /// The function; `None` for an address, and for `???`.
    pub(in crate::api) function: Option<&'a str>,
    /// Where it is in the source.
    pub(in crate::api) place: Option<ReportedPlace<'a>>,
    /// Whether the function is inlined into that of the next frame, which has the same address.
    pub(in crate::api) is_inlined: bool,
}

/// The end of the text of a frame whose function is inlined.
const INLINED: &str = "[inlined]";

/// What stands for a function, or a module, that is not known.
const UNKNOWN: &str = "???";

/// A place in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct ReportedPlace<'a> {
    pub(in crate::api) file: &'a str,
    pub(in crate::api) line: u32,
}

impl<'a> FrameText<'a> {
    /// Splits a text such as `-[Account withdraw:] + 64 (Account.m:31)`. The function may be
    /// followed by its offset, its module and its place, in any order.
    pub(in crate::api) fn parse(text: &'a str) -> Self {
        let text = text.trim();
        let called = text.strip_suffix(INLINED);
        let (mut function, mut place) = (called.unwrap_or(text).trim_end(), None);
        while let Some((before, found)) = without_last(function) {
            function = before.trim_end();
            place = place.or(found);
        }
        Self {
            function: Some(function).filter(|name| is_name(name)),
            place,
            is_inlined: called.is_some(),
        }
    }
}

/// Returns a text without the offset, module or place at its end, and the place. Only the end is
/// read, because hostile texts have thousands of places.
fn without_last(text: &str) -> Option<(&str, Option<ReportedPlace<'_>>)> {
    let before = text.trim_end_matches(|c: char| c.is_ascii_digit());
    if before.len() < text.len()
        && let Some(before) = before.strip_suffix(" + ")
    {
        return Some((before, None));
    }
    let (before, last) = text.split_at(last_parentheses(text)?);
    let last = last.trim_start().strip_prefix('(')?.strip_suffix(')')?;
    if last.starts_with("in ") {
        Some((before, None))
    } else {
        Some((before, Some(source_place(last)?)))
    }
}

/// Returns the place in a text such as `Foo.swift:9` or `Foo.swift:9:11`. A column is left out.
fn source_place(text: &str) -> Option<ReportedPlace<'_>> {
    let (before, last) = text.rsplit_once(':').filter(|(_, last)| is_number(last))?;
    let (file, line) = match before.rsplit_once(':') {
        Some((file, line)) if is_number(line) => (file, line),
        _ => (before, last),
    };
    let line = line.parse().ok()?;
    (!file.is_empty()).then_some(ReportedPlace { file, line })
}

/// Returns where the parentheses begin with which a text ends, with the space before them. They may
/// contain others.
pub(in crate::api) fn last_parentheses(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, character) in text.char_indices().rev() {
        depth += match character {
            ')' => 1,
            '(' => -1,
            _ => 0,
        };
        if depth == 0 {
            return (character == '(' && text[..at].ends_with(' ')).then(|| at - 1);
        }
    }
    None
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text != UNKNOWN && !is_address(text)
}

/// Returns whether a text is the address of a module, to which an offset was added. That of an
/// address in no module is the decimal number zero: `0 + 3501`.
fn is_address(text: &str) -> bool {
    let digits = text.strip_prefix("0x");
    digits.is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok()) || is_number(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_neither_its_offset_nor_its_module_nor_its_place() {
        let check = |text: &str, function: &str, place: Option<(&str, u32)>| {
            let expected = FrameText {
                function: Some(function),
                place: place.map(|(file, line)| ReportedPlace { file, line }),
                is_inlined: text.ends_with(INLINED),
            };
            assert_eq!(FrameText::parse(text), expected, "{text}");
        };
        check("mach_msg_trap + 8", "mach_msg_trap", None);
        check("main", "main", None);
        let method = "-[Foo(Cat) bar:] + 20 (Foo.m:7)";
        check(method, "-[Foo(Cat) bar:]", Some(("Foo.m", 7)));
        let of_atos = "Foo.bar() + 4 (in libdyld.dylib) (Foo.swift:9)";
        check(of_atos, "Foo.bar()", Some(("Foo.swift", 9)));
        check("Foo.bar() (in My (old) App) + 4", "Foo.bar()", None);
        check("foo + 8 (f.swift:3:11)", "foo", Some(("f.swift", 3)));
        let generated = "thunk for @callee () -> () + 28 (/<compiler-generated>:0)";
        let thunk = "thunk for @callee () -> ()";
        check(generated, thunk, Some(("/<compiler-generated>", 0)));
        let in_anonymous = "(anonymous namespace)::f(int) + 3 (My (old) file.cpp:12)";
        let name = "(anonymous namespace)::f(int)";
        check(in_anonymous, name, Some(("My (old) file.cpp", 12)));
        let inlined = "closure #1 in Foo.bar(_:) + 8 (Foo.swift:9) [inlined]";
        check(inlined, "closure #1 in Foo.bar(_:)", Some(("Foo.swift", 9)));
        check("operator+ (int) + 5", "operator+ (int)", None);
        check("f (std::vector)", "f (std::vector)", None);
        check("f (a.c:99999999999)", "f (a.c:99999999999)", None);
        check("f (:7)", "f (:7)", None);
    }

    #[test]
    fn any_number_of_offsets_modules_and_places_is_left_out() {
        let text = format!("f + 1 + g{}", " + 2 (in app) (a.c:3) (b.c:4)".repeat(1_000));
        let parsed = FrameText::parse(&text);
        assert_eq!(parsed.function, Some("f + 1 + g"));
        let place = parsed.place.map(|place| (place.file, place.line));
        assert_eq!(place, Some(("b.c", 4)));
        for text in ["f +", "f + ", "f + 1a", "f+ 1", "+ 1", "7a"] {
            assert_eq!(FrameText::parse(text).function, Some(text.trim()), "{text}");
        }
    }

    #[test]
    fn an_address_is_not_a_function() {
        for text in ["0x100000000 + 16128", "0x100000000 (in app)", "", " "] {
            assert_eq!(FrameText::parse(text).function, None, "{text}");
        }
        assert_eq!(FrameText::parse("0xyz + 1").function, Some("0xyz"));
    }

    #[test]
    fn what_stands_for_an_address_in_no_module_is_not_a_function() {
        for text in ["???", "??? + 0", "??? (in ???)", "0 + 3501", "0"] {
            assert_eq!(FrameText::parse(text).function, None, "{text}");
        }
        for text in ["????", "f???", "0a"] {
            assert_eq!(FrameText::parse(text).function, Some(text), "{text}");
        }
    }
}
