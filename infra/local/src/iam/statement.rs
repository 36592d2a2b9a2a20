//! Statements of policies.
//!
//! Source: IAM User Guide, "IAM JSON policy elements reference".

use serde_json::Value;

use super::conditions::{Condition, Context, texts};
use super::patterns;
use crate::identity::ACCOUNT;

/// Who makes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// The ARN of a role or of a user.
    Arn(String),
    /// A service of AWS, such as `lambda.amazonaws.com`.
    Service(&'static str),
    /// No credentials.
    Anonymous,
}

/// Whom the statement of a resource's policy is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whom {
    Everyone,
    Arn(String),
    Service(String),
}

impl Whom {
    /// Reads the `Principal` of a statement.
    fn read(value: &Value) -> Result<Vec<Self>, String> {
        let unsupported = |what: &str| {
            format!(
                "Principal {what} is not supported by the local stack, only \"*\", ARNs of roles and services"
            )
        };
        let kinds = match value {
            Value::String(text) if text == "*" => return Ok(vec![Self::Everyone]),
            Value::Object(kinds) => kinds,
            other => return Err(unsupported(&other.to_string())),
        };
        let mut whom = Vec::new();
        for (kind, names) in kinds {
            for name in texts(names).ok_or_else(|| unsupported(kind))? {
                whom.push(match kind.as_str() {
                    "AWS" if name == "*" => Self::Everyone,
                    "AWS" if name.contains(":role/") && !name.contains('*') => Self::Arn(name),
                    "Service" => Self::Service(name),
                    _ => return Err(unsupported(&format!("{kind} {name}"))),
                });
            }
        }
        Ok(whom)
    }

    fn is(&self, principal: &Principal) -> bool {
        match (self, principal) {
            (Self::Everyone, _) => true,
            (Self::Arn(wanted), Principal::Arn(arn)) => wanted == arn,
            (Self::Service(wanted), Principal::Service(name)) => wanted == name,
            _ => false,
        }
    }
}

/// A statement of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    is_allow: bool,
    /// `None` in the policy of a role: it is about the role.
    whom: Option<Vec<Whom>>,
    actions: Vec<String>,
    resources: Vec<String>,
    conditions: Vec<Condition>,
}

impl Statement {
    /// Reads a statement of the policy of a role.
    ///
    /// # Errors
    /// Returns an error, without a full stop, if the statement has something that is not supported
    /// or not valid.
    pub fn of_role(value: &Value) -> Result<Self, String> {
        Self::read(value, false, true)
    }

    /// Reads a statement of the policy of a bucket or queue.
    ///
    /// # Errors
    /// As [`Statement::of_role`].
    pub fn of_resource(value: &Value) -> Result<Self, String> {
        Self::read(value, true, true)
    }

    /// Reads a statement of a trust policy: who may assume a role.
    ///
    /// # Errors
    /// As [`Statement::of_role`].
    pub fn of_trust(value: &Value) -> Result<Self, String> {
        Self::read(value, true, false)
    }

    fn read(value: &Value, has_principal: bool, has_resource: bool) -> Result<Self, String> {
        let Some(fields) = value.as_object() else {
            return Err("a statement must be a map".to_owned());
        };
        let known = [
            "Sid",
            "Effect",
            "Principal",
            "Action",
            "Resource",
            "Condition",
        ];
        if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!(
                "{unknown} of a statement is not supported by the local stack"
            ));
        }
        let list = |name: &str| {
            let values = fields.get(name).and_then(texts);
            values
                .ok_or_else(|| format!("{name} of a statement is missing or not a list of strings"))
        };
        let is_allow = match fields.get("Effect").and_then(Value::as_str) {
            Some("Allow") => true,
            Some("Deny") => false,
            _ => return Err("Effect of a statement must be Allow or Deny".to_owned()),
        };
        let whom = match (fields.get("Principal"), has_principal) {
            (Some(value), true) => Some(Whom::read(value)?),
            (None, false) => None,
            (Some(_), false) => return Err("the policy of a role has no Principal".to_owned()),
            (None, true) => return Err("Principal of a statement is missing".to_owned()),
        };
        let actions = list("Action")?;
        let is_action = |action: &String| action == "*" || action.contains(':');
        if let Some(wrong) = actions.iter().find(|action| !is_action(action)) {
            return Err(format!(
                "Action {wrong:?} is not of the form service:Action"
            ));
        }
        let resources = if has_resource {
            list("Resource")?
        } else if fields.contains_key("Resource") {
            return Err("a trust policy has no Resource".to_owned());
        } else {
            vec!["*".to_owned()] // it is about the role that has it
        };
        if let Some(wrong) = resources
            .iter()
            .find(|resource| !patterns::is_arn(resource))
        {
            return Err(format!("Resource {wrong:?} is not an ARN"));
        }
        if let Some(variable) = resources.iter().find(|resource| resource.contains("${")) {
            return Err(format!(
                "the policy variable in {variable:?} is not supported by the local stack"
            ));
        }
        Ok(Self {
            is_allow,
            whom,
            actions,
            resources,
            conditions: match fields.get("Condition") {
                Some(value) => Condition::read(value)?,
                None => Vec::new(),
            },
        })
    }

    /// Returns a statement that allows everything, as the policy `AdministratorAccess` does.
    pub(super) fn of_administrator() -> Self {
        Self {
            is_allow: true,
            whom: None,
            actions: vec!["*".to_owned()],
            resources: vec!["*".to_owned()],
            conditions: Vec::new(),
        }
    }

    /// Returns what the role that SAM generates for a function may do with the queues that invoke
    /// it. Source: the managed policy `AWSLambdaSQSQueueExecutionRole`.
    pub(crate) fn of_generated_role() -> Self {
        let actions = [
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
        ];
        Self {
            actions: actions.map(str::to_owned).to_vec(),
            ..Self::of_administrator()
        }
    }

    /// Returns whether it allows; otherwise it denies.
    pub(super) fn is_allow(&self) -> bool {
        self.is_allow
    }

    /// Returns whether the statement is about a request, whatever its action and resource are.
    pub(super) fn concerns(&self, principal: &Principal, context: &Context) -> bool {
        let is_about = match &self.whom {
            None => true,
            Some(whom) => whom.iter().any(|whom| whom.is(principal)),
        };
        is_about
            && self
                .conditions
                .iter()
                .all(|condition| condition.holds(context))
    }

    /// Returns the pairs of an action and a resource for which it has an effect. An action on
    /// objects has none for a bucket, and the other way round.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.actions.iter().flat_map(|action| {
            let resources = self.resources.iter();
            resources.map(move |resource| (action.as_str(), resource.as_str()))
        });
        pairs.filter(|(action, resource)| can_apply(action, resource))
    }

    /// Returns an action or a resource that is in none of its pairs, so that it grants nothing.
    pub(crate) fn without_effect(&self) -> Option<&str> {
        let all = self.actions.iter().chain(&self.resources);
        all.map(String::as_str).find(|one| {
            !self
                .pairs()
                .any(|(action, resource)| action == *one || resource == *one)
        })
    }
}

