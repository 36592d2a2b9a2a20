//! Transcoders: tools that make Microsoft's SymCaches of PDBs. None is ours, and what they write is opaque.
//!
//! What a tool is promised, which is what `symcachegen.exe` expects: it is called with `-pdb <path>`; `_NT_SYMCACHE_PATH` names the folder to
//! write to, `_NT_SYMBOL_PATH` one without anything. It writes `<pdb>/<GUID><age>/<pdb>-v<version>.symcache` there, in any case, and ends
//! with 0. Nothing else of our environment reaches it but where programs are.
//!
//! It runs in a folder of its own, which is removed with everything in it at the end, and in a process group that it cannot leave. A tool
//! that exceeds its time, its memory, its number of processes or its room is killed, with all that it started; so is one whose function
//! ends. What goes wrong is a fault of the PDB, or of the tool: remembered, and reported with its reason.
//!
//! Sources: Microsoft's sample server for SymCaches, `README.md` and what it calls; the Windows Performance Toolkit.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin};

use super::process::ParserLimits;
use crate::adapters::scratch::{ScratchFolder, ScratchSpace};
use crate::cache::Transcoding;
use crate::domain::{Cause, FormatVersion, Location, Missing, MsSymCacheName};
use crate::ports::{Fault, FaultKind, ParseError};

/// The argument that makes the program start a tool under limits.
pub const COMMAND: &str = "start-transcoder";

/// What is added to the number of the signal that killed a tool in the exit code that reports it.
pub const SIGNALLED: i32 = 128;

/// The signals of a process that exceeds its processor time, and of one that writes too long a file: `man 7 signal`.
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// How often it is looked how much a tool has written.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is kept of what a tool says, in bytes.
const LAST_WORDS_BYTES: usize = 2048;

/// The most that a SymCache may have, in bytes: it is in memory on its way.
const MAX_OUTPUT_BYTES: u64 = 1 << 30;

/// What a tool may write over the smallest PDB, in bytes.
const MIN_ROOM_BYTES: u64 = 64 << 20;

/// Where programs are.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The transcoders that are here, one a major version.
#[derive(Clone, Debug, Default)]
pub struct Transcoders {
    tools: Arc<[Transcoder]>,
    time: Duration,
}

/// A transcoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcoder {
    /// The program.
    pub path: PathBuf,
    /// The version that it makes.
    pub version: FormatVersion,
}

/// The limits under which a tool starts, given to the program that starts it as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolLimits {
    /// The longest file that it may write, in bytes.
    pub file_bytes: u64,
    /// Memory that its processes may use together, in bytes; none may allocate more.
    pub memory_bytes: u64,
    /// Processor time that each of its processes may use, in seconds.
    pub cpu_seconds: u64,
    /// Whether it runs only where it can be kept in its process group.
    pub needs_sandbox: bool,
}

impl Transcoders {
    /// Returns these tools, each of which may take so long over a PDB.
    pub fn new(tools: impl Into<Arc<[Transcoder]>>, time: Duration) -> Self {
        Self {
            tools: tools.into(),
            time,
        }
    }

