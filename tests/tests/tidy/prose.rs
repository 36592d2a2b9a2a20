//! Prose: words to avoid, and the line length of comments and documents.

use crate::project::{Problems, files, read, sources};

/// The maximum number of columns of a comment or a document.
const MAX_COLUMNS: usize = 100;

/// Words to avoid, in halves, and their replacements. CONTRIBUTING.md describes the style.
const WORDS: [((&str, &str), &str); 20] = [
    (("an", "ew"), "again"),
    (("mend", "ed"), "fixed, repaired"),
    (("le", "st"), "so that … not"),
    (("when", "ce"), "from where"),
    (("th", "rice"), "three times"),
    (("sel", "dom"), "rarely"),
    (("no", "body"), "name who does not: no client, no reader"),
    (("some", "body"), "name who does: the client, the reader"),
    (("who", "ever"), "name who does: the client, the reader"),
    (("for want", " of"), "without"),
    (("made up", " for"), "repeated, repaired"),
    (("looked", " after"), "checked, monitored"),
    (("more", "over"), "also"),
    (("before", "hand"), "before"),
    (("there", "by"), "so"),
    (("in", " vain"), "without effect"),
    (("who", " asks"), "the caller, the client"),
    (("told", " apart"), "distinguished"),
    (("told", " to retry"), "receives `Retry-After`"),
    (("what is", " there already"), "existing"),
];

/// Returns the prose of a file: the lines of a document, or the comments of a source file.
fn prose(file: &str) -> Vec<(usize, String)> {
    let text = read(file).unwrap_or_default();
    let is_document = file.ends_with(".md");
    let mut in_block = false;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| {
        let line = line.trim_start();
        let line = line
            .trim_start_matches("//!")
            .trim_start_matches("///")
            .trim_start();
        in_block ^= line.starts_with("```");
        !in_block
    });
    let is_prose = |(_, line): &(usize, &str)| is_document || line.trim_start().starts_with("//");
    let lines = lines.filter(is_prose);
    lines.map(|(at, line)| (at + 1, line.to_owned())).collect()
}

fn documents() -> Vec<String> {
    let is_document = |file: &String| file.ends_with(".md") && !file.starts_with("LICENSE");
    files().into_iter().filter(is_document).collect()
}

/// Returns whether a line cannot be wrapped: a row of a table, or one long word.
fn cannot_be_wrapped(line: &str) -> bool {
    let text = line
        .trim_start()
        .trim_start_matches(['/', '!'])
        .trim_start();
    text.starts_with('|') || text.starts_with('[') || line.contains("http") || !text.contains(' ')
}

#[test]
fn comments_and_documents_are_wrapped() {
    let mut problems = Problems::default();
    for file in sources("").into_iter().chain(documents()) {
        for (number, line) in prose(&file) {
            let columns = line.chars().count();
            if columns > MAX_COLUMNS && !cannot_be_wrapped(&line) {
                let rule = format!("has {columns} columns, more than {MAX_COLUMNS}");
                problems.add(format!("{file}:{number}"), rule, "wrap the paragraph");
            }
        }
    }
    problems.report();
}

#[test]
fn prose_avoids_listed_words() {
    let mut problems = Problems::default();
    for file in sources("").into_iter().chain(documents()) {
        for (number, line) in prose(&file) {
            let lower = format!(" {} ", line.to_lowercase());
            for ((one, other), instead) in WORDS {
                let word = format!("{one}{other}");
                let is_boundary =
                    |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
                let is_used = lower.match_indices(&word).any(|(at, _)| {
                    let (before, after) = (&lower[..at], &lower[at + word.len()..]);
                    is_boundary(before.chars().next_back()) && is_boundary(after.chars().next())
                });
                if is_used {
                    let rule = format!("says `{word}`: {}", line.trim());
                    problems.add(format!("{file}:{number}"), rule, instead);
                }
            }
        }
    }
    problems.report();
}
