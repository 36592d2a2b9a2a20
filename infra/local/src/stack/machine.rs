//! Division of one machine's memory and disk among the processes of the functions.
//!
//! In AWS each process has a machine of its own, and the template's values are for that machine.
//! Here all processes share one machine, so the template marks the variables that are shares of it
//! (`Metadata.MachineShares` of a function):
//!
//! 1. *Total.* Memory is the machine's, or the lowest limit of the control groups that contain this
//!    process. Disk is the free space of the file system of the data folder plus the bytes of the
//!    objects that the folder already contains.
//! 2. *Number of processes.* A function that only queues invoke has as many processes as it may
//!    process events at the same time; any other function has as many as its concurrency. Unless
//!    the number of events is set explicitly, it is reduced where a share would be below its
//!    `AtLeast`, to two at the least.
//! 3. *Size of a share.* Its percentage, divided by the number of processes, rounded down to four
//!    binary digits (by an eighth at most), so that the next start of a machine of about the same
//!    size computes the same value: a function's negative cache entry for a file that was too large
//!    is valid while its limits are the same. The result is raised to [`LEAST`], then limited to
//!    the template's value; 0 in the template means no limit.
//!
//! A variable that is set explicitly for this stack is not changed. All functions see the same
//! value of a variable, so that a function that predicts another's limit is right.

use std::path::Path;
use std::{fmt, fs};

use crate::template::{MachineShare, Resource};

/// The smallest share of a process, however small the machine: 64 MiB.
pub const LEAST: u64 = 64 << 20;

/// The lowest number of simultaneous events to which shares can reduce it.
const LEAST_EVENTS: usize = 2;

/// The resources to divide, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Memory.
    pub memory: u64,
    /// Disk for the data folder: the free space plus what the folder already uses.
    pub disk: u64,
}

impl Machine {
    /// Measures this machine, whose data folder contains `stored` bytes. A value that cannot be
    /// determined is unlimited.
    pub(super) fn this(data: &Path, stored: u64) -> Self {
        let free = rustix::fs::statvfs(data)
            .map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let groups = read(Path::new("/proc/self/cgroup"));
        let allowed = control_group_limits(&groups)
            .filter_map(|path| read(Path::new(&path)).trim().parse().ok());
        let total = total_memory(&read(Path::new("/proc/meminfo"))).unwrap_or(u64::MAX);
        Self {
            memory: allowed.fold(total, u64::min),
            disk: free.saturating_add(stored),
        }
    }

    fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => self.memory,
            Resource::Disk => self.disk,
        }
    }
}

/// `MemTotal` of `/proc/meminfo` (proc_meminfo(5)), in bytes.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes.saturating_mul(1024))
}

/// Returns the files with the memory limits of the control groups that contain a process: its own
/// and those above it (cgroups(7)).
fn control_group_limits(groups: &str) -> impl Iterator<Item = String> {
    let files = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (
            fields.next().unwrap_or_default(),
            fields.next().unwrap_or_default(),
        );
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            return Vec::new();
        };
        Path::new(path)
            .ancestors()
            .map(|group| {
                let group = group.to_string_lossy();
                format!("{root}{}/{file}", group.trim_end_matches('/'))
            })
            .collect()
    });
    files.collect::<Vec<_>>().into_iter()
}

/// A share of a function, and the number of its processes among which it is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The function.
    pub function: String,
    /// The share, as in the template.
    pub share: MachineShare,
    /// The maximum number of simultaneous processes.
    pub processes: usize,
}

/// How much of a resource each process of a function gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// The function.
    pub function: String,
    /// The maximum number of its simultaneous processes.
    pub processes: usize,
    /// The environment variable that carries the value.
    pub variable: String,
    /// The resource.
    pub resource: Resource,
    /// The number of bytes.
    pub bytes: u64,
}

