//! The resources of a template: their types, and the values of references to them.

use std::collections::BTreeMap;

use super::fields::Fields;
use super::intrinsics::Identity;
use super::node::{Node, Value};
use super::{Deployment, TemplateError, queue_arn, storage};
use crate::identity::{self, function_arn};

/// A resource whose properties are not parsed yet.
pub(super) struct Declared {
    pub(super) id: String,
    pub(super) line: usize,
    pub(super) kind: Kind,
    pub(super) depends_on: Vec<String>,
    pub(super) properties: Node,
}

/// The supported resource types.
pub(super) enum Kind {
    Bucket,
    Table,
    Queue,
    HttpApi { pages: Fields },
    Function { binary: String, shares: Fields },
    Role,
    BucketPolicy,
    QueuePolicy,
    WithoutEffect { known: &'static [&'static str] },
}

/// Resource types that have no effect here, with their allowed properties.
const WITHOUT_EFFECT: [(&str, &[&str]); 5] = [
    (
        "AWS::Logs::LogGroup",
        &["LogGroupName", "RetentionInDays", "KmsKeyId"],
    ),
    ("AWS::SNS::Topic", &[]),
    ("AWS::SNS::TopicPolicy", &["Topics", "PolicyDocument"]),
    (
        "AWS::CloudWatch::Alarm",
        &[
            "AlarmDescription",
            "Namespace",
            "MetricName",
            "Metrics",
            "Dimensions",
            "Statistic",
            "Period",
            "EvaluationPeriods",
            "DatapointsToAlarm",
            "ComparisonOperator",
            "Threshold",
            "TreatMissingData",
            "AlarmActions",
        ],
    ),
    (
        "AWS::CloudWatch::Dashboard",
        &["DashboardName", "DashboardBody"],
    ),
];

pub(super) fn declare((id, node): (String, Node)) -> Result<Declared, TemplateError> {
    let line = node.line;
    let mut fields = Fields::of(node, id.clone())?;
    let type_node = fields.require("Type")?;
    let Value::Text(type_name) = &type_node.value else {
        return Err(fields.error(type_node.line, "Type is not a string"));
    };
    let kind = match type_name.as_str() {
        "AWS::S3::Bucket" => Kind::Bucket,
        "AWS::DynamoDB::Table" => Kind::Table,
        "AWS::SQS::Queue" => Kind::Queue,
        "AWS::Serverless::HttpApi" => {
            let mut metadata = fields.map("Metadata")?;
            let pages = metadata.map("WebPages")?;
            metadata.end()?;
            Kind::HttpApi { pages }
        }
        "AWS::IAM::Role" => Kind::Role,
        "AWS::S3::BucketPolicy" => Kind::BucketPolicy,
        "AWS::SQS::QueuePolicy" => Kind::QueuePolicy,
        "AWS::Serverless::Function" => {
            let mut metadata = fields.map("Metadata")?;
            metadata.choice("BuildMethod", &["rust-cargolambda"])?;
            let mut build = metadata.map("BuildProperties")?;
            let binary = build.required_text("Binary")?;
            build.end()?;
            let shares = metadata.map("MachineShares")?;
            metadata.end()?;
            Kind::Function { binary, shares }
        }
        other => match WITHOUT_EFFECT.iter().find(|(name, _)| *name == other) {
            Some((_, known)) => Kind::WithoutEffect { known },
            None => {
                let message = format!("type {other} is not supported by the local stack");
                return Err(fields.error(type_node.line, message));
            }
        },
    };
    fields.choice(
        "DeletionPolicy",
        &["Retain", "RetainExceptOnCreate", "Delete"],
    )?;
    fields.choice("UpdateReplacePolicy", &["Retain", "Delete"])?;
    let depends_on = match fields.take("DependsOn").map(|node| node.value) {
        None => Vec::new(),
        Some(Value::Text(one)) => vec![one],
        Some(Value::List(items)) => items
            .into_iter()
            .map(|item| match item.value {
                Value::Text(text) => Ok(text),
                _ => Err(fields.error(item.line, "DependsOn must list names of resources")),
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(fields.error(line, "DependsOn must list names of resources")),
    };
    let properties = fields.take("Properties").unwrap_or(Node {
        line,
        value: Value::Null,
    });
    fields.end()?;
    Ok(Declared {
        id,
        line,
        kind,
        depends_on,
        properties,
    })
}

/// Returns the values of references to a resource. A bucket's name may contain only pseudo
/// parameters.
pub(super) fn identify(
    resource: &Declared,
    deployment: &Deployment<'_>,
) -> Result<Identity, TemplateError> {
    let stack_name = deployment.stack_name;
    let id = &resource.id;
    let arn = |service: &str, name: &str| {
        format!(
            "arn:aws:{service}:{}:{}:{name}",
            identity::REGION,
            identity::ACCOUNT
        )
    };
    let (reference, attributes) = match &resource.kind {
        Kind::Bucket => {
            let name = storage::bucket_name(id, &resource.properties, stack_name)?;
            let arn = format!("arn:aws:s3:::{name}");
            (Some(name), BTreeMap::from([("Arn", arn)]))
        }
        Kind::Table => (
            Some(id.clone()),
            BTreeMap::from([("Arn", arn("dynamodb", &format!("table/{id}")))]),
        ),
        Kind::Queue => {
            let url = format!(
                "{}/{}/{id}",
                deployment.sqs_endpoint.trim_end_matches('/'),
                identity::ACCOUNT
            );
            (
                Some(url),
                BTreeMap::from([("Arn", queue_arn(id)), ("QueueName", id.clone())]),
            )
        }
        Kind::HttpApi { .. } => (Some(id.clone()), BTreeMap::new()),
        Kind::Function { binary, .. } => (
            Some(binary.clone()),
            BTreeMap::from([
                ("Arn", function_arn(binary)),
                // SAM refers so to the version that it publishes. There is one version here.
                ("Version.Version", "1".to_owned()),
            ]),
        ),
        Kind::Role => {
            let role = format!("arn:aws:iam::{}:role/{id}", identity::ACCOUNT);
            (Some(id.clone()), BTreeMap::from([("Arn", role)]))
        }
        Kind::BucketPolicy | Kind::QueuePolicy => (Some(id.clone()), BTreeMap::new()),
        Kind::WithoutEffect { .. } => {
            let name = format!("{stack_name}-{id}");
            // The ARN of a log group; the others are not referred to by their ARNs.
            let arn = arn("logs", &format!("log-group:{name}:*"));
            (Some(name), BTreeMap::from([("Arn", arn)]))
        }
    };
    Ok(Identity {
        reference,
        attributes,
    })
}

/// Checks the properties of a resource that has no effect here.
pub(super) fn without_effect(
    id: &str,
    properties: Node,
    known: &[&str],
) -> Result<(), TemplateError> {
    let mut fields = Fields::of(properties, id)?;
    for property in known {
        fields.take(property);
    }
    fields.end()
}
