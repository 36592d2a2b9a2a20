//! A local AWS stack: the services that a SAM template uses, in one process on one machine.
//!
//! It speaks AWS's own protocols to unmodified clients and keeps all its state in one data folder.
//! It has no code of the product that runs on it: a mistake shared by both would be invisible to
//! every test.

pub mod clock;
pub(crate) mod connections;
pub mod control;
pub mod database;
pub(crate) mod dates;
pub mod dynamodb;
pub(crate) mod endpoint;
pub mod event_sources;
pub mod functions;
pub mod gateway;
pub mod guard;
pub mod iam;
pub mod identity;
pub mod latency;
pub mod meter;
pub mod program;
pub mod queues;
pub mod s3;
pub mod sqs;
pub mod stack;
pub mod template;
