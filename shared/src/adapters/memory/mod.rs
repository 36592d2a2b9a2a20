//! The ports in memory, as honest as their counterparts in AWS: the same contract suite runs on both.
//!
//! They print their whole state as readable text, so that a snapshot of a store *is* the assertion. Revisions are not
//! printed: they are random wherever flows draw them.

mod blobs;
mod calls;
mod difs;
mod queues;
mod records;
mod servers;
mod text;

pub use blobs::MemoryBlobs;
pub use calls::Calls;
pub use difs::MemoryDifs;
pub use queues::{MemoryQueues, SentMessage, SentReconcile};
pub use records::MemoryRecords;
pub use servers::MemoryServers;
