//! The decision about a request.

use serde::{Deserialize, Serialize};

use super::conditions::Context;
use super::statement::{Principal, Statement, is_pair_of};

/// A request for one action on one resource.
#[derive(Clone, Debug)]
pub struct AccessRequest<'a> {
    /// The caller.
    pub principal: &'a Principal,
    /// The action: `s3:GetObject`.
    pub action: &'a str,
    /// The ARN of the resource.
    pub resource: &'a str,
    /// The condition keys.
    pub context: &'a Context,
}

/// The statements of a role or of the policy of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// Its name in the template.
    pub name: &'a str,
    /// Its statements.
    pub statements: &'a [Statement],
}

/// A pair of an action and a resource in a statement that allows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// The role or policy: its name in the template.
    pub holder: String,
    /// The action, which may have wildcards.
    pub action: String,
    /// The ARN of the resource, which may have wildcards.
    pub resource: String,
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Every one of these grants allows it.
    Allowed(Vec<Grant>),
    /// It is denied.
    Denied(Reason),
}

/// Why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A statement denies it.
    Explicit {
        /// The role or policy of the statement.
        holder: String,
        /// Whether that is the policy of the resource.
        is_of_resource: bool,
    },
    /// No statement allows it.
    Implicit,
}

/// Decides about a request within one account, by the policies of the role that asks and the policy
/// of the resource.
#[must_use]
pub fn decide(
    identity: Option<Holder<'_>>,
    resource: Option<Holder<'_>>,
    request: &AccessRequest<'_>,
) -> Decision {
    let holders = [(identity, false), (resource, true)];
    let holders = holders
        .into_iter()
        .filter_map(|(holder, is_of_resource)| Some((holder?, is_of_resource)));
    let mut grants = Vec::new();
    for (holder, is_of_resource) in holders {
        for statement in holder.statements {
            if !statement.concerns(request.principal, request.context) {
                continue;
            }
            let pairs = statement
                .pairs()
                .filter(|pair| is_pair_of(*pair, request.action, request.resource));
            for (action, resource) in pairs {
                if !statement.is_allow() {
                    return Decision::Denied(Reason::Explicit {
                        holder: holder.name.to_owned(),
                        is_of_resource,
                    });
                }
                grants.push(Grant {
                    holder: holder.name.to_owned(),
                    action: action.to_owned(),
                    resource: resource.to_owned(),
                });
            }
        }
    }
    if grants.is_empty() {
        Decision::Denied(Reason::Implicit)
    } else {
        Decision::Allowed(grants)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const KEY: &str = "arn:aws:s3:::b/derived/k";

    /// Decides about a request of a role for `action` on [`KEY`], and says which statements allow
    /// it, or why it is denied.
    fn decided(role: &[Value], bucket: &[Value], action: &str, context: &Context) -> String {
        let role: Vec<Statement> = role
            .iter()
            .map(|one| Statement::of_role(one).unwrap())
            .collect();
        let bucket: Vec<Statement> = bucket
            .iter()
            .map(|one| Statement::of_resource(one).unwrap())
            .collect();
        let request = AccessRequest {
            principal: &Principal::Arn("arn:aws:iam::1:role/r".to_owned()),
            action,
            resource: KEY,
            context,
        };
        let holder = |name, statements| Some(Holder { name, statements });
        match decide(holder("r", &role), holder("b", &bucket), &request) {
            Decision::Allowed(grants) => {
                let by = grants
                    .iter()
                    .map(|grant| format!("{}:{}", grant.holder, grant.action));
                by.collect::<Vec<_>>().join(" ")
            }
            Decision::Denied(Reason::Implicit) => "implicit".to_owned(),
            Decision::Denied(Reason::Explicit { holder, .. }) => format!("explicit {holder}"),
        }
    }

    #[test]
    fn the_decision_follows_the_policy_evaluation_logic() {
        let statement = |effect: &str, action: &str, resource: &str| json!({"Effect": effect, "Action": action, "Resource": resource});
        let with = |mut statement: Value, field: &str, value: Value| {
            statement[field] = value;
            statement
        };
        let of = |statement: Value, principal: Value| with(statement, "Principal", principal);
        let get = statement("Allow", "s3:GetObject", "arn:aws:s3:::b/derived/*");
        let all = statement("Allow", "s3:*", "*");
        let deny = statement("Deny", "s3:GetObject", "*");
        let elsewhere = statement("Allow", "s3:GetObject", "arn:aws:s3:::b/requests/*");
        let insecure = json!({"Bool": {"aws:SecureTransport": "false"}});
        let plain = with(
            of(statement("Deny", "s3:*", "*"), json!("*")),
            "Condition",
            insecure,
        );
        let to_role = of(get.clone(), json!({"AWS": "arn:aws:iam::1:role/r"}));
        let to_other = of(get.clone(), json!({"AWS": "arn:aws:iam::1:role/other"}));
        let secure = Context::default().with("aws:SecureTransport", "true");
        let open = Context::default().with("aws:SecureTransport", "false");
        for (role, bucket, action, context, expected) in [
            // Nothing allows it.
            (vec![], vec![], "s3:GetObject", &secure, "implicit"),
            (
                vec![elsewhere.clone()],
                vec![],
                "s3:GetObject",
                &secure,
                "implicit",
            ),
            (
                vec![get.clone()],
                vec![],
                "s3:PutObject",
                &secure,
                "implicit",
            ),
            // The role allows it; all statements that do so are listed.
            (
                vec![get.clone()],
                vec![],
                "s3:GetObject",
                &secure,
                "r:s3:GetObject",
            ),
            (
                vec![get.clone()],
                vec![],
                "S3:getobject",
                &secure,
                "r:s3:GetObject",
            ),
            (
                vec![elsewhere, get.clone(), all.clone()],
                vec![],
                "s3:GetObject",
                &secure,
                "r:s3:GetObject r:s3:*",
            ),
            // The bucket's policy alone suffices within an account, for its principal.
            (
                vec![],
                vec![to_role],
                "s3:GetObject",
                &secure,
                "b:s3:GetObject",
            ),
            (vec![], vec![to_other], "s3:GetObject", &secure, "implicit"),
            // A deny wins, wherever it is, if its conditions hold.
            (
                vec![all.clone(), deny.clone()],
                vec![],
                "s3:GetObject",
                &secure,
                "explicit r",
            ),
            (
                vec![all.clone(), deny],
                vec![],
                "s3:PutObject",
                &secure,
                "r:s3:*",
            ),
            (
                vec![all.clone()],
                vec![plain.clone()],
                "s3:GetObject",
                &open,
                "explicit b",
            ),
            (vec![all], vec![plain], "s3:GetObject", &secure, "r:s3:*"),
        ] {
            let found = decided(&role, &bucket, action, context);
            assert_eq!(found, expected, "{role:?} {bucket:?} {action} {context:?}");
        }
    }

    #[test]
    fn a_create_only_bucket_denies_replacing_and_allows_parts() {
        let get = json!({"Effect": "Allow", "Action": "s3:*", "Resource": "*"});
        let policy = json!({
            "Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/*",
            "Condition": {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
        });
        let created = Context::default().with("s3:ObjectCreationOperation", "true");
        let part = Context::default().with("s3:ObjectCreationOperation", "false");
        let only_if_new = created.clone().with("s3:if-none-match", "*");
        for (context, expected) in [
            (created, "explicit b"),
            (only_if_new, "r:s3:*"),
            (part, "r:s3:*"),
        ] {
            let found = decided(
                std::slice::from_ref(&get),
                std::slice::from_ref(&policy),
                "s3:PutObject",
                &context,
            );
            assert_eq!(found, expected, "{context:?}");
        }
    }
}