/// Returns how many events of queues a function may process at the same time: `wanted`, or fewer if
/// each would otherwise have less than a share's `AtLeast`.
pub fn affordable_events<'a>(
    machine: &Machine,
    shares: impl IntoIterator<Item = &'a MachineShare>,
    wanted: usize,
) -> usize {
    let affordable = shares.into_iter().filter_map(|share| {
        let at_least = share.at_least?.max(1);
        let whole = percent(machine.of(share.of), share.percent);
        Some(usize::try_from(whole / at_least).unwrap_or(usize::MAX))
    });
    affordable
        .map(|events| events.max(LEAST_EVENTS))
        .fold(wanted, usize::min)
}

/// Divides a machine among the claims.
pub fn divide(machine: &Machine, claims: &[Claim]) -> Vec<Allotment> {
    let allotments = claims.iter().map(|claim| {
        let share = &claim.share;
        let processes = u64::try_from(claim.processes.max(1)).unwrap_or(u64::MAX);
        let own = percent(machine.of(share.of), share.percent) / processes;
        let own = round_down(own).max(LEAST);
        Allotment {
            function: claim.function.clone(),
            processes: claim.processes.max(1),
            variable: share.variable.clone(),
            resource: share.of,
            bytes: match share.most {
                0 => own,
                most => own.min(most),
            },
        }
    });
    allotments.collect()
}

fn percent(whole: u64, percent: u64) -> u64 {
    let part = u128::from(whole) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Keeps the four most significant binary digits.
fn round_down(bytes: u64) -> u64 {
    let digits = u64::BITS - bytes.leading_zeros();
    let dropped = digits.saturating_sub(4);
    bytes >> dropped << dropped
}

/// A machine and its division; displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// The resources of the machine.
    pub machine: Machine,
    /// The shares of the functions.
    pub allotments: Vec<Allotment>,
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { memory, disk } = self.machine;
        write!(
            f,
            "This machine has {} of memory and {} of disk for the stack.",
            Size(memory),
            Size(disk)
        )?;
        let mut last = None;
        for allotment in &self.allotments {
            let Allotment {
                function,
                processes,
                variable,
                resource,
                bytes,
            } = allotment;
            let what = match resource {
                Resource::Memory => "of memory",
                Resource::Disk => "of disk",
            };
            let takes = if last == Some(function) {
                " and".to_owned()
            } else {
                let end = if last.is_some() { "." } else { "" };
                match processes {
                    1 => format!("{end} {function} uses at most"),
                    _ => {
                        format!("{end} Each of up to {processes} {function} processes uses at most")
                    }
                }
            };
            write!(f, "{takes} {} {what} ({variable})", Size(*bytes))?;
            last = Some(function);
        }
        f.write_str(if last.is_some() { "." } else { "" })
    }
}

