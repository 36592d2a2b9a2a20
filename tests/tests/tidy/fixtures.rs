//! Fixtures: each is described, and their total size is limited.

use crate::project::{Problems, files, read, root};

const FOLDER: &str = "tests/fixtures/";

/// The maximum total size of the fixtures.
const MAX_BYTES: u64 = 3 << 20;

/// Sources, tools and oracles, which the README describes as a whole.
const DESCRIBED_AS_A_WHOLE: [&str; 9] = [
    "README.md",
    "build.sh",
    "zoo.sh",
    "unwinding.sh",
    "reports.sh",
    "manifest.json",
    "sources/",
    "tools/",
    "expected/",
];

/// Returns the first cells of the tables in the fixtures' README.
fn described() -> Vec<String> {
    let page = read("tests/fixtures/README.md").unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows
        .filter_map(|row| row.split(" | ").next())
        .map(str::to_owned);
    cells.filter(|cell| cell != "File").collect()
}

#[test]
fn every_fixture_is_described() {
    let mut problems = Problems::default();
    let described = described();
    let fixtures: Vec<String> = files()
        .iter()
        .filter_map(|file| file.strip_prefix(FOLDER))
        .map(str::to_owned)
        .collect();
    for fixture in &fixtures {
        let as_a_whole = DESCRIBED_AS_A_WHOLE
            .iter()
            .any(|part| fixture.starts_with(part));
        // A bundle is a directory.
        let has_line = described
            .iter()
            .any(|cell| fixture == cell || fixture.starts_with(&format!("{cell}/")));
        if !as_a_whole && !has_line {
            problems.add(
                format!("{FOLDER}{fixture}"),
                "is not described",
                "add a line to tests/fixtures/README.md: what it is, how it is made",
            );
        }
    }
    for cell in described
        .iter()
        .filter(|cell| !root().join(FOLDER).join(cell).exists())
    {
        problems.add(
            "tests/fixtures/README.md",
            format!("describes {cell}, which does not exist"),
            "run tests/fixtures/build.sh, or remove the line",
        );
    }
    problems.report();
}

#[test]
fn the_total_size_of_fixtures_is_limited() {
    let fixtures = files().into_iter().filter(|file| file.starts_with(FOLDER));
    let bytes: u64 = fixtures
        .map(|file| {
            root()
                .join(file)
                .metadata()
                .map_or(0, |metadata| metadata.len())
        })
        .sum();
    assert!(
        bytes < MAX_BYTES,
        "{FOLDER}: {bytes} bytes exceed {MAX_BYTES}: use a smaller program"
    );
}
