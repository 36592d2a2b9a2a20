//! ListObjects, ListObjectsV2, ListMultipartUploads and ListParts.

use s3s::dto::{
    ChecksumAlgorithm, CommonPrefix, ETag, EncodingType, Initiator, ListMultipartUploadsInput,
    ListMultipartUploadsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input,
    ListObjectsV2Output, ListPartsInput, ListPartsOutput, MultipartUpload, Object as Entry,
    ObjectStorageClass, Owner, Part,
};
use s3s::{S3Request, S3Response, s3_error};

use super::checksums::{self, Algorithm};
use super::failure::Failure;
use super::listing::{
    self, Query, after_marker, following, page_size, read_token, token, url_encode,
};
use super::multipart_rows::require_upload;
use super::objects::{Object, require_bucket};
use super::set_checksums;
use super::store::Store;
use crate::identity::ACCOUNT;
use crate::s3::multipart_rows::{parts, uploads};
use crate::s3::times::timestamp;

pub(crate) async fn list_v2(
    store: &Store,
    request: S3Request<ListObjectsV2Input>,
) -> Result<S3Response<ListObjectsV2Output>, Failure> {
    let input = request.input;
    let max = page_size("max-keys", input.max_keys)?;
    let from = match (&input.continuation_token, &input.start_after) {
        (Some(token), _) => read_token(token)?,
        (None, Some(key)) => following(key),
        (None, None) => String::new(),
    };
    let query = Query {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        from,
        max,
    };
    let bucket = input.bucket.clone();
    let listing = store
        .database
        .read(move |transaction| listing::objects(transaction, &bucket, &query))
        .await?;
    let encoding = Encoding::of(input.encoding_type.as_ref());
    let with_owner = input.fetch_owner.unwrap_or(false);
    let count = listing.entries.len() + listing.groups.len();
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoding.text(input.prefix.unwrap_or_default())),
        delimiter: input.delimiter.map(|text| encoding.text(text)),
        start_after: input.start_after.map(|text| encoding.text(text)),
        continuation_token: input.continuation_token,
        max_keys: i32::try_from(max).ok(),
        key_count: i32::try_from(count).ok(),
        is_truncated: Some(listing.next.is_some()),
        next_continuation_token: listing.next.as_deref().map(token),
        contents: Some(
            listing
                .entries
                .into_iter()
                .map(|object| entry(object, encoding, with_owner))
                .collect(),
        ),
        common_prefixes: Some(groups(listing.groups, encoding)),
        encoding_type: input.encoding_type,
        ..Default::default()
    }))
}

pub(crate) async fn list_v1(
    store: &Store,
    request: S3Request<ListObjectsInput>,
) -> Result<S3Response<ListObjectsOutput>, Failure> {
    let input = request.input;
    let max = page_size("max-keys", input.max_keys)?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let delimiter = input.delimiter.clone().unwrap_or_default();
    let from = match input.marker.as_deref() {
        None | Some("") => String::new(),
        Some(marker) => after_marker(marker, &prefix, &delimiter),
    };
    let query = Query {
        prefix,
        delimiter,
        from,
        max,
    };
    let bucket = input.bucket.clone();
    let listing = store
        .database
        .read(move |transaction| listing::objects(transaction, &bucket, &query))
        .await?;
    let encoding = Encoding::of(input.encoding_type.as_ref());
    let truncated = listing.next.is_some();
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.text(input.prefix.unwrap_or_default())),
        marker: Some(encoding.text(input.marker.unwrap_or_default())),
        max_keys: i32::try_from(max).ok(),
        is_truncated: Some(truncated),
        next_marker: listing
            .last
            .filter(|_| truncated && input.delimiter.is_some())
            .map(|last| encoding.text(last)),
        delimiter: input.delimiter.map(|text| encoding.text(text)),
        contents: Some(
            listing
                .entries
                .into_iter()
                .map(|object| entry(object, encoding, true))
                .collect(),
        ),
        common_prefixes: Some(groups(listing.groups, encoding)),
        encoding_type: input.encoding_type,
        ..Default::default()
    }))
}

