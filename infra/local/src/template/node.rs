//! A YAML document as a tree whose nodes have line numbers, with short forms of intrinsics
//! expanded.
//!
//! `!Ref X` becomes `{Ref: X}`, `!Sub s` becomes `{Fn::Sub: s}`, `!GetAtt A.B` becomes
//! `{Fn::GetAtt: [A, B]}`, so that later stages handle one form only. Aliases are replaced by their
//! anchors' values.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

use super::error::TemplateError;

/// A value and the line it begins on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

/// The value of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Parses the single document in `text`.
    pub(super) fn read(text: &str) -> Result<Self, TemplateError> {
        let documents = MarkedYaml::load_from_str(text).map_err(|error| {
            TemplateError::new(
                error.marker().line(),
                "",
                format!("not YAML: {}", error.info()),
            )
        })?;
        match documents.as_slice() {
            [document] => from_yaml(document),
            others => Err(TemplateError::new(
                1,
                "",
                format!("expected one YAML document, found {}", others.len()),
            )),
        }
    }

    /// Returns the node as JSON.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Integer(value) => (*value).into(),
            Value::Float(value) => (*value).into(),
            Value::Text(value) => value.as_str().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => serde_json::Value::Object(
                entries
                    .iter()
                    .map(|(key, node)| (key.clone(), node.to_json()))
                    .collect(),
            ),
        }
    }

    /// Returns the kind of the value, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    pub(super) fn text(line: usize, text: impl Into<String>) -> Self {
        Self {
            line,
            value: Value::Text(text.into()),
        }
    }
}

fn from_yaml(yaml: &MarkedYaml<'_>) -> Result<Node, TemplateError> {
    let line = yaml.span.start.line();
    let value = match &yaml.data {
        YamlData::Value(scalar) => match scalar {
            Scalar::Null => Value::Null,
            Scalar::Boolean(value) => Value::Bool(*value),
            Scalar::Integer(value) => Value::Integer(*value),
            Scalar::FloatingPoint(value) => Value::Float(value.0),
            Scalar::String(value) => Value::Text(value.to_string()),
        },
        YamlData::Sequence(items) => {
            Value::List(items.iter().map(from_yaml).collect::<Result<_, _>>()?)
        }
        YamlData::Mapping(entries) => {
            let mut map = Vec::with_capacity(entries.len());
            for (key, node) in entries {
                let YamlData::Value(Scalar::String(name)) = &key.data else {
                    return Err(TemplateError::new(
                        key.span.start.line(),
                        "",
                        "a key is not a string",
                    ));
                };
                map.push((name.to_string(), from_yaml(node)?));
            }
            Value::Map(map)
        }
        YamlData::Tagged(tag, inner) => {
            // A scalar under a tag has no position of its own.
            let mut inner = from_yaml(inner)?;
            inner.line = line.max(inner.line);
            return written_out(&tag.suffix, inner, line);
        }
        YamlData::Representation(..) | YamlData::Alias(_) | YamlData::BadValue => {
            return Err(TemplateError::new(line, "", "a value is not valid YAML"));
        }
    };
    Ok(Node { line, value })
}

/// Expands the short form `!name inner`.
fn written_out(name: &str, inner: Node, line: usize) -> Result<Node, TemplateError> {
    let (key, argument) = match (name, &inner.value) {
        ("Ref", Value::Text(_)) => ("Ref".to_owned(), inner),
        ("GetAtt", Value::Text(text)) => {
            let parts = match text.split_once('.') {
                Some((resource, attribute)) => {
                    vec![Node::text(line, resource), Node::text(line, attribute)]
                }
                None => {
                    return Err(TemplateError::new(
                        line,
                        "",
                        format!("!GetAtt {text}: the attribute is missing"),
                    ));
                }
            };
            (
                "Fn::GetAtt".to_owned(),
                Node {
                    line,
                    value: Value::List(parts),
                },
            )
        }
        (name, _) => (format!("Fn::{name}"), inner),
    };
    Ok(Node {
        line,
        value: Value::Map(vec![(key, argument)]),
    })
}
