//! The context of lookups.

use crate::cache::{Change, Entry, Policy};
use crate::flows::Invocation;
use crate::flows::symbolicator::Symbolicator;

/// Looks entries up for one invocation.
#[derive(Clone, Copy, Debug)]
pub(in crate::flows) struct CacheFinder<'a> {
    pub(in crate::flows) service: &'a Symbolicator,
    pub(in crate::flows) invocation: &'a Invocation,
    /// Whether items may be served from the instance's cache.
    pub(super) is_cached: bool,
}

impl<'a> CacheFinder<'a> {
    /// Looks entries up through the instance's cache.
    pub(in crate::flows) fn new(service: &'a Symbolicator, invocation: &'a Invocation) -> Self {
        Self {
            service,
            invocation,
            is_cached: true,
        }
    }

    /// Looks entries up in the store only.
    pub(in crate::flows) fn uncached(
        service: &'a Symbolicator,
        invocation: &'a Invocation,
    ) -> Self {
        Self {
            is_cached: false,
            ..Self::new(service, invocation)
        }
    }

    /// Touches an entry that was last used 60 to 90 minutes ago. The threshold is random, so that
    /// instances rarely write the same record at the same time.
    pub(in crate::flows) async fn touch_if_due(&self, entry: &Entry) {
        let invocation = self.invocation;
        let due = invocation.jittered(Policy::TOUCH_INTERVAL) + Policy::TOUCH_INTERVAL / 2;
        if invocation.now().since(entry.last_used_at()) < due {
            return;
        }
        let (module, kind) = (entry.module(), entry.kind());
        let update = self.service.update(invocation);
        let touched = update.apply(module, kind, &Change::Touch).await;
        self.service.memory.forget(&module.entry(kind));
        if let Err(error) = touched {
            tracing::warn!(%error, "cannot record the use of an entry");
        }
    }
}
