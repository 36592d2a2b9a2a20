//! The SAM template, read into what the local stack has to start.
//!
//! It understands a closed subset: the resource types, properties and intrinsics that `infra/template.yaml` uses. Anything else
//! is an error that names the resource, the property and the line, because what is silently left out here would be found in AWS.
//!
//! Some things are read, checked for references to resources that do not exist, and then have no effect here: IAM, bucket and queue
//! policies and the API's authorizer (everybody on the loopback interface is allowed everything), the API's throttling, a bucket's
//! lifecycle and access block (nothing expires), log groups, topics, alarms, a function's `RecursiveLoop` (no chain of messages is
//! ended here), the order of `DependsOn`, and everything under `Outputs`.
//!
//! `MachineShares` in the `Metadata` of a function is for the local stack alone: CloudFormation and SAM pass it by.
//! Parameters have their defaults: what else a deployment gives them is given here by the environment.
//!
//! `ReservedConcurrentExecutions` is here only the most processes of a function. Nothing is set aside for it: other functions can
//! take this machine's memory and time.

mod conditions;
mod fields;
mod function;
mod intrinsics;
mod node;
mod resources;
mod storage;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use fields::Fields;
use intrinsics::{Identities, resolve};
use node::Node;
use resources::{Kind, declare, identify, without_effect};

use crate::identity;

/// What a template asks for.
#[derive(Clone, Debug)]
pub struct Template {
    /// The functions, in the template's order.
    pub functions: Vec<Function>,
    /// The buckets.
    pub buckets: Vec<Bucket>,
    /// The tables.
    pub tables: Vec<Table>,
    /// The queues, dead-letter queues among them.
    pub queues: Vec<Queue>,
    /// The local name of the function that answers the HTTP API, if the template has one.
    pub http_api: Option<String>,
    /// The schedules.
    pub schedules: Vec<Schedule>,
}

/// A function: how to start its processes, and which queues feed it.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name in the template.
    pub logical_id: String,
    /// Its binary (`Metadata.BuildProperties.Binary`), which is also its name on the local stack.
    pub name: String,
    /// Told to the function and reported; not enforced.
    pub memory_mb: u64,
    /// When an invocation is killed.
    pub timeout: Duration,
    /// Told nobody: the disk of this machine is the limit.
    pub ephemeral_mb: u64,
    /// How many processes may work at the same time.
    pub reserved_concurrency: Option<usize>,
    /// `AWS_LAMBDA_LOG_FORMAT`: `JSON` or `Text`.
    pub log_format: String,
    /// `AWS_LAMBDA_LOG_GROUP_NAME`.
    pub log_group: String,
    /// The template's environment variables.
    pub environment: BTreeMap<String, String>,
    /// The queues whose messages it gets.
    pub queues: Vec<QueueSource>,
    /// Its variables that say what one of its processes may take of the machine that all share.
    pub shares: Vec<MachineShare>,
}

/// A variable that says how much of a machine one process of a function may take (`Metadata.MachineShares`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineShare {
    /// The variable's name.
    pub variable: String,
    /// What it is a share of.
    pub of: Resource,
    /// What all processes of the function together get of that, in percent.
    pub percent: u64,
    /// The bytes below which fewer events of queues are worked on at the same time, rather than less given to each.
    pub at_least: Option<u64>,
    /// The most that one process gets, in bytes: the variable's own value in the template, which is what it is on a machine
    /// of its own. 0: no limit.
    pub most: u64,
}

/// What a machine has a limited amount of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// Disk.
    Disk,
}

/// Messages of a queue invoke a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSource {
    /// The queue.
    pub queue: String,
    /// Most messages of one event.
    pub batch_size: usize,
    /// Most events at the same time.
    pub maximum_concurrency: Option<usize>,
    /// Whether the function's answer names the messages that failed.
    pub reports_failures: bool,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its name in the template.
    pub logical_id: String,
    /// Its own name.
    pub name: String,
    /// Which changes are told to which queue.
    pub notifications: Vec<Notification>,
}

/// Changes of a bucket go to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// `s3:ObjectCreated:*`, `s3:ObjectRemoved:*`, or one kind of these.
    pub event: String,
    /// The queue.
    pub queue: String,
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name, here and in the template.
    pub name: String,
    /// The resource's CloudFormation properties, without intrinsics.
    pub properties: serde_json::Value,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name, here and in the template.
    pub name: String,
    /// How long a received message stays unseen.
    pub visibility_timeout: Duration,
    /// How long a sent message stays unseen.
    pub delay: Duration,
    /// How long a message is kept.
    pub retention: Duration,
    /// The dead-letter queue, and how often a message is received before it goes there.
    pub redrive: Option<(String, u32)>,
}

/// A function that is invoked at intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The event's name in the template.
    pub name: String,
    /// The function.
    pub function: String,
    /// The time between two invocations.
    pub every: Duration,
}

/// What is wrong with a template, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The line, from 1.
    pub line: usize,
    /// The resource and property; empty where there is none.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

impl TemplateError {
    fn new(line: usize, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            line,
            place: place.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.as_str() {
            "" => write!(formatter, "line {}: {}", self.line, self.message),
            place => write!(formatter, "line {}, {place}: {}", self.line, self.message),
        }
    }
}

impl std::error::Error for TemplateError {}

