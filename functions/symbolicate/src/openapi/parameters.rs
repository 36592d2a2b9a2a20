//! The parameters of the operations.

use serde_json::{Value, json};
use symdepot::domain::Scope;

use super::schemas::Schemas;

/// A debug id in a query.
const DEBUG_ID: &str =
    "^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(-[0-9a-fA-F]{1,8})?|[0-9a-fA-F]{32,40})$";

/// A version of the format of Microsoft's SymCaches.
const VERSION: &str = r"^[0-9]{1,4}\.[0-9]{1,2}\.[0-9]{1,2}$";

/// Returns a reference to a parameter.
pub(super) fn parameter(name: &str) -> Value {
    json!({"$ref": format!("#/components/parameters/{name}")})
}

/// Returns all parameters, by name.
pub(super) fn components(schemas: &mut Schemas) -> Value {
    let scope = schemas.request::<Scope>();
    let query = |name: &str, description: &str, schema: Value| json!({"name": name, "in": "query", "description": description, "schema": schema});
    let text = || json!({"type": "string"});
    json!({
        "timeout": query(
            "timeout",
            "The time to wait for builds, in seconds. Values above 25 wait for 25.",
            json!({"type": "integer", "format": "uint64", "minimum": 0, "maximum": u64::MAX, "default": 25}),
        ),
        "scope": query(
            "scope",
            "The scope whose uploads are read, before those of `global`.",
            scope.clone(),
        ),
        "upload_scope": query(
            "scope",
            "The scope that the files are for. If the body names one, too, they are equal.",
            scope.clone(),
        ),
        "format": query(
            "format",
            "The schema of the answer to a minidump.",
            json!({"type": "string", "enum": ["symbolicator", "stackwalk"], "default": "symbolicator"}),
        ),
        "page": query(
            "page",
            "The page, from 1.",
            json!({"type": "integer", "format": "uint64", "minimum": 1, "maximum": u64::MAX, "default": 1}),
        ),
        "key": query(
            "key",
            "The key of an upload, which begins with its scope. Only `scope` may be given besides.",
            json!({"type": "string", "minLength": 1, "examples": ["global/crash.debug"]}),
        ),
        "debug_id": query(
            "debug_id",
            "The debug id of a module.",
            json!({"type": "string", "pattern": DEBUG_ID, "not": {"pattern": "^[-0]+$"}, "examples": ["bc6e45ac-487f-f425-3672-08b89f51ad48"]}),
        ),
        "code_id": query(
            "code_id",
            "The code id of a module. Characters that are not hexadecimal digits are ignored.",
            json!({"type": "string", "pattern": "[1-9a-fA-F]", "examples": ["ac456ebc7f4825f4367208b89f51ad481774aae7"]}),
        ),
        "token_id": {
            "name": "id", "in": "path", "required": true,
            "description": "The id of an access token, as the list has it.",
            "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        },
        "source": query("source", "Only this source: `uploads`, or the id of a configured one.", text()),
        "type": query("type", "The type of the module, for symbol servers.", json!({"type": "string", "examples": ["pe"]})),
        "code_file": query("code_file", "The code file of the module, for symbol servers.", text()),
        "debug_file": query("debug_file", "The debug file of the module, for symbol servers.", text()),
    })
}

/// Returns the parameters of a path of Microsoft's protocol.
pub(super) fn of_ms_sym_cache(path: &str, schemas: &mut Schemas) -> Vec<Value> {
    let in_path = |name: &str, description: &str, schema: Value| json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema});
    let all = [
        in_path(
            "scope",
            "The scope whose uploads are read, before those of `global`.",
            schemas.request::<Scope>(),
        ),
        in_path(
            "version",
            "The highest version of the format that the client reads.",
            json!({"type": "string", "pattern": VERSION, "examples": ["3.1.0"]}),
        ),
        in_path(
            "pdb",
            "The file name of the PDB.",
            json!({"type": "string", "pattern": "^[^/\\\\]+$", "maxLength": 255, "examples": ["app.pdb"]}),
        ),
        in_path(
            "id",
            "The GUID of the PDB.",
            json!({"type": "string", "pattern": "^[0-9a-fA-F]{32}$", "examples": ["ee78a075f42847b888239eed88fa9c34"]}),
        ),
        in_path(
            "age",
            "The age of the PDB, in decimal. It is 1 if it is omitted.",
            json!({"type": "integer", "format": "uint32", "minimum": 0, "maximum": u32::MAX}),
        ),
    ];
    let is_in_path = |parameter: &Value| {
        let name = parameter["name"].as_str().unwrap_or_default();
        path.contains(&format!("{{{name}}}"))
    };
    let mut parameters: Vec<Value> = all.into_iter().filter(is_in_path).collect();
    let in_header = |name: &str, description: &str, schema: Value| json!({"name": name, "in": "header", "description": description, "schema": schema});
    let allow = "`true`: the client sends the request again after the time in `Retry-After`. Clients of versions above 3.1.0 always do.";
    parameters.extend([
        in_header(
            "If-Version-Exceeds",
            "The version of the file that the client has. It is less than the requested version.",
            json!({"type": "string", "pattern": VERSION, "examples": ["3.0.0"]}),
        ),
        in_header(
            "Allow-Retry-After",
            allow,
            json!({"type": "string", "examples": ["true"]}),
        ),
        in_header(
            "Accept-Retry-After",
            "The same.",
            json!({"type": "string", "examples": ["true"]}),
        ),
    ]);
    parameters
}
