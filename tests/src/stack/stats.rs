//! What a stack has counted: the answer of `GET /_local/stats`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What a stack has counted since it started, or since the counts were cleared.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Stats {
    /// Calls that the functions made, by service and operation.
    pub aws: BTreeMap<String, BTreeMap<String, Calls>>,
    /// Calls of S3 among them, by bucket and operation.
    pub buckets: BTreeMap<String, BTreeMap<String, Calls>>,
    /// Invocations, by function.
    pub functions: BTreeMap<String, FunctionCounts>,
    /// Messages, by queue.
    pub queues: BTreeMap<String, QueueCounts>,
}

/// Calls of one operation.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Calls {
    /// How many.
    pub calls: u64,
    /// Bytes of the bodies that were answered.
    pub bytes_out: u64,
}

/// Invocations of one function. Times in milliseconds, memory in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct FunctionCounts {
    /// Invocations that ended.
    pub invocations: u64,
    /// Processes that were started.
    pub cold_starts: u64,
    /// Invocations that failed.
    pub errors: u64,
    /// Those of them that were killed at their deadline.
    pub timeouts: u64,
    /// How long invocations took.
    pub duration_ms: Spread,
    /// How long processes took to ask for their first event.
    pub init_ms: Spread,
    /// The most memory that a process was seen to hold with its children.
    pub max_rss: u64,
    /// Dependent rounds of calls of AWS services: the most calls of any one process of which no two
    /// overlapped in time. Without latency, calls may be too short to overlap.
    pub rounds: u64,
}

/// Percentiles.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Spread {
    /// The median.
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// Messages of one queue.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct QueueCounts {
    /// Messages that can be received.
    pub visible: u64,
    /// Messages that somebody works on.
    pub in_flight: u64,
    /// Messages that were given up.
    pub dead: u64,
    /// Messages that were sent; events of S3 are not counted.
    pub sent: u64,
}

impl Stats {
    /// Returns how many calls of AWS services the functions made in all.
    pub fn aws_calls(&self) -> u64 {
        self.aws
            .values()
            .flat_map(BTreeMap::values)
            .map(|operation| operation.calls)
            .sum()
    }

    /// Returns how many calls of one operation the functions made.
    pub fn calls(&self, service: &str, operation: &str) -> u64 {
        self.aws
            .get(service)
            .and_then(|operations| operations.get(operation))
            .map_or(0, |operation| operation.calls)
    }

    /// Returns the calls of one operation of S3 that the functions made on a bucket.
    pub fn of_bucket(&self, bucket: &str, operation: &str) -> Calls {
        self.buckets
            .get(bucket)
            .and_then(|operations| operations.get(operation))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the counts of one function.
    pub fn function(&self, name: &str) -> FunctionCounts {
        self.functions.get(name).copied().unwrap_or_default()
    }

    /// Returns the counts of one queue.
    pub fn queue(&self, name: &str) -> QueueCounts {
        self.queues.get(name).copied().unwrap_or_default()
    }

    /// Returns how many messages were sent to all queues; events of S3 are not counted.
    pub fn messages(&self) -> u64 {
        self.queues.values().map(|queue| queue.sent).sum()
    }

    /// Returns how many messages were given up.
    pub fn dead_letters(&self) -> u64 {
        self.queues.values().map(|queue| queue.dead).sum()
    }
}
