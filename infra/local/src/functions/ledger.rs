//! The list of live function processes, which survives the stack in a file and in a watchdog
//! process.
//!
//! 1. A process group is added right after its leader was started, and removed once all of it has
//!    ended.
//! 2. The watchdog reads the same lines from a pipe. When the pipe closes, however the stack died,
//!    it kills the groups that are still listed, and all processes whose `TMPDIR` is in the run's
//!    folder (a process may have been started but not yet listed).
//! 3. The next stack on the same data folder does the same with the files of earlier runs, in case
//!    the watchdog died too.
//!
//! A function process cannot detect the end of the stack by itself, because it is stopped between
//! invocations.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;

use super::groups::{Group, kill_leftovers};

/// The name of the list in the folder of a run.
const FILE_NAME: &str = "groups";

/// The maximum number of rounds in which leftover processes are killed.
const SWEEP_ROUNDS: usize = 100;

/// The live process groups of one run of the stack.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    folder: PathBuf,
    entries: Arc<Mutex<Entries>>,
    count: watch::Sender<usize>,
}

#[derive(Debug)]
struct Entries {
    live: BTreeSet<Group>,
    file: File,
    watchdog: Option<Child>,
    closing: bool,
}

impl Ledger {
    /// Opens a list in the new folder `folder`, and starts the watchdog if a binary is given.
    pub(crate) fn open(folder: &Path, watchdog: Option<&Path>) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut file = File::create_new(folder.join(FILE_NAME))?;
        writeln!(file, "boot {}", boot_id())?;
        let watchdog = match watchdog {
            None => None,
            Some(binary) => {
                use std::os::unix::process::CommandExt;
                // A group of its own, so that Ctrl-C in the terminal does not end it before its
                // work is done.
                let child = Command::new(binary)
                    .arg("watchdog")
                    .arg(folder)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .process_group(0)
                    .spawn()?;
                Some(child)
            }
        };
        let entries = Entries {
            live: BTreeSet::new(),
            file,
            watchdog,
            closing: false,
        };
        Ok(Self {
            folder: folder.to_owned(),
            entries: Arc::new(Mutex::new(entries)),
            count: watch::Sender::new(0),
        })
    }

    /// Returns the folder of this run. The `TMPDIR` of every function process is below it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a group. Kills it if the stack is stopping.
    pub(crate) fn add(&self, group: Group) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.live.insert(group);
        entries.write(&format!("+ {group}\n"));
        if entries.closing {
            group.signal(Signal::KILL);
        }
        self.count.send_replace(entries.live.len());
    }

    /// Removes a group.
    pub(crate) fn remove(&self, group: Group) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.live.remove(&group);
        entries.write(&format!("- {group}\n"));
        self.count.send_replace(entries.live.len());
    }

    /// Kills every listed group, and each that is added later. Waits until the list is empty.
    pub(crate) async fn kill_all(&self) {
        {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.closing = true;
            for group in &entries.live {
                group.signal(Signal::KILL);
            }
        }
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Ends the watchdog and removes the folder of the run. Blocks until both are done.
    pub(crate) fn close(&self) {
        let watchdog = self
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .watchdog
            .take();
        if let Some(mut watchdog) = watchdog {
            drop(watchdog.stdin.take());
            let _ = watchdog.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Entries {
    fn write(&mut self, line: &str) {
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            tracing::warn!(%error, "cannot write list of function processes");
        }
        if let Some(pipe) = self
            .watchdog
            .as_mut()
            .and_then(|watchdog| watchdog.stdin.as_mut())
            && let Err(error) = pipe.write_all(line.as_bytes())
        {
            tracing::warn!(%error, "watchdog ended; function processes will outlive the stack if it is killed");
        }
    }
}

/// Runs the watchdog: reads the list from `input` to its end, then kills the leftover processes and
/// removes `folder`.
pub fn watch_over(folder: &Path, input: impl BufRead) {
    let live = read_list(input);
    sweep(&live, folder);
    let _ = std::fs::remove_dir_all(folder);
}

/// Kills leftover processes of earlier runs under `folder`, and removes the folders of the runs.
/// Returns the number of killed processes.
pub(crate) fn end_earlier_runs(folder: &Path) -> usize {
    let mut killed = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let run = entry.path();
        let live = match File::open(run.join(FILE_NAME)) {
            Ok(file) => read_list(io::BufReader::new(file)),
            Err(_) => BTreeSet::new(),
        };
        killed += sweep(&live, &run);
        let _ = std::fs::remove_dir_all(&run);
    }
    killed
}

fn sweep(live: &BTreeSet<Group>, folder: &Path) -> usize {
    let mut killed = 0;
    for _ in 0..SWEEP_ROUNDS {
        match kill_leftovers(live, folder) {
            0 => break,
            some => killed += some,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    killed
}

/// Returns the groups that were added and not removed in `input`. A list from before the last boot
/// is empty, because its ids are no longer valid.
fn read_list(input: impl BufRead) -> BTreeSet<Group> {
    let mut live = BTreeSet::new();
    for line in input.lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("boot", id)) if id != boot_id() => return BTreeSet::new(),
            Some(("+", group)) => live.extend(group.parse::<Group>()),
            Some(("-", group)) => {
                if let Ok(group) = group.parse() {
                    live.remove(&group);
                }
            }
            _ => {}
        }
    }
    live
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_group_is_not_in_the_list() {
        let live = read_list("+ 10 100\n+ 11 101\n- 10 100\n".as_bytes());
        assert_eq!(
            live,
            BTreeSet::from([Group {
                id: 11,
                started: 101
            }])
        );
    }

    #[test]
    fn a_list_from_before_the_machine_started_is_empty() {
        assert!(read_list("boot another\n+ 10 100\n".as_bytes()).is_empty());
    }

    #[test]
    fn a_line_that_was_cut_short_is_skipped() {
        assert!(read_list("+ 10".as_bytes()).is_empty());
    }
}
