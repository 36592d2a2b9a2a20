//! Wrappers around ports that inject faults.
//!
//! A call can fail before it has an effect, or after it, so that only the response is lost. It can
//! run twice, like a client that retries a request that had succeeded, or run so late that every
//! lease has expired. A test can also run other code just before a call: for example the write of
//! another holder, between a read and the write that depends on it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;

use crate::cache::{ItemKey, LEASE_LENGTH, Revision, Stored};
use crate::domain::Location;
use crate::ports::{
    BlobPage, BlobStore, Consistency, Created, Cursor, DifError, DifListing, DifPage, DifReader,
    DifStat, Fault, FaultKind, NotDeleted, Page, QueueMessage, Queues, Received, ReconcileMessage,
    RecordStore, Removed, Replaced, Segment,
};

/// The faults to inject, and the calls so far. Calls are counted from one, over all ports that
/// share these faults.
#[derive(Default)]
pub struct Faults {
    state: Mutex<FaultState>,
}

#[derive(Default)]
struct FaultState {
    calls: BTreeMap<Operation, u64>,
    faults: BTreeMap<(Operation, u64), How>,
    interruptions: BTreeMap<(Operation, u64), Interruption>,
    always: BTreeMap<Operation, How>,
}

type Interruption = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// An operation of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`RecordStore::load`].
    Load,
    /// [`RecordStore::query`].
    Query,
    /// [`RecordStore::replace`].
    Replace,
    /// [`RecordStore::remove`].
    Remove,
    /// [`RecordStore::page`].
    Page,
    /// [`BlobStore::get`].
    GetBlob,
    /// [`BlobStore::create`].
    CreateBlob,
    /// [`BlobStore::delete_many`].
    DeleteBlobs,
    /// [`BlobStore::list`].
    ListBlobs,
    /// [`BlobStore::presign`].
    PresignBlob,
    /// [`DifReader::stat`].
    StatDif,
    /// [`DifReader::read`].
    ReadDif,
    /// [`DifListing::list`].
    ListDifs,
    /// [`Queues::send`].
    Send,
    /// [`Queues::reconcile`].
    Reconcile,
    /// [`Queues::retry_later`].
    RetryLater,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// Transient error, without effect.
    Before,
    /// The call has its effect, and the response is lost.
    After,
    /// Throttled, without effect.
    Throttled,
    /// Permission denied, without effect.
    Denied,
    /// The call has its effect, the response is lost, and the client retries: the result is that of
    /// the retry.
    Repeated,
    /// The call runs [`How::LATE`] after it was made. The clock must be paused.
    Slow,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 16] = [
        Self::Load,
        Self::Query,
        Self::Replace,
        Self::Remove,
        Self::Page,
        Self::GetBlob,
        Self::CreateBlob,
        Self::DeleteBlobs,
        Self::ListBlobs,
        Self::PresignBlob,
        Self::StatDif,
        Self::ReadDif,
        Self::ListDifs,
        Self::Send,
        Self::Reconcile,
        Self::RetryLater,
    ];

    /// Returns whether the operation writes. For a read, failing before and after is the same.
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::Replace
                | Self::Remove
                | Self::CreateBlob
                | Self::DeleteBlobs
                | Self::Send
                | Self::Reconcile
                | Self::RetryLater
        )
    }

    /// Returns the ways to fail that differ for this operation.
    pub fn ways(self) -> &'static [How] {
        if self.writes() {
            &How::ALL
        } else {
            &[How::Before, How::Throttled, How::Denied, How::Slow]
        }
    }
}

impl How {
    /// Every way to fail.
    pub const ALL: [Self; 6] = [
        Self::Before,
        Self::After,
        Self::Throttled,
        Self::Denied,
        Self::Repeated,
        Self::Slow,
    ];

    /// How long a slow call is delayed: longer than a lease that is not extended.
    pub const LATE: Duration = LEASE_LENGTH.saturating_add(Duration::from_secs(10));
}

impl Faults {
    /// Returns an empty set of faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the `nth` call of an operation fail; the first call is 1, and earlier calls count.
    pub fn fail(&self, operation: Operation, nth: u64, how: How) {
        self.lock().faults.insert((operation, nth), how);
    }

