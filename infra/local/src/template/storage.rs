//! Buckets, tables and queues of a template.

use std::time::Duration;

use super::fields::Fields;
use super::intrinsics::{Identities, resolve};
use super::node::{Node, Value};
use super::{Bucket, LifecycleRule, Notification, Queue, Table, TemplateError};
use crate::template::model::queue_of_arn;

const DAY: i64 = 24 * 60 * 60;

/// Returns the name of the bucket `id`, from its properties before intrinsics are resolved.
pub(super) fn bucket_name(
    id: &str,
    properties: &Node,
    stack_name: &str,
) -> Result<String, TemplateError> {
    let mut fields = Fields::of(properties.clone(), id)?;
    let name = fields.require("BucketName")?;
    let place = fields.path("BucketName");
    match resolve(&name, &Identities::without_resources(stack_name), &place)?.value {
        Value::Text(name) => Ok(name),
        _ => Err(TemplateError::new(
            name.line,
            place,
            format!("expected a string, found {}", name.kind()),
        )),
    }
}

pub(super) fn bucket(
    id: &str,
    properties: Node,
    identities: &Identities,
) -> Result<Bucket, TemplateError> {
    let name = bucket_name(id, &properties, &identities.stack_name)?;
    debug_assert!(identities.resources.contains_key(id));
    let mut fields = Fields::of(properties, id)?;
    fields.take("BucketName");
    fields.take("PublicAccessBlockConfiguration");
    let lifecycle = lifecycle(fields.map("LifecycleConfiguration")?)?;
    fields.take("BucketEncryption");
    fields.take("VersioningConfiguration");
    let mut configuration = fields.map("NotificationConfiguration")?;
    let mut notifications = Vec::new();
    let place = configuration.path("QueueConfigurations");
    for item in configuration.list("QueueConfigurations")? {
        let mut entry = Fields::of(item, place.clone())?;
        let line = entry.line();
        let event = entry.required_text("Event")?;
        let known = [
            "s3:ObjectCreated:",
            "s3:ObjectRemoved:",
            "s3:LifecycleExpiration:",
        ];
        if !known.iter().any(|kind| event.starts_with(kind)) {
            return Err(entry.error(
                line,
                format!("Event {event:?} is not supported by the local stack"),
            ));
        }
        let arn = entry.required_text("Queue")?;
        let queue = queue_of_arn(&arn)
            .ok_or_else(|| entry.error(line, format!("Queue {arn:?} is not a queue's Arn")))?;
        entry.end()?;
        notifications.push(Notification { event, queue });
    }
    configuration.end()?;
    fields.end()?;
    Ok(Bucket {
        logical_id: id.to_owned(),
        name,
        notifications,
        lifecycle,
    })
}

/// Returns the rules that are enabled. There are no versions and one storage class here, so a rule
/// about them has no effect.
fn lifecycle(mut configuration: Fields) -> Result<Vec<LifecycleRule>, TemplateError> {
    let place = configuration.path("Rules");
    let mut rules = Vec::new();
    for item in configuration.list("Rules")? {
        let mut rule = Fields::of(item, place.clone())?;
        rule.text("Id")?;
        let status = rule.choice("Status", &["Enabled", "Disabled"])?;
        let prefix = rule.text("Prefix")?.unwrap_or_default();
        let objects_after_days = rule.number("ExpirationInDays", 1..=i64::MAX)?;
        let mut uploads = rule.map("AbortIncompleteMultipartUpload")?;
        let uploads_after_days = uploads.number("DaysAfterInitiation", 1..=i64::MAX)?;
        uploads.end()?;
        if moves_to_another_class(&mut rule)?
            && objects_after_days.is_none()
            && uploads_after_days.is_none()
        {
            rule.take("ObjectSizeGreaterThan");
        }
        rule.take("NoncurrentVersionExpiration");
        rule.take("ExpiredObjectDeleteMarker");
        rule.end()?;
        if status.as_deref() == Some("Enabled") {
            rules.push(LifecycleRule {
                prefix,
                objects_after_days,
                uploads_after_days,
            });
        }
    }
    configuration.end()?;
    Ok(rules)
}

/// Returns whether a rule moves objects to another storage class. Only a class whose objects can be
/// read at once is supported: it changes what they cost, and nothing else.
fn moves_to_another_class(rule: &mut Fields) -> Result<bool, TemplateError> {
    let place = rule.path("Transitions");
    let transitions = rule.list("Transitions")?;
    let moves = !transitions.is_empty();
    for transition in transitions {
        let mut transition = Fields::of(transition, place.clone())?;
        transition.choice("StorageClass", &["INTELLIGENT_TIERING"])?;
        transition.number("TransitionInDays", 0..=i64::MAX)?;
        transition.end()?;
    }
    Ok(moves)
}

pub(super) fn table(id: &str, properties: Node) -> Result<Table, TemplateError> {
    let json = properties.to_json();
    let mut fields = Fields::of(properties, id)?;
    fields.choice("BillingMode", &["PAY_PER_REQUEST"])?;
    fields.require("AttributeDefinitions")?;
    fields.require("KeySchema")?;
    fields.take("TimeToLiveSpecification");
    fields.take("PointInTimeRecoverySpecification");
    fields.take("SSESpecification");
    fields.end()?;
    Ok(Table {
        name: id.to_owned(),
        properties: json,
    })
}

pub(super) fn queue(id: &str, properties: Node) -> Result<Queue, TemplateError> {
    let mut fields = Fields::of(properties, id)?;
    fields.take("SqsManagedSseEnabled");
    let seconds = |value: Option<u64>, default: u64| Duration::from_secs(value.unwrap_or(default));
    let visibility_timeout = seconds(fields.number("VisibilityTimeout", 0..=DAY / 2)?, 30);
    let delay = seconds(fields.number("DelaySeconds", 0..=900)?, 0);
    let retention = seconds(
        fields.number("MessageRetentionPeriod", 60..=14 * DAY)?,
        4 * DAY.unsigned_abs(),
    );
    let redrive = match fields.take("RedrivePolicy") {
        None => None,
        Some(node) => {
            let mut policy = Fields::of(node, fields.path("RedrivePolicy"))?;
            let line = policy.line();
            let arn = policy.required_text("deadLetterTargetArn")?;
            let target = queue_of_arn(&arn).ok_or_else(|| {
                policy.error(
                    line,
                    format!("deadLetterTargetArn {arn:?} is not a queue's Arn"),
                )
            })?;
            let receives = policy
                .number("maxReceiveCount", 1..=1000)?
                .ok_or_else(|| policy.error(line, "maxReceiveCount is missing"))?;
            policy.end()?;
            Some((target, u32::try_from(receives).unwrap_or(u32::MAX)))
        }
    };
    fields.end()?;
    Ok(Queue {
        name: id.to_owned(),
        visibility_timeout,
        delay,
        retention,
        redrive,
    })
}
