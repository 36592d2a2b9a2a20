//! The stack's own paths, under `/_local/` on the gateway: counters, a wait for idleness, the
//! clocks, and commands.

mod clock;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, StatusCode, request};
use http_body_util::Full;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use crate::event_sources::{Deliveries, schedule_event};
use crate::functions::{FunctionStats, Functions};
use crate::gateway::query_parameters;
use crate::iam::Access;
use crate::meter::Meter;
use crate::queues::{QueueError, Queues};
use crate::s3::{Lifecycle, Store};
use crate::template::Schedule;

/// How long `GET /_local/idle` waits by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest timeout that `GET /_local/idle` accepts.
const MAX_IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The available paths, listed in the response to an unknown path.
const PATHS: [&str; 7] = [
    "GET /_local/stats: calls of AWS services by operation, invocations and dependent rounds of calls by function, messages by queue",
    "DELETE /_local/stats: resets the counters",
    "GET /_local/access: the grants of the template, and what the functions used of them and were denied",
    "GET /_local/idle?timeout=60: responds when all queues are empty and no function runs, or with 504 after this many seconds",
    "POST /_local/clock?advance=960&of=sqs: moves the clock of sqs, s3, or both ahead by this many seconds; ?until=idle&timeout=60: moves that of SQS whenever only failed messages are left, and responds as /_local/idle does",
    "DELETE /_local/functions: ends all function processes; the next invocations are cold starts",
    "POST /_local/schedules/<function>?dry_run=true: invokes a function that has a schedule as the schedule does, and returns its result; POST /_local/<function> is the same",
];

type Answer = Response<Full<Bytes>>;

/// The parts of the stack that `/_local/` reads and controls.
#[derive(Clone, Debug)]
pub struct Control {
    /// The functions.
    pub functions: Functions,
    /// The queues.
    pub queues: Queues,
    /// The buckets.
    pub objects: Store,
    /// The rules by which their objects expire.
    pub lifecycle: Lifecycle,
    /// Each queue, with its dead-letter queue.
    pub queue_names: Arc<BTreeMap<String, Option<String>>>,
    /// The counters of the AWS services.
    pub meter: Meter,
    /// The permissions of the functions.
    pub access: Access,
    /// The messages that are being delivered.
    pub deliveries: Deliveries,
    /// The schedules.
    pub schedules: Arc<[Schedule]>,
}

/// The entry of one function in `GET /_local/stats`.
#[derive(Serialize)]
struct FunctionEntry {
    #[serde(flatten)]
    counts: FunctionStats,
    /// Dependent rounds: the largest number of calls of AWS services by one process of which no two
    /// overlapped.
    rounds: u64,
}

impl Control {
    /// Answers a request under `/_local`.
    pub(crate) async fn answer(&self, request: &request::Parts) -> Answer {
        let query = query_parameters(request.uri.query().unwrap_or_default());
        let path = request
            .uri
            .path()
            .trim_end_matches('/')
            .strip_prefix("/_local")
            .unwrap_or_default();
        match (&request.method, path) {
            (&Method::GET, "/stats") => self
                .stats()
                .await
                .map_or_else(failed, |stats| answer(StatusCode::OK, &stats)),
            (&Method::DELETE, "/stats") => {
                self.meter.reset();
                self.queues.reset_sent();
                self.functions.reset_stats();
                answer(StatusCode::OK, &json!({ "cleared": true }))
            }
            (&Method::GET, "/access") => {
                let (grants, uses) = self.access.report();
                answer(StatusCode::OK, &json!({ "grants": grants, "uses": uses }))
            }
            (&Method::GET, "/idle") => self.idle(&query, false).await,
            (&Method::POST, "/clock") => self.move_clock(&query).await,
            (&Method::DELETE, "/functions") => answer(
                StatusCode::OK,
                &json!({ "ended": self.functions.end_warm().await }),
            ),
            (method, path) => match self.schedule_at(path) {
                Some(schedule) if method == Method::POST => {
                    self.run_schedule(schedule, &query).await
                }
                _ => self.unknown(method, request.uri.path()),
            },
        }
    }

    /// Returns the response to an unknown path or method.
    fn unknown(&self, method: &Method, path: &str) -> Answer {
        let schedules: Vec<&str> = self
            .schedules
            .iter()
            .map(|schedule| schedule.logical_id.as_str())
            .collect();
        let detail = format!("the local stack has no {method} {path}");
        answer(
            StatusCode::NOT_FOUND,
            &json!({ "detail": detail, "paths": PATHS, "schedules": schedules }),
        )
    }

    /// Returns the counters, as in the response to `GET /_local/stats`.
    ///
    /// # Errors
    /// Returns an error if the queues cannot be read.
    pub async fn stats(&self) -> Result<Value, QueueError> {
        let mut queues = Map::new();
        for (name, dead_letters) in self.queue_names.iter() {
            let counts = self.queues.counts(name).await?;
            let dead = match dead_letters {
                Some(dead_letters) => {
                    let counts = self.queues.counts(dead_letters).await?;
                    counts.visible + counts.in_flight + counts.delayed
                }
                None => 0,
            };
            let entry = json!({
                "visible": counts.visible,
                "in_flight": counts.in_flight,
                "delayed": counts.delayed,
                "dead": dead,
                "sent": self.queues.sent(name),
            });
            queues.insert(name.clone(), entry);
        }
        let mut stats = match json!(self.meter.snapshot()) {
            Value::Object(stats) => stats,
            other => Map::from_iter([("aws".to_owned(), other)]),
        };
        stats.insert("functions".to_owned(), json!(self.function_entries()));
        stats.insert("queues".to_owned(), Value::Object(queues));
        Ok(Value::Object(stats))
    }

