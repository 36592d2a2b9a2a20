//! The SQLite database of the queues and of S3's metadata. Both are in one file, so that a change
//! of an object and its messages are one transaction.
//!
//! - A change is one `BEGIN IMMEDIATE` transaction on a single connection: writers take turns in
//!   order of arrival.
//! - Reads have connections of their own (WAL) and see everything that was committed before they
//!   began.
//! - SQLite runs on blocking threads, never on the threads of the async runtime.
//! - `synchronous = NORMAL`: committed changes survive a crash of the process, but not of the
//!   machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::Mutex;

/// The file's name in the data folder.
pub const FILE_NAME: &str = "stack.sqlite3";

/// The schema version that this release writes, stored in SQLite's `user_version`.
const SCHEMA_VERSION: i64 = 2;

/// The number of connections for reading. A page is read in microseconds, so more would not help.
const READERS: usize = 4;

/// How long a connection waits for a write of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// A handle to the database. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Database {
    writer: Arc<Mutex<Connection>>,
    readers: Arc<[Arc<Mutex<Connection>>]>,
    turn: Arc<AtomicUsize>,
}

impl Database {
    /// Opens the file in `folder`, and creates folder and file if they do not exist. Blocks; do not
    /// call it from async code.
    ///
    /// # Errors
    /// Returns an error if the folder or file cannot be created, read or written, or if a newer
    /// release wrote it.
    pub fn open(folder: &Path) -> Result<Self, DatabaseError> {
        std::fs::create_dir_all(folder).map_err(|source| DatabaseError::Folder {
            path: folder.to_owned(),
            source,
        })?;
        let path = folder.join(FILE_NAME);
        let mut writer =
            Connection::open(&path).map_err(|source| DatabaseError::open(&path, source))?;
        prepare(&writer).map_err(|source| DatabaseError::open(&path, source))?;
        migrate(&mut writer, &path)?;

        let mut readers = Vec::with_capacity(READERS);
        for _ in 0..READERS {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let reader = Connection::open_with_flags(&path, flags)
                .map_err(|source| DatabaseError::open(&path, source))?;
            reader.busy_timeout(BUSY_TIMEOUT)?;
            reader.set_prepared_statement_cache_capacity(64);
            readers.push(Arc::new(Mutex::new(reader)));
        }
        Ok(Self {
            writer: Arc::new(Mutex::new(writer)),
            readers: readers.into(),
            turn: Arc::default(),
        })
    }

    /// Runs `change` in one immediate transaction, which is committed if `change` returns `Ok` and
    /// rolled back otherwise.
    ///
    /// # Errors
    /// Returns the error of `change`, or SQLite's error.
    pub async fn write<T, E>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DatabaseError> + Send + 'static,
    {
        let mut connection = Arc::clone(&self.writer).lock_owned().await;
        blocking(move || {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(DatabaseError::from)?;
            let value = change(&transaction)?;
            transaction.commit().map_err(DatabaseError::from)?;
            Ok(value)
        })
        .await
    }

    /// Runs `query` on one consistent state of the database.
    ///
    /// # Errors
    /// Returns the error of `query`, or SQLite's error.
    pub async fn read<T, E>(
        &self,
        query: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DatabaseError> + Send + 'static,
    {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.readers.len();
        let mut connection = Arc::clone(&self.readers[turn]).lock_owned().await;
        blocking(move || {
            let transaction = connection.transaction().map_err(DatabaseError::from)?;
            query(&transaction)
        })
        .await
    }
}

/// Why a database operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// The data folder cannot be created.
    #[error("cannot create the data folder {}: {source}; choose another folder with --data (make run: DATA=…)", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
    /// The file was written by a newer release.
    #[error(
        "{} has schema version {found}, but this release supports versions up to {known}; build the newer stack again, or choose another folder with --data (make run: DATA=…)",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The schema version of the file.
        found: i64,
        /// The newest schema version that this release supports.
        known: i64,
    },
    /// A SQLite operation failed.
    #[error("the stack's database failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The code of a transaction panicked.
    #[error("an operation on the stack's database panicked: {0}")]
    Panicked(String),
}

impl DatabaseError {
    fn open(path: &Path, source: rusqlite::Error) -> Self {
        Self::Open {
            path: path.to_owned(),
            source,
        }
    }
}

async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<DatabaseError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(DatabaseError::Panicked(error.to_string()).into()),
    }
}

fn prepare(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Migrates the file to [`SCHEMA_VERSION`].
fn migrate(connection: &mut Connection, path: &Path) -> Result<(), DatabaseError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > SCHEMA_VERSION {
        return Err(DatabaseError::Newer {
            path: path.to_owned(),
            found,
            known: SCHEMA_VERSION,
        });
    }
    if found < 1 {
        transaction.execute_batch(SCHEMA)?;
    }
    if found < 2 {
        transaction.execute_batch(FAIR_QUEUES)?;
    }
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()?;
    Ok(())
}