    /// Makes every call of an operation fail from now on.
    pub fn fail_always(&self, operation: Operation, how: How) {
        self.lock().always.insert(operation, how);
    }

    /// Runs other code just before the `nth` call of an operation.
    pub fn interrupt<F>(
        &self,
        operation: Operation,
        nth: u64,
        interruption: impl FnOnce() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let interruption: Interruption = Box::new(|| Box::pin(interruption()));
        self.lock()
            .interruptions
            .insert((operation, nth), interruption);
    }

    /// Removes all faults. The counts are kept.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.faults.clear();
        state.interruptions.clear();
        state.always.clear();
    }

    /// Returns the number of calls of an operation, including failed ones.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.lock()
            .calls
            .get(&operation)
            .copied()
            .unwrap_or_default()
    }

    /// Makes a call, or injects its fault.
    async fn call<T, E, F>(&self, operation: Operation, call: impl Fn() -> F + Send) -> Result<T, E>
    where
        T: Send,
        E: From<Fault> + Send,
        F: Future<Output = Result<T, E>> + Send,
    {
        let (fault, interruption) = self.next(operation);
        if let Some(interruption) = interruption {
            interruption().await;
        }
        let Some(how) = fault else {
            return call().await;
        };
        let (kind, cause) = match how {
            How::Before => (
                FaultKind::Transient,
                "the connection broke before the request was sent",
            ),
            How::Throttled => (FaultKind::Transient, "too many requests"),
            How::Denied => (FaultKind::Denied, "access is denied"),
            How::After => {
                call().await?;
                (
                    FaultKind::Transient,
                    "the connection broke before the response arrived",
                )
            }
            How::Repeated => {
                call().await?;
                return call().await;
            }
            How::Slow => {
                tokio::time::sleep(How::LATE).await;
                return call().await;
            }
        };
        Err(
            Fault::new(kind, format!("{operation:?}, an injected fault"))
                .caused_by(cause)
                .into(),
        )
    }

    fn next(&self, operation: Operation) -> (Option<How>, Option<Interruption>) {
        let mut state = self.lock();
        let calls = state.calls.entry(operation).or_default();
        *calls += 1;
        let this = (operation, *calls);
        let fault = state
            .faults
            .remove(&this)
            .or_else(|| state.always.get(&operation).copied());
        (fault, state.interruptions.remove(&this))
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Faults")
            .field("calls", &state.calls)
            .field("faults", &state.faults)
            .field("interruptions", &state.interruptions.keys())
            .field("always", &state.always)
            .finish()
    }
}

/// A record store with injected faults.
#[derive(Clone, Debug)]
pub struct FaultyRecords {
    records: Arc<dyn RecordStore>,
    faults: Arc<Faults>,
}

impl FaultyRecords {
    /// Returns the store with these faults.
    pub fn new(records: Arc<dyn RecordStore>, faults: Arc<Faults>) -> Self {
        Self { records, faults }
    }
}

#[async_trait]
impl RecordStore for FaultyRecords {
    async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault> {
        self.faults
            .call(Operation::Load, || self.records.load(keys, consistency))
            .await
    }

    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        self.faults
            .call(Operation::Query, || self.records.query(partition))
            .await
    }

    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        self.faults
            .call(Operation::Replace, || {
                self.records.replace(key, expected, next)
            })
            .await
    }

    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault> {
        self.faults
            .call(Operation::Remove, || self.records.remove(key, expected))
            .await
    }

    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault> {
        self.faults
            .call(Operation::Page, || self.records.page(segment, after))
            .await
    }
}

/// A blob store with injected faults.
#[derive(Clone, Debug)]
pub struct FaultyBlobs {
    blobs: Arc<dyn BlobStore>,
    faults: Arc<Faults>,
}

impl FaultyBlobs {
    /// Returns the store with these faults.
    pub fn new(blobs: Arc<dyn BlobStore>, faults: Arc<Faults>) -> Self {
        Self { blobs, faults }
    }
}

