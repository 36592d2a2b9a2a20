//! `check`: what is in debug files, as the service reads them, and what is wrong with them.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use symdepot::debuginfo::TriedCache;
use symdepot::domain::{CompanionId, Features, FileType, Inspection, ObjectMeta};

use crate::arguments::{CheckArguments, Requirement};
use crate::error::CliError;
use crate::inspection::{self, Inspected, advice};
use crate::{Exit, Output, files, progress, view};

/// What was found out about a file.
struct Checked {
    path: String,
    objects: Vec<ObjectMeta>,
    /// For each object, the kinds of caches that the service can derive from it.
    caches: Vec<Vec<String>>,
    /// What is wrong with each object, and with the file.
    problems: Vec<Problem>,
}

struct Problem {
    /// The index of the object; `None` for the whole file.
    object: Option<usize>,
    cause: &'static str,
    text: String,
}

pub(crate) fn run(arguments: &CheckArguments) -> Result<Output, CliError> {
    let found = files::search(&arguments.paths)?;
    let bar = progress::inspecting(found.files.len());
    let mut checked = Vec::new();
    for path in &found.files {
        bar.inc(1);
        checked.push(check(path, &arguments.require));
    }
    bar.finish_and_clear();
    let with_problems = checked
        .iter()
        .filter(|file| !file.problems.is_empty())
        .count();
    let text = match arguments.json {
        true => json_of(&checked, found.others.len()),
        false => text_of(&checked, found.others.len(), with_problems),
    };
    let exit = if with_problems > 0 || checked.is_empty() {
        Exit::Incomplete
    } else {
        Exit::Done
    };
    Ok(Output::ended(text, exit))
}

fn check(path: &Path, require: &[Requirement]) -> Checked {
    let shown = path.display().to_string();
    match inspection::inspect(path, true) {
        Ok(Inspected { inspection, caches }) => {
            let mut problems = problems_of(path, &inspection, require);
            problems.extend(unusable(&inspection, &caches));
            let usable = caches.iter().map(usable);
            Checked {
                path: shown,
                problems,
                caches: usable.collect(),
                objects: inspection.objects,
            }
        }
        Err(text) => Checked {
            path: shown,
            objects: Vec::new(),
            caches: Vec::new(),
            problems: vec![Problem {
                object: None,
                cause: "unreadable",
                text,
            }],
        },
    }
}

fn problems_of(path: &Path, inspection: &Inspection, require: &[Requirement]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for object in &inspection.objects {
        let mut add = |cause, text: String| {
            problems.push(Problem {
                object: Some(object.index),
                cause,
                text,
            });
        };
        if let Some(advice) = advice(object) {
            add(advice.cause(), advice.to_string());
        }
        if let Some(text) = companions(&object.needs) {
            add("companions", text);
        }
        let has_symbol_map = inspection
            .auxiliary
            .iter()
            .any(|file| file.file_type == FileType::BcSymbolMap);
        if object.hides_names && !has_symbol_map {
            add(
                "hidden",
                "its names are hidden: upload its UUID map (<UUID>.plist) and its symbol map (<UUID>.bcsymbolmap), too".to_owned(),
            );
        }
        for (requirement, name, has) in requirements(&object.features) {
            if require.contains(&requirement) && !has {
                add(
                    "required",
                    format!("it has no {name}, which --require demands"),
                );
            }
        }
    }
    let ignored = inspection.ignored.iter().map(|text| Problem {
        object: None,
        cause: "ignored",
        text: text.clone(),
    });
    problems.extend(ignored);
    let path = path.to_string_lossy();
    let unnamed = inspection.auxiliary.iter().filter_map(|file| {
        Some(Problem {
            object: None,
            cause: "ignored",
            text: file.id_at(&path).err()?,
        })
    });
    problems.extend(unnamed);
    let completes = !inspection.completes.is_empty() || !inspection.auxiliary.is_empty();
    if inspection.objects.is_empty() && problems.is_empty() && !completes {
        problems.push(Problem {
            object: None,
            cause: "empty",
            text: "it contains no debug information file".to_owned(),
        });
    }
    problems
}

/// Returns the kinds of the caches that can be derived.
fn usable(caches: &Result<Vec<TriedCache>, String>) -> Vec<String> {
    let caches = caches.iter().flatten();
    let usable = caches.filter(|cache| cache.unusable.is_none());
    usable.map(|cache| cache.kind.clone()).collect()
}

