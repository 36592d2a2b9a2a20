//! Tests of what only the AWS adapters guarantee.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use symdepot::adapters::aws::{DynamoRecords, S3Blobs, S3Difs, SqsQueues};
use symdepot::cache::{Converter, ItemKey, Kind, ModuleKey, Queue, Token};
use symdepot::domain::{Location, SignedPut, SourceKey};
use symdepot::ports::{
    BlobStore, Consistency, Created, DifError, DifReader, FaultKind, QueueMessage, Queues,
    RecordStore, Segment, UploadGate, UploadInParts, UploadPart,
};
use symdepot_tests::contract::blobs::Blobs;
use symdepot_tests::contract::{self};
use symdepot_tests::stack::http_client;

use crate::backends::Aws;

on_aws!(
    a_presigned_url_is_readable_without_credentials,
    a_signed_request_creates_an_upload_of_its_size_once,
    an_upload_in_parts_continues_where_it_stopped_and_is_joined_once,
    a_nonexistent_bucket_or_table_is_a_fault_and_not_an_absence,
    a_message_waits_in_its_queue,
    a_blob_is_listed_with_its_time_of_creation,
    keys_that_xml_cannot_hold_are_listed,
    a_wrong_signature_is_denied_and_does_not_reveal_absence,
);

async fn a_presigned_url_is_readable_without_credentials(aws: Aws) {
    let blobs = S3Blobs::new(aws.clients.s3.clone(), aws.create_bucket().await);
    blobs
        .create("derived/ä b/1", Bytes::from_static(b"0123456789"))
        .await
        .unwrap();
    let url = blobs
        .presign("derived/ä b/1", Duration::from_secs(60), None)
        .await
        .unwrap();
    let http = http_client().unwrap();
    assert_eq!(
        http.get(&url).send().await.unwrap().bytes().await.unwrap(),
        &b"0123456789"[..]
    );
    let part = http
        .get(&url)
        .header("range", "bytes=2-4")
        .send()
        .await
        .unwrap();
    assert_eq!(part.bytes().await.unwrap(), &b"234"[..]);

    let typed = "application/vnd.ms-symcache; version=3.1.0";
    let url = blobs.presign("derived/ä b/1", Duration::from_secs(60), Some(typed));
    let answer = http.get(url.await.unwrap()).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], typed);

    let eight_days = Duration::from_secs(8 * 24 * 3600);
    assert_eq!(
        blobs
            .presign("derived/x", eight_days, None)
            .await
            .unwrap_err()
            .kind(),
        FaultKind::Bug
    );
}

/// Sends a body as a client does, without credentials. Returns the status.
async fn put(request: &SignedPut, body: Vec<u8>) -> u16 {
    let mut sent = http_client().unwrap().put(&request.url);
    for (name, value) in &request.headers {
        sent = sent.header(name, value);
    }
    sent.body(body).send().await.unwrap().status().as_u16()
}

const SIGNED_FOR: Duration = Duration::from_secs(900);

async fn a_signed_request_creates_an_upload_of_its_size_once(aws: Aws) {
    let difs = S3Difs::new(aws.clients.s3.clone(), aws.create_bucket().await);
    let location = Location::new("global/ä b+c.debug/ab12/0123456789abcdef");
    let request = difs.sign_create(&location, 10, SIGNED_FOR).await.unwrap();
    assert_eq!(request.headers["content-length"], "10");
    assert_eq!(request.headers["if-none-match"], "*");
    let mut other = request.clone();
    other
        .headers
        .insert("content-length".to_owned(), "11".to_owned());
    assert_eq!(put(&other, vec![1; 11]).await, 403);
    let mut overwriting = request.clone();
    overwriting.headers.remove("if-none-match");
    assert_eq!(put(&overwriting, vec![1; 10]).await, 403);
    assert_eq!(put(&request, vec![1; 10]).await, 200);
    assert_eq!(difs.stat(&location).await.unwrap().size, 10);
    assert_eq!(put(&request, vec![2; 10]).await, 412);
    let etag = difs.stat(&location).await.unwrap().etag;
    assert_eq!(*difs.read(&location, &etag, 0..10).await.unwrap(), [1; 10]);
}

