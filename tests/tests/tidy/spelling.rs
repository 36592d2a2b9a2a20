//! Texts that every file must or must not contain.

use crate::project::{Problems, code, files, read, sources};

/// Meaningless module names.
const EMPTY_NAMES: [&str; 5] = ["utils", "helpers", "common", "types", "misc"];

/// Texts that code must not contain, with the remedy. Each is in two halves, so that this file does
/// not contain it.
const FORBIDDEN: [((&str, &str), &str); 6] = [
    (("#[ign", "ore"), "make it pass, or delete it"),
    (("#[all", "ow"), "write `#[expect(lint, reason = \"…\")]`"),
    (("#![all", "ow"), "write `#![expect(lint, reason = \"…\")]`"),
    (("tod", "o!("), "write it"),
    (("db", "g!("), "use `tracing`"),
    (("unimpl", "emented!("), "write it"),
];

/// Texts that no file may contain, in halves, with the remedy.
const NOT_LEFT_BEHIND: [((&str, &str), &str); 2] = [
    (("TO", "DO"), "do it, or open an issue"),
    (("FIX", "ME"), "do it, or open an issue"),
];

/// Paths that exist only on a developer's machine, in halves, with the files that may contain them.
const PATHS_OF_A_MACHINE: [((&str, &str), &[&str]); 6] = [
    (("/wo", "rk/"), &[]),
    // This script searches its output for such paths.
    (("/ro", "ot/"), &["tests/fixtures/build.sh"]),
    (("/tmp/he", "lpers"), &[]),
    (("he", "lper-"), &[]),
    (("/sess", "ions/"), &[]),
    (("../shared/des", "ign"), &[]),
];

/// Tests that may sleep, with the reason.
const WAITS: [(&str, &str); 4] = [
    (
        "tests/src/harness/",
        "the clock is paused: it advances when all tasks wait",
    ),
    (
        "infra/local/tests/functions/probe_function.rs",
        "a test function with a configurable duration",
    ),
    (
        "shared/src/flows/download.rs",
        "the clock is paused: slow responses take no time",
    ),
    ("tests/tests/tidy/", "this rule"),
];

fn whole((one, other): (&str, &str)) -> String {
    format!("{one}{other}")
}

#[test]
fn every_module_has_module_docs() {
    let mut problems = Problems::default();
    for file in sources("") {
        let text = read(&file).unwrap_or_default();
        if !text.starts_with("//! ") {
            problems.add(
                file,
                "begins without `//!`",
                "start with one sentence in the present tense about what the module is",
            );
        }
    }
    problems.report();
}

#[test]
fn no_module_has_a_meaningless_name() {
    let mut problems = Problems::default();
    for file in sources("") {
        for part in file.trim_end_matches(".rs").split('/') {
            if EMPTY_NAMES.contains(&part) {
                problems.add(
                    &file,
                    format!("is named `{part}`"),
                    "name it after its content",
                );
            }
        }
    }
    problems.report();
}

#[test]
fn no_code_is_unfinished_or_disabled() {
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
fn no_test_sleeps() {
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
                    "wait for the event (`GET /_local/idle`, a channel), or pause tokio's clock";
                problems.add(format!("{file}:{}", line.number), "a test sleeps", remedy);
            }
        }
    }
    problems.report();
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let mut problems = Problems::default();
    for file in files() {
        for (at, line) in read(&file).unwrap_or_default().lines().enumerate() {
            for (halves, right_in) in PATHS_OF_A_MACHINE {
                if line.contains(&whole(halves)) && !right_in.contains(&file.as_str()) {
                    let rule = format!(
                        "names `{}`, which exists on one machine only",
                        whole(halves)
                    );
                    problems.add(
                        format!("{file}:{}", at + 1),
                        rule,
                        "use a path relative to the project",
                    );
                }
            }
        }
    }
    problems.report();
}