/// Times are epoch milliseconds. Keys are compared as bytes (SQLite's `BINARY`), which is S3's
/// order.
///
/// `bodies` lists the files that contain objects' bytes: an object's body is the concatenation of
/// the files listed in its `parts`, so that completing a multipart upload copies nothing.
const SCHEMA: &str = "
CREATE TABLE queues (
    name              TEXT PRIMARY KEY,
    visibility_ms     INTEGER NOT NULL,
    delay_ms          INTEGER NOT NULL,
    retention_ms      INTEGER NOT NULL,
    dead_letter       TEXT,
    max_receive_count INTEGER,
    created_ms        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
    number            INTEGER PRIMARY KEY AUTOINCREMENT,
    queue             TEXT NOT NULL REFERENCES queues (name),
    id                TEXT NOT NULL,
    body              TEXT NOT NULL,
    attributes        TEXT NOT NULL,
    group_id          TEXT,
    sent_ms           INTEGER NOT NULL,
    visible_ms        INTEGER NOT NULL,
    receive_count     INTEGER NOT NULL DEFAULT 0,
    first_received_ms INTEGER,
    receipt           TEXT,
    moved_from        TEXT
) STRICT;
CREATE INDEX messages_by_visibility ON messages (queue, visible_ms, number);
CREATE INDEX messages_by_age ON messages (queue, sent_ms);

CREATE TABLE buckets (
    name       TEXT PRIMARY KEY,
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE objects (
    bucket      TEXT NOT NULL REFERENCES buckets (name),
    key         TEXT NOT NULL,
    size        INTEGER NOT NULL,
    etag        TEXT NOT NULL,
    modified_ms INTEGER NOT NULL,
    parts       TEXT NOT NULL,
    checksums   TEXT NOT NULL,
    attributes  TEXT NOT NULL,
    PRIMARY KEY (bucket, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE uploads (
    id         TEXT PRIMARY KEY,
    bucket     TEXT NOT NULL REFERENCES buckets (name),
    key        TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    algorithm  TEXT,
    kind       TEXT,
    attributes TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX uploads_by_key ON uploads (bucket, key, id);

CREATE TABLE upload_parts (
    upload      TEXT NOT NULL REFERENCES uploads (id),
    number      INTEGER NOT NULL,
    file        TEXT NOT NULL,
    size        INTEGER NOT NULL,
    etag        TEXT NOT NULL,
    modified_ms INTEGER NOT NULL,
    checksums   TEXT NOT NULL,
    PRIMARY KEY (upload, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE bodies (
    file TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE sequence (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    value INTEGER NOT NULL
) STRICT;
INSERT INTO sequence VALUES (1, 0);
";

/// Indexes of schema version 2: choosing the next message reads few rows, and only few messages
/// have been received before.
const FAIR_QUEUES: &str = "
CREATE INDEX messages_by_group ON messages (queue, group_id, visible_ms, number);
CREATE INDEX messages_received ON messages (queue, visible_ms, receive_count, group_id) WHERE receive_count > 0;
";

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn a_failed_change_is_rolled_back() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(folder.path()).unwrap();
        runtime().block_on(async {
            let refused: Result<(), DatabaseError> = database
                .write(|transaction| {
                    transaction.execute("INSERT INTO bodies VALUES ('a')", [])?;
                    Err(rusqlite::Error::InvalidQuery.into())
                })
                .await;
            assert!(refused.is_err());
            let count: Result<i64, DatabaseError> = database
                .read(|transaction| {
                    Ok(transaction
                        .query_row("SELECT count(*) FROM bodies", [], |row| row.get(0))?)
                })
                .await;
            assert_eq!(count.unwrap(), 0);
        });
    }

    #[test]
    fn a_file_of_a_newer_release_is_refused_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        drop(Database::open(folder.path()).unwrap());
        let raw = Connection::open(folder.path().join(FILE_NAME)).unwrap();
        raw.pragma_update(None, "user_version", SCHEMA_VERSION + 1)
            .unwrap();
        let error = Database::open(folder.path()).unwrap_err();
        assert!(
            matches!(error, DatabaseError::Newer { found, .. } if found == SCHEMA_VERSION + 1),
            "{error}"
        );
        assert!(
            error.to_string().contains("build the newer stack"),
            "{error}"
        );
    }

    #[test]
    fn a_file_of_an_older_release_is_migrated_with_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let raw = Connection::open(folder.path().join(FILE_NAME)).unwrap();
        raw.execute_batch(SCHEMA).unwrap();
        raw.execute_batch("INSERT INTO bodies VALUES ('a'); PRAGMA user_version = 1")
            .unwrap();
        drop(raw);
        drop(Database::open(folder.path()).unwrap());
        let raw = Connection::open(folder.path().join(FILE_NAME)).unwrap();
        let count = |sql: &str| raw.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(count("PRAGMA user_version"), SCHEMA_VERSION);
        assert_eq!(count("SELECT count(*) FROM bodies"), 1);
        let index = "SELECT count(*) FROM sqlite_schema WHERE name = 'messages_by_group'";
        assert_eq!(count(index), 1);
    }

    #[test]
    fn a_change_that_panics_is_rolled_back_and_the_database_stays_usable() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(folder.path()).unwrap();
        runtime().block_on(async {
            let panicked: Result<(), DatabaseError> = database
                .write(|transaction| {
                    transaction.execute("INSERT INTO bodies VALUES ('a')", [])?;
                    panic!("in the middle")
                })
                .await;
            assert!(matches!(panicked, Err(DatabaseError::Panicked(_))));
            let count: Result<i64, DatabaseError> = database
                .write(|transaction| {
                    Ok(transaction
                        .query_row("SELECT count(*) FROM bodies", [], |row| row.get(0))?)
                })
                .await;
            assert_eq!(count.unwrap(), 0);
        });
    }
}