/// Returns whether a request for this action and resource may match a pair.
pub(super) fn is_pair_of((pattern, resources): (&str, &str), action: &str, resource: &str) -> bool {
    patterns::matches(&pattern.to_ascii_lowercase(), &action.to_ascii_lowercase())
        && patterns::matches_arn(resources, resource)
}

/// Returns whether resources of this kind have this action. Only S3 has two kinds here: buckets,
/// and the objects in them. Source: Service Authorization Reference, "Actions, resources, and
/// condition keys for Amazon S3".
fn can_apply(action: &str, resource: &str) -> bool {
    let Some(name) = action.strip_prefix("s3:") else {
        return true;
    };
    if name.contains('*') || resource == "*" || !resource.starts_with("arn:aws:s3:::") {
        return true;
    }
    if resource.contains('/') {
        !name.contains("Bucket")
    } else {
        name.contains("Bucket") || resource.ends_with('*')
    }
}

/// Returns the ARN of the role with this name.
pub(super) fn role_arn(name: &str) -> String {
    format!("arn:aws:iam::{ACCOUNT}:role/{name}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_statement_that_would_not_be_evaluated_is_refused_with_the_reason() {
        let valid = json!({"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"});
        assert!(Statement::of_role(&valid).is_ok());
        for (field, value, expected) in [
            ("Effect", json!("allow"), "must be Allow or Deny"),
            (
                "NotAction",
                json!("s3:*"),
                "NotAction of a statement is not supported",
            ),
            ("Principal", json!("*"), "has no Principal"),
            (
                "Action",
                json!("GetObject"),
                "not of the form service:Action",
            ),
            ("Action", json!([]), "Action of a statement is missing"),
            ("Resource", json!("bucket"), "is not an ARN"),
            (
                "Resource",
                json!("arn:aws:s3:::b/${aws:userid}/*"),
                "policy variable",
            ),
            (
                "Condition",
                json!({"DateLessThan": {}}),
                "operator DateLessThan",
            ),
        ] {
            let mut wrong = valid.clone();
            wrong[field] = value;
            let error = Statement::of_role(&wrong).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let error = Statement::of_resource(&valid).unwrap_err();
        assert!(
            error.contains("Principal of a statement is missing"),
            "{error}"
        );
        for principal in [
            json!("arn:aws:iam::1:root"),
            json!({"AWS": "1"}),
            json!({"Federated": "x"}),
        ] {
            let mut wrong = valid.clone();
            wrong["Principal"] = principal;
            let error = Statement::of_resource(&wrong).unwrap_err();
            assert!(
                error.contains("is not supported by the local stack"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_action_has_no_effect_on_resources_of_another_kind() {
        let statement = |actions: &[&str], resources: &[&str]| {
            let statement = json!({"Effect": "Allow", "Action": actions, "Resource": resources});
            Statement::of_role(&statement).unwrap()
        };
        let both = ["arn:aws:s3:::b", "arn:aws:s3:::b/*"];
        let two = statement(&["s3:GetObject", "s3:ListBucket"], &both);
        let pairs: Vec<_> = two.pairs().collect();
        assert_eq!(
            pairs,
            [("s3:GetObject", both[1]), ("s3:ListBucket", both[0])]
        );
        assert_eq!(two.without_effect(), None);
        assert_eq!(
            statement(&["s3:GetObject"], &both).without_effect(),
            Some(both[0])
        );
        assert_eq!(
            statement(&["s3:ListMultipartUploadParts"], &[both[1]]).without_effect(),
            None
        );
        assert_eq!(
            statement(&["s3:ListBucket"], &[both[1]]).without_effect(),
            Some("s3:ListBucket")
        );
    }
}
