//! Implementations of the ports on AWS: records in DynamoDB, blobs, uploads and attachments in
//! S3, queues in SQS, secrets in Secrets Manager and SSM, roles by STS.
//!
//! - A lost race is detected from the response to the conditional write, without a second call.
//! - The SDK retries requests. The adapters retry only what the SDK cannot: truncated responses,
//!   keys that a batch left out, and conflicts between conditional writes.
//! - A key is absent only if the response says that the key does not exist. A missing bucket or
//!   table is a fault. So is a 403, which S3 sends for absent keys to callers without
//!   `s3:ListBucket`.
//! - Etags are handled without quotes, as they are in S3's events.

mod attachments;
mod blobs;
mod clients;
mod connections;
mod difs;
mod error;
mod get_object;
mod http_client;
mod queues;
mod record_item;
mod records;
mod roles;
mod secrets;
mod settings;
mod signing;
mod upload_gate;

pub use attachments::S3Attachments;
pub use blobs::S3Blobs;
pub use clients::{AwsClients, AwsEnvironment};
pub use difs::S3Difs;
pub use queues::{QueueUrls, SqsQueues};
pub use records::DynamoRecords;
pub use roles::StsRoles;
pub use secrets::AwsSecrets;
pub use settings::S3Settings;
