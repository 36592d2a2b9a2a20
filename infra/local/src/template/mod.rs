//! The SAM template, parsed into the resources that the local stack starts.
//!
//! The parser supports a closed subset: the resource types, properties and intrinsics that
//! `infra/template.yaml` uses. Anything else is an error that names the resource, the property and
//! the line, because an omission that is silent here would only be found in AWS.
//!
//! Some resources and properties are parsed, checked for references to missing resources, and then
//! have no effect: IAM, bucket and queue policies and the API's authorizer (all clients on the
//! loopback interface have all permissions), the API's throttling, a bucket's lifecycle and access
//! block (objects do not expire), log groups, topics, alarms, a function's `RecursiveLoop` (loops
//! of messages are not terminated), the order of `DependsOn`, and everything under `Outputs`.
//!
//! `MachineShares` in the `Metadata` of a function is only for the local stack; CloudFormation and
//! SAM ignore it. Parameters have their defaults. Values that a deployment would set as parameters
//! are set as environment variables here.
//!
//! `ReservedConcurrentExecutions` is only the maximum number of processes of a function. No
//! resources are reserved for it: other functions can use all of the machine's memory and time.

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

/// The resources of a template.
#[derive(Clone, Debug)]
pub struct Template {
    /// The functions, in the template's order.
    pub functions: Vec<Function>,
    /// The buckets.
    pub buckets: Vec<Bucket>,
    /// The tables.
    pub tables: Vec<Table>,
    /// The queues, including dead-letter queues.
    pub queues: Vec<Queue>,
    /// The local name of the function of the HTTP API, if the template has one.
    pub http_api: Option<String>,
    /// The schedules.
    pub schedules: Vec<Schedule>,
}

/// A function: how to start its processes, and the queues that invoke it.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name in the template.
    pub logical_id: String,
    /// Its binary (`Metadata.BuildProperties.Binary`), which is also its name on the local stack.
    pub name: String,
    /// Passed to the function and reported, but not enforced.
    pub memory_mb: u64,
    /// The timeout of an invocation.
    pub timeout: Duration,
    /// Without effect: the disk of this machine is the limit.
    pub ephemeral_mb: u64,
    /// The maximum number of simultaneous processes, if it is set.
    pub reserved_concurrency: Option<usize>,
    /// `AWS_LAMBDA_LOG_FORMAT`: `JSON` or `Text`.
    pub log_format: String,
    /// `AWS_LAMBDA_LOG_GROUP_NAME`.
    pub log_group: String,
    /// The template's environment variables.
    pub environment: BTreeMap<String, String>,
    /// The queues whose messages invoke it.
    pub queues: Vec<QueueSource>,
    /// Its variables whose values are shares of the machine.
    pub shares: Vec<MachineShare>,
}

/// A variable whose value is a share of the machine (`Metadata.MachineShares`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineShare {
    /// The variable's name.
    pub variable: String,
    /// The resource.
    pub of: Resource,
    /// The percentage of the resource for all processes of the function together.
    pub percent: u64,
    /// The minimum share in bytes: the number of simultaneous queue events is reduced where a share
    /// would be smaller.
    pub at_least: Option<u64>,
    /// The maximum share in bytes: the variable's own value in the template, which is meant for a
    /// machine of its own. 0: no limit.
    pub most: u64,
}

/// A limited resource of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// Disk.
    Disk,
}

/// A queue whose messages invoke a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSource {
    /// The queue.
    pub queue: String,
    /// The maximum number of messages in one event.
    pub batch_size: usize,
    /// The maximum number of simultaneous events.
    pub maximum_concurrency: Option<usize>,
    /// Whether the function's response lists the messages that failed.
    pub reports_failures: bool,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its name in the template.
    pub logical_id: String,
    /// The bucket's name.
    pub name: String,
    /// Which changes are sent to which queue.
    pub notifications: Vec<Notification>,
}

/// A notification of changes of a bucket to a queue.
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
    /// The visibility timeout of a received message.
    pub visibility_timeout: Duration,
    /// The delay of a sent message.
    pub delay: Duration,
    /// The retention of a message.
    pub retention: Duration,
    /// The dead-letter queue, and how often a message is received before it is moved there.
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

/// An error in a template, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The line, from 1.
    pub line: usize,
    /// The resource and property; empty if there is none.
    pub place: String,
    /// The reason.
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
    /// Returns an error if the file cannot be read, or the error of [`Template::read`]; both name
    /// the file.
    pub fn load(path: &Path, sqs_endpoint: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the template {}: {error}", path.display()))?;
        Self::read(&text, sqs_endpoint).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Parses a template. A `Ref` of a queue becomes its URL under `sqs_endpoint`
    /// (`http://127.0.0.1:3024`).
    ///
    /// # Errors
    /// Returns an error if the text is not YAML, refers to something that does not exist, or uses
    /// something that the local stack does not support.
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
                        format!("DependsOn {dependency}: it is not a resource of this template");
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
                            "its binary {} is also the binary of {}",
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
                            format!("{} is already a share of another function", share.variable);
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

    /// Returns the function with this binary or logical id.
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
                    "RedrivePolicy refers to {dead_letters}, which is not a queue of this template"
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
                    "NotificationConfiguration refers to {}, which is not a queue of this template",
                    unknown.queue
                );
                return Err(TemplateError::new(0, &bucket.logical_id, message));
            }
        }
        Ok(())
    }
}

/// Returns the ARN of the function `name` in the local stack.
pub fn function_arn(name: &str) -> String {
    format!(
        "arn:aws:lambda:{}:{}:function:{name}",
        identity::REGION,
        identity::ACCOUNT
    )
}

/// Returns the ARN of the queue `name`.
pub fn queue_arn(name: &str) -> String {
    format!(
        "arn:aws:sqs:{}:{}:{name}",
        identity::REGION,
        identity::ACCOUNT
    )
}

/// Returns the name in a queue's ARN.
fn queue_of_arn(arn: &str) -> Option<String> {
    arn.strip_prefix(&queue_arn("")).map(str::to_owned)
}
