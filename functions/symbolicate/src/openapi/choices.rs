//! Choices, in a form that generators of clients read: texts as an `enum`, and each shape under a
//! name of its own. Generators drop the fields beside a choice, and name the shapes in it by their
//! position, where names collide.

use schemars::Schema;
use schemars::transform::{Transform, transform_subschemas};
use serde_json::{Map, Value, json};

use super::schemas::PATH;

/// The fields of a schema that are a choice.
const CHOICES: [&str; 2] = ["oneOf", "anyOf"];

/// The fields of a choice between shapes that belong to each shape.
const COMMON: [&str; 3] = ["properties", "required", "type"];

/// Makes an `enum` of a choice between texts. What each text means remains in the description.
#[derive(Clone)]
pub(super) struct TextsAsEnum;

impl Transform for TextsAsEnum {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        for choice in CHOICES {
            let texts = schema.get(choice).and_then(Value::as_array);
            let texts: Option<Vec<_>> = texts.and_then(|texts| texts.iter().map(text).collect());
            let Some(texts) = texts else { continue };
            let names: Vec<&str> = texts.iter().map(|(name, _)| name.as_str()).collect();
            let (names, meanings) = (json!(names), meanings(&texts));
            let description = schema.get("description").and_then(Value::as_str);
            let paragraphs = [description.unwrap_or_default(), &meanings];
            let paragraphs = paragraphs.into_iter().filter(|text| !text.is_empty());
            let description = paragraphs.collect::<Vec<_>>().join("\n\n");
            schema.remove(choice);
            schema.insert("type".to_owned(), json!("string"));
            schema.insert("enum".to_owned(), names);
            if !description.is_empty() {
                schema.insert("description".to_owned(), description.into());
            }
        }
    }
}

/// Returns a list of the texts that have a meaning.
fn meanings(texts: &[(String, Option<String>)]) -> String {
    let lines = texts
        .iter()
        .filter_map(|(name, meaning)| Some(format!("- `{name}`: {}", meaning.as_deref()?)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the text that is the only value of a schema, and what it means.
fn text(schema: &Value) -> Option<(String, Option<String>)> {
    let text = |field| Some(schema.get(field)?.as_str()?.to_owned());
    Some((text("const")?, text("description")))
}

/// Gives a name to each shape of a choice, and to each shape the fields beside the choice.
pub(super) fn with_named_shapes(schemas: Map<String, Value>) -> Map<String, Value> {
    let mut named = Map::new();
    for (name, schema) in schemas {
        let Some((fields, field)) = choice_of_shapes(&schema) else {
            add(&mut named, name, schema);
            continue;
        };
        let mut references = Vec::new();
        name_shapes(&name, fields, &mut named, &mut references);
        let mut rest = fields.clone();
        rest.retain(|name, _| !COMMON.contains(&name.as_str()));
        rest.insert(field.to_owned(), references.into());
        add(&mut named, name, rest.into());
    }
    named
}

fn add(schemas: &mut Map<String, Value>, name: String, schema: Value) {
    let previous = schemas.insert(name.clone(), schema);
    assert!(previous.is_none(), "two schemas have the name {name}");
}

/// Adds the shapes of the choice of `schema` to `named`, and references to them to `references`.
fn name_shapes(
    name: &str,
    schema: &Map<String, Value>,
    named: &mut Map<String, Value>,
    references: &mut Vec<Value>,
) {
    let (_, shapes) = choice(schema).unwrap_or_default();
    for shape in shapes {
        let Some(fields) = shape.as_object().filter(|_| is_shape(shape)) else {
            references.push(shape.clone());
            continue;
        };
        let name = format!("{name}{}", variant(fields));
        let complete = with_common(schema, fields);
        if choice(&complete).is_some() {
            name_shapes(&name, &complete, named, references);
            continue;
        }
        references.push(json!({"$ref": format!("#{PATH}/{name}")}));
        add(named, name, complete.into());
    }
}

/// Returns the fields of a schema that is a choice between shapes, and which of them the choice is.
fn choice_of_shapes(schema: &Value) -> Option<(&Map<String, Value>, &'static str)> {
    let fields = schema.as_object()?;
    let (field, shapes) = choice(fields)?;
    shapes.iter().any(is_shape).then_some((fields, field))
}

/// Returns the choice of a schema: its field, and what may be chosen.
fn choice(schema: &Map<String, Value>) -> Option<(&'static str, &[Value])> {
    let of = |field| Some((field, schema.get(field)?.as_array()?.as_slice()));
    CHOICES.into_iter().find_map(of)
}

/// Returns whether a schema has fields of its own, and not only a reference to those of another.
fn is_shape(schema: &Value) -> bool {
    schema.get("properties").is_some()
}

/// Returns what distinguishes a shape: the text of its tag, or the field that only it has.
fn variant(shape: &Map<String, Value>) -> String {
    let fields = shape.get("properties").and_then(Value::as_object);
    let tag = fields.and_then(|fields| {
        let tags = fields.values().filter_map(|field| field.get("const"));
        tags.filter_map(Value::as_str).next()
    });
    let required = shape
        .get("required")
        .and_then(|names| names.get(0)?.as_str());
    let words = tag.or(required).unwrap_or_default().split('_');
    let in_title_case = words.map(|word| {
        let mut letters = word.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        first.chain(letters).collect::<String>()
    });
    in_title_case.collect()
}

/// Returns a shape with the fields that the schema around it has beside the choice.
fn with_common(around: &Map<String, Value>, shape: &Map<String, Value>) -> Map<String, Value> {
    let mut own = shape.clone();
    let fields = own.entry("properties").or_insert_with(|| json!({}));
    let common = around.get("properties").and_then(Value::as_object);
    for (name, field) in common.into_iter().flatten() {
        fields[name] = field.clone();
    }
    let names = [around, shape].map(|schema| schema.get("required").and_then(Value::as_array));
    let names: Vec<Value> = names.into_iter().flatten().flatten().cloned().collect();
    own.insert("required".to_owned(), names.into());
    let Some(reference) = own.remove("$ref") else {
        return own;
    };
    let description = own.remove("description");
    let mut all = Map::new();
    all.insert("allOf".to_owned(), json!([{"$ref": reference}, own]));
    all.extend(description.map(|text| ("description".to_owned(), text)));
    all
}
