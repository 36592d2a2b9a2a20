//! Buckets of S3 as sources, and settings in them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_s3::primitives::ByteStream;
use serde_json::{Value, json};
use symdepot::adapters::aws::{S3Settings, StsRoles};
use symdepot::adapters::http::HttpServers;
use symdepot::domain::{Cause, ConfiguredSource, HttpSource};
use symdepot::ports::{MAX_SETTING_BYTES, SettingAddress, StoredSettings};

use crate::backends::Aws;
use crate::fetching::fetch;
use crate::roles;

on_aws!(
    a_file_of_a_bucket_is_fetched_by_a_signed_request,
    a_setting_in_a_bucket_is_read_up_to_its_limit,
);

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn source(aws: &Aws, bucket: &str, more: Value) -> HttpSource {
    let mut json = json!({
        "type": "s3", "id": "a", "bucket": bucket, "prefix": "all/symbols", "region": ["us-east-1", aws.s3],
        "access_key": "local", "secret_key": "local",
    });
    json.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let ConfiguredSource(source) = serde_json::from_value(json).unwrap();
    source
}

async fn put(aws: &Aws, bucket: &str, key: &str, bytes: Vec<u8>) {
    let put = aws.clients.s3.put_object().bucket(bucket).key(key);
    put.body(ByteStream::from(bytes)).send().await.unwrap();
}

async fn a_file_of_a_bucket_is_fetched_by_a_signed_request(aws: Aws) {
    let bucket = aws.create_bucket().await;
    let servers = HttpServers::new(true).with_wall_clock(now);
    let source = source(&aws, &bucket, json!({}));
    // Characters that the two encodings of a path treat differently.
    for (key, path) in [
        ("ab/cd.debug", "ab/cd.debug"),
        ("my app+.pdb/1/my app+.pdb", "my%20app+.pdb/1/my%20app+.pdb"),
        ("é~(1)!*'$&,;=:@", "%C3%A9~(1)!*'$&,;=:@"),
        ("100%25", "100%2525"),
    ] {
        put(&aws, &bucket, &format!("all/symbols/{key}"), key.into()).await;
        let location = format!("s3://{bucket}/all/symbols/{path}");
        let fetched = fetch(&servers, &source, &location).await;
        assert_eq!(fetched.unwrap(), key.as_bytes(), "{key}");
    }
    let location = format!("s3://{bucket}/all/symbols/absent");
    let absent = fetch(&servers, &source, &location).await.unwrap_err();
    assert_eq!(absent.cause, Cause::NotFound, "{absent:?}");
}

async fn a_setting_in_a_bucket_is_read_up_to_its_limit(aws: Aws) {
    let bucket = aws.create_bucket().await;
    let settings = S3Settings::new(aws.clients.s3.clone());
    let read = async |key: &str| {
        let address = SettingAddress::parse(&format!("s3://{bucket}/{key}")).unwrap();
        settings
            .read(&address)
            .await
            .map_err(|error| error.to_string())
    };
    put(&aws, &bucket, "a b/sources.json", b"[\"ubuntu\"]".into()).await;
    assert_eq!(
        read("a b/sources.json").await,
        Ok("[\"ubuntu\"]".to_owned())
    );
    let absent = "NoSuchKey: upload the value there, or correct the address";
    assert_eq!(read("absent").await, Err(absent.to_owned()));
    put(&aws, &bucket, "long", vec![b' '; MAX_SETTING_BYTES]).await;
    assert_eq!(read("long").await.unwrap().len(), MAX_SETTING_BYTES);
    put(&aws, &bucket, "longer", vec![b' '; MAX_SETTING_BYTES + 1]).await;
    assert_eq!(
        read("longer").await,
        Err("it has more than 1048576 bytes".to_owned())
    );
    put(&aws, &bucket, "binary", vec![0xff]).await;
    assert_eq!(read("binary").await, Err("it is not UTF-8".to_owned()));
}

/// S3 sends `Accept-Ranges` and strong ETags.
#[tokio::test]
async fn a_large_file_of_a_bucket_is_received_in_ranges() {
    let aws = Aws::on_the_local_stack().await;
    let bucket = aws.create_bucket().await;
    let file: Vec<u8> = (0..(64 << 20) + 1_u32).map(|at| (at >> 12) as u8).collect();
    put(&aws, &bucket, "all/symbols/large", file.clone()).await;
    let servers = HttpServers::new(true).with_wall_clock(now);
    let location = format!("s3://{bucket}/all/symbols/large");
    let fetched = fetch(&servers, &source(&aws, &bucket, json!({})), &location).await;
    assert!(fetched.unwrap() == file);
}

/// Only the endpoint has an STS.
#[tokio::test]
async fn a_bucket_is_read_by_a_role_on_the_endpoint() {
    let Some(aws) = Aws::on_the_endpoint().await else {
        return;
    };
    let bucket = aws.create_bucket().await;
    put(&aws, &bucket, "all/symbols/file", b"file".into()).await;
    let role = Arc::new(StsRoles::new(roles::config(&aws.s3).await, now));
    let servers = HttpServers::new(true).with_wall_clock(now).with_roles(role);
    let source = source(
        &aws,
        &bucket,
        json!({
            "role_arn": "arn:aws:iam::123456789012:role/symbols", "external_id": "our-id", "access_key": "",
            "secret_key": "",
        }),
    );
    let location = format!("s3://{bucket}/all/symbols/file");
    assert_eq!(fetch(&servers, &source, &location).await.unwrap(), b"file");
}
