//! What is known about the modules of a report besides the report: from `--module`, and from the
//! files of the same paths on this machine.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;
use symdepot::api::report::{CrashReport, GivenModule, Lack};
use symdepot::api::symbolicator::Hex;
use symdepot::api::uploads::FILE_BYTES;
use symdepot::domain::{CodeId, ModuleId, ObjectMeta, ObjectType};

use crate::{files, inspection};

/// The size of the smallest pages, on which programs are loaded.
const PAGE: u64 = 0x1000;

/// The value of `--module`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModuleArgument(pub(crate) GivenModule);

impl FromStr for ModuleArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected NAME=ID or NAME=ID@BASE, for example app=8f3a…c1@0x400000";
        let (name, rest) = text.rsplit_once('=').ok_or(expected)?;
        let (id, base) = match rest.split_once('@') {
            Some((id, base)) => (id, Some(base)),
            None => (rest, None),
        };
        if name.is_empty() {
            return Err(expected.to_owned());
        }
        let mut given = GivenModule {
            name: name.to_owned(),
            ..GivenModule::default()
        };
        // A debug id is written with dashes, a code id without.
        if id.contains('-') {
            let parsed = id
                .parse()
                .map_err(|_| format!("{id:?} is not a debug id"))?;
            given.debug_id = Some(parsed);
        } else {
            let code_id = CodeId::new(id.to_owned());
            let is_hex = id.bytes().all(|digit| digit.is_ascii_hexdigit());
            if !is_hex || ModuleId::of(None, Some(&code_id)).is_none() {
                return Err(format!("{id:?} is neither a code id nor a debug id"));
            }
            given.code_id = Some(code_id);
        }
        if let Some(base) = base {
            // Maps of a process are written without it.
            let digits = base.strip_prefix("0x").unwrap_or(base);
            let parsed = format!("0x{digits}").parse::<Hex>();
            let parsed = parsed.map_err(|_| format!("{base:?} is not an address (0x…)"))?;
            given.base = Some(parsed.0);
        }
        Ok(Self(given))
    }
}

/// Completes a report with the files of this machine that it names, and returns what was taken from
/// them, for people.
pub(crate) fn complete_from_this_machine(report: &mut CrashReport) -> Vec<String> {
    let mut notes = Vec::new();
    for lack in report.lacks() {
        let (Lack::Id { module, .. } | Lack::Base { module }) = &lack else {
            continue;
        };
        let Some(path) = file_of(module) else {
            continue;
        };
        let given = match &lack {
            Lack::Id { .. } => ids_of(path),
            _ => base_of(path, &functions_in(report, module)).map(loaded_at),
        };
        notes.extend(given.and_then(|given| taken(report, module, given)));
    }
    let uncertain = report.uncertain_programs();
    let uncertain: Vec<String> = uncertain.into_iter().map(|it| it.name.clone()).collect();
    for module in &uncertain {
        let given = file_of(module).and_then(|path| base_of(path, &[]));
        notes.extend(given.and_then(|base| taken(report, module, loaded_at(base))));
    }
    notes
}

/// Returns the path of a module, if it is that of a file of this machine.
fn file_of(module: &str) -> Option<&Path> {
    let path = Path::new(module);
    (module.contains('/') && path.is_file()).then_some(path)
}

fn loaded_at(base: u64) -> GivenModule {
    GivenModule {
        base: Some(base),
        ..GivenModule::default()
    }
}

/// Completes a module of a report with what its file says, and returns what that is, for people.
fn taken(report: &mut CrashReport, module: &str, mut given: GivenModule) -> Option<String> {
    module.clone_into(&mut given.name);
    let what = match (&given.code_id, given.base) {
        (Some(id), _) => format!("build id {id}"),
        (None, Some(base)) => format!("load address {base:#x}"),
        (None, None) => "ids".to_owned(),
    };
    report.complete(&given).then(|| {
        format!(
            "took the {what} of {module} from the file on this machine: it has to be the build that failed"
        )
    })
}

/// Returns the ids of the program in a file.
fn ids_of(path: &Path) -> Option<GivenModule> {
    let inspection = inspection::inspect(path, false).ok()?.inspection;
    let [object] = inspection.objects.as_slice() else {
        // Which of several is meant is not known.
        return None;
    };
    let ObjectMeta {
        code_id,
        debug_id,
        file_type,
        ..
    } = object;
    (code_id.is_some() || debug_id.is_some()).then(|| GivenModule {
        code_id: code_id.clone(),
        debug_id: if code_id.is_some() { None } else { *debug_id },
        object_type: file_type.is_elf().then_some(ObjectType::Elf),
        ..GivenModule::default()
    })
}

/// A function of which a report says where it was.
struct LoadedFunction<'a> {
    name: &'a str,
    address: u64,
}

/// Returns the functions in a module of which a report has a name with an offset and an address.
fn functions_in<'a>(report: &'a CrashReport, module: &str) -> Vec<LoadedFunction<'a>> {
    let is_it = |index: usize| {
        report
            .modules
            .get(index)
            .is_some_and(|it| it.name == module)
    };
    let frames = report.stacks.iter().flat_map(|stack| &stack.frames);
    let frames = frames.filter(|frame| frame.module.is_some_and(is_it));
    let functions = frames.filter_map(|frame| {
        Some(LoadedFunction {
            name: frame.function.as_deref()?,
            address: frame.address?.checked_sub(frame.function_offset?)?,
        })
    });
    functions.collect()
}

