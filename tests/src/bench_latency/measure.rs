//! One row of the table: what its runs took, and whether that is within its limits.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

use crate::bench_real::report::{Report, Row, milliseconds};
use crate::bench_real::{BenchError, PATIENCE, percentile};
use crate::made_up::MadeUp;
use crate::stack::{Client, Stats};

/// Operations that change what is stored.
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

/// Gives out modules that no one has met before.
#[derive(Debug, Default)]
pub struct Modules {
    given: Cell<u32>,
}

impl Modules {
    /// Returns so many modules, each of so many functions.
    pub fn take(&self, count: u32, functions: usize) -> Vec<MadeUp> {
        let first = self.given.get() + 1;
        self.given.set(self.given.get() + count);
        (first..first + count)
            .map(|number| MadeUp::new(number, functions))
            .collect()
    }
}

/// What one run took.
#[derive(Clone, Debug)]
pub struct Run {
    /// Until the answer, in milliseconds.
    pub time: f64,
    /// What the stack has counted until nothing was left to do.
    pub stats: Stats,
    /// Questions to symbol servers.
    pub questions: u64,
}

impl Run {
    /// Lets the counts begin again, does something, and waits until nothing is left to do.
    ///
    /// # Errors
    /// As what is done, or the stack does not answer.
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

    /// From the start of the slowest process of `symbolicate` to its first event, in milliseconds;
    /// zero if none was started.
    fn process_start(&self) -> f64 {
        self.stats.function("symbolicate").init_ms.max
    }
}

/// The limits of a row. What has none is printed all the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Milliseconds until the answer.
    pub time: Option<f64>,
    /// The same, without the start of the process.
    pub time_beyond_start: Option<f64>,
    /// Calls of BatchGetItem.
    pub batch_gets: Option<u64>,
    /// Calls of GetObject.
    pub get_objects: Option<u64>,
    /// Calls of AWS services in all.
    pub calls: Option<u64>,
    /// Calls of AWS services, for each of so many modules.
    pub calls_a_module: Option<(u64, u64)>,
    /// Calls that change what is stored.
    pub writes: Option<u64>,
    /// Messages.
    pub messages: Option<u64>,
    /// Runs of `derive`.
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
    let mut rows = vec![time("answered after", limits.time, &|run| run.time)];
    if runs.iter().any(|run| run.process_start() > 0.0) {
        let beyond = limits.time_beyond_start;
        rows.push(time("of that, the start of the process", None, &|run| {
            run.process_start()
        }));
        rows.push(time("beyond it", beyond, &|run| {
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
    rows.push(count("runs of derive", limits.derive_runs, &|run| {
        run.stats.function("derive").invocations
    }));
    rows.push(count("calls of AWS in all", limits.calls, &|run| {
        run.stats.aws_calls()
    }));
    if let Some((limit, modules)) = limits.calls_a_module {
        let most = runs.iter().map(|run| run.stats.aws_calls()).max();
        let share = most.unwrap_or(0) as f64 / modules as f64;
        let row = Row::new("calls of AWS, a module", format!("{share:.1}"));
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
        rows.push(count("questions to symbol servers", None, &|run| {
            run.questions
        }));
    }
    rows.push(Row::new(format!("calls: {}", operations(runs)), ""));
    for row in rows {
        report.add(title, row);
    }
}

fn at_most(limit: &str, is_exact: bool) -> String {
    match is_exact {
        true => limit.to_owned(),
        false => format!("≤ {limit}"),
    }
}

/// The calls by operation, each the most of any run.
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
    match named.is_empty() {
        true => "none".to_owned(),
        false => named.join(", "),
    }
}

/// Returns an error that shows an answer that is not what the benchmark relies on.
pub fn unexpected(what: &'static str, answer: &Value) -> BenchError {
    BenchError::Answer {
        what,
        found: answer.to_string().chars().take(2000).collect(),
    }
}