/// Returns why the service cannot use what objects have. The fault of an object that cannot be read
/// at all is a problem already.
fn unusable(inspection: &Inspection, caches: &[Result<Vec<TriedCache>, String>]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (object, caches) in inspection.objects.iter().zip(caches) {
        let mut add = |cause, text| {
            problems.push(Problem {
                object: Some(object.index),
                cause,
                text,
            });
        };
        let caches = match caches {
            Ok(caches) => caches,
            Err(reason) => {
                add(
                    "unusable",
                    format!("nothing can be derived from it: {reason}"),
                );
                continue;
            }
        };
        for cache in caches {
            let kind = &cache.kind;
            match (&cache.unusable, &cache.lacks) {
                (Some(reason), _) if cache.is_offered && object.fault.is_none() => {
                    add(
                        "unusable",
                        format!("no {kind} can be derived from it: {reason}"),
                    );
                }
                (None, Some(lacks)) if cache.is_offered && object.needs.is_empty() => {
                    add("lacks", lacks.clone())
                }
                _ => {}
            }
        }
    }
    problems
}

fn requirements(features: &Features) -> [(Requirement, &'static str, bool); 3] {
    [
        (
            Requirement::Debug,
            "debug information",
            features.has_debug_info,
        ),
        (
            Requirement::Unwind,
            "unwind information",
            features.has_unwind_info,
        ),
        (Requirement::Sources, "sources", features.has_sources),
    ]
}

/// Returns which other files an object needs.
fn companions(needs: &[CompanionId]) -> Option<String> {
    let shared = needs.iter().find_map(|id| match id {
        CompanionId::Shared(id) => Some(id),
        _ => None,
    });
    if let Some(id) = shared {
        return Some(format!(
            "a part of its debug information is in the file with the build id {id}, which `dwz` made: upload this file, too"
        ));
    }
    (!needs.is_empty()).then(|| {
        "its debug information is split: upload its package (.dwp), made by `dwp` or `llvm-dwp`, or its .dwo files in an archive with it".to_owned()
    })
}

fn contents(features: &Features) -> Vec<&'static str> {
    let all = [
        ("symbols", features.has_symbols),
        ("debug", features.has_debug_info),
        ("unwind", features.has_unwind_info),
        ("sources", features.has_sources),
    ];
    all.into_iter()
        .filter_map(|(name, has)| has.then_some(name))
        .collect()
}

/// Returns the name of the type of an object, as the service writes it.
fn type_of(object: &ObjectMeta) -> String {
    let name = serde_json::to_value(object.file_type).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}

fn text_of(checked: &[Checked], others: usize, with_problems: usize) -> String {
    let mut text = String::new();
    for file in checked {
        let _ = writeln!(text, "{}", view::visible(&file.path));
        for object in &file.objects {
            let id = |id: Option<String>| id.unwrap_or_else(|| "–".to_owned());
            let (debug, code) = (
                id(object.debug_id.map(|id| id.to_string())),
                id(object.code_id.as_ref().map(ToString::to_string)),
            );
            let contents = contents(&object.features);
            let contents = match contents.is_empty() {
                true => "nothing of use".to_owned(),
                false => contents.join(", "),
            };
            let _ = writeln!(text, "  {} {}: {contents}", type_of(object), object.arch);
            let _ = writeln!(text, "    debug id {debug}, code id {code}");
        }
        for problem in &file.problems {
            let text_of_problem = view::visible(&problem.text);
            let _ = writeln!(text, "  ! {}: {text_of_problem}", problem.cause);
        }
    }
    let usable = checked.len() - with_problems;
    let _ = writeln!(
        text,
        "{usable} without problems, {with_problems} with problems, {others} other files passed over"
    );
    text
}

fn json_of(checked: &[Checked], others: usize) -> String {
    let file = |file: &Checked| -> Value {
        let problem = |problem: &Problem| json!({"object": problem.object, "cause": problem.cause, "detail": problem.text});
        let object = |object: &ObjectMeta| {
            json!({
                "index": object.index, "debug_id": object.debug_id, "code_id": object.code_id,
                "file_type": object.file_type, "arch": object.arch, "features": contents(&object.features),
                "usable_as": file.caches.get(object.index),
            })
        };
        json!({
            "path": file.path,
            "objects": file.objects.iter().map(object).collect::<Vec<_>>(),
            "problems": file.problems.iter().map(problem).collect::<Vec<_>>(),
        })
    };
    let files: Vec<Value> = checked.iter().map(file).collect();
    view::json(&json!({"schema": view::SCHEMA, "files": files, "passed_over": others}))
}
