//! The queues that build requests wait in.

use serde::{Deserialize, Serialize};

/// A queue of builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// Somebody waits.
    Eager,
    /// Something was uploaded or removed.
    Uploads,
    /// Nobody waits.
    Refresh,
}
