//! Permits to call symbol servers: a builder calls a server with one ([`with`]), which records the
//! outcome of the calls.
//!
//! The fleet shares one item per source ([`SourceHealth`]). Readers that wait for the source read
//! it; only this module changes it.

use std::convert::Infallible;

use super::RecordWriter;
use super::update::{KnownItem, Present};
use crate::cache::{CallOutcome, Item, ItemKey, LEASE_EXTENSION, NotAdmitted, SourceHealth, Token};
use crate::domain::{SourceKey, Timestamp};
use crate::ports::{Concerns, Fault, ServerFailure};

/// A permit that this build holds.
#[derive(Debug)]
struct HeldPermit<'a> {
    writer: RecordWriter<'a>,
    source: &'a SourceKey,
    id: Token,
    /// The health of the source as this build last wrote it, so that extending and releasing the
    /// permit need not read it again.
    health: KnownItem,
}

/// Returns why a source may not be called now, `None` if it may, and the health of the source as it
/// was read. Builders check this before they take a lease.
pub(super) async fn reason_to_wait(
    writer: RecordWriter<'_>,
    source: &SourceKey,
    most: usize,
) -> Result<(Option<NotAdmitted>, KnownItem), Fault> {
    let stored = writer.load(&ItemKey::health(source)).await?;
    let known = stored.as_ref().and_then(|stored| health(&stored.item));
    let refused = known.and_then(|health| health.refuses(writer.invocation.now(), most));
    Ok((refused, KnownItem::Read(stored)))
}

/// Calls a source with a permit, which is extended meanwhile. `known` is the health of the source
/// as the caller read it. `calls` returns their result, and their outcome for the health. Returns
/// why no permit is given; then `calls` does not run.
pub(super) async fn with<T>(
    writer: RecordWriter<'_>,
    source: &SourceKey,
    most: usize,
    known: KnownItem,
    calls: impl Future<Output = (T, CallOutcome)>,
) -> Result<Result<T, NotAdmitted>, Fault> {
    let mut permit = match acquire(writer, source, most, known).await? {
        Ok(permit) => permit,
        Err(refused) => return Ok(Err(refused)),
    };
    let (called, outcome) = permit.during(calls).await;
    permit.release(&outcome).await;
    Ok(Ok(called))
}

/// Records a failed call in the outcome of the calls. A response about some locations, even an
/// error, concerns only the module: the server may serve the locations of another scope.
pub(super) fn note_failure(calls: &mut CallOutcome, failure: &ServerFailure) {
    match failure.concerns {
        Concerns::Location => calls.answered(),
        Concerns::Server => {
            *calls = CallOutcome::Failed {
                detail: failure.missing.detail.clone(),
                retry_after: failure.retry_after,
            };
        }
    }
}

/// Acquires a permit, or returns why none is given.
async fn acquire<'a>(
    writer: RecordWriter<'a>,
    source: &'a SourceKey,
    most: usize,
    known: KnownItem,
) -> Result<Result<HeldPermit<'a>, NotAdmitted>, Fault> {
    let id = writer.invocation.token();
    let mut refused = None;
    let acquired = |present: Present<'_>| {
        let now = writer.invocation.now();
        let mut health = present
            .item
            .and_then(health)
            .cloned()
            .unwrap_or_else(|| SourceHealth::new(source.clone(), now));
        refused = health.acquire(&id, now, most).err();
        refused.is_none().then_some(Item::Health(health))
    };
    let key = ItemKey::health(source);
    let written = writer.write(&key, known, acquired).await?;
    Ok(match refused {
        Some(refused) => Err(refused),
        None => Ok(HeldPermit {
            writer,
            source,
            id,
            health: KnownItem::written(written),
        }),
    })
}

impl HeldPermit<'_> {
    /// Runs `work`, and extends the permit meanwhile. `work` goes on while an extension waits for
    /// the store.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            done = work => done,
            never = self.keep_extending() => match never {},
        }
    }

    /// Extends the permit until this is dropped.
    async fn keep_extending(&mut self) -> Infallible {
        loop {
            tokio::time::sleep(LEASE_EXTENSION).await;
            let id = self.id.clone();
            self.change(|health, now| health.extend(&id, now)).await;
        }
    }

    /// Releases the permit.
    async fn release(mut self, outcome: &CallOutcome) {
        let id = self.id.clone();
        let left = |health: &mut SourceHealth, now| {
            health.release(&id, outcome, now);
            true
        };
        self.change(left).await;
    }

    /// Changes the health of the source. A permit that could not be released expires after a
    /// minute.
    async fn change(&mut self, mut change: impl FnMut(&mut SourceHealth, Timestamp) -> bool) {
        let writer = self.writer;
        let changed = |present: Present<'_>| {
            let mut health = present.item.and_then(health).cloned()?;
            change(&mut health, writer.invocation.now()).then_some(Item::Health(health))
        };
        let key = ItemKey::health(self.source);
        let known = std::mem::take(&mut self.health);
        match writer.write(&key, known, changed).await {
            Ok(written) => self.health = KnownItem::written(written),
            Err(error) => {
                tracing::warn!(source = %self.source.id(), %error, "cannot update source health");
            }
        }
    }
}

/// Returns the health in an item.
pub(super) fn health(item: &Item) -> Option<&SourceHealth> {
    match item {
        Item::Health(health) => Some(health),
        _ => None,
    }
}
