//! `symbolicate --fix`: the files of modules that the service lacks, and the maps for them, are
//! found in a folder by their ids, and uploaded.

use std::path::{Path, PathBuf};
use std::time::Duration;

use symdepot::api::report::CrashReport;
use symdepot::api::symbolicator::{Completed, CompletedModule, Module, ModuleStatus};
use symdepot::domain::{DebugId, FileType};

use crate::client::Client;
use crate::error::CliError;
use crate::maps::FoundMap;
use crate::settings::Settings;
use crate::visible::visible;
use crate::{files, inspection, maps, progress, search, upload};

/// The ends of the names by which the service names the maps that it lacks, after the id.
const UUID_MAP: &str = ".plist";
const SYMBOL_MAP: &str = ".bcsymbolmap";

/// A module that the service has no file for, or whose names are hidden because it has no map for
/// it.
struct Lacking<'a> {
    completed: &'a CompletedModule,
    /// Whether the service has no file for it.
    lacks_file: bool,
    is_found: bool,
}

/// Uploads the files in a folder that modules of the response to a report lack, and waits until the
/// service uses them, at most for this time. Returns whether it is worth asking again.
pub(crate) async fn supply(
    client: &Client,
    settings: &Settings,
    folder: &Path,
    (report, completed): &(CrashReport, Completed),
    wait: Duration,
) -> Result<bool, CliError> {
    let mut lacking = lacking(report, completed);
    if lacking.is_empty() {
        return Ok(false);
    }
    let paths = search(folder, &mut lacking)?;
    for lacking in lacking.iter().filter(|it| !it.is_found) {
        let name = visible(&name_of(&lacking.completed.module));
        let folder = visible(&folder.display().to_string());
        if lacking.lacks_file {
            anstream::eprintln!("{name}: no file under {folder} has its id");
        } else {
            anstream::eprintln!("{name}: no map that it lacks is under {folder}");
        }
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

/// Returns whether modules of the response to a report lack files.
pub(crate) fn could_help(report: &CrashReport, completed: &Completed) -> bool {
    needed(report, completed).any(lacks_file)
}

/// Returns the modules of a response whose files could say more than the report does.
fn needed<'a>(
    report: &CrashReport,
    completed: &'a Completed,
) -> impl Iterator<Item = &'a CompletedModule> + use<'a> {
    let needed = report.needed_modules();
    let modules = completed.modules.iter().enumerate();
    let modules = modules.filter(move |(index, _)| needed.get(*index) != Some(&false));
    modules.map(|(_, module)| module)
}

/// Returns whether a module of frames has no file in any source, or stacks were walked through it
/// without its unwind information.
fn lacks_file(completed: &CompletedModule) -> bool {
    let is_missing = |status: ModuleStatus| status == ModuleStatus::Missing;
    let Module {
        debug_id, code_id, ..
    } = &completed.module;
    let has_id = debug_id.is_some() || code_id.is_some();
    has_id
        && (is_missing(completed.debug_status) || completed.unwind_status.is_some_and(is_missing))
}

/// Returns whether the service has a file for a module, and names maps that it lacks.
fn lacks_maps(completed: &CompletedModule) -> bool {
    let detail = completed.debug_detail.as_deref().unwrap_or_default();
    completed.debug_status == ModuleStatus::Found
        && [UUID_MAP, SYMBOL_MAP]
            .iter()
            .any(|ending| detail.contains(ending))
}

/// Returns the modules that lack files or maps.
fn lacking<'a>(report: &CrashReport, completed: &'a Completed) -> Vec<Lacking<'a>> {
    let modules = needed(report, completed).filter_map(|completed| {
        let lacks_file = lacks_file(completed);
        (lacks_file || lacks_maps(completed)).then_some(Lacking {
            completed,
            lacks_file,
            is_found: false,
        })
    });
    modules.collect()
}

impl Lacking<'_> {
    /// Returns whether the service says that it lacks this file for the module.
    fn is_named(&self, id: DebugId, ending: &str) -> bool {
        let detail = self.completed.debug_detail.as_deref().unwrap_or_default();
        !self.lacks_file && detail.contains(&format!("{id}{ending}"))
    }

    /// Returns whether the service lacks a map for the module. The maps of a module without a file
    /// are of no use as long as the file is not found.
    fn lacks(&self, map: &FoundMap) -> bool {
        if map.file_type == FileType::BcSymbolMap {
            return self.is_named(map.id, SYMBOL_MAP);
        }
        let is_of_module = self.completed.module.debug_id == Some(map.id);
        let is_wanted = if self.lacks_file {
            self.is_found
        } else {
            self.is_named(map.id, UUID_MAP)
        };
        is_of_module && is_wanted
    }
}

/// Returns the files in a folder that have the id of a module, and then the maps that it lacks.
fn search(folder: &Path, lacking: &mut [Lacking<'_>]) -> Result<Vec<PathBuf>, CliError> {
    let found = search::search(&[folder.to_owned()])?;
    let (files, _) = files::split_unreadable(found.files);
    let bar = progress::inspecting(files.len());
    let (mut paths, mut found_maps) = (Vec::new(), Vec::new());
    for path in files {
        bar.inc(1);
        let Ok(inspected) = inspection::inspect(&path, false) else {
            continue;
        };
        let maps = maps::of_file(&path, &inspected.inspection);
        found_maps.extend(maps.into_iter().map(|map| (path.clone(), map)));
        let mut is_match = false;
        for lacking in lacking.iter_mut().filter(|it| it.lacks_file) {
            let Module {
                debug_id, code_id, ..
            } = &lacking.completed.module;
            let has = inspection::has_id(&inspected.inspection, *debug_id, code_id.as_ref());
            lacking.is_found |= has;
            is_match |= has;
        }
        if is_match {
            paths.push(path);
        }
    }
    bar.finish_and_clear();
    for lacking in lacking.iter_mut().filter(|it| !it.lacks_file) {
        lacking.is_found = found_maps.iter().any(|(_, map)| lacking.lacks(map));
    }
    for path in lacking_maps(lacking, &found_maps) {
        if !paths.contains(path) {
            paths.push(path.clone());
        }
    }
    Ok(paths)
}

/// Returns the files with the maps that modules lack. A UUID map names a symbol map, which is one
/// of them.
fn lacking_maps<'m>(
    lacking: &[Lacking<'_>],
    found: &'m [(PathBuf, FoundMap)],
) -> impl Iterator<Item = &'m PathBuf> {
    let is_lacking = move |map: &FoundMap| lacking.iter().any(|it| it.lacks(map));
    let maps = found.iter().filter(|(_, map)| is_lacking(map));
    let named: Vec<DebugId> = maps.filter_map(|(_, map)| map.symbol_map).collect();
    found.iter().filter_map(move |(path, map)| {
        let is_named = map.file_type == FileType::BcSymbolMap && named.contains(&map.id);
        (is_named || is_lacking(map)).then_some(path)
    })
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
