//! Replaces intrinsics by their values in the local stack.
//!
//! Supported are `Ref`, `Fn::GetAtt` of an `Arn` or `QueueName`, `Fn::Sub` of a string, and
//! `Fn::Split` of a string. Anything else is an error that names it.

use std::collections::BTreeMap;

use super::error::TemplateError;
use super::node::{Node, Value};
use crate::identity;

/// The values of `Ref` and `Fn::GetAtt` for one resource.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    /// `None` if the value of `Ref` exists only in AWS.
    pub(super) reference: Option<String>,
    pub(super) attributes: BTreeMap<&'static str, String>,
}

/// What references in a template can refer to.
#[derive(Clone, Debug, Default)]
pub(super) struct Identities {
    /// The value of `AWS::StackName`.
    pub(super) stack_name: String,
    /// The resources, by logical id.
    pub(super) resources: BTreeMap<String, Identity>,
}

impl Identities {
    /// Returns the identities without any resource: only pseudo parameters have a value.
    pub(super) fn without_resources(stack_name: &str) -> Self {
        Self {
            stack_name: stack_name.to_owned(),
            resources: BTreeMap::new(),
        }
    }

    fn of(&self, target: &str) -> Result<&Identity, String> {
        self.resources
            .get(target)
            .ok_or_else(|| format!("{target} is not a resource of this template"))
    }
}

/// Returns `node` with intrinsics replaced; error messages contain `place`.
pub(super) fn resolve(
    node: &Node,
    identities: &Identities,
    place: &str,
) -> Result<Node, TemplateError> {
    let line = node.line;
    let value = match &node.value {
        Value::List(items) => Value::List(
            items
                .iter()
                .map(|item| resolve(item, identities, place))
                .collect::<Result<_, _>>()?,
        ),
        Value::Map(entries) => match entries.as_slice() {
            [(name, argument)] if name == "Fn::Split" => {
                split(&resolve(argument, identities, place)?, place)?
            }
            [(name, argument)] if name == "Ref" || name.starts_with("Fn::") => {
                Value::Text(call(name, argument, identities, place)?)
            }
            entries => {
                let mut resolved = Vec::with_capacity(entries.len());
                for (key, child) in entries {
                    let place = if place.is_empty() {
                        key.clone()
                    } else {
                        format!("{place}.{key}")
                    };
                    resolved.push((key.clone(), resolve(child, identities, &place)?));
                }
                Value::Map(resolved)
            }
        },
        scalar => scalar.clone(),
    };
    Ok(Node { line, value })
}

