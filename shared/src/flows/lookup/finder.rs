//! The context of lookups.

use crate::flows::HttpService;
use crate::flows::Invocation;

/// Looks entries up for one invocation.
#[derive(Clone, Copy, Debug)]
pub(in crate::flows) struct CacheFinder<'a> {
    pub(in crate::flows) service: &'a HttpService,
    pub(in crate::flows) invocation: &'a Invocation,
    /// Whether items may be served from the instance's memory.
    pub(super) may_use_memory: bool,
}

impl<'a> CacheFinder<'a> {
    /// Looks entries up through the instance's memory.
    pub(in crate::flows) fn new(service: &'a HttpService, invocation: &'a Invocation) -> Self {
        Self {
            service,
            invocation,
            may_use_memory: true,
        }
    }

    /// Looks entries up in the store only.
    pub(in crate::flows) fn without_memory(
        service: &'a HttpService,
        invocation: &'a Invocation,
    ) -> Self {
        Self {
            may_use_memory: false,
            ..Self::new(service, invocation)
        }
    }
}
