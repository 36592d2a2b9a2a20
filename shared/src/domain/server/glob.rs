//! Patterns of paths: `*` matches any text, `?` any character.
//!
//! Patterns and paths are both sent by clients. A matcher that goes back to the last `*` takes as
//! many steps as both lengths multiplied. This one goes through a path once, and follows all ways
//! to match it at the same time, as the bits of a few words.

use std::collections::BTreeMap;

/// The number of states in a word.
const WORD: usize = 64;

/// The number of ASCII characters.
const ASCII: u8 = 128;

/// A pattern.
///
/// State `n` of a match means that the first `n` characters of the pattern, without any `*`, match
/// the path so far. Every field with words has a bit for each state.
pub(super) struct Glob {
    /// The number of characters of the pattern, without any `*`.
    length: usize,
    /// The states in which the pattern has a `*`.
    stays: Vec<u64>,
    /// The states that each ASCII character leads on from, in turn.
    ascii: Vec<u64>,
    /// The states that other characters lead on from, sorted by character.
    others: Vec<(char, Vec<u64>)>,
    /// The states that all further characters lead on from: those with a `?`.
    any: Vec<u64>,
}

impl Glob {
    pub(super) fn new(pattern: &str) -> Self {
        let length = pattern.chars().filter(|c| *c != '*').count();
        let none = vec![0_u64; length / WORD + 1];
        let (mut stays, mut any) = (none.clone(), none.clone());
        let mut by_char: BTreeMap<char, Vec<u64>> = BTreeMap::new();
        let mut state = 0;
        for c in pattern.chars() {
            match c {
                '*' => {
                    set(&mut stays, state);
                    continue;
                }
                '?' => set(&mut any, state),
                c => set(by_char.entry(c).or_insert_with(|| none.clone()), state),
            }
            state += 1;
        }
        for states in by_char.values_mut() {
            for (word, any) in states.iter_mut().zip(&any) {
                *word |= any;
            }
        }
        let mut ascii = Vec::new();
        for byte in 0..ASCII {
            let states = by_char.get(&char::from(byte));
            ascii.extend_from_slice(states.unwrap_or(&any));
        }
        let others = by_char.into_iter().filter(|(c, _)| !c.is_ascii());
        Self {
            length,
            stays,
            ascii,
            others: others.collect(),
            any,
        }
    }

    /// Returns whether the pattern matches a whole path.
    pub(super) fn matches(&self, path: &str) -> bool {
        let mut states = vec![0_u64; self.stays.len()];
        set(&mut states, 0);
        for c in path.chars() {
            let (mut carry, mut all) = (0_u64, 0_u64);
            let words = self.leads_on(c).iter().zip(&self.stays);
            for (state, (leads_on, stays)) in states.iter_mut().zip(words) {
                let before = *state & leads_on;
                *state = (before << 1) | carry | (*state & stays);
                carry = before >> (WORD - 1);
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
        if c.is_ascii() {
            let words = self.stays.len();
            return &self.ascii[c as usize * words..][..words];
        }
        let found = self.others.binary_search_by_key(&c, |(other, _)| *other);
        match found {
            Ok(at) => self.others[at].1.as_slice(),
            Err(_) => self.any.as_slice(),
        }
    }
}

fn set(words: &mut [u64], state: usize) {
    words[state / WORD] |= 1_u64 << (state % WORD);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Says the same by going back to the last `*`.
    fn matches_slowly(pattern: &[char], path: &[char]) -> bool {
        match (pattern, path) {
            ([], []) => true,
            (['*', pattern @ ..], _) => {
                (0..=path.len()).any(|skipped| matches_slowly(pattern, &path[skipped..]))
            }
            ([c, pattern @ ..], [first, path @ ..]) if *c == '?' || c == first => {
                matches_slowly(pattern, path)
            }
            _ => false,
        }
    }

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

    proptest! {
        #[test]
        fn all_ways_to_match_a_path_are_followed(pattern in "[abä*?]{0,10}", path in "[abäc]{0,12}") {
            let chars: Vec<char> = pattern.chars().collect();
            let of_path: Vec<char> = path.chars().collect();
            prop_assert_eq!(Glob::new(&pattern).matches(&path), matches_slowly(&chars, &of_path));
        }
    }
}
