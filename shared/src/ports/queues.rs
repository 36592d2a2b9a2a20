//! The queues of builds.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Fault;
use crate::cache::{Converter, Kind, ModuleKey, Queue, Token};
use crate::domain::Location;

/// The queues that `derive` serves.
#[async_trait]
pub trait Queues: Debug + Send + Sync {
    /// Sends messages, to be seen after `delay` (at most 15 minutes). Any number: they travel in batches, side by side.
    ///
    /// After an error some of them may have been sent.
    async fn send(&self, messages: &[QueueMessage], delay: Duration) -> Result<(), Fault>;

    /// Sends a message to the uploads lane, to be seen after `delay` (at most 15 minutes).
    async fn reconcile(&self, message: &ReconcileMessage, delay: Duration) -> Result<(), Fault>;

    /// Lets a message that could not be served be seen again after `delay`, instead of after the
    /// whole time that its queue keeps a message invisible.
    async fn retry_later(&self, received: &Received, delay: Duration) -> Result<(), Fault>;
}

/// A message that a function received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The ARN of the queue that it came from.
    pub queue: String,
    /// What names this delivery of it to the queue.
    pub receipt: String,
}

impl Received {
    /// Returns the name of the queue.
    pub fn queue_name(&self) -> &str {
        self.queue.rsplit(':').next().unwrap_or_default()
    }
}

/// Asks to compare what is known of a key of the uploads bucket with what is there, as its lost
/// event would have; or to go on with an upload for which one invocation was too short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileMessage {
    /// The key, as it is: not encoded as those of S3's events are.
    pub reconcile: Location,
    /// How often it was sent again.
    #[serde(default)]
    pub hops: u32,
}

impl ReconcileMessage {
    /// Returns a message that begins.
    pub fn new(key: Location) -> Self {
        Self {
            reconcile: key,
            hops: 0,
        }
    }
}

/// Asks for the derived caches of modules. The newest build decides which version to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueMessage {
    /// The schema of this message: the least whose builds can serve it.
    ///
    /// - 1: one module.
    /// - 2: further modules of the same scope and source.
    pub schema: u32,
    /// The queue that it waits in.
    #[serde(rename = "lane")]
    pub queue: Queue,
    /// Whose caches.
    #[serde(flatten)]
    pub module: ModuleKey,
    /// Which kinds.
    pub kinds: Vec<Kind>,
    /// The ask that it answers.
    #[serde(rename = "ask")]
    pub build_request: Token,
    /// The least converter that may serve it.
    pub min_converter: Converter,
    /// How often it was sent again.
    #[serde(default)]
    pub hops: u32,
    /// Further modules, of the same scope and source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<RequestedModule>,
}

/// What a build must be able to do to serve a [`QueueMessage`]. Messages of every schema say so, in
/// this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Needs {
    /// The schema of the message.
    pub schema: u32,
    /// The least converter that may serve it.
    pub min_converter: Converter,
}

impl Needs {
    fn exceed_this_build(self) -> bool {
        self.schema > QueueMessage::SCHEMA || self.min_converter > Converter::CURRENT
    }
}

/// A module whose derived caches are requested for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedModule {
    /// The module, as [`ModuleKey::module`] has it.
    pub module: String,
    /// Which kinds.
    pub kinds: Vec<Kind>,
    /// The ask that this answers.
    #[serde(rename = "ask")]
    pub build_request: Token,
}

impl QueueMessage {
    /// The newest schema that this build reads and writes.
    pub const SCHEMA: u32 = 2;

    /// The most modules of one message: a visit asks a symbol server for all of them.
    pub const MAX_MODULES: usize = 10;

    /// Returns a message that any build which can do what this one can may serve.
    pub fn new(queue: Queue, module: ModuleKey, kinds: Vec<Kind>, build_request: Token) -> Self {
        Self {
            schema: 1,
            queue,
            module,
            kinds,
            build_request,
            min_converter: Converter::CURRENT,
            hops: 0,
            further: Vec::new(),
        }
    }

    /// Reads a message; returns what it needs where this build can neither serve nor read it.
    ///
    /// # Errors
    ///
    /// JSON that is no message of any build that this one is to know.
    pub fn read(json: Value) -> Result<Result<Self, Needs>, serde_json::Error> {
        let needs = Needs::deserialize(&json)?;
        match serde_json::from_value(json) {
            Ok(message) => Ok(Ok(message)),
            // It may have a kind, a lane or a form that only a newer build knows.
            Err(_) if needs.exceed_this_build() => Ok(Err(needs)),
            Err(error) => Err(error),
        }
    }

    /// Adds a module of the same scope and source.
    pub fn add(&mut self, requested: RequestedModule) {
        self.schema = 2;
        self.further.push(requested);
    }

    /// Returns a message for each module that it asks for.
    pub fn each(&self) -> impl Iterator<Item = Self> + '_ {
        let first = Self {
            schema: 1,
            further: Vec::new(),
            ..self.clone()
        };
        let further = self.further.iter().map(move |requested| Self {
            schema: 1,
            queue: self.queue,
            module: ModuleKey {
                id: requested.module.clone(),
                ..self.module.clone()
            },
            kinds: requested.kinds.clone(),
            build_request: requested.build_request.clone(),
            min_converter: self.min_converter,
            hops: self.hops,
            further: Vec::new(),
        });
        std::iter::once(first).chain(further)
    }
}