    /// Transcodes a part of a file. `executable` is this program, which starts the tool, under the memory limit of a parser.
    pub(super) async fn run(
        &self,
        (executable, limits): (&Path, ParserLimits),
        scratch: &ScratchSpace,
        (dif, part): (&File, Range<u64>),
        transcoding: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, ParseError> {
        let version = transcoding.version;
        let Some(tool) = self.tools.iter().find(|tool| tool.version == version) else {
            let detail = format!("no transcoder of version {version} is here");
            return Ok(Err(Missing::new(Cause::Unsupported, detail)));
        };
        let pdb_bytes = part.end - part.start;
        // A SymCache is a small part of its PDB; what a tool needs beside it, it may have.
        let room = pdb_bytes
            .saturating_mul(2)
            .clamp(MIN_ROOM_BYTES, MAX_OUTPUT_BYTES);
        // The PDB is in scratch space already.
        let (needed, limit) = (pdb_bytes.saturating_mul(2) + room, scratch.budget().bytes());
        if needed > limit {
            let detail = format!("transcoding it needs {needed} bytes of {limit} of scratch space");
            return Ok(Err(Missing::new(Cause::TooLarge { limit }, detail)));
        }
        let folder = scratch.folder(pdb_bytes + room)?;
        let cannot = |error| {
            let context = format!("preparing a folder for {}", tool.path.display());
            Fault::new(FaultKind::Transient, context).caused_by(error)
        };
        let input = folder.create("pdb").map_err(cannot)?;
        let symbols = folder.create("symbols").map_err(cannot)?;
        let output = folder.create("symcache").map_err(cannot)?;
        let pdb = input.join(&transcoding.pdb);
        let (from, to) = (dif.try_clone().map_err(cannot)?, pdb.clone());
        // What extends leases goes on meanwhile.
        let copied = tokio::task::spawn_blocking(move || ScratchFolder::copy(from, part, &to));
        copied
            .await
            .map_err(io::Error::other)
            .flatten()
            .map_err(cannot)?;

        let limits = ToolLimits {
            file_bytes: room,
            memory_bytes: limits.memory_bytes,
            cpu_seconds: self.time.as_secs().max(1),
            needs_sandbox: limits.needs_sandbox,
        };
        let mut command = std::process::Command::new(executable);
        command
            .arg(COMMAND)
            .arg(serde_json::to_string(&limits).map_err(|error| cannot(error.into()))?)
            .arg(&tool.path)
            .arg("-pdb")
            .arg(&pdb)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", folder.path())
            .env("TMPDIR", folder.path())
            .env("_NT_SYMCACHE_PATH", &output)
            .env("_NT_SYMBOL_PATH", &symbols)
            .current_dir(&input)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .map_err(cannot)?;
        let mut running = Running::new(child);
        let ended = tokio::select! {
            ended = running.end() => ended,
            () = tokio::time::sleep(self.time) => Ended::OutOfTime,
            written = fills(&folder, pdb_bytes + room) => Ended::OutOfRoom { written },
        };
        drop(running);
        let seconds = self.time.as_secs();
        let problem = match ended {
            Ended::ByItself { status, .. } if status.success() => {
                return Ok(result(&output, transcoding));
            }
            Ended::ByItself { status, words } => match signal(status) {
                Some(SIGXFSZ) => format!("wrote a file of more than {room} bytes"),
                Some(SIGXCPU) => format!("used more than {seconds} s of processor time"),
                Some(signal) => format!("was killed by signal {signal}{words}"),
                None => format!("ended with {}{words}", status.code().unwrap_or_default()),
            },
            Ended::OutOfTime => format!("did not end within {seconds} s, and was killed"),
            Ended::OutOfRoom { written } => {
                format!("wrote more than the {room} bytes that it may ({written}), and was killed")
            }
            Ended::Unknown(error) => return Err(cannot(error).into()),
        };
        Ok(Err(failed(tool, &problem)))
    }
}

/// Returns the signal that killed a tool, or the process over it.
fn signal(status: ExitStatus) -> Option<i32> {
    let reported = status.code().map(|code| code - SIGNALLED);
    status.signal().or(reported.filter(|signal| *signal > 0))
}

fn failed(tool: &Transcoder, problem: &str) -> Missing {
    let name = tool.path.file_name().unwrap_or_default().to_string_lossy();
    Missing::malformed(format!("the transcoder {name} {problem}"))
}

/// How a tool ended.
enum Ended {
    ByItself { status: ExitStatus, words: String },
    OutOfTime,
    OutOfRoom { written: u64 },
    Unknown(io::Error),
}

/// A tool at work, killed with all that it started when dropped.
struct Running {
    child: Child,
    /// The process over the tool ends the group when this is closed, as the end of our process does.
    _alive: Option<ChildStdin>,
    group: Option<Pid>,
}

impl Running {
    fn new(mut child: Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self {
            _alive: child.stdin.take(),
            child,
            group: id.and_then(Pid::from_raw),
        }
    }

