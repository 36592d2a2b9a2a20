//! Runs transcoders: external tools that make Microsoft's SymCaches from PDBs. No tool is part of
//! this project, and their output is opaque.
//!
//! The interface of a tool is the one that `symcachegen.exe` expects. It is called with
//! `-pdb <path>`; `_NT_SYMCACHE_PATH` names the folder to write to, and `_NT_SYMBOL_PATH` an empty
//! folder. The tool writes `<pdb>/<GUID><age>/<pdb>-v<version>.symcache` there, in upper or lower
//! case, and exits with 0. It receives only `PATH` from the environment of this process.
//!
//! The tool runs in a folder of its own, which is removed with its contents at the end, and in a
//! process group that it cannot leave. A tool that exceeds its time, memory, process or disk quota
//! is killed together with all processes that it started. The same happens when the function ends.
//! Failures are attributed to the PDB or to the tool: the reason is stored and reported.
//!
//! Sources: Microsoft's sample server for SymCaches, `README.md` and its calls of
//! `symcachegen.exe`; the Windows Performance Toolkit.

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

use super::limits::ParserLimits;
use crate::adapters::scratch::{ScratchFolder, ScratchSpace};
use crate::cache::Transcoding;
use crate::domain::{Cause, FormatVersion, Location, Missing, MsSymCacheName};
use crate::ports::{Fault, FaultKind, ParseError};

/// The argument that makes the program start a tool under limits.
pub const COMMAND: &str = "start-transcoder";

/// Added to the number of the signal that killed a tool, in the exit code that reports it.
pub const SIGNALLED: i32 = 128;

/// Signals sent on exceeding the CPU time limit and the file size limit: `man 7 signal`.
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// Interval at which the disk usage of a tool is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Bytes kept from the end of a tool's output.
const LAST_WORDS_BYTES: usize = 2048;

/// The largest SymCache, in bytes. It is held in memory.
const MAX_OUTPUT_BYTES: u64 = 1 << 30;

/// The disk quota of a tool for the smallest PDB, in bytes.
const MIN_ROOM_BYTES: u64 = 64 << 20;

/// The search path for programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The configured transcoders, one per major version.
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
    pub needs_seccomp: bool,
}

/// What starts a tool.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolStarter<'a> {
    /// This program, which starts the tool under limits.
    pub(super) executable: &'a Path,
    /// The limits of a parser. The tool has the same memory limit.
    pub(super) limits: ParserLimits,
}

/// A PDB in a DIF.
#[derive(Clone, Debug)]
pub(super) struct PdbRange<'a> {
    /// The file.
    pub(super) file: &'a File,
    /// The bytes of the PDB in the file.
    pub(super) range: Range<u64>,
}

impl Transcoders {
    /// Returns these tools; `time` limits the run of each tool on one PDB.
    pub fn new(tools: impl Into<Arc<[Transcoder]>>, time: Duration) -> Self {
        Self {
            tools: tools.into(),
            time,
        }
    }

