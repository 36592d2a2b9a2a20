//! The world of a test: stores, queues, clock, randomness.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use symdepot::adapters::demangler::InProcessDemangler;
use symdepot::adapters::faulty::{
    Faults, FaultyBlobs, FaultyDifs, FaultyListing, FaultyQueues, FaultyRecords,
};
use symdepot::adapters::memory::{
    MemoryAttachments, MemoryBlobs, MemoryDifs, MemoryQueues, MemoryRecords, MemoryRemoteFiles,
    MemoryServers, SentMessage, SentReconcile,
};
use symdepot::adapters::parser::InProcessDeriver;
use symdepot::api::symbolicator::Completed;
use symdepot::cache::{Entry, Item, ItemKey, Kind, ModuleKey, Upload, violations};
use symdepot::domain::{Location, ModuleId, Scope, Sequencer, Timestamp};
use symdepot::flows::HttpService;
use symdepot::flows::build::Builder;
use symdepot::flows::memory::Memory;
use symdepot::flows::prune::{Pruner, Report};
use symdepot::flows::requests::CallState;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::flows::uploads::{ReconcileMessage, UploadChange, UploadEvent};
use symdepot::flows::{Error, Invocation, Settings};
use symdepot::ports::{DifStat, QueueMessage, Received};
use tokio::time::Instant;

use super::deriver::{Derivations, ObservedDeriver};
use super::distant::{DistantBlobs, DistantRecords};
use super::fixtures::fixture;
use super::requests::Crash;
use super::summary;

/// The time at which every world starts.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

/// The time limit of a `derive` invocation.
const DERIVE_TIME: Duration = Duration::from_secs(900);

/// The time limit of a `symbolicate` invocation.
const SYMBOLICATE_TIME: Duration = Duration::from_secs(29);

/// The visibility timeout of the queues (infra/template.yaml).
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(960);

/// The maximum number of messages; a test whose queues deliver more is assumed to be in an endless
/// loop.
const MAX_MESSAGES: usize = 200;

/// Stores, queues, clock and randomness. Clones share all of them.
#[derive(Clone)]
pub struct World {
    /// The records, without injected faults.
    pub records: Arc<MemoryRecords>,
    /// The bucket of derived caches, without injected faults.
    pub caches: Arc<MemoryBlobs>,
    /// The bucket that users upload to, without injected faults.
    pub uploads: Arc<MemoryDifs>,
    /// The bucket that clients write attachments to.
    pub attachments: Arc<MemoryAttachments>,
    /// The symbol servers.
    pub servers: Arc<MemoryServers>,
    /// The queues, without injected faults.
    pub queues: Arc<MemoryQueues>,
    /// Injects faults into calls to the ports.
    pub faults: Arc<Faults>,
    /// Counts and controls derivations.
    pub derivations: Derivations,
    /// The settings.
    pub settings: Settings,
    builder: Builder,
    service: HttpService,
    began: Instant,
    /// Seconds by which the wall clock was set forward.
    clock_error: Arc<AtomicI64>,
    drawn: Arc<AtomicU64>,
}

/// Returns settings with sizes that a test can reach, and no rate limit for the pruner.
pub fn test_settings() -> Settings {
    Settings {
        dif_max_bytes: 1 << 30,
        scratch_bytes: 256 << 20,
        parser_memory_bytes: 2 << 30,
        sweep_read_units: 0,
        memory_cache_bytes: 64 << 20,
        ..Settings::default()
    }
}

fn memory(settings: &Settings) -> Memory {
    Memory::new(
        settings.memory_cache_bytes,
        settings.policy.retry_misses_after,
    )
}

