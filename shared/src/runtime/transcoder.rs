//! The process that becomes a transcoder: it sets limits that outlive its program, and then runs the tool in its place.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Resource, Signal, set_parent_process_death_signal};

use super::parser::lower;
use crate::adapters::parser::transcoder::ToolLimits;

pub use crate::adapters::parser::transcoder::COMMAND;

/// Runs a tool. `arguments` are those behind [`COMMAND`]: the limits as JSON, the tool, and what it is told.
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
    let error = Command::new(&tool).args(arguments).exec();
    eprintln!("cannot run {}: {error}", tool.display());
    ExitCode::FAILURE
}

fn limit(limits: ToolLimits) -> std::io::Result<()> {
    // It does not outlive whoever waits for it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    lower(Resource::Fsize, limits.file_bytes)?;
    lower(Resource::Core, 0)
}
