//! Schemas of texts whose types are those of other crates, or have rules of their own, for the
//! OpenAPI document.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{HttpSource, Scope};

/// The schema of a debug id, as responses have it.
pub(crate) struct DebugIdText;

impl JsonSchema for DebugIdText {
    fn schema_name() -> Cow<'static, str> {
        "DebugId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A debug id: a UUID, or the time stamp of a PDB of version 2, and the age unless it is zero.",
            "type": "string",
            "pattern": "^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9A-F]{8})(-[0-9a-f]{1,8})?$",
            "examples": ["bc6e45ac-487f-f425-3672-08b89f51ad48", "502fc0a5-1ec1-3e47-9998-684fa139dca7-a"],
        })
    }
}

/// The schema of a code id, as responses have it.
pub(crate) struct CodeIdText;

impl JsonSchema for CodeIdText {
    fn schema_name() -> Cow<'static, str> {
        "CodeId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A code id: the build id of an ELF file, the UUID of a Mach-O file, time stamp and size of a PE file.",
            "type": "string",
            "pattern": "^[0-9a-f]*$",
            "examples": ["ac456ebc7f4825f4367208b89f51ad48a1b2c3d4"],
        })
    }
}

/// The schema of the name of a language.
pub(crate) struct LanguageName;

impl JsonSchema for LanguageName {
    fn schema_name() -> Cow<'static, str> {
        "Language".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A programming language.",
            "type": "string",
            "enum": [
                "unknown", "c", "cpp", "d", "go", "objc", "objcpp", "rust", "swift", "csharp", "visualbasic", "fsharp",
            ],
        })
    }
}

impl JsonSchema for Scope {
    fn schema_name() -> Cow<'static, str> {
        "Scope".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A scope: `global`, or the name of a tenant of at most 128 bytes.",
            "type": "string",
            "minLength": 1,
            "maxLength": Scope::MAX_BYTES,
            "pattern": r"^[^/\u0000-\u001f\u007f-\u009f]+$",
            "not": {"enum": Scope::RESERVED},
            "examples": ["global"],
        })
    }
}

/// The schema of headers that are sent to a server.
pub(crate) fn headers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Headers, by name. Those that control the connection are refused.",
        "type": "object",
        "maxProperties": HttpSource::MAX_HEADERS,
        "propertyNames": {"pattern": "^[-!#$%&'*+.^_`|~0-9A-Za-z]+$"},
        "additionalProperties": {"type": "string", "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"},
        "default": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Language;

    #[test]
    fn every_language_is_in_the_schema() {
        let schema = LanguageName::json_schema(&mut SchemaGenerator::default());
        let names = schema.get("enum").unwrap().as_array().unwrap();
        let all = (0..).map(Language::from_u32);
        let all = all
            .enumerate()
            .take_while(|(index, language)| *index == 0 || *language != Language::Unknown);
        let all: Vec<&str> = all.map(|(_, language)| language.name()).collect();
        assert_eq!(names, &all);
    }
}
