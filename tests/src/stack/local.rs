//! A stack that a test or a benchmark starts.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use local_stack::latency::Latency;
use tokio::process::{Child, Command};

use super::permissions::Watch;
use super::{Addresses, Binaries, Client, PATIENCE, Process, StackError, template, until};

/// The name of the stack, which begins the names of its buckets.
pub const STACK_NAME: &str = "symdepot";

/// The number of log lines in an error.
const LOG_LINES: usize = 20;

/// The programs that a stack consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Programs {
    /// `local-stack`, and one program for each function.
    Separate,
    /// `symdepot serve`, which contains them all.
    One,
}

/// How to start a stack.
#[derive(Clone, Debug)]
pub struct Options {
    binaries: Binaries,
    programs: Programs,
    folder: PathBuf,
    arguments: Vec<String>,
    template: PathBuf,
    expects_denials: bool,
}

impl Options {
    /// Returns the options of a stack with these binaries, whose data and log are in this
    /// directory.
    pub fn new(binaries: Binaries, folder: impl Into<PathBuf>) -> Self {
        Self {
            binaries,
            programs: Programs::Separate,
            folder: folder.into(),
            arguments: Vec::new(),
            template: template(),
            expects_denials: false,
        }
    }

    /// Returns the options of `symdepot serve`, with the template and the log level that it
    /// contains. It refuses what the methods below set. Its data may be that of another stack that
    /// has ended.
    pub fn of_one_program(binaries: Binaries, folder: impl Into<PathBuf>) -> Self {
        let programs = Programs::One;
        Self {
            programs,
            ..Self::new(binaries, folder)
        }
    }

    /// Uses another template, in which functions may lack permissions: calls may be denied.
    #[must_use]
    pub fn template(mut self, path: impl Into<PathBuf>) -> Self {
        self.template = path.into();
        self.expecting_denials()
    }

    /// Lets the test cause calls that are denied to functions. Its record is not kept.
    #[must_use]
    pub fn expecting_denials(mut self) -> Self {
        self.expects_denials = true;
        self
    }

    /// Sets a parameter of the template.
    #[must_use]
    pub fn parameter(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.arguments
            .extend(["--parameter".to_owned(), format!("{name}={value}")]);
        self
    }

    /// Sets a variable of all functions, overriding the template.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.arguments
            .extend(["--override".to_owned(), format!("{name}={value}")]);
        self
    }

    /// Sets the timeout of a function in seconds, overriding the template.
    #[must_use]
    pub fn timeout(mut self, function: &str, seconds: u64) -> Self {
        self.arguments.extend([
            "--override-timeout".to_owned(),
            format!("{function}={seconds}"),
        ]);
        self
    }

    /// Limits each function to this number of processes; further calls wait.
    #[must_use]
    pub fn concurrency(mut self, processes: usize) -> Self {
        self.arguments
            .extend(["--concurrency".to_owned(), processes.to_string()]);
        self
    }

    /// Limits the invocations of all functions together, as an account does; further requests are
    /// refused.
    #[must_use]
    pub fn account_concurrency(mut self, runs: usize) -> Self {
        self.arguments
            .extend(["--account-concurrency".to_owned(), runs.to_string()]);
        self
    }

    /// Limits the queue events that one function processes at the same time, which is otherwise
    /// limited by the processors of this machine.
    #[must_use]
    pub fn event_concurrency(mut self, events: usize) -> Self {
        self.arguments
            .extend(["--event-concurrency".to_owned(), events.to_string()]);
        self
    }

    /// Delays the responses of the services to the functions.
    #[must_use]
    pub fn latency(mut self, latency: Latency) -> Self {
        self.arguments
            .extend(["--latency".to_owned(), latency.to_string()]);
        self
    }

    /// Returns the directory of the data and of the log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("stack.log")
    }

    fn program(&self) -> PathBuf {
        self.binaries.get(match self.programs {
            Programs::Separate => "local-stack",
            Programs::One => "symdepot",
        })
    }

    /// Returns the command that starts this stack and writes its output to the log.
    ///
    /// # Errors
    /// [`StackError::File`] if the log cannot be written.
    pub fn command(&self) -> Result<Command, StackError> {
        let path = self.log();
        let unusable = |source| StackError::File {
            path: path.clone(),
            source,
        };
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(unusable)?;
        let mut command = Command::new(self.program());
        match self.programs {
            Programs::One => command.arg("serve"),
            Programs::Separate => command
                .arg("--template")
                .arg(&self.template)
                .args(["--stack-name", STACK_NAME])
                .arg("--functions")
                .arg(self.binaries.folder()),
        };
        command
            .args(["--port", "0", "--data"])
            .arg(self.data())
            .args(&self.arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(unusable)?)
            .stderr(log)
            .kill_on_drop(true);
        Ok(command)
    }
}

