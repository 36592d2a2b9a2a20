//! The contexts of the `derive` function: its ports and settings, and the build of one module.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::{BuildNumbers, Kind, ModuleKey};
use crate::domain::{DifRef, Inspection, Missing, Timestamp};
use crate::flows::dif_parser::DifParser;
use crate::flows::invocation::Invocation;
use crate::flows::settings::Settings;
use crate::flows::update::Update;
use crate::ports::{BlobStore, Deriver, DifReader, Queues, RecordStore, SymbolServers};

/// The time that is reserved at the end of an invocation to publish or release the leases.
pub(super) const RESERVE: Duration = Duration::from_secs(5);

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

/// A fetched DIF with its running parser.
#[derive(Debug)]
pub struct OpenDif {
    /// The location and etag of the DIF.
    pub dif: DifRef,
    /// The companions that were opened together with it, and the kind that each completes.
    pub beside: Vec<(DifRef, Kind)>,
    /// Why its companions were left out, if they may be used in another attempt.
    pub left_out: Option<Missing>,
    /// The parser.
    pub parser: DifParser,
    /// The objects of the DIF.
    pub inspection: Inspection,
    /// How long fetching it took, until its parser was started.
    pub took: Duration,
}

/// What remains to do after a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: no build request is pending that this build could have settled.
    Settled,
    /// Another builder is at work, the entry backs off, or the source may not be called: build
    /// again at this time.
    Later(Timestamp),
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
    pub(super) fn update(&self) -> Update<'a> {
        self.builder.update(self.invocation)
    }

    /// Returns the numbers of this build of the code.
    pub(super) fn numbers(&self) -> &'a BuildNumbers {
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
    pub(in crate::flows) fn update<'a>(&'a self, invocation: &'a Invocation) -> Update<'a> {
        Update {
            records: &*self.records,
            policy: &self.settings.policy,
            invocation,
        }
    }
}
