//! `infra/backup`: the uploads and the tokens of a stack that has lost everything are restored.

use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use reqwest::Method;
use serde_json::{Value, json};
use symdepot_tests::stack::{Client, checkout};
use tokio::process::Command;

use crate::{RECORDS, Running, bytes_of, crash, records};

/// The bucket of the backup.
const BACKUP: &str = "backup-of-symdepot";

/// The least size of a part, so that a file of a few of them is copied in parts.
const PART_BYTES: usize = 5 << 20;

fn has_python() -> bool {
    let there = std::process::Command::new("python3")
        .arg("--version")
        .output();
    there.is_ok_and(|output| output.status.success())
}

/// Runs a command of the script, and returns what it printed.
async fn backup(client: &Client, command: &str, more: &[&str]) -> String {
    let addresses = client.addresses();
    let ended = Command::new("python3")
        .arg(checkout().join("infra/backup"))
        .args([
            command,
            "--uploads",
            addresses.uploads(),
            "--table",
            RECORDS,
            "--in",
            BACKUP,
        ])
        .args(["--s3", &addresses.s3, "--dynamodb", &addresses.dynamodb])
        .args(["--part-bytes", &PART_BYTES.to_string()])
        .args(more)
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env_remove("AWS_SESSION_TOKEN")
        .env("AWS_REGION", "us-east-1")
        .env("NO_PROXY", "127.0.0.1")
        .output();
    let ended = ended.await.unwrap();
    let printed = String::from_utf8(ended.stdout).unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{printed}{said}");
    assert_eq!(said, "");
    printed
}

/// Removes everything that the service has stored: uploads, records and caches.
async fn lose_everything(running: &Running) {
    let client = running.client();
    let (s3, addresses) = (client.s3(), client.addresses());
    for bucket in [addresses.uploads(), addresses.caches()] {
        let objects = s3.list_objects_v2().bucket(bucket).send().await.unwrap();
        for object in objects.contents() {
            let remove = s3.delete_object().bucket(bucket);
            remove.key(object.key().unwrap()).send().await.unwrap();
        }
    }
    running.idle().await;
    let records = records(client);
    let all = records.scan().table_name(RECORDS).send().await.unwrap();
    assert!(all.last_evaluated_key().is_none() && all.count() > 0);
    for item in all.items() {
        let remove = records.delete_item().table_name(RECORDS);
        let remove = remove.key("partition", item["partition"].clone());
        remove
            .key("sort", item["sort"].clone())
            .send()
            .await
            .unwrap();
    }
    client.end_functions().await.unwrap();
}

/// Issues a token. Returns it, and its id.
async fn issue(running: &Running, name: &str) -> (String, String) {
    let operator = running.client().as_operator();
    let body = json!({"name": name, "scope": "global", "rights": ["symbolicate"]});
    let request = operator.request(Method::POST, "/tokens").json(&body);
    let issued = operator.send("a token", request).await.unwrap();
    let issued = issued.expect(201, "a token").unwrap().body;
    let text = |field: &str| issued[field].as_str().unwrap().to_owned();
    (text("token"), text("id"))
}

async fn revoke(running: &Running, id: &str) {
    let operator = running.client().as_operator();
    let request = operator.request(Method::DELETE, &format!("/tokens/{id}"));
    let revoked = operator.send("the end of a token", request).await.unwrap();
    revoked.expect(204, "the end of a token").unwrap();
    // Another instance may know the token for some more seconds.
    running.client().end_functions().await.unwrap();
}

/// Sends the sample crash with a token, and returns the response.
async fn asked(client: &Client, token: &str) -> (u16, Value) {
    let request = client
        .request(Method::POST, "/symbolicate")
        .bearer_auth(token);
    let reply = client
        .send("a crash", request.json(&crash::sample()))
        .await
        .unwrap();
    (reply.status, reply.body)
}

async fn create_backup(client: &Client) {
    let create = client.s3().create_bucket().bucket(BACKUP);
    create.send().await.unwrap();
}

/// Starts a stack with a bucket for its backup. Returns `None` if the script cannot run.
async fn start_with_backup() -> Option<Running> {
    if !has_python() {
        println!("skipped: python3 is not installed");
        return None;
    }
    let running = Running::start().await;
    create_backup(running.client()).await;
    Some(running)
}

async fn size_of_upload(client: &Client, key: &str) -> Option<i64> {
    let uploads = client.addresses().uploads();
    let head = client.s3().head_object().bucket(uploads).key(key);
    head.send().await.unwrap().content_length()
}

