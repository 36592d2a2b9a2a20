//! Functions of a template, and the events that invoke them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fields::Fields;
use super::node::{Node, Value};
use super::{
    Function, MachineShare, QueueSource, Resource, Schedule, Template, TemplateError, WebPages,
};
use crate::template::model::queue_of_arn;

/// The value of a variable that the function computes from its own memory or disk in AWS.
const AUTO: &str = "auto";

/// An event of a function, before the resources that it refers to are checked.
pub(super) struct DeclaredEvent {
    place: String,
    name: String,
    line: usize,
    source: Source,
}

enum Source {
    HttpApi,
    Queue(QueueSource),
    Rate(Duration),
}

/// Returns the function `id` and its events. `defaults` is the template's `Globals.Function`.
pub(super) fn function(
    id: &str,
    binary: String,
    properties: Node,
    defaults: Option<Node>,
) -> Result<(Function, Vec<DeclaredEvent>), TemplateError> {
    let line = properties.line;
    let properties = match defaults {
        Some(defaults) => merge(defaults, properties),
        None => properties,
    };
    let mut fields = Fields::of(properties, id)?;
    fields.choice("Runtime", &["provided.al2023"])?;
    fields.choice("Handler", &["bootstrap"])?;
    fields.list("Architectures")?;
    fields.text("CodeUri")?;
    fields.text("Description")?;
    let role = fields.text("Role")?;
    let recursive_loop = fields.choice("RecursiveLoop", &["Allow", "Terminate"])?;
    fields.text("AutoPublishAlias")?;
    fields.take("AutoPublishAliasAllProperties");
    fields.take("DeploymentPreference");
    fields.text("VersionDescription")?;
    // Nothing is invoked asynchronously but by the schedule, and that repeats nothing here.
    fields.take("EventInvokeConfig");
    // The functions use the network of this machine.
    fields.take("VpcConfig");

    let (log_format, log_group) = logging(&mut fields, &binary)?;

    let memory_mb = fields.number("MemorySize", 128..=10_240)?.unwrap_or(128);
    let timeout = Duration::from_secs(fields.number("Timeout", 1..=900)?.unwrap_or(3));
    let reserved_concurrency = fields
        .number("ReservedConcurrentExecutions", 1..=1000)?
        .map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    let mut storage = fields.map("EphemeralStorage")?;
    let ephemeral_mb = storage.number("Size", 512..=10_240)?.unwrap_or(512);
    storage.end()?;

    let environment = environment(&mut fields)?;

    let mut events = Vec::new();
    let declared = fields.map("Events")?;
    let place = declared.place().to_owned();
    for (name, node) in declared.rest() {
        events.push(event(format!("{place}.{name}"), name, node)?);
    }
    fields.end()?;

    if binary.is_empty()
        || !binary
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    {
        return Err(TemplateError::new(
            line,
            id,
            format!("Binary {binary:?} is not a valid name of a binary"),
        ));
    }
    let function = Function {
        logical_id: id.to_owned(),
        name: binary,
        memory_mb,
        timeout,
        ephemeral_mb,
        reserved_concurrency,
        allows_recursion: recursive_loop.as_deref() == Some("Allow"),
        log_format,
        log_group,
        environment,
        queues: Vec::new(),
        shares: Vec::new(),
        role,
    };
    Ok((function, events))
}

/// Returns the format of a function's log, and its log group.
fn logging(fields: &mut Fields, binary: &str) -> Result<(String, String), TemplateError> {
    let mut logging = fields.map("LoggingConfig")?;
    let log_format = logging
        .choice("LogFormat", &["JSON", "Text"])?
        .unwrap_or_else(|| "Text".to_owned());
    // The local stack always logs what Lambda logs at its default level, `INFO`.
    logging.choice("SystemLogLevel", &["DEBUG", "INFO", "WARN"])?;
    // The local stack logs every line of a function.
    logging.choice("ApplicationLogLevel", &["TRACE"])?;
    let log_group = logging
        .text("LogGroup")?
        .unwrap_or_else(|| format!("/aws/lambda/{binary}"));
    logging.end()?;
    Ok((log_format, log_group))
}

