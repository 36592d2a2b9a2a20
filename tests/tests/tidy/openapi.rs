//! The OpenAPI document: it is made of the routes and the types, `docs/api.md` names its paths, and
//! no deployed program contains it.

use serde_json::{Map, Value};

use crate::project::{Problems, files, read, root};

/// The committed document.
const DOCUMENT: &str = "docs/openapi.json";

fn document() -> Value {
    symbolicate::openapi::document()
}

/// With `SYMDEPOT_WRITE_API`, which `make openapi` sets, writes the document instead.
#[test]
fn the_committed_document_is_made_of_the_routes_and_the_types() {
    let made = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("SYMDEPOT_WRITE_API").is_some() {
        std::fs::write(root().join(DOCUMENT), made).unwrap();
        return;
    }
    let committed = read(DOCUMENT).unwrap_or_default();
    let differing = made
        .lines()
        .zip(committed.lines())
        .position(|(a, b)| a != b);
    let differing = differing.unwrap_or(made.lines().count().min(committed.lines().count()));
    assert!(
        made == committed,
        "{DOCUMENT}, line {}: run `make openapi`, and commit what it changes",
        differing + 1
    );
}

#[test]
fn every_reference_in_the_document_leads_to_something() {
    fn check(value: &Value, document: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    let target = reference.strip_prefix('#').unwrap();
                    assert!(document.pointer(target).is_some(), "{reference}");
                }
                fields.values().for_each(|value| check(value, document));
            }
            Value::Array(values) => values.iter().for_each(|value| check(value, document)),
            _ => {}
        }
    }
    let document = document();
    check(&document, &document);
}

/// Calls `check` with the path and the fields of every object in the document.
fn each_object(value: &Value, path: &str, check: &mut dyn FnMut(&str, &Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            check(path, fields);
            for (name, value) in fields {
                each_object(value, &format!("{path}/{name}"), check);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                each_object(value, &format!("{path}/{index}"), check);
            }
        }
        _ => {}
    }
}

/// Generators of clients make unusable code of other choices: they compare a text with the first
/// alone, give two shapes one name, send no body, or drop the fields beside a choice.
#[test]
fn a_choice_is_an_enum_of_texts_or_between_named_shapes_and_has_no_fields_beside_it() {
    let mut problems = Problems::default();
    each_object(&document(), "", &mut |path, fields| {
        let mut problem = |what: &str| problems.add(DOCUMENT, path, what);
        for choice in ["oneOf", "anyOf"] {
            let Some(Value::Array(alternatives)) = fields.get(choice) else {
                continue;
            };
            let have = |field| {
                alternatives
                    .iter()
                    .filter(move |one| one.get(field).is_some())
            };
            if have("const").count() > 0 {
                problem("write the texts as an `enum`");
            }
            if have("properties").chain(have("required")).count() > 0 {
                problem("give the shape in the choice a name, and refer to it");
            }
            if have("oneOf").chain(have("anyOf")).count() > 0 {
                problem("make one choice of the choice in another one");
            }
            if fields.contains_key("properties") {
                problem("add the fields beside the choice to each of its shapes");
            }
        }
    });
    problems.report();
}

#[test]
fn a_file_of_a_form_has_the_format_by_which_generators_of_clients_know_files() {
    each_object(&document(), "", &mut |path, fields| {
        let media_type = fields.get("contentMediaType");
        if media_type.is_some_and(|it| it == "application/octet-stream") {
            assert_eq!(fields.get("format"), Some(&"binary".into()), "{path}");
        }
    });
}

#[test]
fn the_page_about_the_api_names_every_path_of_the_document() {
    let page = read("docs/api.md").unwrap();
    let mut problems = Problems::default();
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    // The other paths of Microsoft's protocol have a prefix, or no age.
    let is_short = |path: &str| path.starts_with("/symcache/") || path.starts_with("/scope/");
    let is_row = |path: &&String| !is_short(path) && !path.ends_with("/{pdb}/{id}");
    for path in paths.keys().filter(is_row) {
        let begins_a_cell = [
            format!(" {path}`"),
            format!(" {path}?"),
            format!("`{path}`"),
        ];
        if !begins_a_cell.iter().any(|cell| page.contains(cell)) {
            problems.add("docs/api.md", path, "add the path to the first table");
        }
    }
    problems.report();
}

#[test]
fn only_the_tests_enable_the_document() {
    let mut problems = Problems::default();
    for manifest in files().iter().filter(|file| file.ends_with("Cargo.toml")) {
        let text = read(manifest).unwrap();
        let mut section = "";
        for line in text.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let is_declared = section == "[features]" && line.starts_with("openapi =");
            let is_of_tests = manifest == "tests/Cargo.toml" && section == "[dev-dependencies]";
            let is_comment = line.starts_with('#');
            if line.contains("openapi") && !is_declared && !is_of_tests && !is_comment {
                let remedy = "deployed programs do not contain the schemas: remove the feature";
                problems.add(manifest, line, remedy);
            }
        }
    }
    problems.report();
}
