//! One row of the table: the measurements of its runs, compared with its limits.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

use crate::bench_real::report::{Report, Row, milliseconds};
use crate::bench_real::{BenchError, PATIENCE, percentile};
use crate::made_up::MadeUp;
use crate::stack::{Client, Stats};

/// Operations that change stored data.
const WRITES: [&str; 9] = [
    "PutItem",
    "UpdateItem",
    "DeleteItem",
    "BatchWriteItem",
    "TransactWriteItems",
    "PutObject",
    "CompleteMultipartUpload",
    "DeleteObject",
    "DeleteObjects",
];

/// Operations that send messages.
const SENDS: [&str; 2] = ["SendMessage", "SendMessageBatch"];

/// Generates modules that no run has used before.
#[derive(Debug, Default)]
pub struct Modules {
    given: Cell<u32>,
}

impl Modules {
    /// Returns this many modules, each with this many functions.
    pub fn take(&self, count: u32, functions: usize) -> Vec<MadeUp> {
        let first = self.given.get() + 1;
        self.given.set(self.given.get() + count);
        (first..first + count)
            .map(|number| MadeUp::new(number, functions))
            .collect()
    }
}

/// The measurements of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The time until the response, in milliseconds.
    pub time: f64,
    /// The counters of the stack when it is idle again.
    pub stats: Stats,
    /// Requests to symbol servers.
    pub questions: u64,
}

impl Run {
    /// Resets the counters, does something, and waits until the stack is idle.
    ///
    /// # Errors
    /// The error of what is done, or the stack does not respond.
    pub async fn of<T>(
        client: &Client,
        what: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<(Self, T), BenchError> {
        client.idle(PATIENCE).await?;
        client.clear_stats().await?;
        let began = Instant::now();
        let done = what.await?;
        let time = began.elapsed().as_secs_f64() * 1000.0;
        client.idle(PATIENCE).await?;
        let run = Self {
            time,
            stats: client.stats().await?,
            questions: 0,
        };
        Ok((run, done))
    }

    fn writes(&self) -> u64 {
        self.sum(&WRITES)
    }

    fn sends(&self) -> u64 {
        self.sum(&SENDS)
    }

    fn sum(&self, operations: &[&str]) -> u64 {
        let of_all = self.stats.aws.values().flatten();
        of_all
            .filter(|(operation, _)| operations.contains(&operation.as_str()))
            .map(|(_, calls)| calls.calls)
            .sum()
    }

    /// Returns the time from the start of the slowest process of `symbolicate` to its first event,
    /// in milliseconds; zero if none was started.
    fn process_start(&self) -> f64 {
        self.stats.function("symbolicate").init_ms.max
    }
}

/// The limits of a row. Values without a limit are printed, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Milliseconds until the response.
    pub time: Option<f64>,
    /// Milliseconds until the response, without the start of the process.
    pub time_beyond_start: Option<f64>,
    /// Calls of BatchGetItem.
    pub batch_gets: Option<u64>,
    /// Calls of GetObject.
    pub get_objects: Option<u64>,
    /// AWS calls in total.
    pub calls: Option<u64>,
    /// AWS calls per module, with the number of modules.
    pub calls_a_module: Option<(u64, u64)>,
    /// Calls that change stored data.
    pub writes: Option<u64>,
    /// Messages.
    pub messages: Option<u64>,
    /// Invocations of `derive`.
    pub derive_runs: Option<u64>,
    /// Dependent rounds of the calls of `symbolicate`.
    pub rounds: Option<u64>,
}

/// Adds a row of the table to the report, as a group of numbers.
pub fn add(report: &mut Report, title: &str, runs: &[Run], limits: &Limits) {
    let count = |what: &str, limit: Option<u64>, of: &dyn Fn(&Run) -> u64| {
        let most = runs.iter().map(of).max().unwrap_or(0);
        let row = Row::new(what, most.to_string());
        match limit {
            Some(limit) => row.target(at_most(&limit.to_string(), limit == 0), most <= limit),
            None => row,
        }
    };
    let time = |what: &str, limit: Option<f64>, of: &dyn Fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(of).collect();
        let median = percentile(&values, 50);
        let row = Row::new(what, milliseconds(median));
        match limit {
            Some(limit) => row.target(format!("≤ {limit} ms"), median <= limit),
            None => row,
        }
    };
    let mut rows = vec![time("response time", limits.time, &|run| run.time)];
    if runs.iter().any(|run| run.process_start() > 0.0) {
        let beyond = limits.time_beyond_start;
        rows.push(time("of that, process start", None, &|run| {
            run.process_start()
        }));
        rows.push(time("without process start", beyond, &|run| {
            run.time - run.process_start()
        }));
    }
    rows.push(count("BatchGetItem", limits.batch_gets, &|run| {
        run.stats.calls("dynamodb", "BatchGetItem")
    }));
    rows.push(count("GetObject", limits.get_objects, &|run| {
        run.stats.calls("s3", "GetObject")
    }));
    rows.push(count("writes", limits.writes, &Run::writes));
    rows.push(count("calls that send messages", None, &Run::sends));
    rows.push(count("messages", limits.messages, &|run| {
        run.stats.messages()
    }));
    rows.push(count("invocations of derive", limits.derive_runs, &|run| {
        run.stats.function("derive").invocations
    }));
    rows.push(count("AWS calls", limits.calls, &|run| {
        run.stats.aws_calls()
    }));
    if let Some((limit, modules)) = limits.calls_a_module {
        let most = runs.iter().map(|run| run.stats.aws_calls()).max();
        let share = most.unwrap_or(0) as f64 / modules as f64;
        let row = Row::new("AWS calls per module", format!("{share:.1}"));
        rows.push(row.target(at_most(&limit.to_string(), false), share <= limit as f64));
    }
    rows.push(count(
        "dependent rounds of symbolicate",
        limits.rounds,
        &|run| run.stats.function("symbolicate").rounds,
    ));
    rows.push(count("dependent rounds of derive", None, &|run| {
        run.stats.function("derive").rounds
    }));
    if runs.iter().any(|run| run.questions > 0) {
        rows.push(count("requests to symbol servers", None, &|run| {
            run.questions
        }));
    }
    rows.push(Row::new(format!("calls: {}", operations(runs)), ""));
    for row in rows {
        report.add(title, row);
    }
}

fn at_most(limit: &str, is_exact: bool) -> String {
    if is_exact {
        limit.to_owned()
    } else {
        format!("≤ {limit}")
    }
}

/// Returns the calls by operation, each the maximum of all runs.
fn operations(runs: &[Run]) -> String {
    let mut most: BTreeMap<&str, u64> = BTreeMap::new();
    for run in runs {
        for (operation, calls) in run.stats.aws.values().flatten() {
            let known = most.entry(operation).or_default();
            *known = (*known).max(calls.calls);
        }
    }
    let named: Vec<String> = most
        .iter()
        .map(|(operation, calls)| format!("{calls} {operation}"))
        .collect();
    if named.is_empty() {
        "none".to_owned()
    } else {
        named.join(", ")
    }
}

/// Returns an error with an unexpected response.
pub fn unexpected(what: &'static str, answer: &Value) -> BenchError {
    BenchError::Answer {
        what,
        found: answer.to_string().chars().take(2000).collect(),
    }
}
