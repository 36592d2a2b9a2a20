//! The counters of a stack: the response of `GET /_local/stats`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The counters since the start of the stack, or since their last reset.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Stats {
    /// Calls by the functions, by service and operation.
    pub aws: BTreeMap<String, BTreeMap<String, Calls>>,
    /// Calls to S3 among them, by bucket and operation.
    pub buckets: BTreeMap<String, BTreeMap<String, Calls>>,
    /// Invocations, by function.
    pub functions: BTreeMap<String, FunctionCounts>,
    /// Messages, by queue.
    pub queues: BTreeMap<String, QueueCounts>,
}

/// Calls of one operation.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Calls {
    /// The number of calls.
    pub calls: u64,
    /// Bytes of the response bodies.
    pub bytes_out: u64,
}

/// Invocations of one function. Times are in milliseconds, memory in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct FunctionCounts {
    /// Completed invocations.
    pub invocations: u64,
    /// Started processes.
    pub cold_starts: u64,
    /// Failed invocations.
    pub errors: u64,
    /// Failed invocations that were killed at their deadline.
    pub timeouts: u64,
    /// Invocations that were refused because their chain of messages was too long.
    pub recursive_invocations_dropped: u64,
    /// Durations of the invocations.
    pub duration_ms: Spread,
    /// Times from the start of a process to its first request for an event.
    pub init_ms: Spread,
    /// Peak memory of a process with its children.
    pub max_rss: u64,
    /// Dependent rounds of AWS calls: the maximum number of calls of one process of which no two
    /// overlapped in time. Without latency, calls may be too short to overlap.
    pub rounds: u64,
}

/// Percentiles.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Spread {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

/// Messages of one queue.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct QueueCounts {
    /// Messages that can be received.
    pub visible: u64,
    /// Messages in flight.
    pub in_flight: u64,
    /// Messages in the dead-letter queue.
    pub dead: u64,
    /// Sent messages, without the events of S3.
    pub sent: u64,
}

impl Stats {
    /// Returns the number of all AWS calls by the functions.
    pub fn aws_calls(&self) -> u64 {
        self.aws
            .values()
            .flat_map(BTreeMap::values)
            .map(|operation| operation.calls)
            .sum()
    }

    /// Returns the number of calls of one operation by the functions.
    pub fn calls(&self, service: &str, operation: &str) -> u64 {
        self.aws
            .get(service)
            .and_then(|operations| operations.get(operation))
            .map_or(0, |operation| operation.calls)
    }

    /// Returns the calls of one S3 operation on a bucket by the functions.
    pub fn of_bucket(&self, bucket: &str, operation: &str) -> Calls {
        self.buckets
            .get(bucket)
            .and_then(|operations| operations.get(operation))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the counters of one function.
    pub fn function(&self, name: &str) -> FunctionCounts {
        self.functions.get(name).copied().unwrap_or_default()
    }

    /// Returns the counters of one queue.
    pub fn queue(&self, name: &str) -> QueueCounts {
        self.queues.get(name).copied().unwrap_or_default()
    }

    /// Returns the number of messages sent to all queues, without the events of S3.
    pub fn messages(&self) -> u64 {
        self.queues.values().map(|queue| queue.sent).sum()
    }

    /// Returns the number of messages in dead-letter queues.
    pub fn dead_letters(&self) -> u64 {
        self.queues.values().map(|queue| queue.dead).sum()
    }
}
