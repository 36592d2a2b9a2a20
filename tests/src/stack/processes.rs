//! Processes as `/proc` shows them: who belongs to a stack, how far they are, whether they still
//! live.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A process, known by its id and its start: ids are used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// What it was started as.
    pub arguments: Vec<String>,
    started: u64,
}

/// What `/proc/<pid>/stat` says.
struct Stat {
    state: char,
    parent: i32,
    ticks: u64,
    started: u64,
}

impl Process {
    /// Returns a process with all that descend from it; nothing where it is gone.
    pub fn tree(pid: u32) -> Vec<Self> {
        let all: Vec<(i32, Stat)> = pids().filter_map(|pid| Some((pid, stat(pid)?))).collect();
        let mut members: BTreeSet<i32> = i32::try_from(pid).into_iter().collect();
        loop {
            let before = members.len();
            members.extend(
                all.iter()
                    .filter(|(_, stat)| members.contains(&stat.parent))
                    .map(|(pid, _)| *pid)
                    .collect::<Vec<_>>(),
            );
            if members.len() == before {
                break;
            }
        }
        let is_member = |(pid, stat): &&(i32, Stat)| members.contains(pid) && stat.state != 'Z';
        all.iter()
            .filter(is_member)
            .map(|(pid, stat)| Self {
                pid: *pid,
                arguments: arguments(*pid),
                started: stat.started,
            })
            .collect()
    }

    /// Returns the name of the program, without its folder.
    pub fn program(&self) -> &str {
        let path = self.arguments.first().map_or("", String::as_str);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Tells whether it is still there; one that ended and that nobody has asked about is not.
    pub fn is_alive(&self) -> bool {
        stat(self.pid)
            .is_some_and(|stat| stat.started == self.started && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Returns the CPU time that it has used.
    pub fn cpu_time(&self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let ticks = stat(self.pid)
            .filter(|stat| stat.started == self.started)
            .map_or(0, |stat| stat.ticks);
        Duration::from_millis(ticks * 1000 / per_second)
    }

    /// Returns its present and its largest memory in bytes.
    pub fn memory(&self) -> (u64, u64) {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        (
            kilobytes(&status, "VmRSS:") * 1024,
            kilobytes(&status, "VmHWM:") * 1024,
        )
    }

    /// Tells whether it is frozen, as functions are between invocations.
    pub fn is_frozen(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.started == self.started && stat.state == 'T')
    }

    /// Ends it at once, as `kill -9` does; nothing happens if it is gone.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Stops it until it is thawed; nothing happens if it is gone.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on; nothing happens if it is gone.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if self.is_alive()
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            let _ = kill_process(pid, signal);
        }
    }
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn arguments(pid: i32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}

/// Source: `man 5 proc_pid_stat`. The name of the program stands in brackets and may have anything
/// in it.
fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        ticks: number(11)? + number(12)?,
        started: number(19)?,
    })
}

fn kilobytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok())
        .unwrap_or(0)
}
