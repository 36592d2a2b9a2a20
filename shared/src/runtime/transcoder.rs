//! The supervisor process of a transcoder.
//!
//! It starts the tool under limits, in a process group that no process can leave. It kills the
//! group when the group uses too much, or when the function that waits for it is gone. It reports
//! the end of the tool as shells do: its exit code, or 128 plus the number of the signal that
//! killed it.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use procfs::process::all_processes;
use rustix::process::{Resource, Signal, getpgrp, kill_current_process_group};

use super::chain;
use super::sandbox::{self, lower};
pub use crate::adapters::parser::transcoder::COMMAND;
use crate::adapters::parser::transcoder::{SIGNALLED, ToolLimits};

/// The most processes of a tool at a time, including its helpers.
const MAX_PROCESSES: usize = 64;

/// Interval at which the group's resource usage is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs a tool. `arguments` are those after [`COMMAND`]: the limits as JSON, the tool, and its
/// arguments.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let limits = arguments
        .next()
        .and_then(|json| serde_json::from_str(json.to_str()?).ok());
    let (Some(limits), Some(tool)) = (limits, arguments.next()) else {
        eprintln!("{COMMAND} is an internal command of this program: it starts a transcoder");
        return ExitCode::FAILURE;
    };
    if let Err(error) = limit(limits) {
        eprintln!("cannot set the limits of the transcoder: {error}");
        return ExitCode::FAILURE;
    }
    match run(&tool, arguments, limits) {
        Ok(status) => ended(status),
        Err(error) => {
            eprintln!("cannot run {}: {error}", tool.display());
            ExitCode::FAILURE
        }
    }
}

/// Sets the limits that apply to each process and are inherited.
fn limit(limits: ToolLimits) -> io::Result<()> {
    lower(Resource::Data, limits.memory_bytes)?;
    lower(Resource::Cpu, limits.cpu_seconds)?;
    lower(Resource::Fsize, limits.file_bytes)?;
    lower(Resource::Core, 0)?;
    match sandbox::stay_in_group() {
        Err(error) if limits.needs_seccomp => Err(io::Error::other(chain(&error))),
        _ => Ok(()),
    }
}

fn run(
    tool: &OsString,
    arguments: impl Iterator<Item = OsString>,
    limits: ToolLimits,
) -> io::Result<ExitStatus> {
    thread::Builder::new().spawn(end_with_parent)?;
    let mut child = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()?;
    thread::Builder::new().spawn(move || {
        loop {
            thread::sleep(LOOK_EVERY);
            if let Err(problem) = look(limits) {
                eprintln!("{problem}");
                end();
            }
        }
    })?;
    child.wait()
}

/// Waits until the parent closes its end of standard input, which also happens when the parent
/// ends.
fn end_with_parent() {
    let mut nothing = [0];
    // A read error means the same as the end of the input.
    while let Ok(1) = io::stdin().read(&mut nothing) {}
    end();
}

/// Kills the group, including this process.
fn end() {
    // It cannot fail: the group contains this process.
    let _ = kill_current_process_group(Signal::KILL);
}

/// Checks what the processes of the group use together; returns the limit that is exceeded.
fn look(limits: ToolLimits) -> Result<(), String> {
    let group = getpgrp().as_raw_nonzero().get();
    // Without /proc, only the limits of each process apply.
    let members = all_processes().into_iter().flatten().filter_map(|process| {
        let about = process.ok()?.stat().ok()?;
        (about.pgrp == group).then_some(about)
    });
    let pages: Vec<u64> = members.map(|about| about.rss).collect();
    // This process does not count.
    let processes = pages.len().saturating_sub(1);
    if processes > MAX_PROCESSES {
        return Err(format!(
            "it runs {processes} processes; the limit is {MAX_PROCESSES}"
        ));
    }
    let bytes = pages
        .iter()
        .sum::<u64>()
        .saturating_mul(procfs::page_size());
    if bytes > limits.memory_bytes {
        let limit = limits.memory_bytes;
        return Err(format!("it uses more than {limit} bytes of memory"));
    }
    Ok(())
}

fn ended(status: ExitStatus) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => SIGNALLED + signal,
        (None, None) => 1,
    };
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
