//! The pure core against Symbolicator's own answers, where these lie beside the checkout; otherwise
//! there is nothing to do.
//!
//! Compared is everything but what is not the core's: candidates, and the lines of source around a
//! frame's.

#![expect(
    clippy::unwrap_used,
    reason = "a fixture that cannot be read fails the test"
)]

use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use symbolic::debuginfo::Archive;
use symbolic::ppdb::{PortablePdb, PortablePdbCache, PortablePdbCacheConverter};
use symbolic::symcache::{SymCache, SymCacheConverter};
use symdepot::api::symbolicator::{Response, parse_request};
use symdepot::domain::{Features, Missing};
use symdepot::symbolicate::{Considered, LookupCache, ModuleOutcome, plan, symbolicate};

/// Symbols, and the names of their functions as `llvm-cxxfilt-19` prints them, without the type
/// that is returned and with a space between two `>`. Symbolicator leaves out the parameters of
/// such constructors, and prints what is left of an empty pack.
const NAMES_AS_LLVM: [(&str, &str); 4] = [
    (
        "_ZN9__gnu_cxx13new_allocatorImE9constructImJEEEvPT_DpOT0_",
        "__gnu_cxx::new_allocator<unsigned long>::construct<unsigned long>(unsigned long*)",
    ),
    (
        "_ZNSt10_List_nodeIN15google_breakpad12MappingEntryEEC4IJRKS1_EEEDpOT_",
        "std::_List_node<google_breakpad::MappingEntry>::_List_node<google_breakpad::MappingEntry \
         const&>(google_breakpad::MappingEntry const&)",
    ),
    (
        "_ZNSt10_List_nodeIN15google_breakpad9AppMemoryEEC4IJRKS1_EEEDpOT_",
        "std::_List_node<google_breakpad::AppMemory>::_List_node<google_breakpad::AppMemory \
         const&>(google_breakpad::AppMemory const&)",
    ),
    (
        "_ZNSt16allocator_traitsIN15google_breakpad16PageStdAllocatorImEEE9constructImJEEEDTcl12_S_\
         constructfp_fp0_spcl7forwardIT0_Efp1_EEERS2_PT_DpOS5_",
        "std::allocator_traits<google_breakpad::PageStdAllocator<unsigned long> >::construct<\
         unsigned long>(google_breakpad::PageStdAllocator<unsigned long>&, unsigned long*)",
    ),
];

/// Fields of a frame that show source.
const SOURCE_CONTEXT: [&str; 4] = ["pre_context", "context_line", "post_context", "source_link"];

/// Returns the folder beside the checkout that holds fixtures and answers.
fn beside() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    if folder.join("conformance/expected").is_dir() {
        return Some(folder);
    }
    println!(
        "skipped: Symbolicator's answers are not beside this checkout, in ../shared/conformance"
    );
    None
}

/// A DIF, as a cache.
enum Derived {
    Sym(Vec<u8>, Features),
    Ppdb(Vec<u8>, Features),
}

impl Derived {
    fn from_file(path: &Path) -> Self {
        let bytes = decompress(fs::read(path).unwrap());
        let archive = Archive::parse(&bytes).unwrap();
        let object = archive.object_by_index(0).unwrap().unwrap();
        let features = Features {
            has_debug_info: object.has_debug_info(),
            has_unwind_info: object.has_unwind_info(),
            has_symbols: object.has_symbols(),
            has_sources: object.has_sources(),
            srcsrv_vcs: None,
        };
        let mut cache = Vec::new();
        if let symbolic::debuginfo::Object::PortablePdb(_) = object {
            let mut converter = PortablePdbCacheConverter::new();
            converter
                .process_portable_pdb(&PortablePdb::parse(&bytes).unwrap())
                .unwrap();
            converter.serialize(&mut cache).unwrap();
            return Derived::Ppdb(cache, features);
        }
        let mut converter = SymCacheConverter::new();
        converter.process_object(&object).unwrap();
        converter.serialize(&mut Cursor::new(&mut cache)).unwrap();
        Derived::Sym(cache, features)
    }

