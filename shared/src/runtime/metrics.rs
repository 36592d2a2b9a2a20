//! Metrics as log lines in CloudWatch's embedded metric format, which CloudWatch extracts without
//! an API call.
//!
//! Source of the format: Amazon CloudWatch User Guide, "Specification: Embedded metric format".

use std::io::Write;

use serde_json::{Value, json};

use crate::domain::Timestamp;
use crate::flows::rollout::{KindRollout, RolloutReport};

/// The namespace of all metrics.
const NAMESPACE: &str = "symdepot";

/// Writes the rollout of the current converter, one line per kind.
pub fn emit_rollout(report: &RolloutReport) {
    let mut out = std::io::stdout().lock();
    for line in lines(report) {
        // A failure cannot be logged, because this is the log.
        let _ = writeln!(out, "{line}");
    }
}

/// Counts a blob that may be lost but was not treated as lost. An alarm watches this metric.
pub fn emit_doubtful_loss(now: Timestamp) {
    let _ = writeln!(std::io::stdout().lock(), "{}", doubtful_loss(now));
}

fn doubtful_loss(now: Timestamp) -> Value {
    json!({
        "_aws": {
            "Timestamp": now.as_secs() * 1000,
            "CloudWatchMetrics": [{
                "Namespace": NAMESPACE,
                "Dimensions": [[]],
                "Metrics": [{"Name": "DoubtfulLosses", "Unit": "Count"}],
            }],
        },
        "DoubtfulLosses": 1,
    })
}

fn lines(report: &RolloutReport) -> Vec<Value> {
    let at = report.at.map(|at| at.as_secs() * 1000);
    let line = |(name, kind): (&String, &KindRollout)| {
        let tally = &kind.tally;
        let values = [
            ("Current", tally.current, "Count"),
            ("Behind", tally.behind, "Count"),
            ("DifGone", tally.dif_gone, "Count"),
            ("Failed", tally.failed.values().sum(), "Count"),
            ("Older", tally.older, "Count"),
            ("InRefreshQueue", tally.in_queue, "Count"),
            ("Bytes", tally.bytes, "Bytes"),
        ];
        let metrics = values.map(|(name, _, unit)| json!({"Name": name, "Unit": unit}));
        let mut line = json!({
            "_aws": {
                "Timestamp": at,
                "CloudWatchMetrics": [{
                    "Namespace": NAMESPACE,
                    "Dimensions": [["Kind"]],
                    "Metrics": metrics,
                }],
            },
            "Kind": name,
        });
        for (name, value, _) in values {
            line[name] = value.into();
        }
        line
    };
    report.kinds.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubtful_loss_is_counted_under_the_name_that_its_alarm_uses() {
        let line = doubtful_loss(Timestamp::from_secs(1_700_000_000));
        let name = line["_aws"]["CloudWatchMetrics"][0]["Metrics"][0]["Name"].as_str();
        assert_eq!(line[name.unwrap()], 1);
        let template = include_str!("../../../infra/template.yaml");
        assert!(template.contains(&format!("MetricName: {}", name.unwrap())));
    }

    #[test]
    fn every_metric_that_a_line_announces_is_in_it() {
        let mut report = RolloutReport::none_yet(&crate::cache::BuildNumbers::CURRENT);
        report.at = Some(crate::domain::Timestamp::from_secs(1_700_000_000));
        let kind = report.kinds.get_mut("symcache").unwrap();
        kind.tally.behind = 7;
        kind.tally.failed = [("malformed".to_owned(), 2), ("crashed".to_owned(), 1)].into();
        let lines = lines(&report);
        assert_eq!(lines.len(), 4);
        for line in &lines {
            let announced = &line["_aws"]["CloudWatchMetrics"][0];
            assert_eq!(announced["Namespace"], "symdepot");
            let dimension = announced["Dimensions"][0][0].as_str().unwrap();
            assert!(line[dimension].is_string());
            for metric in announced["Metrics"].as_array().unwrap() {
                assert!(line[metric["Name"].as_str().unwrap()].is_u64(), "{metric}");
            }
            assert_eq!(line["_aws"]["Timestamp"], 1_700_000_000_000_u64);
        }
        let line = lines
            .iter()
            .find(|line| line["Kind"] == "symcache")
            .unwrap();
        assert_eq!((&line["Behind"], &line["Failed"]), (&7.into(), &3.into()));
    }
}
