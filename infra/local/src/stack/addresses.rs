//! The addresses of a stack, and the file in its data folder that lists them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::error::StackError;
use super::files::ADDRESSES_FILE;
use crate::functions::Endpoints;
use crate::identity::ACCOUNT;
use crate::template::Template;

/// The addresses of a stack. Serialized to [`ADDRESSES_FILE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// `http://127.0.0.1:<port>` of the HTTP API.
    pub gateway: String,
    /// The same of S3.
    pub s3: String,
    /// The same of DynamoDB.
    pub dynamodb: String,
    /// The same of SQS.
    pub sqs: String,
    /// Bucket names, by logical id.
    pub buckets: BTreeMap<String, String>,
    /// Table names, by logical id.
    pub tables: BTreeMap<String, String>,
    /// Queue URLs, by logical id.
    pub queues: BTreeMap<String, String>,
    /// The value of the header `x-local-operator`, by which the gateway takes a request for one
    /// that a principal of the account has signed. Only the user who started the stack can read the
    /// file.
    pub operator_key: String,
    /// The data folder.
    pub data: PathBuf,
    /// The process id of the stack.
    pub pid: u32,
}

impl Addresses {
    /// Returns the addresses of a stack in this process.
    pub(super) fn new(
        template: &Template,
        (gateway, operator_key): (String, String),
        endpoints: &Endpoints,
        data: &Path,
    ) -> Self {
        let buckets = template.buckets.iter();
        let tables = template.tables.iter();
        let queues = template.queues.iter().map(|queue| {
            let url = format!("{}/{ACCOUNT}/{}", endpoints.sqs, queue.name);
            (queue.name.clone(), url)
        });
        Self {
            gateway,
            s3: endpoints.s3.clone(),
            dynamodb: endpoints.dynamodb.clone(),
            sqs: endpoints.sqs.clone(),
            buckets: buckets
                .map(|bucket| (bucket.logical_id.clone(), bucket.name.clone()))
                .collect(),
            tables: tables
                .map(|table| (table.name.clone(), table.name.clone()))
                .collect(),
            queues: queues.collect(),
            operator_key,
            data: data.to_owned(),
            pid: std::process::id(),
        }
    }
}

/// The file with the addresses. It exists from [`AddressesFile::write`] until
/// [`AddressesFile::remove`]; a stack that was killed leaves it.
#[derive(Debug)]
pub(super) struct AddressesFile {
    path: PathBuf,
}

impl AddressesFile {
    pub(super) fn in_folder(data: &Path) -> Self {
        Self {
            path: data.join(ADDRESSES_FILE),
        }
    }

    /// Writes the file in one step: a script sees no half of it.
    pub(super) fn write(&self, addresses: &Addresses) -> Result<(), StackError> {
        self.replace(addresses)
            .map_err(|source| StackError::file(&self.path, source))
    }

    fn replace(&self, addresses: &Addresses) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&addresses.data)?;
        let mut json = serde_json::to_vec_pretty(addresses)?;
        json.push(b'\n');
        file.write_all(&json)?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the file if it exists.
    pub(super) fn remove(&self) -> Result<(), StackError> {
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StackError::file(&self.path, source))
            }
            _ => Ok(()),
        }
    }
}