    fn outcome(&self) -> ModuleOutcome<'_> {
        let (cache, arch, features) = match self {
            Derived::Sym(bytes, features) => {
                let cache = SymCache::parse(bytes).unwrap();
                let arch = cache.arch().name();
                (LookupCache::Sym(cache.into()), arch, features)
            }
            Derived::Ppdb(bytes, features) => (
                LookupCache::Ppdb(PortablePdbCache::parse(bytes).unwrap()),
                "unknown",
                features,
            ),
        };
        ModuleOutcome::Found {
            cache,
            features: features.clone(),
            arch,
            lacks: None,
            considered: Considered::default(),
        }
    }
}

fn decompress(bytes: Vec<u8>) -> Vec<u8> {
    if bytes.starts_with(b"\x28\xb5\x2f\xfd") {
        return zstd::decode_all(&*bytes).unwrap();
    }
    if bytes.starts_with(b"MSCF") {
        let mut cabinet = cab::Cabinet::new(Cursor::new(bytes)).unwrap();
        let name = cabinet
            .folder_entries()
            .flat_map(|folder| folder.file_entries())
            .next()
            .unwrap()
            .name()
            .to_owned();
        let mut file = Vec::new();
        cabinet
            .read_file(&name)
            .unwrap()
            .read_to_end(&mut file)
            .unwrap();
        return file;
    }
    bytes
}

/// Symbolicates a request with one DIF for the module that it wants, and compares with what
/// Symbolicator answered.
fn check(case: &str, dif: Option<&str>, request: &Value) {
    check_but(case, dif, request, NameDifferences::default());
}

/// In how many frames another name is right: by choice, see `docs/conformance.md`.
#[derive(Debug, Default, PartialEq, Eq)]
struct NameDifferences {
    /// Symbolicator answers the mangled name.
    mangled_there: usize,
    /// The name is one of [`NAMES_AS_LLVM`].
    as_llvm_here: usize,
}

/// The same, but for some names.
fn check_but(case: &str, dif: Option<&str>, request: &Value, chosen: NameDifferences) {
    let Some(beside) = beside() else { return };
    let expected = File::open(beside.join(format!("conformance/expected/{case}.json.gz"))).unwrap();
    let expected: Value = serde_json::from_reader(flate2::read::GzDecoder::new(expected)).unwrap();
    let mut want = expected["answer"].clone();

    let request = parse_request(request.to_string().as_bytes()).unwrap();
    let plan = plan(&request);
    let derived = dif.map(|dif| Derived::from_file(&beside.join("fixtures").join(dif)));
    let outcome = match &derived {
        Some(derived) => derived.outcome(),
        None => ModuleOutcome::Missing {
            missing: Missing::not_found(),
            features: Features::default(),
            considered: Considered::default(),
        },
    };
    let outcomes = vec![outcome; plan.caches().len()];
    let (completed, stats) = symbolicate(&request, &plan, &outcomes);
    let shown: usize = completed
        .stacktraces
        .iter()
        .map(|stacktrace| stacktrace.frames.len())
        .sum();
    assert_eq!(
        shown,
        stats.frames.total() + stats.inlined - stats.dropped,
        "{stats:?}"
    );
    let mut got = serde_json::to_value(Response::Completed(completed)).unwrap();

    keep_what_the_core_says(&mut want);
    keep_what_the_core_says(&mut got);
    assert_eq!(take_back_names(&want, &mut got), chosen, "{case}");
    let mut differences = Vec::new();
    compare(&want, &got, String::new(), &mut differences);
    assert!(
        differences.is_empty(),
        "{case}: {} differences\n{}",
        differences.len(),
        differences[..differences.len().min(20)].join("\n")
    );
}

