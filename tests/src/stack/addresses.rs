//! The addresses of a running stack, which it writes to `stack.json` when it is ready.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::StackError;

/// The addresses of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Addresses {
    /// The URL of the HTTP API.
    pub gateway: String,
    /// The URL of S3.
    pub s3: String,
    /// The URL of DynamoDB.
    pub dynamodb: String,
    /// The URL of SQS.
    pub sqs: String,
    /// Names of buckets, by logical id.
    pub buckets: BTreeMap<String, String>,
    /// URLs of queues, by logical id.
    pub queues: BTreeMap<String, String>,
    /// The value of the header of requests of the operator.
    pub operator_key: String,
    /// The data directory.
    pub data: PathBuf,
    /// The process id of the stack.
    pub pid: u32,
}

impl Addresses {
    /// Reads the file that a stack writes.
    ///
    /// # Errors
    /// [`StackError::File`] if it cannot be read, [`StackError::Addresses`] if it has another
    /// format.
    pub fn read(path: &Path) -> Result<Self, StackError> {
        let json = std::fs::read(path).map_err(|source| StackError::File {
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_slice(&json).map_err(|source| StackError::Addresses {
            path: path.to_owned(),
            source,
        })
    }

    /// Returns the bucket for uploads.
    pub fn uploads(&self) -> &str {
        self.bucket("UploadsBucket")
    }

    /// Returns the bucket of derived caches.
    pub fn caches(&self) -> &str {
        self.bucket("CachesBucket")
    }

    /// Returns the bucket of crash files that requests refer to.
    pub fn attachments(&self) -> &str {
        self.bucket("AttachmentsBucket")
    }

    fn bucket(&self, logical_id: &str) -> &str {
        self.buckets.get(logical_id).map_or("", String::as_str)
    }
}
