//! The operations: what each route is for, what it accepts and what it answers.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::parameters::parameter;
use super::responses::{Shared, shared};
use super::schemas::Schemas;
use super::{crashes, mozilla, ms_symcache, others};
use crate::operation::Operation;
use crate::routes::Route;

/// An operation of the document.
pub(super) struct Described {
    id: String,
    tag: &'static str,
    summary: &'static str,
    description: &'static str,
    pub(super) parameters: Vec<Value>,
    body: Option<Value>,
    responses: Map<String, Value>,
}

impl Described {
    pub(super) fn new(
        id: &str,
        tag: &'static str,
        summary: &'static str,
        description: &'static str,
    ) -> Self {
        Self {
            id: id.to_owned(),
            tag,
            summary,
            description,
            parameters: Vec::new(),
            body: None,
            responses: Map::new(),
        }
    }

    pub(super) fn with_parameters(self, names: &[&str]) -> Self {
        let parameters = names.iter().map(|name| parameter(name)).collect();
        Self { parameters, ..self }
    }

    pub(super) fn with_body(self, content_type: &str, content: Value) -> Self {
        let body = Some(json!({"required": true, "content": {content_type: content}}));
        Self { body, ..self }
    }

    pub(super) fn with_json<T: JsonSchema>(self, schemas: &mut Schemas, examples: Value) -> Self {
        let schema = schemas.request::<T>();
        self.with_body(
            "application/json",
            json!({"schema": schema, "examples": examples}),
        )
    }

    pub(super) fn answers(mut self, status: &str, response: Value) -> Self {
        self.responses.insert(status.to_owned(), response);
        self
    }

    pub(super) fn may_fail(mut self, with: &[Shared]) -> Self {
        self.responses.extend(shared(with));
        self
    }

    /// Returns it as the document has it. Any request may be refused for its credential.
    pub(super) fn operation(self) -> Value {
        let this = self.may_fail(&[Shared::Unauthorized, Shared::Forbidden]);
        this.written()
    }

    fn written(self) -> Value {
        let mut operation = json!({
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "responses": self.responses,
        });
        if !self.description.is_empty() {
            operation["description"] = self.description.into();
        }
        if !self.parameters.is_empty() {
            operation["parameters"] = self.parameters.into();
        }
        if let Some(body) = self.body {
            operation["requestBody"] = body;
        }
        operation
    }
}

/// Returns the operations of a route at one of its paths, by method.
pub(super) fn path_item(route: &Route, path: &str, schemas: &mut Schemas) -> Value {
    let described = match route.operation {
        Operation::Symbolicate => crashes::symbolicate(schemas),
        Operation::Minidump => crashes::minidump(schemas),
        Operation::AppleCrashReport => crashes::apple_crash_report(schemas),
        Operation::SymbolicateAny => crashes::symbolicate_any(schemas),
        Operation::SymbolicateJobs => mozilla::symbolicate_jobs(schemas),
        Operation::Attachments => crashes::attachments(schemas),
        Operation::ContinueRequest => crashes::continue_request(schemas),
        Operation::Uploads => others::uploads(schemas),
        Operation::Explain => others::explain(schemas),
        Operation::SymCache => others::symcache(),
        Operation::Rollout => others::rollout(schemas),
        Operation::Wanted => others::wanted(schemas),
        Operation::IssueToken => others::issue_token(schemas),
        Operation::ListTokens => others::list_tokens(schemas),
        Operation::RevokeToken => others::revoke_token(),
        Operation::About => others::about(schemas),
        Operation::HealthCheck => others::health_check(),
        Operation::MsSymCache => {
            let [get, head] = ms_symcache::operations(path, schemas);
            return json!({"get": get.operation(), "head": head.operation()});
        }
    };
    json!({route.verb.name().to_lowercase(): described.operation()})
}
