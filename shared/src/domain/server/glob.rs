//! Patterns of paths: `*` matches any text, `?` any character, `[a-z]` one of these characters,
//! `[!a-z]` any other one, and `**/` any number of folders, also none. A `[` that is not closed is
//! a character like others.
//!
//! Patterns and paths are both sent by clients. A matcher that goes back to the last `*` takes as
//! many steps as both lengths multiplied. This one goes through a path once, and follows all ways
//! to match it at the same time, as the bits of a few words.
//!
//! Source: the patterns of the crate `glob`, in which clients write them for Symbolicator
//! (<https://docs.rs/glob/latest/glob/struct.Pattern.html>), as far as they are valid there.

use std::ops::RangeInclusive;

/// The number of states in a word.
const WORD: usize = 64;

/// The number of ASCII characters.
const ASCII: u32 = 128;

/// A pattern.
///
/// State `n` of a match means that the first `n` elements of the pattern, without any `*`, match
/// the path so far. Every field with words has a bit for each state.
pub(super) struct Glob {
    /// The number of elements of the pattern, without any `*`.
    length: usize,
    /// The states in which the pattern has a `*`.
    stays: Vec<u64>,
    /// The states whose next element may be left out: the `/` of `**/`.
    skips: Vec<u64>,
    /// The states that each ASCII character leads on from, in turn.
    ascii: Vec<u64>,
    /// The states that other characters lead on from: each item holds from its code point to that
    /// of the next item. Sorted.
    others: Vec<(u32, Vec<u64>)>,
}

/// An element of a pattern.
enum Element {
    /// `*`.
    Text,
    /// `**/`.
    Folders,
    /// A character.
    Character(Characters),
}

/// Characters of which a path has to have one.
struct Characters {
    /// Their code points, or those of all other characters.
    ranges: Vec<RangeInclusive<u32>>,
    is_negated: bool,
}

impl Glob {
    pub(super) fn new(pattern: &str) -> Self {
        let mut characters = Vec::new();
        let (mut stays, mut skips) = (Vec::new(), Vec::new());
        for element in elements(pattern) {
            match element {
                Element::Text => stays.push(characters.len()),
                Element::Folders => {
                    stays.push(characters.len());
                    skips.push(characters.len());
                    characters.push(Characters::one('/'));
                }
                Element::Character(element) => characters.push(element),
            }
        }
        let words = |states: &mut dyn Iterator<Item = usize>| {
            let mut words = vec![0_u64; characters.len() / WORD + 1];
            states.for_each(|state| set(&mut words, state));
            words
        };
        let leads_on = |code_point: u32| {
            let mut from = (0..characters.len()).filter(|at| characters[*at].contain(code_point));
            words(&mut from)
        };
        // From one of these to the next, all characters lead on from the same states.
        let ranges = characters.iter().flat_map(|element| &element.ranges);
        let begins = ranges.flat_map(|range| [*range.start(), range.end() + 1]);
        let begins = begins.filter(|begin| *begin > ASCII).chain([ASCII]);
        let mut begins: Vec<u32> = begins.collect();
        begins.sort_unstable();
        begins.dedup();
        Self {
            length: characters.len(),
            stays: words(&mut stays.into_iter()),
            skips: words(&mut skips.into_iter()),
            ascii: (0..ASCII).flat_map(leads_on).collect(),
            others: begins
                .into_iter()
                .map(|begin| (begin, leads_on(begin)))
                .collect(),
        }
    }

    /// Returns whether the pattern matches a whole path.
    pub(super) fn matches(&self, path: &str) -> bool {
        let mut states = vec![0_u64; self.stays.len()];
        set(&mut states, 0);
        if self.skips[0] & 1 == 1 {
            set(&mut states, 1);
        }
        for c in path.chars() {
            let (mut carry, mut skip_carry, mut all) = (0_u64, 0_u64, 0_u64);
            let words = self.leads_on(c).iter().zip(&self.stays).zip(&self.skips);
            for (state, ((leads_on, stays), skips)) in states.iter_mut().zip(words) {
                let before = *state & leads_on;
                let entered = (before << 1) | carry;
                // Only where the name of a folder begins: not from a state that the match stays in.
                let skipped = entered & skips;
                *state = entered | (*state & stays) | (skipped << 1) | skip_carry;
                carry = before >> (WORD - 1);
                skip_carry = skipped >> (WORD - 1);
                all |= *state;
            }
            if all == 0 {
                return false;
            }
        }
        let last = states[self.length / WORD] >> (self.length % WORD);
        last & 1 == 1
    }

    /// Returns the states that a character leads on from.
    fn leads_on(&self, c: char) -> &[u64] {
        let code_point = u32::from(c);
        if code_point < ASCII {
            let words = self.stays.len();
            return &self.ascii[code_point as usize * words..][..words];
        }
        let after = self
            .others
            .partition_point(|(begin, _)| *begin <= code_point);
        &self.others[after - 1].1
    }
}

impl Characters {
    fn one(c: char) -> Self {
        Self {
            ranges: vec![u32::from(c)..=u32::from(c)],
            is_negated: false,
        }
    }

    fn any() -> Self {
        Self {
            ranges: Vec::new(),
            is_negated: true,
        }
    }

