//! Functions, run as Lambda runs them: their own binaries as processes under the Lambda runtime API.
//!
//! - A process is started when it is needed, with Lambda's environment and nothing of this machine's but `PATH`. It takes one
//!   event at a time, is used again, and is stopped (`SIGSTOP`) while it waits for the next event, as a sandbox is frozen.
//! - At the deadline the whole process group is killed. A process that leaves its group is not found, unless the stack ends.
//! - A function has at most its reserved concurrency of processes, or [`FunctionSpec::concurrency`]. **Further calls queue**; AWS
//!   would refuse them with 429 ("Rate exceeded").
//! - `TMPDIR` is a folder of each process, removed with it. (On Lambda it is `/tmp` of the sandbox.)
//! - Memory and disk sizes are told and reported, not enforced. Time is.
//! - A process that cannot start fails the invocation that wanted it. (Lambda tries once more, with the function's own timeout.)
//!
//! Linux only: groups, memory and leftovers are read from `/proc`.

pub(crate) mod calendar;
mod environment;
mod error;
pub(crate) mod groups;
pub mod ledger;
mod log;
mod pool;
mod process;
mod runtime_api;
mod stats;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use calendar::Moment;
pub use error::{FunctionError, FunctionsError};
use ledger::Ledger;
use log::FunctionLog;
use pool::Pool;
pub use stats::{FunctionStats, Spread};
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

/// Most bytes of an event ("Lambda quotas": synchronous invocations).
pub const MAX_EVENT: usize = 6 * 1024 * 1024;

/// How to run a function.
#[derive(Clone, Debug)]
pub struct FunctionSpec {
    /// Its name.
    pub name: String,
    /// Its binary.
    pub binary: PathBuf,
    /// `AWS_LAMBDA_FUNCTION_MEMORY_SIZE`.
    pub memory_mb: u64,
    /// How long an invocation may take.
    pub timeout: Duration,
    /// Most processes at the same time.
    pub concurrency: usize,
    /// `AWS_LAMBDA_LOG_FORMAT`.
    pub log_format: String,
    /// `AWS_LAMBDA_LOG_GROUP_NAME`.
    pub log_group: String,
    /// Its own variables.
    pub environment: BTreeMap<String, String>,
}

/// Where the services listen, as URLs without a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// S3.
    pub s3: String,
    /// DynamoDB.
    pub dynamodb: String,
    /// SQS.
    pub sqs: String,
}

/// All functions of the stack. Clones are the same functions.
#[derive(Clone, Debug)]
pub struct Functions {
    pools: Arc<BTreeMap<String, Arc<Pool>>>,
    ledger: Ledger,
    begun: Arc<AtomicU64>,
    running: watch::Sender<BTreeMap<String, usize>>,
}

/// One event for a function.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    request_id: String,
    trace_id: String,
    payload: Bytes,
}

/// How an invocation ended.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The invocation's id.
    pub request_id: String,
    /// The function's answer.
    pub outcome: Result<Bytes, FunctionError>,
    /// From the event to the answer; zero if no process got the event.
    pub duration: Duration,
    /// How long the process took to start, if it was started for this event.
    pub cold: Option<Duration>,
}

impl Functions {
    /// Makes the functions ready to be invoked. Nothing is started yet; what an earlier run under `data` left is ended.
    ///
    /// With `watchdog` (a `local-stack` binary) no process outlives this one, however it dies.
    ///
    /// # Errors
    /// A binary is missing, or the data folder cannot be written.
    pub fn start(
        specs: Vec<FunctionSpec>,
        endpoints: &Endpoints,
        data: &Path,
        watchdog: Option<&Path>,
    ) -> Result<Self, FunctionsError> {
        let missing: Vec<PathBuf> = specs
            .iter()
            .filter(|spec| !spec.binary.is_file())
            .map(|spec| spec.binary.clone())
            .collect();
        if !missing.is_empty() {
            return Err(FunctionsError::MissingBinaries(missing));
        }
        let runs = data.join("tmp");
        let failed = |source: std::io::Error| FunctionsError::Data {
            folder: data.to_owned(),
            source,
        };
        std::fs::create_dir_all(&runs).map_err(failed)?;
        // Absolute, since function processes have another working directory.
        let runs = runs.canonicalize().map_err(failed)?;
        let killed = ledger::end_earlier_runs(&runs);
        if killed > 0 {
            tracing::warn!(
                processes = killed,
                "ended function processes that an earlier run left behind"
            );
        }
        let ledger = Ledger::open(&runs.join(Uuid::new_v4().simple().to_string()), watchdog)
            .map_err(failed)?;
        let mut pools = BTreeMap::new();
        for mut spec in specs {
            spec.binary = spec.binary.canonicalize().map_err(failed)?;
            let log = FunctionLog::open(&data.join("logs"), &spec.name).map_err(failed)?;
            let name = spec.name.clone();
            pools.insert(
                name,
                Arc::new(Pool::new(spec, endpoints.clone(), ledger.clone(), log)),
            );
        }
        let running = pools.keys().map(|name| (name.clone(), 0)).collect();
        Ok(Self {
            pools: Arc::new(pools),
            ledger,
            begun: Arc::default(),
            running: watch::Sender::new(running),
        })
    }

