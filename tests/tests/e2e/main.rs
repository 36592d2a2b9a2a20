//! Tests of the three functions, which run as processes on the local stack: what a client sees that
//! uploads debug files and sends crashes.
//!
//! Each test starts its own stack, on free ports and in an empty directory. The binaries come from
//! `SYMDEPOT_BINARIES`, which `make test` builds and sets.

#![expect(
    clippy::unwrap_used,
    reason = "the whole crate is tests, but clippy recognises only functions marked as tests"
)]

mod access;
mod account;
mod arriving;
mod attachments;
mod backup;
mod chaos;
mod cli_uploads;
mod copies;
mod cost;
mod crash;
mod crash_file_kills;
mod crash_files;
mod crash_forms;
mod crash_readers;
mod explain;
mod first_hour;
mod hostile;
mod hostile_crash_files;
mod hostile_servers;
mod kills;
mod lambda;
mod lifecycle;
mod memory;
mod mozilla;
mod ms_symcache;
mod permissions;
mod queues;
mod rare_calls;
mod readers;
mod reconcile;
mod requests;
mod sample;
mod secrets;
mod serve;
mod smoke;
mod source_files;
mod sources;
mod stack;
mod summaries;
mod symbol_server;
mod template;
mod terminal;
mod traces;
mod uploads;

use std::time::Duration;

use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use symdepot_tests::made_up;
use symdepot_tests::stack::{Binaries, Client, LocalStack, Options, Stats};
use tempfile::TempDir;

/// The time in which a stack must become idle.
const PATIENCE: Duration = Duration::from_secs(120);

/// The table of the records.
const RECORDS: &str = "RecordsTable";

/// A stack and its data directory.
struct Running {
    stack: LocalStack,
    folder: TempDir,
}

impl Running {
    /// Starts a stack with the settings of the template.
    async fn start() -> Self {
        Self::start_with(|options| options).await
    }

    /// Starts a stack with other settings.
    async fn start_with(settings: impl FnOnce(Options) -> Options) -> Self {
        let folder = TempDir::new().unwrap();
        let options = match Binaries::from_env() {
            Ok(binaries) => settings(Options::new(binaries, folder.path())),
            Err(error) => panic!("{error}"),
        };
        let stack = LocalStack::start(options)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        Self { stack, folder }
    }

    fn client(&self) -> &Client {
        self.stack.client()
    }

    /// Uploads bytes and waits until the stack is idle.
    async fn upload(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.client().upload(key, bytes).await.unwrap();
        self.idle().await;
    }

    /// Sends the sample crash. Returns the response, which must be completed.
    async fn sample_answer(&self) -> serde_json::Value {
        let crash = crash::sample();
        self.client().completed("", &crash).await.unwrap()
    }

    /// Stops the stack, and returns the folder of its files.
    async fn stop(self) -> TempDir {
        self.stack.stop().await.unwrap();
        self.folder
    }

    async fn idle(&self) {
        self.client().idle(PATIENCE).await.unwrap();
    }

    /// Waits until the stack is idle, but not for the visibility timeouts of failed messages.
    async fn settled(&self) {
        self.client().settled(PATIENCE).await.unwrap();
    }

    /// Returns the state of an upload and the whole response of `/explain`.
    async fn state_of(&self, key: &str) -> (String, serde_json::Value) {
        let reply = self
            .client()
            .explain(key)
            .await
            .unwrap()
            .expect(200, key)
            .unwrap();
        (
            reply.body["state"].as_str().unwrap_or_default().to_owned(),
            reply.body,
        )
    }
}

/// Returns a client of the local DynamoDB with the keys of the account's administrator.
fn records(client: &Client) -> aws_sdk_dynamodb::Client {
    let keys = Credentials::new("local", "local", None, None, "local stack");
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .credentials_provider(keys)
        .region(Region::from_static("us-east-1"))
        .endpoint_url(client.addresses().dynamodb.clone());
    aws_sdk_dynamodb::Client::from_conf(config.build())
}

/// Asserts that one message was sent and that `derive` ran once.
fn assert_one_build(stats: &Stats) {
    assert_eq!(
        (
            stats.calls("sqs", "SendMessageBatch"),
            stats.function("derive").invocations
        ),
        (1, 1),
        "{stats:#?}"
    );
}

/// Returns the lines with this message in the log of a function.
fn lines_with(log: &str, message: &str) -> Vec<serde_json::Value> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines
        .filter(|line: &serde_json::Value| line["message"] == message)
        .collect()
}

/// Reads a fixture.
fn bytes_of(name: &str) -> Vec<u8> {
    let path = symdepot_tests::stack::fixture(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads a JSON fixture.
fn json_of(name: &str) -> serde_json::Value {
    serde_json::from_slice(&bytes_of(name)).unwrap()
}
