//! Maps of modules: what `find` lists, and what `symbolicate --fix` uploads.

use axum::Json;
use axum::routing::post;
use serde_json::json;

use crate::service::{Service, store};
use crate::{fixture, run, run_with};

/// The debug id of the program with hidden names, and the id of its symbol map.
const HIDDEN: &str = "f9d1d247-0ca9-55df-ab9d-50d65c32a93d";
const SYMBOL_MAP_ID: &str = "4c4c445c-5555-3144-a106-efef076dfa3c";

const RESOURCES: &str = "crash.dSYM/Contents/Resources";
const UUID_MAP: &str = "F9D1D247-0CA9-55DF-AB9D-50D65C32A93D.plist";
const SYMBOL_MAP: &str = "4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap";

#[test]
fn find_prints_the_paths_of_the_maps_with_an_id() {
    let folder = fixture("maps");
    let program = format!("{RESOURCES}/DWARF/crash");
    let uuid_map = format!("{RESOURCES}/{UUID_MAP}");
    let of_line_map = "bc6e45ac-487f-f425-3672-08b89f51ad48";
    for (id, expected) in [
        (HIDDEN, &[program.as_str(), uuid_map.as_str()][..]),
        (SYMBOL_MAP_ID, &[SYMBOL_MAP]),
        (of_line_map, &["crash.il2cpp"]),
    ] {
        let ended = run(&["find", id, &folder]);
        let expected = expected.iter().map(|name| format!("{folder}/{name}\n"));
        let expected: String = expected.collect();
        assert_eq!((ended.code, ended.out), (0, expected), "{id}");
    }
}

/// Symbolicates a crash in the program with hidden names, with `--fix` and a folder with these
/// files, which may be maps of other programs. The service says this about the module. Returns the
/// names of the files that were uploaded, and standard error.
fn fixed(status: &'static str, detail: &str, files: &[&str]) -> (Vec<String>, String) {
    let features = json!({"has_debug_info": true, "has_unwind_info": false, "has_symbols": true,
        "has_sources": false});
    let module = json!({"type": "macho", "debug_id": HIDDEN, "code_file": "/app/crash",
        "image_addr": "0x100000000"});
    let mut completed = module.clone();
    completed["debug_status"] = status.into();
    completed["debug_detail"] = detail.into();
    completed["features"] = features;
    completed["arch"] = "arm64".into();
    let frame = json!({"status": "symbolicated", "original_index": 0,
        "instruction_addr": "0x100001000", "function": "__hidden#1_"});
    let answer = json!({"status": "completed", "modules": [completed],
        "stacktraces": [{"frames": [frame]}]});
    let symbolicate = move || {
        let answer = answer.clone();
        async move { Json(answer) }
    };
    let stored = store::Shared::default();
    let router = store::router(&stored).route("/symbolicate", post(symbolicate));
    let service = Service::with(router);
    let folder = tempfile::tempdir().unwrap();
    for name in files {
        let of_fixture = match name.rsplit_once('.') {
            Some((_, "plist")) => format!("maps/{RESOURCES}/{UUID_MAP}"),
            Some((_, "bcsymbolmap")) => format!("maps/{SYMBOL_MAP}"),
            Some((_, "il2cpp")) => "maps/crash.il2cpp".to_owned(),
            _ => format!("maps/{RESOURCES}/DWARF/crash"),
        };
        std::fs::copy(fixture(&of_fixture), folder.path().join(name)).unwrap();
    }
    let frame = json!({"instruction_addr": "0x100001000"});
    let report = json!({"modules": [module], "stacktraces": [{"frames": [frame]}]});
    let path = folder.path().display().to_string();
    let url = service.url();
    let arguments = ["symbolicate", "-", "--fix", &path, "--url", &url];
    let ended = run_with(report.to_string().as_bytes(), &arguments);
    let stored = stored.lock().unwrap();
    let uploaded = stored.files.keys().cloned().collect();
    (uploaded, ended.err.replace(&path, "BUILD"))
}

/// Files in a folder: the maps of the program, and those of others.
const MAPS: [&str; 5] = [
    UUID_MAP,
    SYMBOL_MAP,
    "11111111-2222-3333-4444-555555555555.plist",
    "11111111-2222-3333-4444-555555555555.bcsymbolmap",
    "other.il2cpp",
];

#[test]
fn fixing_uploads_the_uuid_map_that_a_response_names_and_the_symbol_map_that_it_names() {
    let detail = format!(
        "its names are hidden: upload its UUID map, {HIDDEN}.plist (in Contents/Resources of the \
         dSYM), and the symbol map that this names (<UUID>.bcsymbolmap)"
    );
    let (uploaded, said) = fixed("found", &detail, &MAPS);
    assert_eq!(uploaded, [SYMBOL_MAP, UUID_MAP], "{said}");
    assert!(said.contains("sent 2 ("), "{said}");
}

#[test]
fn fixing_uploads_the_symbol_map_that_a_response_names() {
    let detail =
        format!("its names are hidden: upload its symbol map, {SYMBOL_MAP_ID}.bcsymbolmap");
    let (uploaded, said) = fixed("found", &detail, &MAPS);
    assert_eq!(uploaded, [SYMBOL_MAP], "{said}");
    let (uploaded, said) = fixed("found", &detail, &MAPS[2..]);
    assert_eq!(uploaded, Vec::<String>::new());
    assert_eq!(said, "/app/crash: no map that it lacks is under BUILD\n");
}

#[test]
fn fixing_uploads_the_maps_of_a_missing_module_with_its_file() {
    let with_program = [&MAPS[..], &["app.debug"]].concat();
    let (uploaded, said) = fixed("missing", "no file", &with_program);
    assert_eq!(uploaded, [SYMBOL_MAP, UUID_MAP, "app.debug"], "{said}");
    let (uploaded, said) = fixed("missing", "no file", &MAPS);
    assert_eq!(uploaded, Vec::<String>::new());
    assert_eq!(said, "/app/crash: no file under BUILD has its id\n");
}
