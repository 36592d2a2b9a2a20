//! Permits to call symbol servers: a builder calls a server with one ([`with`]), which records the
//! outcome of the calls.
//!
//! The fleet shares one item per source ([`SourceHealth`]). Readers that wait for the source read
//! it; only this module changes it.

use std::pin::pin;

use super::{Invocation, RecordWriter};
use crate::cache::{CallOutcome, Item, ItemKey, LEASE_EXTENSION, NotAdmitted, SourceHealth, Token};
use crate::domain::{SourceKey, Timestamp};
use crate::ports::{Concerns, Fault, RecordStore, ServerFailure};

/// A permit that this build holds.
#[derive(Debug)]
struct HeldPermit<'a> {
    writer: RecordWriter<'a>,
    source: &'a SourceKey,
    id: Token,
}

/// Returns why a source may not be called now; `None` if it may. Builders check this before they
/// take a lease.
pub(super) async fn reason_to_wait(
    records: &dyn RecordStore,
    invocation: &Invocation,
    source: &SourceKey,
    most: usize,
) -> Result<Option<NotAdmitted>, Fault> {
    let health: Option<SourceHealth> = records.one(ItemKey::health(source)).await?;
    Ok(health.and_then(|health| health.refuses(invocation.now(), most)))
}

/// Calls a source with a permit, which is extended meanwhile. `calls` returns their result, and
/// their outcome for the health of the source. Returns why no permit is given; then `calls` does
/// not run.
pub(super) async fn with<T>(
    writer: RecordWriter<'_>,
    source: &SourceKey,
    most: usize,
    calls: impl Future<Output = (T, CallOutcome)>,
) -> Result<Result<T, NotAdmitted>, Fault> {
    let permit = match acquire(writer, source, most).await? {
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
) -> Result<Result<HeldPermit<'a>, NotAdmitted>, Fault> {
    let id = writer.invocation.token();
    let mut refused = None;
    let acquired = |present: Option<&Item>| {
        let now = writer.invocation.now();
        let mut health = present
            .and_then(health)
            .cloned()
            .unwrap_or_else(|| SourceHealth::new(source.clone(), now));
        refused = health.acquire(&id, now, most).err();
        refused.is_none().then_some(Item::Health(health))
    };
    writer.put_with(&ItemKey::health(source), acquired).await?;
    Ok(match refused {
        Some(refused) => Err(refused),
        None => Ok(HeldPermit { writer, source, id }),
    })
}

impl HeldPermit<'_> {
    /// Runs `work`, and extends the permit meanwhile.
    async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(LEASE_EXTENSION) => {
                    let extended = |health: &mut SourceHealth, now| health.extend(&self.id, now);
                    self.change(extended).await;
                }
            }
        }
    }

    /// Releases the permit.
    async fn release(self, outcome: &CallOutcome) {
        let left = |health: &mut SourceHealth, now| {
            health.release(&self.id, outcome, now);
            true
        };
        self.change(left).await;
    }

    /// Changes the health of the source. A permit that could not be released expires after a
    /// minute.
    async fn change(&self, mut change: impl FnMut(&mut SourceHealth, Timestamp) -> bool) {
        let changed = |present: Option<&Item>| {
            let mut health = present.and_then(health).cloned()?;
            change(&mut health, self.writer.invocation.now()).then_some(Item::Health(health))
        };
        let key = ItemKey::health(self.source);
        if let Err(error) = self.writer.put_with(&key, changed).await {
            tracing::warn!(source = %self.source.id(), %error, "cannot update source health");
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
