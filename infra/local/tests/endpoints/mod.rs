//! Endpoints with their own ports and data folders, and real clients for them.

#![expect(dead_code, reason = "each test file uses the part that it needs")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use local_stack::clock::Clock;
use local_stack::database::Database;
use local_stack::identity::{KeyPair, LOCAL};
use local_stack::meter::Meter;
use local_stack::queues::{QueueSpec, Queues};
use local_stack::s3::{Notification, Store};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The bucket that sends events to the queue [`ORDERS`].
pub(crate) const UPLOADS: &str = "uploads";

/// A bucket that sends no events.
pub(crate) const CACHES: &str = "caches";

/// The queue for the events of [`UPLOADS`].
pub(crate) const ORDERS: &str = "orders";

/// A clock that tests control.
#[derive(Clone, Debug)]
pub(crate) struct TestClock(Arc<AtomicI64>);

impl TestClock {
    /// Starts on a fixed day in 2026.
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_780_000_000_000)))
    }

    /// Returns the clock in the form that the queues accept.
    pub(crate) fn clock(&self) -> Clock {
        let time = Arc::clone(&self.0);
        Clock::new(move || time.load(Ordering::SeqCst))
    }

    /// Advances the clock.
    pub(crate) fn pass(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1000, Ordering::SeqCst);
    }
}

/// A running endpoint, closed when dropped.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// `http://127.0.0.1:<port>`.
    pub(crate) url: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Endpoint {
    /// Serves with `serve` on a free port.
    pub(crate) async fn start<F>(serve: impl FnOnce(TcpListener, Shutdown) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(listener, Shutdown(stopped)));
        Self {
            url,
            stop: Some(stop),
            task,
        }
    }

    /// Stops the endpoint as a stack does.
    pub(crate) async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Endpoint {
    /// Aborts the endpoint, as if its process were killed.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Resolves when the endpoint must stop.
#[derive(Debug)]
pub(crate) struct Shutdown(oneshot::Receiver<()>);

impl Shutdown {
    /// Waits for the stop.
    pub(crate) async fn wait(self) {
        let _ = self.0.await;
    }
}

/// S3 over a data folder, with a queue for the events of [`UPLOADS`].
#[derive(Debug)]
pub(crate) struct S3 {
    /// The endpoint.
    pub(crate) endpoint: Endpoint,
    /// The counters of its calls.
    pub(crate) meter: Meter,
    /// Its queues.
    pub(crate) queues: Queues,
    /// Its store.
    pub(crate) store: Store,
    folder: PathBuf,
    owned: Option<TempDir>,
}

impl S3 {
    /// Starts on an empty folder.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut s3 = Self::on(folder.path()).await;
        s3.owned = Some(folder);
        s3
    }

    /// Starts on a folder that may have been used before.
    pub(crate) async fn on(folder: &Path) -> Self {
        let database = Database::open(folder).unwrap();
        let queues = Queues::new(database.clone());
        queues.create(QueueSpec::named(ORDERS)).await.unwrap();
        let notification = Notification {
            bucket: UPLOADS.to_owned(),
            events: vec![
                "s3:ObjectCreated:*".to_owned(),
                "s3:ObjectRemoved:*".to_owned(),
                "s3:LifecycleExpiration:*".to_owned(),
            ],
            prefix: String::new(),
            suffix: String::new(),
            queue: ORDERS.to_owned(),
        };
        let store = Store::open(folder, database, queues.clone(), vec![notification])
            .await
            .unwrap();
        for bucket in [UPLOADS, CACHES] {
            store.create_bucket(bucket).await.unwrap();
        }
        let meter = Meter::default();
        let (served, counted) = (store.clone(), meter.clone());
        let endpoint = Endpoint::start(|listener, shutdown| {
            local_stack::s3::serve(listener, served, counted, shutdown.wait())
        })
        .await;
        Self {
            endpoint,
            meter,
            queues,
            store,
            folder: folder.to_owned(),
            owned: None,
        }
    }

    /// Returns a client that signs with the public keys.
    pub(crate) fn client(&self) -> aws_sdk_s3::Client {
        s3_client(&self.endpoint.url, LOCAL)
    }

    /// Returns the number of body files.
    pub(crate) fn files(&self) -> usize {
        let bodies = self.folder.join("s3").join("bodies");
        std::fs::read_dir(bodies)
            .unwrap()
            .map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap().count())
            .sum()
    }

    /// Returns the records of the messages about [`UPLOADS`] since the last call.
    pub(crate) async fn events(&self) -> Vec<serde_json::Value> {
        let mut events = Vec::new();
        loop {
            let batch = self.queues.receive(ORDERS, 10, None).await.unwrap();
            if batch.is_empty() {
                return events;
            }
            for message in batch {
                let body: serde_json::Value = serde_json::from_str(&message.body).unwrap();
                events.extend(body["Records"].as_array().unwrap().iter().cloned());
                self.queues.delete(ORDERS, &message.receipt).await.unwrap();
            }
        }
    }
}

/// Returns an S3 client that signs with `keys`.
pub(crate) fn s3_client(url: &str, keys: KeyPair) -> aws_sdk_s3::Client {
    aws_sdk_s3::Client::from_conf(
        aws_sdk_s3::Config::builder()
            .behavior_version(aws_sdk_s3::config::BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .region(aws_sdk_s3::config::Region::new("us-east-1"))
            .credentials_provider(credentials(keys))
            .endpoint_url(url)
            .force_path_style(true)
            .build(),
    )
}

/// Returns an SQS client that signs with the public keys.
pub(crate) fn sqs_client(url: &str) -> aws_sdk_sqs::Client {
    sqs_client_of(url, LOCAL)
}

/// Returns an SQS client that signs with `keys`.
pub(crate) fn sqs_client_of(url: &str, keys: KeyPair) -> aws_sdk_sqs::Client {
    aws_sdk_sqs::Client::from_conf(
        aws_sdk_sqs::Config::builder()
            .behavior_version(aws_sdk_sqs::config::BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .region(aws_sdk_sqs::config::Region::new("us-east-1"))
            .credentials_provider(credentials(keys))
            .endpoint_url(url)
            .build(),
    )
}

/// Returns a DynamoDB client that signs with `keys`.
pub(crate) fn dynamodb_client(url: &str, keys: KeyPair) -> aws_sdk_dynamodb::Client {
    aws_sdk_dynamodb::Client::from_conf(
        aws_sdk_dynamodb::Config::builder()
            .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .region(aws_sdk_dynamodb::config::Region::new("us-east-1"))
            .credentials_provider(credentials(keys))
            .endpoint_url(url)
            .build(),
    )
}

fn credentials(keys: KeyPair) -> aws_sdk_s3::config::Credentials {
    aws_sdk_s3::config::Credentials::new(
        keys.access_key_id,
        keys.secret_access_key,
        None,
        None,
        "test",
    )
}
