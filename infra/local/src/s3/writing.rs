//! PutObject, CopyObject, DeleteObject and DeleteObjects.

use std::collections::BTreeMap;

use futures::stream;
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, DeleteObjectInput,
    DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETagCondition,
    Error, Metadata, MetadataDirective, ObjectIdentifier, PutObjectInput, PutObjectOutput,
    StreamingBlob,
};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::bodies::{NewBody, NewLink};
use super::checksums::{Algorithm, Claims};
use super::conditions::{ReadConditions, WriteConditions};
use super::events::Cause;
use super::failure::Failure;
use super::objects::{self, Object};
use super::reading::{Attempts, pinned, require_current};
use super::store::Store;
use super::times::timestamp;
use super::{refuse_unsupported, set_checksums, stored_attributes};

/// The maximum size of one request (Amazon S3 User Guide, "Uploading objects").
pub(crate) const MAX_REQUEST_BYTES: u64 = 5 * 1024 * 1024 * 1024;

/// The maximum number of keys in a batch delete.
const MAX_DELETES: usize = 1000;

pub(crate) async fn put(
    store: &Store,
    mut request: S3Request<PutObjectInput>,
) -> Result<S3Response<PutObjectOutput>, Failure> {
    refuse_unsupported!(request.input);
    refuse(
        request.input.write_offset_bytes.is_some(),
        "appending to objects",
    )?;
    let cause = Store::cause(Cause::PUT, &request);
    let attributes = stored_attributes!(request.input);
    let mut claims = Claims::of(
        &request.headers,
        request.trailing_headers.take(),
        request.input.checksum_algorithm.as_ref(),
    )?;
    let input = request.input;
    let conditions = WriteConditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
    };
    let length = input
        .content_length
        .and_then(|length| u64::try_from(length).ok());
    let body = input.body.unwrap_or_else(nothing);
    let new = store
        .bodies
        .write(body, &mut claims, length, MAX_REQUEST_BYTES)
        .await?;

    let object = Object {
        key: input.key,
        size: new.size,
        etag: hex::encode(new.md5),
        modified_ms: store.now(),
        parts: vec![new.segment()],
        checksums: new.checksums.clone(),
        attributes,
    };
    let object = commit(store, input.bucket, object, conditions, cause, move || {
        new.keep();
    })
    .await?;

    let mut output = PutObjectOutput {
        e_tag: Some(object.etag()),
        ..Default::default()
    };
    set_checksums!(output, object.checksums);
    output.checksum_type = object.checksums.kind();
    Ok(S3Response::new(output))
}

pub(crate) async fn copy(
    store: &Store,
    request: S3Request<CopyObjectInput>,
) -> Result<S3Response<CopyObjectOutput>, Failure> {
    refuse_unsupported!(request.input);
    let cause = Store::cause(Cause::COPY, &request);
    // s3s does not parse these two headers of a copy.
    let conditions = WriteConditions {
        if_match: condition(&request.headers, http::header::IF_MATCH)?,
        if_none_match: condition(&request.headers, http::header::IF_NONE_MATCH)?,
    };
    let replaced = stored_attributes!(request.input);
    let input = request.input;
    let (from_bucket, from_key) = source(&input.copy_source)?;
    let replaces = input
        .metadata_directive
        .as_ref()
        .is_some_and(|directive| directive.as_str() == MetadataDirective::REPLACE);
    if !replaces
        && from_bucket == input.bucket
        && from_key == input.key
        && replaced.storage_class.is_none()
    {
        return Err(s3_error!(
            InvalidRequest,
            "an object cannot be copied to itself without changing its metadata (metadata directive REPLACE)"
        )
        .into());
    }
    let from_conditions = ReadConditions {
        if_match: input.copy_source_if_match,
        if_none_match: input.copy_source_if_none_match,
        if_modified_since: input.copy_source_if_modified_since,
        if_unmodified_since: input.copy_source_if_unmodified_since,
    };
    let algorithm = input
        .checksum_algorithm
        .as_ref()
        .map(|algorithm| Algorithm::parse(algorithm.as_str()))
        .transpose()?;

    let from = (from_bucket.as_str(), from_key.as_str());
    let (mut object, bytes) = copy_bytes(store, from, &from_conditions, algorithm).await?;
    object.key = input.key;
    object.modified_ms = store.now();
    if replaces {
        object.attributes = replaced;
    } else if replaced.storage_class.is_some() {
        object.attributes.storage_class = replaced.storage_class;
    }
    let object = commit(store, input.bucket, object, conditions, cause, move || {
        bytes.keep();
    })
    .await?;

    let mut result = CopyObjectResult {
        e_tag: Some(object.etag()),
        last_modified: Some(timestamp(object.modified_ms)),
        ..Default::default()
    };
    set_checksums!(result, object.checksums);
    result.checksum_type = object.checksums.kind();
    Ok(S3Response::new(CopyObjectOutput {
        copy_object_result: Some(result),
        ..Default::default()
    }))
}

