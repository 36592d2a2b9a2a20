//! Schemas of the types whose JSON is written or parsed by code of their own, for the OpenAPI
//! document.

use std::borrow::Cow;

use schemars::generate::Contract;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::advice::{Advice, WrittenAdvice};
use super::crash::attachment::STORAGE_URL_BYTES;
use super::symbolicator::{AddrMode, Hex, SourceRef, Variables};
use crate::domain::schema::{CodeIdText, DebugIdText};
use crate::domain::{HttpSource, ObjectType};

impl JsonSchema for Hex {
    fn schema_name() -> Cow<'static, str> {
        "Hex".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        match generator.contract() {
            Contract::Serialize => json_schema!({
                "description": "A 64-bit number in hexadecimal digits.",
                "type": "string",
                "pattern": "^0x[0-9a-f]{1,16}$",
                "examples": ["0x555555557950"],
            }),
            _ => json_schema!({
                "description": "A 64-bit number: in hexadecimal digits after `0x`, or in decimal, as a text or a number.",
                "anyOf": [
                    {"type": "string", "pattern": "^(0[xX]0*[0-9a-fA-F]{1,16}|0*[0-9]{1,19})$"},
                    {"type": "integer", "format": "uint64", "minimum": 0},
                ],
                "examples": ["0x555555557950", "93824992246096", 93_824_992_246_096_u64],
            }),
        }
    }
}

impl JsonSchema for AddrMode {
    fn schema_name() -> Cow<'static, str> {
        "AddrMode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "What an address is relative to: `abs` to nothing, `rel:N` to the start of the module with the index N in `modules`, from 0.",
            "type": "string",
            "pattern": "^(abs|rel:0*[0-9]{1,19})$",
            "default": "abs",
            "examples": ["rel:0"],
        })
    }
}

impl JsonSchema for Variables {
    fn schema_name() -> Cow<'static, str> {
        "Variables".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The variables of a function, by name. They are passed on as they were sent.",
            "type": "object",
            "examples": [{"index": 7}],
        })
    }
}

impl JsonSchema for SourceRef {
    fn schema_name() -> Cow<'static, str> {
        "SourceRef".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A source: the id of a configured one (`uploads` or an id of the operator's list), or the definition of one, where the operator allows requests to define sources.",
            "anyOf": [
                {"type": "string", "maxLength": HttpSource::MAX_ID_BYTES},
                generator.subschema_for::<HttpSource>(),
            ],
        })
    }
}

impl JsonSchema for WrittenAdvice {
    fn schema_name() -> Cow<'static, str> {
        "Advice".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let example = WrittenAdvice::from(Advice::NoId {
            object_type: ObjectType::Elf,
        });
        json_schema!({
            "description": "Why a response is incomplete, and what to do next.",
            "type": "object",
            "properties": {
                "cause": {"description": "The cause, for programs.", "type": "string", "enum": Advice::CAUSES},
                "detail": {"description": "The cause, for people.", "type": "string"},
                "next_step": {"description": "What to do about it.", "type": "string"},
            },
            "required": ["cause", "detail", "next_step"],
            "examples": [example],
        })
    }
}

/// The type of a module: in requests, unknown texts are allowed.
pub(crate) fn module_type(generator: &mut SchemaGenerator) -> Schema {
    match generator.contract() {
        Contract::Serialize => generator.subschema_for::<crate::domain::ObjectType>(),
        _ => json_schema!({
            "description": "The type of the module: `elf`, `macho`, `pe`, `pe_dotnet` or `wasm`. Other texts are the type `unknown`.",
            "type": "string",
            "examples": ["elf"],
        }),
    }
}

/// The code id of a module. That of a request may have other characters than digits, which are
/// dropped.
pub(crate) fn module_code_id(generator: &mut SchemaGenerator) -> Schema {
    match generator.contract() {
        Contract::Serialize => generator.subschema_for::<CodeIdText>(),
        _ => json_schema!({
            "description": "The code id: the build id of an ELF file as `readelf -n` prints it, the UUID of a Mach-O file, time stamp and size of a PE file. Characters that are not hexadecimal digits are ignored, and so is an id without digits.",
            "type": ["string", "null"],
            "examples": ["ac456ebc7f4825f4367208b89f51ad48a1b2c3d4"],
        }),
    }
}

/// The debug id of a module. That of a request is ignored if it is not one.
pub(crate) fn module_debug_id(generator: &mut SchemaGenerator) -> Schema {
    match generator.contract() {
        Contract::Serialize => generator.subschema_for::<DebugIdText>(),
        _ => json_schema!({
            "description": "The debug id: that of a PDB, the UUID of a Mach-O file, or 16 bytes of the build id of an ELF file in another order (send the build id as `code_id` instead). An invalid one is ignored.",
            "type": ["string", "null"],
            "examples": ["bc6e45ac-487f-f425-3672-08b89f51ad48"],
        }),
    }
}

/// The place of a stored crash file.
pub(crate) fn storage_url(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Where the file is: the `storage_url` of an attachment, or an https address of a host that the operator allows.",
        "type": "string",
        "maxLength": STORAGE_URL_BYTES,
        "anyOf": [
            {"pattern": "^attachment:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[1-9][0-9]{0,8}$"},
            {"pattern": "^https://", "format": "uri"},
        ],
        "examples": ["attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/209715200"],
    })
}
