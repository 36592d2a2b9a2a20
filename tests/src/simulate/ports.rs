//! The ports of one instance: each call waits at the gate, meets its fate, and is recorded.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use symdepot::adapters::faulty::Operation;
use symdepot::adapters::parser::InProcessDeriver;
use symdepot::cache::{DeriveJob, Derived, Item, ItemKey, Revision, Stored, Transcoding};
use symdepot::domain::{Cause, Inspection, Location, Missing, Written};
use symdepot::ports::{
    BlobPage, BlobStore, Consistency, Created, Cursor, Deriver, DifError, DifListing, DifPage,
    DifReader, DifStat, Fault, FaultKind, NotDeleted, Page, ParseError, Parser, QueueMessage,
    Queues, Received, ReconcileMessage, RecordStore, Removed, Replaced, Scratch, Segment,
};

use super::Moment;
use super::describe;
use super::fleet::Function;
use super::gate::{Call, Fate, Gate};
use super::mistakes::Mistake;
use super::releases::Release;
use super::stores::{Stores, Writer, ready_now};
use super::workload::{EARLY_KILLER, KILLER, Readers, memmem};

/// The ports of one instance.
#[derive(Clone, Debug)]
pub(super) struct Ports {
    stores: Arc<Stores>,
    gate: Gate,
    /// Who calls, as the stores record it.
    writer: Arc<Mutex<Writer>>,
    deriver: InProcessDeriver,
}

impl Ports {
    pub(super) fn new(stores: Arc<Stores>, gate: Gate, writer: Writer) -> Self {
        Self {
            stores,
            gate,
            writer: Arc::new(Mutex::new(writer)),
            deriver: InProcessDeriver::new(256 << 20),
        }
    }

