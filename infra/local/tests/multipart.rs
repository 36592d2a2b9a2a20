//! Multipart uploads at the S3 endpoint, tested with the real client.

#![expect(clippy::unwrap_used, reason = "an error fails the test")]

mod endpoints;

use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    ChecksumAlgorithm, ChecksumMode, ChecksumType, CompletedMultipartUpload, CompletedPart,
};
use endpoints::{CACHES, S3, UPLOADS};

const MIB: usize = 1024 * 1024;

/// Returns pseudo-random bytes.
fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_be_bytes()[0]
        })
        .collect()
}

async fn begin(client: &Client, key: &str) -> String {
    let begun = client
        .create_multipart_upload()
        .bucket(UPLOADS)
        .key(key)
        .metadata("kind", "file")
        .send()
        .await
        .unwrap();
    begun.upload_id().unwrap().to_owned()
}

/// Returns the keys of a listing of uploads, by pages of one.
async fn listed_uploads(client: &Client, prefix: &str) -> Vec<(String, String)> {
    let (mut listed, mut after) = (Vec::new(), (None, None));
    loop {
        let page = client
            .list_multipart_uploads()
            .bucket(UPLOADS)
            .prefix(prefix)
            .max_uploads(1)
            .set_key_marker(after.0)
            .set_upload_id_marker(after.1)
            .send()
            .await
            .unwrap();
        for upload in page.uploads() {
            let (key, id) = (upload.key().unwrap(), upload.upload_id().unwrap());
            listed.push((key.to_owned(), id.to_owned()));
        }
        if page.is_truncated() != Some(true) {
            return listed;
        }
        after = (page.next_key_marker, page.next_upload_id_marker);
    }
}

async fn upload(client: &Client, key: &str, id: &str, number: i32, body: Vec<u8>) -> CompletedPart {
    let body = ByteStream::from(body);
    let part = client
        .upload_part()
        .bucket(UPLOADS)
        .key(key)
        .upload_id(id)
        .part_number(number)
        .body(body)
        .send()
        .await
        .unwrap();
    CompletedPart::builder()
        .part_number(number)
        .e_tag(part.e_tag().unwrap())
        .build()
}

fn list(parts: &[CompletedPart]) -> CompletedMultipartUpload {
    CompletedMultipartUpload::builder()
        .set_parts(Some(parts.to_vec()))
        .build()
}

fn complete(
    client: &Client,
    key: &str,
    id: &str,
    parts: &[CompletedPart],
) -> aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder
{
    client
        .complete_multipart_upload()
        .bucket(UPLOADS)
        .key(key)
        .upload_id(id)
        .multipart_upload(list(parts))
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_in_any_order_with_any_numbers_are_one_object_with_one_event() {
    let s3 = S3::start().await;
    let client = s3.client();
    let id = begin(&client, "big").await;
    let (one, two, three) = (bytes(1, 5 * MIB), bytes(2, 6 * MIB), bytes(3, 1234));
    let (c, a, b) = tokio::join!(
        upload(&client, "big", &id, 9000, three.clone()),
        upload(&client, "big", &id, 3, one.clone()),
        upload(&client, "big", &id, 77, two.clone()),
    );
    let done = complete(&client, "big", &id, &[a, b, c])
        .send()
        .await
        .unwrap();
    assert!(done.e_tag().unwrap().ends_with("-3\""));
    assert_eq!(done.checksum_type(), Some(&ChecksumType::FullObject));
    assert!(done.checksum_crc64_nvme().is_some());

    let whole = [one, two, three].concat();
    let got = client
        .get_object()
        .bucket(UPLOADS)
        .key("big")
        .send()
        .await
        .unwrap();
    assert_eq!(got.metadata().unwrap()["kind"], "file");
    assert_eq!(got.checksum_crc64_nvme(), done.checksum_crc64_nvme());
    // The client verifies the checksum, which was combined from the parts' checksums.
    assert!(got.body.collect().await.unwrap().to_vec() == whole);
    let edge = 5 * MIB;
    let range = format!("bytes={}-{}", edge - 3, edge + 2);
    let got = client
        .get_object()
        .bucket(UPLOADS)
        .key("big")
        .range(range)
        .send()
        .await
        .unwrap();
    assert_eq!(
        got.body.collect().await.unwrap().to_vec(),
        whole[edge - 3..edge + 3]
    );
    let part = client
        .get_object()
        .bucket(UPLOADS)
        .key("big")
        .part_number(2)
        .send()
        .await
        .unwrap();
    assert_eq!(
        (part.parts_count(), part.content_length()),
        (Some(3), Some(6 * MIB as i64))
    );

    let events = s3.events().await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0]["eventName"],
        "ObjectCreated:CompleteMultipartUpload"
    );
    assert_eq!(events[0]["s3"]["object"]["size"], whole.len());
    assert_eq!(s3.files(), 3);
    let copied = client
        .copy_object()
        .bucket(CACHES)
        .key("copy")
        .copy_source(format!("{UPLOADS}/big"))
        .send()
        .await
        .unwrap();
    // The copy is in one piece: it has the ETag of an object that is put, and the same checksum.
    let copied = copied.copy_object_result().unwrap();
    let etag = copied.e_tag().unwrap();
    assert!(!etag.contains('-') && etag.len() == 34, "{etag}");
    assert_eq!(copied.checksum_crc64_nvme(), done.checksum_crc64_nvme());
    client
        .delete_object()
        .bucket(UPLOADS)
        .key("big")
        .send()
        .await
        .unwrap();
    let got = client
        .get_object()
        .bucket(CACHES)
        .key("copy")
        .send()
        .await
        .unwrap();
    assert!(got.body.collect().await.unwrap().to_vec() == whole);
}

