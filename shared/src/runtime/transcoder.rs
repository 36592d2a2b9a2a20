//! The process over a transcoder: it starts the tool under limits, in a process group that nothing
//! leaves, and ends the group when it uses too much or when the function that waits for it is gone.
//!
//! It tells how the tool ended as shells do: by its own code, or by 128 and the number of the signal
//! that killed it.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use procfs::process::all_processes;
use rustix::process::{Resource, Signal, getpgrp, kill_current_process_group};

use super::parser::lower;
use super::{chain, sandbox};
pub use crate::adapters::parser::transcoder::COMMAND;
use crate::adapters::parser::transcoder::{SIGNALLED, ToolLimits};

/// Processes that a tool may be at a time, its helpers included.
const MAX_PROCESSES: usize = 64;

/// The time between two looks at what the group uses.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs a tool. `arguments` are those behind [`COMMAND`]: the limits as JSON, the tool, and its arguments.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let limits = arguments
        .next()
        .and_then(|json| serde_json::from_str(json.to_str()?).ok());
    let (Some(limits), Some(tool)) = (limits, arguments.next()) else {
        eprintln!("{COMMAND} is how this program calls itself: it starts the tool that it is told");
        return ExitCode::FAILURE;
    };
    if let Err(error) = limit(limits) {
        eprintln!("cannot set its limits: {error}");
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

/// Sets limits that hold for each process, and are inherited.
fn limit(limits: ToolLimits) -> io::Result<()> {
    lower(Resource::Data, limits.memory_bytes)?;
    lower(Resource::Cpu, limits.cpu_seconds)?;
    lower(Resource::Fsize, limits.file_bytes)?;
    lower(Resource::Core, 0)?;
    match sandbox::stay_in_group() {
        Err(error) if limits.needs_sandbox => Err(io::Error::other(chain(&error))),
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

/// Waits until the parent closes the other end of standard input, as its own end does, too.
fn end_with_parent() {
    let mut nothing = [0];
    // An error means as much.
    while let Ok(1) = io::stdin().read(&mut nothing) {}
    end();
}

/// Ends the group, this process included.
fn end() {
    // It fails where the group is empty, and this process is in it.
    let _ = kill_current_process_group(Signal::KILL);
}

/// Looks at what the processes of the group use together; returns what is too much.
fn look(limits: ToolLimits) -> Result<(), String> {
    let group = getpgrp().as_raw_nonzero().get();
    // Where there is no /proc, the limits of each process remain.
    let members = all_processes().into_iter().flatten().filter_map(|process| {
        let about = process.ok()?.stat().ok()?;
        (about.pgrp == group).then_some(about)
    });
    let pages: Vec<u64> = members.map(|about| about.rss).collect();
    // This process is none of the tool's.
    let processes = pages.len().saturating_sub(1);
    if processes > MAX_PROCESSES {
        return Err(format!(
            "it is {processes} processes, and may be {MAX_PROCESSES}"
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
