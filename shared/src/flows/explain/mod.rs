//! Explains the state of an upload (`upload`), what requests use of it (`usage`), and the entries
//! that a request for a module would read (`module`). Changes nothing.

mod module;
mod upload;
mod usage;

pub use module::{
    EntryUse, Explained, ExplainedBuildRequest, ExplainedLease, ExplainedPlaceholder,
    ExplainedRecord, ExplainedState,
};
pub use upload::{ExplainedObject, ExplainedUpload};
pub use usage::{CacheOfObject, CacheUsage};
