//! Inspects a debug file and derives its caches as the service does, in a child process under
//! limits: a parser may need more memory or time than any error value can say.

use std::io::Write;
use std::num::NonZeroUsize;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use symdepot::api::advice::Advice;
use symdepot::api::uploads::FILE_BYTES;
use symdepot::debuginfo::{self, DifBytes, RoomLimit, STACK_BYTES, TriedCache};
use symdepot::domain::{CodeId, DebugId, Inspection, ObjectMeta, Written};

use crate::Output;
use crate::error::CliError;
use crate::files::{self, STANDARD_INPUT};

/// The maximum number of bytes that are unpacked from an archive. They are held in memory.
const UNPACKED_BYTES: u64 = FILE_BYTES;

/// The maximum address space of the child, in bytes, besides the file, which is mapped.
const MEMORY_BYTES: u64 = 12 << 30;

/// The maximum processor time of the child, in seconds.
const SECONDS: u64 = 300;

/// What was found out about a file.
#[derive(Debug)]
pub(crate) struct Inspected {
    pub(crate) inspection: Inspection,
    /// For each object, the caches that the service could derive from it. A message says why those
    /// of an object are not known.
    pub(crate) caches: Vec<Result<Vec<TriedCache>, String>>,
}

/// Returns what an object lacks, if that matters.
pub(crate) fn advice(object: &ObjectMeta) -> Option<Advice> {
    let ObjectMeta {
        file_type,
        features,
        code_id,
        fault,
        ..
    } = object;
    Advice::of_object(*file_type, features, code_id.as_ref(), fault.as_ref())
}

/// Inspects a file in a child process, and derives its caches if `derives`.
///
/// # Errors
///
/// Fails with the reason if the file cannot be read, or if the child exceeds a limit before it has
/// inspected the file.
pub(crate) fn inspect(path: &Path, derives: bool) -> Result<Inspected, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = Command::new(program);
    command.arg("inspect-file");
    command.args(derives.then_some("--derive"));
    let stdin = if path == Path::new(STANDARD_INPUT) {
        Stdio::inherit()
    } else {
        Stdio::null()
    };
    let output = command
        .arg("--")
        .arg(path)
        .stdin(stdin)
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("the parser cannot be started: {error}"))?;
    let ending = ending(&output);
    // A line for the inspection, and one for each object. The last may be cut short.
    let mut lines = output.stdout.split_inclusive(|byte| *byte == b'\n');
    let inspection = lines.next().filter(|line| line.ends_with(b"\n"));
    let Some(inspection) = inspection else {
        return Err(ending.unwrap_or_else(|| "the parser printed nothing".to_owned()));
    };
    let foreign = |error: serde_json::Error| format!("the parser printed something else: {error}");
    let inspection: Inspection = serde_json::from_slice(inspection).map_err(foreign)?;
    let mut caches = Vec::new();
    for line in lines.filter(|line| line.ends_with(b"\n")) {
        caches.push(Ok(serde_json::from_slice(line).map_err(foreign)?));
    }
    if derives {
        let unknown = || Err(ending.clone().unwrap_or_default());
        caches.resize_with(inspection.objects.len(), unknown);
    }
    Ok(Inspected { inspection, caches })
}

/// Returns whether an object of a file has one of these ids.
pub(crate) fn has_id(
    inspection: &Inspection,
    debug_id: Option<DebugId>,
    code_id: Option<&CodeId>,
) -> bool {
    inspection.objects.iter().any(|object| {
        let has_code_id = code_id.is_some() && object.code_id.as_ref() == code_id;
        has_code_id || (debug_id.is_some() && object.debug_id == debug_id)
    })
}

/// Returns why a child did not end well.
fn ending(output: &std::process::Output) -> Option<String> {
    if output.status.success() {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Some(match output.status.signal() {
        Some(signal) => format!(
            "the parser ended with signal {signal}; its limits are at most {SECONDS} seconds and {MEMORY_BYTES} bytes of memory"
        ),
        None => said.trim().trim_start_matches("symdepot: ").to_owned(),
    })
}

/// Inspects a file in this process, and prints the inspection as a line of JSON. Then derives the
/// caches of one object after the other, and prints a line for each: the parser may not survive.
/// Errors do not have the path, which the caller knows.
pub(crate) fn run(path: &Path, derives: bool) -> Result<Output, CliError> {
    limit(Resource::Cpu, SECONDS);
    // A core of this process is of no use.
    limit(Resource::Core, 0);
    let opened = files::open(path, "debug files", FILE_BYTES);
    let opened = opened.map_err(|error| CliError::Inspection(error.cause()))?;
    limit(Resource::As, MEMORY_BYTES.saturating_add(opened.bytes));
    let dif = opened.map();
    let dif = dif.map_err(|error| CliError::Inspection(error.to_string()))?;
    debuginfo::keep_panics_quiet();
    // Parsers recurse; the service gives them a stack of this size, too.
    let parsed = std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().stack_size(STACK_BYTES);
        let parser = parser.spawn_scoped(scope, || parse(&dif, derives));
        let parser = parser.map_err(|error| error.to_string())?;
        let ended = parser.join();
        ended.unwrap_or_else(|_| Err("the parser panicked".to_owned()))
    });
    parsed.map_err(CliError::Inspection)?;
    Ok(Output::done(""))
}

fn parse(dif: &[u8], derives: bool) -> Result<(), String> {
    let mut unpacked = Vec::new();
    let room = RoomLimit {
        bytes: UNPACKED_BYTES,
        budget: UNPACKED_BYTES,
    };
    let layout = debuginfo::caught(|| debuginfo::unpack(dif, &Written::Whole, &mut unpacked, room));
    let mut layout = layout?.map_err(|error| error.to_string())?;
    let bytes = DifBytes::complete(dif, &unpacked);
    let inspection = debuginfo::inspect(&mut layout, bytes);
    print(&inspection)?;
    if derives {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        for object in &inspection.objects {
            print(&debuginfo::try_caches(&layout, bytes, object, cores))?;
        }
    }
    Ok(())
}

/// Prints a line of JSON at once.
fn print(value: &impl Serialize) -> Result<(), String> {
    let mut line = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(&line).and_then(|()| out.flush());
    printed.map_err(|error| error.to_string())
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
