//! The operations of Microsoft's protocol for SymCaches.

use serde_json::json;

use super::operations::Described;
use super::parameters;
use super::responses::{Shared, redirect};
use super::schemas::Schemas;

/// The prefixes of the paths.
const PREFIXES: [&str; 3] = ["", "/symcache", "/scope/{scope}"];

/// The last segment of the paths, which may be omitted.
const AGE: &str = "/{age}";

/// Returns all paths of the protocol, made of the one with an age and without a prefix.
pub(super) fn paths(path: &'static str) -> Vec<String> {
    let without_age = path.strip_suffix(AGE).unwrap_or(path);
    let paths = PREFIXES
        .iter()
        .flat_map(|prefix| [without_age, path].map(|path| format!("{prefix}{path}")));
    paths.collect()
}

/// Describes a path of Microsoft's protocol: `GET` and `HEAD`.
pub(super) fn operations(path: &str, schemas: &mut Schemas) -> [Described; 2] {
    let mut name = String::new();
    for (part, words) in [
        ("/symcache", "Prefixed"),
        ("{scope}", "Scoped"),
        ("{age}", "WithAge"),
    ] {
        if path.contains(part) {
            name.push_str(words);
        }
    }
    let parameters = parameters::of_ms_sym_cache(path, schemas);
    let media_type = json!({"required": true, "schema": {"type": "string"}});
    let found = "The client reads a file, whose version is in `Content-Type`";
    let mut redirected = redirect(&format!("{found}, at the `Location`."));
    redirected["headers"]["Content-Type"] = media_type.clone();
    let head = json!({"description": format!("{found}."), "headers": {"Content-Type": media_type}});
    [("get", "302", redirected), ("head", "200", head)].map(|(method, status, response)| {
        let mut described = described(&format!("{method}MsSymCache{name}"));
        described.parameters.clone_from(&parameters);
        described.answers(status, response)
    })
}

fn described(id: &str) -> Described {
    let later = json!({
        "Retry-After": {"description": "The time in seconds after which the client asks again.", "schema": {"type": "integer"}},
    });
    let bad_header = json!({
        "description": "`If-Version-Exceeds` is wrong.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    });
    Described::new(
        id,
        "symcaches",
        "Redirects to a file of Microsoft's protocol for SymCaches",
        "",
    )
    .answers("304", json!({"description": "The file that the client has is as good."}))
    .answers("400", bad_header)
    .answers("404", json!({
        "description": "There is no such file. With `Retry-After`, this is not known yet.",
        "headers": later,
    }))
    .answers("503", json!({
        "description": "With `Retry-After`: it is not known yet whether there is such a file. Otherwise, the service failed, and the body is an error.",
        "headers": later,
    }))
    .may_fail(&[Shared::Internal])
}