    /// Waits for the end, and reads what the tool says meanwhile. What it started and goes on ends with it.
    async fn end(&mut self) -> Ended {
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        let status = {
            let mut talk = pin!(async { tokio::join!(listen(out), listen(err)) });
            let mut said = None;
            let status = loop {
                tokio::select! {
                    status = self.child.wait() => break status,
                    all = &mut talk, if said.is_none() => said = Some(all),
                }
            };
            self.kill();
            let (out, err) = match said {
                Some(said) => said,
                None => talk.await,
            };
            status.map(|status| (status, [out, err].concat()))
        };
        let (status, said) = match status {
            Ok(ended) => ended,
            Err(error) => return Ended::Unknown(error),
        };
        let words = String::from_utf8_lossy(&said);
        let last = words.trim().lines().next_back().unwrap_or_default();
        let words = match last {
            "" => String::new(),
            last => format!(": {last}"),
        };
        Ended::ByItself { status, words }
    }

    /// Ends the tool and what it started, once.
    fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            // Nobody may be left in it.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads what a tool says to its end; returns the last of it.
async fn listen(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut said = Vec::new();
    let Some(mut pipe) = pipe else { return said };
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        said.extend_from_slice(buffer.get(..read).unwrap_or_default());
        let surplus = said.len().saturating_sub(LAST_WORDS_BYTES);
        said.drain(..surplus);
    }
    said
}

/// Waits until there is more in a folder than there may be; returns how much.
async fn fills(folder: &ScratchFolder, bytes: u64) -> u64 {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let path = folder.path().to_owned();
        let files = tokio::task::spawn_blocking(move || ScratchFolder::files(&path)).await;
        let written = files
            .unwrap_or_default()
            .iter()
            .map(|(_, bytes)| bytes)
            .sum();
        if written > bytes {
            return written;
        }
    }
}

/// Returns the file that a tool wrote, if it is the one that it was to write.
fn result(output: &Path, transcoding: &Transcoding) -> Result<Bytes, Missing> {
    let files = ScratchFolder::files(output);
    let name = |path: &Path| {
        let relative = path.strip_prefix(output).unwrap_or(path);
        Location::new(relative.to_string_lossy())
    };
    let is_it = |(path, _): &&(PathBuf, u64)| {
        MsSymCacheName::of(&name(path)).is_some_and(|name| {
            // The age may be that of the last time that the PDB was written.
            name.pdb.eq_ignore_ascii_case(&transcoding.pdb)
                && name.debug_id.uuid() == transcoding.debug_id.uuid()
                && name.version == transcoding.version
        })
    };
    let malformed = |problem: String| Err(Missing::malformed(format!("the transcoder {problem}")));
    match (files.iter().find(is_it), files.first()) {
        (Some((_, 0)), _) => malformed("wrote an empty file".to_owned()),
        (Some((_, bytes @ MAX_OUTPUT_BYTES..)), _) => {
            malformed(format!("wrote a file of {bytes} bytes"))
        }
        (Some((path, bytes)), _) => match ScratchFolder::read(path, *bytes) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => malformed(format!("wrote a file that cannot be read: {error}")),
        },
        (None, None) => malformed("ended well and wrote nothing".to_owned()),
        (None, Some((path, _))) => {
            let Transcoding {
                pdb,
                debug_id,
                version,
            } = transcoding;
            let expected = MsSymCacheName {
                pdb: pdb.to_lowercase(),
                debug_id: *debug_id,
                version: *version,
            };
            let found = name(path);
            malformed(format!("wrote {found} instead of {}", expected.path()))
        }
    }
}
