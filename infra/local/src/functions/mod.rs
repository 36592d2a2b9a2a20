//! Functions, run as in Lambda: their own binaries as processes that use the Lambda runtime API.
//!
//! - A process is started on demand, with Lambda's environment and no variable of this machine
//!   except `PATH`. It processes one event at a time, is reused, and is stopped (`SIGSTOP`) if it
//!   waits for the next event for longer than 10 ms, as a sandbox is frozen.
//! - At the deadline the whole process group is killed. A process that has left its group is found
//!   only when the stack ends.
//! - A function has at most as many processes as its reserved concurrency, or
//!   [`FunctionSpec::concurrency`]. **Further calls wait**; AWS would refuse them with 429 ("Rate
//!   exceeded"). Calls beyond an [`AccountLimit`] are refused, as in AWS.
//! - `TMPDIR` is a folder of each process, removed with it. (In Lambda it is `/tmp` of the
//!   sandbox.)
//! - A chain of events that invokes a function more than 16 times ends (`lineage`), unless
//!   [`FunctionSpec::allows_recursion`].
//! - Memory and disk sizes are passed to the function and reported, but not enforced. The timeout
//!   is.
//! - A process that cannot start fails the invocation that it was started for. (Lambda tries once
//!   more, with the function's own timeout.)
//!
//! Linux only: process groups, memory and leftover processes are read from `/proc`.

mod account;
mod environment;
mod error;
pub(crate) mod groups;
pub mod ledger;
mod lineage;
mod log;
mod pool;
mod process;
mod quotas;
mod runtime_api;
mod spec;
mod stats;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use account::AccountLimit;
use bytes::Bytes;
pub use error::{EndedEarly, FunctionError, FunctionsError};
use ledger::Ledger;
use log::FunctionLog;
use pool::Pool;
pub use quotas::MAX_EVENT;
pub(crate) use spec::Invocation;
pub use spec::{Answer, Endpoints, FunctionSpec};
pub use stats::{FunctionStats, Spread};
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

/// How long the sender of a message waits after its invocation was refused.
const AFTER_THROTTLING: Duration = Duration::from_secs(1);

/// All functions of the stack. Clones share the same functions.
#[derive(Clone, Debug)]
pub struct Functions {
    pools: Arc<BTreeMap<String, Arc<Pool>>>,
    ledger: Ledger,
    account: Option<AccountLimit>,
    begun: Arc<AtomicU64>,
    running: watch::Sender<BTreeMap<String, usize>>,
}

