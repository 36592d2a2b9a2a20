//! Documents: the paths and links in them exist, and the changelog has every version.

use symdepot::cache::{Converter, Kind, SCHEMA, current_version};

use crate::project::{Problems, files, read, root};

/// The documents whose paths are checked.
const DOCUMENTS: [&str; 3] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];

/// Prefixes of the paths in documents: none, or the sources of the crate.
const BEGINNINGS: [&str; 2] = ["", "shared/src/"];

/// Returns the texts in backticks, except in code blocks.
fn quoted(text: &str) -> Vec<String> {
    let mut in_block = false;
    let mut quoted = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            quoted.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    quoted
}

/// Returns whether a quoted text is a path in the project: it starts with an existing directory,
/// and has no special characters.
fn is_path(text: &str) -> bool {
    let is_plain = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let begins = |folder: &str| {
        text.split_once('/')
            .is_some_and(|(first, _)| !first.is_empty() && root().join(folder).join(first).is_dir())
    };
    let is_document = text.ends_with(".md") || text.ends_with(".yaml") || text.ends_with(".toml");
    is_plain
        && (BEGINNINGS.iter().any(|folder| begins(folder)) || (is_document && !text.contains('/')))
}

fn exists(text: &str) -> bool {
    let file_name = |file: &String| file.rsplit('/').next() == Some(text);
    // A module may be named without its extension.
    let is_there = |name: &str| {
        BEGINNINGS
            .iter()
            .any(|folder| root().join(folder).join(name).exists())
    };
    is_there(text)
        || is_there(&format!("{text}.rs"))
        || (!text.contains('/') && files().iter().any(file_name))
}

#[test]
fn every_path_in_a_document_exists() {
    let mut problems = Problems::default();
    let mut checked = 0;
    for document in DOCUMENTS {
        let Some(text) = read(document) else {
            problems.add(document, "is missing", "write it");
            continue;
        };
        for path in quoted(&text).into_iter().filter(|text| is_path(text)) {
            checked += 1;
            // Generated files are not committed.
            let is_made = path.starts_with("target/") || path.starts_with(".data");
            if !is_made && !exists(&path) {
                problems.add(
                    document,
                    format!("names `{path}`, which does not exist"),
                    "name an existing path",
                );
            }
        }
    }
    assert!(checked > 20, "only {checked} paths were recognised");
    problems.report();
}

#[test]
fn every_link_in_a_document_resolves() {
    let mut problems = Problems::default();
    for document in files().into_iter().filter(|file| file.ends_with(".md")) {
        let text = read(&document).unwrap_or_default();
        let folder = root()
            .join(&document)
            .parent()
            .map(std::path::Path::to_owned)
            .unwrap_or_default();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..]
                .split([')', '#', ' '])
                .next()
                .unwrap_or_default();
            if !target.is_empty()
                && !target.contains("://")
                && !target.contains('`')
                && !folder.join(target).exists()
            {
                problems.add(
                    &document,
                    format!("links to {target}, which does not exist"),
                    "link to an existing target",
                );
            }
        }
    }
    problems.report();
}

#[test]
fn every_version_is_in_the_changelog() {
    let mut problems = Problems::default();
    let changelog = read("CHANGELOG.md")
        .unwrap_or_default()
        .to_lowercase()
        .replace('\n', " ");
    let mut need = |what: String| {
        if !changelog.contains(&what) {
            problems.add(
                "CHANGELOG.md",
                format!("does not contain \"{what}\""),
                "describe under Unreleased what changed, and what it means for stored data",
            );
        }
    };
    for converter in 1..=Converter::CURRENT.0 {
        need(format!("converter {converter}"));
    }
    for kind in Kind::DERIVED {
        for version in 1..=current_version(kind) {
            need(format!("`{kind}` {version}"));
        }
    }
    for schema in 1..=SCHEMA {
        need(format!("record schema {schema}"));
    }
    problems.report();
}

#[test]
fn paths_are_recognised() {
    assert_eq!(quoted("a `b/c` d\n```\n`not/this`\n```\n`e`"), ["b/c", "e"]);
    assert!(
        is_path("shared/src/lib.rs")
            && is_path("cache/no-such.rs")
            && is_path("infra/local")
            && is_path("README.md")
    );
    assert!(
        !is_path("global/app.debug")
            && !is_path("aws s3 cp a b")
            && !is_path("/healthcheck")
            && !is_path("derive")
    );
}
