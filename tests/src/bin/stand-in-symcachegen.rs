//! A stand-in for Microsoft's `symcachegen.exe` in tests: it has the same interface, and its output
//! is no SymCache.
//!
//! The name of the PDB selects a failure (`hangs.pdb`, `fails.pdb`, …). Each call is logged in a
//! file next to the program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use symbolic::common::ByteView;
use symbolic::debuginfo::Object;

/// The version that it claims to write.
const VERSION: &str = "3.1.0";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.as_slice() {
        [option, path] if option == "-pdb" => transcode(Path::new(path)),
        other => Err(format!("usage: -pdb <path>; got {other:?}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            anstream::eprintln!("{problem}");
            ExitCode::from(3)
        }
    }
}

fn transcode(pdb: &Path) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    let name = pdb.file_name().unwrap_or_default().to_string_lossy();
    note(&name).map_err(said)?;
    match name.split(['-', '.']).next().unwrap_or_default() {
        "hangs" => loop {
            std::thread::park();
        },
        "aborts" => std::process::abort(),
        "fails" => return Err("it is one of those that cannot be transcoded".to_owned()),
        "idles" => return Ok(()),
        _ => {}
    }
    let view = ByteView::open(pdb).map_err(said)?;
    let object = Object::parse(&view).map_err(|error| error.to_string())?;
    let id = object.debug_id();
    let folder = std::env::var_os("_NT_SYMCACHE_PATH").ok_or("_NT_SYMCACHE_PATH is not set")?;
    let folder = PathBuf::from(folder)
        .join(&*name)
        .join(id.breakpad().to_string());
    std::fs::create_dir_all(&folder).map_err(said)?;
    let text = format!("stands for the SymCache of {name} {id}\n");
    std::fs::write(folder.join(format!("{name}-v{VERSION}.symcache")), text).map_err(said)
}

/// Logs a call in a file with the name of this program and the extension `.log`.
fn note(name: &str) -> std::io::Result<()> {
    let program = std::env::args_os().next().unwrap_or_default();
    let log = PathBuf::from(program).with_extension("log");
    let mut log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(log)?;
    writeln!(log, "{name}")
}
