//! S3 on a folder of files and a SQLite database. `s3s` implements the protocol; this module
//! implements the store.
//!
//! - An object is a row that points at immutable files. One transaction checks the conditions of a
//!   write, replaces the row, and inserts the events into their queues. No reader sees half of a
//!   write, no race has two winners, and no event is lost or invented.
//! - Requests are signed (SigV4, header or presigned URL) with one of the key pairs of
//!   [`crate::identity`].
//! - Objects expire by the lifecycle rules of their bucket.
//! - Buckets are not versioned. Everything beyond objects, listings, copies and multipart uploads
//!   is answered with `NotImplemented`.

mod bodies;
mod buckets;
mod checksums;
mod conditions;
mod events;
mod failure;
mod lifecycle;
mod listing;
mod multipart;
mod multipart_lists;
mod multipart_rows;
mod objects;
mod pages;
mod reading;
mod service;
mod store;
mod times;
mod writing;

pub use self::events::Notification;
pub use self::lifecycle::{Expired, Lifecycle, Rule};
pub use self::service::serve;
pub use self::store::{Store, StoreError};

/// Sets the five checksum fields of an output.
macro_rules! set_checksums {
    ($output:expr, $checksums:expr) => {{
        use $crate::s3::checksums::Algorithm;
        let checksums = &$checksums;
        let output = &mut $output;
        output.checksum_crc32 = checksums.get(Algorithm::Crc32);
        output.checksum_crc32c = checksums.get(Algorithm::Crc32c);
        output.checksum_crc64nvme = checksums.get(Algorithm::Crc64Nvme);
        output.checksum_sha1 = checksums.get(Algorithm::Sha1);
        output.checksum_sha256 = checksums.get(Algorithm::Sha256);
    }};
}

/// Reads the five checksum fields of an input, as pairs of algorithm and value.
macro_rules! claimed_checksums {
    ($input:expr) => {{
        use $crate::s3::checksums::Algorithm;
        let input = &$input;
        [
            (Algorithm::Crc32, &input.checksum_crc32),
            (Algorithm::Crc32c, &input.checksum_crc32c),
            (Algorithm::Crc64Nvme, &input.checksum_crc64nvme),
            (Algorithm::Sha1, &input.checksum_sha1),
            (Algorithm::Sha256, &input.checksum_sha256),
        ]
        .into_iter()
        .filter_map(|(algorithm, value)| Some((algorithm, value.as_ref()?)))
    }};
}

/// Reads the headers of an input that are stored with an object.
macro_rules! stored_attributes {
    ($input:expr) => {{
        let input = &$input;
        $crate::s3::objects::Attributes {
            cache_control: input.cache_control.clone(),
            content_disposition: input.content_disposition.clone(),
            content_encoding: $crate::s3::writing::stored_encoding(
                input.content_encoding.as_deref(),
            ),
            content_language: input.content_language.clone(),
            content_type: input.content_type.clone(),
            expires: input.expires.clone().map($crate::s3::times::epoch_seconds),
            storage_class: input
                .storage_class
                .as_ref()
                .map(|class| class.as_str().to_owned()),
            website_redirect_location: input.website_redirect_location.clone(),
            metadata: $crate::s3::writing::stored_metadata(input.metadata.as_ref()),
        }
    }};
}

/// Refuses options that the store would otherwise silently ignore.
macro_rules! refuse_unsupported {
    ($input:expr) => {{
        let input = &$input;
        $crate::s3::writing::refuse(
            input.sse_customer_algorithm.is_some(),
            "server-side encryption with a customer-provided key",
        )?;
        $crate::s3::writing::refuse(
            input
                .server_side_encryption
                .as_ref()
                .is_some_and(|kind| kind.as_str() != "AES256"),
            "server-side encryption with KMS",
        )?;
        $crate::s3::writing::refuse(input.tagging.is_some(), "tagging")?;
        $crate::s3::writing::refuse(
            input.object_lock_mode.is_some() || input.object_lock_legal_hold_status.is_some(),
            "object lock",
        )?;
        $crate::s3::writing::refuse(
            input.acl.as_ref().is_some_and(|acl| {
                !matches!(acl.as_str(), "private" | "bucket-owner-full-control")
            }),
            "an ACL other than private",
        )?;
    }};
}

use claimed_checksums;
use refuse_unsupported;
use set_checksums;
use stored_attributes;