/// As in S3: what compares times must not take it for an object that was written at its completion.
#[tokio::test]
async fn an_object_of_parts_has_the_time_at_which_its_upload_began() {
    let s3 = S3::start().await;
    let client = s3.client();
    let modified = async |key: &str| {
        let head = client.head_object().bucket(UPLOADS).key(key).send().await;
        head.unwrap().last_modified().unwrap().secs()
    };
    let id = begin(&client, "a").await;
    let put = client.put_object().bucket(UPLOADS).key("before");
    put.send().await.unwrap();
    s3.store.clock().advance(Duration::from_secs(60));
    let part = upload(&client, "a", &id, 1, vec![7; 3]).await;
    let put = client.put_object().bucket(UPLOADS).key("after");
    put.send().await.unwrap();
    complete(&client, "a", &id, &[part]).send().await.unwrap();
    let (before, after) = (modified("before").await, modified("after").await);
    assert!(before + 59 <= after, "{before} {after}");
    assert!(modified("a").await <= before);
    let events = s3.events().await;
    let times: Vec<&str> = events
        .iter()
        .map(|event| event["eventTime"].as_str().unwrap())
        .collect();
    // The event is of the completion.
    assert!(times.is_sorted() && times.len() == 3, "{times:?}");
}

/// The client sends a checksum with each part, and S3 returns it.
#[tokio::test(flavor = "multi_thread")]
async fn the_checksums_of_parts_are_kept_only_if_the_upload_has_their_algorithm() {
    let s3 = S3::start().await;
    let client = s3.client();
    for algorithm in [None, Some(ChecksumAlgorithm::Crc32)] {
        let begun = client
            .create_multipart_upload()
            .bucket(UPLOADS)
            .key("a")
            .set_checksum_algorithm(algorithm.clone())
            .send()
            .await
            .unwrap();
        let id = begun.upload_id().unwrap();
        let part = client
            .upload_part()
            .bucket(UPLOADS)
            .key("a")
            .upload_id(id)
            .part_number(1)
            .body(ByteStream::from_static(b"part"))
            .send()
            .await
            .unwrap();
        let named = CompletedPart::builder()
            .part_number(1)
            .e_tag(part.e_tag().unwrap())
            .checksum_crc32(part.checksum_crc32().unwrap())
            .build();
        let completed = complete(&client, "a", id, &[named]).send().await;
        match algorithm {
            Some(_) => assert!(completed.is_ok(), "{completed:?}"),
            None => assert_eq!(completed.unwrap_err().code(), Some("InvalidPart")),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_over_an_earlier_put_is_read_with_its_own_checksum() {
    let s3 = S3::start().await;
    let client = s3.client();
    client
        .put_object()
        .bucket(UPLOADS)
        .key("a")
        .body(ByteStream::from_static(b"before"))
        .send()
        .await
        .unwrap();
    let id = begin(&client, "a").await;
    let part = upload(&client, "a", &id, 1, b"after".to_vec()).await;
    complete(&client, "a", &id, &[part]).send().await.unwrap();
    let got = client
        .get_object()
        .bucket(UPLOADS)
        .key("a")
        .send()
        .await
        .unwrap();
    assert_eq!(got.body.collect().await.unwrap().to_vec(), b"after");
    assert_eq!(s3.files(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_checksum_of_an_upload_is_verified_by_the_client() {
    let s3 = S3::start().await;
    let client = s3.client();
    let (one, two) = (bytes(4, 5 * MIB), bytes(5, 100));
    for (algorithm, kind) in [
        (ChecksumAlgorithm::Crc32, ChecksumType::Composite),
        (ChecksumAlgorithm::Crc32, ChecksumType::FullObject),
        (ChecksumAlgorithm::Crc32C, ChecksumType::FullObject),
        (ChecksumAlgorithm::Sha256, ChecksumType::Composite),
        (ChecksumAlgorithm::Crc64Nvme, ChecksumType::FullObject),
    ] {
        let begun = client
            .create_multipart_upload()
            .bucket(UPLOADS)
            .key("a")
            .checksum_algorithm(algorithm.clone())
            .checksum_type(kind.clone())
            .send()
            .await
            .unwrap();
        let id = begun.upload_id().unwrap();
        let mut parts = Vec::new();
        for (number, body) in [(1, &one), (2, &two)] {
            let part = client
                .upload_part()
                .bucket(UPLOADS)
                .key("a")
                .upload_id(id)
                .part_number(number);
            let part = part
                .checksum_algorithm(algorithm.clone())
                .body(ByteStream::from(body.clone()))
                .send()
                .await
                .unwrap();
            parts.push(
                CompletedPart::builder()
                    .part_number(number)
                    .e_tag(part.e_tag().unwrap())
                    .set_checksum_crc32(part.checksum_crc32().map(str::to_owned))
                    .set_checksum_crc32_c(part.checksum_crc32_c().map(str::to_owned))
                    .set_checksum_sha256(part.checksum_sha256().map(str::to_owned))
                    .set_checksum_crc64_nvme(part.checksum_crc64_nvme().map(str::to_owned))
                    .build(),
            );
        }
        let done = complete(&client, "a", id, &parts).send().await.unwrap();
        assert_eq!(done.checksum_type(), Some(&kind), "{algorithm:?}");
        let got = client
            .get_object()
            .bucket(UPLOADS)
            .key("a")
            .checksum_mode(ChecksumMode::Enabled)
            .send()
            .await
            .unwrap();
        assert_eq!(got.checksum_type(), Some(&kind));
        assert_eq!(
            got.body.collect().await.unwrap().to_vec().len(),
            5 * MIB + 100,
            "{algorithm:?} {kind:?}"
        );
    }
    let impossible = client.create_multipart_upload().bucket(UPLOADS).key("a");
    let impossible = impossible
        .checksum_algorithm(ChecksumAlgorithm::Sha256)
        .checksum_type(ChecksumType::FullObject)
        .send()
        .await;
    assert_eq!(impossible.unwrap_err().code(), Some("InvalidRequest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inconsistent_completion_is_refused_and_can_be_corrected() {
    let s3 = S3::start().await;
    let client = s3.client();
    let id = begin(&client, "a").await;
    let small = upload(&client, "a", &id, 1, bytes(1, 100)).await;
    let last = upload(&client, "a", &id, 2, bytes(2, 100)).await;
    let code = async |parts: &[CompletedPart]| {
        complete(&client, "a", &id, parts)
            .send()
            .await
            .unwrap_err()
            .code()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(code(&[small.clone(), last.clone()]).await, "EntityTooSmall");
    assert_eq!(
        code(&[last.clone(), small.clone()]).await,
        "InvalidPartOrder"
    );
    assert_eq!(code(&[]).await, "InvalidRequest");
    let wrong = CompletedPart::builder()
        .part_number(2)
        .e_tag("\"0123456789abcdef0123456789abcdef\"")
        .build();
    assert_eq!(code(&[wrong]).await, "InvalidPart");
    let absent = CompletedPart::builder()
        .part_number(3)
        .e_tag(last.e_tag().unwrap())
        .build();
    assert_eq!(code(&[absent]).await, "InvalidPart");
    let wrong = CompletedPart::builder()
        .part_number(2)
        .e_tag(last.e_tag().unwrap())
        .checksum_crc32("AAAAAA==")
        .build();
    assert_eq!(code(&[wrong]).await, "InvalidPart");
    assert!(s3.events().await.is_empty());

    let repeated = upload(&client, "a", &id, 1, bytes(3, 5 * MIB)).await;
    complete(&client, "a", &id, &[repeated.clone(), last])
        .send()
        .await
        .unwrap();
    assert_eq!(code(&[repeated]).await, "NoSuchUpload");
    assert_eq!(s3.files(), 2, "the replaced part is removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_with_if_none_match_fails_if_the_object_exists() {
    let s3 = S3::start().await;
    let client = s3.client();
    let id = begin(&client, "a").await;
    let part = upload(&client, "a", &id, 1, b"late".to_vec()).await;
    client
        .put_object()
        .bucket(UPLOADS)
        .key("a")
        .body(ByteStream::from_static(b"first"))
        .send()
        .await
        .unwrap();
    let late = complete(&client, "a", &id, std::slice::from_ref(&part))
        .if_none_match("*")
        .send()
        .await
        .unwrap_err();
    assert_eq!(late.code(), Some("PreconditionFailed"));
    assert_eq!(s3.events().await.len(), 1);
    client
        .delete_object()
        .bucket(UPLOADS)
        .key("a")
        .send()
        .await
        .unwrap();
    complete(&client, "a", &id, &[part])
        .if_none_match("*")
        .send()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_upload_leaves_no_files_and_accepts_no_parts() {
    let s3 = S3::start().await;
    let client = s3.client();
    let mut ids = Vec::new();
    for key in ["a", "b", "b"] {
        ids.push((key, begin(&client, key).await));
    }
    let (key, id) = &ids[1];
    for number in [5, 1, 9] {
        upload(&client, key, id, number, vec![1; 10]).await;
    }
    assert_eq!(s3.files(), 3);
    for (key, id) in &ids {
        client
            .abort_multipart_upload()
            .bucket(UPLOADS)
            .key(*key)
            .upload_id(id)
            .send()
            .await
            .unwrap();
    }
    assert_eq!(s3.files(), 0);
    let again = client
        .abort_multipart_upload()
        .bucket(UPLOADS)
        .key(*key)
        .upload_id(id)
        .send()
        .await
        .unwrap_err();
    assert!(again.into_service_error().is_no_such_upload());
    let late = client
        .upload_part()
        .bucket(UPLOADS)
        .key(*key)
        .upload_id(id)
        .part_number(1);
    let late = late
        .body(ByteStream::from_static(b"x"))
        .send()
        .await
        .unwrap_err();
    assert_eq!(late.code(), Some("NoSuchUpload"));
    assert_eq!(s3.files(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_may_be_copied_from_an_object() {
    let s3 = S3::start().await;
    let client = s3.client();
    let source = bytes(7, 6 * MIB);
    client
        .put_object()
        .bucket(CACHES)
        .key("source")
        .body(ByteStream::from(source.clone()))
        .send()
        .await
        .unwrap();
    let id = begin(&client, "a").await;
    let copy = |number: i32, range: &str| {
        let copy = client
            .upload_part_copy()
            .bucket(UPLOADS)
            .key("a")
            .upload_id(&id)
            .part_number(number);
        copy.copy_source(format!("{CACHES}/source"))
            .copy_source_range(range)
            .send()
    };
    let first = copy(1, &format!("bytes=0-{}", 5 * MIB - 1)).await.unwrap();
    let second = copy(2, &format!("bytes={}-{}", 5 * MIB, 6 * MIB - 1))
        .await
        .unwrap();
    let beyond = copy(3, &format!("bytes=0-{}", 6 * MIB)).await.unwrap_err();
    assert_eq!(beyond.code(), Some("InvalidRange"));
    let parts = [(1, first), (2, second)].map(|(number, part)| {
        let etag = part.copy_part_result().unwrap().e_tag().unwrap().to_owned();
        CompletedPart::builder()
            .part_number(number)
            .e_tag(etag)
            .build()
    });
    complete(&client, "a", &id, &parts).send().await.unwrap();
    let got = client
        .get_object()
        .bucket(UPLOADS)
        .key("a")
        .send()
        .await
        .unwrap();
    assert!(got.body.collect().await.unwrap().to_vec() == source);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_many_files_is_read_whole_while_it_is_replaced() {
    let s3 = S3::start().await;
    let client = s3.client();
    let mut bodies = Vec::new();
    for seed in 0..3 {
        let id = begin(&client, "a").await;
        let first = upload(&client, "a", &id, 1, vec![seed; 5 * MIB]).await;
        let last = upload(&client, "a", &id, 2, vec![seed; 5 * MIB]).await;
        complete(&client, "a", &id, &[first, last])
            .send()
            .await
            .unwrap();
        // The response has begun; the files are not read completely yet.
        bodies.push((
            seed,
            client
                .get_object()
                .bucket(UPLOADS)
                .key("a")
                .send()
                .await
                .unwrap()
                .body,
        ));
    }
    client
        .delete_object()
        .bucket(UPLOADS)
        .key("a")
        .send()
        .await
        .unwrap();
    for (seed, body) in bodies {
        assert!(
            body.collect().await.unwrap().to_vec() == vec![seed; 10 * MIB],
            "version {seed}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_in_parts_and_their_parts_are_listed_in_pages() {
    let s3 = S3::start().await;
    let client = s3.client();
    let mut begun = Vec::new();
    for key in ["a/1", "a/1", "a/2", "b"] {
        begun.push((key.to_owned(), begin(&client, key).await));
    }
    let mut expected = begun[..3].to_vec();
    let mut listed = listed_uploads(&client, "a/").await;
    // Uploads of one key that began in the same millisecond have no order.
    expected.sort();
    listed.sort();
    assert_eq!(listed, expected);
    assert_eq!(listed_uploads(&client, "a/1/").await, []);

    let (key, id) = &begun[3];
    for number in [7, 2, 10_000] {
        upload(&client, key, id, number, vec![1; 10 + number as usize % 10]).await;
    }
    let page = |after: Option<&str>| {
        let parts = client.list_parts().bucket(UPLOADS).key(key).upload_id(id);
        parts
            .max_parts(2)
            .set_part_number_marker(after.map(str::to_owned))
            .send()
    };
    let first = page(None).await.unwrap();
    let numbers_and_sizes = |parts: &[aws_sdk_s3::types::Part]| -> Vec<_> {
        let parts = parts.iter();
        parts
            .map(|part| (part.part_number().unwrap(), part.size().unwrap()))
            .collect()
    };
    assert_eq!(numbers_and_sizes(first.parts()), [(2, 12), (7, 17)]);
    assert_eq!(first.is_truncated(), Some(true));
    let second = page(first.next_part_number_marker()).await.unwrap();
    assert_eq!(numbers_and_sizes(second.parts()), [(10_000, 10)]);
    assert_eq!(second.is_truncated(), Some(false));
    let joined: Vec<CompletedPart> = first.parts()[..1]
        .iter()
        .map(|part| {
            CompletedPart::builder()
                .part_number(part.part_number().unwrap())
                .e_tag(part.e_tag().unwrap())
                .build()
        })
        .collect();
    complete(&client, key, id, &joined).send().await.unwrap();
    assert_eq!(listed_uploads(&client, "b").await, []);
    let gone = page(None).await.unwrap_err();
    assert_eq!(gone.code(), Some("NoSuchUpload"));
}
