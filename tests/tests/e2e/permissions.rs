//! The permissions of the template, as the local stack enforces them.

use std::time::Duration;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use aws_sdk_s3::config::Credentials;
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use reqwest::Method;
use serde_json::{Value, json};
use symdepot::adapters::aws::S3Blobs;
use symdepot::cache::ItemKey;
use symdepot::ports::{BlobStore, Created};
use symdepot_tests::grants::{SOURCES_OBJECT, SYMBOLS, source_buckets};
use symdepot_tests::stack::{Client, LocalStack, Options, http_client, template, until};
use tempfile::TempDir;

use crate::symbol_server::DEBUG_FILE;
use crate::{PATIENCE, RECORDS, Running, bytes_of, crash, records};

/// Writes the template with a part of it replaced, and returns its path.
pub(crate) fn template_with(folder: &TempDir, old: &str, new: &str) -> std::path::PathBuf {
    let text = std::fs::read_to_string(template()).unwrap();
    assert_eq!(text.matches(old).count(), 1, "{old:?} in the template");
    let path = folder.path().join("template.yaml");
    std::fs::write(&path, text.replace(old, new)).unwrap();
    path
}

/// Returns the uses and denials of the functions so far.
async fn uses(client: &Client) -> Vec<Value> {
    let request = client.request(Method::GET, "/_local/access");
    let reply = client.send("the permissions", request).await.unwrap();
    let body = reply.expect(200, "the permissions").unwrap().body;
    body["uses"].as_array().unwrap().clone()
}

