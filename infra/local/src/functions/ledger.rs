//! The list of live function processes, kept where it survives the stack: in a file and in a watchdog process.
//!
//! 1. A process group is written down right after its leader was started, and crossed out once all of it is gone.
//! 2. The watchdog reads the same lines from a pipe. When the pipe closes, however the stack died, it kills what is not crossed
//!    out and what carries the run's folder in `TMPDIR` (a process may be started and not yet be written down).
//! 3. Whoever starts next on the same data folder does the same with the files that earlier runs left, in case the watchdog died too.
//!
//! A function process cannot be trusted to notice by itself that the stack is gone: between invocations it is stopped.

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

/// The name of the list in a run's folder.
const FILE_NAME: &str = "groups";

/// How long killing leftovers goes on while something is still found.
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
    /// Opens a list in the new folder `folder`, and starts the watchdog if there is a binary for it.
    pub(crate) fn open(folder: &Path, watchdog: Option<&Path>) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut file = File::create_new(folder.join(FILE_NAME))?;
        writeln!(file, "boot {}", boot_id())?;
        let watchdog = match watchdog {
            None => None,
            Some(binary) => {
                use std::os::unix::process::CommandExt;
                // A group of its own: Ctrl-C in the terminal must not reach it before it has done its work.
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

    /// The folder of this run: every function process has a `TMPDIR` below it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a group down; kills it if all are being killed.
    pub(crate) fn add(&self, group: Group) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.live.insert(group);
        entries.write(&format!("+ {group}\n"));
        if entries.closing {
            group.signal(Signal::KILL);
        }
        self.count.send_replace(entries.live.len());
    }

    /// Crosses a group out.
    pub(crate) fn remove(&self, group: Group) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.live.remove(&group);
        entries.write(&format!("- {group}\n"));
        self.count.send_replace(entries.live.len());
    }

    /// Kills every group of the list, and each that is added from now on; waits until all are crossed out.
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

    /// Lets the watchdog end and removes the run's folder. Blocks for the moment that takes.
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
            tracing::warn!(%error, "cannot write down which function processes live");
        }
        if let Some(pipe) = self
            .watchdog
            .as_mut()
            .and_then(|watchdog| watchdog.stdin.as_mut())
            && let Err(error) = pipe.write_all(line.as_bytes())
        {
            tracing::warn!(%error, "the watchdog is gone: if the stack is killed, function processes stay behind");
        }
    }
}

/// What the watchdog does: reads the list from `input` until it ends, then kills what is left and removes `folder`.
pub fn watch_over(folder: &Path, input: impl BufRead) {
    let live = read_list(input);
    sweep(&live, folder);
    let _ = std::fs::remove_dir_all(folder);
}

/// Kills what earlier runs under `folder` left, and removes their folders.
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

/// The groups that `input` has and has not crossed out. A list from before the machine started is empty: its ids mean nothing now.
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
    fn what_is_crossed_out_is_not_left() {
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
