//! The schemas of the document. A type may have two: what the service accepts in requests, and what
//! it writes in responses.

use std::collections::BTreeSet;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::choices::{TextsAsEnum, with_named_shapes};

/// Where the schemas are.
pub(super) const PATH: &str = "/components/schemas";

/// Where references to schemas of requests point until it is known which of them differ from those
/// of responses.
const OF_REQUESTS: &str = "/components/schemas-of-requests";

/// The prefix of the names of schemas of requests that differ from those of responses.
const SENT: &str = "Sent";

/// Collects the schemas that the document refers to.
pub(super) struct Schemas {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

impl Default for Schemas {
    fn default() -> Self {
        let settings = |path: &'static str| {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = path.into();
                settings.meta_schema = None;
            })
        };
        let requests = settings(OF_REQUESTS).for_deserialize();
        let responses = settings(PATH).for_serialize();
        Self {
            requests: requests
                .with_transform(WithMaximum)
                .with_transform(ReadableText)
                .with_transform(TextsAsEnum)
                .into_generator(),
            responses: responses
                .with_transform(WithMaximum)
                .with_transform(WithoutNull)
                .with_transform(ReadableText)
                .with_transform(TextsAsEnum)
                .into_generator(),
        }
    }
}

impl Schemas {
    /// Returns a reference to the schema of a type in requests.
    pub(super) fn request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().to_value()
    }

    /// Returns a reference to the schema of a type in responses.
    pub(super) fn response<T: JsonSchema>(&mut self) -> Value {
        self.responses.subschema_for::<T>().to_value()
    }

    /// Adds a schema of requests that no type has, and returns a reference to it.
    pub(super) fn named_request(&mut self, name: &str, schema: Value) -> Value {
        named(&mut self.requests, OF_REQUESTS, name, schema)
    }

    /// Adds a schema of responses that no type has, and returns a reference to it.
    pub(super) fn named_response(&mut self, name: &str, schema: Value) -> Value {
        named(&mut self.responses, PATH, name, schema)
    }

    /// Adds all schemas to the document.
    pub(super) fn complete(mut self, document: &mut Value) {
        let requests = self.requests.take_definitions(true);
        let mut all = self.responses.take_definitions(true);
        let differing = differing(&requests, &all);
        let mut rename = |name: &str| {
            if differing.contains(name) {
                format!("{PATH}/{SENT}{name}")
            } else {
                format!("{PATH}/{name}")
            }
        };
        for (name, mut schema) in requests {
            each_reference_of_requests(&mut schema, &mut rename);
            let name = rename(&name)[PATH.len() + 1..].to_owned();
            all.insert(name, schema);
        }
        each_reference_of_requests(document, &mut rename);
        document["components"]["schemas"] = Value::Object(with_named_shapes(all));
    }
}

fn named(schemas: &mut SchemaGenerator, path: &str, name: &str, schema: Value) -> Value {
    schemas.definitions_mut().insert(name.to_owned(), schema);
    json!({"$ref": format!("#{path}/{name}")})
}

/// Returns the names under which requests and responses have different schemas, or schemas that
/// refer to such.
fn differing(requests: &Map<String, Value>, responses: &Map<String, Value>) -> BTreeSet<String> {
    let mut differing = BTreeSet::new();
    loop {
        let before = differing.len();
        for (name, schema) in requests {
            let Some(other) = responses.get(name) else {
                continue;
            };
            let (mut schema, mut refers) = (schema.clone(), false);
            each_reference_of_requests(&mut schema, &mut |name| {
                refers |= differing.contains(name);
                format!("{PATH}/{name}")
            });
            if refers || schema != *other {
                differing.insert(name.clone());
            }
        }
        if differing.len() == before {
            return differing;
        }
    }
}

/// Lets each reference to a schema of requests point elsewhere: to what `target` returns for the
/// name of the schema.
fn each_reference_of_requests(value: &mut Value, target: &mut dyn FnMut(&str) -> String) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                match value {
                    Value::String(text) if field == "$ref" => {
                        let name = text.strip_prefix('#');
                        let name = name.and_then(|path| path.strip_prefix(OF_REQUESTS));
                        if let Some(name) = name.and_then(|path| path.strip_prefix('/')) {
                            *text = format!("#{}", target(name));
                        }
                    }
                    _ => each_reference_of_requests(value, target),
                }
            }
        }
        Value::Array(values) => {
            for value in values {
                each_reference_of_requests(value, target);
            }
        }
        _ => {}
    }
}

/// States the maximum of integers, which their format implies.
#[derive(Clone)]
struct WithMaximum;

impl Transform for WithMaximum {
    fn transform(&mut self, schema: &mut Schema) {
        let format = schema.get("format").and_then(Value::as_str);
        let maximum = match format {
            Some("uint32") => Some(json!(u32::MAX)),
            Some("uint64" | "uint") => Some(json!(u64::MAX)),
            _ => None,
        };
        if let Some(maximum) = maximum.filter(|_| schema.get("maximum").is_none()) {
            schema.insert("maximum".to_owned(), maximum);
        }
        transform_subschemas(self, schema);
    }
}

/// Makes text of the comments in the code: without examples in Rust, and without line breaks inside
/// of paragraphs.
#[derive(Clone)]
struct ReadableText;

impl Transform for ReadableText {
    fn transform(&mut self, schema: &mut Schema) {
        if let Some(Value::String(text)) = schema.get_mut("description") {
            let prose = text.split("```").next().unwrap_or_default();
            let paragraphs = prose
                .trim()
                .split("\n\n")
                .map(|text| text.replace('\n', " "));
            let paragraphs: Vec<String> = paragraphs.collect();
            *text = paragraphs
                .join("\n\n")
                .replace("[`", "`")
                .replace("`]", "`");
        }
        transform_subschemas(self, schema);
    }
}

/// Removes `null` from the fields of responses that are omitted if they have no value.
#[derive(Clone)]
struct WithoutNull;

impl Transform for WithoutNull {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let required = schema.get("required").and_then(Value::as_array);
        let required: BTreeSet<String> = required
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        let Some(Value::Object(fields)) = schema.get_mut("properties") else {
            return;
        };
        let omitted = fields
            .iter_mut()
            .filter(|(name, _)| !required.contains(*name));
        for (_, field) in omitted {
            without_null(field);
        }
    }
}

fn without_null(field: &mut Value) {
    if let Some(Value::Array(types)) = field.get_mut("type") {
        types.retain(|one| one != "null");
        if let [one] = types.as_slice() {
            field["type"] = one.clone();
        }
    }
    let Some(Value::Array(alternatives)) = field.get_mut("anyOf") else {
        return;
    };
    alternatives.retain(|one| one.get("type") != Some(&json!("null")));
    if let ([Value::Object(one)], Value::Object(field)) = (&*alternatives.clone(), field) {
        field.remove("anyOf");
        field.extend(one.clone());
    }
}