/// Returns the condition in a header of a copy.
fn condition(headers: &http::HeaderMap, name: http::HeaderName) -> S3Result<Option<ETagCondition>> {
    let Some(value) = headers.get(&name) else {
        return Ok(None);
    };
    ETagCondition::parse_http_header(value.as_bytes())
        .map(Some)
        .map_err(|error| s3_error!(error, InvalidArgument, "the value of {name} is not an ETag"))
}

/// The bytes of a copy, which are removed again unless they are kept.
enum CopiedBytes {
    /// They were written, because a checksum had to be computed.
    Written(NewBody),
    /// They are those of the source, under further names.
    Linked(Vec<NewLink>),
}

impl CopiedBytes {
    fn keep(self) {
        match self {
            Self::Written(new) => new.keep(),
            Self::Linked(links) => links.into_iter().for_each(NewLink::keep),
        }
    }
}

/// Copies the bytes of an object, given by its bucket and key, that meets the conditions. Returns
/// the object with the new bytes.
async fn copy_bytes(
    store: &Store,
    (bucket, key): (&str, &str),
    conditions: &ReadConditions,
    algorithm: Option<Algorithm>,
) -> Result<(Object, CopiedBytes), Failure> {
    let mut attempts = Attempts::default();
    loop {
        let (mut object, pin) = pinned(store, bucket, key).await?;
        conditions.check_source(&object.etag, &object.last_modified())?;
        match to_compute(&object, algorithm) {
            Some(algorithm) => match store.bodies.read(&object.parts, 0..object.size, pin).await {
                Ok(body) => {
                    let mut claims = Claims::computing(algorithm);
                    let new = store
                        .bodies
                        .write(body, &mut claims, Some(object.size), u64::MAX)
                        .await?;
                    object.etag = hex::encode(new.md5);
                    object.checksums = new.checksums.clone();
                    object.parts = vec![new.segment()];
                    return Ok((object, CopiedBytes::Written(new)));
                }
                Err(error) => attempts.again(error)?,
            },
            None => match store.bodies.link_all(&object.parts).await {
                Ok(links) => {
                    object.parts = links.iter().map(NewLink::segment).collect();
                    return Ok((object, CopiedBytes::Linked(links)));
                }
                Err(error) => attempts.again(error)?,
            },
        }
    }
}

/// Returns the checksum to compute for a copy of an object, if its bytes have to be read: because
/// the checksum that is asked for is not stored, or because the object is of parts. Its copy is in
/// one piece, and has the ETag of its bytes. Source: Amazon S3 API Reference, "Object".
fn to_compute(object: &Object, asked: Option<Algorithm>) -> Option<Algorithm> {
    if object.is_of_parts() {
        let stored = object.checksums.values.keys().next().copied();
        return Some(asked.or(stored).unwrap_or(Algorithm::DEFAULT));
    }
    asked.filter(|asked| object.checksums.get(*asked).is_none())
}

pub(crate) async fn delete(
    store: &Store,
    request: S3Request<DeleteObjectInput>,
) -> Result<S3Response<DeleteObjectOutput>, Failure> {
    let cause = Store::cause(Cause::DELETE, &request);
    let input = request.input;
    require_current(input.version_id.as_deref())?;
    refuse(
        input.if_match_size.is_some() || input.if_match_last_modified_time.is_some(),
        "a condition on the size or time of a deleted object",
    )?;
    let conditions = WriteConditions {
        if_match: input.if_match,
        if_none_match: None,
    };
    let store = store.clone();
    Store::finish(async move {
        let now = store.now();
        let notifications = store.notifications.clone();
        let unused = store
            .database
            .write::<_, Failure>(move |transaction| {
                let check = |stored: Option<&Object>| {
                    conditions.check(stored.map(|stored| stored.etag.as_str()))
                };
                objects::remove(
                    transaction,
                    &input.bucket,
                    &input.key,
                    check,
                    &notifications,
                    &cause,
                    now,
                )
            })
            .await?;
        store.changed(unused);
        Ok(())
    })
    .await?;
    Ok(S3Response::with_status(
        DeleteObjectOutput::default(),
        http::StatusCode::NO_CONTENT,
    ))
}

