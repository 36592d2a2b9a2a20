//! The resources that a template describes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::iam::Policies;
use crate::identity;

/// The values of a template that are not in it.
#[derive(Clone, Copy, Debug)]
pub struct Deployment<'a> {
    /// The value of `AWS::StackName`.
    pub stack_name: &'a str,
    /// `http://127.0.0.1:3024`: the queues' URLs, which are the values of `Ref`, are below it.
    pub sqs_endpoint: &'a str,
    /// The values of parameters; the others have their defaults.
    pub parameters: &'a BTreeMap<String, String>,
    /// How many invocations the account runs at the same time. If the template has the parameter
    /// [`ACCOUNT_CONCURRENCY`], and no other value is chosen for it, this is its value.
    pub account_concurrency: usize,
}

/// The parameter by which a template knows the limit of its account.
pub const ACCOUNT_CONCURRENCY: &str = "AccountConcurrency";

/// How many invocations an account runs at the same time, unless it is new (AWS Lambda developer
/// guide, "Lambda quotas").
pub const USUAL_CONCURRENCY: usize = 1000;

/// No parameter has a value of its own.
pub static DEFAULTS: BTreeMap<String, String> = BTreeMap::new();

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
    /// The pages that may call the HTTP API from browsers, if there are any.
    pub web_pages: Option<WebPages>,
    /// The schedules.
    pub schedules: Vec<Schedule>,
    /// What the functions' roles, the buckets and the queues allow.
    pub policies: Policies,
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
    /// Whether Lambda lets chains of events invoke it again and again (`RecursiveLoop: Allow`).
    pub allows_recursion: bool,
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
    /// The ARN of its role; without one, SAM generates a role.
    pub role: Option<String>,
}

/// Pages that may call one path of the HTTP API from browsers (`Metadata.WebPages`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebPages {
    /// The end of the path, behind the prefixes that a path may have.
    pub path: String,
    /// The origins of the pages. Pages of this machine may call the path, too.
    pub origins: Vec<String>,
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
    /// machine of its own. 0: no limit, as for `auto`.
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
    /// When its objects and unfinished uploads are removed.
    pub lifecycle: Vec<LifecycleRule>,
}

/// A rule by which objects of a bucket expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleRule {
    /// What the keys begin with; empty for all keys.
    pub prefix: String,
    /// After how many days objects are removed (`ExpirationInDays`).
    pub objects_after_days: Option<u64>,
    /// After how many days unfinished uploads are removed (`DaysAfterInitiation`).
    pub uploads_after_days: Option<u64>,
}

/// A notification of changes of a bucket to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// `s3:ObjectCreated:*`, `s3:ObjectRemoved:*`, `s3:LifecycleExpiration:*`, or one kind of
    /// these.
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
    /// The function's name in the template.
    pub logical_id: String,
    /// The time between two invocations.
    pub every: Duration,
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
pub(super) fn queue_of_arn(arn: &str) -> Option<String> {
    arn.strip_prefix(&queue_arn("")).map(str::to_owned)
}
