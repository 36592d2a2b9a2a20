//! The context of lookups.

use crate::cache::UnreadableBlobs;
use crate::flows::Invocation;
use crate::flows::Symbolicator;
use crate::ports::Consistency;

/// Looks entries up for one invocation.
#[derive(Clone, Copy, Debug)]
pub(in crate::flows) struct CacheFinder<'a> {
    pub(in crate::flows) service: &'a Symbolicator,
    pub(in crate::flows) invocation: &'a Invocation,
    /// Whether items may be served from the instance's cache.
    pub(super) may_use_cache: bool,
}

impl<'a> CacheFinder<'a> {
    /// Looks entries up through the instance's cache.
    pub(in crate::flows) fn new(service: &'a Symbolicator, invocation: &'a Invocation) -> Self {
        Self {
            service,
            invocation,
            may_use_cache: true,
        }
    }

    /// Returns how to look up after the request has reported unreadable blobs: an entry from the
    /// instance's cache, or an outdated one, may be from before the report.
    pub(in crate::flows) fn after_reports(
        self,
        unreadable: &UnreadableBlobs,
        consistency: Consistency,
    ) -> (Self, Consistency) {
        if unreadable.is_empty() {
            (self, consistency)
        } else {
            (
                Self::uncached(self.service, self.invocation),
                Consistency::Strong,
            )
        }
    }

    /// Looks entries up in the store only.
    pub(in crate::flows) fn uncached(
        service: &'a Symbolicator,
        invocation: &'a Invocation,
    ) -> Self {
        Self {
            may_use_cache: false,
            ..Self::new(service, invocation)
        }
    }
}
