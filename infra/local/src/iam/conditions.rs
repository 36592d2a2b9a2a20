//! Conditions of policy statements.
//!
//! Source: IAM User Guide, "IAM JSON policy elements: Condition operators" and "Creating a
//! condition with multiple keys or values". All operators and keys of a statement must hold; one of
//! the values suffices, and none may match for a negated operator. A key that the request does not
//! have fails an operator, unless the operator is negated or ends in `IfExists`. A key with several
//! values needs an operator that says how many of them have to match.

use std::collections::BTreeMap;

use serde_json::Value;

use super::patterns;

/// The keys that the services of the stack set, in small letters. A condition on another key would
/// never hold here and may hold in AWS, so it is an error.
const KEYS: [&str; 15] = [
    "aws:principalaccount",
    "aws:principalarn",
    "aws:requestedregion",
    "aws:resourceaccount",
    "aws:securetransport",
    "aws:sourceaccount",
    "aws:sourcearn",
    LEADING_KEYS,
    "lambda:sourcefunctionarn",
    "s3:delimiter",
    "s3:if-match",
    "s3:if-none-match",
    "s3:max-keys",
    "s3:objectcreationoperation",
    "s3:prefix",
];

/// The partitions of the items that a request to DynamoDB is about: the only key here with several
/// values.
pub(super) const LEADING_KEYS: &str = "dynamodb:leadingkeys";

/// The operator that holds if a value of the request is one of the condition.
const FOR_ANY_VALUE: &str = "ForAnyValue:StringEquals";

/// The condition keys of a request and their values. The names of keys are case-insensitive.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Context(BTreeMap<String, Vec<String>>);

impl Context {
    /// Returns the context with one more key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.0.insert(key.to_ascii_lowercase(), vec![value.into()]);
        self
    }

    /// Returns the context with one more key that has all these values; without any, the request
    /// does not have the key.
    pub(super) fn with_all(mut self, key: &str, values: Vec<String>) -> Self {
        if !values.is_empty() {
            self.0.insert(key.to_ascii_lowercase(), values);
        }
        self
    }

    /// Returns the context with one more key if the request has a value for it.
    #[must_use]
    pub fn with_some(self, key: &str, value: Option<impl Into<String>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    fn get(&self, key: &str) -> &[String] {
        self.0.get(key).map(Vec::as_slice).unwrap_or_default()
    }
}

/// One operator on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    operator: Operator,
    is_negated: bool,
    if_exists: bool,
    key: String,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    AnyEquals,
    Equals,
    EqualsIgnoreCase,
    Like,
    Arn,
    Bool,
    Null,
}

impl Condition {
    /// Reads the `Condition` of a statement.
    pub(super) fn read(value: &Value) -> Result<Vec<Self>, String> {
        let Some(operators) = value.as_object() else {
            return Err("Condition must be a map of operators".to_owned());
        };
        let mut conditions = Vec::new();
        for (name, keys) in operators {
            let Some(keys) = keys.as_object() else {
                return Err(format!("Condition.{name} must be a map of keys"));
            };
            let (operator, is_negated, if_exists) = operator(name)?;
            for (key, values) in keys {
                let lower = key.to_ascii_lowercase();
                if !KEYS.contains(&lower.as_str()) {
                    return Err(format!(
                        "the condition key {key} is not supported by the local stack"
                    ));
                }
                if (operator == Operator::AnyEquals) != (lower == LEADING_KEYS) {
                    return Err(format!(
                        "the condition operator {name} is not supported by the local stack for {key}: {FOR_ANY_VALUE} is for keys with several values, and these have no other"
                    ));
                }
                conditions.push(Self {
                    operator,
                    is_negated,
                    if_exists,
                    key: lower,
                    values: texts(values)
                        .ok_or_else(|| format!("Condition.{name}.{key} must have values"))?,
                });
            }
        }
        Ok(conditions)
    }

