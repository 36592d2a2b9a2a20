//! The output of a function: each line of its standard output and error goes to a file in the data
//! folder and to the stack's own log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::dates;

/// The log of one function.
#[derive(Debug)]
pub(super) struct FunctionLog {
    name: String,
    path: PathBuf,
    file: Mutex<File>,
}

/// The number of lines of a process that are kept, and the number of characters of each.
const LAST_LINES: usize = 3;
const LAST_LINE_CHARS: usize = 1_000;

/// The last lines that a process wrote, without routine ones: they say why it ended. Clones share
/// the lines.
#[derive(Clone, Debug, Default)]
pub(super) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn add(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(LAST_LINE_CHARS).collect());
    }

    /// Returns them as text.
    pub(super) fn text(&self) -> String {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.make_contiguous().join("\n")
    }
}

impl FunctionLog {
    /// Opens `<folder>/<name>.log` for appending.
    pub(super) fn open(folder: &Path, name: &str) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&path)?;
        Ok(Self {
            name: name.to_owned(),
            path,
            file: Mutex::new(file),
        })
    }

    /// Logs a line that a process wrote. Routine lines are logged at debug level, so that they do
    /// not flood the terminal.
    pub(super) fn line(&self, line: &str, last_lines: &LastLines) {
        if is_routine(line) {
            tracing::debug!(target: "function", function = %self.name, "{line}");
        } else {
            tracing::info!(target: "function", function = %self.name, "{line}");
            last_lines.add(line);
        }
        self.write(line);
    }

    /// Logs that a process ended before its first event, as one does whose settings are wrong, and
    /// what it wrote last. The terminal shows that at every level.
    pub(super) fn ended_early(&self, last_lines: &str) {
        tracing::error!(
            target: "function",
            function = %self.name,
            "the function ended before its first event; its log is {}, and ends with: {last_lines}",
            self.path.display()
        );
    }

    /// Returns its file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes Lambda's report of an invocation ("Lambda Telemetry API", `platform.report`). The
    /// terminal shows it at debug level only.
    pub(super) fn report(&self, report: &Report<'_>) {
        let record = PlatformReport {
            time: dates::iso(OffsetDateTime::now_utc()),
            record_type: "platform.report",
            record: Record {
                request_id: report.request_id,
                status: report.status,
                error_type: report.error_type,
                metrics: Metrics {
                    duration_ms: milliseconds(report.duration),
                    billed_duration_ms: report.duration.as_millis() + 1,
                    init_duration_ms: report.init.map(milliseconds),
                    memory_size: report.memory_mb,
                    max_memory_used: report.max_rss / (1024 * 1024),
                },
            },
        };
        match serde_json::to_string(&record) {
            Ok(line) => {
                tracing::debug!(target: "function", function = %self.name, "{line}");
                self.write(&line);
            }
            Err(error) => tracing::warn!(%error, "cannot write the report of an invocation"),
        }
    }

    fn write(&self, line: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        if let Err(error) = file.write_all(&bytes) {
            tracing::warn!(%error, function = %self.name, "cannot write function log");
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

/// Returns whether a line is a routine event of a function: one of level `INFO` or below.
fn is_routine(line: &str) -> bool {
    /// The level of an event. The other fields are not kept: a line is read for each request.
    #[derive(Deserialize)]
    struct Leveled<'a> {
        level: &'a str,
    }

    let event = serde_json::from_str::<Leveled<'_>>(line);
    event.is_ok_and(|event| matches!(event.level, "INFO" | "DEBUG" | "TRACE"))
}

#[derive(Serialize)]
struct PlatformReport<'a> {
    time: String,
    #[serde(rename = "type")]
    record_type: &'static str,
    record: Record<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    request_id: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    metrics: Metrics,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metrics {
    duration_ms: f64,
    billed_duration_ms: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    init_duration_ms: Option<f64>,
    #[serde(rename = "memorySizeMB")]
    memory_size: u64,
    #[serde(rename = "maxMemoryUsedMB")]
    max_memory_used: u64,
}

/// The values in the report of an invocation.
pub(super) struct Report<'a> {
    pub(super) request_id: &'a str,
    pub(super) status: &'static str,
    pub(super) error_type: Option<&'a str>,
    pub(super) duration: Duration,
    pub(super) init: Option<Duration>,
    pub(super) memory_mb: u64,
    pub(super) max_rss: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_process_are_those_that_are_not_routine() {
        let folder = tempfile::tempdir().unwrap();
        let log = FunctionLog::open(folder.path(), "derive").unwrap();
        let last_lines = LastLines::default();
        for line in ["1", "2", "3", r#"{"level":"INFO","message":"x"}"#, "4"] {
            log.line(line, &last_lines);
        }
        assert_eq!(last_lines.text(), "2\n3\n4");
        let written = std::fs::read_to_string(folder.path().join("derive.log")).unwrap();
        assert_eq!(written.lines().count(), 5);
    }

    #[test]
    fn only_routine_log_lines_are_hidden_from_the_terminal() {
        assert!(is_routine(r#"{"level":"INFO","message":"completed"}"#));
        for line in [
            r#"{"level":"WARN","message":"blob does not match its record; a rebuild is requested"}"#,
            r#"{"level":"ERROR","message":"request failed"}"#,
            "thread 'main' panicked",
            "INFO",
            "{}",
        ] {
            assert!(!is_routine(line), "{line}");
        }
    }
}
