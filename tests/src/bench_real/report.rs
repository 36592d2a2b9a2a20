//! The report of a benchmark, as a table for the terminal and as Markdown.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};

/// All measured numbers.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The machine of the measurement.
    pub environment: Vec<String>,
    groups: Vec<Group>,
    /// What is wrong, as opposed to slow or large.
    wrong: Vec<String>,
}

#[derive(Clone, Debug)]
struct Group {
    title: String,
    rows: Vec<Row>,
}

/// One number.
#[derive(Clone, Debug)]
pub struct Row {
    what: String,
    value: String,
    target: Option<(String, bool)>,
}

impl Row {
    /// A number without a target.
    pub fn new(what: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            value: value.into(),
            target: None,
        }
    }

    /// Adds a target, and whether the number meets it.
    #[must_use]
    pub fn target(mut self, target: impl Into<String>, met: bool) -> Self {
        self.target = Some((target.into(), met));
        self
    }
}

impl Report {
    /// Adds a number to a group, and prints it.
    pub fn add(&mut self, group: &str, row: Row) {
        let dim = Style::new().dimmed();
        let verdict = match &row.target {
            Some((target, met)) => format!("{dim}{target}{dim:#} {}", coloured(*met)),
            None => String::new(),
        };
        anstream::println!("  {:<58} {:>18}  {verdict}", row.what, row.value);
        match self.groups.iter_mut().find(|known| known.title == group) {
            Some(known) => known.rows.push(row),
            None => self.groups.push(Group {
                title: group.to_owned(),
                rows: vec![row],
            }),
        }
    }

    /// Adds a number that has to meet its target: otherwise something is wrong.
    pub fn require(&mut self, group: &str, row: Row) {
        if row.target.as_ref().is_some_and(|(_, met)| !met) {
            self.wrong.push(format!("{group}: {}", row.what));
        }
        self.add(group, row);
    }

    /// Returns what is wrong.
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// Returns how many numbers miss their targets, and how many have one.
    pub fn missed(&self) -> (usize, usize) {
        let targets: Vec<bool> = self
            .groups
            .iter()
            .flat_map(|group| &group.rows)
            .filter_map(|row| row.target.as_ref().map(|(_, met)| *met))
            .collect();
        (targets.iter().filter(|met| !**met).count(), targets.len())
    }

    /// Prints all numbers together.
    pub fn print(&self) {
        let title = Style::new().bold();
        let dim = Style::new().dimmed();
        anstream::println!(
            "\n{title}All numbers{title:#} {dim}{}{dim:#}",
            self.environment.join(", ")
        );
        for group in &self.groups {
            anstream::println!("\n  {title}{}{title:#}", group.title);
            for Row {
                what,
                value,
                target,
            } in &group.rows
            {
                let verdict = match target {
                    Some((target, met)) => format!("{dim}{target:<12}{dim:#} {}", coloured(*met)),
                    None => String::new(),
                };
                anstream::println!("    {what:<58} {value:>18}  {verdict}");
            }
        }
        let (missed, targets) = self.missed();
        anstream::println!("\n  {missed} of {targets} targets missed");
    }

    /// Returns all numbers as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("{}.\n", self.environment.join(", "));
        for group in &self.groups {
            let _ = write!(
                text,
                "\n| {} | | Target | |\n|---|---:|---:|---|\n",
                group.title
            );
            for Row {
                what,
                value,
                target,
            } in &group.rows
            {
                let (target, met) = match target {
                    Some((target, true)) => (target.as_str(), "ok"),
                    Some((target, false)) => (target.as_str(), "**missed**"),
                    None => ("", ""),
                };
                let _ = writeln!(text, "| {what} | {value} | {target} | {met} |");
            }
        }
        text
    }
}

fn coloured(met: bool) -> String {
    let (style, word) = if met {
        (AnsiColor::Green.on_default(), "ok")
    } else {
        (AnsiColor::Red.on_default().bold(), "MISSED")
    };
    format!("{style}{word}{style:#}")
}

/// Returns a description of the machine: processor, cores, operating system.
pub fn environment() -> Vec<String> {
    let field = |path: &str, name: &str, separator: char| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| {
            line.strip_prefix(name)?
                .trim_start()
                .strip_prefix(separator)
                .map(str::to_owned)
        });
        line.map(|value| value.trim().trim_matches('"').to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let processor = field("/proc/cpuinfo", "model name", ':')
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let system = field("/etc/os-release", "PRETTY_NAME", '=')
        .unwrap_or_else(|| std::env::consts::OS.to_owned());
    vec![format!("{cores} cores of {processor}"), system]
}

/// Formats a number of bytes with a unit.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=9_999_999 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// Formats milliseconds.
pub fn milliseconds(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2} ms")
    } else {
        format!("{value:.0} ms")
    }
}

/// Formats a ratio.
pub fn ratio(value: f64) -> String {
    format!("{value:.2} ×")
}
