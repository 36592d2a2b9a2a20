//! GetObject and HeadObject.

use std::io;
use std::ops::Range;

use s3s::dto::{
    ChecksumMode, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, Metadata,
    Timestamp,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::bodies::Pin;
use super::conditions::ReadConditions;
use super::failure::Failure;
use super::objects::{Object, find, require};
use super::set_checksums;
use super::store::Store;
use super::times::timestamp;

/// How often a read is attempted if the object is replaced between reading its row and opening its
/// files.
const ATTEMPTS: usize = 16;

/// The content type of an object whose writer set none, as in S3.
const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

pub(crate) async fn get(
    store: &Store,
    request: S3Request<GetObjectInput>,
) -> Result<S3Response<GetObjectOutput>, Failure> {
    let input = request.input;
    require_current(input.version_id.as_deref())?;
    let conditions = ReadConditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
        if_modified_since: input.if_modified_since,
        if_unmodified_since: input.if_unmodified_since,
    };
    let mut attempts = Attempts::default();
    let (object, part, body) = loop {
        let (object, pin) = pinned(store, &input.bucket, &input.key).await?;
        conditions.check(&object.etag, &object.last_modified())?;
        let part = select(&object, input.range.as_ref(), input.part_number)?;
        let range = part.clone().unwrap_or(0..object.size);
        match store.bodies.read(&object.parts, range, pin).await {
            Ok(body) => break (object, part, body),
            Err(error) => attempts.again(error)?,
        }
    };

    let mut output = GetObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        body: Some(body),
        content_length: Some(length(&object, part.as_ref())),
        content_range: part.as_ref().map(|range| content_range(&object, range)),
        e_tag: Some(object.etag()),
        last_modified: Some(object.last_modified()),
        parts_count: parts_count(&object, input.part_number),
        ..Default::default()
    };
    if part.is_none() && is_enabled(input.checksum_mode.as_ref()) {
        set_checksums!(output, object.checksums);
        output.checksum_type = object.checksums.kind();
    }
    let expires = expires(&object);
    let attributes = object.attributes;
    // The signer of a request may override response headers: API_GetObject, "Overriding response
    // header values".
    output.cache_control = input.response_cache_control.or(attributes.cache_control);
    output.content_disposition = input
        .response_content_disposition
        .or(attributes.content_disposition);
    output.content_encoding = input
        .response_content_encoding
        .or(attributes.content_encoding);
    output.content_language = input
        .response_content_language
        .or(attributes.content_language);
    output.content_type = input
        .response_content_type
        .or(attributes.content_type)
        .or_else(|| Some(DEFAULT_CONTENT_TYPE.to_owned()));
    output.expires = expires;
    output.storage_class = attributes.storage_class.map(Into::into);
    output.website_redirect_location = attributes.website_redirect_location;
    output.metadata = Some(attributes.metadata.into_iter().collect::<Metadata>());
    Ok(S3Response::new(output))
}

pub(crate) async fn head(
    store: &Store,
    request: S3Request<HeadObjectInput>,
) -> Result<S3Response<HeadObjectOutput>, Failure> {
    let input = request.input;
    require_current(input.version_id.as_deref())?;
    let (bucket, key) = (input.bucket, input.key);
    let object = store
        .database
        .read(move |transaction| require(transaction, &bucket, &key))
        .await?;
    let conditions = ReadConditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
        if_modified_since: input.if_modified_since,
        if_unmodified_since: input.if_unmodified_since,
    };
    conditions.check(&object.etag, &object.last_modified())?;
    let part = select(&object, input.range.as_ref(), input.part_number)?;

    let mut output = HeadObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        content_length: Some(length(&object, part.as_ref())),
        content_range: part.as_ref().map(|range| content_range(&object, range)),
        e_tag: Some(object.etag()),
        last_modified: Some(object.last_modified()),
        parts_count: parts_count(&object, input.part_number),
        ..Default::default()
    };
    if part.is_none() && is_enabled(input.checksum_mode.as_ref()) {
        set_checksums!(output, object.checksums);
        output.checksum_type = object.checksums.kind();
    }
    let expires = expires(&object);
    let attributes = object.attributes;
    output.cache_control = attributes.cache_control;
    output.content_disposition = attributes.content_disposition;
    output.content_encoding = attributes.content_encoding;
    output.content_language = attributes.content_language;
    output.content_type = attributes
        .content_type
        .or_else(|| Some(DEFAULT_CONTENT_TYPE.to_owned()));
    output.expires = expires;
    output.storage_class = attributes.storage_class.map(Into::into);
    output.website_redirect_location = attributes.website_redirect_location;
    output.metadata = Some(attributes.metadata.into_iter().collect::<Metadata>());
    Ok(S3Response::new(output))
}

