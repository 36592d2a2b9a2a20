//! `check`: what it finds in files, and how it ends.

use std::fs::File;
use std::io::Read;
use std::process::Command;

use crate::{fixture, run};

/// Returns a file out of a zip.
fn member(archive: &str, name: &str) -> Vec<u8> {
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
        "maps/crash.dSYM/Contents/Resources/F9D1D247-0CA9-55DF-AB9D-50D65C32A93D.plist",
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
    paths.push(without_shared.display().to_string());
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
