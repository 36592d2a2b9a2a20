//! The queues of build requests.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Fault;
use crate::cache::{Converter, Kind, ModuleKey, Queue, Token};
use crate::domain::{Location, SpanContext};

/// The queues that `derive` serves.
#[async_trait]
pub trait Queues: Debug + Send + Sync {
    /// Sends any number of messages, visible after `delay` (at most 15 minutes). Messages are sent
    /// in batches, in parallel.
    ///
    /// After an error, some of them may have been sent.
    async fn send(&self, messages: &[QueueMessage], delay: Duration) -> Result<(), Fault>;

    /// Sends a message to the uploads queue, visible after `delay` (at most 15 minutes).
    async fn reconcile(&self, message: &ReconcileMessage, delay: Duration) -> Result<(), Fault>;

    /// Shortens the visibility timeout of a message that could not be processed to `delay`.
    async fn retry_later(&self, received: &Received, delay: Duration) -> Result<(), Fault>;
}

/// A message that a function received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The ARN of the queue that it came from.
    pub queue: String,
    /// The receipt handle of this delivery.
    pub receipt: String,
}

impl Received {
    /// Returns the name of the queue.
    pub fn queue_name(&self) -> &str {
        self.queue.rsplit(':').next().unwrap_or_default()
    }
}

/// Requests to compare the item of a key of the uploads bucket with the bucket, as a lost event
/// would have; or to continue with an upload that one invocation could not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileMessage {
    /// The key. Unlike the keys in S3's events, it is not encoded.
    #[serde(rename = "reconcile")]
    pub key: Location,
    /// How often the message was sent again.
    #[serde(default)]
    pub hops: u32,
    /// The span that sent it; `None` without tracing, and in messages of older releases. Older
    /// releases ignore it.
    #[serde(
        default,
        deserialize_with = "SpanContext::lenient",
        skip_serializing_if = "Option::is_none"
    )]
    pub trace: Option<SpanContext>,
}

impl ReconcileMessage {
    /// Returns a new message for a key of the uploads bucket.
    pub fn of_key(key: impl Into<String>) -> Self {
        Self::new(Location::new(key))
    }

    /// Returns a new message.
    pub fn new(key: Location) -> Self {
        Self {
            key,
            hops: 0,
            trace: None,
        }
    }
}

/// Requests the derived caches of modules. The release that serves it decides which version to
/// make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueMessage {
    /// The schema of this message: the lowest whose releases can process it.
    ///
    /// - 1: one module.
    /// - 2: further modules of the same scope and source.
    pub schema: u32,
    /// The queue that the message waits in.
    #[serde(rename = "lane")]
    pub queue: Queue,
    /// The module.
    #[serde(flatten)]
    pub module: ModuleKey,
    /// The kinds.
    pub kinds: Vec<Kind>,
    /// The id of the build request that the message belongs to.
    #[serde(rename = "ask")]
    pub build_request: Token,
    /// The lowest converter that may process the message.
    pub min_converter: Converter,
    /// How often the message was sent again.
    #[serde(default)]
    pub hops: u32,
    /// Further modules, of the same scope and source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<RequestedModule>,
    /// The span that sent it; `None` without tracing, and in messages of older releases. Older
    /// releases ignore it.
    #[serde(
        default,
        deserialize_with = "SpanContext::lenient",
        skip_serializing_if = "Option::is_none"
    )]
    pub trace: Option<SpanContext>,
}

/// The minimum requirements of a [`QueueMessage`]. Messages of every schema contain these fields in
/// this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Needs {
    /// The schema of the message.
    pub schema: u32,
    /// The lowest converter that may process the message.
    pub min_converter: Converter,
}

impl Needs {
    fn exceed_this_release(self) -> bool {
        self.schema > QueueMessage::SCHEMA || self.min_converter > Converter::CURRENT
    }
}

/// A [`QueueMessage`] that was parsed as far as possible.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all messages are of the large variant"
)]
pub enum ReadMessage {
    /// A message. If its requirements exceed those of the code that read it, it is sent again.
    Message(QueueMessage),
    /// The requirements of a message that only newer code can parse. Without its content, it cannot
    /// be sent again, so the function fails it, and SQS delivers it again.
    Newer(Needs),
}

/// A module whose derived caches are requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedModule {
    /// The module, as in [`ModuleKey::id`].
    pub module: String,
    /// The kinds.
    pub kinds: Vec<Kind>,
    /// The id of the build request that this belongs to.
    #[serde(rename = "ask")]
    pub build_request: Token,
}

impl QueueMessage {
    /// The newest schema that this release reads and writes.
    pub const SCHEMA: u32 = 2;

    /// The maximum number of modules in one message: a symbol server is called for all of them with
    /// one permit.
    pub const MAX_MODULES: usize = 10;

    /// Returns the first module for logs: the id that uploads are filed under, or an id of a query
    /// to a symbol server. The address of a source file may contain credentials, and is left out.
    pub fn subject(&self) -> String {
        let Some(sought) = self.module.sought() else {
            return self.module.id.clone();
        };
        let debug_id = sought.debug_id.map(|id| format!("debug_id:{id}"));
        let code_id = || sought.code_id.map(|id| format!("code_id:{id}"));
        let name = || Some(sought.locations.first()?.1.file_name());
        debug_id.or_else(code_id).or_else(name).unwrap_or_default()
    }

    /// Returns a message that requires the sender's converter.
    pub fn new(
        queue: Queue,
        module: ModuleKey,
        kinds: Vec<Kind>,
        build_request: Token,
        min_converter: Converter,
    ) -> Self {
        Self {
            schema: 1,
            queue,
            module,
            kinds,
            build_request,
            min_converter,
            hops: 0,
            further: Vec::new(),
            trace: None,
        }
    }

    /// Parses a message.
    ///
    /// # Errors
    ///
    /// The JSON is not a message, or one that this release should be able to parse.
    pub fn read(json: Value) -> Result<ReadMessage, serde_json::Error> {
        let needs = Needs::deserialize(&json)?;
        match serde_json::from_value(json) {
            Ok(message) => Ok(ReadMessage::Message(message)),
            // It may have a kind, a queue or a form that only a newer release knows.
            Err(_) if needs.exceed_this_release() => Ok(ReadMessage::Newer(needs)),
            Err(error) => Err(error),
        }
    }

    /// Adds a module of the same scope and source.
    pub fn add(&mut self, requested: RequestedModule) {
        self.schema = 2;
        self.further.push(requested);
    }

    /// Returns one message per module.
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
            trace: self.trace,
        });
        std::iter::once(first).chain(further)
    }
}
