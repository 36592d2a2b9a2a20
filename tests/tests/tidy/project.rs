//! The files of the project.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A line of a file with its number.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) text: String,
}

/// Problems, which are reported together.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<String>);

impl Problems {
    pub(crate) fn add(&mut self, place: impl AsRef<str>, rule: impl AsRef<str>, remedy: &str) {
        self.0.push(format!(
            "{}: {}\n    remedy: {remedy}",
            place.as_ref(),
            rule.as_ref()
        ));
    }

    /// Panics with all problems, if there are any.
    #[track_caller]
    pub(crate) fn report(self) {
        assert!(
            self.0.is_empty(),
            "{} problems:\n{}\n",
            self.0.len(),
            self.0.join("\n")
        );
    }
}

/// Returns the root of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests are in a directory of the project")
        .to_owned()
}

/// Returns the paths of the project's files, relative to its root: those that git does not ignore,
/// or all files if there is no git repository.
pub(crate) fn files() -> Vec<String> {
    let listing = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root())
        .output();
    let mut files = match listing {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .map(str::to_owned)
            .collect(),
        _ => walk(),
    };
    files.retain(|file| !file.is_empty() && root().join(file).is_file());
    files.sort();
    files.dedup();
    assert!(files.len() > 100, "only {} files", files.len());
    files
}

fn walk() -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .expect("a directory of the project")
            .flatten()
        {
            let (path, name) = (
                entry.path(),
                entry.file_name().to_string_lossy().into_owned(),
            );
            let is_made = [
                "target",
                ".git",
                ".data",
                ".aws-sam",
                ".venv",
                "node_modules",
                "__pycache__",
            ]
            .contains(&name.as_str());
            if !path.is_dir() {
                let path = path.strip_prefix(root()).expect("below the root");
                files.push(path.to_string_lossy().into_owned());
            } else if !is_made {
                folders.push(path);
            }
        }
    }
    files
}

/// Returns the Rust sources in a directory, except those of the fixtures.
pub(crate) fn sources(folder: &str) -> Vec<String> {
    let is_source = |file: &String| {
        file.starts_with(folder) && file.ends_with(".rs") && !file.starts_with("tests/fixtures/")
    };
    files().into_iter().filter(is_source).collect()
}

/// Returns the text of a file; `None` if it does not exist or is not text.
pub(crate) fn read(file: &str) -> Option<String> {
    std::fs::read(root().join(file))
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
}

/// Returns the lines of code of a file, without empty lines and comments.
pub(crate) fn code(file: &str) -> Vec<Line> {
    let lines = read(file).unwrap_or_default();
    let is_code = |line: &Line| !line.text.is_empty() && !line.text.starts_with("//");
    let numbered = lines.lines().enumerate().map(|(at, text)| Line {
        number: at + 1,
        text: text.trim().to_owned(),
    });
    numbered.filter(is_code).collect()
}
