//! Files that cannot be read, or are too large to be, and paths that are no text.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::service::store;
use crate::{Ended, fixture, run};

/// A user without privileges, who owns no file.
const UNPRIVILEGED: u32 = 65534;

const DENIED: &str = "Permission denied (os error 13)";

/// A folder with a file and a folder that cannot be read, and others that can.
struct Locked {
    folder: TempDir,
}

impl Locked {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let of = |name: &str| folder.path().join(name);
        std::fs::create_dir(of("locked")).unwrap();
        for name in ["applied.debug", "locked/inner.debug", "secret.debug"] {
            std::fs::copy(fixture("elf/crash.debug"), of(name)).unwrap();
        }
        let locked = Self { folder };
        locked.allow(0o000);
        locked
    }

    /// Sets the permissions of what cannot be read.
    fn allow(&self, mode: u32) {
        for path in self.unreadable() {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
    }

    fn path(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn unreadable(&self) -> [PathBuf; 2] {
        ["locked", "secret.debug"].map(|name| self.folder.path().join(name))
    }
}

impl Drop for Locked {
    /// So that the folder can be removed.
    fn drop(&mut self) {
        self.allow(0o700);
    }
}

/// Runs the program as a user whom permissions apply to.
fn run_unprivileged(folder: &Path, arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symdepot"));
    command
        .args(arguments)
        .env_clear()
        .current_dir(folder)
        .stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(UNPRIVILEGED);
    }
    let output = command.output().unwrap();
    Ended {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn check_names_what_it_cannot_read_and_checks_the_rest() {
    let locked = Locked::new();
    let ended = run_unprivileged(locked.folder.path(), &["check", &locked.path()]);
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{}", ended.out);
    for path in locked.unreadable() {
        let expected = format!("{}\n  ! unreadable: {DENIED}\n", path.display());
        assert!(ended.out.contains(&expected), "{}", ended.out);
    }
    let summary = "1 without problems, 2 with problems, 0 other files\n";
    assert!(ended.out.ends_with(summary), "{}", ended.out);
}

#[test]
fn an_upload_skips_what_it_cannot_read_and_sends_the_rest() {
    let locked = Locked::new();
    let (service, stored) = store::start(0);
    let (path, url) = (locked.path(), service.url());
    let arguments = ["upload", &path, "--verbose", "--url", &url];
    let ended = run_unprivileged(locked.folder.path(), &arguments);
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{}", ended.out);
    for path in locked.unreadable() {
        let expected = format!("skipped    {}: {DENIED}\n", path.display());
        assert!(ended.out.contains(&expected), "{}", ended.out);
    }
    assert!(stored.lock().unwrap().files.contains_key("applied.debug"));
}

#[test]
fn find_names_what_it_cannot_read_and_searches_the_rest() {
    let locked = Locked::new();
    let id = "ac456ebc7f4825f4367208b89f51ad481774aae7";
    let arguments = ["find", id, &locked.path()];
    let ended = run_unprivileged(locked.folder.path(), &arguments);
    assert_eq!(ended.code, 3, "{}", ended.err);
    assert_eq!(ended.out, format!("{}/applied.debug\n", locked.path()));
    let skipped = locked.unreadable();
    let skipped = skipped.map(|path| format!("skipped {}: {DENIED}\n", path.display()));
    assert_eq!(ended.err, skipped.concat());
}

#[test]
fn a_path_that_is_no_text_is_printed_with_replacement_characters() {
    let folder = tempfile::tempdir().unwrap();
    for name in [&b"applied.\xff.debug"[..], b"broken.\xff.so", b"notes.\xff"] {
        let mut file = File::create(folder.path().join(OsStr::from_bytes(name))).unwrap();
        let contents = if name.ends_with(b".debug") {
            std::fs::read(fixture("elf/crash.debug")).unwrap()
        } else if name.ends_with(b".so") {
            b"\x7fELF and no more".to_vec()
        } else {
            b"text".to_vec()
        };
        file.write_all(&contents).unwrap();
    }
    let (service, _) = store::start(0);
    let (path, url) = (folder.path().display().to_string(), service.url());
    let ended = run(&["upload", &path, "--json", "--verbose", "--url", &url]);
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{}", ended.out);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    for (list, name) in [
        ("files", "applied.\u{fffd}.debug"),
        ("skipped", "broken.\u{fffd}.so"),
        ("others", "notes.\u{fffd}"),
    ] {
        assert_eq!(json[list][0]["path"], format!("{path}/{name}"), "{list}");
    }
}

#[test]
fn a_file_of_more_than_four_gibibytes_is_read_up_to_the_limit_of_the_service() {
    const FOUR_GIB: u64 = 4 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big.debug");
    std::fs::copy(fixture("elf/crash.debug"), &path).unwrap();
    // The file has holes, so it takes no space.
    let file = File::options().write(true).open(&path).unwrap();
    let check = || run(&["check", &path.display().to_string()]);
    file.set_len(FOUR_GIB + 1).unwrap();
    let large = check();
    assert_eq!((large.code, large.err.as_str()), (0, ""), "{}", large.out);
    file.set_len(2 * FOUR_GIB + 1).unwrap();
    let too_large = check();
    assert_eq!(too_large.code, 3, "{}", too_large.err);
    let expected =
        "big.debug\n  ! unreadable: it has more than 8589934592 bytes, the limit of debug files\n";
    assert!(too_large.out.contains(expected), "{}", too_large.out);
}

#[test]
fn a_program_of_windows_is_found_by_its_short_code_id() {
    let program = fixture("pe/x64/crash.exe");
    let json = run(&["check", "--json", &program]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let id = json["files"][0]["objects"][0]["code_id"].as_str().unwrap();
    assert!(id.len() < 16, "{id}");
    let ended = run(&["find", id, &fixture("pe")]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert!(
        ended.out.lines().any(|path| path == program),
        "{}",
        ended.out
    );
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let command = Command::new(env!("CARGO_BIN_EXE_symdepot"))
        .arg("--help")
        .env_clear()
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(command.status.code(), Some(1));
    let said = String::from_utf8(command.stderr).unwrap();
    assert!(said.contains("cannot write the result"), "{said}");
}
