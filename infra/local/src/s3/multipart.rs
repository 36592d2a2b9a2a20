//! Multipart uploads: parts in any order and with any numbers, joined without copying bytes.

use rusqlite::{OptionalExtension, params};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumType,
    CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart, CopyPartResult,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, ETag, UploadPartCopyInput,
    UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use uuid::Uuid;

use super::bodies::NewBody;
use super::checksums::{self, Algorithm, Checksums, Claims};
use super::conditions::{ReadConditions, WriteConditions};
use super::events::Cause;
use super::failure::Failure;
use super::objects::{self, Object, require_bucket};
use super::reading::{Attempts, pinned};
use super::store::Store;
use super::times::timestamp;
use super::writing::{MAX_REQUEST_BYTES, nothing, source};
use super::{claimed_checksums, refuse_unsupported, set_checksums, stored_attributes};
use crate::s3::multipart_rows::{Part, Upload, forget_upload, parts, require_upload};

/// The minimum size of every part but the last (Amazon S3 User Guide, "Multipart upload limits").
const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;

const PART_NUMBERS: std::ops::RangeInclusive<i32> = 1..=10_000;

pub(crate) async fn create(
    store: &Store,
    request: S3Request<CreateMultipartUploadInput>,
) -> Result<S3Response<CreateMultipartUploadOutput>, Failure> {
    refuse_unsupported!(request.input);
    let attributes = stored_attributes!(request.input);
    let input = request.input;
    let algorithm = input
        .checksum_algorithm
        .as_ref()
        .map(|algorithm| Algorithm::parse(algorithm.as_str()))
        .transpose()?;
    let composite = is_composite(algorithm, input.checksum_type.as_ref())?;
    let upload = Upload {
        id: new_id(),
        key: input.key,
        started_ms: store.now(),
        algorithm,
        composite,
        attributes,
    };
    let bucket = input.bucket;
    let (bucket, upload) = store
        .database
        .write::<_, Failure>(move |transaction| {
            require_bucket(transaction, &bucket)?;
            transaction.execute(
                "INSERT INTO uploads (id, bucket, key, started_ms, algorithm, kind, attributes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    upload.id,
                    bucket,
                    upload.key,
                    upload.started_ms,
                    upload.algorithm.map(Algorithm::name),
                    checksums::kind(upload.composite).as_str(),
                    serde_json::to_string(&upload.attributes)?
                ],
            )?;
            Ok((bucket, upload))
        })
        .await?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(bucket),
        key: Some(upload.key),
        upload_id: Some(upload.id),
        checksum_type: algorithm.map(|_| checksums::kind(composite)),
        checksum_algorithm: input.checksum_algorithm,
        ..Default::default()
    }))
}

pub(crate) async fn upload_part(
    store: &Store,
    mut request: S3Request<UploadPartInput>,
) -> Result<S3Response<UploadPartOutput>, Failure> {
    let mut claims = Claims::of(
        &request.headers,
        request.trailing_headers.take(),
        request.input.checksum_algorithm.as_ref(),
    )?;
    let input = request.input;
    claims
        .wanted
        .push(algorithm_of(store, &input.bucket, &input.key, &input.upload_id).await?);
    let length = input
        .content_length
        .and_then(|length| u64::try_from(length).ok());
    let body = input.body.unwrap_or_else(nothing);
    let new = store
        .bodies
        .write(body, &mut claims, length, MAX_REQUEST_BYTES)
        .await?;
    let claimed: Vec<Algorithm> = claims.values.keys().copied().collect();
    let part = add_part(
        store,
        input.bucket,
        input.key,
        input.upload_id,
        input.part_number,
        new,
    )
    .await?;

    let mut output = UploadPartOutput {
        e_tag: Some(ETag::Strong(part.etag.clone())),
        ..Default::default()
    };
    let mut told = part.checksums;
    told.values
        .retain(|algorithm, _| claimed.is_empty() || claimed.contains(algorithm));
    set_checksums!(output, told);
    Ok(S3Response::new(output))
}

