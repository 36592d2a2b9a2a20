//! Writing to the uploads bucket by clients: the service signs their requests, and joins the parts
//! of large files.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::{Created, Fault};
use crate::domain::{Location, SignedPut};

/// Lets clients write uploads that do not exist yet.
#[async_trait]
pub trait UploadGate: Debug + Send + Sync {
    /// Signs the request that creates an upload of exactly this many bytes. The store refuses the
    /// request if the upload exists.
    async fn sign_create(
        &self,
        location: &Location,
        bytes: u64,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault>;

    /// Returns the upload in parts that was begun first at a location, or begins one.
    async fn begin_parts(&self, location: &Location) -> Result<UploadInParts, Fault>;

    /// Signs the request that stores a part.
    async fn sign_part(
        &self,
        upload: &UploadInParts,
        part: &UploadPart,
        lifetime: Duration,
    ) -> Result<SignedPut, Fault>;

    /// Joins these parts, all of which are stored, to the upload, unless it exists.
    async fn join_parts(
        &self,
        upload: &UploadInParts,
        parts: &[UploadPart],
    ) -> Result<Created, Fault>;
}

/// An upload in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadInParts {
    /// The location of the future upload.
    pub location: Location,
    /// The id that the store gave to it.
    pub id: String,
    /// The parts that are stored, each with its etag.
    pub stored: HashMap<UploadPart, String>,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadPart {
    /// Its number, from 1.
    pub number: u32,
    /// Its size in bytes.
    pub bytes: u64,
    /// The SHA-256 of its bytes. The store verifies it.
    pub sha256: [u8; 32],
}