    /// Sets the id of the invocation that calls from now on.
    pub(super) fn begin(&self, invocation: &str) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.invocation = invocation.into();
    }

    /// Counts a call to a store or a queue.
    fn count(&self, call: Call) {
        let operation = match call {
            Call::Load(_) => Operation::Load,
            Call::Port(operation) => operation,
            Call::Inspect | Call::Derive | Call::Download | Call::Response => return,
        };
        let function = self.writer().function;
        let mut ledger = self.stores.ledger();
        *ledger.calls.entry((function, operation)).or_default() += 1;
    }

    /// Waits at the gate.
    pub(super) async fn pass(&self, call: Call) -> Fate {
        self.gate.pass(call, Moment::ZERO).await
    }

    /// Waits for a response that takes a time.
    pub(super) async fn respond_after(&self, time: Duration) {
        let at = self.stores.now() + time;
        self.gate.pass(Call::Response, at).await;
    }

    /// Returns the module that is sought at a location of a symbol server.
    pub(super) fn module_at(&self, location: &Location) -> Option<usize> {
        self.stores.locations.get(location).copied()
    }

    /// Returns the next of the numbers that the servers of the run draw.
    pub(super) fn draw(&self) -> u64 {
        let mut ledger = self.stores.ledger();
        ledger.drawn += 1;
        ledger.drawn
    }

    /// Adds a line to the trace.
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        let mut ledger = self.stores.ledger();
        ledger.note(|| format!("{}: {}", self.writer().instance, what()));
    }

    fn release(&self) -> Release {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.release
    }

    /// Returns an item as this release reads it: without its contents if it has a newer schema.
    fn seen(&self, stored: Stored) -> Stored {
        self.stores.seen(self.release(), stored)
    }

    fn seen_of_all(&self, loaded: Vec<Option<Stored>>) -> Result<Vec<Option<Stored>>, Fault> {
        let each = loaded.into_iter();
        let seen = each.map(|stored| stored.map(|stored| self.seen(stored)));
        let seen: Vec<Option<Stored>> = seen.collect();
        self.check_readable(seen.iter().flatten())?;
        Ok(seen)
    }

    /// Fails if one of these items cannot be read, if that is the planted mistake.
    fn check_readable<'a>(&self, mut seen: impl Iterator<Item = &'a Stored>) -> Result<(), Fault> {
        let is_newer = |stored: &Stored| matches!(stored.item, Item::Newer { .. });
        if self.stores.mistake == Some(Mistake::UnreadableItemsFailReads) && seen.any(is_newer) {
            Err(Fault::new(FaultKind::Corrupt, "an item cannot be read"))
        } else {
            Ok(())
        }
    }

    fn seen_in_place(&self, replaced: Replaced) -> Replaced {
        match replaced {
            Replaced::Done => Replaced::Done,
            Replaced::Lost(current) => Replaced::Lost(current.map(|stored| self.seen(stored))),
        }
    }

    fn writer(&self) -> Writer {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.clone()
    }

    /// Makes a call as its fate says.
    async fn call<T, E: From<Fault>>(
        &self,
        call: Call,
        subject: impl Fn() -> String,
        run: impl Fn(Duration) -> Result<T, E>,
        result: impl Fn(&T) -> String,
    ) -> Result<T, E> {
        let fate = self.gate.pass(call, Moment::ZERO).await;
        self.count(call);
        let fault = |detail: &str| {
            let fault = Fault::new(FaultKind::Transient, format!("{call}, simulated"));
            E::from(fault.caused_by(detail.to_owned()))
        };
        let keeps_lines = self.stores.ledger().trace.keeps_lines();
        let note = |answer: &dyn Fn() -> String| {
            // The subject looks at the ledger, so it is not made while the ledger is held.
            let line = keeps_lines.then(|| {
                let (name, answer) = (self.writer().instance, answer());
                let what = format!("{call} {}", subject());
                match fate {
                    Fate::Succeeds => format!("{name}: {what} -> {answer}"),
                    _ => format!("{name}: {what} [{fate:?}] -> {answer}"),
                }
            });
            self.stores.ledger().note(|| line.unwrap_or_default());
        };
        let run = |age| {
            let done = run(age);
            match &done {
                Ok(value) => note(&|| result(value)),
                Err(_) => note(&|| "refused".to_owned()),
            }
            done
        };
        match fate {
            Fate::Succeeds | Fate::ParserKilled => run(Duration::ZERO),
            Fate::Stale(age) => run(age),
            Fate::FailsBefore | Fate::Throttled => {
                note(&|| "fails".to_owned());
                Err(fault("no effect"))
            }
            Fate::FailsAfter => {
                run(Duration::ZERO)?;
                Err(fault("its response is lost"))
            }
            Fate::Repeated => {
                run(Duration::ZERO)?;
                run(Duration::ZERO)
            }
            Fate::Late(time) => {
                let done = run(Duration::ZERO);
                self.gate
                    .pass(Call::Response, self.stores.now() + time)
                    .await;
                done
            }
            Fate::Silent(time, has_effect) => {
                if has_effect {
                    run(Duration::ZERO)?;
                } else {
                    note(&|| "no response".to_owned());
                }
                self.gate
                    .pass(Call::Response, self.stores.now() + time)
                    .await;
                Err(fault("no response"))
            }
        }
    }
}

fn count<T>(found: &[T]) -> String {
    found.len().to_string()
}

#[async_trait]
impl RecordStore for Ports {
    async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Load(consistency),
            || stores.ledger().labels.keys(keys),
            |age| {
                let loaded = self.seen_of_all(stores.load(&self.writer(), keys, age))?;
                if self.writer().function == Function::Symbolicate {
                    stores.decide(self.release(), keys, &loaded);
                }
                Ok(loaded)
            },
            |found| describe::found(found),
        )
        .await
    }

    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::Query),
            || stores.ledger().labels.partition(partition),
            |_| {
                let mut found = ready_now(stores.records.query(partition))?;
                if let Some(mistake) = stores.mistake {
                    found = mistake.found(self.writer().function, found);
                }
                let each = found.into_iter();
                let seen = each.map(|(key, stored)| (key, self.seen(stored)));
                let seen: Vec<_> = seen.collect();
                self.check_readable(seen.iter().map(|(_, stored)| stored))?;
                Ok::<_, Fault>(seen)
            },
            |found: &Vec<_>| count(found),
        )
        .await
    }

    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::Replace),
            || {
                let key = stores.ledger().labels.key(key);
                format!("{key} ({})", describe::item(&next.item))
            },
            |_| Ok(self.seen_in_place(stores.replace(&self.writer(), key, expected, next)?)),
            |replaced| match replaced {
                Replaced::Done => "done".to_owned(),
                Replaced::Lost(_) => "lost".to_owned(),
            },
        )
        .await
    }

    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::Remove),
            || stores.ledger().labels.key(key),
            |_| {
                let removed = stores.remove(&self.writer(), key, expected)?;
                Ok::<_, Fault>(match removed {
                    Removed::Done => Removed::Done,
                    Removed::Lost(current) => Removed::Lost(self.seen(current)),
                })
            },
            |removed| match removed {
                Removed::Done => "done".to_owned(),
                Removed::Lost(_) => "lost".to_owned(),
            },
        )
        .await
    }

    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::Page),
            || format!("{segment:?}"),
            |_| {
                let mut page = ready_now(stores.records.page(segment, after))?;
                let items = page.items.into_iter();
                page.items = items
                    .map(|(key, stored)| (key, self.seen(stored)))
                    .collect();
                Ok::<_, Fault>(page)
            },
            |page: &Page| count(&page.items),
        )
        .await
    }
}