#[tokio::test]
async fn uploads_and_tokens_are_restored_after_the_loss_of_everything() {
    if !has_python() {
        println!("skipped: python3 is not installed");
        return;
    }
    let running = Running::start_with(|options| options.variable("AUTH", "token")).await;
    let client = running.client();
    let (token, id) = issue(&running, "kept").await;
    let (revoked, id_of_revoked) = issue(&running, "revoked").await;
    revoke(&running, &id_of_revoked).await;
    create_backup(client).await;
    // A key that has to be encoded, and a file that is copied in parts.
    let keys = [
        "global/crash.debug",
        "acme/a b+c/ü&=?.txt",
        "acme/large.txt",
    ];
    let large = vec![b'x'; 2 * PART_BYTES + 7];
    for (key, bytes) in keys
        .iter()
        .zip([bytes_of("elf/crash.debug"), b"text".to_vec(), large])
    {
        running.upload(key, bytes).await;
    }
    let saved = backup(client, "save", &[]).await;
    assert!(saved.starts_with("tokens: 2 in tokens/"), "{saved}");
    assert!(
        saved.ends_with("uploads: 3 copied, 0 unchanged, 0 failed\n"),
        "{saved}"
    );

    lose_everything(&running).await;
    assert_eq!(asked(client, &token).await.0, 401);
    let restored = backup(client, "restore", &[]).await;
    assert!(
        restored.starts_with("tokens: 2 restored from tokens/"),
        "{restored}"
    );
    assert!(
        restored.ends_with("uploads: 3 copied, 0 unchanged, 0 failed\n"),
        "{restored}"
    );
    // The events of the copies have everything derived again.
    running.idle().await;
    let size_of_large = Some(2 * PART_BYTES as i64 + 7);
    assert_eq!(size_of_upload(client, keys[2]).await, size_of_large);
    assert_eq!(size_of_upload(client, keys[1]).await, Some(4));
    client.end_functions().await.unwrap();
    let (status, answer) = asked(client, &token).await;
    assert_eq!(status, 200, "{answer:#}");
    crash::assert_symbolicated(&answer);
    assert_eq!(asked(client, &revoked).await.0, 401);

    // What the table knows is newer than the backup.
    revoke(&running, &id).await;
    let again = backup(client, "restore", &["--prefix", "global/"]).await;
    assert!(again.starts_with("tokens: 0 restored"), "{again}");
    assert!(
        again.ends_with("uploads: 0 copied, 1 unchanged, 0 failed\n"),
        "{again}"
    );
    client.end_functions().await.unwrap();
    assert_eq!(asked(client, &token).await.0, 401);
    // A second backup copies what changed.
    running.upload(keys[1], b"other text".to_vec()).await;
    let saved = backup(client, "save", &[]).await;
    assert!(
        saved.ends_with("uploads: 1 copied, 2 unchanged, 0 failed\n"),
        "{saved}"
    );
}

#[tokio::test]
async fn a_restore_replaces_older_uploads_and_keeps_newer_ones() {
    let Some(running) = start_with_backup().await else {
        return;
    };
    let client = running.client();
    let (older, newer) = ("acme/older.txt", "acme/newer.txt");
    for key in [older, newer] {
        running.upload(key, b"text".to_vec()).await;
    }
    let saved = backup(client, "save", &[]).await;
    let copied = "uploads: 2 copied, 0 unchanged, 0 failed\n";
    assert!(saved.ends_with(copied), "{saved}");
    let more_than_a_second = Duration::from_secs(2);
    client.advance("s3", more_than_a_second).await.unwrap();
    // One differs in the backup since then, and the other one among the uploads.
    let put = client.s3().put_object().bucket(BACKUP);
    let put = put.key(format!("uploads/{older}"));
    let body = ByteStream::from_static(b"a longer text");
    put.body(body).send().await.unwrap();
    running.upload(newer, b"a new text".to_vec()).await;

    let restored = backup(client, "restore", &[]).await;
    let copied = "uploads: 1 copied, 1 unchanged, 0 failed\n";
    assert!(restored.contains(copied), "{restored}");
    let kept = "which --overwrite restores: 1\n  acme/newer.txt\n";
    assert!(restored.ends_with(kept), "{restored}");
    assert_eq!(size_of_upload(client, older).await, Some(13));
    assert_eq!(size_of_upload(client, newer).await, Some(10));
    let replaced = backup(client, "restore", &["--overwrite"]).await;
    assert!(replaced.ends_with(copied), "{replaced}");
    assert_eq!(size_of_upload(client, newer).await, Some(4));
}

