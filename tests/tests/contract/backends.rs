//! The stores on which the contracts are tested.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use bytes::Bytes;
use local_stack::database::Database;
use local_stack::identity::LOCAL;
use local_stack::meter::Meter;
use local_stack::queues::{QueueSpec, Queues};
use local_stack::{dynamodb, s3, sqs};
use symdepot::adapters::aws::{AwsClients, DynamoRecords, QueueUrls, S3Blobs, S3Difs};
use symdepot::adapters::memory::{MemoryBlobs, MemoryDifs, MemoryRecords};
use symdepot::domain::Location;
use symdepot::ports::{DifListing, DifReader};
use symdepot_tests::contract::blobs::Blobs;
use symdepot_tests::contract::difs::Uploads;
use symdepot_tests::contract::records::Records;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The kind of store on which a contract is tested.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Memory,
    LocalStack,
    Endpoint,
}

/// A value that must live as long as the tested store.
pub(crate) type Keep = Option<Aws>;

/// Returns an empty store of records; `None` if the place is not available.
pub(crate) async fn records(place: Place) -> Option<(Records, Keep)> {
    let Some(aws) = Aws::of(place).await else {
        return matches!(place, Place::Memory)
            .then(|| (Arc::new(MemoryRecords::new()) as Records, None));
    };
    let table = aws.create_table().await;
    Some((
        Arc::new(DynamoRecords::new(aws.clients.dynamodb.clone(), table)),
        Some(aws),
    ))
}

/// Returns an empty store of blobs; `None` if the place is not available.
pub(crate) async fn blobs(place: Place) -> Option<(Blobs, Keep)> {
    let Some(aws) = Aws::of(place).await else {
        return matches!(place, Place::Memory)
            .then(|| (Arc::new(MemoryBlobs::new()) as Blobs, None));
    };
    let bucket = aws.create_bucket().await;
    Some((
        Arc::new(S3Blobs::new(aws.clients.s3.clone(), bucket)),
        Some(aws),
    ))
}

/// Returns an empty source; `None` if the place is not available.
pub(crate) async fn difs(place: Place) -> Option<(AnyUploads, Keep)> {
    let Some(aws) = Aws::of(place).await else {
        return matches!(place, Place::Memory)
            .then(|| (AnyUploads::Memory(MemoryDifs::new()), None));
    };
    let bucket = aws.create_bucket().await;
    let client = aws.clients.s3.clone();
    let difs = S3Difs::new(client.clone(), &bucket);
    Some((
        AnyUploads::S3 {
            client,
            bucket,
            difs,
        },
        Some(aws),
    ))
}

/// AWS, or an implementation of its protocols.
pub(crate) struct Aws {
    pub(crate) clients: AwsClients,
    /// The address of S3.
    pub(crate) s3: String,
    local: Option<Local>,
}

/// The endpoints of the local stack. They end with the test.
struct Local {
    queues: Queues,
    sqs: String,
    _tasks: JoinSet<()>,
    _folder: TempDir,
}

impl Aws {
    async fn of(place: Place) -> Option<Self> {
        match place {
            Place::Memory => None,
            Place::LocalStack => Some(Self::on_the_local_stack().await),
            Place::Endpoint => Self::on_the_endpoint().await,
        }
    }