pub(crate) async fn upload_part_copy(
    store: &Store,
    request: S3Request<UploadPartCopyInput>,
) -> Result<S3Response<UploadPartCopyOutput>, Failure> {
    let input = request.input;
    let (from_bucket, from_key) = source(&input.copy_source)?;
    let conditions = ReadConditions {
        if_match: input.copy_source_if_match,
        if_none_match: input.copy_source_if_none_match,
        if_modified_since: input.copy_source_if_modified_since,
        if_unmodified_since: input.copy_source_if_unmodified_since,
    };
    let range = input
        .copy_source_range
        .as_deref()
        .map(s3s::dto::Range::parse)
        .transpose()
        .map_err(|error| {
            s3_error!(
                error,
                InvalidArgument,
                "x-amz-copy-source-range must have the form bytes=first-last"
            )
        })?;
    let algorithm = algorithm_of(store, &input.bucket, &input.key, &input.upload_id).await?;
    let mut attempts = Attempts::default();
    let new = loop {
        let (object, pin) = pinned(store, &from_bucket, &from_key).await?;
        conditions.check_source(&object.etag, &object.last_modified())?;
        let bytes = match range {
            None => 0..object.size,
            // Unlike a range that is read, a range that is copied must lie within its source.
            Some(s3s::dto::Range::Int {
                first,
                last: Some(last),
            }) if last < object.size => first..last + 1,
            Some(_) => {
                return Err(s3_error!(InvalidRange, "the source has {} bytes", object.size).into());
            }
        };
        let length = bytes.end - bytes.start;
        match store.bodies.read(&object.parts, bytes, pin).await {
            Ok(body) => {
                let mut claims = Claims::computing(algorithm);
                break store
                    .bodies
                    .write(body, &mut claims, Some(length), MAX_REQUEST_BYTES)
                    .await?;
            }
            Err(error) => attempts.again(error)?,
        }
    };
    let part = add_part(
        store,
        input.bucket,
        input.key,
        input.upload_id,
        input.part_number,
        new,
    )
    .await?;

    let mut result = CopyPartResult {
        e_tag: Some(ETag::Strong(part.etag.clone())),
        last_modified: Some(timestamp(part.modified_ms)),
        ..Default::default()
    };
    set_checksums!(result, part.checksums);
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(result),
        ..Default::default()
    }))
}

pub(crate) async fn complete(
    store: &Store,
    request: S3Request<CompleteMultipartUploadInput>,
) -> Result<S3Response<CompleteMultipartUploadOutput>, Failure> {
    let cause = Store::cause(Cause::COMPLETE, &request);
    let input = request.input;
    let store = store.clone();
    let (bucket, object) = Store::finish(async move {
        let now = store.now();
        let notifications = store.notifications.clone();
        let (bucket, object, unused) = store
            .database
            .write::<_, Failure>(move |transaction| {
                let upload =
                    require_upload(transaction, &input.bucket, &input.key, &input.upload_id)?;
                let stored = parts(transaction, &upload.id)?;
                let object = join(&input, upload, &stored)?;
                let conditions = WriteConditions {
                    if_match: input.if_match.clone(),
                    if_none_match: input.if_none_match.clone(),
                };
                let mut unused = objects::replace(
                    transaction,
                    &input.bucket,
                    &object,
                    &conditions,
                    &notifications,
                    &cause,
                    now,
                )?;
                let left = stored
                    .into_iter()
                    .map(|part| part.segment.file)
                    .filter(|file| object.parts.iter().all(|part| part.file != *file))
                    .collect();
                unused.extend(forget_upload(transaction, &input.upload_id, left)?);
                Ok((input.bucket, object, unused))
            })
            .await?;
        store.changed(unused);
        Ok((bucket, object))
    })
    .await?;

    let mut output = CompleteMultipartUploadOutput {
        location: Some(format!("/{bucket}/{}", object.key)),
        bucket: Some(bucket),
        e_tag: Some(object.etag()),
        checksum_type: object.checksums.kind(),
        ..Default::default()
    };
    set_checksums!(output, object.checksums);
    output.key = Some(object.key);
    Ok(S3Response::new(output))
}

