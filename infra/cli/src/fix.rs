//! `symbolicate --fix`: the files of modules that the service lacks are found in a folder by their
//! ids, and uploaded.

use std::path::{Path, PathBuf};
use std::time::Duration;

use symdepot::api::symbolicator::{Completed, Module, ModuleStatus};

use crate::client::Client;
use crate::error::CliError;
use crate::settings::Settings;
use crate::visible::visible;
use crate::{files, inspection, progress, search, upload};

/// A module that the service has no file for.
struct Lacking<'a> {
    module: &'a Module,
    is_found: bool,
}

/// Uploads the files in a folder that modules of a response lack, and waits until the service uses
/// them, at most for this time. Returns whether it is worth asking again.
pub(crate) async fn supply(
    client: &Client,
    settings: &Settings,
    folder: &Path,
    completed: &Completed,
    wait: Duration,
) -> Result<bool, CliError> {
    let mut lacking = lacking(completed);
    if lacking.is_empty() {
        return Ok(false);
    }
    let paths = search(folder, &mut lacking)?;
    for Lacking { module, .. } in lacking.iter().filter(|it| !it.is_found) {
        let (name, folder) = (name_of(module), folder.display().to_string());
        anstream::eprintln!(
            "{}: no file under {} has its id",
            visible(&name),
            visible(&folder)
        );
    }
    if paths.is_empty() {
        return Ok(false);
    }
    anstream::eprint!(
        "{}",
        upload::upload_files(client, settings, &paths, wait).await?
    );
    Ok(true)
}

/// Returns whether modules of a response lack files.
pub(crate) fn could_help(completed: &Completed) -> bool {
    !lacking(completed).is_empty()
}

/// Returns the modules of frames that no source has a file for, and those that stacks were walked
/// through without their unwind information.
fn lacking(completed: &Completed) -> Vec<Lacking<'_>> {
    let is_missing = |status: ModuleStatus| status == ModuleStatus::Missing;
    let modules = completed.modules.iter().filter(|it| {
        let has_id = it.module.debug_id.is_some() || it.module.code_id.is_some();
        has_id && (is_missing(it.debug_status) || it.unwind_status.is_some_and(is_missing))
    });
    let modules = modules.map(|it| Lacking {
        module: &it.module,
        is_found: false,
    });
    modules.collect()
}

/// Returns the files in a folder that have the id of a module.
fn search(folder: &Path, lacking: &mut [Lacking<'_>]) -> Result<Vec<PathBuf>, CliError> {
    let found = search::search(&[folder.to_owned()])?;
    let (files, _) = files::split_unreadable(found.files);
    let bar = progress::inspecting(files.len());
    let mut paths = Vec::new();
    for path in files {
        bar.inc(1);
        let Ok(inspected) = inspection::inspect(&path, false) else {
            continue;
        };
        let mut is_match = false;
        for Lacking { module, is_found } in lacking.iter_mut() {
            let has = inspection::has_id(
                &inspected.inspection,
                module.debug_id,
                module.code_id.as_ref(),
            );
            *is_found |= has;
            is_match |= has;
        }
        if is_match {
            paths.push(path);
        }
    }
    bar.finish_and_clear();
    Ok(paths)
}

/// Returns the name of a module, for people.
fn name_of(module: &Module) -> String {
    let name = module.code_file.as_deref().or(module.debug_file.as_deref());
    match (name, module.debug_id, &module.code_id) {
        (Some(name), _, _) => name.to_owned(),
        (None, Some(id), _) => id.to_string(),
        (None, None, id) => id.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}