/// Returns where a program was loaded: where it is linked to if it is not position independent, or
/// else where its functions were.
fn base_of(path: &Path, functions: &[LoadedFunction<'_>]) -> Option<u64> {
    let program = files::open(path, "programs", FILE_BYTES).ok()?;
    let bytes = program.map().ok()?;
    load_address(&bytes).or_else(|| load_address_by_functions(&bytes, functions))
}

/// Returns the address of the first segment of an ELF program that is not position independent.
fn load_address(bytes: &[u8]) -> Option<u64> {
    let header = Elf::parse_header(bytes).ok()?;
    if header.e_type != goblin::elf::header::ET_EXEC {
        return None;
    }
    first_segment(&Elf::parse(bytes).ok()?)
}

/// Returns the address that the first segment of an ELF file is linked to.
fn first_segment(elf: &Elf<'_>) -> Option<u64> {
    let loads = elf.program_headers.iter().filter(|it| it.p_type == PT_LOAD);
    let first = loads.min_by_key(|it| it.p_vaddr)?;
    Some(first.p_vaddr - first.p_vaddr % first.p_align.max(1))
}

/// Returns where an ELF file was loaded whose dynamic symbols were at these addresses; `None` if
/// that is not the same for all of them.
fn load_address_by_functions(bytes: &[u8], functions: &[LoadedFunction<'_>]) -> Option<u64> {
    if functions.is_empty() {
        return None;
    }
    let elf = Elf::parse(bytes).ok()?;
    let first = first_segment(&elf)?;
    let of_function = |function: &LoadedFunction<'_>| -> BTreeSet<u64> {
        let named = elf.dynsyms.iter().filter(|symbol| {
            symbol.st_value != 0 && elf.dynstrtab.get_at(symbol.st_name) == Some(function.name)
        });
        // A library may have several versions of a function.
        let bases = named.filter_map(|symbol| {
            let distance = function.address.checked_sub(symbol.st_value)?;
            distance.checked_add(first)
        });
        bases.filter(|base| base % PAGE == 0).collect()
    };
    let bases = functions.iter().map(of_function);
    let common = bases.reduce(|common, bases| &common & &bases)?;
    let mut common = common.into_iter();
    common.next().filter(|_| common.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_named_with_its_id_and_its_base() {
        let id = "8f3a8f3a8f3a8f3a8f3a8f3a8f3a8f3a8f3a8f3a";
        let parse = |text: &str| text.parse::<ModuleArgument>().map(|it| it.0);
        let given = parse(&format!("/srv/a=b={id}@0x400000")).unwrap();
        assert_eq!(given.name, "/srv/a=b");
        assert_eq!(given.code_id, Some(CodeId::new(id.to_owned())));
        assert_eq!((given.debug_id, given.base), (None, Some(0x40_0000)));
        let given = parse(&format!("app={id}@555555554000")).unwrap();
        assert_eq!(given.base, Some(0x5555_5555_4000));
        let given = parse("app=502fc0a5-1ec1-3e47-9998-684fa139dca7").unwrap();
        assert!(given.debug_id.is_some() && given.code_id.is_none());
        // That of a PE file has the time stamp and the size of the program.
        let given = parse("app.exe=5AB380779000").unwrap();
        assert_eq!(given.code_id, Some(CodeId::new("5ab380779000".to_owned())));
        for wrong in [
            "app",
            "app=",
            "app=0000",
            "=8f3a8f3a8f3a8f3a",
            "app=main",
            "app=x-y",
            "app=8f3a8f3a8f3a8f3a@here",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_programs_at_a_fixed_address_have_a_load_address() {
        let file = |name: &str| {
            let path = format!("{}/../../tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read(path).unwrap()
        };
        assert_eq!(load_address(&file("elf/inventory")), Some(0x20_0000));
        assert_eq!(load_address(&file("elf/crash")), None);
        assert_eq!(load_address(b"text"), None);
    }

    #[test]
    fn the_addresses_of_functions_tell_where_a_library_was_loaded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/elf");
        // Its only function, `twice`, is at 0x1000.
        let library = std::fs::read(format!("{folder}/no-build-id.so")).unwrap();
        let function = |name, address| LoadedFunction { name, address };
        let base =
            |functions: &[LoadedFunction<'_>]| load_address_by_functions(&library, functions);
        let twice = function("twice", 0x7fff_0000_1000);
        assert_eq!(base(&[twice]), Some(0x7fff_0000_0000));
        for other in [
            vec![function("twice", 0x7fff_0000_1008)],
            vec![
                function("twice", 0x7fff_0000_1000),
                function("twice", 0x7fff_0000_2000),
            ],
            vec![
                function("twice", 0x7fff_0000_1000),
                function("other", 0x7fff_0000_1000),
            ],
            vec![function("twice", 0)],
            Vec::new(),
        ] {
            assert_eq!(base(&other), None);
        }
        assert_eq!(load_address_by_functions(b"text", &[]), None);
    }
}
