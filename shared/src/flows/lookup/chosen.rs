//! A cache that was selected, and what its readers record: that it was used, or that its blob
//! cannot be read.

use std::sync::Arc;

use futures::stream::{self, StreamExt};

use super::{CacheFinder, CachePlace, Items};
use crate::cache::{Change, Entry, Policy, Queue, Ready, SelectedState, Stored};
use crate::domain::{Location, SourceKey};
use crate::flows::build_requests::BuildToRequest;
use crate::flows::http_service::CALLS_IN_FLIGHT;
use crate::flows::update::KnownEntry;
use crate::ports::{Consistency, Fault};

/// A state to use, and the entry that it belongs to.
pub(in crate::flows) struct Chosen {
    pub(in crate::flows) entry: Entry,
    pub(in crate::flows) ready: Ready,
    /// The stored record of the entry.
    stored: Option<Arc<Stored>>,
}

impl Chosen {
    pub(in crate::flows) fn new(
        selected: SelectedState<'_>,
        place: &CachePlace,
        items: &Items,
    ) -> Self {
        Self {
            entry: selected.entry.clone(),
            ready: selected.ready.clone(),
            stored: items.stored(place).cloned(),
        }
    }

    /// Returns the DIF that the cache was made from.
    pub(in crate::flows) fn used(&self) -> Option<(&SourceKey, &Location)> {
        let dif = self.ready.made_from.first()?;
        Some((&self.entry.module().source, &dif.location))
    }
}

impl CacheFinder<'_> {
    /// Touches the entries of these caches: those that were last used 60 to 90 minutes ago. The
    /// threshold is random, so that instances rarely write the same record at the same time.
    ///
    /// The records are read first, in one call. What this instance remembers of them is about as
    /// old as the last touch, so a write that began with that would mostly find that another
    /// instance has touched the entry since, and cost five times as much as the read.
    pub(in crate::flows) async fn touch_all(&self, used: Vec<&Entry>) {
        let invocation = self.invocation;
        let is_due = |entry: &&Entry| {
            let due = invocation.jittered(Policy::TOUCH_INTERVAL) + Policy::TOUCH_INTERVAL / 2;
            invocation.now().since(entry.last_used_at()) >= due
        };
        let due: Vec<&Entry> = used.into_iter().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let keys: Vec<_> = due
            .iter()
            .map(|entry| entry.module().entry(entry.kind()))
            .collect();
        let stored = match self.service.records.load(&keys, Consistency::Strong).await {
            Ok(stored) => stored,
            Err(error) => {
                tracing::warn!(%error, "cannot read the entries that were used");
                return;
            }
        };
        let writer = self.service.writer(invocation);
        let touches = due.into_iter().zip(stored).map(|(entry, stored)| async {
            let (module, kind) = (entry.module(), entry.kind());
            let known = KnownEntry::fresh(stored);
            let touched = writer.apply_to(module, kind, &Change::Touch, known).await;
            if let Err(error) = touched {
                tracing::warn!(%error, "cannot record the use of an entry");
            }
        });
        let touches: Vec<_> = touches.collect();
        stream::iter(touches)
            .buffer_unordered(CALLS_IN_FLIGHT)
            .collect::<()>()
            .await;
        for key in &keys {
            self.service.memory.forget(key);
        }
    }

    /// Reports a blob that cannot be read, and requests a rebuild.
    pub(in crate::flows) async fn report_unreadable(&self, chosen: &Chosen) -> Result<(), Fault> {
        let replacement = BuildToRequest {
            module: chosen.entry.module().clone(),
            kind: chosen.entry.kind(),
            queue: Queue::Eager,
            known: chosen.stored.clone(),
            suspect: Some(chosen.ready.blob.path.clone()),
        };
        self.request_builds(vec![replacement]).await?;
        Ok(())
    }
}
