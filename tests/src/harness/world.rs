//! The world of a test: stores, lanes, clock, chance.

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
    MemoryBlobs, MemoryDifs, MemoryQueues, MemoryRecords, MemoryServers, SentMessage, SentReconcile,
};
use symdepot::adapters::parser::InProcessDeriver;
use symdepot::api::symbolicator::Completed;
use symdepot::cache::{Entry, Item, ItemKey, Kind, ModuleKey, Upload, violations};
use symdepot::domain::{Location, ModuleId, Scope, Timestamp};
use symdepot::flows::build::Builder;
use symdepot::flows::memory::Memory;
use symdepot::flows::prune::{Pruner, Report};
use symdepot::flows::symbolicate::{Kept, SymbolicateOutcome, Symbolicator};
use symdepot::flows::uploads::{ReconcileMessage, UploadChange, UploadEvent};
use symdepot::flows::{Error, Invocation, Settings};
use symdepot::ports::{DifStat, QueueMessage};
use tokio::time::Instant;

use super::deriver::{Derivations, ObservedDeriver};
use super::distant::DistantRecords;
use super::fixtures::fixture;
use super::requests::Crash;
use super::summary;

/// The time at which every world begins.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

/// The time that `derive` has.
const DERIVE_TIME: Duration = Duration::from_secs(900);

/// The time that `symbolicate` has.
const SYMBOLICATE_TIME: Duration = Duration::from_secs(29);

/// Messages that a lane may deliver before a test takes it for going round in a circle.
const MOST_MESSAGES: usize = 200;

/// Stores, lanes, clock and chance. Clones share all of it.
#[derive(Clone)]
pub struct World {
    /// The records, as they are.
    pub records: Arc<MemoryRecords>,
    /// The bucket of derived caches, as it is.
    pub caches: Arc<MemoryBlobs>,
    /// The bucket that users upload to, as it is.
    pub uploads: Arc<MemoryDifs>,
    /// The symbol servers.
    pub servers: Arc<MemoryServers>,
    /// The lanes, as they are.
    pub queues: Arc<MemoryQueues>,
    /// What every call to any port goes through.
    pub faults: Arc<Faults>,
    /// What is derived.
    pub derivations: Derivations,
    /// The settings.
    pub settings: Settings,
    builder: Builder,
    symbolicator: Symbolicator,
    began: Instant,
    /// Seconds that the wall clock was set forwards.
    clock_error: Arc<AtomicI64>,
    drawn: Arc<AtomicU64>,
}

fn memory(settings: &Settings) -> Memory {
    Memory::new(
        settings.memory_cache_bytes,
        settings.policy.retry_misses_after,
    )
}

