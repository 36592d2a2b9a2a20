//! What the endpoints ask: may the signer of a request do this?

use std::sync::Arc;

use super::conditions::Context;
use super::decision::{AccessRequest, Decision, Grant, Holder, Reason, decide};
use super::policies::Policies;
use super::record::{AccessRecord, Use};
use super::statement::{Principal, Statement};
use crate::identity::{self, ACCOUNT, LOCAL, REGION, Signer, function_arn};

/// The permissions of a stack. Clones share them.
///
/// [`Access::default`] allows everything to everyone, for services that run alone, without a
/// template.
#[derive(Clone, Debug, Default)]
pub struct Access(Option<Arc<Enforced>>);

#[derive(Debug)]
struct Enforced {
    policies: Policies,
    record: AccessRecord,
    administrator: [Statement; 1],
}

/// One action on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The action: `s3:GetObject`.
    pub action: String,
    /// The ARN of the resource.
    pub resource: String,
    /// The condition keys that only this service sets.
    pub context: Context,
}

impl Asked {
    /// Returns an action without condition keys of its own.
    pub fn new(action: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            action: action.into(),
            resource: resource.into(),
            context: Context::default(),
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// No policy allows it, or one denies it.
    #[error("{0}")]
    Denied(String),
    /// The access key is not one of this stack.
    #[error("The security token included in the request is invalid")]
    UnknownKey,
    /// There is no signature.
    #[error("Missing Authentication Token")]
    Unsigned,
}

/// The caller, with the policies of its role.
struct CallerIdentity<'a> {
    principal: Principal,
    /// As shown in errors.
    shown: String,
    holder: Option<Holder<'a>>,
    /// The name under which uses are recorded; `None` for clients, which are not.
    recorded: Option<&'a str>,
    /// The ARN of the function whose code calls; `None` for clients and services, also for Lambda,
    /// which uses the role of the function itself.
    source_function: Option<String>,
}

impl Access {
    /// Enforces the policies of a template.
    #[must_use]
    pub fn enforcing(policies: Policies, record: AccessRecord) -> Self {
        Self(Some(Arc::new(Enforced {
            policies,
            record,
            administrator: [Statement::of_administrator()],
        })))
    }

    /// Returns whether policies are enforced.
    pub(crate) fn is_enforced(&self) -> bool {
        self.0.is_some()
    }

    /// Returns all grants of the template, and what the roles used and were denied so far.
    #[must_use]
    pub fn report(&self) -> (Vec<Grant>, Vec<Use>) {
        self.0.as_ref().map_or_else(Default::default, |enforced| {
            (enforced.policies.grants(), enforced.record.uses())
        })
    }

    /// Decides about everything that a request asks for; the signer is known by its access key.
    pub(crate) fn check(&self, access_key: Option<&str>, asked: &[Asked]) -> Result<(), Refusal> {
        let Some(enforced) = &self.0 else {
            return Ok(());
        };
        let caller = enforced.caller(access_key)?;
        asked
            .iter()
            .try_for_each(|one| enforced.judge(&caller, one))
    }

    /// Decides whether a service of AWS may do something on its own, such as S3 sending an event.
    pub(crate) fn check_service(&self, name: &'static str, asked: &Asked) -> Result<(), Refusal> {
        let Some(enforced) = &self.0 else {
            return Ok(());
        };
        let caller = CallerIdentity {
            principal: Principal::Service(name),
            shown: name.to_owned(),
            holder: None,
            recorded: Some(name),
            source_function: None,
        };
        enforced.judge(&caller, asked)
    }

    /// Decides whether Lambda may run a function with its role, and do with that role what it does
    /// for the function.
    pub(crate) fn check_lambda(&self, function: &str, asked: &[Asked]) -> Result<(), Refusal> {
        let Some(enforced) = &self.0 else {
            return Ok(());
        };
        let Some(role) = enforced.policies.roles.get(function) else {
            return Err(Refusal::UnknownKey);
        };
        let lambda = Principal::Service("lambda.amazonaws.com");
        let context = Context::default();
        let assume = AccessRequest {
            principal: &lambda,
            action: "sts:AssumeRole",
            resource: &role.arn(),
            context: &context,
        };
        let trust = Holder {
            name: &role.name,
            statements: &role.trust,
        };
        if let Decision::Denied(_) = decide(None, Some(trust), &assume) {
            let text = format!(
                "The role defined for the function cannot be assumed by Lambda: {}",
                role.name
            );
            return Err(Refusal::Denied(text));
        }
        let caller = enforced.of_function(function, "lambda")?;
        asked
            .iter()
            .try_for_each(|one| enforced.judge(&caller, one))
    }
}

