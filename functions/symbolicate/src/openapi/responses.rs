//! The responses that several operations have: errors, and redirects.

use serde_json::{Value, json};
use symdepot::api::symbolicator::ErrorBody;

use super::examples;
use super::schemas::Schemas;

/// A response that several operations have.
#[derive(Clone, Copy)]
pub(super) enum Shared {
    Stored,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    TooLarge,
    NoForm,
    Unprocessable,
    Internal,
    Unavailable,
}

/// What the operations with a body in JSON may fail with.
pub(super) const OF_BODIES: [Shared; 5] = [
    Shared::BadRequest,
    Shared::TooLarge,
    Shared::Unprocessable,
    Shared::Internal,
    Shared::Unavailable,
];

impl Shared {
    const ALL: [Self; 10] = [
        Self::Stored,
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::TooLarge,
        Self::NoForm,
        Self::Unprocessable,
        Self::Internal,
        Self::Unavailable,
    ];

    /// Returns its status and its name.
    fn key(self) -> (&'static str, &'static str) {
        match self {
            Self::Stored => ("303", "Stored"),
            Self::BadRequest => ("400", "BadRequest"),
            Self::Unauthorized => ("401", "Unauthorized"),
            Self::Forbidden => ("403", "Forbidden"),
            Self::NotFound => ("404", "NotFound"),
            Self::TooLarge => ("413", "TooLarge"),
            Self::NoForm => ("415", "NoForm"),
            Self::Unprocessable => ("422", "Unprocessable"),
            Self::Internal => ("500", "Internal"),
            Self::Unavailable => ("503", "Unavailable"),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Stored => {
                "The response has more than 4,608,000 bytes: it is at the `Location`, for 15 minutes and without authentication."
            }
            Self::BadRequest => "The query, the syntax of the body, or a part of a form is wrong.",
            Self::Unauthorized => {
                "The request has no credential, or an access token that is unknown, expired or revoked."
            }
            Self::Forbidden => {
                "The credential lacks the right, or is not valid in the scope of the request."
            }
            Self::NotFound => {
                "What the request refers to does not exist, or does not exist any more."
            }
            Self::TooLarge => {
                "The request, or its response, exceeds a limit, which the error names."
            }
            Self::NoForm => "The crash file was not sent as `multipart/form-data`.",
            Self::Unprocessable => {
                "The body is JSON, but not a valid request. The cause names the field."
            }
            Self::Internal => "An internal error.",
            Self::Unavailable => {
                "A store, or the host of a `storage_url`, failed, or the time was up. Nothing of it is cached: send the request again."
            }
        }
    }

    /// Returns whether the gateway gives such responses, too.
    fn is_of_gateway(self) -> bool {
        matches!(
            self,
            Self::Unauthorized
                | Self::Forbidden
                | Self::TooLarge
                | Self::Internal
                | Self::Unavailable
        )
    }
}

/// Returns references to shared responses, by status.
pub(super) fn shared(all: &[Shared]) -> impl Iterator<Item = (String, Value)> {
    all.iter().map(|one| {
        let (status, name) = one.key();
        let reference = json!({"$ref": format!("#/components/responses/{name}")});
        (status.to_owned(), reference)
    })
}

/// Returns the shared responses, by name.
pub(super) fn components(schemas: &mut Schemas) -> Value {
    let error = schemas.response::<ErrorBody>();
    let gateway = json!({
        "description": "An error of the gateway.",
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    });
    let gateway = schemas.named_response("GatewayError", gateway);
    let mut responses = json!({});
    for one in Shared::ALL {
        let (_, name) = one.key();
        responses[name] = match one {
            Shared::Stored => redirect(one.description()),
            _ => {
                let schema = if one.is_of_gateway() {
                    json!({"anyOf": [error, gateway]})
                } else {
                    error.clone()
                };
                let content = match one {
                    Shared::Unprocessable => {
                        json!({"schema": schema, "example": examples::unprocessable()})
                    }
                    _ => json!({"schema": schema}),
                };
                json!({"description": one.description(), "content": {"application/json": content}})
            }
        };
    }
    responses
}

/// Returns a response that redirects.
pub(super) fn redirect(description: &str) -> Value {
    json!({
        "description": description,
        "headers": {"Location": {"required": true, "schema": {"type": "string", "format": "uri"}}},
    })
}

/// Returns a response with JSON.
pub(super) fn json_of(description: &str, schema: Value, examples: Value) -> Value {
    json!({
        "description": description,
        "content": {"application/json": {"schema": schema, "examples": examples}},
    })
}