pub(crate) async fn abort(
    store: &Store,
    request: S3Request<AbortMultipartUploadInput>,
) -> Result<S3Response<AbortMultipartUploadOutput>, Failure> {
    let input = request.input;
    let store = store.clone();
    Store::finish(async move {
        let unused = store
            .database
            .write::<_, Failure>(move |transaction| {
                let upload =
                    require_upload(transaction, &input.bucket, &input.key, &input.upload_id)?;
                let files = parts(transaction, &upload.id)?
                    .into_iter()
                    .map(|part| part.segment.file)
                    .collect();
                Ok(forget_upload(transaction, &upload.id, files)?)
            })
            .await?;
        store.changed(unused);
        Ok(())
    })
    .await?;
    Ok(S3Response::with_status(
        AbortMultipartUploadOutput::default(),
        http::StatusCode::NO_CONTENT,
    ))
}

/// Returns the object that consists of the parts listed in the request.
fn join(
    input: &CompleteMultipartUploadInput,
    upload: Upload,
    stored: &[Part],
) -> Result<Object, Failure> {
    let named = input
        .multipart_upload
        .as_ref()
        .and_then(|list| list.parts.as_deref())
        .unwrap_or_default();
    if named.is_empty() {
        return Err(s3_error!(InvalidRequest, "a multipart upload needs at least one part").into());
    }
    if !named.is_sorted_by(|before, after| before.part_number < after.part_number) {
        return Err(s3_error!(
            InvalidPartOrder,
            "the parts must be listed by ascending number"
        )
        .into());
    }
    let mut chosen: Vec<&Part> = Vec::with_capacity(named.len());
    for part in named {
        chosen.push(find_part(part, upload.algorithm, stored)?);
    }
    let (last, others) = chosen
        .split_last()
        .map_or((None, &[] as &[_]), |(last, others)| (Some(last), others));
    if let Some(small) = others
        .iter()
        .find(|part| part.segment.size < MIN_PART_BYTES)
    {
        return Err(s3_error!(
            EntityTooSmall,
            "part {} has {} bytes; every part except the last ({}) must have at least {MIN_PART_BYTES}",
            small.number,
            small.segment.size,
            last.map_or(0, |last| last.number)
        )
        .into());
    }
    let size: u64 = chosen.iter().map(|part| part.segment.size).sum();
    if input
        .mpu_object_size
        .is_some_and(|announced| u64::try_from(announced) != Ok(size))
    {
        return Err(s3_error!(
            InvalidRequest,
            "the parts have {size} bytes in total, which differs from the declared size"
        )
        .into());
    }
    let sums: Vec<(u64, &Checksums)> = chosen
        .iter()
        .map(|part| (part.segment.size, &part.checksums))
        .collect();
    let algorithm = upload.algorithm.unwrap_or(Algorithm::DEFAULT);
    let checksums = checksums::of_parts(algorithm, upload.composite, &sums)?.unwrap_or_default();
    for (algorithm, claimed) in claimed_checksums!(input) {
        if checksums
            .get(algorithm)
            .is_some_and(|computed| computed != *claimed)
        {
            return Err(s3_error!(
                BadDigest,
                "the {} does not match the checksum of the parts",
                algorithm.name()
            )
            .into());
        }
    }
    let mut digests = Vec::with_capacity(chosen.len() * 16);
    for part in &chosen {
        digests.extend(hex::decode(&part.etag).unwrap_or_default());
    }
    let etag = {
        use md5::{Digest, Md5};
        format!("{}-{}", hex::encode(Md5::digest(&digests)), chosen.len())
    };
    Ok(Object {
        key: upload.key,
        size,
        etag,
        modified_ms: upload.started_ms,
        parts: chosen
            .into_iter()
            .map(|part| part.segment.clone())
            .collect(),
        checksums,
        attributes: upload.attributes,
    })
}

