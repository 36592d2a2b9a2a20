//! ListObjectsV2.

use s3s::dto::{
    ChecksumAlgorithm, CommonPrefix, EncodingType, ListObjectsV2Input, ListObjectsV2Output,
    Object as Entry, ObjectStorageClass, Owner,
};
use s3s::{S3Request, S3Response};

use super::failure::Failure;
use super::listing::{self, Query, following, page_size, read_token, token, url_encode};
use super::objects::Object;
use super::store::Store;
use super::times::timestamp;
use crate::identity::ACCOUNT;

pub(crate) async fn list(
    store: &Store,
    request: S3Request<ListObjectsV2Input>,
) -> Result<S3Response<ListObjectsV2Output>, Failure> {
    let input = request.input;
    let max = page_size(input.max_keys)?;
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
        .map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name()))
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
