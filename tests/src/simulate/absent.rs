//! The ports that no user of the simulation needs: users write to the uploads bucket themselves,
//! and send no crash files. A call to one of them would not wait at the gate, so it breaks the run.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use symdepot::domain::{Location, SignedPut};
use symdepot::ports::{
    Attachments, Created, Fault, FaultKind, RemoteFailure, RemoteFile, RemoteFiles, RemotePart,
    UploadGate, UploadInParts, UploadPart,
};

use super::stores::Stores;

/// Ports that are not simulated.
#[derive(Clone, Debug)]
pub(super) struct Absent(pub(super) Arc<Stores>);

impl Absent {
    fn fail(&self, call: &str) -> Fault {
        let property = "each call to a port is simulated";
        self.0.ledger().fail(property, call.to_owned());
        Fault::new(FaultKind::Bug, "this port is not simulated")
    }
}

#[async_trait]
impl Attachments for Absent {
    async fn sign_upload(&self, _: &str, _: u64, _: Duration) -> Result<SignedPut, Fault> {
        Err(self.fail("the upload of an attachment"))
    }

    async fn read(&self, _: &str, _: Range<u64>) -> Result<Option<Bytes>, Fault> {
        Err(self.fail("the read of an attachment"))
    }

    async fn remove(&self, _: &str) -> Result<(), Fault> {
        Err(self.fail("the removal of an attachment"))
    }
}

#[async_trait]
impl RemoteFiles for Absent {
    async fn read(
        &self,
        _: &RemoteFile,
        _: Range<u64>,
        _: u64,
    ) -> Result<RemotePart, RemoteFailure> {
        let fault = self.fail("the read of a file of another host");
        Err(RemoteFailure::Unreachable(fault.to_string()))
    }
}

#[async_trait]
impl UploadGate for Absent {
    async fn sign_create(&self, _: &Location, _: u64, _: Duration) -> Result<SignedPut, Fault> {
        Err(self.fail("the signing of an upload"))
    }

    async fn begin_parts(&self, _: &Location) -> Result<UploadInParts, Fault> {
        Err(self.fail("the beginning of an upload in parts"))
    }

    async fn sign_part(
        &self,
        _: &UploadInParts,
        _: &UploadPart,
        _: Duration,
    ) -> Result<SignedPut, Fault> {
        Err(self.fail("the signing of a part"))
    }

    async fn join_parts(&self, _: &UploadInParts, _: &[UploadPart]) -> Result<Created, Fault> {
        Err(self.fail("the end of an upload in parts"))
    }
}