impl Template {
    /// Reads the template at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or see [`Template::read`]; both name the file.
    pub fn load(path: &Path, sqs_endpoint: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the template {}: {error}", path.display()))?;
        Self::read(&text, sqs_endpoint).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads a template. A `Ref` of a queue becomes its URL under `sqs_endpoint` (`http://127.0.0.1:3024`).
    ///
    /// # Errors
    /// It is not YAML, refers to something that is not there, or asks for something that the local stack does not know.
    pub fn read(text: &str, sqs_endpoint: &str) -> Result<Self, TemplateError> {
        let mut root = Fields::of(conditions::decide(Node::read(text)?)?, "")?;
        root.text("AWSTemplateFormatVersion")?;
        root.text("Description")?;
        root.choice("Transform", &["AWS::Serverless-2016-10-31"])?;
        let mut globals = root.map("Globals")?;
        let outputs = root.take("Outputs");
        let resources = root.map("Resources")?;
        root.end()?;

        let declared = resources
            .rest()
            .into_iter()
            .map(declare)
            .collect::<Result<Vec<_>, _>>()?;
        let identities: Identities = declared
            .iter()
            .map(|resource| Ok((resource.id.clone(), identify(resource, sqs_endpoint)?)))
            .collect::<Result<_, TemplateError>>()?;

        let defaults = match globals.take("Function") {
            Some(node) => Some(resolve(&node, &identities, "Globals.Function")?),
            None => None,
        };
        globals.end()?;
        if let Some(outputs) = outputs {
            resolve(&outputs, &identities, "Outputs")?;
        }

        let mut template = Self {
            functions: Vec::new(),
            buckets: Vec::new(),
            tables: Vec::new(),
            queues: Vec::new(),
            http_api: None,
            schedules: Vec::new(),
        };
        let mut events = Vec::new();
        for resource in declared {
            let place = resource.id.clone();
            for dependency in &resource.depends_on {
                if !identities.contains_key(dependency) {
                    let message =
                        format!("DependsOn {dependency}, which is not a resource of this template");
                    return Err(TemplateError::new(resource.line, place, message));
                }
            }
            let properties = resolve(&resource.properties, &identities, &place)?;
            match resource.kind {
                Kind::Bucket => {
                    template
                        .buckets
                        .push(storage::bucket(&place, properties, &identities)?)
                }
                Kind::Table => template.tables.push(storage::table(&place, properties)?),
                Kind::Queue => template.queues.push(storage::queue(&place, properties)?),
                Kind::WithoutEffect { known } => without_effect(&place, properties, known)?,
                Kind::HttpApi => function::http_api(&place, properties)?,
                Kind::Function { binary, shares } => {
                    let (mut function, its_events) =
                        function::function(&place, binary, properties, defaults.clone())?;
                    function.shares = function::machine_shares(&place, shares, &function)?;
                    if let Some(other) = template
                        .functions
                        .iter()
                        .find(|other| other.name == function.name)
                    {
                        let message = format!(
                            "its binary {} is that of {} too",
                            function.name, other.logical_id
                        );
                        return Err(TemplateError::new(resource.line, place, message));
                    }
                    let claimed = |share: &&MachineShare| {
                        let mut others = template.functions.iter();
                        others.any(|other| {
                            other
                                .shares
                                .iter()
                                .any(|one| one.variable == share.variable)
                        })
                    };
                    if let Some(share) = function.shares.iter().find(claimed) {
                        let message =
                            format!("{} is a share of another function, too", share.variable);
                        return Err(TemplateError::new(resource.line, place, message));
                    }
                    events.push((template.functions.len(), its_events));
                    template.functions.push(function);
                }
            }
        }
        for (index, its_events) in events {
            function::wire(&mut template, index, its_events)?;
        }
        template.check_queues()?;
        Ok(template)
    }

    /// The function that is called `name`, by its binary or its logical id.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions
            .iter()
            .find(|function| function.name == name || function.logical_id == name)
    }

    fn check_queues(&self) -> Result<(), TemplateError> {
        let known = |name: &str| self.queues.iter().any(|queue| queue.name == name);
        for queue in &self.queues {
            if let Some((dead_letters, _)) = &queue.redrive
                && !known(dead_letters)
            {
                let message = format!(
                    "RedrivePolicy names {dead_letters}, which is not a queue of this template"
                );
                return Err(TemplateError::new(0, &queue.name, message));
            }
        }
        for bucket in &self.buckets {
            if let Some(unknown) = bucket
                .notifications
                .iter()
                .find(|notification| !known(&notification.queue))
            {
                let message = format!(
                    "NotificationConfiguration names {}, which is not a queue",
                    unknown.queue
                );
                return Err(TemplateError::new(0, &bucket.logical_id, message));
            }
        }
        Ok(())
    }
}

/// The ARN of the function that is called `name` on the local stack.
pub fn function_arn(name: &str) -> String {
    format!(
        "arn:aws:lambda:{}:{}:function:{name}",
        identity::REGION,
        identity::ACCOUNT
    )
}

/// The ARN of the queue that is called `name`.
pub fn queue_arn(name: &str) -> String {
    format!(
        "arn:aws:sqs:{}:{}:{name}",
        identity::REGION,
        identity::ACCOUNT
    )
}

/// The name in a queue's ARN.
fn queue_of_arn(arn: &str) -> Option<String> {
    arn.strip_prefix(&queue_arn("")).map(str::to_owned)
}
