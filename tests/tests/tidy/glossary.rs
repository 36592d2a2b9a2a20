//! The glossary: its types exist, and its forbidden words are not used.

use std::collections::BTreeSet;

use crate::project::{Problems, files, read, sources};
use crate::structure::type_names;

const GLOSSARY: &str = "docs/glossary.md";

/// Returns the rows of the table: the meaning of each word, and the words to avoid.
fn rows() -> Vec<(String, String)> {
    let text = read(GLOSSARY).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| **"));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split(" | ").skip(1);
        let mut cell = || cells.next().unwrap_or_default().to_owned();
        (cell(), cell())
    })
    .collect()
}

/// Returns the texts between pairs of a mark.
fn marked(text: &str, mark: char) -> impl Iterator<Item = &str> {
    text.split(mark).skip(1).step_by(2)
}

#[test]
fn every_type_in_the_glossary_exists() {
    let mut problems = Problems::default();
    let known: BTreeSet<String> = type_names().into_iter().map(|(name, _)| name).collect();
    let mut checked = 0;
    for (meaning, _) in rows() {
        let is_type = |name: &&str| name.starts_with(char::is_uppercase) && !name.contains("::");
        for name in marked(&meaning, '`').filter(is_type) {
            checked += 1;
            if !known.contains(name) {
                let rule = format!("names the type `{name}`, which does not exist");
                problems.add(GLOSSARY, rule, "name an existing type");
            }
        }
    }
    assert!(checked > 30, "{checked} types");
    problems.report();
}

#[test]
fn no_word_that_the_glossary_excludes_is_used() {
    let mut problems = Problems::default();
    let words: Vec<String> = rows()
        .iter()
        .flat_map(|(_, excluded)| {
            marked(excluded, '*')
                .map(str::to_lowercase)
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(words.len() > 8, "{words:?}");
    // The changelog contains former names.
    let is_document =
        |file: &String| file.ends_with(".md") && ![GLOSSARY, "CHANGELOG.md"].contains(&&**file);
    let documents = files().into_iter().filter(is_document);
    let product = ["shared/", "functions/", "infra/"];
    let product = product.iter().flat_map(|folder| sources(folder));
    for file in product.chain(documents) {
        let text = read(&file).unwrap_or_default().to_lowercase();
        // A function of `ring`.
        let text = text.replace("seal_in_place", "");
        for (number, line) in (1..).zip(text.lines()) {
            for word in words.iter().filter(|word| says(line, word)) {
                let rule = format!("uses `{word}`, which the glossary excludes");
                problems.add(
                    format!("{file}:{number}"),
                    rule,
                    "use the word of the glossary",
                );
            }
        }
    }
    problems.report();
}

/// Returns whether a line contains a word or its plural as a whole word, also as a part of a name
/// in code. Text in quotes is ignored, because it may be a stored name.
fn says(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..]
            .trim_start_matches('s')
            .chars()
            .next();
        let is_boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        let is_quoted = line[..at].matches('"').count() % 2 == 1;
        !is_quoted && is_boundary(before) && is_boundary(after)
    })
}
