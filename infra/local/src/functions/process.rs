//! One process of a function, with its own process group, scratch folder and log pipes, none of
//! which outlives it.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::groups::{Group, Memory, memory, memory_of_one};
use super::ledger::Ledger;
use super::log::{FunctionLog, LastLines};

/// How long the output of a process is still read after its end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A started process. Dropping it kills the process and its children.
#[derive(Debug)]
pub(super) struct Process {
    group: Group,
    exit: watch::Receiver<Option<ExitStatus>>,
    last_lines: LastLines,
}

impl Process {
    /// Starts `binary`. The folder `scratch` must exist; it is removed after the process has ended.
    pub(super) fn start(
        binary: &Path,
        variables: Vec<(String, std::ffi::OsString)>,
        scratch: &Path,
        ledger: &Ledger,
        log: &Arc<FunctionLog>,
    ) -> io::Result<Self> {
        let mut child = Command::new(binary)
            .env_clear()
            .envs(variables)
            .current_dir(scratch)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let group = child
            .id()
            .and_then(Group::led_by)
            .ok_or_else(|| io::Error::other("the process ended before its id was read"))?;
        ledger.add(group);
        let last_lines = LastLines::default();
        let mut pipes = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            let copying = copy_lines(pipe, Arc::clone(log), last_lines.clone());
            pipes.push(tokio::spawn(copying));
        }
        if let Some(pipe) = child.stderr.take() {
            let copying = copy_lines(pipe, Arc::clone(log), last_lines.clone());
            pipes.push(tokio::spawn(copying));
        }
        let (sender, exit) = watch::channel(None);
        let supervised = Supervised {
            group,
            ledger: ledger.clone(),
            scratch: scratch.to_owned(),
        };
        tokio::spawn(async move {
            let status = supervised.wait(&mut child).await;
            for mut pipe in pipes {
                // A child that left the group may keep the pipe open.
                if tokio::time::timeout(LAST_LINES, &mut pipe).await.is_err() {
                    pipe.abort();
                }
            }
            supervised.clean_up().await;
            sender.send_replace(Some(status));
        });
        Ok(Self {
            group,
            exit,
            last_lines,
        })
    }

    /// Returns false once the process has ended and its children, output and scratch folder are
    /// cleaned up.
    pub(super) fn is_alive(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// Returns whether the process can still work. Between its end and the end of its children,
    /// `is_alive` still returns true.
    pub(super) fn lives(&self) -> bool {
        self.is_alive() && self.group.leader_lives()
    }

    /// Waits until the process and its children have ended.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        match self.exit.wait_for(Option::is_some).await {
            Ok(status) => status.unwrap_or_default(),
            Err(_) => ExitStatus::default(),
        }
    }

    /// Returns the last lines that it wrote. After its end they are complete.
    pub(super) fn last_lines(&self) -> &LastLines {
        &self.last_lines
    }

    /// Stops the process, as a sandbox is frozen between invocations.
    pub(super) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the process.
    pub(super) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process and its children.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Returns the memory of the process and its children.
    pub(super) fn memory(&self) -> Memory {
        self.measured(memory)
    }

    /// Returns the memory of the process without its children.
    pub(super) fn own_memory(&self) -> Memory {
        self.measured(memory_of_one)
    }

    fn measured(&self, read: fn(i32) -> Memory) -> Memory {
        if self.is_alive() {
            read(self.group.id)
        } else {
            Memory::default()
        }
    }

    fn signal(&self, signal: Signal) {
        if self.is_alive() {
            self.group.signal(signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The resources to clean up when the process ends.
struct Supervised {
    group: Group,
    ledger: Ledger,
    scratch: std::path::PathBuf,
}

impl Supervised {
    async fn wait(&self, child: &mut Child) -> ExitStatus {
        let status = child.wait().await.unwrap_or_default();
        // Kills children that outlived the process.
        self.group.signal(Signal::KILL);
        status
    }

    async fn clean_up(&self) {
        let scratch = self.scratch.clone();
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(scratch)).await;
        if let Ok(Err(error)) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, folder = %self.scratch.display(), "cannot remove scratch folder of function process");
        }
        self.ledger.remove(self.group);
    }
}

async fn copy_lines(pipe: impl AsyncRead + Unpin, log: Arc<FunctionLog>, last_lines: LastLines) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        match pipe.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let line = String::from_utf8_lossy(&line);
                log.line(line.trim_end_matches(['\n', '\r']), &last_lines);
            }
        }
    }
}