/// Returns a part that the request lists. S3 keeps the checksums of parts only if the upload has
/// their algorithm, and compares what is listed with what it keeps:
/// other checksums are an `InvalidPart`. Source: <https://github.com/aws/aws-sdk-go-v2/issues/3005>.
fn find_part<'a>(
    named: &CompletedPart,
    of_upload: Option<Algorithm>,
    stored: &'a [Part],
) -> S3Result<&'a Part> {
    let invalid = || {
        s3_error!(
            InvalidPart,
            "part {} was not uploaded, or its ETag or checksum differs",
            named.part_number.unwrap_or(0)
        )
    };
    let part = stored
        .iter()
        .find(|part| Some(part.number) == named.part_number)
        .ok_or_else(invalid)?;
    let same_etag = named
        .e_tag
        .as_ref()
        .is_some_and(|etag| etag.value() == part.etag);
    let same_checksums = claimed_checksums!(named).all(|(algorithm, claimed)| {
        of_upload == Some(algorithm)
            && part
                .checksums
                .get(algorithm)
                .is_some_and(|kept| kept == *claimed)
    });
    if same_etag && same_checksums {
        Ok(part)
    } else {
        Err(invalid())
    }
}

async fn add_part(
    store: &Store,
    bucket: String,
    key: String,
    upload: String,
    number: i32,
    new: NewBody,
) -> Result<Part, Failure> {
    if !PART_NUMBERS.contains(&number) {
        return Err(s3_error!(InvalidArgument, "part numbers must be from 1 to 10000").into());
    }
    let store = store.clone();
    Store::finish(async move {
        let part = Part {
            number,
            segment: new.segment(),
            etag: hex::encode(new.md5),
            modified_ms: store.now(),
            checksums: new.checksums.clone(),
        };
        let (part, unused) = store
            .database
            .write::<_, Failure>(move |transaction| {
                require_upload(transaction, &bucket, &key, &upload)?;
                let replaced: Option<String> = transaction
                    .prepare_cached("SELECT file FROM upload_parts WHERE upload = ?1 AND number = ?2")?
                    .query_row(params![upload, number], |row| row.get(0))
                    .optional()?;
                let unused = objects::forget(transaction, replaced.into_iter().collect())?;
                objects::remember_files(transaction, [part.segment.file.as_str()])?;
                transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO upload_parts (upload, number, file, size, etag, modified_ms, checksums)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                    )?
                    .execute(params![
                        upload,
                        part.number,
                        part.segment.file,
                        part.segment.size,
                        part.etag,
                        part.modified_ms,
                        serde_json::to_string(&part.checksums)?
                    ])?;
                Ok((part, unused))
            })
            .await?;
        new.keep();
        store.bodies.remove(unused);
        Ok(part)
    })
    .await
}

/// Returns the algorithm to compute for the parts of an upload. An upload that does not exist is
/// refused only when the part is added: by then its body has been read, as clients expect.
async fn algorithm_of(
    store: &Store,
    bucket: &str,
    key: &str,
    id: &str,
) -> Result<Algorithm, Failure> {
    let (bucket, key, id) = (bucket.to_owned(), key.to_owned(), id.to_owned());
    let upload = store
        .database
        .read::<_, Failure>(move |transaction| {
            match require_upload(transaction, &bucket, &key, &id) {
                Ok(upload) => Ok(Some(upload)),
                Err(Failure(error)) if *error.code() != s3s::S3ErrorCode::InternalError => Ok(None),
                Err(failure) => Err(failure),
            }
        })
        .await?;
    Ok(upload
        .and_then(|upload| upload.algorithm)
        .unwrap_or(Algorithm::DEFAULT))
}

/// Returns whether the checksum is computed over the parts' checksums. Source: Amazon S3 User
/// Guide, "Checking object integrity", table of checksum types by algorithm.
fn is_composite(algorithm: Option<Algorithm>, kind: Option<&ChecksumType>) -> S3Result<bool> {
    let asked = kind.map(|kind| kind.as_str() == ChecksumType::COMPOSITE);
    match (algorithm, asked) {
        (None, None | Some(false)) | (Some(Algorithm::Crc64Nvme), None | Some(false)) => Ok(false),
        (Some(Algorithm::Crc32 | Algorithm::Crc32c), asked) => Ok(asked.unwrap_or(true)),
        (Some(Algorithm::Sha1 | Algorithm::Sha256), None | Some(true)) => Ok(true),
        (algorithm, asked) => Err(s3_error!(
            InvalidRequest,
            "the checksum type {} cannot be used with the algorithm {}",
            checksums::kind(asked.unwrap_or(false)).as_str(),
            algorithm.map_or("(none)", Algorithm::name)
        )),
    }
}

fn new_id() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}
