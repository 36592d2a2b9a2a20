//! `find`: prints the paths of the files that have an id.

use std::path::{Path, PathBuf};

use symdepot::domain::{CodeId, DebugId, ModuleId};

use crate::arguments::FindArguments;
use crate::error::CliError;
use crate::{Exit, Output, files, inspection, maps, progress, search};

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
        match value.to_str().and_then(sought_of) {
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
    let found = search::search(&paths)?;
    let (files, unreadable) = files::split_unreadable(found.files);
    let bar = progress::inspecting(files.len());
    let mut text = Vec::new();
    for path in &files {
        bar.inc(1);
        let Ok(inspection) = inspection::inspect(path, false).map(|it| it.inspection) else {
            continue;
        };
        let maps = maps::of_file(path, &inspection);
        let mut is_match = false;
        for id in &mut sought {
            let has = inspection::has_id(&inspection, id.debug_id, Some(&id.code_id))
                || maps.iter().any(|map| Some(map.id) == id.debug_id);
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
    if !missing.is_empty() {
        anstream::eprintln!("not found: {}", missing.join(", "));
    }
    Ok(Output::ended(
        text,
        if missing.is_empty() && unreadable == 0 {
            Exit::Done
        } else {
            Exit::Incomplete
        },
    ))
}

/// Returns the id that a text is; `None` if it is none. A code id may be short: that of a PE file
/// has at least nine digits.
fn sought_of(text: &str) -> Option<Sought> {
    let is_id = |c: char| c.is_ascii_hexdigit() || c == '-';
    let debug_id = text.parse().ok();
    let code_id = CodeId::new(text.to_owned());
    let is_id = text.chars().all(is_id) && ModuleId::of(debug_id, Some(&code_id)).is_some();
    is_id.then(|| Sought {
        text: text.to_owned(),
        debug_id,
        code_id,
        is_found: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_any_number_in_hexadecimal_digits_but_zero() {
        for id in [
            "11007627a000",
            "5AB380779000",
            "5ab38077a",
            "502fc0a5-1ec1-3e47-9998-684fa139dca7",
            "C7D4C24F1FB854084C4C44205044422E1",
            "ac456ebc7f4825f4367208b89f51ad481774aae7",
        ] {
            assert!(sought_of(id).is_some(), "{id}");
        }
        for other in ["", "-", "0000", "build", "./ab12", "ab 12"] {
            assert!(sought_of(other).is_none(), "{other}");
        }
    }
}