pub(crate) async fn delete_many(
    store: &Store,
    request: S3Request<DeleteObjectsInput>,
) -> Result<S3Response<DeleteObjectsOutput>, Failure> {
    let cause = Store::cause(Cause::DELETE, &request);
    let input = request.input;
    let keys = input.delete.objects;
    if keys.is_empty() || keys.len() > MAX_DELETES {
        return Err(s3_error!(
            MalformedXML,
            "a batch delete must have 1 to {MAX_DELETES} keys"
        )
        .into());
    }
    let quiet = input.delete.quiet.unwrap_or(false);
    let bucket = input.bucket;
    let store = store.clone();
    let (deleted, errors) = Store::finish(async move {
        let now = store.now();
        let notifications = store.notifications.clone();
        let (deleted, errors, unused) = store
            .database
            .write::<_, Failure>(move |transaction| {
                objects::require_bucket(transaction, &bucket)?;
                let mut deleted = Vec::new();
                let mut errors = Vec::new();
                let mut unused = Vec::new();
                for ObjectIdentifier {
                    key,
                    e_tag,
                    version_id,
                    ..
                } in keys
                {
                    let check = |stored: Option<&Object>| {
                        require_current(version_id.as_deref())?;
                        let if_match = e_tag.map(ETagCondition::ETag);
                        WriteConditions {
                            if_match,
                            if_none_match: None,
                        }
                        .check(stored.map(|stored| stored.etag.as_str()))
                    };
                    // The check precedes all changes, so that a refused deletion has nothing to
                    // undo.
                    match objects::remove(
                        transaction,
                        &bucket,
                        &key,
                        check,
                        &notifications,
                        &cause,
                        now,
                    ) {
                        Ok(files) => {
                            unused.extend(files);
                            deleted.push(DeletedObject {
                                key: Some(key),
                                ..Default::default()
                            });
                        }
                        Err(Failure(error)) if *error.code() != S3ErrorCode::InternalError => {
                            errors.push(Error {
                                code: Some(error.code().as_str().to_owned()),
                                message: error.message().map(str::to_owned),
                                key: Some(key),
                                version_id: None,
                            });
                        }
                        Err(failure) => return Err(failure),
                    }
                }
                Ok((deleted, errors, unused))
            })
            .await?;
        store.changed(unused);
        Ok((deleted, errors))
    })
    .await?;
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: (!quiet).then_some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        ..Default::default()
    }))
}

/// Stores `object` under its key. `keep` runs after the commit, and only then.
async fn commit(
    store: &Store,
    bucket: String,
    object: Object,
    conditions: WriteConditions,
    cause: Cause,
    keep: impl FnOnce() + Send + 'static,
) -> Result<Object, Failure> {
    let store = store.clone();
    Store::finish(async move {
        let notifications = store.notifications.clone();
        let (object, unused) = store
            .database
            .write::<_, Failure>(move |transaction| {
                let unused = objects::replace(
                    transaction,
                    &bucket,
                    &object,
                    &conditions,
                    &notifications,
                    &cause,
                    object.modified_ms,
                )?;
                Ok((object, unused))
            })
            .await?;
        keep();
        store.changed(unused);
        Ok(object)
    })
    .await
}

/// Returns the bucket and key of the source of a copy.
pub(crate) fn source(source: &CopySource) -> Result<(String, String), Failure> {
    match source {
        CopySource::Bucket {
            bucket,
            key,
            version_id,
        } => {
            require_current(version_id.as_deref())?;
            Ok((bucket.to_string(), key.to_string()))
        }
        _ => Err(s3_error!(
            NotImplemented,
            "the source of a copy must be a bucket and a key"
        )
        .into()),
    }
}

/// Returns the empty body of a request without one.
pub(crate) fn nothing() -> StreamingBlob {
    StreamingBlob::wrap(stream::empty::<Result<bytes::Bytes, std::io::Error>>())
}

/// Returns `NotImplemented` if a request uses an unsupported option.
pub(crate) fn refuse(asked: bool, what: &str) -> S3Result<()> {
    if asked {
        Err(s3_error!(
            NotImplemented,
            "the local stack does not support {what}"
        ))
    } else {
        Ok(())
    }
}

/// Returns the content encoding to store, without `aws-chunked`, which belongs to the transfer.
pub(crate) fn stored_encoding(encoding: Option<&str>) -> Option<String> {
    let kept: Vec<&str> = encoding?
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty() && !part.eq_ignore_ascii_case("aws-chunked"))
        .collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

/// Returns user metadata in its stored form.
pub(crate) fn stored_metadata(metadata: Option<&Metadata>) -> BTreeMap<String, String> {
    metadata
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_the_transfer_is_not_stored() {
        assert_eq!(stored_encoding(Some("aws-chunked")), None);
        assert_eq!(
            stored_encoding(Some("gzip,aws-chunked")),
            Some("gzip".to_owned())
        );
        assert_eq!(stored_encoding(Some("gzip")), Some("gzip".to_owned()));
        assert_eq!(stored_encoding(None), None);
    }
}