#[async_trait]
impl BlobStore for Ports {
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::GetBlob),
            || describe::path(path),
            |_| stores.get(&self.writer(), path, range.clone()),
            |found| {
                let bytes = found.as_ref().map(Bytes::len);
                bytes.map_or("absent".to_owned(), |bytes| format!("{bytes} bytes"))
            },
        )
        .await
    }

    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::CreateBlob),
            || describe::path(path),
            |_| stores.create(path, body.clone()),
            |created| format!("{created:?}"),
        )
        .await
    }

    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::DeleteBlobs),
            || {
                let paths: Vec<_> = paths.iter().map(|path| describe::path(path)).collect();
                paths.join(", ")
            },
            |_| stores.delete_many(&self.writer(), paths),
            |_| "done".to_owned(),
        )
        .await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::ListBlobs),
            || prefix.to_owned(),
            |_| {
                let mut page = ready_now(stores.caches.list(prefix, after))?;
                if stores.mistake == Some(Mistake::OrphansAreNotListed) {
                    page.blobs.clear();
                }
                Ok::<_, Fault>(page)
            },
            |page: &BlobPage| count(&page.blobs),
        )
        .await
    }

    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::PresignBlob),
            || describe::path(path),
            |_| {
                let lifetime = match stores.mistake {
                    Some(Mistake::UrlsOutliveRemovals) => Duration::from_secs(900),
                    _ => lifetime,
                };
                ready_now(stores.caches.presign(path, lifetime, content_type))
            },
            |_| "done".to_owned(),
        )
        .await
    }
}

#[async_trait]
impl DifReader for Ports {
    async fn stat(&self, location: &Location) -> Result<DifStat, DifError> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::StatDif),
            || location.to_string(),
            |_| ready_now(stores.uploads.stat(location)),
            |stat| format!("etag {}", describe::short(&stat.etag)),
        )
        .await
    }

    async fn read(
        &self,
        location: &Location,
        etag: &str,
        range: Range<u64>,
    ) -> Result<Bytes, DifError> {
        let stores = &self.stores;
        let is_read_forever = stores.mistake == Some(Mistake::ChangedFilesAreReadForever);
        self.call(
            Call::Port(Operation::ReadDif),
            || format!("{location} etag {}", describe::short(etag)),
            |_| match ready_now(stores.uploads.read(location, etag, range.clone())) {
                Err(DifError::Changed) if is_read_forever => {
                    Err(Fault::new(FaultKind::Transient, "the file has changed").into())
                }
                read => read,
            },
            |bytes| format!("{} bytes", bytes.len()),
        )
        .await
    }
}

#[async_trait]
impl DifListing for Ports {
    async fn list(&self, after: Option<&Location>) -> Result<DifPage, Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::ListDifs),
            String::new,
            |_| ready_now(DifListing::list(&stores.uploads, after)),
            |page| count(&page.difs),
        )
        .await
    }
}

#[async_trait]
impl Queues for Ports {
    async fn send(&self, messages: &[QueueMessage], delay: Duration) -> Result<(), Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::Send),
            || {
                let messages: Vec<_> = messages.iter().map(describe::message).collect();
                format!("{} after {} s", messages.join(", "), delay.as_secs())
            },
            |_| stores.send(messages, delay),
            |()| "done".to_owned(),
        )
        .await
    }

    async fn reconcile(&self, message: &ReconcileMessage, delay: Duration) -> Result<(), Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::Reconcile),
            || format!("{} after {} s", message.key, delay.as_secs()),
            |_| stores.reconcile(message, delay),
            |()| "done".to_owned(),
        )
        .await
    }

    async fn retry_later(&self, received: &Received, delay: Duration) -> Result<(), Fault> {
        let stores = &self.stores;
        self.call(
            Call::Port(Operation::RetryLater),
            || format!("message {} after {} s", received.receipt, delay.as_secs()),
            |_| ready_now(stores.queues.retry_later(received, delay)),
            |()| "done".to_owned(),
        )
        .await
    }
}

