//! Multipart uploads as they are stored.

use rusqlite::{Row, Transaction};
use s3s::dto::ChecksumType;
use s3s::s3_error;

use crate::s3::bodies::Segment;
use crate::s3::checksums::{Algorithm, Checksums};
use crate::s3::failure::Failure;
use crate::s3::objects;
use crate::s3::objects::{Attributes, json, require_bucket};

/// An upload in progress.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Its id.
    pub(crate) id: String,
    /// The key of the future object.
    pub(crate) key: String,
    /// When it started, in epoch milliseconds.
    pub(crate) started_ms: i64,
    /// The checksum algorithm, if the upload specified one.
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether the object's checksum is computed over the parts' checksums.
    pub(crate) composite: bool,
    /// The headers that are stored with the object.
    pub(crate) attributes: Attributes,
}

/// An uploaded part.
#[derive(Debug)]
pub(crate) struct Part {
    /// 1 to 10,000.
    pub(crate) number: i32,
    /// The file with its bytes.
    pub(crate) segment: Segment,
    /// The ETag without quotes.
    pub(crate) etag: String,
    /// When it was uploaded, in epoch milliseconds.
    pub(crate) modified_ms: i64,
    /// Its additional checksums.
    pub(crate) checksums: Checksums,
}

/// Returns the upload with this id, or the error that S3 returns.
pub(crate) fn require_upload(
    transaction: &Transaction<'_>,
    bucket: &str,
    key: &str,
    id: &str,
) -> Result<Upload, Failure> {
    require_bucket(transaction, bucket)?;
    let mut select = transaction.prepare_cached(&format!(
        "SELECT {UPLOAD_COLUMNS} FROM uploads WHERE bucket = ?1 AND key = ?2 AND id = ?3"
    ))?;
    let mut rows = select.query([bucket, key, id])?;
    match rows.next()? {
        Some(row) => read_upload(row),
        None => Err(s3_error!(
            NoSuchUpload,
            "the upload does not exist; it may have been completed or aborted"
        )
        .into()),
    }
}

pub(super) fn read_upload(row: &Row<'_>) -> Result<Upload, Failure> {
    let algorithm: Option<String> = row.get(3)?;
    let kind: String = row.get(4)?;
    Ok(Upload {
        id: row.get(0)?,
        key: row.get(1)?,
        started_ms: row.get(2)?,
        algorithm: algorithm.map(|name| Algorithm::parse(&name)).transpose()?,
        composite: kind == ChecksumType::COMPOSITE,
        attributes: json(row, 5)?,
    })
}

/// Returns the parts of an upload, ordered by number.
pub(crate) fn parts(
    transaction: &Transaction<'_>,
    upload: &str,
) -> Result<Vec<Part>, rusqlite::Error> {
    transaction
        .prepare_cached(
            "SELECT number, file, size, etag, modified_ms, checksums FROM upload_parts WHERE upload = ?1 ORDER BY number",
        )?
        .query_map([upload], |row| {
            Ok(Part {
                number: row.get(0)?,
                segment: Segment { file: row.get(1)?, size: row.get(2)? },
                etag: row.get(3)?,
                modified_ms: row.get(4)?,
                checksums: json(row, 5)?,
            })
        })?
        .collect()
}

pub(super) fn forget_upload(
    transaction: &Transaction<'_>,
    upload: &str,
    files: Vec<String>,
) -> Result<Vec<String>, rusqlite::Error> {
    transaction.execute("DELETE FROM upload_parts WHERE upload = ?1", [upload])?;
    transaction.execute("DELETE FROM uploads WHERE id = ?1", [upload])?;
    objects::forget(transaction, files)
}

pub(super) const UPLOAD_COLUMNS: &str = "id, key, started_ms, algorithm, kind, attributes";
