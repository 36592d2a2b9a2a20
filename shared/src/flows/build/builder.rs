//! What `derive` works with.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::{DifRef, Inspection, Timestamp};
use crate::flows::invocation::Invocation;
use crate::flows::settings::Settings;
use crate::flows::update::Update;
use crate::ports::{BlobStore, Deriver, DifReader, Parser, Queues, RecordStore, SymbolServers};

/// Time kept back at the end of an invocation: to publish, or to give the leases back.
pub(super) const RESERVE: Duration = Duration::from_secs(5);

/// Builds derived caches.
#[derive(Clone, Debug)]
pub struct Builder {
    /// The records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// The bucket that users upload to.
    pub uploads: Arc<dyn DifReader>,
    /// The symbol servers.
    pub servers: Arc<dyn SymbolServers>,
    /// The queues of builds.
    pub queues: Arc<dyn Queues>,
    /// Parses DIFs.
    pub deriver: Arc<dyn Deriver>,
    /// The settings.
    pub settings: Settings,
}

/// A DIF that is fetched and being parsed.
#[derive(Debug)]
pub struct OpenDif {
    /// Which one.
    pub dif: DifRef,
    /// Its companions, which are open with it.
    pub beside: Vec<DifRef>,
    /// Its parser.
    pub parser: Box<dyn Parser>,
    /// What is in it.
    pub inspection: Inspection,
    /// How long fetching it took.
    pub took: Duration,
}

/// What a build leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: no ask stands that it could have answered.
    Settled,
    /// Somebody else is at work, or the entry rests: come back at this time.
    Later(Timestamp),
}

impl Builder {
    /// Returns what changes the records in this invocation.
    pub(in crate::flows) fn update<'a>(&'a self, invocation: &'a Invocation) -> Update<'a> {
        Update {
            records: &*self.records,
            policy: &self.settings.policy,
            invocation,
        }
    }
}
