//! The S3 endpoint, tested with the real client: objects, conditions, races, ranges, checksums,
//! presigned URLs.

#![expect(clippy::unwrap_used, reason = "an error fails the test")]

mod endpoints;

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use aws_sdk_s3::types::{ChecksumAlgorithm, Delete, MetadataDirective, ObjectIdentifier};
use endpoints::{CACHES, S3, UPLOADS, s3_client};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use local_stack::identity::{FUNCTION, KeyPair, LOCAL};
use local_stack::meter::Snapshot;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns the status and error code of a response.
fn refusal<E: ProvideErrorMetadata, T: std::fmt::Debug>(
    result: Result<T, SdkError<E, aws_sdk_s3::config::http::HttpResponse>>,
) -> (u16, String) {
    let error = match result {
        Ok(value) => panic!("expected an error, got {value:?}"),
        Err(error) => error,
    };
    let status = error
        .raw_response()
        .map_or(0, |response| response.status().as_u16());
    (status, error.code().unwrap_or_default().to_owned())
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

async fn put(client: &aws_sdk_s3::Client, key: &str, body: &[u8]) -> String {
    let body = ByteStream::from(body.to_vec());
    let put = client
        .put_object()
        .bucket(CACHES)
        .key(key)
        .body(body)
        .send()
        .await
        .unwrap();
    put.e_tag().unwrap().to_owned()
}

async fn get(client: &aws_sdk_s3::Client, key: &str) -> Vec<u8> {
    let got = client
        .get_object()
        .bucket(CACHES)
        .key(key)
        .send()
        .await
        .unwrap();
    got.body.collect().await.unwrap().to_vec()
}

/// Sends a plain HTTP request, as a client without an SDK does.
async fn fetch(method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Vec<u8>) {
    let client: HttpClient<_, Full<bytes::Bytes>> =
        HttpClient::builder(TokioExecutor::new()).build_http();
    let mut request = http::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = client
        .request(request.body(Full::from(body.to_vec())).unwrap())
        .await
        .unwrap();
    let status = response.status().as_u16();
    (
        status,
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .to_vec(),
    )
}

#[tokio::test]
async fn an_object_that_was_put_can_be_read_and_deleted() {
    let s3 = S3::start().await;
    let client = s3.client();
    let etag = put(&client, "a", b"hello").await;
    assert_eq!(etag, "\"5d41402abc4b2a76b9719d911017c592\"");
    assert_eq!(get(&client, "a").await, b"hello");
    let head = client
        .head_object()
        .bucket(CACHES)
        .key("a")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (head.content_length(), head.e_tag()),
        (Some(5), Some(etag.as_str()))
    );
    put(&client, "a", b"").await;
    assert_eq!(get(&client, "a").await, b"");
    assert_eq!(s3.files(), 1);
    for _ in 0..2 {
        client
            .delete_object()
            .bucket(CACHES)
            .key("a")
            .send()
            .await
            .unwrap();
    }
    assert_eq!(s3.files(), 0);
    assert_eq!(
        refusal(client.get_object().bucket(CACHES).key("a").send().await),
        refused(404, "NoSuchKey")
    );
    let head = client
        .head_object()
        .bucket(CACHES)
        .key("a")
        .send()
        .await
        .unwrap_err();
    assert!(head.into_service_error().is_not_found());
}

#[tokio::test]
async fn a_request_to_an_absent_bucket_does_not_create_it() {
    let s3 = S3::start().await;
    let client = s3.client();
    let expected = refused(404, "NoSuchBucket");
    let body = || ByteStream::from_static(b"x");
    assert_eq!(
        refusal(
            client
                .put_object()
                .bucket("nowhere")
                .key("a")
                .body(body())
                .send()
                .await
        ),
        expected
    );
    assert_eq!(
        refusal(client.get_object().bucket("nowhere").key("a").send().await),
        expected
    );
    assert_eq!(
        refusal(client.list_objects_v2().bucket("nowhere").send().await),
        expected
    );
    assert_eq!(
        refusal(
            client
                .delete_object()
                .bucket("nowhere")
                .key("a")
                .send()
                .await
        ),
        expected
    );
    assert!(
        client
            .head_bucket()
            .bucket("nowhere")
            .send()
            .await
            .unwrap_err()
            .into_service_error()
            .is_not_found()
    );
    client.head_bucket().bucket(CACHES).send().await.unwrap();
    let names: Vec<String> = client
        .list_buckets()
        .send()
        .await
        .unwrap()
        .buckets()
        .iter()
        .map(|bucket| bucket.name().unwrap().to_owned())
        .collect();
    assert_eq!(names, [CACHES, UPLOADS]);
    assert_eq!(s3.files(), 0);
}