    /// Invokes `name` with `payload` (JSON) and waits for the answer. The invocation goes on if this future is dropped.
    pub async fn invoke(&self, name: &str, payload: Bytes) -> Answer {
        let request_id = Uuid::new_v4().to_string();
        self.invoke_as(name, payload, request_id, trace_id()).await
    }

    pub(crate) async fn invoke_as(
        &self,
        name: &str,
        payload: Bytes,
        request_id: String,
        trace_id: String,
    ) -> Answer {
        let refused = |error| Answer {
            request_id: request_id.clone(),
            outcome: Err(error),
            duration: Duration::ZERO,
            cold: None,
        };
        let Some(pool) = self.pools.get(name) else {
            return refused(FunctionError::unknown(name));
        };
        if payload.len() > MAX_EVENT {
            return refused(FunctionError::event_too_large(payload.len()));
        }
        let (sender, receiver) = oneshot::channel();
        let invocation = Invocation {
            request_id: request_id.clone(),
            trace_id,
            payload,
        };
        let running = Running::begin(self, name);
        let pool = Arc::clone(pool);
        tokio::spawn(async move {
            pool.run(invocation, sender).await;
            drop(running);
        });
        receiver
            .await
            .unwrap_or_else(|_| refused(FunctionError::stopping()))
    }

    /// What was counted, by function.
    pub fn stats(&self) -> BTreeMap<String, FunctionStats> {
        self.pools
            .iter()
            .map(|(name, pool)| (name.clone(), pool.counting().snapshot()))
            .collect()
    }

    /// Clears the counts.
    pub fn reset_stats(&self) {
        for pool in self.pools.values() {
            *pool.counting() = stats::Counting::default();
        }
    }

    /// How many invocations of each function wait or run, or have answered and are not settled. Watch it for changes.
    pub fn running(&self) -> watch::Receiver<BTreeMap<String, usize>> {
        self.running.subscribe()
    }

    /// How many invocations have begun. If it has not changed, none was missed between two looks.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Most invocations of `name` at the same time.
    pub fn concurrency(&self, name: &str) -> usize {
        self.pools.get(name).map_or(0, |pool| pool.spec.concurrency)
    }

    /// Ends all processes that exist now: idle ones at once, others after their invocation. Returns when all are gone; how many
    /// were idle, by function.
    pub async fn end_warm(&self) -> BTreeMap<String, usize> {
        let ended = self
            .pools
            .iter()
            .map(|(name, pool)| async move { (name.clone(), pool.end_warm().await) });
        futures::future::join_all(ended).await.into_iter().collect()
    }

    /// Kills all processes and waits until they are gone. Invocations end in errors; no more are taken.
    pub async fn stop(&self) {
        for pool in self.pools.values() {
            pool.close();
        }
        self.ledger.kill_all().await;
        let _ = self
            .running
            .subscribe()
            .wait_for(|running| running.values().all(|count| *count == 0))
            .await;
        let ledger = self.ledger.clone();
        let _ = tokio::task::spawn_blocking(move || ledger.close()).await;
    }
}

/// Counts an invocation as running until it is dropped.
struct Running {
    name: String,
    running: watch::Sender<BTreeMap<String, usize>>,
}

impl Running {
    fn begin(functions: &Functions, name: &str) -> Self {
        functions.begun.fetch_add(1, Ordering::SeqCst);
        functions
            .running
            .send_modify(|running| *running.entry(name.to_owned()).or_default() += 1);
        Self {
            name: name.to_owned(),
            running: functions.running.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.running.send_modify(|running| {
            if let Some(count) = running.get_mut(&self.name) {
                *count -= 1;
            }
        });
    }
}

/// A new trace id as a header has it ("AWS X-Ray developer guide", "Tracing header").
pub(crate) fn trace_id() -> String {
    let random = Uuid::new_v4().simple().to_string();
    format!(
        "Root=1-{:08x}-{};Sampled=0",
        Moment::now().seconds(),
        random.get(..24).unwrap_or(&random)
    )
}