    /// Transcodes a PDB.
    pub(super) async fn run(
        &self,
        starter: ToolStarter<'_>,
        scratch: &ScratchSpace,
        pdb: PdbRange<'_>,
        transcoding: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, ParseError> {
        let version = transcoding.version;
        let Some(tool) = self.tools.iter().find(|tool| tool.version == version) else {
            let detail = format!("no transcoder of version {version} is configured");
            return Ok(Err(Missing::new(Cause::Unsupported, detail)));
        };
        let pdb_bytes = pdb.range.end - pdb.range.start;
        let room = match room_for_tool(pdb_bytes, scratch) {
            Ok(room) => room,
            Err(missing) => return Ok(Err(missing)),
        };
        let folder = scratch.folder(pdb_bytes + room)?;
        let cannot = |error| tool.cannot_run(error);
        let folder = ToolFolder::prepare(folder, pdb, &transcoding.pdb)
            .await
            .map_err(cannot)?;
        let limits = ToolLimits {
            file_bytes: room,
            memory_bytes: starter.limits.memory_bytes,
            cpu_seconds: self.time.as_secs().max(1),
            needs_seccomp: starter.limits.needs_seccomp,
        };
        let command = folder.command(starter.executable, tool, &limits);
        let child = tokio::process::Command::from(command.map_err(cannot)?)
            .kill_on_drop(true)
            .spawn()
            .map_err(cannot)?;
        let mut running = Running::new(child);
        let ended = tokio::select! {
            ended = running.end() => ended,
            () = tokio::time::sleep(self.time) => Ended::OutOfTime,
            written = fills(&folder.whole, pdb_bytes + room) => Ended::OutOfRoom { written },
        };
        drop(running);
        let problem = ended.problem(room, self.time.as_secs());
        if let Some(problem) = problem.map_err(cannot)? {
            return Ok(Err(failed(tool, &problem)));
        }
        let (output, transcoding) = (folder.output.clone(), transcoding.clone());
        // Like the copy: a gibibyte is read, and leases are extended meanwhile.
        let read = tokio::task::spawn_blocking(move || result(&output, &transcoding));
        Ok(read.await.map_err(io::Error::other).map_err(cannot)?)
    }
}

impl Transcoder {
    fn cannot_run(&self, error: io::Error) -> Fault {
        let context = format!(
            "preparing a folder for the transcoder {}",
            self.path.display()
        );
        Fault::new(FaultKind::Transient, context).caused_by(error)
    }
}

/// Returns how many bytes a tool may write for a PDB of this size, or why the scratch space is too
/// small for it.
fn room_for_tool(pdb_bytes: u64, scratch: &ScratchSpace) -> Result<u64, Missing> {
    // A SymCache is much smaller than its PDB; the rest of the quota is for temporary files.
    let room = pdb_bytes
        .saturating_mul(2)
        .clamp(MIN_ROOM_BYTES, MAX_OUTPUT_BYTES);
    // The PDB is already in scratch space.
    let (needed, limit) = (pdb_bytes.saturating_mul(2) + room, scratch.budget().bytes());
    if needed > limit {
        let detail =
            format!("transcoding it needs {needed} bytes of scratch space; the limit is {limit}");
        return Err(Missing::new(Cause::TooLarge { limit }, detail));
    }
    Ok(room)
}

/// The folder in which a tool runs.
struct ToolFolder {
    /// The folder that contains all others.
    whole: ScratchFolder,
    /// The folder with the PDB.
    input: PathBuf,
    /// The PDB.
    pdb: PathBuf,
    /// An empty folder.
    symbols: PathBuf,
    /// The folder to write to.
    output: PathBuf,
}

impl ToolFolder {
    /// Creates the folders, and copies the PDB.
    async fn prepare(whole: ScratchFolder, pdb: PdbRange<'_>, name: &str) -> io::Result<Self> {
        let input = whole.create("pdb")?;
        let symbols = whole.create("symbols")?;
        let output = whole.create("symcache")?;
        let copy = input.join(name);
        let (from, range, to) = (pdb.file.try_clone()?, pdb.range, copy.clone());
        // Copying on another thread lets the task that extends leases run meanwhile.
        let copied = tokio::task::spawn_blocking(move || ScratchFolder::copy(from, range, &to));
        copied.await.map_err(io::Error::other).flatten()?;
        Ok(Self {
            whole,
            input,
            pdb: copy,
            symbols,
            output,
        })
    }

    /// Returns the command that starts a tool under these limits.
    fn command(
        &self,
        executable: &Path,
        tool: &Transcoder,
        limits: &ToolLimits,
    ) -> io::Result<std::process::Command> {
        let mut command = std::process::Command::new(executable);
        command
            .arg(COMMAND)
            .arg(serde_json::to_string(limits)?)
            .arg(&tool.path)
            .arg("-pdb")
            .arg(&self.pdb)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", self.whole.path())
            .env("TMPDIR", self.whole.path())
            .env("_NT_SYMCACHE_PATH", &self.output)
            .env("_NT_SYMBOL_PATH", &self.symbols)
            .current_dir(&self.input)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(command)
    }
}

/// Returns the signal that killed a tool or its supervisor process.
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

impl Ended {
    /// Returns what a tool with these quotas did wrong; `None` if it ended successfully.
    fn problem(self, room: u64, seconds: u64) -> io::Result<Option<String>> {
        Ok(Some(match self {
            Self::ByItself { status, .. } if status.success() => return Ok(None),
            Self::ByItself { status, words } => match signal(status) {
                Some(SIGXFSZ) => format!("wrote a file of more than {room} bytes"),
                Some(SIGXCPU) => format!("used more than {seconds} s of processor time"),
                Some(signal) => format!("was killed by signal {signal}{words}"),
                None => format!(
                    "exited with code {}{words}",
                    status.code().unwrap_or_default()
                ),
            },
            Self::OutOfTime => format!("did not finish within {seconds} s and was killed"),
            Self::OutOfRoom { written } => {
                format!("wrote {written} bytes, more than its quota of {room}, and was killed")
            }
            Self::Unknown(error) => return Err(error),
        }))
    }
}

/// A running tool. Dropping it kills the tool and all processes that it started.
struct Running {
    child: Child,
    /// When this is closed, also by the end of this process, the supervisor kills the group.
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

    /// Waits for the tool to end, and reads its output meanwhile. Processes that it started and
    /// left running are killed.
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

    /// Kills the tool and the processes that it started, once.
    fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            // The group may already be empty.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads a tool's output to its end; returns the last bytes.
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

/// Waits until a folder contains more than `bytes`; returns how much it contains.
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

/// Returns the file that a tool wrote, if it is the expected one.
fn result(output: &Path, transcoding: &Transcoding) -> Result<Bytes, Missing> {
    let files = ScratchFolder::files(output);
    let name = |path: &Path| {
        let relative = path.strip_prefix(output).unwrap_or(path);
        Location::new(relative.to_string_lossy())
    };
    let is_it = |(path, _): &&(PathBuf, u64)| {
        MsSymCacheName::of(&name(path)).is_some_and(|name| {
            // Ages are not compared: the tool may use the age of the PDB's last write.
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
        (None, None) => malformed("exited successfully but wrote no file".to_owned()),
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
