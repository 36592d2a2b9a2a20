//! A child process of the parser, seen from its parent.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, PipeReader};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use bytes::Bytes;
use command_fds::{CommandFdExt, FdMapping};
use rustix::pipe::fcntl_setpipe_size;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use super::wire::{self, Command, Reply, Start};

/// Bytes kept from the end of a process's standard error.
const LAST_WORDS_BYTES: usize = 4096;

/// The size of the pipe for replies, in bytes. With the usual 64 KiB, the two processes wake each
/// other so often that a blob of 23 MB took 33 ms, and not 19.
const ANSWER_BYTES: usize = 1 << 20;

/// The complete environment of the child.
///
/// One thread frees what another allocates, so threads that share an arena contend for it. Deriving
/// a large file took two fifths longer with one to three arenas than with more, which is one per
/// thread. The thresholds return large allocations to the system when they are freed; with glibc's
/// defaults, that file took a sixth more memory.
const ALLOCATOR_SETTINGS: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "8"),
    ("MALLOC_TRIM_THRESHOLD_", "8388608"),
    ("MALLOC_MMAP_THRESHOLD_", "4194304"),
];

/// A child process. Killed when dropped.
#[derive(Debug)]
pub(super) struct ParserProcess {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    errors: ChildStderr,
    last_words: Vec<u8>,
}

/// How a process ended.
#[derive(Debug)]
pub(super) struct Death {
    pub(super) status: ExitStatus,
    pub(super) last_words: String,
}

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The process ended.
    Died(Death),
    /// Communication with it failed.
    Broken(io::Error),
}

impl ParserProcess {
    /// Starts a process that parses a file. It inherits both files, the pipe for what arrives
    /// later, three further pipes, and nothing else.
    pub(super) fn start(
        executable: &Path,
        start: &Start,
        (dif, unpacked): (&File, &File),
        arrivals: Option<PipeReader>,
    ) -> io::Result<Self> {
        let mut command = std::process::Command::new(executable);
        command
            .arg(wire::COMMAND)
            .arg(serde_json::to_string(start)?);
        command.env_clear().envs(ALLOCATOR_SETTINGS);
        let mut mappings = vec![
            FdMapping {
                parent_fd: dif.try_clone()?.into(),
                child_fd: wire::DIF_DESCRIPTOR,
            },
            FdMapping {
                parent_fd: unpacked.try_clone()?.into(),
                child_fd: wire::UNPACKED_DESCRIPTOR,
            },
        ];
        mappings.extend(arrivals.map(|pipe| FdMapping {
            parent_fd: pipe.into(),
            child_fd: wire::ARRIVALS_DESCRIPTOR,
        }));
        command.fd_mappings(mappings).map_err(io::Error::other)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()?;
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(commands), Some(answers), Some(errors)) => {
                // The system may refuse: then blobs take longer.
                let _ = fcntl_setpipe_size(&answers, ANSWER_BYTES);
                Ok(Self {
                    child,
                    commands,
                    answers: BufReader::new(answers),
                    errors,
                    last_words: Vec::new(),
                })
            }
            _ => Err(io::Error::other("the process has no pipes")),
        }
    }

    /// Sends a command.
    pub(super) async fn send(&mut self, command: &Command) -> Result<(), NoAnswer> {
        let mut line =
            serde_json::to_vec(command).map_err(|error| NoAnswer::Broken(error.into()))?;
        line.push(b'\n');
        let sent = tokio::select! {
            sent = self.commands.write_all(&line) => sent,
            never = drain(&mut self.errors, &mut self.last_words) => match never {},
        };
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(self.end(error).await),
        }
    }

    /// Waits for a reply.
    pub(super) async fn answer(&mut self) -> Result<(Reply, Bytes), NoAnswer> {
        let answer = tokio::select! {
            answer = wire::read_answer(&mut self.answers) => answer,
            never = drain(&mut self.errors, &mut self.last_words) => match never {},
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.end(error).await),
        }
    }

    /// Ends the process after its pipes broke, and returns how it ended.
    async fn end(&mut self, error: io::Error) -> NoAnswer {
        if error.kind() == io::ErrorKind::InvalidData {
            return NoAnswer::Broken(error);
        }
        // A process that is already exiting keeps its own exit status; the kill affects only one
        // that is stuck.
        let killed = self.child.start_kill();
        let status = match killed.and(self.child.wait().await) {
            Ok(status) => status,
            Err(error) => return NoAnswer::Broken(error),
        };
        let mut rest = Vec::new();
        // The pipe ends with the process. Read errors are ignored: the text is only a diagnostic.
        let _ = (&mut self.errors)
            .take(LAST_WORDS_BYTES as u64 * 16)
            .read_to_end(&mut rest)
            .await;
        remember(&mut self.last_words, &rest);
        let last_words = String::from_utf8_lossy(&self.last_words).into_owned();
        NoAnswer::Died(Death { status, last_words })
    }
}

/// Reads a process's standard error, so that the process never blocks on a full pipe. Never
/// returns.
async fn drain(errors: &mut ChildStderr, last_words: &mut Vec<u8>) -> Infallible {
    let mut buffer = [0; 1024];
    loop {
        match errors.read(&mut buffer).await {
            Ok(0) | Err(_) => std::future::pending::<()>().await,
            Ok(read) => remember(last_words, buffer.get(..read).unwrap_or_default()),
        }
    }
}

fn remember(last_words: &mut Vec<u8>, more: &[u8]) {
    last_words.extend_from_slice(more);
    let surplus = last_words.len().saturating_sub(LAST_WORDS_BYTES);
    last_words.drain(..surplus);
}