pub(crate) async fn list_uploads(
    store: &Store,
    request: S3Request<ListMultipartUploadsInput>,
) -> Result<S3Response<ListMultipartUploadsOutput>, Failure> {
    let input = request.input;
    let max = page_size("max-uploads", input.max_uploads)?;
    let bucket = input.bucket.clone();
    let all = store
        .database
        .read(move |transaction| {
            require_bucket(transaction, &bucket)?;
            uploads(transaction, &bucket)
        })
        .await?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let delimiter = input.delimiter.clone().unwrap_or_default();
    // A listing continues after the marked upload if an upload id is given, otherwise after the
    // whole key.
    let key_marker = input.key_marker.clone().unwrap_or_default();
    let upload_marker = input
        .upload_id_marker
        .clone()
        .filter(|_| !key_marker.is_empty());
    let is_after = |key: &str, id: &str| match &upload_marker {
        _ if key_marker.is_empty() => true,
        Some(marker) => (key, id) > (key_marker.as_str(), marker.as_str()),
        None => key >= after_marker(&key_marker, &prefix, &delimiter).as_str(),
    };
    let encoding = Encoding::of(input.encoding_type.as_ref());
    let mut shown = Vec::new();
    let mut prefixes: Vec<String> = Vec::new();
    let mut last: Option<(String, String)> = None;
    let mut truncated = false;
    for upload in all {
        if !upload.key.starts_with(&prefix) || !is_after(&upload.key, &upload.id) {
            continue;
        }
        let query = Query {
            prefix: prefix.clone(),
            delimiter: delimiter.clone(),
            ..Query::default()
        };
        let group = listing::group_of(&upload.key, &query);
        if group.is_some() && prefixes.last() == group.as_ref() {
            continue;
        }
        if shown.len() + prefixes.len() == max {
            truncated = max > 0;
            break;
        }
        if let Some(group) = group {
            last = Some((group.clone(), String::new()));
            prefixes.push(group);
        } else {
            last = Some((upload.key.clone(), upload.id.clone()));
            shown.push(MultipartUpload {
                key: Some(encoding.text(upload.key)),
                upload_id: Some(upload.id),
                initiated: Some(timestamp(upload.started_ms)),
                initiator: Some(Initiator {
                    id: Some(ACCOUNT.to_owned()),
                    display_name: None,
                }),
                owner: Some(owner()),
                checksum_type: upload.algorithm.map(|_| checksums::kind(upload.composite)),
                checksum_algorithm: upload.algorithm.map(algorithm_name),
                ..Default::default()
            });
        }
    }
    let (next_key, next_upload) = last.filter(|_| truncated).unzip();
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        prefix: input.prefix.map(|text| encoding.text(text)),
        delimiter: input.delimiter.map(|text| encoding.text(text)),
        key_marker: input.key_marker.map(|text| encoding.text(text)),
        upload_id_marker: input.upload_id_marker,
        max_uploads: i32::try_from(max).ok(),
        is_truncated: Some(truncated),
        next_key_marker: next_key.map(|text| encoding.text(text)),
        next_upload_id_marker: next_upload.filter(|id| !id.is_empty()),
        uploads: Some(shown),
        common_prefixes: Some(groups(prefixes, encoding)),
        encoding_type: input.encoding_type,
        ..Default::default()
    }))
}

pub(crate) async fn list_parts(
    store: &Store,
    request: S3Request<ListPartsInput>,
) -> Result<S3Response<ListPartsOutput>, Failure> {
    let input = request.input;
    let max = page_size("max-parts", input.max_parts)?;
    let marker = input.part_number_marker.unwrap_or(0);
    if marker < 0 {
        return Err(s3_error!(InvalidArgument, "part-number-marker must not be negative").into());
    }
    let (bucket, key, id) = (
        input.bucket.clone(),
        input.key.clone(),
        input.upload_id.clone(),
    );
    let (upload, all) = store
        .database
        .read::<_, Failure>(move |transaction| {
            let upload = require_upload(transaction, &bucket, &key, &id)?;
            let parts = parts(transaction, &upload.id)?;
            Ok((upload, parts))
        })
        .await?;
    let mut rest = all.into_iter().filter(|part| part.number > marker);
    let page: Vec<_> = rest.by_ref().take(max).collect();
    let truncated = max > 0 && rest.next().is_some();
    let next = page.last().map(|part| part.number).filter(|_| truncated);
    let shown = page
        .into_iter()
        .map(|part| {
            let mut entry = Part {
                part_number: Some(part.number),
                size: i64::try_from(part.segment.size).ok(),
                e_tag: Some(ETag::Strong(part.etag)),
                last_modified: Some(timestamp(part.modified_ms)),
                ..Default::default()
            };
            set_checksums!(entry, part.checksums);
            entry
        })
        .collect();
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        part_number_marker: Some(marker),
        next_part_number_marker: next,
        max_parts: i32::try_from(max).ok(),
        is_truncated: Some(truncated),
        parts: Some(shown),
        initiator: Some(Initiator {
            id: Some(ACCOUNT.to_owned()),
            display_name: None,
        }),
        owner: Some(owner()),
        checksum_type: upload.algorithm.map(|_| checksums::kind(upload.composite)),
        checksum_algorithm: upload.algorithm.map(algorithm_name),
        ..Default::default()
    }))
}

/// Returns the owner of all buckets and objects.
pub(crate) fn owner() -> Owner {
    Owner {
        id: Some(ACCOUNT.to_owned()),
        display_name: Some("local".to_owned()),
    }
}

/// The encoding of keys in the XML document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Plain,
    Url,
}

impl Encoding {
    fn of(kind: Option<&EncodingType>) -> Self {
        if kind.is_some_and(|kind| kind.as_str() == EncodingType::URL) {
            Self::Url
        } else {
            Self::Plain
        }
    }

    fn text(self, text: String) -> String {
        match self {
            Self::Plain => text,
            Self::Url => url_encode(&text),
        }
    }
}

fn entry(object: Object, encoding: Encoding, with_owner: bool) -> Entry {
    let algorithms: Vec<ChecksumAlgorithm> = object
        .checksums
        .values
        .keys()
        .copied()
        .map(algorithm_name)
        .collect();
    Entry {
        e_tag: Some(object.etag()),
        size: i64::try_from(object.size).ok(),
        last_modified: Some(timestamp(object.modified_ms)),
        checksum_type: object.checksums.kind(),
        checksum_algorithm: (!algorithms.is_empty()).then_some(algorithms),
        owner: with_owner.then(owner),
        storage_class: Some(object.attributes.storage_class.map_or_else(
            || ObjectStorageClass::from_static(ObjectStorageClass::STANDARD),
            Into::into,
        )),
        key: Some(encoding.text(object.key)),
        ..Default::default()
    }
}

fn groups(groups: Vec<String>, encoding: Encoding) -> Vec<CommonPrefix> {
    groups
        .into_iter()
        .map(|group| CommonPrefix {
            prefix: Some(encoding.text(group)),
        })
        .collect()
}

fn algorithm_name(algorithm: Algorithm) -> ChecksumAlgorithm {
    ChecksumAlgorithm::from_static(algorithm.name())
}