/// What `make test` finds if a grant is removed: the call is denied, and the record has it.
#[tokio::test]
async fn a_function_without_a_grant_is_denied_the_call() {
    let changed = TempDir::new().unwrap();
    let path = template_with(
        &changed,
        "Action: [s3:PutObject, s3:AbortMultipartUpload]",
        "Action: [s3:AbortMultipartUpload]",
    );
    let running = Running::start_with(|options| options.template(path)).await;
    let client = running.client();
    client
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await
        .unwrap();
    let denied = until("a denied call", PATIENCE, async || {
        let uses = uses(client).await;
        uses.into_iter().find(|it| it["denied"].is_string())
    });
    let denied = denied.await.unwrap();
    assert_eq!(
        (&denied["by"], &denied["action"], &denied["grants"]),
        (&"DeriveRole".into(), &"s3:PutObject".into(), &json!([])),
        "{denied:#}"
    );
    let said = denied["denied"].as_str().unwrap();
    let expected = "assumed-role/DeriveRole/derive is not authorized to perform: s3:PutObject";
    assert!(said.contains(expected), "{said}");
    // What the template still allows was allowed.
    let allowed = uses(client).await;
    let allowed = allowed.iter().filter(|it| it["denied"].is_null());
    assert!(allowed.count() >= 5);
    until("the log of the denial", PATIENCE, async || {
        let log = running.stack.log_of("derive");
        log.contains("AccessDenied").then_some(())
    })
    .await
    .unwrap();
    running.stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_stack_whose_queue_or_bucket_lacks_a_grant_is_not_deployed() {
    for (old, new, expected) in [
        (
            "Action: [sqs:ReceiveMessage, sqs:DeleteMessage, sqs:GetQueueAttributes]",
            "Action: [sqs:ReceiveMessage, sqs:GetQueueAttributes]",
            "DeriveFunction cannot be deployed: User: arn:aws:sts::000000000000:assumed-role/DeriveRole/lambda is not authorized to perform: sqs:DeleteMessage",
        ),
        (
            "aws:SourceArn: !Sub \"arn:${AWS::Partition}:s3:::${AWS::StackName}-uploads-",
            "aws:SourceArn: !Sub \"arn:${AWS::Partition}:s3:::${AWS::StackName}-uploaded-",
            "UploadsBucket cannot be deployed: its events cannot be sent",
        ),
    ] {
        let folder = TempDir::new().unwrap();
        let path = template_with(&folder, old, new);
        let binaries = symdepot_tests::stack::Binaries::from_env().unwrap();
        let options = Options::new(binaries, folder.path()).template(path);
        let refused = LocalStack::start(options).await.unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

/// The policy of the bucket denies it to everyone, administrators included.
#[tokio::test]
async fn no_one_replaces_a_blob() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let client = running.client();
    let bucket = client.addresses().caches();
    let (path, _) = client.blobs().await.unwrap().remove(0);
    let put = || {
        let put = client.s3().put_object().bucket(bucket).key(&path);
        put.body(ByteStream::from_static(b"other bytes"))
    };
    let denied = put().send().await.unwrap_err();
    let denied = denied.as_service_error().unwrap().meta();
    assert_eq!(denied.code(), Some("AccessDenied"), "{denied:?}");
    let said = denied.message().unwrap();
    assert!(
        said.ends_with("with an explicit deny in a resource-based policy"),
        "{said}"
    );
    let exists = put().if_none_match("*").send().await.unwrap_err();
    let exists = exists.as_service_error().unwrap().meta();
    assert_eq!(exists.code(), Some("PreconditionFailed"), "{exists:?}");
    // Parts have no conditions.
    let parts = client.s3().create_multipart_upload().bucket(bucket);
    parts.key(&path).send().await.unwrap();
}

/// Returns a client of S3 with the keys of a process of a function.
fn s3_of(client: &Client, function: &str) -> aws_sdk_s3::Client {
    let key = format!("function.{function}.1");
    let keys = Credentials::new(key, "function", None, None, "a function");
    let config = client.s3().config().to_builder().credentials_provider(keys);
    aws_sdk_s3::Client::from_conf(config.build())
}

/// A blob of more than 64 MiB is sent in parts. If another builder was faster, the parts are
/// removed, which needs a permission of its own. `prune` deletes from each folder.
#[tokio::test]
async fn the_parts_of_a_blob_that_exists_are_removed() {
    let running = Running::start().await;
    let client = running.client();
    let bucket = client.addresses().caches();
    let body = Bytes::from(vec![7; 65 << 20]);
    for (function, path) in [
        ("derive", "derived/large"),
        ("derive", "copies/large"),
        ("symbolicate", "plain/large"),
    ] {
        let blobs = S3Blobs::new(s3_of(client, function), bucket);
        for expected in [Created::New, Created::AlreadyThere] {
            let created = blobs.create(path, body.clone()).await.unwrap();
            assert_eq!(created, expected, "{path}");
        }
        let left = client.s3().list_multipart_uploads().bucket(bucket);
        assert!(left.send().await.unwrap().uploads().is_empty(), "{path}");
    }
    let schedule = S3Blobs::new(s3_of(client, "prune"), bucket);
    let paths = ["derived/large", "copies/large", "plain/large"].map(str::to_owned);
    let kept = schedule.delete_many(&paths).await.unwrap();
    assert!(kept.is_empty(), "{kept:?}");
    assert_eq!(client.blobs().await.unwrap(), []);
}

/// A function cannot do with the keys of another one what only that one may.
#[tokio::test]
async fn a_presigned_request_has_the_permissions_of_its_signer() {
    let running = Running::start_with(Options::expecting_denials).await;
    let client = running.client();
    let (bucket, key) = (client.addresses().uploads(), "global/secret.debug");
    client.upload(key, b"bytes".as_slice()).await.unwrap();
    let signed_by = async |function: &str| {
        let s3 = s3_of(client, function);
        let lifetime = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
        let get = s3.get_object().bucket(bucket).key(key);
        let url = get.presigned(lifetime).await.unwrap().uri().to_owned();
        let sent = http_client().unwrap().get(url).send().await;
        sent.unwrap().status().as_u16()
    };
    assert_eq!(signed_by("derive").await, 200);
    assert_eq!(signed_by("symbolicate").await, 403);
    assert_eq!(signed_by("unknown").await, 403);
    let denied = uses(client).await;
    let denied: Vec<&Value> = denied
        .iter()
        .filter(|it| it["denied"].is_string())
        .collect();
    assert_eq!(denied.len(), 1, "{denied:#?}");
    assert_eq!(denied[0]["by"], "SymbolicateRole");
}

/// Returns a client of the table with the keys of a process of a function.
fn records_of(client: &Client, function: &str) -> aws_sdk_dynamodb::Client {
    let key = format!("function.{function}.1");
    let keys = Credentials::new(key, "function", None, None, "a function");
    let local = records(client);
    let config = local.config().to_builder().credentials_provider(keys);
    aws_sdk_dynamodb::Client::from_conf(config.build())
}

/// Returns whether a function was denied a call; any other error fails the test.
fn was_denied<T, E: ProvideErrorMetadata, R>(result: Result<T, SdkError<E, R>>) -> bool {
    let Err(error) = result else {
        return false;
    };
    let error = error.as_service_error().and_then(|error| error.code());
    assert_eq!(error, Some("AccessDeniedException"));
    true
}

/// In Lambda, an attacker who controls the parser may read the credentials of `derive`. They do not
/// suffice to issue an access token, or to read the hashes of the others. `prune` removes tokens
/// that have expired.
#[tokio::test]
async fn only_symbolicate_issues_access_tokens() {
    let running = Running::start_with(Options::expecting_denials).await;
    let client = running.client();
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let partition_of_tokens = ItemKey::issued_tokens();
    let tokens = partition_of_tokens.as_str();
    for (function, partition, is_denied) in [
        ("derive", tokens, true),
        ("derive", "another partition", false),
        ("prune", tokens, true),
        ("prune", "another partition", false),
        ("symbolicate", tokens, false),
    ] {
        let put = records_of(client, function).put_item();
        let put = put.table_name(RECORDS).item("partition", text(partition));
        let put = put.item("sort", text("sort")).send().await;
        assert_eq!(was_denied(put), is_denied, "{function} {partition}");
    }
    let derive = records_of(client, "derive");
    for (partition, is_denied) in [(tokens, true), ("another partition", false)] {
        let query = derive.query().table_name(RECORDS);
        let query = query
            .key_condition_expression("#partition = :partition")
            .expression_attribute_names("#partition", "partition")
            .expression_attribute_values(":partition", text(partition));
        assert_eq!(was_denied(query.send().await), is_denied, "{partition}");
        let key = [("partition", text(partition)), ("sort", text("sort"))];
        let key = key.map(|(name, value)| (name.to_owned(), value)).into();
        let keys = KeysAndAttributes::builder().keys(key).build().unwrap();
        let read = derive.batch_get_item().request_items(RECORDS, keys);
        assert_eq!(was_denied(read.send().await), is_denied, "{partition}");
    }
    for (function, is_denied) in [("derive", true), ("prune", false)] {
        let delete = records_of(client, function).delete_item();
        let delete = delete.table_name(RECORDS).key("partition", text(tokens));
        let delete = delete.key("sort", text("sort")).send().await;
        assert_eq!(was_denied(delete), is_denied, "{function}");
    }
}

/// Sources, the list of sources and the bucket that they read come with parameters of the template,
/// which grant the roles what they need for them.
#[tokio::test]
async fn parameters_grant_what_the_sources_of_the_operator_need() {
    let running = Running::start_with(|options| {
        options
            .parameter("SourcesObject", SOURCES_OBJECT)
            .parameter("SourceBuckets", source_buckets())
            .variable("ALLOW_PRIVATE_SOURCES", 1)
    })
    .await;
    let client = running.client();
    let (settings, list) = SOURCES_OBJECT.split_once('/').unwrap();
    let source = json!([{
        "type": "s3", "id": "bucket", "bucket": SYMBOLS, "prefix": "debug",
        "region": ["us-east-1", client.addresses().s3], "aws_credentials_provider": "container",
    }]);
    for (bucket, key, bytes) in [
        (settings, list, source.to_string().into_bytes()),
        (
            SYMBOLS,
            &format!("debug{DEBUG_FILE}"),
            bytes_of("elf/crash.debug"),
        ),
    ] {
        let s3 = client.s3();
        s3.create_bucket().bucket(bucket).send().await.unwrap();
        let put = s3.put_object().bucket(bucket).key(key);
        put.body(bytes.into()).send().await.unwrap();
    }
    let completed = client.completed_at_last(&crash::sample()).await.unwrap();
    crash::assert_symbolicated(&completed);
    // Other files of the module are absent. That they are needs the permission to list.
    let mut other = crash::sample();
    other["modules"][0]["debug_id"] = "11111111-2222-3333-4444-555555555555".into();
    other["modules"][0]["code_id"] = Value::Null;
    let completed = client.completed_at_last(&other).await.unwrap();
    assert_eq!(
        completed["modules"][0]["debug_status"], "missing",
        "{completed:#}"
    );
}