#[async_trait]
impl BlobStore for FaultyBlobs {
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault> {
        self.faults
            .call(Operation::GetBlob, || self.blobs.get(path, range.clone()))
            .await
    }

    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        self.faults
            .call(Operation::CreateBlob, || {
                self.blobs.create(path, body.clone())
            })
            .await
    }

    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault> {
        self.faults
            .call(Operation::DeleteBlobs, || self.blobs.delete_many(paths))
            .await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault> {
        self.faults
            .call(Operation::ListBlobs, || self.blobs.list(prefix, after))
            .await
    }

    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault> {
        self.faults
            .call(Operation::PresignBlob, || {
                self.blobs.presign(path, lifetime, content_type)
            })
            .await
    }
}

/// A source of DIFs with injected faults.
#[derive(Clone, Debug)]
pub struct FaultyDifs {
    difs: Arc<dyn DifReader>,
    faults: Arc<Faults>,
}

impl FaultyDifs {
    /// Returns the source with these faults.
    pub fn new(difs: Arc<dyn DifReader>, faults: Arc<Faults>) -> Self {
        Self { difs, faults }
    }
}

#[async_trait]
impl DifReader for FaultyDifs {
    async fn stat(&self, location: &Location) -> Result<DifStat, DifError> {
        self.faults
            .call(Operation::StatDif, || self.difs.stat(location))
            .await
    }

    async fn read(
        &self,
        location: &Location,
        etag: &str,
        range: Range<u64>,
    ) -> Result<Bytes, DifError> {
        self.faults
            .call(Operation::ReadDif, || {
                self.difs.read(location, etag, range.clone())
            })
            .await
    }
}

/// A listing of DIFs with injected faults.
#[derive(Clone, Debug)]
pub struct FaultyListing {
    difs: Arc<dyn DifListing>,
    faults: Arc<Faults>,
}

impl FaultyListing {
    /// Returns the listing with these faults.
    pub fn new(difs: Arc<dyn DifListing>, faults: Arc<Faults>) -> Self {
        Self { difs, faults }
    }
}

#[async_trait]
impl DifListing for FaultyListing {
    async fn list(&self, after: Option<&Location>) -> Result<DifPage, Fault> {
        self.faults
            .call(Operation::ListDifs, || self.difs.list(after))
            .await
    }
}

/// Queues with injected faults.
#[derive(Clone, Debug)]
pub struct FaultyQueues {
    queues: Arc<dyn Queues>,
    faults: Arc<Faults>,
}

impl FaultyQueues {
    /// Returns the queues with these faults.
    pub fn new(queues: Arc<dyn Queues>, faults: Arc<Faults>) -> Self {
        Self { queues, faults }
    }
}

#[async_trait]
impl Queues for FaultyQueues {
    async fn send(&self, messages: &[QueueMessage], delay: Duration) -> Result<(), Fault> {
        self.faults
            .call(Operation::Send, || self.queues.send(messages, delay))
            .await
    }

    async fn reconcile(&self, message: &ReconcileMessage, delay: Duration) -> Result<(), Fault> {
        self.faults
            .call(Operation::Reconcile, || {
                self.queues.reconcile(message, delay)
            })
            .await
    }

