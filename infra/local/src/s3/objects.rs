//! The rows that describe objects, and the transaction that replaces a row together with its
//! events.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Row, Transaction, params};
use s3s::dto::{ETag, Timestamp};
use s3s::{S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::bodies::Segment;
use super::checksums::Checksums;
use super::conditions::WriteConditions;
use super::events::{self, Cause, Notifications};
use super::failure::Failure;
use super::times::timestamp;

/// The columns that [`Object::read`] expects, in order.
pub(crate) const COLUMNS: &str = "key, size, etag, modified_ms, parts, checksums, attributes";

/// A stored object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// The key, up to 1,024 bytes of UTF-8.
    pub(crate) key: String,
    /// The number of bytes.
    pub(crate) size: u64,
    /// The ETag without quotes.
    pub(crate) etag: String,
    /// When it was written, in epoch milliseconds; of an object of parts, when its upload began.
    /// Source: Amazon S3 User Guide, "Working with object metadata", `Last-Modified`.
    pub(crate) modified_ms: i64,
    /// The files that contain its bytes, in order.
    pub(crate) parts: Vec<Segment>,
    /// Its additional checksums.
    pub(crate) checksums: Checksums,
    /// The headers that the writer set.
    pub(crate) attributes: Attributes,
}

/// The headers that are stored and returned with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Attributes {
    pub(crate) cache_control: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_type: Option<String>,
    /// `Expires`, in epoch seconds.
    pub(crate) expires: Option<i64>,
    pub(crate) storage_class: Option<String>,
    pub(crate) website_redirect_location: Option<String>,
    /// `x-amz-meta-…`, names in lower case.
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Object {
    /// Reads a row of the [`COLUMNS`].
    pub(crate) fn read(row: &Row<'_>) -> Result<Self, rusqlite::Error> {
        Ok(Self {
            key: row.get(0)?,
            size: row.get(1)?,
            etag: row.get(2)?,
            modified_ms: row.get(3)?,
            parts: json(row, 4)?,
            checksums: json(row, 5)?,
            attributes: json(row, 6)?,
        })
    }

    /// Returns the ETag as a header.
    pub(crate) fn etag(&self) -> ETag {
        ETag::Strong(self.etag.clone())
    }

    /// Returns whether it was uploaded in parts: its ETag is not that of its bytes.
    pub(crate) fn is_of_parts(&self) -> bool {
        self.etag.contains('-')
    }

    /// Returns when it was written, in whole seconds, as in `Last-Modified`.
    pub(crate) fn last_modified(&self) -> Timestamp {
        timestamp(self.modified_ms.div_euclid(1000) * 1000)
    }

    /// Returns the byte range of a part of a multipart upload. An object that was uploaded in one
    /// request has one part.
    pub(crate) fn part(&self, number: i32) -> Option<std::ops::Range<u64>> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        let size = self.parts.get(index)?.size;
        let start = self.parts[..index].iter().map(|part| part.size).sum();
        Some(start..start + size)
    }
}

/// Reads a column that contains JSON.
pub(crate) fn json<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    index: usize,
) -> Result<T, rusqlite::Error> {
    let text: String = row.get(index)?;
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(
            index,
            rusqlite::types::Type::Text,
            Box::new(error),
        )
    })
}

/// Returns the object under a key.
pub(crate) fn find(
    transaction: &Transaction<'_>,
    bucket: &str,
    key: &str,
) -> Result<Option<Object>, rusqlite::Error> {
    transaction
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM objects WHERE bucket = ?1 AND key = ?2"
        ))?
        .query_row([bucket, key], Object::read)
        .optional()
}

/// Returns the object under a key, or the error that S3 returns.
pub(crate) fn require(
    transaction: &Transaction<'_>,
    bucket: &str,
    key: &str,
) -> Result<Object, Failure> {
    require_bucket(transaction, bucket)?;
    find(transaction, bucket, key)?
        .ok_or_else(|| s3_error!(NoSuchKey, "the specified key does not exist").into())
}

