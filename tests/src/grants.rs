//! Whether the functions need exactly what the template grants them: checked with the calls that
//! they made in the end-to-end tests.

use std::collections::{BTreeMap, BTreeSet};

use local_stack::iam::{Grant, Policies, Use};
use local_stack::template::{Deployment, Template, USUAL_CONCURRENCY};

use crate::stack::{STACK_NAME, template};

/// The object with the setting `SOURCES` of the stack that uses the parameter `SourcesObject`, and
/// the bucket that its sources read with the role of `derive`.
pub const SOURCES_OBJECT: &str = "settings-of-the-operator/sources.json";
/// The bucket of symbols that the role of `derive` may read.
pub const SYMBOLS: &str = "symbols-of-the-operator";

/// Services that the local stack does not have. `infra/check/template.py` checks that each of their
/// grants is needed, by removing it.
pub const ELSEWHERE: [&str; 6] = ["ec2", "kms", "logs", "secretsmanager", "ssm", "sts"];

/// Returns the parameters with which every statement of the template exists, except those for what
/// a deployment replaces (`FormerSecrets`, `FormerSourcesObject`): they repeat others.
#[must_use]
pub fn every_parameter() -> BTreeMap<String, String> {
    let secret = |name: &str| format!("arn:aws:ssm:us-east-1:000000000000:parameter/{name}");
    let values = [
        (
            "KmsKey",
            "arn:aws:kms:us-east-1:000000000000:key/1".to_owned(),
        ),
        ("SourcesObject", SOURCES_OBJECT.to_owned()),
        ("SourceBuckets", source_buckets()),
        (
            "SourceRoles",
            "arn:aws:iam::111111111111:role/symbols".to_owned(),
        ),
        ("SourcesSecret", secret("sources")),
        ("SourceLinksSecret", secret("links")),
        ("RequestSourcesSecret", secret("requests")),
        ("TraceHeadersSecret", secret("traces")),
        ("FormerSecrets", secret("former")),
        // Of the same list, so that the grant is used.
        ("FormerSourcesObject", SOURCES_OBJECT.to_owned()),
    ];
    let values = values
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    values.collect()
}

/// Returns the value of the parameter `SourceBuckets` with which [`SYMBOLS`] can be read.
#[must_use]
pub fn source_buckets() -> String {
    format!("arn:aws:s3:::{SYMBOLS},arn:aws:s3:::{SYMBOLS}/*")
}

/// Returns the policies of the template with every statement in them.
///
/// # Errors
/// The template cannot be read.
pub fn policies() -> Result<Policies, String> {
    let parameters = every_parameter();
    let deployment = Deployment {
        stack_name: STACK_NAME,
        sqs_endpoint: "http://127.0.0.1:3024",
        parameters: &parameters,
        account_concurrency: USUAL_CONCURRENCY,
    };
    Ok(Template::load(&template(), &deployment)?.policies)
}

/// What the calls show about a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Kinds of calls that it allows.
    pub allowed: usize,
    /// Those that nothing else allows: they are denied without it.
    pub alone: usize,
}

/// Returns the need of each grant of the services that the local stack has.
#[must_use]
pub fn needs(grants: &[Grant], uses: &[Use]) -> Vec<(Grant, Need)> {
    let here = grants.iter().filter(|grant| !is_elsewhere(grant));
    let need = |grant: &Grant| {
        let of_grant: Vec<&Use> = uses.iter().filter(|it| it.grants.contains(grant)).collect();
        let alone = of_grant.iter().filter(|it| it.grants.len() == 1).count();
        Need {
            allowed: of_grant.len(),
            alone,
        }
    };
    here.map(|grant| (grant.clone(), need(grant))).collect()
}

fn is_elsewhere(grant: &Grant) -> bool {
    let service = grant.action.split(':').next().unwrap_or_default();
    ELSEWHERE.contains(&service)
}