/// Puts Symbolicator's name where another is right, and returns in how many frames.
fn take_back_names(want: &Value, got: &mut Value) -> NameDifferences {
    let wanted = want["stacktraces"].as_array().unwrap();
    let given = got["stacktraces"].as_array_mut().unwrap();
    let mut differences = NameDifferences::default();
    for (want, got) in wanted.iter().zip(given) {
        let frames = got["frames"].as_array_mut().unwrap().iter_mut();
        for (want, got) in want["frames"].as_array().unwrap().iter().zip(frames) {
            if got["symbol"] != want["symbol"] || got["function"] == want["function"] {
                continue;
            }
            let Some(symbol) = want["symbol"].as_str().filter(|it| it.starts_with("_Z")) else {
                continue;
            };
            if want["function"] == symbol {
                differences.mangled_there += 1;
            } else if NAMES_AS_LLVM.contains(&(symbol, got["function"].as_str().unwrap())) {
                differences.as_llvm_here += 1;
            } else {
                continue;
            }
            got["function"] = want["function"].clone();
        }
    }
    differences
}

fn keep_what_the_core_says(answer: &mut Value) {
    for module in answer["modules"].as_array_mut().unwrap() {
        module.as_object_mut().unwrap().remove("candidates");
    }
    for stacktrace in answer["stacktraces"].as_array_mut().unwrap() {
        for frame in stacktrace["frames"].as_array_mut().unwrap() {
            frame
                .as_object_mut()
                .unwrap()
                .retain(|field, _| !SOURCE_CONTEXT.contains(&field.as_str()));
        }
    }
}

/// Lists where two values differ, with their paths.
fn compare(want: &Value, got: &Value, path: String, differences: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            for field in want
                .keys()
                .chain(got.keys().filter(|field| !want.contains_key(*field)))
            {
                let value = |object: &serde_json::Map<String, Value>| {
                    object.get(field).cloned().unwrap_or(Value::Null)
                };
                compare(
                    &value(want),
                    &value(got),
                    format!("{path}.{field}"),
                    differences,
                );
            }
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => {
            for (index, (want, got)) in want.iter().zip(got).enumerate() {
                compare(want, got, format!("{path}[{index}]"), differences);
            }
        }
        (want, got) if want == got => {}
        (Value::Array(want), Value::Array(got)) => {
            differences.push(format!(
                "{path}: want {} elements, got {}",
                want.len(),
                got.len()
            ));
        }
        (want, got) => differences.push(format!("{path}: want {want}, got {got}")),
    }
}

fn macho_modules() -> Value {
    json!([{
        "type": "macho", "debug_id": "502fc0a5-1ec1-3e47-9998-684fa139dca7", "code_id": "502fc0a51ec13e479998684fa139dca7",
        "image_addr": "0x100000000", "image_size": 4096
    }])
}

const MACHO: &str = "symbolicator/symbols/502F/C0A5/1EC1/3E47/9998/684FA139DCA7";

#[test]
fn a_mach_o_frame_agrees() {
    let request = json!({"modules": macho_modules(), "stacktraces": [{"frames": [{"instruction_addr": "0x100000fa0"}]}]});
    check("macho_source", Some(MACHO), &request);
}

#[test]
fn a_module_without_debug_information_agrees() {
    let request = json!({"modules": macho_modules(), "stacktraces": [{"frames": [{"instruction_addr": "0x100000fa0"}]}], "sources": []});
    check("macho_no_source", None, &request);
}

#[test]
fn a_module_that_does_not_exist_agrees() {
    let frames = json!([{"instruction_addr": "0xfa0", "addr_mode": "rel:3"}]);
    check(
        "macho_bad_module_index",
        None,
        &json!({"modules": macho_modules(), "stacktraces": [{"frames": frames}]}),
    );
}

#[test]
fn adjusted_addresses_agree() {
    let frames = json!([
        {"instruction_addr": "0x100000fa0", "adjust_instruction_addr": true},
        {"instruction_addr": "0x100000fab", "adjust_instruction_addr": false},
        {"instruction_addr": "0x100000fac"}
    ]);
    check(
        "macho_adjust",
        Some(MACHO),
        &json!({"modules": macho_modules(), "stacktraces": [{"frames": frames}]}),
    );
}