/// The result of a delivery.
pub type Delivery = Result<(), Error>;

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n{}\n{}\n{}",
            self.records, self.caches, self.uploads, self.queues
        )
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// Returns a world with the default settings, except for limits that are too large for tests.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// Returns a world with other settings.
    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = test_settings();
        change(&mut settings);
        let (records, caches) = (Arc::new(MemoryRecords::new()), Arc::new(MemoryBlobs::new()));
        let servers = Arc::new(MemoryServers::new());
        let attachments = Arc::new(MemoryAttachments::default());
        let (uploads, queues) = (Arc::new(MemoryDifs::new()), Arc::new(MemoryQueues::new()));
        let world = Self {
            builder: Builder {
                records: records.clone(),
                caches: caches.clone(),
                uploads: uploads.clone(),
                servers: servers.clone(),
                queues: queues.clone(),
                deriver: Arc::new(ObservedDeriver {
                    inner: InProcessDeriver::new(settings.scratch_bytes),
                    derivations: Derivations::default(),
                }),
                settings: settings.clone(),
            },
            service: HttpService {
                records: records.clone(),
                caches: caches.clone(),
                uploads: uploads.clone(),
                attachments: attachments.clone(),
                remote_files: Arc::new(MemoryRemoteFiles::default()),
                queues: queues.clone(),
                demangler: Arc::new(InProcessDemangler),
                memory: Arc::new(memory(&settings)),
                settings: settings.clone(),
            },
            records,
            caches,
            uploads,
            attachments,
            servers,
            queues,
            faults: Arc::new(Faults::new()),
            derivations: Derivations::default(),
            settings: settings.clone(),
            began: Instant::now(),
            clock_error: Arc::default(),
            drawn: Arc::default(),
        };
        world.deployed_with(|_| {})
    }

    /// Returns the same world with its functions redeployed with other settings.
    #[must_use]
    pub fn deployed_with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut world = self.clone();
        change(&mut world.settings);
        let settings = world.settings.clone();
        let records = Arc::new(FaultyRecords::new(
            self.records.clone(),
            self.faults.clone(),
        ));
        let caches = Arc::new(FaultyBlobs::new(self.caches.clone(), self.faults.clone()));
        let queues = Arc::new(FaultyQueues::new(self.queues.clone(), self.faults.clone()));
        world.builder = Builder {
            records: records.clone(),
            caches: caches.clone(),
            uploads: Arc::new(FaultyDifs::new(self.uploads.clone(), self.faults.clone())),
            servers: self.servers.clone(),
            queues: queues.clone(),
            deriver: Arc::new(ObservedDeriver {
                inner: InProcessDeriver::new(settings.scratch_bytes),
                derivations: self.derivations.clone(),
            }),
            settings: settings.clone(),
        };
        world.service = HttpService {
            records,
            caches,
            uploads: self.uploads.clone(),
            attachments: self.attachments.clone(),
            remote_files: self.service.remote_files.clone(),
            queues,
            demangler: Arc::new(InProcessDemangler),
            memory: Arc::new(memory(&settings)),
            settings,
        };
        world
    }

    /// Returns the same world as another instance of `symbolicate` sees it, with an empty cache.
    #[must_use]
    pub fn another_instance(&self) -> Self {
        self.deployed_with(|_| {})
    }

    /// Returns other instances of `symbolicate` and `derive`, for which each call to the record
    /// store takes time.
    #[must_use]
    pub fn distant_instance(&self, latency: Duration) -> Self {
        let mut world = self.another_instance();
        let inner = world.service.records.clone();
        let distant = Arc::new(DistantRecords { inner, latency });
        world.service.records = distant.clone();
        world.builder.records = distant;
        world
    }

    /// Returns another instance of `symbolicate`, for which each read of a blob takes time.
    #[must_use]
    pub fn instance_with_distant_blobs(&self, latency: Duration) -> Self {
        let mut world = self.another_instance();
        let inner = world.service.caches.clone();
        world.service.caches = Arc::new(DistantBlobs { inner, latency });
        world
    }

    // Clock and randomness.

    /// Waits for a time, during which other tasks run.
    pub async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Advances the clock.
    pub async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    /// Sets the wall clock forward or back, and leaves the monotonic clock unchanged.
    pub fn set_clock(&self, seconds: i64) {
        self.clock_error.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Returns the time now.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.since_epoch().as_secs())
    }

    fn since_epoch(&self) -> Duration {
        let error = self.clock_error.load(Ordering::Relaxed);
        let set = Duration::from_secs(error.unsigned_abs());
        let now = EPOCH + self.began.elapsed();
        if error < 0 { now - set } else { now + set }
    }

    /// Starts an invocation with a time limit.
    pub fn invocation(&self, time: Duration) -> Invocation {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&drawn.to_le_bytes());
        self.caches.set_now(self.now());
        self.uploads.set_now(self.now());
        Invocation::new(
            format!("invocation {drawn}"),
            self.since_epoch(),
            time,
            seed,
        )
    }

    // An upload becomes derived caches.

    /// Puts bytes into the uploads bucket; returns the event, which is not delivered yet.
    pub fn put(&self, key: &str, body: impl Into<Bytes>) -> UploadEvent {
        self.uploads.set_now(self.now());
        let body = body.into();
        let size = body.len() as u64;
        let etag = self.uploads.put(&Location::new(key), body);
        self.event(key, UploadChange::Created, Some(DifStat { etag, size }))
    }

    /// Removes a key from the uploads bucket; returns the event, which is not delivered yet.
    pub fn take_away(&self, key: &str) -> UploadEvent {
        self.uploads.remove(&Location::new(key));
        self.event(key, UploadChange::Removed, None)
    }

    fn event(&self, key: &str, change: UploadChange, written: Option<DifStat>) -> UploadEvent {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let sequencer = Sequencer::new(format!("{drawn:018X}"));
        UploadEvent {
            key: key.to_owned(),
            sequencer,
            change,
            written,
        }
    }

    /// Delivers an event of the uploads bucket once.
    pub async fn deliver(&self, event: &UploadEvent) -> Delivery {
        let invocation = self.invocation(DERIVE_TIME);
        Box::pin(self.builder.apply_upload_event(&invocation, event)).await
    }

    /// Uploads a fixture, delivers the event and all messages that follow; returns the upload item.
    pub async fn upload(&self, key: &str, path: &str) -> Upload {
        let event = self.put(key, fixture(path));
        self.deliver(&event)
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"));
        self.settle().await;
        self.upload_item(key)
    }

    /// Removes an upload, and delivers the event and all messages that follow.
    pub async fn remove(&self, key: &str) {
        let event = self.take_away(key);
        self.deliver(&event)
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"));
        self.settle().await;
    }

    /// Delivers a message that starts reconciling a key once.
    pub async fn reconcile(&self, key: &str) -> Delivery {
        self.go_on(&ReconcileMessage::new(Location::new(key))).await
    }

    /// Delivers a message that starts or continues reconciling a key once.
    pub async fn go_on(&self, message: &ReconcileMessage) -> Delivery {
        let invocation = self.invocation(DERIVE_TIME);
        Box::pin(self.builder.reconcile(&invocation, message)).await
    }

    /// Delivers a message of a queue once.
    pub async fn serve(&self, message: &QueueMessage) -> Delivery {
        self.serve_within(message, DERIVE_TIME).await
    }

    /// Delivers a message of a queue once, to a function with this time limit.
    pub async fn serve_within(&self, message: &QueueMessage, time: Duration) -> Delivery {
        self.serve_in(&self.invocation(time), message).await
    }

    /// Delivers each message of the queues once, to functions with this time limit.
    pub async fn serve_queued_within(&self, time: Duration) {
        for sent in self.queues.drain() {
            let served = self.serve_within(&sent.message, time).await;
            served.unwrap_or_else(|error| panic!("{:?}: {error}", sent.message));
        }
    }

    /// Delivers a message of a queue once, to this invocation.
    pub async fn serve_in(&self, invocation: &Invocation, message: &QueueMessage) -> Delivery {
        Box::pin(self.builder.serve(invocation, message)).await
    }

    /// Returns the delay after which a message that failed after this number of receives is
    /// delivered again: the one that `derive` sets, or else the visibility timeout of the queue.
    pub async fn delay_of_retry(&self, receives: u32) -> Duration {
        let received = Received {
            queue: "arn:aws:sqs:us-east-1:000000000000:UploadsQueue".to_owned(),
            receipt: String::new(),
        };
        match self.builder.retry_later(&received, receives).await {
            Ok(()) => {
                let set = self.queues.drain_retried().pop();
                set.map_or(VISIBILITY_TIMEOUT, |(_, delay)| delay)
            }
            Err(_) => VISIBILITY_TIMEOUT,
        }
    }

    /// Delivers all messages of the queues, each at its time, until the queues are empty.
    pub async fn settle(&self) {
        for _ in 0..MAX_MESSAGES {
            let reconciled = self.queues.drain_reconcile_messages();
            for SentReconcile { message, delay } in &reconciled {
                self.pass(*delay).await;
                self.go_on(message)
                    .await
                    .unwrap_or_else(|error| panic!("{message:?}: {error}"));
            }
            let mut waiting = self.queues.drain();
            if waiting.is_empty() && reconciled.is_empty() {
                return;
            }
            waiting.sort_by_key(|sent| sent.delay);
            let mut passed = Duration::ZERO;
            for SentMessage { message, delay } in waiting {
                self.pass(delay.saturating_sub(passed)).await;
                passed = passed.max(delay);
                self.serve(&message)
                    .await
                    .unwrap_or_else(|error| panic!("{message:?}: {error}"));
            }
        }
        panic!("the queues never become empty:\n{}", self.queues);
    }

    /// Does something while `derive` processes the messages of the queues one by one.
    pub async fn with_derive_at_work<T>(&self, work: impl Future<Output = T>) -> T {
        let serving = async {
            let mut waiting = VecDeque::new();
            loop {
                waiting.extend(self.queues.drain());
                if let Some(SentMessage { message, delay }) = waiting.pop_front() {
                    tokio::time::sleep(delay).await;
                    if self.serve(&message).await.is_err() {
                        // The message is redelivered, as by a queue.
                        waiting.push_back(SentMessage {
                            message,
                            delay: Duration::from_secs(1),
                        });
                    }
                } else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = serving => unreachable!("derive never finishes"),
        }
    }

    // A request becomes a response.

    /// Answers a request in a scope, with a timeout.
    pub async fn answer(
        &self,
        request: &Crash,
        scope: &Scope,
        wait: Duration,
    ) -> Result<SymbolicateOutcome, Error> {
        let invocation = self.invocation(SYMBOLICATE_TIME);
        let call = CallState::first("a request", scope, wait);
        Box::pin(self.service.answer(&invocation, request, call)).await
    }

    /// Sends a request that does not wait. It has to be pending.
    pub async fn leave_pending(&self, request: &Crash) {
        let answer = self.answer(request, &Scope::Global, Duration::ZERO).await;
        assert!(
            matches!(answer, Ok(SymbolicateOutcome::Pending)),
            "{answer:?}"
        );
    }

    /// Answers a request in the global scope while `derive` runs; panics unless it completes.
    pub async fn symbolicate(&self, request: &Crash) -> Completed {
        self.symbolicate_for(&Scope::Global, request).await
    }

    /// Answers a request in a scope while `derive` runs; panics unless it completes.
    pub async fn symbolicate_for(&self, scope: &Scope, request: &Crash) -> Completed {
        let answer = self
            .with_derive_at_work(self.answer(request, scope, Duration::from_secs(25)))
            .await;
        match answer {
            Ok(SymbolicateOutcome::Completed(completed, _)) => *completed,
            other => panic!("not finished: {other:?}"),
        }
    }

    /// Returns the symbolicator.
    pub fn service(&self) -> &HttpService {
        &self.service
    }

    // The schedule removes unused data.

    /// Runs a pass; fails if a call failed.
    pub async fn prune(&self) -> Result<Report, Error> {
        let report = self.prune_despite_failures().await?;
        report.failure().map_or(Ok(report), Err)
    }

    /// Runs a pass; the report has the calls that failed.
    pub async fn prune_despite_failures(&self) -> Result<Report, Error> {
        let invocation = self.invocation(DERIVE_TIME);
        Box::pin(self.pruner().prune(&invocation, false)).await
    }

    /// Reports what a pass would remove.
    pub async fn prune_dry(&self) -> Result<Report, Error> {
        let invocation = self.invocation(DERIVE_TIME);
        Box::pin(self.pruner().prune(&invocation, true)).await
    }

    /// Returns the pruner.
    pub fn pruner(&self) -> Pruner {
        Pruner {
            records: self.builder.records.clone(),
            caches: self.builder.caches.clone(),
            uploads: self.builder.uploads.clone(),
            listing: Arc::new(FaultyListing::new(
                self.uploads.clone(),
                self.faults.clone(),
            )),
            queues: self.builder.queues.clone(),
            settings: self.settings.clone(),
        }
    }

    // Stored data.

    /// Returns an upload item, which must exist.
    pub fn upload_item(&self, key: &str) -> Upload {
        match self
            .records
            .peek(&ItemKey::upload(&Location::new(key)))
            .map(|stored| stored.item)
        {
            Some(Item::Upload(upload)) => upload,
            other => panic!("{key}: {other:?}"),
        }
    }

    /// Returns every entry.
    pub fn entries(&self) -> Vec<Entry> {
        let entry = |item| {
            if let Item::Entry(entry) = item {
                Some(entry)
            } else {
                None
            }
        };
        self.records
            .items()
            .into_iter()
            .filter_map(|(_, stored)| entry(stored.item))
            .collect()
    }

    /// Returns the entry of this kind for the module with this debug id, among the uploads of a
    /// scope.
    pub fn entry(&self, scope: &str, debug_id: &str, kind: Kind) -> Option<Entry> {
        let key = self.module(scope, debug_id).entry(kind);
        match self.records.peek(&key)?.item {
            Item::Entry(entry) => Some(entry),
            other => panic!("{debug_id}: {other:?}"),
        }
    }

    /// Returns the key of the module with this debug id, among the uploads of a scope.
    pub fn module(&self, scope: &str, debug_id: &str) -> ModuleKey {
        let id = debug_id
            .parse()
            .unwrap_or_else(|error| panic!("{debug_id}: {error}"));
        let scope = scope
            .parse()
            .unwrap_or_else(|error| panic!("{scope}: {error}"));
        ModuleKey::uploads(scope, &ModuleId::Debug(id))
    }

    /// Returns the number of calls to all stores and queues so far.
    pub fn calls(&self) -> u64 {
        self.records.calls().total()
            + self.caches.calls().total()
            + self.uploads.calls().total()
            + self.queues.calls().total()
    }

    /// Returns a text of the stored data, one line per item, without values that depend on
    /// randomness and time.
    pub fn summary(&self) -> String {
        summary::of(self)
    }

    /// Returns the paths of the blobs that no entry names.
    pub fn orphans(&self) -> Vec<String> {
        let named: Vec<String> = self.named_blobs();
        let paths = self
            .caches
            .paths()
            .into_iter()
            .filter(|path| path.starts_with("derived/"));
        paths.filter(|path| !named.contains(path)).collect()
    }

    /// Checks the invariants: every entry is valid, and each blob that an entry names exists.
    pub fn check(&self) {
        self.check_but(&[]);
    }

    /// Checks the same, except for blobs that the test removed.
    pub fn check_but(&self, lost: &[String]) {
        for entry in self.entries() {
            assert_eq!(violations(&entry), Vec::<&str>::new(), "{entry:#?}");
        }
        for blob in self.gone_blobs() {
            assert!(
                lost.contains(&blob),
                "an entry names {blob}, which does not exist"
            );
        }
    }

    /// Returns the paths of the blobs that an entry names and that do not exist.
    pub fn gone_blobs(&self) -> Vec<String> {
        let paths = self.caches.paths();
        let mut named = self.named_blobs();
        named.retain(|path| !paths.contains(path));
        named
    }

    fn named_blobs(&self) -> Vec<String> {
        let states = |entry: Entry| {
            let states = entry.ready().into_iter().chain(entry.older());
            states
                .map(|ready| ready.blob.path.clone())
                .collect::<Vec<_>>()
        };
        self.entries().into_iter().flat_map(states).collect()
    }
}
