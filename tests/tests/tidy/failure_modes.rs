//! The table of failure modes in docs/protocol.md: each has its line, and each test that it names is there.

use std::collections::BTreeSet;

use crate::project::{Problems, read, sources};

const PAGE: &str = "docs/protocol.md";

/// How many failure modes there are.
const MODES: usize = 32;

/// How the reason of a line begins that needs no test.
const WITHOUT_TEST: &str = "Does not apply: ";

/// Returns the lines of the table: the number, what happens, what shows it.
fn table(page: &str) -> Vec<(usize, String)> {
    let (_, table) = page.split_once("## Failure modes").unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| {
        let mut cells = row.trim_end_matches(" |").splitn(3, " | ");
        let number = cells.next()?.parse().ok()?;
        Some((number, cells.nth(1)?.to_owned()))
    })
    .collect()
}

/// Returns the tests that a line names: what stands in backticks and reads as a sentence.
fn named(cell: &str) -> Vec<&str> {
    let is_name = |text: &&str| {
        text.matches('_').count() >= 3
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    cell.split('`').skip(1).step_by(2).filter(is_name).collect()
}

/// Returns the names of the functions in the sources, and of the promises that a macro makes tests of.
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

#[test]
fn every_failure_mode_has_a_test_that_is_there_or_a_reason() {
    let mut problems = Problems::default();
    let (page, functions) = (read(PAGE).unwrap(), functions());
    let table = table(&page);
    let numbers: Vec<usize> = table.iter().map(|(number, _)| *number).collect();
    assert_eq!(
        numbers,
        (1..=MODES).collect::<Vec<_>>(),
        "{PAGE}: the lines of the table"
    );
    for (number, cell) in &table {
        let named = named(cell);
        if named.is_empty() && !cell.starts_with(WITHOUT_TEST) {
            let rule = format!("failure mode {number} names no test");
            problems.add(
                PAGE,
                rule,
                "name the test that shows it, or say why it does not apply",
            );
        }
        for name in named.iter().filter(|name| !functions.contains(**name)) {
            let rule = format!("failure mode {number} names `{name}`, which is not there");
            problems.add(PAGE, rule, "name a test that is there, or write it");
        }
    }
    problems.report();
}

#[test]
fn lines_and_names_are_recognised() {
    let page = "| 7 | no |\n## Failure modes\n| | a | b |\n|---|---|---|\n| 1 | `x` | `a_b_c_d`, `e` `f/g_h_i_j` |\n";
    let [(1, cell)] = &table(page)[..] else {
        panic!("{:?}", table(page))
    };
    assert_eq!(named(cell), ["a_b_c_d"]);
}