    pub(super) fn holds(&self, context: &Context) -> bool {
        let values = context.get(&self.key);
        if self.operator == Operator::Null {
            let absent = if values.is_empty() { "true" } else { "false" };
            return self.values.iter().any(|wanted| wanted == absent);
        }
        if self.operator == Operator::AnyEquals {
            return values.iter().any(|value| self.values.contains(value));
        }
        let Some(value) = values.first() else {
            return self.is_negated || self.if_exists;
        };
        let is_one = self.values.iter().any(|wanted| match self.operator {
            Operator::Equals => wanted == value,
            Operator::EqualsIgnoreCase | Operator::Bool => wanted.eq_ignore_ascii_case(value),
            Operator::Like => patterns::matches(wanted, value),
            Operator::Arn => patterns::matches_arn(wanted, value),
            Operator::AnyEquals | Operator::Null => false,
        });
        is_one != self.is_negated
    }
}

/// Returns the operator with this name, whether it is negated, and whether it ends in `IfExists`.
fn operator(name: &str) -> Result<(Operator, bool, bool), String> {
    let (base, if_exists) = match name.strip_suffix("IfExists") {
        Some(base) => (base, true),
        None => (name, false),
    };
    let (operator, is_negated) = match base {
        "StringEquals" => (Operator::Equals, false),
        "StringNotEquals" => (Operator::Equals, true),
        "StringEqualsIgnoreCase" => (Operator::EqualsIgnoreCase, false),
        "StringNotEqualsIgnoreCase" => (Operator::EqualsIgnoreCase, true),
        "StringLike" => (Operator::Like, false),
        "StringNotLike" => (Operator::Like, true),
        // Both accept wildcards.
        "ArnEquals" | "ArnLike" => (Operator::Arn, false),
        "ArnNotEquals" | "ArnNotLike" => (Operator::Arn, true),
        "Bool" => (Operator::Bool, false),
        FOR_ANY_VALUE if !if_exists => (Operator::AnyEquals, false),
        "Null" if !if_exists => (Operator::Null, false),
        _ => {
            return Err(format!(
                "the condition operator {name} is not supported by the local stack"
            ));
        }
    };
    Ok((operator, is_negated, if_exists))
}

