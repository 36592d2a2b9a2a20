//! Stories that are kept: plans that once failed, stored as files, each of which is a test.

use std::io;
use std::path::{Path, PathBuf};

use super::Plan;

/// What the list of stories ends with.
const END: &str = "}\n";

/// Returns the plan of a story.
///
/// # Panics
///
/// The text is not that of a plan.
pub fn story(text: &str) -> Plan {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("the story is no plan: {error}"))
}

/// Stores a plan as a story with this name, and adds it to the list of stories, so that it is a
/// test with this name.
///
/// # Errors
///
/// The name is not that of a test, or the files cannot be written.
pub fn keep_story(folder: &Path, name: &str, plan: &Plan) -> io::Result<PathBuf> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        let detail = "the name of a test consists of lower-case letters, digits and underscores";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, detail));
    }
    let path = folder.join("stories").join(format!("{name}.json"));
    let mut json = serde_json::to_string_pretty(plan)?;
    json.push('\n');
    std::fs::create_dir_all(folder.join("stories"))?;
    std::fs::write(&path, json)?;
    let list = folder.join("stories.rs");
    let text = std::fs::read_to_string(&list)?;
    let line = format!("    {name},\n");
    if !text.contains(&line) {
        let text = text.strip_suffix(END).ok_or_else(|| {
            io::Error::other(format!("{} does not end with the list", list.display()))
        })?;
        let first = if text.ends_with('{') { "\n" } else { "" };
        std::fs::write(&list, format!("{text}{first}{line}{END}"))?;
    }
    Ok(path)
}