#[test]
fn the_frames_of_a_windows_crash_agree() {
    let frame = |offset: u64| json!({"instruction_addr": format!("{:#x}", 0x2a0000 + offset)});
    let frames = [0x2a2d, 0x2a3d, 0x2a6f, 0x3a51, 0x1a3f].map(frame);
    let request = json!({
        "modules": [{
            "type": "pe", "debug_id": "3249d99d-0c40-4931-8610-f4e4fb0b6936-1", "image_addr": "0x2a0000", "image_size": 36864,
            "code_file": r"C:\projects\breakpad-tools\windows\Release\crash.exe",
            "debug_file": r"C:\projects\breakpad-tools\windows\Release\crash.pdb"
        }],
        "stacktraces": [{"frames": frames, "registers": {"eip": "0x2a2a2d"}}]
    });
    let dif = "symbolicator/symbols/crash.pdb/3249D99D0C4049318610F4E4FB0B69361/crash.pdb";
    check("pe_symstore", Some(dif), &request);
    check("pe_two_sources", Some(dif), &request);
}

#[test]
fn a_web_assembly_frame_agrees() {
    let request = json!({
        "modules": [{
            "type": "wasm", "debug_id": "bda18fd8-5d4a-4eb8-9302-2d6bfad846b1", "code_id": "bda18fd85d4a4eb893022d6bfad846b1",
            "debug_file": "file://foo.invalid/demo.wasm"
        }],
        "stacktraces": [{"frames": [{"instruction_addr": "0x8c", "addr_mode": "rel:0"}]}]
    });
    check(
        "wasm",
        Some("symbolicator/symbols/bd/a18fd85d4a4eb893022d6bfad846b1.debug"),
        &request,
    );
}

#[test]
fn dotnet_frames_agree() {
    let frame = |(offset, method): (u64, u64)| json!({"instruction_addr": offset, "function_id": method, "addr_mode": "rel:0"});
    let frames = [(10, 6), (6, 5), (0, 3), (0, 2), (45, 1)].map(frame);
    let request = json!({
        "modules": [{"type": "pe_dotnet", "debug_file": "integration.pdb", "debug_id": "0c1033f78632492e91c6c314b72e1920e60b819d"}],
        "stacktraces": [{"frames": frames}]
    });
    check(
        "dotnet",
        Some(
            "symbolicator/symbols/integration.pdb/0C1033F78632492E91C6C314B72E1920ffffffff/integration.pdb",
        ),
        &request,
    );
}

/// Every `step` bytes from `start`, a frame.
fn sweep(module: Value, start: u64, count: u64, step: u64) -> Value {
    let frame = |index: u64| json!({"instruction_addr": format!("{:#x}", 0x1000_0000 + start + index * step), "adjust_instruction_addr": false});
    let mut module = module;
    module["image_addr"] = json!("0x10000000");
    module["image_size"] = json!(0x400_0000);
    json!({
        "modules": [module],
        "stacktraces": [{"frames": (0..count).map(frame).collect::<Vec<_>>()}],
        "options": {"apply_source_context": false}
    })
}

#[test]
fn a_sweep_over_cpp_in_elf_agrees() {
    let module = json!({
        "type": "elf", "debug_id": "c0bcc3f1-9827-fe65-3058-404b2831d9e6",
        "code_id": "f1c3bcc0279865fe3058404b2831d9e64135386c", "code_file": "/build/crash"
    });
    let dif = "unified/native/f1/c3bcc0279865fe3058404b2831d9e64135386c/debuginfo";
    check_but(
        "sweep_elf_cpp",
        Some(dif),
        &sweep(module, 0x1d00, 1500, 37),
        NameDifferences {
            mangled_there: 10,
            as_llvm_here: 5,
        },
    );
}

#[test]
fn a_sweep_over_a_pdb_agrees() {
    let module = json!({
        "type": "pe", "debug_id": "3249d99d-0c40-4931-8610-f4e4fb0b6936-1", "debug_file": "crash.pdb", "code_file": "crash.exe"
    });
    let dif = "unified/native/32/49d99d0c4049318610f4e4fb0b69361/debuginfo";
    check("sweep_pdb_x86", Some(dif), &sweep(module, 0x1000, 1200, 13));
}
