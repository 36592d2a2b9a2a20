//! `find`: prints the paths of the files that have an id.

use std::path::{Path, PathBuf};

use symdepot::domain::{CodeId, DebugId};

use crate::arguments::FindArguments;
use crate::error::CliError;
use crate::{Exit, Output, files, inspection, progress};

/// An id that is searched for: with dashes it is a debug id, without it may be either.
struct Sought {
    text: String,
    debug_id: Option<DebugId>,
    code_id: CodeId,
    is_found: bool,
}

pub(crate) fn run(arguments: &FindArguments) -> Result<Output, CliError> {
    let (mut sought, mut paths) = (Vec::new(), Vec::new());
    for value in &arguments.values {
        match sought_of(value) {
            Some(id) if !Path::new(value).exists() => sought.push(id),
            _ => paths.push(PathBuf::from(value)),
        }
    }
    if sought.is_empty() {
        let text = "no id to search for: give a debug id or a build id, then the folders";
        return Err(CliError::Usage(text.to_owned()));
    }
    if paths.is_empty() {
        paths.push(PathBuf::from("."));
    }
    let found = files::search(&paths)?;
    let bar = progress::inspecting(found.files.len());
    let mut text = Vec::new();
    for path in &found.files {
        bar.inc(1);
        let Ok(inspection) = inspection::inspect(path, false).map(|it| it.inspection) else {
            continue;
        };
        let mut is_match = false;
        for id in &mut sought {
            let has = inspection::has_id(&inspection, id.debug_id, Some(&id.code_id));
            id.is_found |= has;
            is_match |= has;
        }
        if is_match {
            // A path is printed as it is, so that other programs can use it.
            text.extend_from_slice(path.as_os_str().as_encoded_bytes());
            text.push(b'\n');
        }
    }
    bar.finish_and_clear();
    let missing = sought.iter().filter(|id| !id.is_found);
    let missing: Vec<&str> = missing.map(|id| id.text.as_str()).collect();
    if missing.is_empty() {
        return Ok(Output::done(text));
    }
    anstream::eprintln!("not found: {}", missing.join(", "));
    Ok(Output::ended(text, Exit::Incomplete))
}

fn sought_of(text: &str) -> Option<Sought> {
    let is_id = |c: char| c.is_ascii_hexdigit() || c == '-';
    let digits = text.chars().filter(char::is_ascii_hexdigit).count();
    (text.chars().all(is_id) && digits >= 16).then(|| Sought {
        text: text.to_owned(),
        debug_id: text.parse().ok(),
        code_id: CodeId::new(text.to_owned()),
        is_found: false,
    })
}
