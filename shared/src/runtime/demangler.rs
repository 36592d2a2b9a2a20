//! The child process that demangles names which could crash it.
//!
//! It sets its limits, enters the sandbox, and writes one line for each line that it reads until
//! its input ends: see [`adapters::demangler`](crate::adapters::demangler). It has no credentials,
//! files or sockets; a hostile name ends this process only.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use rustix::process::Resource;

use super::sandbox::{self, lower};
pub use crate::adapters::demangler::COMMAND;
use crate::adapters::demangler::LONGEST_ANSWER;
use crate::domain::{IsolatedName, Language};

/// Memory that it may allocate, in bytes.
const MEMORY_BYTES: u64 = 128 << 20;

/// CPU time that it may use, in seconds.
const CPU_SECONDS: u64 = 2;

/// Serves one parent.
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{COMMAND} is an internal command of this program: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    sandbox::die_with_parent();
    for (resource, limit) in [
        (Resource::Data, MEMORY_BYTES),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
        (Resource::Nofile, 8),
    ] {
        lower(resource, limit)?;
    }
    // Where the system permits no filter, the limits suffice for names.
    let _sandbox = sandbox::enter()?;
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        let (language, symbol): (String, String) = serde_json::from_str(&line?)?;
        let name = IsolatedName {
            symbol,
            language: language.parse().unwrap_or(Language::Unknown),
        };
        let mut answer = serde_json::to_vec(&name.demangle())?;
        if answer.len() >= LONGEST_ANSWER {
            // The parent would take a part of it for the end of this process.
            answer = b"null".to_vec();
        }
        answer.push(b'\n');
        // Flushed one by one, so that a crash does not lose finished names.
        out.write_all(&answer)?;
        out.flush()?;
    }
    Ok(())
}