impl Enforced {
    fn caller(&self, access_key: Option<&str>) -> Result<CallerIdentity<'_>, Refusal> {
        let Some(access_key) = access_key else {
            return Err(Refusal::Unsigned);
        };
        match Signer::of(access_key) {
            Signer::Outside if access_key == LOCAL.access_key_id => Ok(CallerIdentity {
                principal: Principal::Arn(format!("arn:aws:iam::{ACCOUNT}:user/local")),
                shown: format!("arn:aws:iam::{ACCOUNT}:user/local"),
                holder: Some(Holder {
                    name: "local",
                    statements: &self.administrator,
                }),
                recorded: None,
                source_function: None,
            }),
            Signer::Function(Some(process)) => Ok(CallerIdentity {
                source_function: Some(function_arn(process.function)),
                ..self.of_function(process.function, process.function)?
            }),
            Signer::Outside | Signer::Function(None) => Err(Refusal::UnknownKey),
        }
    }

    fn of_function(&self, function: &str, session: &str) -> Result<CallerIdentity<'_>, Refusal> {
        let role = self
            .policies
            .roles
            .get(function)
            .ok_or(Refusal::UnknownKey)?;
        Ok(CallerIdentity {
            principal: role.principal(),
            shown: format!(
                "arn:aws:sts::{ACCOUNT}:assumed-role/{}/{session}",
                role.name
            ),
            holder: Some(role.holder()),
            recorded: Some(&role.name),
            source_function: None,
        })
    }

    fn judge(&self, caller: &CallerIdentity<'_>, asked: &Asked) -> Result<(), Refusal> {
        let context = asked.context.clone();
        let context = context
            .with("aws:SecureTransport", "true")
            .with("aws:RequestedRegion", REGION)
            .with("aws:ResourceAccount", ACCOUNT);
        let context = match &caller.principal {
            Principal::Arn(arn) => context
                .with("aws:PrincipalArn", arn)
                .with("aws:PrincipalAccount", ACCOUNT),
            Principal::Service(_) | Principal::Anonymous => context,
        };
        let context = context.with_some(
            "lambda:SourceFunctionArn",
            caller.source_function.as_deref(),
        );
        let request = AccessRequest {
            principal: &caller.principal,
            action: &asked.action,
            resource: &asked.resource,
            context: &context,
        };
        let of_resource = self.policies.of_resource(&asked.resource);
        let (grants, denied) = match decide(caller.holder, of_resource, &request) {
            Decision::Allowed(grants) => (grants, None),
            Decision::Denied(reason) => (Vec::new(), Some(said(caller, asked, &reason))),
        };
        if let Some(by) = caller.recorded {
            if denied.is_some() {
                tracing::warn!(%by, action = %asked.action, resource = %asked.resource, "denied by the policies of the template");
            }
            self.record.note(Use {
                by: by.to_owned(),
                action: asked.action.clone(),
                resource: asked.resource.clone(),
                grants,
                denied: denied.clone(),
                calls: 1,
            });
        }
        denied.map_or(Ok(()), |text| Err(Refusal::Denied(text)))
    }
}

/// Returns the text of the error. Source: IAM User Guide, "Troubleshoot access denied error
/// messages".
fn said(caller: &CallerIdentity<'_>, asked: &Asked, reason: &Reason) -> String {
    let Asked {
        action, resource, ..
    } = asked;
    let because = match reason {
        Reason::Implicit if caller.holder.is_some() => {
            format!("because no identity-based policy allows the {action} action")
        }
        Reason::Implicit => {
            format!("because no resource-based policy allows the {action} action")
        }
        Reason::Explicit {
            is_of_resource: true,
            ..
        } => "with an explicit deny in a resource-based policy".to_owned(),
        Reason::Explicit { .. } => "with an explicit deny in an identity-based policy".to_owned(),
    };
    format!(
        "User: {} is not authorized to perform: {action} on resource: \"{resource}\" {because}",
        caller.shown
    )
}

/// Returns the ARN of a table that a request names, by its name or by its ARN.
pub(super) fn table_arn(name: &str) -> String {
    if name.starts_with("arn:") {
        name.to_owned()
    } else {
        format!(
            "arn:aws:dynamodb:{}:{ACCOUNT}:table/{name}",
            identity::REGION
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::policies::Role;
    use super::*;
    use crate::identity::FunctionProcess;

    /// Lambda uses the role of a function, too, for what the code of the function may be denied.
    #[test]
    fn a_denial_may_be_about_the_code_of_a_function_alone() {
        let function = "arn:aws:lambda:us-east-1:000000000000:function:*";
        let statements = [
            json!({"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}),
            json!({
                "Effect": "Deny", "Action": "sqs:ReceiveMessage", "Resource": "*",
                "Condition": {"ArnLike": {"lambda:SourceFunctionArn": function}},
            }),
        ];
        let role = Role {
            statements: statements
                .iter()
                .map(|statement| Statement::of_role(statement).unwrap())
                .collect(),
            ..Role::generated("Probe")
        };
        let mut policies = Policies::default();
        policies.roles.insert("probe".to_owned(), role);
        let access = Access::enforcing(policies, AccessRecord::default());
        let process = FunctionProcess {
            function: "probe",
            process: "1",
        };
        let asked = |action| {
            [Asked::new(
                action,
                "arn:aws:sqs:us-east-1:000000000000:orders",
            )]
        };
        let of_code = |action| access.check(Some(&process.access_key()), &asked(action));
        assert_eq!(of_code("sqs:SendMessage"), Ok(()));
        let denied = of_code("sqs:ReceiveMessage").unwrap_err().to_string();
        assert!(denied.contains("explicit deny"), "{denied}");
        let of_lambda = access.check_lambda("probe", &asked("sqs:ReceiveMessage"));
        assert_eq!(of_lambda, Ok(()));
    }
}
