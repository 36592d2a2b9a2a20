//! What an upload did: as text, as JSON, and as an exit code.

use std::fmt::Write as _;
use std::path::PathBuf;

use indicatif::BinaryBytes;
use serde_json::{Value, json};

use super::outcome::{Fate, Outcome};
use super::usage::ServiceState;
use crate::search::Other;
use crate::visible::visible;
use crate::{Exit, view};

/// What an upload did.
pub(super) struct Report {
    pub(super) outcomes: Vec<Outcome>,
    /// Files that no request could use, with the reason.
    pub(super) skipped: Vec<(PathBuf, String)>,
    /// What else is in folders.
    pub(super) others: Vec<Other>,
    /// The paths that the command was given. Those of files are listed also if they were skipped.
    pub(super) named: Vec<PathBuf>,
    /// Whether to list each file that was not sent.
    pub(super) lists_all: bool,
}

impl Report {
    pub(super) fn exit(&self, waited: bool) -> Exit {
        if self.outcomes.iter().any(Outcome::is_incomplete)
            || !self.skipped.is_empty()
            || self.outcomes.is_empty()
        {
            Exit::Incomplete
        } else if waited && self.outcomes.iter().any(Outcome::is_pending) {
            Exit::Pending
        } else {
            Exit::Done
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text: String = self.outcomes.iter().map(Outcome::line).collect();
        let (listed, hidden): (Vec<_>, Vec<_>) = self
            .skipped
            .iter()
            .partition(|(path, _)| self.lists_all || self.named.contains(path));
        for (path, reason) in listed {
            let path = visible(&path.display().to_string());
            let _ = writeln!(text, "{:10} {path}: {}", "skipped", visible(reason));
        }
        for Other { path, reason } in self.others.iter().filter(|_| self.lists_all) {
            let path = visible(&path.display().to_string());
            let _ = writeln!(text, "{:10} {path}: {reason}", "other");
        }
        text.push_str(&self.summary());
        if !hidden.is_empty() {
            text.push_str("--verbose lists the skipped files with the reasons\n");
        }
        text
    }

    /// Returns the numbers of files, as a line.
    fn summary(&self) -> String {
        let count = |label: &str| {
            let outcomes = self.outcomes.iter();
            outcomes.filter(|outcome| outcome.label() == label).count()
        };
        let sent = self.outcomes.iter().map(|outcome| match outcome.fate {
            Fate::Sent(bytes, _) => bytes,
            Fate::Wanted | Fate::Unsent | Fate::Present(_) => 0,
        });
        let if_any = |label: &str| match count(label) {
            0 => String::new(),
            number => format!("{label} {number}, "),
        };
        let wanted = if_any("would send") + &if_any("not sent");
        let unused = if_any("unused") + &if_any("removed");
        format!(
            "{wanted}sent {} ({}), present {}, ignored {}, {unused}skipped {}, {} other files\n",
            count("sent"),
            BinaryBytes(sent.sum()),
            count("present"),
            count("ignored"),
            self.skipped.len(),
            self.others.len()
        )
    }

    pub(super) fn json(&self) -> String {
        let file = |outcome: &Outcome| -> Value {
            let (state, reason) = match outcome.state() {
                None => ("absent", None),
                Some(ServiceState::Pending) => ("pending", None),
                Some(ServiceState::Applied | ServiceState::InUse | ServiceState::NotNeeded(_)) => {
                    ("applied", None)
                }
                Some(ServiceState::InPart(reason)) => ("in_part", Some(reason)),
                Some(ServiceState::Unused(reason)) => ("unused", Some(reason)),
                Some(ServiceState::Ignored(reason)) => ("ignored", Some(reason)),
                Some(ServiceState::Removed) => ("removed", None),
            };
            let sent_bytes = match outcome.fate {
                Fate::Sent(bytes, _) => Some(bytes),
                Fate::Wanted | Fate::Unsent | Fate::Present(_) => None,
            };
            json!({
                "path": outcome.file.path.to_string_lossy(), "key": outcome.key, "ids": outcome.file.ids,
                "bytes": outcome.file.bytes, "sent_bytes": sent_bytes, "state": state, "reason": reason,
            })
        };
        // A path may be no text.
        let skipped = |(path, reason): &(PathBuf, String)| json!({"path": path.to_string_lossy(), "reason": reason});
        let other = |Other { path, reason }: &Other| json!({"path": path.to_string_lossy(), "reason": reason});
        let others = self.others.iter().filter(|_| self.lists_all);
        let others: Vec<Value> = others.map(other).collect();
        view::json(&json!({
            "schema": view::SCHEMA,
            "files": self.outcomes.iter().map(file).collect::<Vec<_>>(),
            "skipped": self.skipped.iter().map(skipped).collect::<Vec<_>>(),
            "passed_over": self.others.len(),
            "others": others,
        }))
    }
}
