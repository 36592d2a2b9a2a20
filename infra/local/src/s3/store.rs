//! The state that all operations share: the database, the bodies, and the queues that receive
//! events.

use std::collections::HashSet;
use std::future::Future;
use std::path::{Path, PathBuf};

use rusqlite::params;

use super::bodies::Bodies;
use super::events::{Cause, Notification, Notifications};
use super::failure::Failure;
use crate::clock::Clock;
use crate::database::{Database, DatabaseError};
use crate::queues::{QueueError, Queues};

/// The folder of the bodies in the data folder.
const FOLDER: &str = "s3";

/// All buckets of the stack. Clones share the same buckets.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) database: Database,
    pub(crate) bodies: Bodies,
    pub(crate) queues: Queues,
    pub(crate) notifications: Notifications,
    clock: Clock,
}

/// Why the store cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed.
    #[error("cannot open the folder of S3 bodies {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A notification names a queue that does not exist.
    #[error("bucket {bucket:?} has a notification for an unavailable queue: {source}")]
    Notification {
        /// The bucket.
        bucket: String,
        /// The cause.
        source: QueueError,
    },
    /// The name is not valid in S3.
    #[error(
        "{0:?} is not a valid bucket name; expected 3 to 63 lower-case letters, digits, hyphens and dots"
    )]
    BucketName(String),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error.into())
    }
}

impl Store {
    /// Opens the store in `folder`, and removes files that a killed stack left behind.
    ///
    /// # Errors
    /// Returns an error if the folder or the database cannot be read, or if a notification names a
    /// queue that `queues` does not have.
    pub async fn open(
        folder: &Path,
        database: Database,
        queues: Queues,
        notifications: Vec<Notification>,
    ) -> Result<Self, StoreError> {
        for notification in &notifications {
            queues
                .spec(&notification.queue)
                .await
                .map_err(|source| StoreError::Notification {
                    bucket: notification.bucket.clone(),
                    source,
                })?;
        }
        let live: HashSet<String> = database
            .read::<_, StoreError>(|transaction| {
                let mut select = transaction.prepare("SELECT file FROM bodies")?;
                let files = select
                    .query_map([], |row| row.get(0))?
                    .collect::<Result<_, _>>()?;
                Ok(files)
            })
            .await?;
        let path = folder.join(FOLDER);
        let root = path.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let bodies = Bodies::open(&root)?;
            let removed = bodies.sweep(&live)?;
            if removed > 0 {
                tracing::info!(removed, "removed unreferenced files of an earlier run");
            }
            Ok(bodies)
        })
        .await
        .map_err(std::io::Error::other);
        let bodies = opened
            .and_then(|result: std::io::Result<Bodies>| result)
            .map_err(|source| StoreError::Folder { path, source })?;
        Ok(Self {
            database,
            bodies,
            notifications: Notifications::new(notifications, queues.clock().clone()),
            queues,
            clock: Clock::system(),
        })
    }

    /// Returns the clock that the times of objects refer to.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Creates a bucket unless it exists.
    ///
    /// # Errors
    /// Returns [`StoreError::BucketName`] or the database's error.
    pub async fn create_bucket(&self, name: &str) -> Result<(), StoreError> {
        if !s3s::path::check_bucket_name(name) {
            return Err(StoreError::BucketName(name.to_owned()));
        }
        let name = name.to_owned();
        let now = self.now();
        self.database
            .write(move |transaction| {
                transaction.execute(
                    "INSERT OR IGNORE INTO buckets VALUES (?1, ?2)",
                    params![name, now],
                )?;
                Ok(())
            })
            .await
    }

    /// Returns the total size of all objects. Objects that share files are each counted in full.
    ///
    /// # Errors
    /// Returns the database's error.
    pub async fn stored_bytes(&self) -> Result<u64, StoreError> {
        self.database
            .read(|transaction| {
                let sum = "SELECT COALESCE(SUM(size), 0) FROM objects";
                let bytes: i64 = transaction.query_row(sum, [], |row| row.get(0))?;
                Ok(bytes.unsigned_abs())
            })
            .await
    }

    pub(crate) fn now(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Returns the cause of the change that a request makes.
    pub(crate) fn cause<T>(event: &'static str, request: &s3s::S3Request<T>) -> Cause {
        let principal = request
            .credentials
            .as_ref()
            .map_or("anonymous", |credentials| &credentials.access_key)
            .to_owned();
        Cause { event, principal }
    }

    /// Runs a change to its end even if the client disconnects: the steps that follow the commit
    /// must not be skipped.
    pub(crate) async fn finish<T, F>(change: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        tokio::spawn(change).await.map_err(Failure::internal)?
    }

    /// Runs the steps that follow a committed change of objects.
    pub(crate) fn changed(&self, unused: Vec<String>) {
        self.bodies.remove(unused);
        self.queues.changed();
    }
}