/// An upload in parts that has begun.
struct InParts {
    key: &'static str,
    id: String,
}

impl InParts {
    async fn begin(client: &Client, key: &'static str) -> Self {
        let uploads = client.addresses().uploads();
        let begin = client.s3().create_multipart_upload().bucket(uploads);
        let begun = begin.key(key).send().await.unwrap();
        let id = begun.upload_id().unwrap().to_owned();
        Self { key, id }
    }

    /// Sends two parts, and joins them.
    async fn end(self, client: &Client, byte: u8) {
        let uploads = client.addresses().uploads();
        let mut parts = Vec::new();
        for (number, size) in [(1, PART_BYTES), (2, 7)] {
            let part = client.s3().upload_part().bucket(uploads).key(self.key);
            let part = part.upload_id(&self.id).part_number(number);
            let sent = part.body(vec![byte; size].into()).send().await.unwrap();
            let part = CompletedPart::builder().part_number(number);
            parts.push(part.e_tag(sent.e_tag().unwrap()).build());
        }
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts));
        let join = client.s3().complete_multipart_upload().bucket(uploads);
        let join = join.key(self.key).upload_id(self.id);
        join.multipart_upload(parts.build()).send().await.unwrap();
    }
}

async fn etag_of_upload(client: &Client, key: &str) -> String {
    let uploads = client.addresses().uploads();
    let head = client.s3().head_object().bucket(uploads).key(key);
    head.send().await.unwrap().e_tag().unwrap().to_owned()
}

/// The copy of a file of parts has another ETag, unless it is larger than 5 GiB, and so has the
/// file that is restored of it.
#[tokio::test]
async fn an_upload_in_parts_is_neither_saved_nor_restored_again() {
    let Some(running) = start_with_backup().await else {
        return;
    };
    let client = running.client();
    let key = "acme/large.txt";
    InParts::begin(client, key).await.end(client, b'x').await;
    running.idle().await;
    let in_one_request = ["--part-bytes", "10485760"];
    let run = async |command: &str| backup(client, command, &in_one_request).await;
    let copied = "uploads: 1 copied, 0 unchanged, 0 failed\n";
    let unchanged = "uploads: 0 copied, 1 unchanged, 0 failed\n";
    let saved = run("save").await;
    assert!(saved.ends_with(copied), "{saved}");
    let etag = etag_of_upload(client, key).await;
    assert!(etag.contains('-'), "{etag}");
    let assert_nothing_is_copied = async || {
        for command in ["restore", "save"] {
            let printed = run(command).await;
            assert!(printed.ends_with(unchanged), "{command}: {printed}");
        }
    };
    assert_nothing_is_copied().await;
    // No event was sent: the upload was not written.
    assert_eq!(etag_of_upload(client, key).await, etag);

    let uploads = client.addresses().uploads();
    let remove = client.s3().delete_object().bucket(uploads).key(key);
    remove.send().await.unwrap();
    let restored = run("restore").await;
    assert!(restored.ends_with(copied), "{restored}");
    assert_ne!(etag_of_upload(client, key).await, etag);
    assert_nothing_is_copied().await;
    running.idle().await;
}

/// The time of an object of parts is the beginning of its upload, which may precede the backup of
/// the file that it replaces.
#[tokio::test]
async fn an_upload_in_parts_that_began_before_a_backup_is_newer_than_it() {
    let Some(running) = start_with_backup().await else {
        return;
    };
    let client = running.client();
    let key = "acme/large.txt";
    running.upload(key, vec![b'a'; PART_BYTES + 7]).await;
    let newer = InParts::begin(client, key).await;
    client.advance("s3", Duration::from_secs(2)).await.unwrap();
    let saved = backup(client, "save", &[]).await;
    let copied = "uploads: 1 copied, 0 unchanged, 0 failed\n";
    assert!(saved.ends_with(copied), "{saved}");
    newer.end(client, b'b').await;
    running.idle().await;
    let etag = etag_of_upload(client, key).await;
    let restored = backup(client, "restore", &[]).await;
    let unchanged = "uploads: 0 copied, 1 unchanged, 0 failed\n";
    assert!(restored.contains(unchanged), "{restored}");
    assert_eq!(etag_of_upload(client, key).await, etag);
    let saved = backup(client, "save", &[]).await;
    assert!(saved.ends_with(copied), "{saved}");
    let restored = backup(client, "restore", &[]).await;
    assert!(restored.ends_with(unchanged), "{restored}");
}