    pub(crate) async fn on_the_local_stack() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(folder.path()).unwrap();
        let queues = Queues::new(database.clone());
        let store = s3::Store::open(folder.path(), database, queues.clone(), Vec::new())
            .await
            .unwrap();
        let tables = dynamodb::Tables::open(folder.path()).await.unwrap();
        let meter = Meter::default();
        let mut tasks = JoinSet::new();
        let (listener, s3_url) = listen().await;
        tasks.spawn(s3::serve(
            listener,
            store,
            meter.clone(),
            std::future::pending(),
        ));
        let (listener, dynamodb_url) = listen().await;
        tasks.spawn(dynamodb::serve(
            listener,
            tables,
            meter.clone(),
            std::future::pending(),
        ));
        let (listener, sqs_url) = listen().await;
        tasks.spawn(sqs::serve(
            listener,
            queues.clone(),
            meter,
            std::future::pending(),
        ));
        let clients = AwsClients {
            s3: clients(&s3_url, LOCAL.secret_access_key).await.s3,
            dynamodb: clients(&dynamodb_url, LOCAL.secret_access_key)
                .await
                .dynamodb,
            sqs: clients(&sqs_url, LOCAL.secret_access_key).await.sqs,
        };
        Self {
            clients,
            s3: s3_url,
            local: Some(Local {
                queues,
                sqs: sqs_url,
                _tasks: tasks,
                _folder: folder,
            }),
        }
    }

    pub(crate) async fn on_the_endpoint() -> Option<Self> {
        let url = std::env::var("SYMDEPOT_TEST_ENDPOINT").ok()?;
        Some(Self {
            clients: clients(&url, LOCAL.secret_access_key).await,
            s3: url,
            local: None,
        })
    }

    /// Returns a client of the same S3 endpoint that signs with this secret.
    pub(crate) async fn s3_signed_with(&self, secret: &str) -> aws_sdk_s3::Client {
        clients(&self.s3, secret).await.s3
    }

    /// Creates a table like the one in `infra/template.yaml`.
    pub(crate) async fn create_table(&self) -> String {
        let name = unique("records");
        let mut create = self
            .clients
            .dynamodb
            .create_table()
            .table_name(&name)
            .billing_mode(BillingMode::PayPerRequest);
        for (attribute, role) in [("partition", KeyType::Hash), ("sort", KeyType::Range)] {
            let definition = AttributeDefinition::builder()
                .attribute_name(attribute)
                .attribute_type(ScalarAttributeType::S);
            let key = KeySchemaElement::builder()
                .attribute_name(attribute)
                .key_type(role);
            create = create
                .attribute_definitions(definition.build().unwrap())
                .key_schema(key.build().unwrap());
        }
        create.send().await.unwrap();
        name
    }

    pub(crate) async fn create_bucket(&self) -> String {
        let name = unique("bucket");
        self.clients
            .s3
            .create_bucket()
            .bucket(&name)
            .send()
            .await
            .unwrap();
        name
    }

    /// Creates three queues.
    pub(crate) async fn create_queues(&self) -> QueueUrls {
        let mut urls = Vec::new();
        for queue in ["eager", "uploads", "refresh"] {
            let name = unique(queue);
            urls.push(match &self.local {
                Some(local) => {
                    local.queues.create(QueueSpec::named(&name)).await.unwrap();
                    format!("{}/{}/{name}", local.sqs, local_stack::identity::ACCOUNT)
                }
                None => {
                    let created = self
                        .clients
                        .sqs
                        .create_queue()
                        .queue_name(&name)
                        .send()
                        .await
                        .unwrap();
                    created.queue_url.unwrap()
                }
            });
        }
        let [eager, uploads, refresh] = urls.try_into().unwrap();
        QueueUrls {
            eager,
            uploads,
            refresh,
        }
    }
}

/// Returns the product's clients for an endpoint.
pub(crate) async fn clients(url: &str, secret: &str) -> AwsClients {
    let config = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(
            LOCAL.access_key_id,
            secret,
            None,
            None,
            "test",
        ))
        .endpoint_url(url)
        .load()
        .await;
    AwsClients::from_sdk_config(&config)
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Returns a name that no other test and no earlier run on the same endpoint uses.
fn unique(name: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let run = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    format!("{name}-{run}-{number}")
}

/// A source into which tests can put DIFs.
pub(crate) enum AnyUploads {
    Memory(MemoryDifs),
    S3 {
        client: aws_sdk_s3::Client,
        bucket: String,
        difs: S3Difs,
    },
}

#[async_trait]
impl Uploads for AnyUploads {
    fn reader(&self) -> &dyn DifReader {
        match self {
            Self::Memory(difs) => difs,
            Self::S3 { difs, .. } => difs,
        }
    }

    fn listing(&self) -> &dyn DifListing {
        match self {
            Self::Memory(difs) => difs,
            Self::S3 { difs, .. } => difs,
        }
    }

    async fn put(&self, location: &str, body: Bytes) {
        match self {
            Self::Memory(difs) => drop(difs.put(&Location::new(location), body)),
            Self::S3 { client, bucket, .. } => {
                client
                    .put_object()
                    .bucket(bucket)
                    .key(location)
                    .body(body.into())
                    .send()
                    .await
                    .unwrap();
            }
        }
    }

    async fn remove(&self, location: &str) {
        match self {
            Self::Memory(difs) => difs.remove(&Location::new(location)),
            Self::S3 { client, bucket, .. } => {
                client
                    .delete_object()
                    .bucket(bucket)
                    .key(location)
                    .send()
                    .await
                    .unwrap();
            }
        }
    }
}
