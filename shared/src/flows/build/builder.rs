//! The contexts of the `derive` function: its ports and settings, and the build of one module.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::{ModuleKey, ReleaseNumbers};
use crate::domain::Timestamp;
use crate::flows::invocation::Invocation;
use crate::flows::settings::Settings;
use crate::flows::update::RecordWriter;
use crate::ports::{BlobStore, Deriver, DifReader, Queues, RecordStore, SymbolServers};

/// The time that is reserved at the end of an invocation to publish or release the leases.
pub(super) const RESERVE: Duration = Duration::from_secs(5);

/// The time that a call to a server leaves: for the steps that follow it, and for [`RESERVE`].
const RESERVE_AFTER_CALL: Duration = RESERVE.saturating_mul(2);

/// Builds derived caches, and processes the events of uploads.
#[derive(Clone, Debug)]
pub struct Builder {
    /// The store of records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// The uploads bucket.
    pub uploads: Arc<dyn DifReader>,
    /// The symbol servers.
    pub servers: Arc<dyn SymbolServers>,
    /// The queues of build requests.
    pub queues: Arc<dyn Queues>,
    /// Parses DIFs.
    pub deriver: Arc<dyn Deriver>,
    /// The settings.
    pub settings: Settings,
}

/// What remains to do after a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: no build request is pending that this build could have settled.
    Settled,
    /// The entry backs off, or the source may not be called: build again at this time. If that is
    /// now, at growing intervals.
    Later(Timestamp),
    /// Another builder is at work: build again at growing intervals, and when its lease expires.
    OtherBuilder {
        /// When the lease expires. Most builds end long before.
        until: Timestamp,
    },
}

/// When a message is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// After a delay that grows with each hop, give or take half of it: it is not known when the
    /// message can be served.
    Growing,
    /// A second after this time. If the time has passed, as [`Resend::Growing`].
    At(Timestamp),
    /// After this delay.
    After(Duration),
}

/// The build of one module, in one invocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build<'a> {
    pub(super) builder: &'a Builder,
    pub(super) invocation: &'a Invocation,
    pub(super) module: &'a ModuleKey,
}

impl<'a> Build<'a> {
    /// Returns the means to change records.
    pub(super) fn writer(&self) -> RecordWriter<'a> {
        self.builder.writer(self.invocation)
    }

    /// Returns how long a call to a server may take, with the download of its response.
    pub(super) fn time_for_call(&self) -> Duration {
        let left = self.invocation.time_left();
        left.saturating_sub(RESERVE_AFTER_CALL)
    }

    /// Returns the numbers of this release.
    pub(super) fn numbers(&self) -> &'a ReleaseNumbers {
        &self.builder.settings.policy.numbers
    }
}

impl Builder {
    /// Returns the build of a module.
    pub(super) fn build_of<'a>(
        &'a self,
        invocation: &'a Invocation,
        module: &'a ModuleKey,
    ) -> Build<'a> {
        Build {
            builder: self,
            invocation,
            module,
        }
    }

    /// Returns the means to change records in this invocation.
    pub(in crate::flows) fn writer<'a>(&'a self, invocation: &'a Invocation) -> RecordWriter<'a> {
        RecordWriter {
            records: &*self.records,
            policy: &self.settings.policy,
            invocation,
        }
    }
}