async fn an_upload_in_parts_continues_where_it_stopped_and_is_joined_once(aws: Aws) {
    let difs = S3Difs::new(aws.clients.s3.clone(), aws.create_bucket().await);
    let location = Location::new("acme/a.debug/ab12/0123456789abcdef");
    // An upload whose key begins in the same way.
    let other = Location::new("acme/a.debug/ab12/0123456789abcdef0");
    difs.begin_parts(&other).await.unwrap();
    let begun = difs.begin_parts(&location).await.unwrap();
    assert!(begun.stored.is_empty());
    let bodies = [vec![1; 5 << 20], vec![2; 3]];
    let parts = (1..).zip(&bodies).map(|(number, body)| UploadPart {
        number,
        bytes: body.len() as u64,
        sha256: Sha256::digest(body).into(),
    });
    let parts: Vec<UploadPart> = parts.collect();
    let sign = |part| difs.sign_part(&begun, part, SIGNED_FOR);
    let first = sign(&parts[0]).await.unwrap();
    // The store verifies what it receives.
    assert_eq!(put(&first, vec![3; 5 << 20]).await, 400);
    assert_eq!(put(&first, bodies[0].clone()).await, 200);
    let again = difs.begin_parts(&location).await.unwrap();
    assert_eq!(again.id, begun.id);
    let stored = |upload: &UploadInParts| -> BTreeSet<UploadPart> {
        upload.stored.keys().cloned().collect()
    };
    assert_eq!(stored(&again), BTreeSet::from([parts[0].clone()]));
    let last = sign(&parts[1]).await.unwrap();
    assert_eq!(put(&last, bodies[1].clone()).await, 200);
    let whole = difs.begin_parts(&location).await.unwrap();
    assert_eq!(stored(&whole), parts.iter().cloned().collect());
    let joined = difs.join_parts(&whole, &parts).await.unwrap();
    assert_eq!(joined, Created::New);
    let size = difs.stat(&location).await.unwrap().size;
    assert_eq!(size, (5 << 20) + 3);
    let again = difs.join_parts(&whole, &parts).await.unwrap();
    assert_eq!(again, Created::AlreadyThere);
}

async fn a_nonexistent_bucket_or_table_is_a_fault_and_not_an_absence(aws: Aws) {
    let blobs = S3Blobs::new(aws.clients.s3.clone(), "no-such-bucket");
    let body = Bytes::from_static(b"x");
    assert_eq!(
        blobs.get("a", None).await.unwrap_err().kind(),
        FaultKind::Bug
    );
    assert_eq!(
        blobs.create("a", body).await.unwrap_err().kind(),
        FaultKind::Bug
    );
    assert_eq!(
        blobs.list("", None).await.unwrap_err().kind(),
        FaultKind::Bug
    );
    assert_eq!(
        blobs
            .delete_many(&["a".to_owned()])
            .await
            .unwrap_err()
            .kind(),
        FaultKind::Bug
    );

    let difs = S3Difs::new(aws.clients.s3.clone(), "no-such-bucket");
    let location = Location::new("global/a");
    for error in [
        difs.stat(&location).await.unwrap_err(),
        difs.read(&location, "e", 0..1).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, DifError::Fault(error) if error.kind() == FaultKind::Bug),
            "{error:?}"
        );
    }

    let records = DynamoRecords::new(aws.clients.dynamodb.clone(), "no-such-table");
    let key = ItemKey {
        partition: "p".to_owned(),
        sort: "s".to_owned(),
    };
    let error = records.load(&[key], Consistency::Strong).await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::Bug, "{error:?}");
    assert_eq!(
        records.page(Segment::WHOLE, None).await.unwrap_err().kind(),
        FaultKind::Bug
    );
}