#[tokio::test]
async fn buckets_are_created_and_can_be_deleted_when_they_are_empty() {
    let s3 = S3::start().await;
    let client = s3.client();
    client.create_bucket().bucket("extra").send().await.unwrap();
    client
        .put_object()
        .bucket("extra")
        .key("a")
        .body(ByteStream::from_static(b"x"))
        .send()
        .await
        .unwrap();
    assert_eq!(
        refusal(client.delete_bucket().bucket("extra").send().await),
        refused(409, "BucketNotEmpty")
    );
    client
        .delete_object()
        .bucket("extra")
        .key("a")
        .send()
        .await
        .unwrap();
    client.delete_bucket().bucket("extra").send().await.unwrap();
    assert!(client.head_bucket().bucket("extra").send().await.is_err());
}

#[tokio::test]
async fn ranges_are_interpreted_as_in_http() {
    let s3 = S3::start().await;
    let client = s3.client();
    put(&client, "a", b"0123456789").await;
    let range = async |range: &str| {
        let got = client
            .get_object()
            .bucket(CACHES)
            .key("a")
            .range(range)
            .send()
            .await
            .unwrap();
        // With a checksum of the whole object, the client would reject the range.
        assert_eq!(got.checksum_crc32(), None);
        let content_range = got.content_range().unwrap().to_owned();
        (got.body.collect().await.unwrap().to_vec(), content_range)
    };
    assert_eq!(
        range("bytes=2-4").await,
        (b"234".to_vec(), "bytes 2-4/10".to_owned())
    );
    assert_eq!(
        range("bytes=7-").await,
        (b"789".to_vec(), "bytes 7-9/10".to_owned())
    );
    assert_eq!(
        range("bytes=-3").await,
        (b"789".to_vec(), "bytes 7-9/10".to_owned())
    );
    assert_eq!(
        range("bytes=-30").await,
        (b"0123456789".to_vec(), "bytes 0-9/10".to_owned())
    );
    assert_eq!(
        range("bytes=8-99").await,
        (b"89".to_vec(), "bytes 8-9/10".to_owned())
    );
    for unsatisfiable in ["bytes=10-", "bytes=-0"] {
        let result = client
            .get_object()
            .bucket(CACHES)
            .key("a")
            .range(unsatisfiable)
            .send()
            .await;
        assert_eq!(
            refusal(result),
            refused(416, "InvalidRange"),
            "{unsatisfiable}"
        );
    }
    put(&client, "empty", b"").await;
    let result = client
        .get_object()
        .bucket(CACHES)
        .key("empty")
        .range("bytes=-1")
        .send()
        .await;
    assert_eq!(refusal(result).0, 416);
    let head = client
        .head_object()
        .bucket(CACHES)
        .key("a")
        .range("bytes=0-3")
        .send()
        .await
        .unwrap();
    assert_eq!(head.content_length(), Some(4));
}

#[tokio::test]
async fn reads_have_conditions() {
    let s3 = S3::start().await;
    let client = s3.client();
    let etag = put(&client, "a", b"hello").await;
    let ask = || client.get_object().bucket(CACHES).key("a");
    assert_eq!(refusal(ask().if_none_match(&etag).send().await).0, 304);
    assert_eq!(
        refusal(ask().if_match("\"other\"").send().await),
        refused(412, "PreconditionFailed")
    );
    ask().if_match(&etag).send().await.unwrap();
    ask().if_none_match("\"other\"").send().await.unwrap();
    let past = DateTime::from_secs(1_000_000_000);
    assert_eq!(refusal(ask().if_unmodified_since(past).send().await).0, 412);
    ask().if_modified_since(past).send().await.unwrap();
    let head = client
        .head_object()
        .bucket(CACHES)
        .key("a")
        .if_none_match(&etag)
        .send()
        .await;
    assert_eq!(refusal(head).0, 304);
    // The connection remains usable after a response without a body.
    assert_eq!(get(&client, "a").await, b"hello");
}

