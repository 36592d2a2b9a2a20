//! Processes as `/proc` shows them: the descendants of a stack, their resource use, and whether
//! they are alive.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A process, identified by its id and start time, because ids are reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its command line.
    pub arguments: Vec<String>,
    started: u64,
}

/// Fields of `/proc/<pid>/stat`.
struct Stat {
    state: char,
    parent: i32,
    ticks: u64,
    started: u64,
}

impl Process {
    /// Returns a process and all its descendants; empty if it has ended.
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

    /// Returns the file name of the program.
    pub fn program(&self) -> &str {
        let path = self.arguments.first().map_or("", String::as_str);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Returns whether the process is alive; a zombie is not.
    pub fn is_alive(&self) -> bool {
        stat(self.pid)
            .is_some_and(|stat| stat.started == self.started && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Returns the CPU time of the process.
    pub fn cpu_time(&self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let ticks = stat(self.pid)
            .filter(|stat| stat.started == self.started)
            .map_or(0, |stat| stat.ticks);
        Duration::from_millis(ticks * 1000 / per_second)
    }

    /// Returns the current and the peak memory in bytes.
    pub fn memory(&self) -> (u64, u64) {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        (
            kilobytes(&status, "VmRSS:") * 1024,
            kilobytes(&status, "VmHWM:") * 1024,
        )
    }

    /// Returns whether the process is frozen, as functions are between invocations.
    pub fn is_frozen(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.started == self.started && stat.state == 'T')
    }

    /// Kills the process as `kill -9` does; a no-op if it has ended.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Stops the process until it is thawed; a no-op if it has ended.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the process; a no-op if it has ended.
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

/// Source: `man 5 proc_pid_stat`. The name of the program is in parentheses, and may contain any
/// character.
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
