//! `check`: what it finds in files, and how it ends.

use std::fs::File;
use std::io::Read;
use std::process::Command;

use crate::{debug_file_without_id, fixture, run};

/// Returns a file out of a zip.
pub(crate) fn member(archive: &str, name: &str) -> Vec<u8> {
    let mut archive = zip::ZipArchive::new(File::open(fixture(archive)).unwrap()).unwrap();
    let mut bytes = Vec::new();
    let mut member = archive.by_name(name).unwrap();
    member.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn check_shows_the_ids_and_the_problems_of_files() {
    let names = [
        "elf/crash",
        "elf/crash.debug",
        "elf/no-build-id.so",
        "pe/x64/crash.pdb",
        "zoo/split-alone",
        "maps/crash.dSYM",
        "maps/4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap",
        "zoo/split-packaged.zip",
        "hostile/cut-short.debug",
        "hostile/bits-flipped.debug",
        "elf/crash-arm64",
    ];
    let mut paths = names.map(fixture).to_vec();
    let unpacked = tempfile::tempdir().unwrap();
    let without_shared = unpacked.path().join("without-shared");
    std::fs::write(&without_shared, member("zoo/shared.zip", "first")).unwrap();
    std::fs::write(unpacked.path().join("notes.txt"), "not a debug file").unwrap();
    paths.push(unpacked.path().display().to_string());
    let mut arguments = vec!["check"];
    arguments.extend(paths.iter().map(String::as_str));
    let folder = fixture("elf").replace("/elf", "");
    let unpacked = unpacked.path().display().to_string();
    let shown = |text: String| {
        text.replace(&folder, "FIXTURES")
            .replace(&unpacked, "UNPACKED")
    };
    let ended = run(&arguments);
    assert_eq!((ended.code, ended.err.as_str()), (3, ""));
    insta::assert_snapshot!("check", shown(ended.out));
    arguments.push("--json");
    insta::assert_snapshot!("check_json", shown(run(&arguments).out));
    let good = run(&["check", &paths[3]]);
    assert_eq!(good.code, 0, "{}", good.out);
    let required = run(&["check", &paths[3], "--require", "sources,debug"]);
    assert_eq!(required.code, 3);
    assert!(required.out.contains("no sources"), "{}", required.out);
}

#[test]
fn a_machine_that_is_not_unwound_is_no_problem_of_a_file_with_names() {
    let path = fixture("zoo/riscv64");
    let ended = run(&["check", &path]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let note = "  - not_unwound: unwinding is not supported on RISC-V\n";
    assert!(ended.out.contains(note), "{}", ended.out);
    let ended = run(&["check", &path, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let file = &json["files"][0];
    assert_eq!(file["problems"], serde_json::json!([]));
    assert_eq!(file["notes"][0]["cause"], "not_unwound");
    assert_eq!(
        file["objects"][0]["usable_as"],
        serde_json::json!(["symcache"])
    );
    let required = run(&["check", &path, "--require", "unwind"]);
    assert_eq!(required.code, 3);
    assert!(
        required.out.contains("  ! not_unwound: "),
        "{}",
        required.out
    );
}

#[test]
fn a_program_that_is_linked_to_an_address_is_shown_with_it() {
    let base = |name: &str| {
        let json = run(&["check", "--json", &fixture(name)]).out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["files"][0]["base"].clone()
    };
    assert_eq!(base("zoo/riscv64"), "0x00010000");
    assert_eq!(base("elf/inventory"), "0x00200000");
    assert_eq!(base("elf/crash"), serde_json::Value::Null);
    assert_eq!(base("pe/x64/crash.pdb"), serde_json::Value::Null);
    let text = run(&["check", &fixture("zoo/riscv64")]).out;
    let line = "    base 0x00010000: image_addr of a module that is not moved\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_debug_file_without_any_id_has_no_computed_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.debug");
    std::fs::write(&path, debug_file_without_id()).unwrap();
    let ended = run(&["check", &path.display().to_string()]);
    assert_eq!(ended.code, 3);
    assert!(ended.out.contains("  ! ignored: "), "{}", ended.out);
    assert!(!ended.out.contains("no_build_id"), "{}", ended.out);
}

#[test]
fn an_error_in_breakpad_symbols_is_one_readable_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sym");
    let symbols = b"MODULE Linux x86_64 502FC0A51EC13E479998684FA139DCA70 app\n\
                    FUNC 10 10 0 main\n10 4 1 0\nSTACK CFI INIT zz\0 10 .cfa: $rsp 8 +\n";
    std::fs::write(&path, symbols).unwrap();
    let ended = run(&["check", "--json", &path.display().to_string()]);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let detail = json["files"][0]["problems"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("line 4, column "), "{detail}");
    assert!(detail.contains("expected a hexadecimal digit"), "{detail}");
    assert!(!detail.contains(char::is_control), "{detail:?}");
}

#[test]
fn check_survives_every_hostile_file() {
    let folder = fixture("hostile");
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path().display().to_string();
        let ended = run(&["check", &path]);
        // A file of which only a part is malicious may have other parts of use.
        assert!([0, 3].contains(&ended.code), "{path}: {}", ended.err);
        assert!(ended.out.starts_with(&path), "{path}: {}", ended.out);
    }
}

/// The memory that the programs of a test may use, in KiB: enough for the program itself, and less
/// than what the bomb unpacks to.
const MEMORY_KIB: &str = "786432";

#[test]
fn a_file_that_needs_more_memory_than_there_is_cannot_be_read_and_ends_nothing_else() {
    let limited = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
    let (bomb, good) = (
        fixture("hostile/bomb-1-gib.zst"),
        fixture("pe/x64/crash.pdb"),
    );
    let ended = Command::new("sh")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_symdepot")])
        .args(["check", "--json", &bomb, &good])
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    let json: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let problems = json["files"][0]["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 1, "{json:#}");
    assert_eq!(problems[0]["cause"], "unreadable");
    let detail = problems[0]["detail"].as_str().unwrap();
    assert!(
        detail.contains("the parser ended with signal 6"),
        "{detail}"
    );
    assert_eq!(json["files"][1]["path"], good, "{json:#}");
    assert_eq!(json["files"][1]["problems"], serde_json::json!([]));
}
