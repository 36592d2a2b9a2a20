//! `check`: what is in debug files, as the service reads them, and what is wrong with them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use goblin::container::Ctx;
use goblin::elf::Elf;
use goblin::elf::program_header::ProgramHeader;
use serde_json::{Value, json};
use symdepot::api::advice::Advice;
use symdepot::debuginfo::{Failure, TriedCache, base_of_segments};
use symdepot::domain::{CompanionId, Features, FileType, Inspection, ObjectMeta};

use crate::arguments::{CheckArguments, Requirement};
use crate::error::CliError;
use crate::inspection::{self, Inspected, advice};
use crate::visible::visible;
use crate::{Exit, Output, maps, progress, search, view};

/// The number of ids that are shown of many, such as those of the units of split DWARF.
const SHOWN_IDS: usize = 3;

/// The size of the header of a 64-bit ELF file, in bytes. That of a 32-bit one is smaller.
const ELF_HEADER_BYTES: u64 = 64;

/// The cause if there is no unwind information because the service does not unwind the machine.
const NOT_UNWOUND: &str = "not_unwound";

/// What was found out about a file.
struct Checked {
    path: String,
    /// The objects, and after them the auxiliary files that belong to modules.
    objects: Vec<ObjectMeta>,
    /// The ids by which other files find what they lack.
    completes: Vec<CompanionId>,
    /// For each object, the kinds of caches that the service can derive from it.
    caches: Vec<Vec<String>>,
    /// What is wrong with each object, and with the file.
    problems: Vec<Finding>,
    /// What the service does not do with objects, although nothing is wrong with them.
    notes: Vec<Finding>,
    /// The address that an ELF file is linked to, if that is not zero.
    base: Option<u64>,
}

struct Finding {
    /// The index of the object; `None` for the whole file.
    object: Option<usize>,
    cause: &'static str,
    text: String,
}

pub(crate) fn run(arguments: &CheckArguments) -> Result<Output, CliError> {
    let found = search::search(&arguments.paths)?;
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
    let text = if arguments.json {
        json_of(&checked, found.others.len())
    } else {
        text_of(&checked, found.others.len(), with_problems)
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
            let mut notes = Vec::new();
            for finding in unusable(&inspection, &caches) {
                let is_required = require.contains(&Requirement::Unwind);
                match finding.cause {
                    NOT_UNWOUND if !is_required => notes.push(finding),
                    _ => problems.push(finding),
                }
            }
            let usable = caches.iter().map(usable);
            let (maps, symbol_maps) = auxiliary(path, &inspection);
            Checked {
                path: shown,
                problems,
                notes,
                base: base_of(path, &inspection.objects),
                caches: usable.collect(),
                objects: inspection.objects.into_iter().chain(maps).collect(),
                completes: inspection
                    .completes
                    .into_iter()
                    .chain(symbol_maps)
                    .collect(),
            }
        }
        Err(text) => Checked {
            path: shown,
            objects: Vec::new(),
            completes: Vec::new(),
            caches: Vec::new(),
            notes: Vec::new(),
            base: None,
            problems: vec![Finding {
                object: None,
                cause: "unreadable",
                text,
            }],
        },
    }
}