/// Loads an object and pins its files.
pub(crate) async fn pinned(
    store: &Store,
    bucket: &str,
    key: &str,
) -> Result<(Object, Pin), Failure> {
    loop {
        let (of, name) = (bucket.to_owned(), key.to_owned());
        let object = store
            .database
            .read(move |transaction| require(transaction, &of, &name))
            .await?;
        let pin = store.bodies.pin(&object.parts);
        if object.parts.len() < 2 {
            return Ok((object, pin));
        }
        // The files are opened one by one. If the row still refers to them, the pin precedes their
        // removal.
        let (of, name) = (bucket.to_owned(), key.to_owned());
        let again = store
            .database
            .read::<_, Failure>(move |transaction| Ok(find(transaction, &of, &name)?))
            .await?;
        if again.is_some_and(|again| again.parts == object.parts) {
            return Ok((object, pin));
        }
    }
}

/// Counts attempts. The object is loaded again if it was replaced between reading its row and
/// opening its files.
#[derive(Debug, Default)]
pub(crate) struct Attempts(usize);

impl Attempts {
    pub(crate) fn again(&mut self, error: io::Error) -> Result<(), Failure> {
        self.0 += 1;
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error.into());
        }
        if self.0 < ATTEMPTS {
            return Ok(());
        }
        // S3 loses no object, but a machine that loses power may. Without its bytes, it is gone:
        // the service then makes it again.
        tracing::warn!(%error, "the bytes of an object are not in the data folder: it is gone");
        Err(s3_error!(
            error,
            NoSuchKey,
            "the bytes of this object are not in the data folder, which may have been changed by another program"
        )
        .into())
    }
}

/// Buckets are not versioned: only the current version exists, which may be called `null`.
pub(crate) fn require_current(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(s3_error!(
            NoSuchVersion,
            "buckets of the local stack are not versioned"
        )),
    }
}

/// Returns the requested range, `None` for the whole object.
fn select(
    object: &Object,
    range: Option<&s3s::dto::Range>,
    part: Option<i32>,
) -> Result<Option<Range<u64>>, Failure> {
    let unsatisfiable = || s3_error!(InvalidRange, "the requested range is not satisfiable");
    match (range, part) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(s3_error!(
            InvalidRequest,
            "a range and a part number cannot be combined"
        )
        .into()),
        (Some(range), None) => {
            let range = range.check(object.size).map_err(|_| unsatisfiable())?;
            if range.is_empty() {
                Err(unsatisfiable().into())
            } else {
                Ok(Some(range))
            }
        }
        (None, Some(number)) => {
            let range = object.part(number).ok_or_else(unsatisfiable)?;
            // The only part of an empty object has no byte range.
            Ok((!range.is_empty()).then_some(range))
        }
    }
}

fn length(object: &Object, part: Option<&Range<u64>>) -> i64 {
    let length = part.map_or(object.size, |range| range.end - range.start);
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn content_range(object: &Object, range: &Range<u64>) -> String {
    format!("bytes {}-{}/{}", range.start, range.end - 1, object.size)
}

fn parts_count(object: &Object, asked: Option<i32>) -> Option<i32> {
    asked
        .filter(|_| object.is_of_parts())
        .and_then(|_| i32::try_from(object.parts.len()).ok())
}

fn is_enabled(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

fn expires(object: &Object) -> Option<Timestamp> {
    object
        .attributes
        .expires
        .map(|seconds| timestamp(seconds.saturating_mul(1000)))
}
