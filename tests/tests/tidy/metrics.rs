//! Metrics and alarms: code, template and documents have the same ones.

use std::collections::BTreeSet;

use symdepot::runtime::{Metric, NAMESPACE, STACK};

use crate::project::read;

/// Returns the alarms in the template, each with its lines.
fn alarms() -> Vec<(String, String)> {
    let template = read("infra/template.yaml").unwrap();
    let mut resources: Vec<(String, String)> = Vec::new();
    for line in template.lines() {
        let name = line
            .strip_prefix("  ")
            .filter(|rest| !rest.starts_with([' ', '#', '-']));
        match name.and_then(|rest| rest.split_once(':')) {
            Some((name, rest)) => resources.push((name.to_owned(), format!("{rest}\n"))),
            None => {
                if let Some((_, lines)) = resources.last_mut() {
                    lines.push_str(line);
                    lines.push('\n');
                }
            }
        }
    }
    resources.retain(|(_, lines)| lines.contains("Type: AWS::CloudWatch::Alarm"));
    resources
}

#[test]
fn every_alarm_has_a_heading_in_the_documents_and_every_heading_an_alarm() {
    let operations = read("docs/operations.md").unwrap();
    let headings = operations
        .lines()
        .filter_map(|line| line.strip_prefix("## "));
    let explained: BTreeSet<String> = headings
        .filter(|heading| heading.ends_with("Alarm"))
        .map(str::to_owned)
        .collect();
    let alarms: BTreeSet<String> = alarms().into_iter().map(|(name, _)| name).collect();
    assert!(
        alarms.len() > 5,
        "infra/template.yaml: found only {alarms:?}"
    );
    assert_eq!(
        alarms, explained,
        "infra/template.yaml (left) and docs/operations.md (right) differ"
    );
}

#[test]
fn every_metric_has_a_row_in_the_documents_and_every_row_a_metric() {
    let operations = read("docs/operations.md").unwrap();
    let (_, section) = operations.split_once("\n## Metrics\n").unwrap();
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let explained: BTreeSet<(String, String)> = rows
        .filter_map(|row| {
            let mut cells = row.split(" | ");
            let name = cells.next()?.trim_end_matches('`');
            Some((name.to_owned(), cells.next()?.to_owned()))
        })
        .collect();
    let known = Metric::ALL.map(|metric| (metric.name(), metric.dimensions().join(", ")));
    assert_eq!(
        BTreeSet::from(known),
        explained,
        "shared/src/runtime/metrics.rs (left) and docs/operations.md (right) differ"
    );
}

#[test]
fn alarms_on_our_metrics_watch_one_that_exists_of_this_stack_alone() {
    let ours = format!("Namespace: {NAMESPACE}\n");
    let watching: Vec<_> = alarms()
        .into_iter()
        .filter(|(_, lines)| lines.contains(&ours))
        .collect();
    assert!(!watching.is_empty());
    for (alarm, lines) in watching {
        let is_watched =
            |metric: &Metric| lines.contains(&format!("MetricName: {}\n", metric.name()));
        let metric = Metric::ALL.into_iter().find(is_watched);
        let metric = metric.unwrap_or_else(|| panic!("{alarm} watches no metric of ours"));
        let of_stack = format!("Dimensions: [{{ Name: {STACK}, Value: !Ref AWS::StackName }}]\n");
        assert!(
            metric.dimensions() == [STACK] && lines.contains(&of_stack),
            "{alarm} does not watch {metric:?} of this stack"
        );
    }
}