/// Returns the variables of a function's environment.
fn environment(fields: &mut Fields) -> Result<BTreeMap<String, String>, TemplateError> {
    let mut environment_fields = fields.map("Environment")?;
    let variables = environment_fields.map("Variables")?;
    let place = variables.place().to_owned();
    let mut environment = BTreeMap::new();
    for (name, node) in variables.rest() {
        let value = match node.value {
            Value::Text(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            _ => {
                return Err(TemplateError::new(
                    node.line,
                    place,
                    format!(
                        "{name} must be a string, an integer or a boolean, but is {}",
                        node.kind()
                    ),
                ));
            }
        };
        environment.insert(name, value);
    }
    environment_fields.end()?;
    Ok(environment)
}

/// Returns the variables of a function that its metadata declares as shares of the machine.
pub(super) fn machine_shares(
    id: &str,
    declared: Fields,
    function: &Function,
) -> Result<Vec<MachineShare>, TemplateError> {
    let place = declared.place().to_owned();
    let shares = declared.rest().into_iter().map(|(variable, node)| {
        let line = node.line;
        let mut fields = Fields::of(node, format!("{place}.{variable}"))?;
        let of = match fields.choice("Of", &["memory", "disk"])?.as_deref() {
            Some("memory") => Resource::Memory,
            Some(_) => Resource::Disk,
            None => return Err(fields.error(line, "Of is missing")),
        };
        let percent = fields
            .number("Percent", 1..=100)?
            .ok_or_else(|| fields.error(line, "Percent is missing"))?;
        let at_least = fields.number("AtLeast", 1..=i64::MAX)?;
        let most = function.environment.get(&variable);
        let most = most.and_then(|text| match text.as_str() {
            AUTO => Some(0),
            number => number.parse().ok(),
        });
        let most = most.ok_or_else(|| {
            let message =
                format!("{id} has no variable {variable} with a number of bytes or {AUTO}");
            fields.error(line, message)
        })?;
        fields.end()?;
        Ok(MachineShare {
            variable,
            of,
            percent,
            at_least,
            most,
        })
    });
    shares.collect()
}

/// Merges as SAM does for `Globals`: maps are merged, lists are concatenated, other values are
/// replaced.
fn merge(defaults: Node, own: Node) -> Node {
    let line = own.line;
    let value = match (defaults.value, own.value) {
        (Value::Map(mut base), Value::Map(entries)) => {
            for (key, node) in entries {
                match base.iter_mut().find(|(name, _)| *name == key) {
                    Some((_, slot)) => {
                        let default = std::mem::replace(
                            slot,
                            Node {
                                line,
                                value: Value::Null,
                            },
                        );
                        *slot = merge(default, node);
                    }
                    None => base.push((key, node)),
                }
            }
            Value::Map(base)
        }
        (Value::List(mut base), Value::List(items)) => {
            base.extend(items);
            Value::List(base)
        }
        (base, Value::Null) => base,
        (_, own) => own,
    };
    Node { line, value }
}

/// The route of all paths without one of their own.
pub(crate) const DEFAULT_ROUTE: &str = "$default";

/// The paths of routes. All lead to the same function, whose `$default` has every path anyway.
pub(crate) const PATHS: [&str; 6] = [
    DEFAULT_ROUTE,
    "/rollout",
    "/scope/{proxy+}",
    "/t/{proxy+}",
    "/tokens",
    "/tokens/{id}",
];

fn event(place: String, name: String, node: Node) -> Result<DeclaredEvent, TemplateError> {
    let line = node.line;
    let mut fields = Fields::of(node, place.clone())?;
    let kind = fields.required_text("Type")?;
    let mut properties = fields.map("Properties")?;
    fields.end()?;
    let source = match kind.as_str() {
        "HttpApi" => {
            properties.require("ApiId")?;
            properties.choice("Path", &PATHS)?;
            properties.choice("Method", &["ANY", "any"])?;
            // Requests are passed on without a check here; the function checks them.
            properties.take("Auth");
            Source::HttpApi
        }
        "SQS" => Source::Queue(queue_source(&mut properties)?),
        "ScheduleV2" => {
            let line = properties.line();
            let expression = properties.required_text("ScheduleExpression")?;
            properties.take("OmitName");
            // The local stack invokes the function itself, without a role.
            properties.take("RoleArn");
            Source::Rate(rate(&expression).map_err(|message| properties.error(line, message))?)
        }
        other => {
            return Err(properties.error(
                line,
                format!("event type {other} is not supported by the local stack"),
            ));
        }
    };
    properties.end()?;
    Ok(DeclaredEvent {
        place,
        name,
        line,
        source,
    })
}

fn queue_source(properties: &mut Fields) -> Result<QueueSource, TemplateError> {
    let line = properties.line();
    let arn = properties.required_text("Queue")?;
    let queue = queue_of_arn(&arn)
        .ok_or_else(|| properties.error(line, format!("Queue {arn:?} is not a queue's Arn")))?;
    let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let batch_size = whole(properties.number("BatchSize", 1..=10)?.unwrap_or(10));
    let mut reports_failures = false;
    for item in properties.list("FunctionResponseTypes")? {
        match &item.value {
            Value::Text(text) if text == "ReportBatchItemFailures" => reports_failures = true,
            _ => {
                return Err(properties.error(
                    item.line,
                    "FunctionResponseTypes supports ReportBatchItemFailures only",
                ));
            }
        }
    }
    let mut scaling = properties.map("ScalingConfig")?;
    let maximum_concurrency = scaling.number("MaximumConcurrency", 2..=1000)?.map(whole);
    scaling.end()?;
    Ok(QueueSource {
        queue,
        batch_size,
        maximum_concurrency,
        reports_failures,
    })
}

/// Returns the interval of a `rate(…)` expression.
///
/// EventBridge Scheduler user guide, "Schedule types": a value of 1 requires the singular unit, any
/// other value the plural.
fn rate(expression: &str) -> Result<Duration, String> {
    let inner = expression
        .strip_prefix("rate(")
        .and_then(|rest| rest.strip_suffix(')'))
        .ok_or_else(|| format!("ScheduleExpression {expression:?}: the local stack supports rate(…) only, not cron or at"))?;
    let wrong = || {
        format!(
            "ScheduleExpression {expression:?} is not of a form like rate(1 hour) or rate(5 minutes)"
        )
    };
    let (number, unit) = inner.split_once(' ').ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match (number, unit) {
        (1, "minute") | (2.., "minutes") => 60,
        (1, "hour") | (2.., "hours") => 60 * 60,
        (1, "day") | (2.., "days") => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

/// Checks an HTTP API. Its authorizer, throttling and access log have no effect here.
pub(super) fn http_api(id: &str, properties: Node) -> Result<(), TemplateError> {
    let mut fields = Fields::of(properties, id)?;
    fields.choice("StageName", &["$default"])?;
    let mut auth = fields.map("Auth")?;
    auth.take("EnableIamAuthorizer");
    auth.choice("DefaultAuthorizer", &["AWS_IAM"])?;
    auth.end()?;
    let mut settings = fields.map("DefaultRouteSettings")?;
    settings.take("ThrottlingRateLimit");
    settings.take("ThrottlingBurstLimit");
    settings.end()?;
    fields.take("AccessLogSettings");
    // The routes with an authorizer of their own.
    fields.take("DefinitionBody");
    fields.end()
}

/// Returns the pages that the metadata of an HTTP API declares; `None` if it declares none.
pub(super) fn web_pages(mut declared: Fields) -> Result<Option<WebPages>, TemplateError> {
    let Some(path) = declared.text("Path")? else {
        declared.end()?;
        return Ok(None);
    };
    let origins = declared.list("Origins")?;
    let origins = origins.into_iter().map(|node| match node.value {
        Value::Text(origin) => Ok(origin),
        _ => Err(declared.error(node.line, "Origins must list strings")),
    });
    let origins = origins.collect::<Result<_, _>>()?;
    declared.end()?;
    Ok(Some(WebPages { path, origins }))
}

/// Connects the events of `template.functions[index]` to the resources that they refer to.
pub(super) fn wire(
    template: &mut Template,
    index: usize,
    events: Vec<DeclaredEvent>,
) -> Result<(), TemplateError> {
    let (name, timeout) = {
        let function = &template.functions[index];
        (function.name.clone(), function.timeout)
    };
    for event in events {
        let fail =
            |message: String| Err(TemplateError::new(event.line, event.place.clone(), message));
        match event.source {
            Source::HttpApi => {
                if let Some(other) = template.http_api.as_ref().filter(|other| **other != name) {
                    return fail(format!("a route already belongs to {other}"));
                }
                template.http_api = Some(name.clone());
            }
            Source::Queue(source) => {
                let Some(queue) = template
                    .queues
                    .iter()
                    .find(|queue| queue.name == source.queue)
                else {
                    return fail(format!("{} is not a queue of this template", source.queue));
                };
                // Lambda refuses such a mapping: the message would become visible while it is being
                // processed.
                if queue.visibility_timeout < timeout {
                    return fail(format!(
                        "the visibility timeout of {} ({} s) is shorter than the function's timeout ({} s)",
                        queue.name,
                        queue.visibility_timeout.as_secs(),
                        timeout.as_secs()
                    ));
                }
                template.functions[index].queues.push(source);
            }
            Source::Rate(every) => {
                template.schedules.push(Schedule {
                    name: event.name,
                    function: name.clone(),
                    logical_id: template.functions[index].logical_id.clone(),
                    every,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_singular_and_plural_units() {
        assert_eq!(rate("rate(1 hour)"), Ok(Duration::from_secs(3600)));
        assert_eq!(rate("rate(5 minutes)"), Ok(Duration::from_secs(300)));
        assert_eq!(rate("rate(2 days)"), Ok(Duration::from_secs(172_800)));
    }

    #[test]
    fn rates_that_aws_refuses_are_refused() {
        for wrong in [
            "rate(1 hours)",
            "rate(5 minute)",
            "rate(0 minutes)",
            "rate(hour)",
            "rate(-1 day)",
        ] {
            assert!(
                rate(wrong).unwrap_err().contains("is not of a form like"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_cron_expression_is_refused_with_the_supported_form() {
        assert!(
            rate("cron(0 12 * * ? *)")
                .unwrap_err()
                .contains("rate(…) only")
        );
    }
}
