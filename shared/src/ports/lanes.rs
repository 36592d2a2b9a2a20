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
    /// Sends messages, to be seen after `delay` (at most 15 minutes). Any number: they travel in batches, side by side.
    ///
    /// After an error some of them may have been sent.
    async fn send(&self, messages: &[LaneMessage], delay: Duration) -> Result<(), StoreError>;

    /// Sends a message to the uploads lane, to be seen after `delay` (at most 15 minutes).
    async fn reconcile(
        &self,
        message: &ReconcileMessage,
        delay: Duration,
    ) -> Result<(), StoreError>;
}

/// Asks to compare what is known of a key of the uploads bucket with what is there, as its lost event would have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileMessage {
    /// The key, as it is: not encoded as those of S3's events are.
    pub reconcile: Location,
    /// How often it was sent again.
    #[serde(default)]
    pub hops: u32,
}

/// Asks for the derived caches of modules. The newest build decides which version to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneMessage {
    /// The schema of this message: the least whose builds can serve it.
    ///
    /// - 1: one module.
    /// - 2: further modules of the same scope and source.
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
    /// How often it was sent again.
    #[serde(default)]
    pub hops: u32,
    /// Further modules, of the same scope and source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<AskedModule>,
}

/// A module whose derived caches are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedModule {
    /// The module, as [`ModuleKey::module`] has it.
    pub module: String,
    /// Which kinds.
    pub kinds: Vec<Kind>,
    /// The ask that this answers.
    pub ask: Token,
}

impl LaneMessage {
    /// The newest schema that this build reads and writes.
    pub const SCHEMA: u32 = 2;

    /// The most modules of one message: a visit asks a symbol server for all of them.
    pub const MAX_MODULES: usize = 10;

    /// Returns a message that any build which can do what this one can may serve.
    pub fn new(lane: Lane, module: ModuleKey, kinds: Vec<Kind>, ask: Token) -> Self {
        Self {
            schema: 1,
            lane,
            module,
            kinds,
            ask,
            min_converter: Converter::CURRENT,
            hops: 0,
            further: Vec::new(),
        }
    }

    /// Adds a module of the same scope and source.
    pub fn add(&mut self, asked: AskedModule) {
        self.schema = 2;
        self.further.push(asked);
    }

    /// Returns a message for each module that it asks for.
    pub fn each(&self) -> impl Iterator<Item = Self> + '_ {
        let first = Self {
            schema: 1,
            further: Vec::new(),
            ..self.clone()
        };
        let further = self.further.iter().map(move |asked| Self {
            schema: 1,
            lane: self.lane,
            module: ModuleKey {
                module: asked.module.clone(),
                ..self.module.clone()
            },
            kinds: asked.kinds.clone(),
            ask: asked.ask.clone(),
            min_converter: self.min_converter,
            hops: self.hops,
            further: Vec::new(),
        });
        std::iter::once(first).chain(further)
    }
}
