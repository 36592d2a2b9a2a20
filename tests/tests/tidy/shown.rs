//! The tables of docs/protocol.md and docs/api.md whose rows name tests: the tests exist.

use std::collections::BTreeSet;

use crate::project::{Problems, read, sources};

const PAGE: &str = "docs/protocol.md";

/// The number of failure modes.
const MODES: usize = 32;

/// The prefix of the reason in a row without a test.
const WITHOUT_TEST: &str = "Does not apply: ";

/// The number of rules.
const RULES: usize = 5;

/// The number of interleavings that have broken earlier versions of the protocol.
const INTERLEAVINGS: usize = 27;

/// Returns the rows of the table under a heading: the number, and the last cell, which names tests.
fn table(page: &str, heading: &str) -> Vec<(usize, String)> {
    let (_, rest) = page.split_once(heading).unwrap_or_default();
    let section = rest.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| {
        let row = row.trim_end_matches(" |");
        let number = row.split(" | ").next()?.parse().ok()?;
        Some((number, row.rsplit(" | ").next()?.to_owned()))
    })
    .collect()
}

/// Returns the tests that a cell names: the texts in backticks that look like test names.
fn named(cell: &str) -> Vec<&str> {
    let is_name = |text: &&str| {
        text.matches('_').count() >= 3
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    cell.split('`').skip(1).step_by(2).filter(is_name).collect()
}

/// Returns the names of all functions in the sources, which include the contracts that a macro
/// turns into tests.
fn functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in sources("") {
        let text = read(&file).unwrap_or_default();
        for (at, _) in text.match_indices("fn ") {
            let rest = text[at + 3..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            names.extend(rest.take(1).map(str::to_owned));
        }
    }
    names
}

/// Checks a table with this many rows: each names existing tests, or a reason why it needs none.
fn check(heading: &str, lines: usize) {
    let mut problems = Problems::default();
    let (page, functions) = (read(PAGE).unwrap(), functions());
    let table = table(&page, heading);
    let numbers: Vec<usize> = table.iter().map(|(number, _)| *number).collect();
    let expected: Vec<usize> = (1..=lines).collect();
    assert_eq!(numbers, expected, "{PAGE}: the rows under {heading}");
    for (number, cell) in &table {
        let named = named(cell);
        if named.is_empty() && !cell.starts_with(WITHOUT_TEST) {
            let rule = format!("row {number} under {heading} names no test");
            problems.add(
                PAGE,
                rule,
                "name a test for it, or explain why it does not apply",
            );
        }
        for name in named.iter().filter(|name| !functions.contains(**name)) {
            let rule = format!("row {number} under {heading} names `{name}`, which does not exist");
            problems.add(PAGE, rule, "name an existing test, or write it");
        }
    }
    problems.report();
}

#[test]
fn every_failure_mode_names_an_existing_test_or_a_reason() {
    check("## Failure modes", MODES);
}

#[test]
fn every_cache_rule_names_an_existing_test() {
    check("## The rules", RULES);
}

#[test]
fn every_interleaving_that_broke_the_protocol_has_a_test() {
    let functions = functions();
    let lacks = |number: &usize| {
        let prefix = format!("r{number:02}_");
        !functions.iter().any(|name| name.starts_with(&prefix))
    };
    let lacking: Vec<usize> = (1..=INTERLEAVINGS).filter(lacks).collect();
    assert_eq!(
        lacking,
        Vec::<usize>::new(),
        "interleavings without a test r<number>_…"
    );
}

#[test]
fn every_feature_of_symbolicator_names_existing_tests() {
    const PAGE: &str = "docs/api.md";
    let (page, functions) = (read(PAGE).unwrap(), functions());
    let (_, rest) = page
        .split_once("## What Symbolicator's clients use")
        .unwrap();
    let rows = rest.lines().filter_map(|line| line.strip_prefix("| "));
    let rows = rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | "));
    let mut problems = Problems::default();
    let mut count = 0;
    for (feature, cell) in rows.skip(1) {
        count += 1;
        let named = named(cell);
        if named.is_empty() {
            problems.add(PAGE, feature, "name the test that shows it");
        }
        for name in named.iter().filter(|name| !functions.contains(**name)) {
            let rule = format!("{feature}: `{name}` does not exist");
            problems.add(PAGE, rule, "name an existing test, or write it");
        }
    }
    assert!(count > 80, "{PAGE}: found only {count} rows");
    problems.report();
}

#[test]
fn table_rows_and_test_names_are_parsed() {
    let page = "| 7 | no |\n## Failure modes\n| | a | b |\n|---|---|---|\n| 1 | `x` | `a_b_c_d`, `e` `f/g_h_i_j` |\n## More\n| 2 | `a` | b |\n";
    let table = table(page, "## Failure modes");
    let [(1, cell)] = &table[..] else {
        panic!("{table:?}")
    };
    assert_eq!(named(cell), ["a_b_c_d"]);
}
