//! The roles and the policies of a template.

use std::collections::BTreeMap;

use super::decision::{Grant, Holder};
use super::statement::{Principal, Statement, role_arn};

/// A role that a function runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Its name in the template.
    pub name: String,
    /// The statements of all its policies.
    pub statements: Vec<Statement>,
    /// Who may assume it.
    pub trust: Vec<Statement>,
}

impl Role {
    /// Returns the role that SAM generates for a function without `Role`: Lambda may assume it, and
    /// it may receive messages.
    #[must_use]
    pub fn generated(function: &str) -> Self {
        Self {
            name: format!("{function}Role"),
            statements: vec![Statement::of_generated_role()],
            trust: vec![Statement::of_administrator()],
        }
    }

    /// Returns its ARN.
    #[must_use]
    pub fn arn(&self) -> String {
        role_arn(&self.name)
    }

    /// Returns the role as who makes requests.
    #[must_use]
    pub fn principal(&self) -> Principal {
        Principal::Arn(self.arn())
    }

    pub(super) fn holder(&self) -> Holder<'_> {
        Holder {
            name: &self.name,
            statements: &self.statements,
        }
    }
}

/// The policy of a bucket or of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePolicy {
    /// Its name in the template.
    pub(crate) name: String,
    pub(crate) statements: Vec<Statement>,
}

/// The roles and the policies of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// The role of each function, by the function's name.
    pub(crate) roles: BTreeMap<String, Role>,
    /// The policies of buckets and queues, by the ARN of the bucket or queue.
    pub(crate) resources: BTreeMap<String, ResourcePolicy>,
}

impl Policies {
    /// Returns the policy of a resource or of what contains it: that of the bucket of an object.
    pub(super) fn of_resource(&self, arn: &str) -> Option<Holder<'_>> {
        let owner = if arn.starts_with("arn:aws:s3:::") {
            arn.split('/').next().unwrap_or(arn)
        } else {
            arn
        };
        let policy = self.resources.get(owner)?;
        Some(Holder {
            name: &policy.name,
            statements: &policy.statements,
        })
    }

    /// Returns every grant of the roles and of the policies of resources: each pair of an action
    /// and a resource that a statement allows. One that two statements of a role allow is listed
    /// twice.
    #[must_use]
    pub fn grants(&self) -> Vec<Grant> {
        // Two functions may have one role.
        let roles: BTreeMap<&str, &Role> = self
            .roles
            .values()
            .map(|role| (role.name.as_str(), role))
            .collect();
        let roles = roles.into_values().map(Role::holder);
        let resources = self.resources.values().map(|policy| Holder {
            name: &policy.name,
            statements: &policy.statements,
        });
        let mut grants: Vec<Grant> = roles.chain(resources).flat_map(grants_of).collect();
        grants.sort();
        grants
    }
}

fn grants_of(holder: Holder<'_>) -> impl Iterator<Item = Grant> {
    let allowing = holder.statements.iter().filter(|one| one.is_allow());
    allowing.flat_map(move |statement| {
        statement.pairs().map(move |(action, resource)| Grant {
            holder: holder.name.to_owned(),
            action: action.to_owned(),
            resource: resource.to_owned(),
        })
    })
}