/// A stack in its own process, which is killed on drop.
#[derive(Debug)]
pub struct LocalStack {
    options: Options,
    child: Child,
    client: Client,
    watch: Watch,
}

impl LocalStack {
    /// Starts a stack, and waits until it is ready.
    ///
    /// # Errors
    /// [`StackError::Ended`] with the end of the log if it does not start.
    pub async fn start(options: Options) -> Result<Self, StackError> {
        let path = options.data().join("stack.json");
        let mut child = options
            .command()?
            .spawn()
            .map_err(|source| StackError::File {
                path: options.program(),
                source,
            })?;
        let pid = child.id();
        // The file of an earlier stack that was killed has the id of another process.
        let ready = until("the start of the stack", PATIENCE, async || {
            match child.try_wait() {
                Ok(Some(status)) => Some(Err(StackError::Ended {
                    status,
                    log: last_lines(&options.log()),
                })),
                Ok(None) => Addresses::read(&path)
                    .ok()
                    .filter(|addresses| Some(addresses.pid) == pid)
                    .map(Ok),
                Err(source) => Some(Err(StackError::File {
                    path: path.clone(),
                    source,
                })),
            }
        });
        let addresses = ready.await??;
        Ok(Self {
            client: Client::new(addresses)?,
            watch: Watch::over(&options.data(), options.expects_denials),
            options,
            child,
        })
    }

    /// Returns the client of the stack.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the options that the stack was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the process of the stack and all its descendants.
    pub fn processes(&self) -> Vec<Process> {
        self.child.id().map(Process::tree).unwrap_or_default()
    }

    /// Kills the stack as `kill -9` does, without cleanup. Returns its processes.
    ///
    /// # Errors
    /// [`StackError::File`] if it cannot be killed.
    pub async fn kill(&mut self) -> Result<Vec<Process>, StackError> {
        let processes = self.processes();
        let failed = |source| StackError::File {
            path: PathBuf::from("/proc"),
            source,
        };
        self.child.kill().await.map_err(failed)?;
        Ok(processes)
    }

    /// Starts the stack again in the same directory.
    ///
    /// # Errors
    /// As [`LocalStack::start`].
    pub async fn restart(self) -> Result<Self, StackError> {
        let Self {
            options,
            child,
            watch,
            ..
        } = self;
        drop((child, watch));
        Self::start(options).await
    }

    /// Stops the stack as Ctrl-C does, and waits until it has ended.
    ///
    /// # Errors
    /// [`StackError::TooLate`] if it does not end.
    pub async fn stop(mut self) -> Result<(), StackError> {
        if let Some(pid) = self
            .child
            .id()
            .and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let late = |_| StackError::TooLate {
            what: "the end of the stack".to_owned(),
            after: PATIENCE,
        };
        let ended = tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .map_err(late)?;
        ended.map(drop).map_err(|source| StackError::File {
            path: PathBuf::from("/proc"),
            source,
        })
    }

    /// Returns the log of a function so far.
    pub fn log_of(&self, function: &str) -> String {
        let path = self
            .options
            .data()
            .join("logs")
            .join(format!("{function}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

fn last_lines(path: &Path) -> String {
    let log = std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines
        .get(lines.len().saturating_sub(LOG_LINES)..)
        .unwrap_or_default()
        .join("\n")
}
