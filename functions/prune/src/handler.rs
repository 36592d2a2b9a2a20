//! Handles the scheduled events of `prune`.

use serde_json::Value;
use symdepot::flows::prune::{Pruner, Report};
use symdepot::flows::{Error, Invocation};
use symdepot::runtime::{self, Reports, RunSummary};

/// Runs the pruner and returns its report. If calls failed, the invocation fails at its end.
///
/// An event with `"dry_run": true` reports what the run would do, and why.
pub(crate) async fn handle(
    pruner: &Pruner,
    Reports { metrics, traces }: &Reports,
    invocation: Invocation,
    event: Value,
) -> Result<Report, Error> {
    traces.begin(&invocation, None);
    let pruned = pruner.prune(&invocation, is_dry_run(&event)).await;
    let summary = RunSummary {
        seconds: Some(invocation.elapsed().as_secs_f64()),
        trace_id: invocation.trace_id().map(|id| id.to_string()),
        ..pruned.as_ref().map_or_else(summary_of_failure, summary)
    };
    summary.log();
    traces.end(&invocation, || summary.span());
    traces.flush(&invocation).await;
    let report = pruned?;
    // A dry run emits no metrics, so that nothing is counted twice.
    if let Some(rollout) = report.rollout.as_ref().filter(|_| !report.dry_run) {
        metrics.emit_rollout(rollout);
    }
    match report.failure() {
        None => Ok(report),
        Some(failure) => Err(failure),
    }
}

/// Summarises a run that could not begin.
fn summary_of_failure(error: &Error) -> RunSummary {
    RunSummary {
        failed: Some(1),
        errors: Some(runtime::chain(error)),
        ..RunSummary::default()
    }
}

fn summary(report: &Report) -> RunSummary {
    RunSummary {
        dry_run: Some(report.dry_run),
        complete: Some(report.complete),
        pass: Some(report.pass),
        items: Some(report.items.values().sum()),
        entries: report.items.get("entry").copied(),
        read_units: Some(report.read_units),
        retired: Some(report.retired),
        over_budget: Some(report.over_budget),
        copies_retired: Some(report.copies_retired),
        leases_cleared: Some(report.leases_cleared),
        older_dropped: Some(report.older_dropped),
        expired: Some(report.expired),
        requested: Some(report.requested),
        reconciled: Some(report.reconciled),
        doubtful: Some(report.doubtful),
        presences_noted: Some(report.presences_noted),
        presences_forgotten: Some(report.presences_forgotten),
        aliases_removed: Some(report.aliases_removed),
        blobs: Some(report.blobs),
        orphans: Some(report.orphans),
        bytes_freed: Some(report.bytes_freed),
        failed: Some(report.failed),
        errors: (!report.errors.is_empty()).then(|| report.errors.join("; ")),
        ..RunSummary::default()
    }
}

/// Returns whether an event requests a dry run: at its top level, or in its `detail`, which may be
/// an object or its JSON text.
fn is_dry_run(event: &Value) -> bool {
    let says_so = |value: &Value| value.get("dry_run").and_then(Value::as_bool) == Some(true);
    let detail = event.get("detail");
    let parsed = detail
        .and_then(Value::as_str)
        .and_then(|text| serde_json::from_str(text).ok());
    says_so(event) || detail.is_some_and(says_so) || parsed.as_ref().is_some_and(says_so)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_event_with_dry_run_is_a_dry_run() {
        let scheduled: Value =
            serde_json::from_str(include_str!("../../../infra/events/schedule.json")).unwrap();
        assert!(!is_dry_run(&scheduled));
        for dry in [
            r#"{"dry_run": true}"#,
            r#"{"detail": {"dry_run": true}}"#,
            r#"{"detail": "{\"dry_run\": true}"}"#,
        ] {
            assert!(is_dry_run(&serde_json::from_str(dry).unwrap()), "{dry}");
        }
        assert!(!is_dry_run(&serde_json::json!({"dry_run": "true"})));
    }
}
