//! Listings of uploads in parts and of their parts. Uploads are in the order of their keys, and
//! those of one key in the order in which they began.

use rusqlite::params;
use s3s::dto::{
    ChecksumAlgorithm, ETag, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput,
    ListPartsOutput, MultipartUpload, Part as ListedPart,
};
use s3s::{S3Request, S3Response};

use super::failure::Failure;
use super::listing::page_size;
use super::multipart_rows::{UPLOAD_COLUMNS, Upload, parts, read_upload, require_upload};
use super::objects::require_bucket;
use super::store::Store;
use super::times::timestamp;
use super::writing::refuse;
use super::{checksums, set_checksums};

pub(crate) async fn uploads(
    store: &Store,
    request: S3Request<ListMultipartUploadsInput>,
) -> Result<S3Response<ListMultipartUploadsOutput>, Failure> {
    let input = request.input;
    refuse(
        input.delimiter.is_some(),
        "a delimiter in a listing of uploads",
    )?;
    refuse(
        input.encoding_type.is_some(),
        "an encoding of a listing of uploads",
    )?;
    let max = page_size(input.max_uploads)?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let after_key = input.key_marker.clone().unwrap_or_default();
    let after_id = input.upload_id_marker.clone();
    let bucket = input.bucket.clone();
    let listed = store.database.read::<_, Failure>(move |transaction| {
        require_bucket(transaction, &bucket)?;
        let mut select = transaction.prepare_cached(&format!(
            "SELECT {UPLOAD_COLUMNS} FROM uploads WHERE bucket = ?1 AND substr(key, 1, length(?2)) = ?2
             AND (key > ?3 OR (key = ?3 AND (started_ms, id) > (SELECT started_ms, id FROM uploads WHERE id = ?4)))
             ORDER BY key, started_ms, id LIMIT ?5"
        ))?;
        let limit = i64::try_from(max + 1).unwrap_or(i64::MAX);
        let mut rows = select.query(params![bucket, prefix, after_key, after_id, limit])?;
        let mut listed = Vec::new();
        while let Some(row) = rows.next()? {
            listed.push(read_upload(row)?);
        }
        Ok(listed)
    });
    let mut listed = listed.await?;
    let is_truncated = listed.len() > max;
    listed.truncate(max);
    let last = listed.last().filter(|_| is_truncated);
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        is_truncated: Some(is_truncated),
        key_marker: input.key_marker,
        upload_id_marker: input.upload_id_marker,
        max_uploads: i32::try_from(max).ok(),
        next_key_marker: last.map(|upload| upload.key.clone()),
        next_upload_id_marker: last.map(|upload| upload.id.clone()),
        prefix: input.prefix,
        uploads: Some(listed.into_iter().map(listed_upload).collect()),
        ..Default::default()
    }))
}

fn listed_upload(upload: Upload) -> MultipartUpload {
    let algorithm = upload.algorithm;
    MultipartUpload {
        checksum_algorithm: algorithm
            .map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name())),
        checksum_type: algorithm.map(|_| checksums::kind(upload.composite)),
        initiated: Some(timestamp(upload.started_ms)),
        key: Some(upload.key),
        upload_id: Some(upload.id),
        ..Default::default()
    }
}

pub(crate) async fn parts_of_upload(
    store: &Store,
    request: S3Request<ListPartsInput>,
) -> Result<S3Response<ListPartsOutput>, Failure> {
    let input = request.input;
    let max = page_size(input.max_parts)?;
    let after = input.part_number_marker.unwrap_or_default();
    let (bucket, key, id) = (
        input.bucket.clone(),
        input.key.clone(),
        input.upload_id.clone(),
    );
    let stored = store.database.read::<_, Failure>(move |transaction| {
        let upload = require_upload(transaction, &bucket, &key, &id)?;
        Ok(parts(transaction, &upload.id)?)
    });
    let mut stored = stored.await?;
    stored.retain(|part| part.number > after);
    let is_truncated = stored.len() > max;
    stored.truncate(max);
    let last = stored.last().map(|part| part.number);
    let listed = stored.into_iter().map(|part| {
        let mut listed = ListedPart {
            e_tag: Some(ETag::Strong(part.etag)),
            last_modified: Some(timestamp(part.modified_ms)),
            part_number: Some(part.number),
            size: i64::try_from(part.segment.size).ok(),
            ..Default::default()
        };
        set_checksums!(listed, part.checksums);
        listed
    });
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        is_truncated: Some(is_truncated),
        max_parts: i32::try_from(max).ok(),
        part_number_marker: input.part_number_marker,
        next_part_number_marker: last.filter(|_| is_truncated),
        parts: Some(listed.collect()),
        ..Default::default()
    }))
}
