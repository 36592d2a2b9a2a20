//! Metrics as log lines in CloudWatch's embedded metric format, which CloudWatch extracts without
//! an API call.
//!
//! Source of the format: Amazon CloudWatch User Guide, "Specification: Embedded metric format".

use std::io::Write;

use serde_json::{Map, Value, json};

use crate::cache::KindTally;
use crate::domain::Timestamp;
use crate::flows::rollout::{KindRollout, RolloutReport};

/// The namespace of all metrics.
pub const NAMESPACE: &str = "symdepot";

/// The dimension of all metrics: several stacks of an account share the namespace.
pub const STACK: &str = "Stack";

/// The dimension of the metrics of one kind of caches.
pub const KIND: &str = "Kind";

/// A metric. A test compares this list with the one in `docs/operations.md`, and with the alarms in
/// the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Blobs that may be lost but were not treated as lost.
    DoubtfulLosses,
    /// Caches of the current version.
    Current,
    /// Caches of an older version, which a build could renew.
    Behind,
    /// Caches of an older version whose files are gone.
    DifGone,
    /// Entries whose last build failed.
    Failed,
    /// States of an older version that are kept beside current ones.
    Older,
    /// Builds in the refresh queue.
    InRefreshQueue,
    /// The size of the caches.
    Bytes,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 8] = [
        Self::DoubtfulLosses,
        Self::Current,
        Self::Behind,
        Self::DifGone,
        Self::Failed,
        Self::Older,
        Self::InRefreshQueue,
        Self::Bytes,
    ];

    /// Returns its name in CloudWatch.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Returns its dimensions.
    pub fn dimensions(self) -> &'static [&'static str] {
        match self {
            Self::DoubtfulLosses => &[STACK],
            Self::Current
            | Self::Behind
            | Self::DifGone
            | Self::Failed
            | Self::Older
            | Self::InRefreshQueue
            | Self::Bytes => &[STACK, KIND],
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Bytes => "Bytes",
            Self::DoubtfulLosses
            | Self::Current
            | Self::Behind
            | Self::DifGone
            | Self::Failed
            | Self::Older
            | Self::InRefreshQueue => "Count",
        }
    }
}

/// Writes the metrics of a stack.
#[derive(Clone, Debug)]
pub struct Metrics {
    stack: String,
}

impl Metrics {
    pub(super) fn of_stack(stack: &str) -> Self {
        Self {
            stack: stack.to_owned(),
        }
    }

    /// Writes the rollout of the current converter, one line per kind that has entries: CloudWatch
    /// charges for each metric of each kind by the hour in which it is written, so a stack that is
    /// not used costs nothing.
    pub fn emit_rollout(&self, report: &RolloutReport) {
        emit(self.rollout(report));
    }

    /// Counts a blob that may be lost but was not treated as lost. An alarm watches this metric.
    pub fn emit_doubtful_loss(&self, now: Timestamp) {
        emit([self.doubtful_loss(now)]);
    }

    fn doubtful_loss(&self, now: Timestamp) -> Value {
        self.line(now, &[], &[(Metric::DoubtfulLosses, 1)])
    }

    fn rollout(&self, report: &RolloutReport) -> Vec<Value> {
        let at = report.at.unwrap_or_default();
        let line = |(kind, rollout): (&String, &KindRollout)| {
            let tally = &rollout.tally;
            let values = [
                (Metric::Current, tally.current),
                (Metric::Behind, tally.behind),
                (Metric::DifGone, tally.dif_gone),
                (Metric::Failed, tally.failed.values().sum()),
                (Metric::Older, tally.older),
                (Metric::InRefreshQueue, tally.in_queue),
                (Metric::Bytes, tally.bytes),
            ];
            self.line(at, &[(KIND, kind)], &values)
        };
        let kinds = report.kinds.iter();
        let used = kinds.filter(|(_, rollout)| rollout.tally != KindTally::default());
        used.map(line).collect()
    }

    /// Returns the line of these metrics, which have the same dimensions: the stack, and `also`.
    fn line(&self, at: Timestamp, also: &[(&str, &str)], values: &[(Metric, u64)]) -> Value {
        let mut fields = Map::new();
        fields.insert(STACK.to_owned(), self.stack.as_str().into());
        for (name, value) in also {
            fields.insert((*name).to_owned(), (*value).into());
        }
        let dimensions: Vec<String> = fields.keys().cloned().collect();
        for (metric, value) in values {
            fields.insert(metric.name(), (*value).into());
        }
        let metrics = values.iter().map(|(metric, _)| *metric);
        let metrics = metrics.map(|metric| json!({"Name": metric.name(), "Unit": metric.unit()}));
        let announced = json!({
            "Timestamp": at.as_secs() * 1000,
            "CloudWatchMetrics": [{
                "Namespace": NAMESPACE,
                "Dimensions": [dimensions],
                "Metrics": metrics.collect::<Vec<_>>(),
            }],
        });
        fields.insert("_aws".to_owned(), announced);
        Value::Object(fields)
    }
}

fn emit(lines: impl IntoIterator<Item = Value>) {
    let mut out = std::io::stdout().lock();
    for line in lines {
        // A failure cannot be logged, because this is the log.
        let _ = writeln!(out, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Checks that a line announces metrics and dimensions that are in it, and returns the names of
    /// the metrics.
    fn announced(line: &Value) -> Vec<String> {
        let announced = &line["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(announced["Namespace"], "symdepot");
        assert_eq!(line["_aws"]["Timestamp"], 1_700_000_000_000_u64);
        let texts = |list: &Value| -> BTreeSet<String> {
            let list = list.as_array().unwrap().iter();
            list.map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let dimensions = texts(&announced["Dimensions"][0]);
        assert!(
            dimensions
                .iter()
                .all(|dimension| line[dimension].is_string())
        );
        assert_eq!(line["Stack"], "a-stack");
        let mut names = Vec::new();
        for metric in announced["Metrics"].as_array().unwrap() {
            let name = metric["Name"].as_str().unwrap();
            assert!(line[name].is_u64(), "{metric}");
            let known = Metric::ALL.into_iter().find(|known| known.name() == name);
            let known = known.unwrap().dimensions().iter();
            assert_eq!(
                dimensions,
                known.map(|dimension| (*dimension).to_owned()).collect()
            );
            names.push(name.to_owned());
        }
        names
    }

    #[test]
    fn every_metric_that_a_line_announces_is_in_it() {
        let metrics = Metrics::of_stack("a-stack");
        let now = Timestamp::from_secs(1_700_000_000);
        let mut report = RolloutReport::of_this_release();
        report.at = Some(now);
        let kind = report.kinds.get_mut("symcache").unwrap();
        kind.tally.behind = 7;
        kind.tally.failed = [("malformed".to_owned(), 2), ("crashed".to_owned(), 1)].into();
        assert!(
            metrics
                .rollout(&RolloutReport::of_this_release())
                .is_empty()
        );
        let mut lines = metrics.rollout(&report);
        let [line] = lines.as_slice() else {
            panic!("kinds without entries have lines: {lines:?}");
        };
        assert_eq!(line["Kind"], "symcache");
        assert_eq!((&line["Behind"], &line["Failed"]), (&7.into(), &3.into()));
        lines.push(metrics.doubtful_loss(now));
        let names: BTreeSet<String> = lines.iter().flat_map(announced).collect();
        assert_eq!(names, Metric::ALL.map(Metric::name).into());
    }
}
