//! Process groups as listed in `/proc`, and how to kill one without hitting an unrelated process.
//!
//! A process id can be reused after its process has ended, so a group is identified by its leader's
//! id *and* start time. While a member of the group lives, the kernel does not reuse the id.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

/// More bytes than `/proc/<pid>/status` has.
const STATUS_BYTES: usize = 16 << 10;

/// A process group, identified by its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// The leader's process id, which is the group's id.
    pub(crate) id: i32,
    /// When the leader started, in clock ticks since boot; 0 if it had ended before this was read.
    pub(crate) started: u64,
}

impl Group {
    /// Returns the group whose leader has just been started as `pid`.
    pub(crate) fn led_by(pid: u32) -> Option<Self> {
        let id = i32::try_from(pid).ok()?;
        let started = stat(id).map_or(0, |stat| stat.started);
        Some(Self { id, started })
    }

    /// Sends `signal` to all members; has no effect if there are none. Only for groups whose leader
    /// is not reaped, or has just been.
    pub(crate) fn signal(self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.id) {
            // The only expected error is that all members have ended.
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Returns whether the leader, a child of this process, has not ended. This is asked before
    /// each event; reading `/proc` would take ten times as long.
    pub(crate) fn leader_lives(self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Pid::from_raw(self.id)
            .is_some_and(|pid| matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Returns whether the id may still belong to this group: its leader is the same process or has
    /// ended.
    fn is_itself(self) -> bool {
        stat(self.id).is_none_or(|stat| stat.started == self.started)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.id, self.started)
    }
}

impl FromStr for Group {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (id, started) = text.split_once(' ').ok_or(())?;
        Ok(Self {
            id: id.parse().map_err(drop)?,
            started: started.trim().parse().map_err(drop)?,
        })
    }
}

/// Kills all members of `groups`, and every process whose `TMPDIR` begins with `marker`, with its
/// group if it leads one. Returns how many signals were sent.
///
/// A process between `fork` and `exec` does not have its own environment yet, so the caller repeats
/// this until it returns 0.
pub(crate) fn kill_leftovers(groups: &BTreeSet<Group>, marker: &Path) -> usize {
    let groups: BTreeSet<i32> = groups
        .iter()
        .filter(|group| group.is_itself())
        .map(|group| group.id)
        .collect();
    let marker = marker.as_os_str().as_encoded_bytes();
    let own = std::process::id();
    let mut killed = 0;
    for pid in pids() {
        if u32::try_from(pid).ok() == Some(own) {
            continue;
        }
        let Some(stat) = stat(pid) else { continue };
        if matches!(stat.state, 'Z' | 'X') {
            continue;
        }
        let marked = std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
            environment.split(|byte| *byte == 0).any(|variable| {
                variable
                    .strip_prefix(b"TMPDIR=")
                    .is_some_and(|folder| folder.starts_with(marker))
            })
        });
        let Some(id) = Pid::from_raw(pid) else {
            continue;
        };
        if marked && stat.group == pid {
            killed += usize::from(kill_process_group(id, Signal::KILL).is_ok());
        } else if marked || groups.contains(&stat.group) {
            killed += usize::from(kill_process(id, Signal::KILL).is_ok());
        }
    }
    killed
}

/// The memory of a process and its descendants, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The largest peak of resident memory of one of them.
    pub(crate) peak_of_one: u64,
    /// The current resident memory of all of them.
    pub(crate) now_of_all: u64,
}

/// Reads the memory of `pid` and its descendants.
pub(crate) fn memory(pid: i32) -> Memory {
    let mut memory = Memory::default();
    let mut pending = vec![pid];
    while let Some(pid) = pending.pop() {
        let of_one = memory_of_one(pid);
        memory.peak_of_one = memory.peak_of_one.max(of_one.peak_of_one);
        memory.now_of_all += of_one.now_of_all;
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let children =
                std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            pending.extend(
                children
                    .split_ascii_whitespace()
                    .filter_map(|child| child.parse::<i32>().ok()),
            );
        }
    }
    memory
}

/// Reads the memory of `pid` without its descendants; none if it has ended.
pub(crate) fn memory_of_one(pid: i32) -> Memory {
    let status = status(pid).unwrap_or_default();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
            .map(|kilobytes| kilobytes * 1024)
    };
    Memory {
        peak_of_one: bytes("VmHWM:").unwrap_or(0),
        now_of_all: bytes("VmRSS:").unwrap_or(0),
    }
}

/// Reads `/proc/<pid>/status`. Its size is unknown, so `std::fs::read_to_string` reads small parts.
fn status(pid: i32) -> io::Result<String> {
    let mut text = Vec::with_capacity(STATUS_BYTES);
    let mut file = File::open(format!("/proc/{pid}/status"))?.take(STATUS_BYTES as u64);
    file.read_to_end(&mut text)?;
    String::from_utf8(text).map_err(io::Error::other)
}

struct Stat {
    state: char,
    group: i32,
    started: u64,
}

/// Reads `/proc/<pid>/stat` (proc(5)): the fields after the name, which may contain spaces and
/// brackets.
fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(16)?.parse().ok()?;
    Some(Stat {
        state,
        group,
        started,
    })
}

fn pids() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_written_and_read_again() {
        let group = Group {
            id: 4711,
            started: 1_234_567,
        };
        assert_eq!(group.to_string().parse(), Ok(group));
    }

    #[test]
    fn the_own_process_is_found_in_proc() {
        let own = i32::try_from(std::process::id()).unwrap();
        let stat = stat(own).unwrap();
        assert!(stat.started > 0);
        assert!(memory(own).peak_of_one > 0);
        assert!(pids().contains(&own));
    }

    #[test]
    fn a_group_whose_leader_started_at_another_time_is_not_itself() {
        let own = i32::try_from(std::process::id()).unwrap();
        let started = stat(own).unwrap().started;
        assert!(Group { id: own, started }.is_itself());
        assert!(
            !Group {
                id: own,
                started: started + 1
            }
            .is_itself()
        );
    }
}
