//! The queues of builds.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::cache::{Converter, Kind, Lane, ModuleKey, Token};
use crate::domain::Location;

/// The queues that `derive` serves.
#[async_trait]
pub trait Lanes: Debug + Send + Sync {
    /// Sends a message, to be seen after `delay` (at most 15 minutes).
    async fn send(&self, message: &LaneMessage, delay: Duration) -> Result<(), StoreError>;

    /// Sends a message to the uploads lane, to be seen at once.
    async fn reconcile(&self, message: &ReconcileMessage) -> Result<(), StoreError>;
}

/// Asks to compare what is known of a key of the uploads bucket with what is there, as its lost event would have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileMessage {
    /// The key, as it is: not encoded as those of S3's events are.
    pub reconcile: Location,
}

/// Asks for the derived caches of a module. The newest build decides which version to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneMessage {
    /// The schema of this message: 1.
    pub schema: u32,
    /// The queue that it waits in.
    pub lane: Lane,
    /// Whose caches.
    #[serde(flatten)]
    pub module: ModuleKey,
    /// Which kinds.
    pub kinds: Vec<Kind>,
    /// The ask that it answers.
    pub ask: Token,
    /// The least converter that may serve it.
    pub min_converter: Converter,
}

impl LaneMessage {
    /// The schema that this build reads and writes.
    pub const SCHEMA: u32 = 1;

    /// Returns a message that any build which can do what this one can may serve.
    pub fn new(lane: Lane, module: ModuleKey, kinds: Vec<Kind>, ask: Token) -> Self {
        Self {
            schema: Self::SCHEMA,
            lane,
            module,
            kinds,
            ask,
            min_converter: Converter::CURRENT,
        }
    }
}
