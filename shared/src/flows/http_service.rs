//! The context of the `symbolicate` function: the ports, the instance's memory and the settings.

use std::sync::Arc;

use crate::flows::invocation::Invocation;
use crate::flows::memory::Memory;
use crate::flows::settings::Settings;
use crate::flows::update::RecordWriter;
use crate::ports::{
    Attachments, BlobStore, Demangler, Queues, RecordStore, RemoteFiles, UploadGate,
};

/// Serves the requests of the HTTP API. Each module that handles a kind of request adds methods.
#[derive(Clone, Debug)]
pub struct HttpService {
    /// The store of records.
    pub records: Arc<dyn RecordStore>,
    /// The bucket of derived caches.
    pub caches: Arc<dyn BlobStore>,
    /// Lets clients write to the uploads bucket.
    pub uploads: Arc<dyn UploadGate>,
    /// The bucket of attachments.
    pub attachments: Arc<dyn Attachments>,
    /// The hosts of other attachments.
    pub remote_files: Arc<dyn RemoteFiles>,
    /// The queues of builds.
    pub queues: Arc<dyn Queues>,
    /// Demangles names that must be demangled in isolation.
    pub demangler: Arc<dyn Demangler>,
    /// What this instance remembers.
    pub memory: Arc<Memory>,
    /// The settings.
    pub settings: Settings,
}

impl HttpService {
    pub(super) fn writer<'a>(&'a self, invocation: &'a Invocation) -> RecordWriter<'a> {
        RecordWriter {
            records: &*self.records,
            policy: &self.settings.policy,
            invocation,
        }
    }
}

/// The maximum number of concurrent calls to the store of records.
pub(super) const CALLS_IN_FLIGHT: usize = 64;
