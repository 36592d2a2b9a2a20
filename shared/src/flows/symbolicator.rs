//! What `symbolicate` works with.

use std::sync::Arc;

use crate::flows::invocation::Invocation;
use crate::flows::memory::Memory;
use crate::flows::settings::Settings;
use crate::flows::update::Update;
use crate::ports::{BlobStore, Demangler, Queues, RecordStore};

/// Answers requests.
#[derive(Clone, Debug)]
pub struct Symbolicator {
    /// The records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// The queues of builds.
    pub queues: Arc<dyn Queues>,
    /// Makes names readable that may not be made so here.
    pub demangler: Arc<dyn Demangler>,
    /// What this instance remembers.
    pub memory: Arc<Memory>,
    /// The settings.
    pub settings: Settings,
}

impl Symbolicator {
    pub(super) fn update<'a>(&'a self, invocation: &'a Invocation) -> Update<'a> {
        Update {
            records: &*self.records,
            policy: &self.settings.policy,
            invocation,
        }
    }
}

/// Calls of the records on their way at a time.
pub(super) const CALLS_IN_FLIGHT: usize = 64;