/// Returns an error if the bucket does not exist.
pub(crate) fn require_bucket(transaction: &Transaction<'_>, bucket: &str) -> Result<(), Failure> {
    let exists = transaction
        .prepare_cached("SELECT 1 FROM buckets WHERE name = ?1")?
        .exists([bucket])?;
    if exists {
        Ok(())
    } else {
        Err(s3_error!(NoSuchBucket, "the bucket {bucket:?} does not exist").into())
    }
}

/// Stores `object` under its key if the conditions hold, and sends the events, with the time `now`.
/// Returns the files that are no longer referenced, to be removed after the commit.
pub(crate) fn replace(
    transaction: &Transaction<'_>,
    bucket: &str,
    object: &Object,
    conditions: &WriteConditions,
    notifications: &Notifications,
    cause: &Cause,
    now: i64,
) -> Result<Vec<String>, Failure> {
    require_bucket(transaction, bucket)?;
    let stored = find(transaction, bucket, &object.key)?;
    conditions.check(stored.as_ref().map(|stored| stored.etag.as_str()))?;
    let unused = forget_files(transaction, stored)?;
    remember_files(
        transaction,
        object.parts.iter().map(|part| part.file.as_str()),
    )?;
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO objects (bucket, key, size, etag, modified_ms, parts, checksums, attributes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            bucket,
            object.key,
            object.size,
            object.etag,
            object.modified_ms,
            serde_json::to_string(&object.parts)?,
            serde_json::to_string(&object.checksums)?,
            serde_json::to_string(&object.attributes)?
        ])?;
    let content = events::Content {
        size: object.size,
        etag: object.etag.clone(),
    };
    events::emit(
        transaction,
        notifications,
        bucket,
        &object.key,
        Some(&content),
        cause,
        now,
    )?;
    Ok(unused)
}

/// Removes the object under a key if the check succeeds. A missing object is neither an error nor
/// an event. Returns the files that are no longer referenced.
pub(crate) fn remove(
    transaction: &Transaction<'_>,
    bucket: &str,
    key: &str,
    check: impl FnOnce(Option<&Object>) -> S3Result<()>,
    notifications: &Notifications,
    cause: &Cause,
    now: i64,
) -> Result<Vec<String>, Failure> {
    require_bucket(transaction, bucket)?;
    let stored = find(transaction, bucket, key)?;
    check(stored.as_ref())?;
    let Some(stored) = stored else {
        return Ok(Vec::new());
    };
    transaction
        .prepare_cached("DELETE FROM objects WHERE bucket = ?1 AND key = ?2")?
        .execute([bucket, key])?;
    let unused = forget_files(transaction, Some(stored))?;
    events::emit(transaction, notifications, bucket, key, None, cause, now)?;
    Ok(unused)
}

/// Marks files as referenced.
pub(crate) fn remember_files<'a>(
    transaction: &Transaction<'_>,
    files: impl IntoIterator<Item = &'a str>,
) -> Result<(), rusqlite::Error> {
    let mut insert =
        transaction.prepare_cached("INSERT OR IGNORE INTO bodies (file) VALUES (?1)")?;
    for file in files {
        insert.execute([file])?;
    }
    Ok(())
}

/// Marks files as no longer referenced, and returns them.
pub(crate) fn forget(
    transaction: &Transaction<'_>,
    files: Vec<String>,
) -> Result<Vec<String>, rusqlite::Error> {
    let mut delete = transaction.prepare_cached("DELETE FROM bodies WHERE file = ?1")?;
    for file in &files {
        delete.execute([file])?;
    }
    Ok(files)
}

fn forget_files(
    transaction: &Transaction<'_>,
    object: Option<Object>,
) -> Result<Vec<String>, rusqlite::Error> {
    let files = object
        .into_iter()
        .flat_map(|object| object.parts)
        .map(|part| part.file)
        .collect();
    forget(transaction, files)
}