    /// Reads a class after its `[`. Also returns what follows its `]`.
    fn class(text: &str) -> Option<(Self, &str)> {
        let (is_negated, text) = match text.strip_prefix('!') {
            Some(text) => (true, text),
            None => (false, text),
        };
        // A `]` at the beginning is a character of the class.
        let first = text.chars().next()?.len_utf8();
        let end = first + text[first..].find(']')?;
        let mut ranges = Vec::new();
        let mut chars = text[..end].chars().map(u32::from).peekable();
        while let Some(begin) = chars.next() {
            let mut to = chars.clone();
            let range = match (to.next(), to.next()) {
                (Some(dash), Some(last)) if dash == u32::from('-') => {
                    chars = to;
                    begin..=last
                }
                _ => begin..=begin,
            };
            ranges.push(range);
        }
        Some((Self { ranges, is_negated }, &text[end + 1..]))
    }

    fn contain(&self, code_point: u32) -> bool {
        self.ranges.iter().any(|range| range.contains(&code_point)) != self.is_negated
    }
}

/// Returns the elements of a pattern.
fn elements(pattern: &str) -> Vec<Element> {
    let mut elements = Vec::new();
    let (mut rest, mut begins_name) = (pattern, true);
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let element = match c {
            '*' => match after.strip_prefix("*/") {
                Some(after) if begins_name => {
                    rest = after;
                    match elements.last() {
                        // Nothing follows that could begin a name.
                        _ if after.is_empty() => elements.push(Element::Text),
                        // Repeated, they mean the same.
                        Some(Element::Folders) => {}
                        _ => elements.push(Element::Folders),
                    }
                    continue;
                }
                _ => Element::Text,
            },
            '?' => Element::Character(Characters::any()),
            '[' => match Characters::class(after) {
                Some((class, after)) => {
                    elements.push(Element::Character(class));
                    (rest, begins_name) = (after, false);
                    continue;
                }
                None => Element::Character(Characters::one(c)),
            },
            c => Element::Character(Characters::one(c)),
        };
        elements.push(element);
        (rest, begins_name) = (after, c == '/');
    }
    elements
}

fn set(words: &mut [u64], state: usize) {
    words[state / WORD] |= 1_u64 << (state % WORD);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_matches_any_text_and_a_question_mark_one_character() {
        let check = |pattern: &str, good: &[&str], bad: &[&str]| {
            let glob = Glob::new(pattern);
            for path in good {
                assert!(glob.matches(path), "{pattern}: {path}");
            }
            for path in bad {
                assert!(!glob.matches(path), "{pattern}: {path}");
            }
        };
        check("", &[""], &["a"]);
        check("*", &["", "a", "ä/b"], &[]);
        check("a", &["a"], &["", "b", "aa", "ä"]);
        check("?", &["a", "ä", "?", "*"], &["", "ab"]);
        check(
            "?:/windows/**",
            &["c:/windows/", "d:/windows/a/b.dll"],
            &["c:/windows", ":/windows/a"],
        );
        check(
            "*/app/*.exe",
            &["/app/.exe", "c:/app/app/a.exe"],
            &["/app.exe", "/app/a.exe.x"],
        );
        check("*ä?c*", &["äbc", "xäéc.d"], &["äc", "abc"]);
    }

    #[test]
    fn a_pattern_may_have_more_states_than_a_word() {
        for length in [62, 63, 64, 65, 127, 128, 129, 256] {
            let (text, glob) = ("a".repeat(length), Glob::new(&"a".repeat(length)));
            assert!(glob.matches(&text), "{length}");
            assert!(!glob.matches(&text[1..]), "{length}");
            assert!(!glob.matches(&format!("{text}a")), "{length}");
            let glob = Glob::new(&format!("*{text}b"));
            assert!(glob.matches(&format!("a{text}{text}b")), "{length}");
            assert!(!glob.matches(&format!("{text}{text}")), "{length}");
        }
    }

    #[test]
    fn a_class_matches_one_of_its_characters() {
        let check = |pattern: &str, good: &str, bad: &str| {
            let glob = Glob::new(pattern);
            for c in good.chars() {
                assert!(glob.matches(&format!("x{c}")), "{pattern}: {c}");
            }
            for c in bad.chars() {
                assert!(!glob.matches(&format!("x{c}")), "{pattern}: {c}");
            }
        };
        check("x[abä]", "abä", "cö-");
        check("x[b-dä-ö]", "bcdäéö", "aeãü-");
        check("x[!b-dä]", "aeö-!", "bcdä");
        check("x[]]", "]", "[");
        check("x[!]-a]", "b[", "]^_`a");
        check("x[a-]", "a-", "b");
        check("x[*?]", "*?", "a");
        check("x[", "[", "a");
    }

    #[test]
    fn folders_may_be_left_out() {
        for (pattern, good, bad) in [
            (
                "**/app",
                vec!["app", "/app", "a/b/app"],
                vec!["myapp", "a/app/b"],
            ),
            ("/a/**/b", vec!["/a/b", "/a/c/d/b"], vec!["/ab", "/a/cb"]),
            ("/a/**/**/b", vec!["/a/b", "/a/c/b"], vec!["/ab"]),
            ("a**/b", vec!["a/b", "acd/b"], vec!["ab"]),
        ] {
            let glob = Glob::new(pattern);
            for path in good {
                assert!(glob.matches(path), "{pattern}: {path}");
            }
            for path in bad {
                assert!(!glob.matches(path), "{pattern}: {path}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn valid_patterns_match_what_they_match_in_the_crate_glob(
            pattern in "([abä*?/!-]|\\[[ab!ä]{0,3}\\]|\\[a-ä\\]|\\*\\*/){0,8}",
            path in "[abäc/!-]{0,12}",
        ) {
            if let Ok(valid) = glob::Pattern::new(&pattern) {
                prop_assert_eq!(Glob::new(&pattern).matches(&path), valid.matches(&path));
            }
        }
    }
}
