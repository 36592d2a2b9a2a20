//! Roles, and the policies of buckets and queues.

use serde_json::Value as Json;

use super::error::TemplateError;
use super::fields::Fields;
use super::model::queue_of_arn;
use super::node::{Node, Value};
use super::queue_arn;
use crate::iam::{ResourcePolicy, Role, Statement};

/// The only managed policy that a role may have: it permits writing logs, of which the stack has
/// none.
const FOR_LOGS: &str = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole";

/// How a statement is read.
type Read = fn(&Json) -> Result<Statement, String>;

/// Reads a role.
pub(super) fn role(id: &str, properties: Node) -> Result<Role, TemplateError> {
    let mut fields = Fields::of(properties, id)?;
    for managed in fields.list("ManagedPolicyArns")? {
        if managed.value != Value::Text(FOR_LOGS.to_owned()) {
            let message = format!("managed policies are not evaluated, only {FOR_LOGS} is ignored");
            return Err(fields.error(managed.line, message));
        }
    }
    let trust = fields.require("AssumeRolePolicyDocument")?;
    let trust = document(
        trust,
        fields.path("AssumeRolePolicyDocument"),
        Statement::of_trust,
    )?;
    let mut statements = Vec::new();
    let place = fields.path("Policies");
    for policy in fields.list("Policies")? {
        let mut policy = Fields::of(policy, place.clone())?;
        policy.required_text("PolicyName")?;
        let inner = policy.require("PolicyDocument")?;
        statements.extend(document(inner, place.clone(), Statement::of_role)?);
        policy.end()?;
    }
    fields.end()?;
    Ok(Role {
        name: id.to_owned(),
        statements,
        trust,
    })
}

/// Reads the policy of a bucket. Returns the ARN of the bucket, too.
pub(super) fn of_bucket(
    id: &str,
    properties: Node,
) -> Result<(String, ResourcePolicy), TemplateError> {
    let mut fields = Fields::of(properties, id)?;
    let bucket = fields.required_text("Bucket")?;
    let policy = of_resource(id, &mut fields)?;
    fields.end()?;
    Ok((format!("arn:aws:s3:::{bucket}"), policy))
}

/// Reads the policy of queues. Returns their ARNs, too.
pub(super) fn of_queues(
    id: &str,
    properties: Node,
) -> Result<(Vec<String>, ResourcePolicy), TemplateError> {
    let mut fields = Fields::of(properties, id)?;
    let queues = fields.list("Queues")?.into_iter().map(|node| {
        let url = match &node.value {
            Value::Text(url) => url.as_str(),
            _ => "",
        };
        match url.rsplit_once('/') {
            Some((_, name)) if queue_of_arn(&queue_arn(name)).is_some() => Ok(queue_arn(name)),
            _ => Err(fields.error(node.line, "Queues must be references to queues")),
        }
    });
    let queues = queues.collect::<Result<_, _>>()?;
    let policy = of_resource(id, &mut fields)?;
    fields.end()?;
    Ok((queues, policy))
}

fn of_resource(id: &str, fields: &mut Fields) -> Result<ResourcePolicy, TemplateError> {
    let node = fields.require("PolicyDocument")?;
    Ok(ResourcePolicy {
        name: id.to_owned(),
        statements: document(node, fields.path("PolicyDocument"), Statement::of_resource)?,
    })
}

/// Reads the statements of a policy.
fn document(node: Node, place: String, read: Read) -> Result<Vec<Statement>, TemplateError> {
    let mut document = Fields::of(node, place)?;
    document.choice("Version", &["2012-10-17"])?;
    let statements = document.list("Statement")?.into_iter().map(|node| {
        let problem = |message: String| document.error(node.line, message);
        let statement = read(&node.to_json()).map_err(problem)?;
        match statement.without_effect() {
            Some(part) => Err(problem(format!("{part} in this statement has no effect"))),
            None => Ok(statement),
        }
    });
    let statements = statements.collect::<Result<_, _>>()?;
    document.end()?;
    Ok(statements)
}