impl Functions {
    /// Prepares the functions for invocations. No process is started yet; leftover processes of
    /// earlier runs under `data` are killed.
    ///
    /// With `watchdog` (a `local-stack` binary) no function process outlives this one, however it
    /// dies.
    ///
    /// # Errors
    /// Returns an error if a binary is missing or the data folder cannot be written.
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
        // Absolute, because function processes have another working directory.
        let runs = runs.canonicalize().map_err(failed)?;
        let killed = ledger::end_earlier_runs(&runs);
        if killed > 0 {
            tracing::warn!(
                processes = killed,
                "killed leftover function processes of an earlier run"
            );
        }
        let ledger = Ledger::open(&runs.join(Uuid::new_v4().simple().to_string()), watchdog)
            .map_err(failed)?;
        let mut pools = BTreeMap::new();
        for mut spec in specs {
            // Absolute for the same reason. A link stays one: its name may tell the program what
            // to do.
            spec.binary = std::path::absolute(&spec.binary).map_err(failed)?;
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
            account: None,
            begun: Arc::default(),
            running: watch::Sender::new(running),
        })
    }

    /// Starts a process of each function, which shows whether its settings are right. The first
    /// invocations use these processes.
    ///
    /// # Errors
    /// [`FunctionsError::EndedEarly`] names the functions whose processes do not begin to work.
    pub async fn start_first(&self) -> Result<(), FunctionsError> {
        let started = self.pools.values().map(Pool::start_first);
        let started = futures::future::join_all(started).await;
        let ended: Vec<EndedEarly> = started.into_iter().filter_map(Result::err).collect();
        if ended.is_empty() {
            Ok(())
        } else {
            Err(FunctionsError::EndedEarly(ended))
        }
    }

    /// Limits how many invocations of all functions run at the same time.
    #[must_use]
    pub fn within(mut self, account: AccountLimit) -> Self {
        self.account = Some(account);
        self
    }

    /// Invokes `name` as [`Functions::invoke`] does, as soon as the account allows it. With the
    /// trace header of what causes it, it continues a chain.
    pub(crate) async fn invoke_when_allowed(
        &self,
        name: &str,
        payload: Bytes,
        trace: Option<&str>,
    ) -> Answer {
        let trace = trace.map_or_else(trace_id, str::to_owned);
        loop {
            let request_id = Uuid::new_v4().to_string();
            let answer = self.invoke_as(name, payload.clone(), request_id, trace.clone());
            let answer = answer.await;
            match &answer.outcome {
                Err(error) if error.is_throttled() => tokio::time::sleep(AFTER_THROTTLING).await,
                _ => return answer,
            }
        }
    }

    /// Invokes `name` with `payload` (JSON) and waits for the response. The invocation continues if
    /// this future is dropped.
    pub async fn invoke(&self, name: &str, payload: Bytes) -> Answer {
        let request_id = Uuid::new_v4().to_string();
        self.invoke_as(name, payload, request_id, trace_id()).await
    }

    /// Returns the trace header whose chain has invoked `name` most often.
    pub(crate) fn longest_chain<'a>(
        &self,
        name: &str,
        headers: impl Iterator<Item = &'a str>,
    ) -> Option<&'a str> {
        let arn = &self.pools.get(name)?.sandbox.arn;
        headers.max_by_key(|header| lineage::next(header, arn).number)
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
        let link = lineage::next(&trace_id, &pool.sandbox.arn);
        if link.number > lineage::LIMIT && !pool.sandbox.spec.allows_recursion {
            pool.counting().recursive_invocations_dropped += 1;
            tracing::warn!(
                function = name,
                metric = "RecursiveInvocationsDropped",
                "ended a chain of messages that invoked the function {} times, as Lambda does unless the template sets `RecursiveLoop: Allow`",
                lineage::LIMIT
            );
            return refused(FunctionError::recursive());
        }
        let run = match self.account.as_ref().map(|account| account.admit(name)) {
            None => None,
            Some(Some(run)) => run,
            Some(None) => return refused(FunctionError::throttled()),
        };
        let (sender, receiver) = oneshot::channel();
        let invocation = Invocation {
            request_id: request_id.clone(),
            trace_id: link.header,
            payload,
        };
        let running = Running::begin(self, name);
        let pool = Arc::clone(pool);
        tokio::spawn(async move {
            pool.run(invocation, sender).await;
            drop((run, running));
        });
        receiver
            .await
            .unwrap_or_else(|_| refused(FunctionError::stopping()))
    }

    /// Returns the statistics of each function.
    pub fn stats(&self) -> BTreeMap<String, FunctionStats> {
        self.pools
            .iter()
            .map(|(name, pool)| (name.clone(), pool.counting().snapshot()))
            .collect()
    }

    /// Resets the statistics.
    pub fn reset_stats(&self) {
        for pool in self.pools.values() {
            *pool.counting() = stats::Counting::default();
        }
    }

    /// Returns how many invocations of each function are in progress: waiting, running, or answered
    /// but not yet ready for the next event. The receiver is notified of changes.
    pub fn running(&self) -> watch::Receiver<BTreeMap<String, usize>> {
        self.running.subscribe()
    }

    /// Returns how many invocations have begun. If the number is unchanged, none began in between.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Returns the maximum number of simultaneous invocations of `name`.
    pub fn concurrency(&self, name: &str) -> usize {
        self.pools
            .get(name)
            .map_or(0, |pool| pool.sandbox.spec.concurrency)
    }

    /// Ends all existing processes: idle ones at once, others after their invocation. Waits until
    /// all have ended, and returns how many were idle, by function.
    pub async fn end_warm(&self) -> BTreeMap<String, usize> {
        let ended = self
            .pools
            .iter()
            .map(|(name, pool)| async move { (name.clone(), pool.end_warm().await) });
        futures::future::join_all(ended).await.into_iter().collect()
    }

    /// Refuses new and waiting invocations, and waits for the end of those in progress, at most for
    /// this time.
    pub async fn drain(&self, limit: Duration) {
        for pool in self.pools.values() {
            pool.close();
        }
        let mut running = self.running.subscribe();
        let ended = running.wait_for(|running| running.values().all(|count| *count == 0));
        // Those that take longer are killed by the stop.
        let _ = tokio::time::timeout(limit, ended).await;
    }

    /// Kills all processes and waits for their end. Invocations in progress fail, which is not
    /// logged as a failure, and new ones are refused.
    pub async fn stop(&self) {
        for pool in self.pools.values() {
            pool.close();
            pool.abandon();
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

/// Counts an invocation as in progress until it is dropped.
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

/// Returns a new trace id in the format of the header ("AWS X-Ray developer guide", "Tracing
/// header").
pub(crate) fn trace_id() -> String {
    let random = Uuid::new_v4().simple().to_string();
    format!(
        "Root=1-{:08x}-{};Sampled=0",
        OffsetDateTime::now_utc().unix_timestamp(),
        random.get(..24).unwrap_or(&random)
    )
}