/// A number of bytes in a readable unit.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.0 >> 20;
        match (self.0, mebibytes) {
            (u64::MAX, _) => f.write_str("an unknown amount"),
            (_, 0..1024) => write!(f, "{mebibytes} MiB"),
            (_, _) => {
                // One decimal digit, truncated.
                let tenths = mebibytes * 10 / 1024;
                write!(f, "{}.{} GiB", tenths / 10, tenths % 10)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn share(variable: &str, of: Resource, percent: u64, most: u64) -> MachineShare {
        MachineShare {
            variable: variable.to_owned(),
            of,
            percent,
            at_least: None,
            most,
        }
    }

    fn claim(function: &str, share: MachineShare, processes: usize) -> Claim {
        Claim {
            function: function.to_owned(),
            share,
            processes,
        }
    }

    /// Four processes with 9 GiB each would need 36 GiB of a machine that has 24 (docs/security.md,
    /// F16).
    #[test]
    fn a_share_is_divided_among_the_processes_and_bounded_by_the_template() {
        use Resource::{Disk, Memory};
        let machine = Machine {
            memory: 24 * GIB,
            disk: 60 * GIB,
        };
        for (of, percent, processes, most, expected) in [
            // 2.7 GiB, which is 2.5 in four binary digits.
            (Memory, 45, 4, 9 * GIB, 2560 * MIB),
            (Memory, 45, 2, 9 * GIB, 5 * GIB),
            (Memory, 45, 1, 9 * GIB, 9 * GIB),
            (Memory, 100, 0, 0, 24 * GIB),
            (Memory, 35, 64, GIB, 128 * MIB),
            // Less than the smallest share.
            (Memory, 1, 1000, GIB, LEAST),
            // The template allows less than that.
            (Memory, 1, 1000, MIB, MIB),
            (Disk, 30, 4, 9 * GIB, 4608 * MIB),
            // No limit in the template.
            (Disk, 30, 1, 0, 18 * GIB),
        ] {
            let one = claim("f", share("V", of, percent, most), processes);
            let bytes = divide(&machine, &[one])[0].bytes;
            assert_eq!(bytes, expected, "{of:?} {percent} % / {processes}, {most}");
        }
        let nobody_knows = Machine {
            memory: u64::MAX,
            disk: u64::MAX,
        };
        let one = claim("f", share("V", Disk, 30, 7 * GIB), 4);
        assert_eq!(divide(&nobody_knows, &[one])[0].bytes, 7 * GIB);
    }

    #[test]
    fn fewer_events_are_taken_rather_than_less_memory_than_a_process_needs() {
        let demanding = MachineShare {
            at_least: Some(2 * GIB),
            ..share("V", Resource::Memory, 45, 9 * GIB)
        };
        for (memory, wanted, expected) in [
            (4 * GIB, 4, 2),
            (16 * GIB, 16, 3),
            (24 * GIB, 4, 4),
            (64 * GIB, 32, 14),
            (u64::MAX, 32, 32),
        ] {
            let machine = Machine { memory, disk: 0 };
            let events = affordable_events(&machine, [&demanding], wanted);
            assert_eq!(events, expected, "{} GiB", memory / GIB);
        }
        let modest = share("V", Resource::Memory, 45, 0);
        let machine = Machine {
            memory: GIB,
            disk: 0,
        };
        assert_eq!(affordable_events(&machine, [&modest], 7), 7);
    }

    #[test]
    fn rounding_takes_an_eighth_at_most() {
        for (bytes, expected) in [
            (0, 0),
            (15, 15),
            (17, 16),
            (0b1000_1111, 0b1000_0000),
            (u64::MAX, 0xf000_0000_0000_0000),
        ] {
            assert_eq!(round_down(bytes), expected, "{bytes}");
            assert!(bytes - round_down(bytes) <= bytes / 8, "{bytes}");
        }
    }

    #[test]
    fn a_division_is_described_in_a_sentence() {
        let machine = Machine {
            memory: 24 * GIB,
            disk: 60 * GIB + 200 * MIB,
        };
        let claims = [
            claim("worker", share("WORK_MEMORY", Resource::Memory, 45, 0), 4),
            claim("worker", share("WORK_DISK", Resource::Disk, 1, 0), 4),
            claim("sweeper", share("BUDGET", Resource::Disk, 30, 0), 1),
        ];
        let division = Division {
            machine,
            allotments: divide(&machine, &claims),
        };
        assert_eq!(
            division.to_string(),
            "This machine has 24.0 GiB of memory and 60.1 GiB of disk for the stack. Each of up to 4 worker processes uses at \
             most 2.5 GiB of memory (WORK_MEMORY) and 144 MiB of disk (WORK_DISK). sweeper uses at most 18.0 GiB of disk (BUDGET)."
        );
    }

    #[test]
    fn limits_of_parent_control_groups_apply() {
        let unified: Vec<String> = control_group_limits("0::/user/stack\n").collect();
        assert_eq!(
            unified,
            [
                "/sys/fs/cgroup/user/stack/memory.max",
                "/sys/fs/cgroup/user/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        let older: Vec<String> = control_group_limits("9:name=systemd:/\n4:memory:/a\n").collect();
        assert_eq!(
            older,
            [
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
        assert_eq!(
            total_memory("MemTotal:       24556 kB\nMemFree: 1 kB\n"),
            Some(24_556 * 1024)
        );
    }
}
