//! The trace of a run: one line for each step, and a hash over all lines.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::Hasher;

use super::Moment;

/// The lines of a run. Lines are made and kept only on request, because a long run has millions.
#[derive(Debug)]
pub(super) struct Trace {
    hasher: DefaultHasher,
    lines: Option<Vec<String>>,
    buffer: String,
}

impl Default for Trace {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Trace {
    /// Returns an empty trace.
    pub(super) fn new(keeps_lines: bool) -> Self {
        Self {
            // Its keys are fixed, unlike those of `RandomState`.
            hasher: DefaultHasher::new(),
            lines: keeps_lines.then(Vec::new),
            buffer: String::new(),
        }
    }

    /// Returns whether lines are kept. Otherwise only the times of the steps are hashed.
    pub(super) fn keeps_lines(&self) -> bool {
        self.lines.is_some()
    }

    /// Adds a step of which no line is kept.
    fn mark(&mut self, now: Moment) {
        self.hasher
            .write_u64(now.as_secs() << 20 | u64::from(now.subsec_micros()));
    }

    /// Adds a line, which is made only if lines are kept.
    pub(super) fn add(&mut self, now: Moment, line: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else {
            self.mark(now);
            return;
        };
        let line = line();
        self.buffer.clear();
        let seconds = now.as_secs();
        let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
        let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
        let micros = now.subsec_micros();
        let written = write!(
            self.buffer,
            "{days}d {hours:02}:{minutes:02}:{seconds:02}.{micros:06} {line}"
        );
        debug_assert!(written.is_ok());
        self.hasher.write(self.buffer.as_bytes());
        self.hasher.write_u8(b'\n');
        lines.push(self.buffer.clone());
    }

    /// Returns the hash of all lines so far.
    pub(super) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// Takes the lines, if they were kept.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}