#[tokio::test]
async fn writes_have_conditions() {
    let s3 = S3::start().await;
    let client = s3.client();
    let ask = |body: &'static [u8]| {
        client
            .put_object()
            .bucket(CACHES)
            .key("a")
            .body(ByteStream::from_static(body))
    };
    assert_eq!(
        refusal(ask(b"0").if_match("\"x\"").send().await),
        refused(404, "NoSuchKey")
    );
    let first = ask(b"1").if_none_match("*").send().await.unwrap();
    assert_eq!(
        refusal(ask(b"2").if_none_match("*").send().await),
        refused(412, "PreconditionFailed")
    );
    let second = ask(b"3")
        .if_match(first.e_tag().unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(
        refusal(ask(b"4").if_match(first.e_tag().unwrap()).send().await),
        refused(412, "PreconditionFailed")
    );
    assert_eq!(get(&client, "a").await, b"3");
    let delete = |etag: &str| {
        client
            .delete_object()
            .bucket(CACHES)
            .key("a")
            .if_match(etag)
            .send()
    };
    assert_eq!(
        refusal(delete(first.e_tag().unwrap()).await),
        refused(412, "PreconditionFailed")
    );
    delete(second.e_tag().unwrap()).await.unwrap();
    assert_eq!(s3.files(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_thirty_two_racing_creators_wins_in_each_of_twenty_rounds() {
    let s3 = S3::start().await;
    let client = s3.client();
    for round in 0..20 {
        let key = format!("race/{round}");
        let writers = (0..32).map(|writer| {
            let body = ByteStream::from(format!("writer {writer}").into_bytes());
            let put = client
                .put_object()
                .bucket(CACHES)
                .key(&key)
                .body(body)
                .if_none_match("*")
                .send();
            async move { (writer, put.await) }
        });
        let mut winners = Vec::new();
        for (writer, result) in futures::future::join_all(writers).await {
            match result {
                Ok(_) => winners.push(writer),
                result => assert_eq!(refusal(result), refused(412, "PreconditionFailed")),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(
            get(&client, &key).await,
            format!("writer {}", winners[0]).into_bytes()
        );
    }
    assert_eq!(s3.files(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_sixteen_racing_replacers_wins_in_each_of_twenty_rounds() {
    let s3 = S3::start().await;
    let client = s3.client();
    let mut etag = put(&client, "a", b"start").await;
    for round in 0..20 {
        let writers = (0..16).map(|writer| {
            let body = ByteStream::from(format!("round {round} writer {writer}").into_bytes());
            client
                .put_object()
                .bucket(CACHES)
                .key("a")
                .body(body)
                .if_match(&etag)
                .send()
        });
        let results = futures::future::join_all(writers).await;
        let winners: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
        assert_eq!(winners.len(), 1, "round {round}");
        etag = winners[0].e_tag().unwrap().to_owned();
    }
    assert_eq!(s3.files(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_never_sees_a_mixture_while_eight_writers_replace_an_object() {
    let s3 = S3::start().await;
    let client = s3.client();
    // Large enough to be streamed from an open file.
    let body = |writer: u8| vec![writer; 1_500_000];
    put(&client, "a", &body(0)).await;
    let writers = (0..8_u8).map(|writer| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..5 {
                let put = client
                    .put_object()
                    .bucket(CACHES)
                    .key("a")
                    .metadata("writer", writer.to_string());
                put.body(ByteStream::from(vec![writer; 1_500_000]))
                    .send()
                    .await
                    .unwrap();
            }
        })
    });
    let readers = (0..4).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let got = client
                    .get_object()
                    .bucket(CACHES)
                    .key("a")
                    .send()
                    .await
                    .unwrap();
                let said = got
                    .metadata()
                    .and_then(|metadata| metadata.get("writer").cloned());
                // The client verifies the checksum of the body.
                let bytes = got.body.collect().await.unwrap().to_vec();
                assert_eq!(bytes.len(), 1_500_000);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                assert!(said.is_none_or(|said| said == bytes[0].to_string()));
            }
        })
    });
    let tasks: Vec<_> = writers.chain(readers).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(s3.files(), 1);
}

#[tokio::test]
async fn keys_may_be_any_text_and_are_never_used_as_paths() {
    let s3 = S3::start().await;
    let client = s3.client();
    let long = "k".repeat(1024);
    let keys = [
        "plain",
        "with space",
        "plus+plus",
        "percent%41%2F",
        "ünïcödé/日本",
        "&=#?;:@!$,'()*[]{}<>\"|^`~",
        "back\\slash",
        "tab\there",
        "line\nbreak",
        ".hidden",
        "a/../b",
        "../x",
        "a/./b",
        "a//b",
        "/absolute",
        "folder/",
        "folder/file",
        "co",
        "co/exist",
        "a/b",
        "b",
        long.as_str(),
    ];
    for key in keys {
        put(&client, key, key.as_bytes()).await;
    }
    for key in keys {
        assert_eq!(get(&client, key).await, key.as_bytes(), "{key:?}");
        client
            .head_object()
            .bucket(CACHES)
            .key(key)
            .send()
            .await
            .unwrap();
    }
    let mut listed = Vec::new();
    let mut pages = client
        .list_objects_v2()
        .bucket(CACHES)
        .into_paginator()
        .page_size(3)
        .send();
    while let Some(page) = pages.next().await {
        listed.extend(
            page.unwrap()
                .contents()
                .iter()
                .map(|object| object.key().unwrap().to_owned()),
        );
    }
    let mut expected: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    expected.sort();
    assert_eq!(listed, expected);
    let prefix = client.get_object().bucket(CACHES).key("a").send().await;
    assert_eq!(refusal(prefix), refused(404, "NoSuchKey"));

    let too_long = client
        .put_object()
        .bucket(CACHES)
        .key("k".repeat(1025))
        .body(ByteStream::from_static(b"x"))
        .send()
        .await;
    assert_eq!(refusal(too_long), refused(400, "KeyTooLongError"));

    let mut deletion = Delete::builder().quiet(true);
    for key in keys {
        deletion = deletion.objects(ObjectIdentifier::builder().key(key).build().unwrap());
    }
    let deleted = client
        .delete_objects()
        .bucket(CACHES)
        .delete(deletion.build().unwrap())
        .send()
        .await
        .unwrap();
    assert!(deleted.deleted().is_empty() && deleted.errors().is_empty());
    assert_eq!(s3.files(), 0);
}

#[tokio::test]
async fn a_thousand_keys_are_deleted_in_one_batch_that_lists_them() {
    let s3 = S3::start().await;
    let client = s3.client();
    for chunk in (0..1000).collect::<Vec<_>>().chunks(50) {
        futures::future::join_all(chunk.iter().map(|number| {
            let key = format!("many/{number:04}");
            let client = &client;
            async move { put(client, &key, b"x").await }
        }))
        .await;
    }
    let first = client
        .list_objects_v2()
        .bucket(CACHES)
        .send()
        .await
        .unwrap();
    assert_eq!(
        (first.key_count(), first.is_truncated()),
        (Some(1000), Some(false))
    );
    let mut deletion = Delete::builder();
    for number in 0..1000 {
        let key = format!("many/{number:04}");
        deletion = deletion.objects(ObjectIdentifier::builder().key(key).build().unwrap());
    }
    let deleted = client
        .delete_objects()
        .bucket(CACHES)
        .delete(deletion.build().unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(deleted.deleted().len(), 1000);
    assert_eq!(s3.files(), 0);
}

#[tokio::test]
async fn a_function_deletes_existing_and_missing_keys_in_one_call() {
    let s3 = S3::start().await;
    let client = s3_client(&s3.endpoint.url, FUNCTION);
    put(&client, "made/1", b"x").await;
    put(&client, "made/2", b"x").await;
    s3.meter.reset();
    let keys = ["made/1", "made/gone"];
    // As the SDK sends it: with a CRC-32 of the body, which S3 requires for this operation.
    let identified = keys.map(|key| ObjectIdentifier::builder().key(key).build().unwrap());
    let deletion = Delete::builder().set_objects(Some(identified.into()));
    let deleted = client
        .delete_objects()
        .bucket(CACHES)
        .delete(deletion.build().unwrap())
        .send()
        .await
        .unwrap();
    let names = deleted.deleted().iter().map(|object| object.key().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), keys);
    assert!(deleted.errors().is_empty(), "{:?}", deleted.errors());
    assert_eq!(s3.files(), 1);
    let Snapshot { aws, .. } = s3.meter.snapshot();
    let calls: Vec<(&str, u64)> = aws["s3"]
        .iter()
        .map(|(operation, counts)| (operation.as_str(), counts.calls))
        .collect();
    assert_eq!(calls, [("DeleteObjects", 1)]);
}

#[tokio::test]
async fn listings_support_pages_groups_and_a_start_key() {
    let s3 = S3::start().await;
    let client = s3.client();
    let keys = ["a", "a/1", "a/2", "b", "c/1/x", "c/1/y", "c/2", "d"];
    for key in keys {
        put(&client, key, b"x").await;
    }
    let list = || client.list_objects_v2().bucket(CACHES);
    let shown = |page: &aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output| {
        let keys: Vec<_> = page
            .contents()
            .iter()
            .map(|object| object.key().unwrap().to_owned())
            .collect();
        let groups: Vec<_> = page
            .common_prefixes()
            .iter()
            .map(|group| group.prefix().unwrap().to_owned())
            .collect();
        (keys, groups)
    };
    let all = list().delimiter("/").send().await.unwrap();
    assert_eq!(
        shown(&all),
        (
            vec!["a".into(), "b".into(), "d".into()],
            vec!["a/".into(), "c/".into()]
        )
    );
    let below = list().prefix("c/").delimiter("/").send().await.unwrap();
    assert_eq!(shown(&below), (vec!["c/2".into()], vec!["c/1/".into()]));
    let after = list().start_after("b").send().await.unwrap();
    assert_eq!(shown(&after).0, ["c/1/x", "c/1/y", "c/2", "d"]);
    assert!(
        after
            .contents()
            .iter()
            .all(|object| object.e_tag().is_some() && object.size() == Some(1))
    );

    let mut seen = Vec::new();
    let mut pages = list().delimiter("/").into_paginator().page_size(1).send();
    while let Some(page) = pages.next().await {
        let (keys, groups) = shown(&page.unwrap());
        assert_eq!(keys.len() + groups.len(), 1);
        seen.extend(keys.into_iter().chain(groups));
    }
    assert_eq!(seen, ["a", "a/", "b", "c/", "d"]);

    let none = list().max_keys(0).send().await.unwrap();
    assert_eq!(
        (none.key_count(), none.is_truncated()),
        (Some(0), Some(false))
    );
    let wrong = list().continuation_token("%%%").send().await;
    assert_eq!(refusal(wrong), refused(400, "InvalidArgument"));
}

#[tokio::test]
async fn the_metadata_of_an_object_is_returned_with_it() {
    let s3 = S3::start().await;
    let client = s3.client();
    client
        .put_object()
        .bucket(CACHES)
        .key("a")
        .body(ByteStream::from_static(b"x"))
        .content_type("text/plain")
        .content_encoding("zstd")
        .cache_control("no-cache")
        .content_disposition("attachment")
        .content_language("en")
        .expires(DateTime::from_secs(2_000_000_000))
        .metadata("Kind", "cache")
        .send()
        .await
        .unwrap();
    let got = client
        .get_object()
        .bucket(CACHES)
        .key("a")
        .send()
        .await
        .unwrap();
    assert_eq!(got.content_type(), Some("text/plain"));
    assert_eq!(got.content_encoding(), Some("zstd"));
    assert_eq!(got.cache_control(), Some("no-cache"));
    assert_eq!(got.content_disposition(), Some("attachment"));
    assert_eq!(got.content_language(), Some("en"));
    assert_eq!(got.expires_string(), Some("Wed, 18 May 2033 03:33:20 GMT"));
    assert_eq!(got.metadata().unwrap()["kind"], "cache");

    let copy = |key: &str| {
        client
            .copy_object()
            .bucket(CACHES)
            .key(key)
            .copy_source(format!("{CACHES}/a"))
    };
    copy("copied").send().await.unwrap();
    let head = client
        .head_object()
        .bucket(CACHES)
        .key("copied")
        .send()
        .await
        .unwrap();
    assert_eq!(head.metadata().unwrap()["kind"], "cache");
    copy("a")
        .metadata_directive(MetadataDirective::Replace)
        .metadata("kind", "cfi")
        .send()
        .await
        .unwrap();
    let head = client
        .head_object()
        .bucket(CACHES)
        .key("a")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            head.metadata().unwrap()["kind"].as_str(),
            head.content_encoding()
        ),
        ("cfi", None)
    );
    assert_eq!(
        refusal(copy("a").send().await),
        refused(400, "InvalidRequest")
    );
    assert_eq!(
        refusal(copy("b").copy_source_if_match("\"other\"").send().await),
        refused(412, "PreconditionFailed")
    );
    client
        .delete_object()
        .bucket(CACHES)
        .key("a")
        .send()
        .await
        .unwrap();
    assert_eq!(get(&client, "copied").await, b"x");
    assert_eq!(s3.files(), 1);
}

#[tokio::test]
async fn the_source_of_a_copy_may_be_any_key_that_exists() {
    let s3 = S3::start().await;
    let client = s3.client();
    put(&client, "odd key/ü+%.so", b"odd").await;
    let copy = |key: &str| {
        client
            .copy_object()
            .bucket(UPLOADS)
            .key(key)
            .copy_source(format!("{CACHES}/odd%20key/%C3%BC%2B%25.so"))
    };
    copy("a")
        .checksum_algorithm(ChecksumAlgorithm::Sha256)
        .send()
        .await
        .unwrap();
    let got = client
        .get_object()
        .bucket(UPLOADS)
        .key("a")
        .send()
        .await
        .unwrap();
    assert_eq!(got.body.collect().await.unwrap().to_vec(), b"odd");
    assert_eq!(s3.events().await.len(), 1);
    let missing = client
        .copy_object()
        .bucket(UPLOADS)
        .key("b")
        .copy_source(format!("{CACHES}/missing"))
        .send()
        .await;
    assert_eq!(refusal(missing), refused(404, "NoSuchKey"));
    assert_eq!(s3.files(), 2);
}

#[tokio::test]
async fn every_checksum_is_verified_stored_and_returned() {
    let s3 = S3::start().await;
    let client = s3.client();
    for algorithm in [
        ChecksumAlgorithm::Crc32,
        ChecksumAlgorithm::Crc32C,
        ChecksumAlgorithm::Sha1,
        ChecksumAlgorithm::Sha256,
        ChecksumAlgorithm::Crc64Nvme,
    ] {
        let put = client
            .put_object()
            .bucket(CACHES)
            .key("a")
            .checksum_algorithm(algorithm.clone());
        let put = put
            .body(ByteStream::from_static(b"hello"))
            .send()
            .await
            .unwrap();
        let got = client
            .get_object()
            .bucket(CACHES)
            .key("a")
            .send()
            .await
            .unwrap();
        let sums = |crc32: Option<&str>,
                    crc32c: Option<&str>,
                    sha1: Option<&str>,
                    sha256: Option<&str>,
                    crc64: Option<&str>| {
            [crc32, crc32c, sha1, sha256, crc64]
                .into_iter()
                .flatten()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let sent = sums(
            put.checksum_crc32(),
            put.checksum_crc32_c(),
            put.checksum_sha1(),
            put.checksum_sha256(),
            put.checksum_crc64_nvme(),
        );
        let back = sums(
            got.checksum_crc32(),
            got.checksum_crc32_c(),
            got.checksum_sha1(),
            got.checksum_sha256(),
            got.checksum_crc64_nvme(),
        );
        assert_eq!((sent.len(), &sent), (1, &back), "{algorithm:?}");
        // The client compares it with the body.
        assert_eq!(got.body.collect().await.unwrap().to_vec(), b"hello");
    }
}

#[tokio::test]
async fn a_put_that_fails_its_checksum_stores_nothing() {
    let s3 = S3::start().await;
    let client = s3.client();
    let ask = || {
        client
            .put_object()
            .bucket(UPLOADS)
            .key("a")
            .body(ByteStream::from_static(b"hello"))
    };
    assert_eq!(
        refusal(ask().checksum_crc32("AAAAAA==").send().await),
        refused(400, "BadDigest")
    );
    assert_eq!(
        refusal(ask().checksum_sha256("A".repeat(43) + "=").send().await),
        refused(400, "BadDigest")
    );
    assert_eq!(
        refusal(ask().content_md5("AAAAAAAAAAAAAAAAAAAAAA==").send().await),
        refused(400, "BadDigest")
    );
    assert_eq!(
        refusal(ask().content_md5("nonsense").send().await),
        refused(400, "InvalidDigest")
    );
    assert!(
        client
            .head_object()
            .bucket(UPLOADS)
            .key("a")
            .send()
            .await
            .is_err()
    );
    assert_eq!(s3.files(), 0);
    assert!(s3.events().await.is_empty());
    ask()
        .content_md5("XUFAKrxLKna5cZ2REBfFkg==")
        .send()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_file_arrives_with_its_trailing_checksum() {
    let s3 = S3::start().await;
    let client = s3.client();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big");
    let bytes: Vec<u8> = (0..9_000_001_u32)
        .map(|number| number.to_le_bytes()[(number % 3) as usize])
        .collect();
    std::fs::write(&path, &bytes).unwrap();
    let body = ByteStream::from_path(&path).await.unwrap();
    let put = client
        .put_object()
        .bucket(CACHES)
        .key("big")
        .body(body)
        .send()
        .await
        .unwrap();
    assert!(put.checksum_crc32().is_some());
    assert!(get(&client, "big").await == bytes);
    let head = client
        .head_object()
        .bucket(CACHES)
        .key("big")
        .send()
        .await
        .unwrap();
    assert_eq!(
        head.content_encoding(),
        None,
        "aws-chunked belongs to the transfer"
    );
    let counts = s3.meter.snapshot().outside["s3"]["PutObject"];
    assert!(
        counts.bytes_in > 9_000_001,
        "chunk headers count: {counts:?}"
    );
    assert_eq!(
        s3.meter.snapshot().outside["s3"]["GetObject"].bytes_out,
        9_000_001
    );
}

#[tokio::test]
async fn presigned_urls_work_without_a_client_and_expire() {
    let s3 = S3::start().await;
    let client = s3_client(&s3.endpoint.url, FUNCTION);
    put(&client, "a b", b"0123456789").await;
    s3.meter.reset();
    let minute = || PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
    let url = client
        .get_object()
        .bucket(CACHES)
        .key("a b")
        .presigned(minute())
        .await
        .unwrap();
    assert_eq!(
        fetch("GET", url.uri(), &[], b"").await,
        (200, b"0123456789".to_vec())
    );
    assert_eq!(
        fetch("GET", url.uri(), &[("range", "bytes=1-2")], b"").await,
        (206, b"12".to_vec())
    );
    // A request counts as one of the signer of its URL.
    assert_eq!(s3.meter.snapshot().aws["s3"]["GetObject"].calls, 2);

    let put = client
        .put_object()
        .bucket(CACHES)
        .key("new")
        .presigned(minute())
        .await
        .unwrap();
    let headers: Vec<(&str, &str)> = put.headers().collect();
    assert_eq!(fetch("PUT", put.uri(), &headers, b"by url").await.0, 200);
    assert_eq!(get(&client, "new").await, b"by url");

    let (tampered, _) = fetch("GET", &url.uri().replace("a%20b", "new"), &[], b"").await;
    assert!(matches!(tampered, 400 | 403), "{tampered}");
    assert_eq!(
        fetch(
            "GET",
            &format!("{}/{CACHES}/new", s3.endpoint.url),
            &[],
            b""
        )
        .await
        .0,
        403
    );
    let past = PresigningConfig::builder()
        .start_time(SystemTime::now() - Duration::from_secs(120))
        .expires_in(Duration::from_secs(60))
        .build()
        .unwrap();
    let expired = client
        .get_object()
        .bucket(CACHES)
        .key("new")
        .presigned(past)
        .await
        .unwrap();
    assert_eq!(fetch("GET", expired.uri(), &[], b"").await.0, 403);
}

#[tokio::test]
async fn a_wrong_signature_is_refused() {
    let s3 = S3::start().await;
    let wrong = KeyPair {
        secret_access_key: "wrong",
        ..LOCAL
    };
    let unknown = KeyPair {
        access_key_id: "unknown",
        ..LOCAL
    };
    for keys in [wrong, unknown] {
        let client = s3_client(&s3.endpoint.url, keys);
        let result = client
            .put_object()
            .bucket(CACHES)
            .key("a")
            .body(ByteStream::from_static(b"x"))
            .send()
            .await;
        assert_eq!(refusal(result).0, 403, "{keys:?}");
    }
    assert_eq!(s3.files(), 0);
}

#[tokio::test]
async fn unsupported_features_are_refused_instead_of_ignored() {
    let s3 = S3::start().await;
    let client = s3.client();
    let ask = || {
        client
            .put_object()
            .bucket(CACHES)
            .key("a")
            .body(ByteStream::from_static(b"x"))
    };
    let expected = refused(501, "NotImplemented");
    assert_eq!(refusal(ask().tagging("a=b").send().await), expected);
    assert_eq!(
        refusal(ask().sse_customer_algorithm("AES256").send().await),
        expected
    );
    assert_eq!(
        refusal(ask().if_none_match("\"etag\"").send().await),
        expected
    );
    let version = client
        .get_object()
        .bucket(CACHES)
        .key("a")
        .version_id("1")
        .send()
        .await;
    assert_eq!(refusal(version), refused(404, "NoSuchVersion"));
    assert_eq!(s3.files(), 0);
}

#[tokio::test]
async fn each_change_sends_one_event_and_a_refused_change_sends_none() {
    let s3 = S3::start().await;
    let client = s3.client();
    let ask = |key: &str| {
        client
            .put_object()
            .bucket(UPLOADS)
            .key(key)
            .body(ByteStream::from_static(b"hello"))
    };
    ask("global/My File+ü.so").send().await.unwrap();
    ask("a").if_none_match("*").send().await.unwrap();
    assert!(ask("a").if_none_match("*").send().await.is_err());
    ask("a").send().await.unwrap();
    client
        .delete_object()
        .bucket(UPLOADS)
        .key("a")
        .send()
        .await
        .unwrap();
    client
        .delete_object()
        .bucket(UPLOADS)
        .key("a")
        .send()
        .await
        .unwrap();
    client
        .copy_object()
        .bucket(UPLOADS)
        .key("c")
        .copy_source(format!("{UPLOADS}/global/My%20File%2B%C3%BC.so"))
        .send()
        .await
        .unwrap();
    put(&client, "elsewhere", b"not told").await;

    let events = s3.events().await;
    let names: Vec<_> = events
        .iter()
        .map(|event| {
            (
                event["eventName"].as_str().unwrap(),
                event["s3"]["object"]["key"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        names,
        [
            ("ObjectCreated:Put", "global/My+File%2B%C3%BC.so"),
            ("ObjectCreated:Put", "a"),
            ("ObjectCreated:Put", "a"),
            ("ObjectRemoved:Delete", "a"),
            ("ObjectCreated:Copy", "c"),
        ]
    );
    let object = &events[0]["s3"]["object"];
    assert_eq!(object["size"], 5);
    assert_eq!(object["eTag"], "5d41402abc4b2a76b9719d911017c592");
    assert_eq!(events[0]["s3"]["bucket"]["name"], UPLOADS);
    assert_eq!(events[0]["eventSource"], "aws:s3");
    assert!(events[3]["s3"]["object"]["size"].is_null());
    let sequencers: Vec<_> = events
        .iter()
        .map(|event| event["s3"]["object"]["sequencer"].as_str().unwrap())
        .collect();
    assert!(
        sequencers.is_sorted() && sequencers.iter().all(|sequencer| sequencer.len() == 16),
        "{sequencers:?}"
    );
    assert_eq!(
        sequencers.iter().collect::<HashSet<_>>().len(),
        events.len()
    );
}

#[tokio::test]
async fn an_event_and_its_change_survive_a_killed_stack() {
    let folder = tempfile::tempdir().unwrap();
    let mut sequencers = Vec::new();
    for round in 0..3 {
        let s3 = S3::on(folder.path()).await;
        let client = s3.client();
        for earlier in 0..round {
            let got = client
                .get_object()
                .bucket(UPLOADS)
                .key(format!("k{earlier}"))
                .send()
                .await
                .unwrap();
            assert_eq!(
                got.body.collect().await.unwrap().to_vec(),
                format!("round {earlier}").into_bytes()
            );
        }
        let body = ByteStream::from(format!("round {round}").into_bytes());
        client
            .put_object()
            .bucket(UPLOADS)
            .key(format!("k{round}"))
            .body(body)
            .send()
            .await
            .unwrap();
        // Dropped without a stop, while the message of the previous round is still in the queue.
        if round > 0 {
            let events = s3.events().await;
            assert_eq!(events.len(), if round == 1 { 2 } else { 1 });
            sequencers.extend(
                events
                    .iter()
                    .map(|event| event["s3"]["object"]["sequencer"].to_string()),
            );
        }
    }
    assert!(sequencers.is_sorted(), "{sequencers:?}");
}

#[tokio::test]
async fn files_left_by_a_killed_stack_are_removed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let s3 = S3::on(folder.path()).await;
    put(&s3.client(), "a", b"kept").await;
    let orphan = folder
        .path()
        .join("s3")
        .join("bodies")
        .join("00")
        .join("00000000000000000000000000000000");
    std::fs::write(&orphan, b"renamed, never referenced").unwrap();
    let staged = folder.path().join("s3").join("staged").join("half");
    std::fs::write(&staged, b"half of an upload").unwrap();
    drop(s3);
    let s3 = S3::on(folder.path()).await;
    assert!(!orphan.exists() && !staged.exists());
    assert_eq!(get(&s3.client(), "a").await, b"kept");
}

/// A machine that loses power may lose what was written last. The service makes a blob again that
/// is not found.
#[tokio::test]
async fn an_object_whose_bytes_were_lost_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let s3 = S3::on(folder.path()).await;
    put(&s3.client(), "a", b"lost").await;
    let bodies = folder.path().join("s3").join("bodies");
    for shelf in std::fs::read_dir(bodies).unwrap() {
        for body in std::fs::read_dir(shelf.unwrap().path()).unwrap() {
            std::fs::remove_file(body.unwrap().path()).unwrap();
        }
    }
    let got = s3.client().get_object().bucket(CACHES).key("a").send();
    assert_eq!(refusal(got.await), refused(404, "NoSuchKey"));
}

/// botocore waits for `100 Continue`, also before an empty body. It cannot use a connection on
/// which it was not sent.
#[tokio::test]
async fn a_connection_is_closed_after_an_expectation_without_a_body() {
    let s3 = S3::start().await;
    let address = s3.endpoint.url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "PUT /{CACHES}/empty HTTP/1.1\r\nhost: {address}\r\nexpect: 100-continue\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.contains("connection: close\r\n"), "{response}");
}