/// Returns the parts of a text between separators.
fn split(argument: &Node, place: &str) -> Result<Value, TemplateError> {
    let texts: Vec<&str> = match &argument.value {
        Value::List(items) => items
            .iter()
            .filter_map(|item| match &item.value {
                Value::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    match texts.as_slice() {
        [separator, text] if !separator.is_empty() => {
            let parts = text.split(separator);
            Ok(Value::List(
                parts.map(|part| Node::text(argument.line, part)).collect(),
            ))
        }
        _ => {
            let message = "Fn::Split needs a separator and a text";
            Err(TemplateError::new(argument.line, place, message))
        }
    }
}

fn call(
    name: &str,
    argument: &Node,
    identities: &Identities,
    place: &str,
) -> Result<String, TemplateError> {
    let fail = |message: String| TemplateError::new(argument.line, place, message);
    match (name, &argument.value) {
        ("Ref", Value::Text(target)) => reference(target, identities).map_err(fail),
        ("Fn::Sub", Value::Text(pattern)) => substitute(pattern, identities).map_err(fail),
        ("Fn::GetAtt", Value::Text(target)) => {
            let (resource, name) = target.split_once('.').unwrap_or((target, ""));
            attribute(resource, name, identities).map_err(fail)
        }
        ("Fn::GetAtt", Value::List(parts)) => match parts.as_slice() {
            [
                Node {
                    value: Value::Text(resource),
                    ..
                },
                Node {
                    value: Value::Text(name),
                    ..
                },
            ] => attribute(resource, name, identities).map_err(fail),
            _ => Err(fail(
                "Fn::GetAtt needs a resource and an attribute".to_owned(),
            )),
        },
        ("Ref" | "Fn::Sub", _) => Err(fail(format!(
            "the argument of {name} must be a string, but is {}",
            argument.kind()
        ))),
        (other, _) => Err(fail(format!(
            "{other} is not supported by the local stack, only Ref, Fn::GetAtt, Fn::Sub and Fn::Split"
        ))),
    }
}

fn reference(target: &str, identities: &Identities) -> Result<String, String> {
    if let Some(parameter) = target.strip_prefix("AWS::") {
        return pseudo_parameter(parameter, &identities.stack_name);
    }
    identities
        .of(target)?
        .reference
        .clone()
        .ok_or_else(|| format!("Ref {target} has no value in the local stack"))
}

fn attribute(target: &str, name: &str, identities: &Identities) -> Result<String, String> {
    let identity = identities.of(target)?;
    identity.attributes.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = identity.attributes.keys().copied().collect();
        match known.as_slice() {
            [] => format!("{target} has no attribute {name} in the local stack"),
            known => format!(
                "attribute {name} of {target} is not supported by the local stack, only {}",
                known.join(", ")
            ),
        }
    })
}

/// Returns the value of `AWS::` and this name.
pub(super) fn pseudo_parameter(name: &str, stack_name: &str) -> Result<String, String> {
    Ok(match name {
        "StackName" => stack_name,
        "AccountId" => identity::ACCOUNT,
        "Region" => identity::REGION,
        "Partition" => "aws",
        "URLSuffix" => "amazonaws.com",
        other => return Err(format!("AWS::{other} is not supported by the local stack")),
    }
    .to_owned())
}

/// Returns `pattern` with each `${…}` replaced; `${!literal}` becomes `${literal}`.
fn substitute(pattern: &str, identities: &Identities) -> Result<String, String> {
    let mut result = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after
            .split_once('}')
            .ok_or_else(|| format!("Fn::Sub {pattern:?}: a closing brace is missing"))?;
        result.push_str(before);
        match name.strip_prefix('!') {
            Some(literal) => {
                result.push_str("${");
                result.push_str(literal);
                result.push('}');
            }
            None => result.push_str(&match name.split_once('.') {
                Some((resource, name)) => attribute(resource, name, identities)?,
                None => reference(name, identities)?,
            }),
        }
        rest = after;
    }
    result.push_str(rest);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identities() -> Identities {
        let attributes = BTreeMap::from([("Arn", "arn:aws:sqs:q".to_owned())]);
        let queue = Identity {
            reference: Some("http://here/queue".to_owned()),
            attributes,
        };
        Identities {
            stack_name: "shop".to_owned(),
            resources: BTreeMap::from([("Queue".to_owned(), queue)]),
        }
    }

    #[test]
    fn a_pattern_is_filled_with_references_attributes_and_pseudo_parameters() {
        let filled = substitute(
            "${AWS::StackName}-${Queue}-${Queue.Arn}-${!kept}-$5",
            &identities(),
        )
        .unwrap();
        assert_eq!(filled, "shop-http://here/queue-arn:aws:sqs:q-${kept}-$5");
    }

    #[test]
    fn a_text_is_split_at_its_separators() {
        let resolved = |text: &str| {
            let node = Node::read(text)?;
            resolve(&node, &identities(), "").map(|node| node.to_json())
        };
        assert_eq!(
            resolved("a: !Split [\",\", \"x,y\"]").unwrap(),
            serde_json::json!({"a": ["x", "y"]})
        );
        for wrong in ["a: !Split [x]", "a: !Split x", "a: !Split [\"\", x]"] {
            let error = resolved(wrong).unwrap_err();
            assert!(error.message.contains("Fn::Split needs"), "{error}");
        }
    }

    #[test]
    fn an_unclosed_brace_is_an_error() {
        assert!(
            substitute("a ${AWS::Region", &identities())
                .unwrap_err()
                .contains("a closing brace is missing")
        );
    }
}