    async fn retry_later(&self, received: &Received, delay: Duration) -> Result<(), Fault> {
        self.faults
            .call(Operation::RetryLater, || {
                self.queues.retry_later(received, delay)
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::memory::{MemoryBlobs, MemoryRecords};
    use crate::cache::{Entry, Item, Kind, ModuleKey};
    use crate::domain::{ModuleId, Scope, Timestamp};

    struct Bench {
        memory: Arc<MemoryRecords>,
        faults: Arc<Faults>,
        records: FaultyRecords,
        key: ItemKey,
    }

    fn bench() -> Bench {
        let (memory, faults) = (Arc::new(MemoryRecords::new()), Arc::new(Faults::new()));
        let records = FaultyRecords::new(memory.clone(), faults.clone());
        Bench {
            memory,
            faults,
            records,
            key: module().entry(Kind::SymCache),
        }
    }

    fn module() -> ModuleKey {
        ModuleKey::uploads(
            Scope::Global,
            &ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap()),
        )
    }

    fn stored(revision: u64) -> Stored {
        let entry = Entry::new(module(), Kind::SymCache, Timestamp::from_secs(revision));
        Stored {
            revision: Revision::from_random(revision),
            item: Item::Entry(entry),
        }
    }

    #[tokio::test]
    async fn a_call_that_fails_before_has_no_effect_and_one_that_fails_after_has() {
        let Bench {
            memory,
            faults,
            records,
            key,
        } = bench();
        for how in [How::Before, How::Throttled] {
            faults.fail(
                Operation::Replace,
                faults.calls(Operation::Replace) + 1,
                how,
            );
            let error = records.replace(&key, None, &stored(1)).await.unwrap_err();
            assert_eq!(
                (error.kind(), memory.peek(&key)),
                (FaultKind::Transient, None)
            );
        }
        faults.fail(Operation::Replace, 3, How::Denied);
        assert_eq!(
            records
                .replace(&key, None, &stored(1))
                .await
                .unwrap_err()
                .kind(),
            FaultKind::Denied
        );
        faults.fail(Operation::Replace, 4, How::After);
        assert_eq!(
            records
                .replace(&key, None, &stored(1))
                .await
                .unwrap_err()
                .kind(),
            FaultKind::Transient
        );
        assert_eq!(memory.peek(&key), Some(stored(1)));
        assert_eq!(
            (
                faults.calls(Operation::Replace),
                memory.calls().of("replace")
            ),
            (4, 1)
        );
    }

    #[tokio::test]
    async fn a_repeated_write_finds_its_own_item() {
        let Bench {
            faults,
            records,
            key,
            ..
        } = bench();
        faults.fail(Operation::Replace, 1, How::Repeated);
        assert_eq!(
            records.replace(&key, None, &stored(1)).await.unwrap(),
            Replaced::Done
        );

        let blobs = FaultyBlobs::new(Arc::new(MemoryBlobs::new()), faults.clone());
        faults.fail(Operation::CreateBlob, 1, How::Repeated);
        assert_eq!(
            blobs.create("a", Bytes::new()).await.unwrap(),
            Created::AlreadyThere
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_call_runs_after_every_lease_has_expired() {
        let Bench {
            memory,
            faults,
            records,
            key,
        } = bench();
        faults.fail(Operation::Replace, 1, How::Slow);
        let began = tokio::time::Instant::now();
        let stored = stored(1);
        let mut write = std::pin::pin!(records.replace(&key, None, &stored));
        assert!(
            tokio::time::timeout(LEASE_LENGTH, &mut write)
                .await
                .is_err()
        );
        assert_eq!(memory.peek(&key), None);
        assert_eq!(write.await.unwrap(), Replaced::Done);
        assert_eq!(began.elapsed(), How::LATE);
    }

    #[tokio::test]
    async fn another_writer_may_write_between_two_calls() {
        let Bench {
            memory,
            faults,
            records,
            key,
        } = bench();
        let (other, others_key) = (memory.clone(), key.clone());
        faults.interrupt(Operation::Replace, 1, move || async move {
            other.replace(&others_key, None, &stored(7)).await.unwrap();
        });
        assert_eq!(
            records
                .load(std::slice::from_ref(&key), Consistency::Strong)
                .await
                .unwrap(),
            [None]
        );
        assert_eq!(
            records.replace(&key, None, &stored(1)).await.unwrap(),
            Replaced::Lost(Some(stored(7)))
        );
    }

    #[tokio::test]
    async fn a_permanent_fault_lasts_until_it_is_removed() {
        let Bench {
            faults, records, ..
        } = bench();
        faults.fail_always(Operation::Page, How::Throttled);
        assert!(
            records.page(Segment::WHOLE, None).await.is_err()
                && records.page(Segment::WHOLE, None).await.is_err()
        );
        faults.heal();
        assert!(records.page(Segment::WHOLE, None).await.is_ok());
        assert_eq!(faults.calls(Operation::Page), 3);
    }
}