#[async_trait]
impl Deriver for Ports {
    fn reserve(&self, size: u64) -> Result<Box<dyn Scratch>, ParseError> {
        Ok(Box::new(WatchedScratch {
            inner: self.deriver.reserve(size)?,
            kills: false,
            kills_early: false,
            readers: Readers::All,
        }))
    }

    async fn open(
        &self,
        dif: Box<dyn Scratch>,
        written: Written,
    ) -> Result<Box<dyn Parser>, ParseError> {
        let dif: Box<dyn Any> = dif;
        let dif = dif
            .downcast::<WatchedScratch>()
            .map_err(|_| Fault::new(FaultKind::Bug, "a scratch space of another deriver"))?;
        Ok(Box::new(SimulatedParser {
            kills: dif.kills,
            kills_early: dif.kills_early,
            can_read: dif.readers.include(self.release()),
            is_known: dif.readers != Readers::Future || self.release() == Release::Newer,
            inner: self.deriver.open(dif.inner, written).await?,
            ports: self.clone(),
        }))
    }
}

/// Scratch space that knows whether its file kills parsers, and which releases can read it.
#[derive(Debug)]
struct WatchedScratch {
    inner: Box<dyn Scratch>,
    kills: bool,
    kills_early: bool,
    readers: Readers,
}

#[async_trait]
impl Scratch for WatchedScratch {
    async fn write_at(&mut self, offset: u64, bytes: Bytes) -> Result<(), Fault> {
        self.kills |= memmem(&bytes, KILLER.as_bytes());
        self.kills_early |= memmem(&bytes, EARLY_KILLER.as_bytes());
        if self.readers == Readers::All {
            self.readers = Readers::of(&bytes);
        }
        self.inner.write_at(offset, bytes).await
    }
}

/// A parser in this process, which takes the time that its fate says.
#[derive(Debug)]
struct SimulatedParser {
    kills: bool,
    /// Whether it is killed even before it knows the objects.
    kills_early: bool,
    /// Whether the release can convert the file.
    can_read: bool,
    /// Whether the release knows what the file is.
    is_known: bool,
    inner: Box<dyn Parser>,
    ports: Ports,
}

impl Ports {
    /// Lets a parser work.
    async fn parse(&self, call: Call, kills: bool) -> Result<(), ParseError> {
        let fate = self.gate.pass(call, Moment::ZERO).await;
        let fate = if kills { Fate::ParserKilled } else { fate };
        self.note(|| format!("{call} [{fate:?}]"));
        match fate {
            Fate::ParserKilled => {
                let killed = Missing::new(Cause::Crashed, "the parser was killed, simulated");
                Err(ParseError::Missing(killed))
            }
            Fate::Late(time) => {
                let done = self.stores.now() + time;
                self.gate.pass(Call::Response, done).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Parser for SimulatedParser {
    async fn inspect(&mut self) -> Result<Inspection, ParseError> {
        self.ports.parse(Call::Inspect, self.kills_early).await?;
        if !self.is_known {
            let detail = "the format is unknown";
            return Err(ParseError::Missing(Missing::new(
                Cause::Unsupported,
                detail,
            )));
        }
        self.inner.inspect().await
    }

    async fn derive(
        &mut self,
        object: usize,
        jobs: &[DeriveJob],
    ) -> Result<Vec<Result<Derived, Missing>>, ParseError> {
        self.ports.parse(Call::Derive, self.kills).await?;
        self.ports.stores.ledger().counts.builds += jobs.len() as u64;
        if !self.can_read {
            let failed = jobs
                .iter()
                .map(|_| Err(Missing::malformed("this release cannot read it")));
            return Ok(failed.collect());
        }
        self.inner.derive(object, jobs).await
    }

    async fn transcode(
        &mut self,
        object: usize,
        transcoding: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, ParseError> {
        self.inner.transcode(object, transcoding).await
    }
}
