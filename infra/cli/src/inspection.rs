//! Inspects a debug file as the service does, in a child process under limits: a parser may need
//! more memory or time than any error value can say.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use symdepot::debuginfo::{self, DifBytes, RoomLimit};
use symdepot::domain::{Inspection, Written};

use crate::error::CliError;
use crate::{Output, files};

/// The maximum size of a debug file, in bytes. It is held in memory.
const FILE_BYTES: u64 = 4 << 30;

/// The maximum number of bytes that are unpacked from an archive.
const UNPACKED_BYTES: u64 = 4 << 30;

/// The maximum address space of the child, in bytes.
const MEMORY_BYTES: u64 = 12 << 30;

/// The maximum processor time of the child, in seconds.
const SECONDS: u64 = 300;

/// Inspects a file in a child process.
///
/// # Errors
///
/// Fails with the reason if the file cannot be read, or if the child exceeds a limit.
pub(crate) fn inspect(path: &Path) -> Result<Inspection, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let output = Command::new(program)
        .arg("inspect-file")
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("the parser cannot be started: {error}"))?;
    if output.status.success() {
        let inspection = serde_json::from_slice(&output.stdout);
        return inspection.map_err(|error| format!("the parser printed something else: {error}"));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(match output.status.signal() {
        Some(signal) => format!(
            "the parser ended with signal {signal}; its limits are {SECONDS} seconds and {MEMORY_BYTES} bytes of memory"
        ),
        None => said.trim().trim_start_matches("symdepot: ").to_owned(),
    })
}

/// Inspects a file in this process, and prints the inspection as JSON.
pub(crate) fn run(path: &Path) -> Result<Output, CliError> {
    limit(Resource::As, MEMORY_BYTES);
    limit(Resource::Cpu, SECONDS);
    // A core of this process is of no use.
    limit(Resource::Core, 0);
    let failed = |reason: String| CliError::File {
        path: path.to_owned(),
        error: std::io::Error::other(reason),
    };
    let dif = files::read(path, "debug files", FILE_BYTES)?;
    debuginfo::keep_panics_quiet();
    let mut unpacked = Vec::new();
    let room = RoomLimit {
        bytes: UNPACKED_BYTES,
        budget: UNPACKED_BYTES,
    };
    let layout =
        debuginfo::caught(|| debuginfo::unpack(&dif, &Written::Whole, &mut unpacked, room));
    let mut layout = layout
        .map_err(failed)?
        .map_err(|error| failed(error.to_string()))?;
    let bytes = DifBytes {
        dif: &dif,
        unpacked: &unpacked,
    };
    let inspection = debuginfo::inspect(&mut layout, bytes);
    let json = serde_json::to_vec(&inspection).map_err(|error| failed(error.to_string()))?;
    Ok(Output::done(json))
}

/// Lowers a limit of this process.
fn limit(resource: Resource, most: u64) {
    let now = getrlimit(resource);
    let lowered = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    let limits = Rlimit {
        current: lowered(now.current),
        maximum: lowered(now.maximum),
    };
    // Lowering a limit is always permitted. Without it, the limits of the caller still hold.
    let _ = setrlimit(resource, limits);
}
