//! The ports on AWS: records in DynamoDB, blobs and uploads in S3, lanes in SQS, secrets in Secrets
//! Manager and SSM.
//!
//! - A lost race is read off the answer to the conditional write; it costs no second call.
//! - Requests are repeated by the SDK alone. What it cannot repeat is repeated here: answers cut short, keys that a
//!   batch left out, and conflicts between conditional writes.
//! - Only an answer that says "there is no such key" makes something absent. A bucket or table that is not there is a
//!   fault, and so is a 403: without `s3:ListBucket` S3 hides what is absent behind it.
//! - Etags are handled without their quotes, as S3's events carry them.

mod blobs;
mod clients;
mod difs;
mod error;
mod get_object;
mod queues;
mod record_item;
mod records;
mod secrets;

pub use blobs::S3Blobs;
pub use clients::AwsClients;
pub use difs::S3Difs;
pub use queues::{QueueUrls, SqsQueues};
pub use records::DynamoRecords;
pub use secrets::AwsSecrets;
