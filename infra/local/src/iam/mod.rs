//! IAM: what the roles of the functions, the bucket policies and the queue policies of a template
//! allow, decided as AWS decides it, and a record of what was asked.
//!
//! - [`decide`] is the decision, without state: an explicit deny of any policy ends it; otherwise
//!   an allow of the role or of the resource's policy suffices, because everything is in one
//!   account; otherwise the request is denied. Source: IAM User Guide, "Policy evaluation logic".
//! - [`Statement`] is what of the policy language is supported: `Effect`, `Principal`, `Action`,
//!   `Resource` and `Condition` with wildcards. Everything else is an error when the template is
//!   read, so that no policy is evaluated by half.
//! - The modules named after services translate an operation into the actions and resources that
//!   it needs. Source: Service Authorization Reference.
//! - [`Access`] asks on behalf of the endpoints, and records which grants were used and what was
//!   denied ([`AccessRecord`]).
//!
//! Not here, because the stack has no such thing: permissions boundaries, session policies,
//! policies of organizations, other accounts, and VPC endpoints. The connection counts as encrypted
//! (`aws:SecureTransport`), although it is plain HTTP on the loopback interface.

mod access;
pub(crate) mod calls_of_dynamodb;
pub(crate) mod calls_of_s3;
pub(crate) mod calls_of_sqs;
mod conditions;
mod decision;
mod patterns;
mod policies;
mod record;
mod statement;

pub(crate) use access::Refusal;
pub use access::{Access, Asked};
pub use conditions::Context;
pub use decision::{AccessRequest, Decision, Grant, Holder, Reason, decide};
pub(crate) use policies::ResourcePolicy;
pub use policies::{Policies, Role};
pub use record::{AccessRecord, Use};
pub use statement::{Principal, Statement};