fn problems_of(path: &Path, inspection: &Inspection, require: &[Requirement]) -> Vec<Finding> {
    let mut problems = Vec::new();
    for object in &inspection.objects {
        let mut add = |cause, text: String| {
            problems.push(Finding {
                object: Some(object.index),
                cause,
                text,
            });
        };
        // That an object without any id is skipped is a problem of the file.
        let has_id = object.debug_id.is_some() || object.code_id.is_some();
        if let Some(advice) = advice(object).filter(|it| has_id || *it != Advice::NoBuildId) {
            add(advice.cause(), advice.to_string());
        }
        if let Some(text) = companions(path, &object.needs) {
            add("companions", text);
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
    let skipped = inspection.skipped.iter().map(|text| Finding {
        object: None,
        cause: "ignored",
        text: text.clone(),
    });
    problems.extend(skipped);
    let path = path.to_string_lossy();
    let unnamed = inspection.auxiliary.iter().filter_map(|file| {
        Some(Finding {
            object: None,
            cause: "ignored",
            text: file.id_at(&path).err()?,
        })
    });
    problems.extend(unnamed);
    let completes = !inspection.completes.is_empty() || !inspection.auxiliary.is_empty();
    if inspection.objects.is_empty() && problems.is_empty() && !completes {
        problems.push(Finding {
            object: None,
            cause: "empty",
            text: "it contains no debug information file".to_owned(),
        });
    }
    problems
}

/// Returns the auxiliary files that are found by the id of a module, as objects, and the ids of
/// symbol maps, by which UUID maps find them.
fn auxiliary(path: &Path, inspection: &Inspection) -> (Vec<ObjectMeta>, Vec<CompanionId>) {
    let (mut maps, mut symbol_maps) = (Vec::new(), Vec::new());
    for map in maps::of_file(path, inspection) {
        if map.file_type == FileType::BcSymbolMap {
            let id = CompanionId::SymbolMap(map.id);
            symbol_maps.extend((!inspection.completes.contains(&id)).then_some(id));
            continue;
        }
        let symbol_map = map.symbol_map.map(CompanionId::SymbolMap);
        let needs = symbol_map.filter(|id| !inspection.completes.contains(id));
        maps.push(ObjectMeta {
            index: inspection.objects.len() + maps.len(),
            debug_id: Some(map.id),
            code_id: None,
            file_type: map.file_type,
            arch: String::new(),
            features: Features::default(),
            is_accompanied: false,
            needs: needs.into_iter().collect(),
            hides_names: false,
            fault: None,
        });
    }
    (maps, symbol_maps)
}

/// Returns the address that an ELF file is linked to. Addresses in its caches are relative to it.
/// Returns `None` if it is zero, as in position-independent files, and for other files.
fn base_of(path: &Path, objects: &[ObjectMeta]) -> Option<u64> {
    if !matches!(objects, [object] if object.file_type.is_elf()) {
        return None;
    }
    // A pipe can be read only once.
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let mut read = |from: u64, length: u64| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(from)).ok()?;
        file.by_ref().take(length).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    // A compressed file has another header.
    let header = Elf::parse_header(&read(0, ELF_HEADER_BYTES)?).ok()?;
    let context = Ctx::new(header.container().ok()?, header.endianness().ok()?);
    let length = u64::from(header.e_phnum) * u64::from(header.e_phentsize);
    let table = read(header.e_phoff, length)?;
    let segments = ProgramHeader::parse(&table, 0, header.e_phnum.into(), context).ok()?;
    base_of_segments(&segments).filter(|base| *base != 0)
}

/// Returns the kinds of the caches that can be derived.
fn usable(caches: &Result<Vec<TriedCache>, String>) -> Vec<String> {
    let caches = caches.iter().flatten();
    let usable = caches.filter(|cache| cache.unusable.is_none());
    usable.map(|cache| cache.kind.clone()).collect()
}

/// Returns why the service cannot use what objects have. The fault of an object that cannot be read
/// at all is a problem already.
fn unusable(inspection: &Inspection, caches: &[Result<Vec<TriedCache>, String>]) -> Vec<Finding> {
    let mut problems = Vec::new();
    for (object, caches) in inspection.objects.iter().zip(caches) {
        let mut add = |cause, text| {
            problems.push(Finding {
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
        let is_usable = |it: &TriedCache| it.is_offered && it.unusable.is_none();
        for cache in caches {
            let kind = &cache.kind;
            match (&cache.unusable, &cache.lacks) {
                (Some(reason), _)
                    if cache.is_offered
                        && Failure::is_of_machine(reason)
                        && caches.iter().any(is_usable) =>
                {
                    add(NOT_UNWOUND, reason.clone());
                }
                (Some(reason), _) if cache.is_offered && object.fault.is_none() => {
                    add(
                        "unusable",
                        format!("no {kind} can be derived from it: {reason}"),
                    );
                }
                (None, Some(lacks)) if cache.is_offered && object.needs.is_empty() => {
                    add("lacks", lacks.clone());
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

/// Returns which other files an object of a file needs.
fn companions(path: &Path, needs: &[CompanionId]) -> Option<String> {
    let shared = needs.iter().find_map(|id| match id {
        CompanionId::Shared(id) => Some(id),
        _ => None,
    });
    if let Some(id) = shared {
        return Some(format!(
            "a part of its debug information is in the file with the build id {id}, which `dwz` made: upload this file, too"
        ));
    }
    let units = needs.iter().filter_map(|id| match id {
        CompanionId::Unit(id) => Some(id.as_str()),
        _ => None,
    });
    let units: Vec<&str> = units.collect();
    if units.is_empty() {
        return None;
    }
    let count = match units.len() {
        1 => "a unit of it is in another file".to_owned(),
        count => format!("{count} units of it are in other files"),
    };
    let ids = first_of(&units);
    // Linkers and debuggers add the extension to the name of the program.
    let program = path.file_name().unwrap_or_default().display();
    Some(format!(
        "its debug information is split: {count} ({ids}); upload the package {program}.dwp, which `dwp` or `llvm-dwp` makes, or the .dwo files in an archive with it"
    ))
}

/// Returns the id of a companion, for people.
fn companion(id: &CompanionId) -> String {
    match id {
        CompanionId::Unit(id) => format!("unit {id}"),
        CompanionId::Shared(id) => format!("build id {id}"),
        CompanionId::SymbolMap(id) => format!("symbol map {id}"),
    }
}

/// Returns the first of some ids, for people.
fn first_of(ids: &[impl AsRef<str>]) -> String {
    let shown = ids.iter().take(SHOWN_IDS).map(AsRef::as_ref);
    let mut shown = shown.collect::<Vec<_>>().join(", ");
    if ids.len() > SHOWN_IDS {
        shown.push_str(", …");
    }
    shown
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
        let _ = writeln!(text, "{}", visible(&file.path));
        for object in &file.objects {
            let id = |id: Option<String>| id.unwrap_or_else(|| "–".to_owned());
            let (debug, code) = (
                id(object.debug_id.map(|id| id.to_string())),
                id(object.code_id.as_ref().map(ToString::to_string)),
            );
            let contents = contents(&object.features);
            let contents = if object.file_type.is_auxiliary() {
                "a map for its module".to_owned()
            } else if contents.is_empty() {
                "nothing of use".to_owned()
            } else {
                contents.join(", ")
            };
            let kind = format!("{} {}", type_of(object), object.arch);
            let _ = writeln!(text, "  {}: {contents}", kind.trim_end());
            let _ = writeln!(text, "    debug id {debug}, code id {code}");
        }
        if let Some(base) = file.base {
            let _ = writeln!(
                text,
                "    base {base:#010x}: image_addr of a module that is not moved"
            );
        }
        if !file.completes.is_empty() {
            let ids: Vec<String> = file.completes.iter().map(companion).collect();
            let _ = writeln!(text, "  completes other files, by {}", first_of(&ids));
        }
        for problem in &file.problems {
            let text_of_problem = visible(&problem.text);
            let _ = writeln!(text, "  ! {}: {text_of_problem}", problem.cause);
        }
        for note in &file.notes {
            let _ = writeln!(text, "  - {}: {}", note.cause, visible(&note.text));
        }
    }
    let usable = checked.len() - with_problems;
    let _ = writeln!(
        text,
        "{usable} without problems, {with_problems} with problems, {others} other files"
    );
    text
}

fn json_of(checked: &[Checked], others: usize) -> String {
    let file = |file: &Checked| -> Value {
        let finding = |finding: &Finding| json!({"object": finding.object, "cause": finding.cause, "detail": finding.text});
        let object = |object: &ObjectMeta| {
            json!({
                "index": object.index, "debug_id": object.debug_id, "code_id": object.code_id,
                "file_type": object.file_type, "arch": object.arch, "features": contents(&object.features),
                "usable_as": file.caches.get(object.index), "needs": object.needs,
            })
        };
        json!({
            "path": file.path,
            "objects": file.objects.iter().map(object).collect::<Vec<_>>(),
            "completes": file.completes,
            "base": file.base.map(|base| format!("{base:#010x}")),
            "problems": file.problems.iter().map(finding).collect::<Vec<_>>(),
            "notes": file.notes.iter().map(finding).collect::<Vec<_>>(),
        })
    };
    let files: Vec<Value> = checked.iter().map(file).collect();
    view::json(&json!({"schema": view::SCHEMA, "files": files, "passed_over": others}))
}