/// Returns what is wrong: a denied call, a grant that no call used, a grant without which all calls
/// are still allowed, and a call by a grant that the template does not have.
#[must_use]
pub fn problems(grants: &[Grant], uses: &[Use]) -> Vec<String> {
    let denied = uses.iter().filter_map(|it| it.denied.clone());
    let denied: BTreeSet<String> = denied.map(|text| format!("denied: {text}")).collect();
    let mut problems: Vec<String> = denied.into_iter().collect();
    for (grant, need) in needs(grants, uses) {
        let shown = shown(&grant);
        match need {
            Need { allowed: 0, .. } => problems.push(format!("unused: {shown}")),
            Need { alone: 0, .. } => problems.push(format!(
                "not needed, because another grant allows the same calls: {shown}"
            )),
            _ => {}
        }
    }
    let unknown = uses.iter().flat_map(|it| &it.grants);
    let unknown: BTreeSet<&Grant> = unknown.filter(|grant| !grants.contains(grant)).collect();
    let unknown = unknown.into_iter().map(|grant| {
        format!(
            "used, but not in the template; is this the record of another one? {}",
            shown(grant)
        )
    });
    problems.extend(unknown);
    problems
}

/// Returns a grant in one line.
#[must_use]
pub fn shown(grant: &Grant) -> String {
    format!("{}: {} on {}", grant.holder, grant.action, grant.resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(action: &str, resource: &str) -> Grant {
        Grant {
            holder: "Role".to_owned(),
            action: action.to_owned(),
            resource: resource.to_owned(),
        }
    }

    fn used(by: &[&Grant]) -> Use {
        Use {
            by: "Role".to_owned(),
            action: "s3:GetObject".to_owned(),
            resource: "arn:aws:s3:::b/k".to_owned(),
            grants: by.iter().map(|grant| (*grant).clone()).collect(),
            denied: None,
            calls: 1,
        }
    }

    #[test]
    fn a_grant_is_needed_if_a_call_has_no_other() {
        let (get, all) = (
            grant("s3:GetObject", "arn:aws:s3:::b/*"),
            grant("s3:*", "*"),
        );
        let log = grant("logs:PutLogEvents", "arn:aws:logs:r:1:log-group:g:*");
        let list = grant("s3:ListBucket", "arn:aws:s3:::b");
        let denied = Use {
            denied: Some("User: Role is not authorized".to_owned()),
            ..used(&[])
        };
        for (grants, uses, expected) in [
            (vec![&get], vec![used(&[&get])], vec![]),
            // The service of a grant is not in the local stack.
            (vec![&get, &log], vec![used(&[&get])], vec![]),
            (
                vec![&get, &list],
                vec![used(&[&get])],
                vec!["unused: Role: s3:ListBucket"],
            ),
            (vec![&get], vec![], vec!["unused: Role: s3:GetObject"]),
            // Each of two makes the other one superfluous, unless a call needs it.
            (
                vec![&get, &all],
                vec![used(&[&get, &all])],
                vec!["not needed, because", "not needed, because"],
            ),
            (
                vec![&get, &all],
                vec![used(&[&get, &all]), used(&[&all])],
                vec!["not needed, because"],
            ),
            (
                vec![&get],
                vec![used(&[&get]), denied],
                vec!["denied: User: Role"],
            ),
            (
                vec![&get],
                vec![used(&[&get]), used(&[&all])],
                vec!["used, but not in the template"],
            ),
        ] {
            let grants: Vec<Grant> = grants.into_iter().cloned().collect();
            let found = problems(&grants, &uses);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{found:?}");
            }
        }
    }

    #[test]
    fn every_grant_of_the_template_exists_with_these_parameters() {
        let grants = policies().unwrap().grants();
        let services = grants
            .iter()
            .map(|grant| grant.action.split(':').next().unwrap());
        let services: BTreeSet<&str> = services.collect();
        let mut expected = BTreeSet::from(["dynamodb", "s3", "sqs"]);
        expected.extend(ELSEWHERE);
        assert_eq!(services, expected);
        let text = std::fs::read_to_string(template()).unwrap();
        let conditions: BTreeSet<&str> = text
            .split("- Fn::If:\n                  - ")
            .skip(1)
            .map(|rest| rest.lines().next().unwrap())
            .collect();
        let chosen = every_parameter();
        let chosen: BTreeSet<String> = chosen.keys().map(|name| format!("Has{name}")).collect();
        let chosen: BTreeSet<&str> = chosen.iter().map(String::as_str).collect();
        assert_eq!(conditions, chosen, "conditions of statements");
    }
}