/// What became of a delivery.
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
        // Sizes that a test can reach, and no pace for the pruner.
        let mut settings = Settings {
            dif_max_bytes: 1 << 30,
            scratch_bytes: 256 << 20,
            parser_memory_bytes: 2 << 30,
            sweep_read_units: 0,
            memory_cache_bytes: 64 << 20,
            ..Settings::default()
        };
        change(&mut settings);
        let (records, caches) = (Arc::new(MemoryRecords::new()), Arc::new(MemoryBlobs::new()));
        let servers = Arc::new(MemoryServers::new());
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
            symbolicator: Symbolicator {
                records: records.clone(),
                caches: caches.clone(),
                queues: queues.clone(),
                demangler: Arc::new(InProcessDemangler),
                memory: Arc::new(memory(&settings)),
                settings: settings.clone(),
            },
            records,
            caches,
            uploads,
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

    /// Returns the same world, its functions deployed anew with other settings.
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
        world.symbolicator = Symbolicator {
            records,
            caches,
            queues,
            demangler: Arc::new(InProcessDemangler),
            memory: Arc::new(memory(&settings)),
            settings,
        };
        world
    }

    /// Returns the same world, seen by another instance of `symbolicate`, which remembers nothing
    /// yet.
    #[must_use]
    pub fn another_instance(&self) -> Self {
        self.deployed_with(|_| {})
    }

    /// Returns other instances of `symbolicate` and `derive`, whose calls to the records take a
    /// time each.
    #[must_use]
    pub fn distant_instance(&self, latency: Duration) -> Self {
        let mut world = self.another_instance();
        let inner = world.symbolicator.records.clone();
        let distant = Arc::new(DistantRecords { inner, latency });
        world.symbolicator.records = distant.clone();
        world.builder.records = distant;
        world
    }

    // Clock and chance.

    /// Waits for a time; others go on meanwhile.
    pub async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Lets time pass.
    pub async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    /// Sets the wall clock forwards, or back; the monotonic clock knows nothing of it.
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

    /// Begins an invocation that may run for a time.
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

    /// Puts bytes into the uploads bucket; returns the event that says so, which nobody has
    /// delivered yet.
    pub fn put(&self, key: &str, body: impl Into<Bytes>) -> UploadEvent {
        self.uploads.set_now(self.now());
        let body = body.into();
        let size = body.len() as u64;
        let etag = self.uploads.put(&Location::new(key), body);
        self.event(key, UploadChange::Created, Some(DifStat { etag, size }))
    }

    /// Removes a key from the uploads bucket; returns the event that says so, which nobody has
    /// delivered yet.
    pub fn take_away(&self, key: &str) -> UploadEvent {
        self.uploads.remove(&Location::new(key));
        self.event(key, UploadChange::Removed, None)
    }

    fn event(&self, key: &str, change: UploadChange, written: Option<DifStat>) -> UploadEvent {
        let sequencer = format!("{:018X}", self.drawn.fetch_add(1, Ordering::Relaxed));
        UploadEvent {
            key: key.to_owned(),
            sequencer,
            change,
            written,
        }
    }

    /// Delivers an event of the uploads bucket, once.
    pub async fn deliver(&self, event: &UploadEvent) -> Delivery {
        let invocation = self.invocation(DERIVE_TIME);
        Box::pin(self.builder.upload(&invocation, event)).await
    }

    /// Uploads a fixture, delivers the event and whatever comes of it; returns what became of the
    /// upload.
    pub async fn upload(&self, key: &str, path: &str) -> Upload {
        let event = self.put(key, fixture(path));
        self.deliver(&event)
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"));
        self.settle().await;
        self.upload_item(key)
    }

    /// Removes an upload, delivers the event and whatever comes of it.
    pub async fn remove(&self, key: &str) {
        let event = self.take_away(key);
        self.deliver(&event)
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"));
        self.settle().await;
    }

    /// Delivers a message that asks to reconcile a key, once.
    pub async fn reconcile(&self, key: &str) -> Delivery {
        self.go_on(&ReconcileMessage::new(Location::new(key))).await
    }

    /// Delivers a message that asks to reconcile a key, or to go on with it, once.
    pub async fn go_on(&self, message: &ReconcileMessage) -> Delivery {
        let invocation = self.invocation(DERIVE_TIME);
        Box::pin(self.builder.reconcile(&invocation, message)).await
    }

    /// Delivers a message of a lane, once.
    pub async fn serve(&self, message: &QueueMessage) -> Delivery {
        self.serve_within(message, DERIVE_TIME).await
    }

    /// Delivers a message of a lane, once, to a function that has only so much time.
    pub async fn serve_within(&self, message: &QueueMessage, time: Duration) -> Delivery {
        let invocation = self.invocation(time);
        Box::pin(self.builder.serve(&invocation, message)).await
    }

    /// Delivers everything that waits in the lanes, each at its time, until nothing does.
    pub async fn settle(&self) {
        for _ in 0..MOST_MESSAGES {
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

    /// Does something while `derive` serves whatever comes into the lanes, one message after the
    /// other.
    pub async fn with_derive_at_work<T>(&self, work: impl Future<Output = T>) -> T {
        let serving = async {
            let mut waiting = VecDeque::new();
            loop {
                waiting.extend(self.queues.drain());
                if let Some(SentMessage { message, delay }) = waiting.pop_front() {
                    tokio::time::sleep(delay).await;
                    if self.serve(&message).await.is_err() {
                        // It comes again, as it would from a queue.
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
            () = serving => unreachable!("derive works for ever"),
        }
    }

    // A request becomes a response.

    /// Answers a request in a scope, waiting for a time.
    pub async fn answer(
        &self,
        request: &Crash,
        scope: &Scope,
        wait: Duration,
    ) -> Result<SymbolicateOutcome, Error> {
        let invocation = self.invocation(SYMBOLICATE_TIME);
        let kept = Kept {
            wait,
            id: "a request",
            body: None,
        };
        Box::pin(self.symbolicator.answer(&invocation, request, scope, kept)).await
    }

    /// Answers a request in the global scope while `derive` is at work; it must be finished in the
    /// end.
    pub async fn symbolicate(&self, request: &Crash) -> Completed {
        self.symbolicate_for(&Scope::Global, request).await
    }

    /// Answers a request in a scope while `derive` is at work; it must be finished in the end.
    pub async fn symbolicate_for(&self, scope: &Scope, request: &Crash) -> Completed {
        let answer = self
            .with_derive_at_work(self.answer(request, scope, Duration::from_secs(25)))
            .await;
        match answer {
            Ok(SymbolicateOutcome::Completed(completed, _)) => *completed,
            other => panic!("not finished: {other:?}"),
        }
    }

    /// Returns what answers requests.
    pub fn symbolicator(&self) -> &Symbolicator {
        &self.symbolicator
    }

    // A schedule removes what is no longer used.

    /// Sweeps; fails where a call failed on the way.
    pub async fn prune(&self) -> Result<Report, Error> {
        let report = self.prune_despite_failures().await?;
        report.failure().map_or(Ok(report), Err)
    }

    /// Sweeps; what failed on the way is in the report.
    pub async fn prune_despite_failures(&self) -> Result<Report, Error> {
        let invocation = self.invocation(DERIVE_TIME);
        Box::pin(self.pruner().prune(&invocation, false)).await
    }

    /// Says what a sweep would do.
    pub async fn prune_dry(&self) -> Result<Report, Error> {
        let invocation = self.invocation(DERIVE_TIME);
        Box::pin(self.pruner().prune(&invocation, true)).await
    }

    /// Returns what sweeps.
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

    // What is stored.

    /// Returns what became of an upload; there must be an item for it.
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

    /// Returns the entry of a kind of the module with this debug id, among the uploads of a scope.
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

    /// Returns the number of calls to all stores and lanes so far.
    pub fn calls(&self) -> u64 {
        self.records.calls().total()
            + self.caches.calls().total()
            + self.uploads.calls().total()
            + self.queues.calls().total()
    }

    /// Returns what is stored, without what chance and time made of it: a line for each thing that
    /// matters.
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

    /// Checks what must hold at any time: every entry is sound, and no state points at a blob that
    /// is gone.
    pub fn check(&self) {
        self.check_but(&[]);
    }

    /// Checks the same, but for blobs that somebody took away by hand.
    pub fn check_but(&self, lost: &[String]) {
        for entry in self.entries() {
            assert_eq!(violations(&entry), Vec::<&str>::new(), "{entry:#?}");
        }
        for blob in self.gone_blobs() {
            assert!(lost.contains(&blob), "{blob} is named and gone");
        }
    }

    /// Returns the paths of the blobs that an entry names and that are gone.
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