/// Returns one or more values of a policy as texts.
pub(super) fn texts(value: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => Some(value.to_string()),
        _ => None,
    };
    match value {
        Value::Array(values) if !values.is_empty() => values.iter().map(text).collect(),
        Value::Array(_) => None,
        value => text(value).map(|text| vec![text]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(condition: &Value, context: &Context) -> bool {
        let conditions = Condition::read(condition).unwrap();
        conditions.iter().all(|one| one.holds(context))
    }

    #[test]
    fn each_operator_is_evaluated_as_documented() {
        let key = |value: &str| Context::default().with("S3:Prefix", value);
        let none = Context::default();
        let arn = |value: &str| Context::default().with("aws:SourceArn", value);
        for (condition, context, expected) in [
            (json!({"StringEquals": {"s3:prefix": "a"}}), key("a"), true),
            (json!({"StringEquals": {"s3:prefix": "a"}}), key("A"), false),
            (
                json!({"StringEquals": {"s3:prefix": "a*"}}),
                key("ab"),
                false,
            ),
            (
                json!({"StringEquals": {"s3:prefix": "a"}}),
                none.clone(),
                false,
            ),
            (
                json!({"StringEquals": {"s3:prefix": ["a", "b"]}}),
                key("b"),
                true,
            ),
            (
                json!({"StringNotEquals": {"s3:prefix": ["a", "b"]}}),
                key("b"),
                false,
            ),
            (
                json!({"StringNotEquals": {"s3:prefix": ["a", "b"]}}),
                key("c"),
                true,
            ),
            (
                json!({"StringNotEquals": {"s3:prefix": "a"}}),
                none.clone(),
                true,
            ),
            (
                json!({"StringEqualsIgnoreCase": {"s3:prefix": "a"}}),
                key("A"),
                true,
            ),
            (
                json!({"StringEqualsIfExists": {"s3:prefix": "a"}}),
                none.clone(),
                true,
            ),
            (
                json!({"StringEqualsIfExists": {"s3:prefix": "a"}}),
                key("b"),
                false,
            ),
            (json!({"StringLike": {"s3:prefix": "a*"}}), key("ab"), true),
            (
                json!({"StringNotLike": {"s3:prefix": "a*"}}),
                key("ab"),
                false,
            ),
            (json!({"Null": {"s3:prefix": "true"}}), none.clone(), true),
            (json!({"Null": {"s3:prefix": true}}), key("a"), false),
            (json!({"Null": {"s3:prefix": "false"}}), key("a"), true),
            (
                json!({"Bool": {"aws:SecureTransport": "false"}}),
                none.clone(),
                false,
            ),
            (
                json!({"Bool": {"aws:SecureTransport": false}}),
                Context::default().with("aws:SecureTransport", "False"),
                true,
            ),
            (
                json!({"ArnLike": {"aws:SourceArn": "arn:aws:s3:::b*"}}),
                arn("arn:aws:s3:::bc"),
                true,
            ),
            (
                json!({"ArnEquals": {"aws:SourceArn": "arn:aws:s3:::b"}}),
                arn("arn:aws:s3:::c"),
                false,
            ),
            (
                json!({"ArnNotLike": {"aws:SourceArn": "arn:aws:s3:::b"}}),
                arn("arn:aws:s3:::c"),
                true,
            ),
            // All keys and all operators must hold.
            (
                json!({"StringEquals": {"s3:prefix": "a", "s3:delimiter": "/"}}),
                key("a"),
                false,
            ),
            (
                json!({"StringEquals": {"s3:prefix": "a"}, "Null": {"s3:delimiter": "true"}}),
                key("a"),
                true,
            ),
        ] {
            assert_eq!(
                holds(&condition, &context),
                expected,
                "{condition} {context:?}"
            );
        }
    }

    #[test]
    fn one_of_several_values_suffices_and_none_does_not() {
        let condition =
            json!({"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["tokens", "keys"]}});
        for (values, expected) in [
            (vec!["other", "tokens"], true),
            (vec!["keys"], true),
            (vec!["other", "token"], false),
            (vec![], false),
        ] {
            let values = values.into_iter().map(str::to_owned).collect();
            let context = Context::default().with_all(LEADING_KEYS, values);
            assert_eq!(holds(&condition, &context), expected, "{context:?}");
        }
    }

    #[test]
    fn what_would_not_be_evaluated_is_refused_by_name() {
        for (condition, expected) in [
            (
                json!({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}),
                "operator IpAddress",
            ),
            (
                json!({"ForAnyValue:StringEquals": {"s3:prefix": "a"}}),
                "operator ForAnyValue:StringEquals is not supported by the local stack for s3:prefix",
            ),
            (
                json!({"StringEquals": {"dynamodb:LeadingKeys": "a"}}),
                "operator StringEquals is not supported by the local stack for dynamodb:LeadingKeys",
            ),
            (
                json!({"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": "a"}}),
                "operator ForAllValues:StringEquals",
            ),
            (
                json!({"ForAnyValue:StringEqualsIfExists": {"dynamodb:LeadingKeys": "a"}}),
                "operator ForAnyValue:StringEqualsIfExists",
            ),
            (
                json!({"NullIfExists": {"s3:prefix": "true"}}),
                "operator NullIfExists",
            ),
            (
                json!({"StringEquals": {"aws:PrincipalOrgID": "o"}}),
                "key aws:PrincipalOrgID",
            ),
            (
                json!({"StringEquals": {"s3:prefix": []}}),
                "must have values",
            ),
            (json!({"StringEquals": "a"}), "must be a map"),
            (json!([]), "must be a map"),
        ] {
            let error = Condition::read(&condition).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
