//! What is found in folders: a file of each type, and paths that are no text.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::checks::member;
use crate::service::store;
use crate::{fixture, run};

const README: &str = include_str!("../../../../README.md");

/// A file of each supported type, after the words of the README for it: a fixture, or a file in an
/// archive.
const SUPPORTED: [(&str, &str, Option<&str>); 21] = [
    ("ELF", "elf/crash.debug", None),
    (
        "Mach-O",
        "macho/arm64/crash.dSYM/Contents/Resources/DWARF/crash",
        None,
    ),
    (
        "every architecture of a fat file",
        "macho/fat/crash.dSYM/Contents/Resources/DWARF/crash",
        None,
    ),
    ("PE", "pe/x64/crash.exe", None),
    ("PDB", "pe/x64/crash.pdb", None),
    ("portable PDB", "dotnet/Ledger.pdb", None),
    ("Breakpad", "breakpad/crash.sym", None),
    ("WebAssembly", "wasm/crash.wasm", None),
    ("source bundles", "bundle/crash.src.zip", None),
    ("gzip", "containers/crash-arm64.debug.gz", None),
    ("zstd", "containers/crash-arm64.debug.zst", None),
    ("zlib", "containers/crash-arm64.debug.zlib", None),
    ("zip", "containers/crash.dSYM.zip", None),
    ("CAB with a single file", "containers/crash.pd_", None),
    ("`.dwo`", "zoo/split-single.zip", Some("shop.dwo")),
    ("`.dwp`", "zoo/split-packaged.zip", Some("packaged.dwp")),
    (
        "the shared files of `dwz`",
        "zoo/shared.zip",
        Some("shared"),
    ),
    (
        "UUID maps",
        "maps/crash.dSYM/Contents/Resources/F9D1D247-0CA9-55DF-AB9D-50D65C32A93D.plist",
        None,
    ),
    (
        "symbol maps",
        "maps/4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap",
        None,
    ),
    ("line maps of Unity's IL2CPP", "maps/crash.il2cpp", None),
    ("Linux kernel modules", "zoo/kernel-module", None),
];

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Returns the exit code of a dry run of `upload`, and what it prints.
fn would_send(folder: &Path) -> (i32, Value) {
    let (service, _) = store::start(0);
    let path = folder.display().to_string();
    let ended = run(&[
        "upload",
        &path,
        "--dry-run",
        "--json",
        "--url",
        &service.url(),
    ]);
    let printed = serde_json::from_str(&ended.out);
    (
        ended.code,
        printed.unwrap_or_else(|_| panic!("{}", ended.err)),
    )
}

#[test]
fn a_file_of_every_supported_type_is_found_in_a_folder() {
    let (_, section) = README.split_once("\n## Supported files\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let section = section.split_whitespace().collect::<Vec<_>>().join(" ");
    let folder = tempfile::tempdir().unwrap();
    for (number, (words, file, inner)) in SUPPORTED.iter().enumerate() {
        assert!(section.contains(words), "{words}");
        let (name, bytes) = match inner {
            Some(name) => (*name, member(file, name)),
            None => {
                let name = file.rsplit('/').next().unwrap();
                (name, std::fs::read(fixture(file)).unwrap())
            }
        };
        write(folder.path(), &format!("{number}/{name}"), &bytes);
    }
    let (code, printed) = would_send(folder.path());
    assert_eq!(printed["skipped"], json!([]), "{printed:#}");
    assert_eq!(printed["others"], json!([]), "{printed:#}");
    let found = printed["files"].as_array().unwrap().len();
    assert_eq!((code, found), (0, SUPPORTED.len()), "{printed:#}");
}

#[test]
fn other_property_lists_and_json_in_a_folder_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let info = "macho/arm64/crash.dSYM/Contents/Info.plist";
    let info = std::fs::read(fixture(info)).unwrap();
    write(folder.path(), "app.dSYM/Contents/Info.plist", &info);
    write(folder.path(), "package.json", b"{}");
    // Names with an id, as in the folders of build caches.
    let id = "F9D1D247-0CA9-55DF-AB9D-50D65C32A93D";
    write(folder.path(), &format!("{id}.plist"), &info);
    for (name, json) in [
        (id, "{}"),
        ("f9d1d2470ca955dfab9d50d65c32a93d", r#"{"a": 1}"#),
    ] {
        write(folder.path(), &format!("{name}.json"), json.as_bytes());
    }
    // A text that begins like a zlib stream.
    write(folder.path(), "circle.txt", b"x^2 + y^2 = 1");
    let (code, printed) = would_send(folder.path());
    assert_eq!((code, &printed["files"]), (3, &json!([])), "{printed:#}");
    assert_eq!(printed["passed_over"], 6, "{printed:#}");
    assert_eq!(printed["skipped"], json!([]), "{printed:#}");
}

#[test]
fn find_searches_a_folder_whose_name_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(OsStr::from_bytes(b"dir\xff"));
    std::fs::create_dir(&path).unwrap();
    let file = path.join("crash.debug");
    std::fs::copy(fixture("elf/crash.debug"), &file).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_symdepot"))
        .args(["find", "bc6e45ac-487f-f425-3672-08b89f51ad48"])
        .arg(&path)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = [file.as_os_str().as_bytes(), b"\n"].concat();
    assert_eq!(output.stdout, expected, "{output:?}");
}
