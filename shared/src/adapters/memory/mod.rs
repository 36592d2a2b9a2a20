//! In-memory implementations of the ports. The contract suite that runs on AWS runs on them as
//! well.
//!
//! They print their whole state as readable text, so that a snapshot of a store *is* the assertion.
//! Revisions are not printed, because flows draw them at random.

mod attachments;
mod blobs;
mod calls;
mod difs;
mod queues;
mod records;
mod servers;
mod text;

pub use attachments::{MemoryAttachments, MemoryRemoteFiles};
pub use blobs::MemoryBlobs;
pub use calls::Calls;
pub use difs::MemoryDifs;
pub use queues::{MemoryQueues, SentMessage, SentReconcile};
pub use records::MemoryRecords;
pub use servers::MemoryServers;
