//! What the log says of a request: fields of the request, of its response, and of the invocation.
//!
//! A handler puts what it knows into the extensions of its response: an [`Outcome`] and statistics.

use axum::http::{Extensions, StatusCode};
use symdepot::flows::Invocation;
use symdepot::flows::minidump::WalkStats;
use symdepot::flows::symbolicate::Stats;
use symdepot::runtime::{RequestSummary, millis};

use crate::operation::Operation;

/// What a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome(pub(crate) &'static str);

/// The debug id of the module that a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requested(pub(crate) String);

/// The crash is symbolicated.
pub(crate) const COMPLETED: Outcome = Outcome("completed");

/// The request waits for builds.
pub(crate) const PENDING: Outcome = Outcome("pending");

/// The crash file cannot be read.
pub(crate) const FAILED: Outcome = Outcome("failed");

/// What the log says of a request.
pub(crate) struct RequestFacts {
    method: String,
    bytes: usize,
}

/// What the log says of a response.
pub(crate) struct ResponseFacts {
    pub(crate) status: StatusCode,
    pub(crate) bytes: usize,
    pub(crate) extensions: Extensions,
}

impl RequestFacts {
    pub(crate) fn of(request: &lambda_http::Request) -> Self {
        Self {
            method: request.method().to_string(),
            bytes: request.body().len(),
        }
    }
}

/// Returns the line of a request of this caller.
pub(crate) fn summary(
    RequestFacts {
        method,
        bytes: request_bytes,
    }: RequestFacts,
    caller: Option<&str>,
    ResponseFacts {
        status,
        bytes: response_bytes,
        extensions,
    }: ResponseFacts,
    invocation: &Invocation,
) -> RequestSummary {
    let operation = extensions.get::<Operation>().copied();
    let notes = invocation.take_notes();
    let handler_us = u64::try_from(invocation.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut summary = RequestSummary {
        method: Some(method),
        route: operation.and_then(Operation::path),
        status: Some(status.as_u16()),
        outcome: extensions.get().map(|Outcome(outcome)| *outcome),
        module: extensions.get().map(|Requested(module)| module.clone()),
        caller: caller.map(str::to_owned),
        request_bytes: Some(request_bytes),
        response_bytes: Some(response_bytes),
        handler_us: Some(handler_us),
        waited_ms: Some(millis(notes.waited)),
        record_reads: Some(notes.record_reads),
        trace_id: invocation.trace_id().map(|id| id.to_string()),
        ..RequestSummary::default()
    };
    let (stats, walked) = (extensions.get::<Stats>(), extensions.get::<WalkStats>());
    if let Some(stats) = stats {
        add_stats(&mut summary, stats);
    }
    if let Some(walked) = walked {
        summary.walked_threads = Some(walked.threads);
        summary.walked_frames = Some(walked.frames);
        summary.threads_cut = Some(walked.threads_cut);
        summary.stacks_cut = Some(walked.stacks_cut);
        summary.reads_cut = Some(walked.reads_cut);
        summary.panics = Some(walked.panics);
    }
    if stats.is_some() || walked.is_some() {
        let by_walk = walked.map_or(0, |walked| walked.stacks_shortened);
        let by_answer = stats.map_or(0, |stats| stats.shortened);
        summary.stacks_shortened = Some(by_walk + by_answer);
    }
    summary
}

fn add_stats(summary: &mut RequestSummary, stats: &Stats) {
    let (frames, modules, reads) = (stats.frames, stats.modules, stats.reads);
    summary.memory_hits = Some(reads.memory_hits);
    summary.blob_reads = Some(reads.reads);
    summary.blob_bytes = Some(reads.bytes);
    summary.stacktraces = Some(stats.stacktraces);
    summary.frames = Some(frames.total());
    summary.symbolicated = Some(frames.symbolicated);
    summary.missing_symbol = Some(frames.missing_symbol);
    summary.unknown_image = Some(frames.unknown_image);
    summary.missing = Some(frames.missing);
    summary.malformed = Some(frames.malformed);
    summary.inlined = Some(stats.inlined);
    summary.truncated = Some(stats.truncated);
    summary.dropped = Some(stats.dropped);
    summary.modules = Some(modules.total());
    summary.modules_unused = Some(modules.unused);
    summary.modules_found = Some(modules.found);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn summary_with(extensions: Extensions) -> RequestSummary {
        let received = RequestFacts {
            method: "POST".to_owned(),
            bytes: 0,
        };
        let sent = ResponseFacts {
            status: StatusCode::OK,
            bytes: 0,
            extensions,
        };
        let time = Duration::from_secs(30);
        let invocation = Invocation::new("1".to_owned(), Duration::ZERO, time, [0; 32]);
        summary(received, None, sent, &invocation)
    }

    #[test]
    fn shortened_stacks_are_logged_of_a_crash_file_without_a_walk_too() {
        let stats = Stats {
            shortened: 2,
            ..Stats::default()
        };
        let walked = WalkStats {
            stacks_shortened: 1,
            ..WalkStats::default()
        };
        let mut extensions = Extensions::new();
        assert_eq!(summary_with(extensions.clone()).stacks_shortened, None);
        extensions.insert(stats);
        assert_eq!(summary_with(extensions.clone()).stacks_shortened, Some(2));
        extensions.insert(walked);
        assert_eq!(summary_with(extensions.clone()).stacks_shortened, Some(3));
        extensions.remove::<Stats>();
        assert_eq!(summary_with(extensions).stacks_shortened, Some(1));
    }
}
