//! Lifecycle rules of buckets, tested with the real client and a clock that is moved.

#![expect(clippy::unwrap_used, reason = "an error fails the test")]

mod endpoints;

use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use endpoints::{CACHES, S3, UPLOADS};
use local_stack::s3::{Expired, Lifecycle, Rule};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn rule(bucket: &str, prefix: &str) -> Rule {
    Rule {
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
        objects_after: Some(1),
        uploads_after: None,
    }
}

async fn put(client: &aws_sdk_s3::Client, bucket: &str, key: &str) {
    let body = ByteStream::from_static(b"content");
    let put = client.put_object().bucket(bucket).key(key).body(body);
    put.send().await.unwrap();
}

async fn keys(client: &aws_sdk_s3::Client, bucket: &str) -> Vec<String> {
    let listed = client.list_objects_v2().bucket(bucket).send().await;
    let listed = listed.unwrap();
    let keys = listed.contents().iter().filter_map(|object| object.key());
    keys.map(str::to_owned).collect()
}

fn objects(objects: usize) -> Expired {
    Expired {
        objects,
        uploads: 0,
    }
}

/// A day is rounded up to the next midnight, so that two days are always enough, and one never is.
#[tokio::test]
async fn objects_with_the_prefix_of_a_rule_expire_after_its_days_with_their_files() {
    let s3 = S3::start().await;
    let client = s3.client();
    for key in ["request", "requests/a", "requests/b/c", "requests0"] {
        put(&client, CACHES, key).await;
    }
    let lifecycle = Lifecycle::new(s3.store.clone(), vec![rule(CACHES, "requests/")]);
    s3.store.clock().advance(DAY);
    assert_eq!(lifecycle.apply().await, Ok(objects(0)));
    put(&client, CACHES, "requests/new").await;
    s3.store.clock().advance(DAY);
    assert_eq!(lifecycle.apply().await, Ok(objects(2)));
    let left = ["request", "requests/new", "requests0"];
    assert_eq!(keys(&client, CACHES).await, left);
    assert_eq!(s3.files(), left.len());
    assert_eq!(lifecycle.apply().await, Ok(objects(0)));
}

#[tokio::test]
async fn an_expired_object_is_an_event_of_its_own_kind() {
    let s3 = S3::start().await;
    put(&s3.client(), UPLOADS, "global/a b.so").await;
    s3.events().await;
    let lifecycle = Lifecycle::new(s3.store.clone(), vec![rule(UPLOADS, "")]);
    s3.store.clock().advance(2 * DAY);
    assert_eq!(lifecycle.apply().await, Ok(objects(1)));
    let events = s3.events().await;
    let [event] = events.as_slice() else {
        panic!("{events:#?}");
    };
    assert_eq!(event["eventName"], "LifecycleExpiration:Delete");
    assert_eq!(event["s3"]["object"]["key"], "global/a+b.so");
}

/// More than one transaction removes.
#[tokio::test]
async fn all_expired_objects_are_removed_however_many_they_are() {
    const MANY: usize = 1001;
    let s3 = S3::start().await;
    let client = s3.client();
    for number in 0..MANY {
        put(&client, CACHES, &format!("requests/{number}")).await;
    }
    let lifecycle = Lifecycle::new(s3.store.clone(), vec![rule(CACHES, "")]);
    s3.store.clock().advance(2 * DAY);
    assert_eq!(lifecycle.apply().await, Ok(objects(MANY)));
    assert_eq!(s3.files(), 0);
}

#[tokio::test]
async fn unfinished_uploads_are_removed_with_their_parts_and_objects_stay() {
    let s3 = S3::start().await;
    let client = s3.client();
    put(&client, CACHES, "finished").await;
    let begun = client.create_multipart_upload().bucket(CACHES).key("large");
    let begun = begun.send().await.unwrap();
    let part = client.upload_part().bucket(CACHES).key("large");
    let part = part
        .upload_id(begun.upload_id().unwrap())
        .part_number(1)
        .body(ByteStream::from_static(b"part"));
    part.send().await.unwrap();
    assert_eq!(s3.files(), 2);
    let rule = Rule {
        objects_after: None,
        uploads_after: Some(2),
        ..rule(CACHES, "")
    };
    let lifecycle = Lifecycle::new(s3.store.clone(), vec![rule]);
    s3.store.clock().advance(3 * DAY);
    let expired = Expired {
        objects: 0,
        uploads: 1,
    };
    assert_eq!(lifecycle.apply().await, Ok(expired));
    assert_eq!(keys(&client, CACHES).await, ["finished"]);
    assert_eq!(s3.files(), 1);
}
