//! The lifecycle rules of the template: what is not used any more disappears by itself.

use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use symdepot_tests::stack::Client;
use tempfile::TempDir;

use crate::{Running, bytes_of};

/// The rules are for one day, which S3 rounds up to the next midnight.
const TWO_DAYS: Duration = Duration::from_secs(2 * 24 * 60 * 60);

/// Writes a blob that no flow knows, unless there is one. The policy of the caches requires the
/// condition.
async fn put(client: &Client, bucket: &str, key: &str) {
    let body = ByteStream::from_static(b"left behind");
    let put = client.s3().put_object().bucket(bucket).key(key);
    put.if_none_match("*").body(body).send().await.unwrap();
}

async fn keys(client: &Client, bucket: &str) -> Vec<String> {
    let listed = client.s3().list_objects_v2().bucket(bucket).send().await;
    let listed = listed.unwrap();
    let keys = listed.contents().iter().filter_map(|object| object.key());
    keys.map(str::to_owned).collect()
}

#[tokio::test]
async fn requests_and_crash_files_that_were_left_behind_are_removed_and_caches_stay() {
    let running = Running::start().await;
    let client = running.client();
    let addresses = client.addresses();
    for key in ["derived/left", "requests/left.json"] {
        put(client, addresses.caches(), key).await;
    }
    put(client, addresses.attachments(), "global/left").await;
    put(client, addresses.uploads(), "global/kept").await;
    client.advance("s3", TWO_DAYS).await.unwrap();
    assert_eq!(keys(client, addresses.caches()).await, ["derived/left"]);
    assert_eq!(keys(client, addresses.attachments()).await, [""; 0]);
    assert_eq!(keys(client, addresses.uploads()).await, ["global/kept"]);
}

/// The template has no such rule, but subscribes to its events.
#[tokio::test]
async fn an_upload_that_a_rule_of_the_operator_removes_is_forgotten() {
    const KEY: &str = "global/crash.debug";
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("template.yaml");
    let template = std::fs::read_to_string(symdepot_tests::stack::template()).unwrap();
    // The first rule of this name is that of the uploads.
    let rule = "{ Id: abandoned, Status: Enabled, ";
    let expiring = template.replacen(rule, &format!("{rule}ExpirationInDays: 1, "), 1);
    assert_ne!(template, expiring);
    std::fs::write(&path, expiring).unwrap();
    let running = Running::start_with(|options| options.template(&path)).await;
    running.upload(KEY, bytes_of("elf/crash.debug")).await;
    assert_eq!(running.state_of(KEY).await.0, "applied");
    let client = running.client();
    client.advance("s3", TWO_DAYS).await.unwrap();
    running.idle().await;
    let (state, upload) = running.state_of(KEY).await;
    assert_eq!(state, "gone", "{upload:#}");
}
