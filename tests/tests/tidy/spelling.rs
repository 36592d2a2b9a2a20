//! What must be written, and what must not, in any file.

use crate::project::{Problems, code, files, read, sources};

/// Names of modules that say nothing.
const EMPTY_NAMES: [&str; 5] = ["utils", "helpers", "common", "types", "misc"];

/// What must not be in code: the text, in two halves lest this file has it, and what to do instead.
const FORBIDDEN: [((&str, &str), &str); 6] = [
    (("#[ign", "ore"), "make it pass, or delete it"),
    (("#[all", "ow"), "write `#[expect(lint, reason = \"…\")]`"),
    (("#![all", "ow"), "write `#![expect(lint, reason = \"…\")]`"),
    (("tod", "o!("), "write it"),
    (("db", "g!("), "use `tracing`"),
    (("unimpl", "emented!("), "write it"),
];

/// What must not be in any text: the halves, and what to do instead.
const NOT_LEFT_BEHIND: [((&str, &str), &str); 2] = [
    (("TO", "DO"), "do it, or write an issue"),
    (("FIX", "ME"), "do it, or write an issue"),
];

/// What only the machine of its author has: the halves, and where it is nevertheless right.
const PATHS_OF_A_MACHINE: [((&str, &str), &[&str]); 6] = [
    (("/wo", "rk/"), &[]),
    // Looks for such paths in what it builds.
    (("/ro", "ot/"), &["tests/fixtures/build.sh"]),
    (("/tmp/he", "lpers"), &[]),
    (("he", "lper-"), &[]),
    (("/sess", "ions/"), &[]),
    (("../shared/des", "ign"), &[]),
];

/// Tests that wait by a clock, and why that is no waiting for luck.
const WAITS: [(&str, &str); 4] = [
    (
        "tests/src/harness/",
        "the clock is paused: it moves when everybody waits",
    ),
    (
        "infra/local/tests/functions/probe_function.rs",
        "a function that takes as long as it is told",
    ),
    (
        "shared/src/flows/fetch.rs",
        "the clock is paused: what trickles arrives at once",
    ),
    ("tests/tests/tidy/", "this rule"),
];

fn whole((one, other): (&str, &str)) -> String {
    format!("{one}{other}")
}

#[test]
fn every_module_begins_with_what_it_is() {
    let mut problems = Problems::default();
    for file in sources("") {
        let text = read(&file).unwrap_or_default();
        if !text.starts_with("//! ") {
            problems.add(
                file,
                "begins without `//!`",
                "write one sentence in the present tense that says what it is",
            );
        }
    }
    problems.report();
}

#[test]
fn no_module_has_a_name_that_says_nothing() {
    let mut problems = Problems::default();
    for file in sources("") {
        for part in file.trim_end_matches(".rs").split('/') {
            if EMPTY_NAMES.contains(&part) {
                problems.add(
                    &file,
                    format!("is called `{part}`"),
                    "name it after what it is about",
                );
            }
        }
    }
    problems.report();
}

#[test]
fn nothing_is_left_undone_or_switched_off() {
    let mut problems = Problems::default();
    for file in sources("") {
        for line in code(&file) {
            for (halves, remedy) in FORBIDDEN {
                if line.text.contains(&whole(halves)) {
                    problems.add(
                        format!("{file}:{}", line.number),
                        format!("has `{}`", whole(halves)),
                        remedy,
                    );
                }
            }
        }
    }
    for file in files()
        .into_iter()
        .filter(|file| !file.ends_with(".lock") && !file.starts_with("tests/fixtures/expected/"))
    {
        for (at, line) in read(&file).unwrap_or_default().lines().enumerate() {
            for (halves, remedy) in NOT_LEFT_BEHIND {
                if line.contains(&whole(halves)) {
                    problems.add(
                        format!("{file}:{}", at + 1),
                        format!("has `{}`", whole(halves)),
                        remedy,
                    );
                }
            }
        }
    }
    problems.report();
}

#[test]
fn no_test_waits_for_a_clock() {
    let mut problems = Problems::default();
    for file in sources("") {
        let is_excepted = WAITS.iter().any(|(place, _)| file.starts_with(place));
        let is_test = file.contains("/tests/")
            || file.starts_with("tests/src/contract/")
            || file.ends_with("/tests.rs");
        let mut in_tests = is_test;
        for line in code(&file) {
            in_tests |= line.text == "#[cfg(test)]";
            if in_tests && !is_excepted && line.text.contains("sleep(") {
                let remedy =
                    "wait for what happens (`GET /_local/idle`, a channel), or pause tokio's clock";
                problems.add(format!("{file}:{}", line.number), "a test sleeps", remedy);
            }
        }
    }
    problems.report();
}

#[test]
fn the_project_speaks_of_itself_alone() {
    let mut problems = Problems::default();
    for file in files() {
        for (at, line) in read(&file).unwrap_or_default().lines().enumerate() {
            for (halves, right_in) in PATHS_OF_A_MACHINE {
                if line.contains(&whole(halves)) && !right_in.contains(&file.as_str()) {
                    let rule = format!("names `{}`, which only one machine has", whole(halves));
                    problems.add(
                        format!("{file}:{}", at + 1),
                        rule,
                        "say it relative to the project",
                    );
                }
            }
        }
    }
    problems.report();
}