    /// Returns the counters of each function.
    fn function_entries(&self) -> BTreeMap<String, FunctionEntry> {
        let rounds = self.meter.rounds();
        let entry = |(name, counts): (String, FunctionStats)| {
            let rounds = rounds.get(&name).copied().unwrap_or(0);
            (name, FunctionEntry { counts, rounds })
        };
        self.functions.stats().into_iter().map(entry).collect()
    }

    /// Waits until the stack is idle. With `skips_retries`, the clock is moved whenever only failed
    /// messages are left, which are then retried.
    async fn idle(&self, query: &BTreeMap<String, String>, skips_retries: bool) -> Answer {
        let timeout = match query.get("timeout").map(|seconds| seconds.parse::<f64>()) {
            None => IDLE_TIMEOUT,
            Some(Ok(seconds)) if seconds >= 0.0 => Duration::try_from_secs_f64(seconds)
                .unwrap_or(MAX_IDLE_TIMEOUT)
                .min(MAX_IDLE_TIMEOUT),
            Some(_) => {
                return answer(
                    StatusCode::BAD_REQUEST,
                    &json!({ "detail": "timeout is not a number of seconds of at least 0" }),
                );
            }
        };
        let deadline = Instant::now() + timeout;
        let mut changes = self.queues.changes();
        let mut running = self.functions.running();
        let mut deliveries = self.deliveries.watch();
        loop {
            changes.mark_unchanged();
            running.mark_unchanged();
            deliveries.mark_unchanged();
            let busy = match self.busy().await {
                Ok(None) => return answer(StatusCode::OK, &json!({ "idle": true })),
                Ok(Some(busy)) => busy,
                Err(error) => return failed(error),
            };
            if skips_retries {
                match self.skip_to_retry().await {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) => return failed(error),
                }
            }
            let changed = async {
                tokio::select! {
                    _ = changes.changed() => {}
                    _ = running.changed() => {}
                    _ = deliveries.changed(), if skips_retries => {}
                }
            };
            if timeout_at(deadline, changed).await.is_err() {
                return answer(
                    StatusCode::GATEWAY_TIMEOUT,
                    &json!({ "idle": false, "busy": busy }),
                );
            }
        }
    }

    /// Returns the work that is left; `None` if there is none. Messages in dead-letter queues do
    /// not count.
    async fn busy(&self) -> Result<Option<Value>, QueueError> {
        let begun = self.functions.begun();
        let mut queues = Map::new();
        for name in self.work_queues() {
            let counts = self.queues.counts(name).await?;
            if counts.visible + counts.in_flight + counts.delayed > 0 {
                queues.insert(name.clone(), json!(counts));
            }
        }
        let running: BTreeMap<String, usize> = self
            .functions
            .running()
            .borrow()
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| (name.clone(), *count))
            .collect();
        // A function that started and ended while the queues were read may have sent a message to a
        // queue that was read before.
        if queues.is_empty() && running.is_empty() && self.functions.begun() == begun {
            return Ok(None);
        }
        Ok(Some(json!({ "queues": queues, "functions": running })))
    }

    /// Returns the queues that are not dead-letter queues.
    fn work_queues(&self) -> impl Iterator<Item = &String> {
        let dead_letters: Vec<&String> = self.queue_names.values().flatten().collect();
        let names = self.queue_names.keys();
        names.filter(move |name| !dead_letters.contains(name))
    }

    /// Returns the first schedule of the function in `/schedules/<function>` or `/<function>`: its
    /// name in the template, or that of its binary.
    fn schedule_at(&self, path: &str) -> Option<&Schedule> {
        let function = path.strip_prefix("/schedules").unwrap_or(path);
        let function = function.strip_prefix('/')?;
        self.schedules
            .iter()
            .find(|schedule| schedule.logical_id == function || schedule.function == function)
    }

    async fn run_schedule(&self, schedule: &Schedule, query: &BTreeMap<String, String>) -> Answer {
        let detail = match query.get("dry_run").map(String::as_str) {
            None | Some("false" | "0") => None,
            Some("" | "true" | "1") => Some(json!({ "dry_run": true })),
            Some(other) => {
                return answer(
                    StatusCode::BAD_REQUEST,
                    &json!({ "detail": format!("dry_run is {other:?}; expected true or false") }),
                );
            }
        };
        let event = schedule_event(schedule, detail);
        let result = self
            .functions
            .invoke(&schedule.function, Bytes::from(event.to_string()))
            .await;
        match result.outcome {
            Ok(bytes) => raw(StatusCode::OK, bytes),
            Err(error) => answer(StatusCode::BAD_GATEWAY, &error.to_json()),
        }
    }
}

fn failed(error: QueueError) -> Answer {
    answer(
        StatusCode::INTERNAL_SERVER_ERROR,
        &json!({ "detail": error.to_string() }),
    )
}

fn answer(status: StatusCode, value: &Value) -> Answer {
    raw(status, Bytes::from(format!("{value:#}\n")))
}

fn raw(status: StatusCode, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