async fn a_message_waits_in_its_queue(aws: Aws) {
    let urls = aws.create_queues().await;
    let queues = SqsQueues::new(aws.clients.sqs.clone(), urls.clone());
    for (queue, url) in [
        (Queue::Eager, &urls.eager),
        (Queue::Uploads, &urls.uploads),
        (Queue::Refresh, &urls.refresh),
    ] {
        let module = ModuleKey {
            scope: "größe \u{ffff}".parse().unwrap(),
            source: SourceKey::Uploads,
            id: "debug_id:🦀".to_owned(),
        };
        let (kinds, build_request) = (Kind::DERIVED.to_vec(), Token::from_random(7));
        let message = [QueueMessage::new(
            queue,
            module,
            kinds,
            build_request,
            Converter::CURRENT,
        )];
        queues.send(&message, Duration::ZERO).await.unwrap();
        // Remains invisible while this test runs.
        queues
            .send(&message, Duration::from_secs(7200))
            .await
            .unwrap();
        let received = aws
            .clients
            .sqs
            .receive_message()
            .queue_url(url)
            .max_number_of_messages(10)
            .send()
            .await
            .unwrap();
        let bodies: Vec<_> = received
            .messages()
            .iter()
            .filter_map(|message| message.body())
            .collect();
        let [body] = bodies[..] else {
            panic!("{bodies:?}")
        };
        let [message] = message;
        assert_eq!(serde_json::from_str::<QueueMessage>(body).unwrap(), message);
    }
}

async fn a_blob_is_listed_with_its_time_of_creation(aws: Aws) {
    let blobs = S3Blobs::new(aws.clients.s3.clone(), aws.create_bucket().await);
    let now = || {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let before = now();
    blobs.create("a", Bytes::from_static(b"x")).await.unwrap();
    let listed = blobs.list("", None).await.unwrap();
    assert!(
        (before..=now()).contains(&listed.blobs[0].modified_at.as_secs()),
        "{listed:?}"
    );
}

/// Runs only on the local stack: on moto, both writers sometimes succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_writers_of_a_large_blob_wins() {
    let aws = Aws::on_the_local_stack().await;
    let blobs = S3Blobs::new(aws.clients.s3.clone(), aws.create_bucket().await);
    contract::blobs::one_of_two_writers_of_a_large_blob_wins(&(Arc::new(blobs) as Blobs)).await;
}

async fn keys_that_xml_cannot_hold_are_listed(aws: Aws) {
    let blobs = S3Blobs::new(aws.clients.s3.clone(), aws.create_bucket().await);
    let keys = ["a\u{1}b\tc\n", "\u{fffe}", "\u{ffff}", "🦀"];
    for key in keys {
        blobs.create(key, Bytes::new()).await.unwrap();
    }
    let listed = blobs.list("", None).await.unwrap();
    assert!(
        listed.blobs.iter().map(|blob| blob.path.as_str()).eq(keys),
        "{listed:?}"
    );
}

async fn a_wrong_signature_is_denied_and_does_not_reveal_absence(aws: Aws) {
    let bucket = aws.create_bucket().await;
    let stranger = aws.s3_signed_with("a wrong key").await;
    let blobs = S3Blobs::new(stranger.clone(), &bucket);
    assert_eq!(
        blobs.get("a", None).await.unwrap_err().kind(),
        FaultKind::Denied
    );
    assert_eq!(
        blobs
            .create("a", Bytes::from_static(b"x"))
            .await
            .unwrap_err()
            .kind(),
        FaultKind::Denied
    );
    let difs = S3Difs::new(stranger, &bucket);
    let location = Location::new("global/a");
    for error in [
        difs.stat(&location).await.unwrap_err(),
        difs.read(&location, "e", 0..1).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, DifError::Fault(error) if error.kind() == FaultKind::Denied),
            "{error:?}"
        );
    }
}
