//! The OpenAPI document of all routes, `docs/openapi.json`. The deployed function does not contain
//! it.
//!
//! The paths are those of the table of routes, the schemas those of the types that the service
//! parses and writes. What a request must fulfil beyond its schema is said in words: the document
//! has no rules between parameters, and the service limits bytes, where schemas count characters.

mod choices;
mod crashes;
mod examples;
mod mozilla;
mod ms_symcache;
mod operations;
mod others;
mod parameters;
mod responses;
mod schemas;

use serde_json::{Map, Value, json};

use self::schemas::Schemas;
use crate::operation::Operation;
use crate::routes::{ROUTES, Route};

/// Returns the document.
pub fn document() -> Value {
    let mut schemas = Schemas::default();
    let mut paths = Map::new();
    for route in &ROUTES {
        for path in self::paths(route) {
            let item = operations::path_item(route, &path, &mut schemas);
            // Several methods of a path are several routes.
            let of_path = paths.entry(path).or_insert_with(|| json!({}));
            for (method, operation) in item.as_object().into_iter().flatten() {
                of_path[method] = operation.clone();
            }
        }
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": info(),
        "servers": [
            {"url": "http://127.0.0.1:3021", "description": "The service on this machine: `make run`, `symdepot serve`"},
            {
                "url": "https://{api}.execute-api.{region}.amazonaws.com",
                "description": "A deployment in AWS. Requests are signed (Signature Version 4, service `execute-api`), or have an access token and a path below `/t/<token>` or `/scope/<scope>`",
                "variables": {"api": {"default": "api"}, "region": {"default": "eu-central-1"}},
            },
        ],
        "tags": tags(),
        "paths": paths,
        "components": {
            "parameters": parameters::components(&mut schemas),
            "responses": responses::components(&mut schemas),
        },
    });
    schemas.complete(&mut document);
    document
}

fn info() -> Value {
    json!({
        "title": "symdepot",
        "summary": "Native symbolication: addresses become functions, files and lines",
        "description": "The API has Symbolicator's wire format, Mozilla's symbolication API, and Microsoft's protocol for SymCaches. \
            `docs/api.md` explains it. Any path may have the prefixes `/t/<token>` and `/scope/<scope>`. Integers are sent without a fraction (`7`, not `7.0`). Requests that do not reach the service (over 10 MB, too many, not signed) are \
            answered by the gateway, with a body of `{\"message\": …}`.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
    })
}

fn tags() -> Value {
    json!([
        {"name": "crashes", "description": "A crash becomes stacks with names"},
        {"name": "uploads", "description": "Debug files, and crash files that are too large for a request"},
        {"name": "diagnosis", "description": "Why a stack has no names"},
        {"name": "symcaches", "description": "Files for other tools"},
        {"name": "service", "description": "What the service is"},
    ])
}

/// Returns the paths of a route.
fn paths(route: &Route) -> Vec<String> {
    match route.operation {
        Operation::MsSymCache => ms_symcache::paths(route.path),
        _ => vec![route.path.to_owned()],
    }
}
