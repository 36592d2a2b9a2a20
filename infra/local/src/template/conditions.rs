//! Parameters and conditions. Before anything else is parsed, they are replaced by their values:
//! for the values of a deployment, or for the parameters' defaults. `AccountConcurrency` has the
//! limit of the account, which is a part of the deployment.
//!
//! Supported are parameters of the types `String` and `Number` with a default; `Fn::Equals`,
//! `Fn::Not`, `Fn::Or` and `Ref` of a pseudo parameter in conditions; `Ref` of a parameter and a
//! parameter in `Fn::Sub`, `Fn::If`, `Ref` of `AWS::NoValue`, and the `Condition` of a resource or
//! an output. Anything else is an error that names it.

use std::collections::BTreeMap;

use super::error::TemplateError;
use super::fields::Fields;
use super::intrinsics::pseudo_parameter;
use super::model::{ACCOUNT_CONCURRENCY, Deployment};
use super::node::{Node, Value};

/// The values of the parameters and conditions.
#[derive(Default)]
struct Decided {
    /// The value of `AWS::StackName`.
    stack_name: String,
    parameters: BTreeMap<String, Value>,
    conditions: BTreeMap<String, bool>,
}

/// Returns the template without its parameters and conditions.
pub(super) fn decide(mut root: Node, deployment: &Deployment<'_>) -> Result<Node, TemplateError> {
    let values = deployment.parameters;
    let mut decided = Decided {
        stack_name: deployment.stack_name.to_owned(),
        ..Decided::default()
    };
    if let Value::Map(entries) = &mut root.value {
        let mut take = |key: &str| {
            let at = entries.iter().position(|(name, _)| name == key)?;
            Some(entries.remove(at).1)
        };
        let (parameters, conditions) = (take("Parameters"), take("Conditions"));
        if let Some(node) = parameters {
            for (name, node) in Fields::of(node, "Parameters")?.rest() {
                let fields = Fields::of(node, format!("Parameters.{name}"))?;
                let (line, place) = (fields.line(), fields.place().to_owned());
                let default = default_of(fields)?;
                let value = match values.get(&name) {
                    None if name == ACCOUNT_CONCURRENCY => {
                        let runs = deployment.account_concurrency;
                        Value::Integer(i64::try_from(runs).unwrap_or(i64::MAX))
                    }
                    None => default,
                    Some(text) => chosen(text, &default)
                        .map_err(|message| TemplateError::new(line, place, message))?,
                };
                decided.parameters.insert(name, value);
            }
        }
        if let Some(unknown) = values
            .keys()
            .find(|it| !decided.parameters.contains_key(*it))
        {
            let message = format!("{unknown} is not a parameter of this template");
            return Err(TemplateError::new(root.line, "Parameters", message));
        }
        if let Some(node) = conditions {
            for (name, node) in Fields::of(node, "Conditions")?.rest() {
                let holds = decided.holds(&node, &format!("Conditions.{name}"))?;
                decided.conditions.insert(name, holds);
            }
        }
    }
    if let Value::Map(sections) = &mut root.value {
        let conditional = |name: &str| matches!(name, "Resources" | "Outputs");
        for (_, section) in sections.iter_mut().filter(|(name, _)| conditional(name)) {
            decided.keep_what_exists(section)?;
        }
    }
    let line = root.line;
    let nothing = Node {
        line,
        value: Value::Null,
    };
    Ok(decided.replace(root)?.unwrap_or(nothing))
}

/// Returns the default of a parameter. What restricts the values of a deployment has no effect.
fn default_of(mut fields: Fields) -> Result<Value, TemplateError> {
    let is_number = fields.choice("Type", &["String", "Number"])?.as_deref() == Some("Number");
    fields.text("Description")?;
    for restriction in ["AllowedPattern", "AllowedValues", "MinValue", "MaxValue"] {
        fields.take(restriction);
    }
    let default = if is_number {
        fields
            .number("Default", 0..=i64::MAX)?
            .and_then(|number| i64::try_from(number).ok())
            .map(Value::Integer)
    } else {
        fields.text("Default")?.map(Value::Text)
    };
    let line = fields.line();
    let default = default.ok_or_else(|| fields.error(line, "Default is missing"))?;
    fields.end()?;
    Ok(default)
}

/// Returns the value that a deployment chooses, of the type of the default.
fn chosen(text: &str, default: &Value) -> Result<Value, String> {
    match default {
        Value::Integer(_) => match text.parse() {
            Ok(number) => Ok(Value::Integer(number)),
            Err(_) => Err(format!("the value {text:?} is not an integer")),
        },
        _ => Ok(Value::Text(text.to_owned())),
    }
}

impl Decided {
    /// Drops the resources or outputs whose condition is false.
    fn keep_what_exists(&self, section: &mut Node) -> Result<(), TemplateError> {
        let Value::Map(entries) = &mut section.value else {
            return Ok(());
        };
        let mut kept = Vec::with_capacity(entries.len());
        for (name, mut node) in std::mem::take(entries) {
            let condition = match &mut node.value {
                Value::Map(fields) => fields
                    .iter()
                    .position(|(field, _)| field == "Condition")
                    .map(|at| fields.remove(at).1),
                _ => None,
            };
            if condition.map_or(Ok(true), |condition| self.named(&condition))? {
                kept.push((name, node));
            }
        }
        *entries = kept;
        Ok(())
    }

    /// Returns whether the condition with this name is true.
    fn named(&self, name: &Node) -> Result<bool, TemplateError> {
        let known = match &name.value {
            Value::Text(text) => self.conditions.get(text).copied(),
            _ => None,
        };
        let message = "this is not a condition of this template";
        known.ok_or_else(|| TemplateError::new(name.line, "", message))
    }

    /// Returns whether a condition is true.
    fn holds(&self, condition: &Node, place: &str) -> Result<bool, TemplateError> {
        let fail = |message: &str| Err(TemplateError::new(condition.line, place, message));
        let Value::Map(entries) = &condition.value else {
            return fail("a condition must be an intrinsic function");
        };
        match entries.as_slice() {
            [(name, argument)] => match (name.as_str(), &argument.value) {
                ("Fn::Equals", Value::List(sides)) if sides.len() == 2 => {
                    Ok(self.compared(&sides[0], place)? == self.compared(&sides[1], place)?)
                }
                ("Fn::Or", Value::List(parts)) if (2..=10).contains(&parts.len()) => {
                    // All are read, so that a mistake in any of them is found.
                    let parts = parts.iter().map(|part| self.holds(part, place));
                    let parts: Vec<bool> = parts.collect::<Result<_, _>>()?;
                    Ok(parts.contains(&true))
                }
                ("Fn::Not", Value::List(inner)) if inner.len() == 1 => {
                    Ok(!self.holds(&inner[0], place)?)
                }
                _ => fail(
                    "a condition may use only Fn::Equals of two values, Fn::Not of one and Fn::Or of two to ten",
                ),
            },
            _ => fail("a condition must be a single intrinsic function"),
        }
    }

    /// Returns a value that a condition compares.
    fn compared(&self, side: &Node, place: &str) -> Result<Option<Value>, TemplateError> {
        let Some(Node { line, value }) = self.replace(side.clone())? else {
            return Ok(None);
        };
        let Value::Map(call) = &value else {
            return Ok(Some(value));
        };
        let pseudo = match call.as_slice() {
            [(name, argument)] if name == "Ref" => match &argument.value {
                Value::Text(target) => target.strip_prefix("AWS::"),
                _ => None,
            },
            _ => None,
        };
        let fail = |message: String| TemplateError::new(line, place, message);
        let Some(pseudo) = pseudo else {
            let message = "a condition may compare only values, parameters and pseudo parameters";
            return Err(fail(message.to_owned()));
        };
        let text = pseudo_parameter(pseudo, &self.stack_name).map_err(fail)?;
        Ok(Some(Value::Text(text)))
    }

    /// Returns a node with all parameters and conditions replaced; `None` for `AWS::NoValue`.
    fn replace(&self, node: Node) -> Result<Option<Node>, TemplateError> {
        let line = node.line;
        let value = match node.value {
            Value::List(items) => {
                let items = items.into_iter().map(|item| self.replace(item));
                let items: Vec<Option<Node>> = items.collect::<Result<_, _>>()?;
                Value::List(items.into_iter().flatten().collect())
            }
            Value::Map(entries) => match entries.as_slice() {
                [(name, argument)] if ["Ref", "Fn::If", "Fn::Sub"].contains(&name.as_str()) => {
                    return self.call(name, argument, line);
                }
                _ => {
                    let mut replaced = Vec::with_capacity(entries.len());
                    for (key, child) in entries {
                        replaced.extend(self.replace(child)?.map(|child| (key, child)));
                    }
                    Value::Map(replaced)
                }
            },
            scalar => scalar,
        };
        Ok(Some(Node { line, value }))
    }

    /// Returns the pattern of an `Fn::Sub` with the parameters in it replaced.
    fn filled(&self, pattern: &str) -> String {
        let parameters = self.parameters.iter();
        parameters.fold(pattern.to_owned(), |filled, (name, value)| {
            let value = match value {
                Value::Text(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                _ => return filled,
            };
            filled.replace(&format!("${{{name}}}"), &value)
        })
    }

    /// Returns the pattern of an `Fn::Sub` with its variables in place. Each is a text, or an
    /// `Fn::Sub` itself.
    fn inlined(&self, parts: &[Node], line: usize) -> Result<String, TemplateError> {
        let fail = || {
            let message = "Fn::Sub needs a text, or a text and the texts of its variables";
            TemplateError::new(line, "", message)
        };
        let [pattern, variables] = parts else {
            return Err(fail());
        };
        let (Value::Text(pattern), Value::Map(variables)) = (&pattern.value, &variables.value)
        else {
            return Err(fail());
        };
        let mut inlined = pattern.clone();
        for (name, variable) in variables {
            let value = self.replace(variable.clone())?.map(|node| node.value);
            let text = match value {
                Some(Value::Text(text)) => text,
                Some(Value::Map(call)) => match call.as_slice() {
                    [(function, inner)] if function == "Fn::Sub" => match &inner.value {
                        Value::Text(text) => text.clone(),
                        _ => return Err(fail()),
                    },
                    _ => return Err(fail()),
                },
                _ => return Err(fail()),
            };
            inlined = inlined.replace(&format!("${{{name}}}"), &text);
        }
        Ok(inlined)
    }

    fn call(
        &self,
        name: &str,
        argument: &Node,
        line: usize,
    ) -> Result<Option<Node>, TemplateError> {
        match (name, &argument.value) {
            ("Ref", Value::Text(target)) if target == "AWS::NoValue" => Ok(None),
            ("Ref", Value::Text(target)) if self.parameters.contains_key(target) => {
                let value = self.parameters[target].clone();
                Ok(Some(Node { line, value }))
            }
            ("Fn::Sub", Value::Text(pattern)) => {
                let pattern = Node::text(argument.line, self.filled(pattern));
                let value = Value::Map(vec![(name.to_owned(), pattern)]);
                Ok(Some(Node { line, value }))
            }
            ("Fn::Sub", Value::List(parts)) => {
                let pattern = self.inlined(parts, argument.line)?;
                self.call(name, &Node::text(argument.line, pattern), line)
            }
            ("Fn::If", Value::List(parts)) => {
                let [condition, then, otherwise] = parts.as_slice() else {
                    let message = "Fn::If needs a condition and two values";
                    return Err(TemplateError::new(line, "", message));
                };
                if self.named(condition)? {
                    self.replace(then.clone())
                } else {
                    self.replace(otherwise.clone())
                }
            }
            _ => Ok(Some(Node {
                line,
                value: Value::Map(vec![(name.to_owned(), argument.clone())]),
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = r#"
Parameters:
  Named: { Type: String, Default: none, AllowedPattern: "none|arn:.+" }
Conditions:
  HasName: !Not [!Equals [!Ref Named, none]]
Resources:
  Text: !If [HasName, !Ref Named, "[]"]
  List: [kept, !If [HasName, more, !Ref AWS::NoValue]]
  Other: !Ref Orders
"#;

    fn decided(text: &str) -> Result<serde_json::Value, TemplateError> {
        decided_for(text, &[])
    }

    fn decided_for(
        text: &str,
        values: &[(&str, &str)],
    ) -> Result<serde_json::Value, TemplateError> {
        let values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let deployment = Deployment {
            stack_name: "shop",
            sqs_endpoint: "http://127.0.0.1:3024",
            parameters: &values.collect(),
            account_concurrency: 10,
        };
        let root = decide(Node::read(text)?, &deployment)?;
        Ok(root.to_json())
    }

    #[test]
    fn a_template_knows_the_limit_of_its_account() {
        let template = TEMPLATE.replace(
            "Named: {",
            "AccountConcurrency: { Type: Number, Default: 50 }\n  Named: {",
        );
        let template = template.replace("Other: !Ref Orders", "Other: !Ref AccountConcurrency");
        let limit = |values| decided_for(&template, values).unwrap()["Resources"]["Other"].clone();
        assert_eq!(limit(&[]), 10);
        assert_eq!(limit(&[("AccountConcurrency", "20")]), 20);
    }

    #[test]
    fn a_deployment_chooses_values_of_parameters() {
        let template = decided_for(TEMPLATE, &[("Named", "arn:b")]).unwrap();
        assert_eq!(template["Resources"]["Text"], "arn:b");
        let sub = TEMPLATE.replace("!Ref Orders", "!Sub \"${Named}/${!Named}/${Orders}\"");
        let template = decided_for(&sub, &[("Named", "arn:b")]).unwrap();
        assert_eq!(
            template["Resources"]["Other"]["Fn::Sub"],
            "arn:b/${!Named}/${Orders}"
        );
        let error = decided_for(TEMPLATE, &[("Nmed", "arn:b")]).unwrap_err();
        assert!(error.message.contains("Nmed is not a parameter"), "{error}");
        let number = TEMPLATE.replace(
            "Named: {",
            "Memory: { Type: Number, Default: 128 }\n  Named: {",
        );
        let number = number.replace("Other: !Ref Orders", "Other: !Ref Memory");
        let template = decided_for(&number, &[("Memory", "256")]).unwrap();
        assert_eq!(template["Resources"]["Other"], 256);
        let error = decided_for(&number, &[("Memory", "much")]).unwrap_err();
        assert!(error.message.contains("is not an integer"), "{error}");
    }

    #[test]
    fn conditions_on_parameters_use_their_defaults() {
        let template = decided(TEMPLATE).unwrap();
        assert_eq!(
            template,
            serde_json::json!({"Resources": {"Text": "[]", "List": ["kept"], "Other": {"Ref": "Orders"}}})
        );
        let named = TEMPLATE.replace("Default: none", "Default: \"arn:a\"");
        let template = decided(&named).unwrap();
        assert_eq!(template["Resources"]["Text"], "arn:a");
        assert_eq!(
            template["Resources"]["List"],
            serde_json::json!(["kept", "more"])
        );
    }

    #[test]
    fn a_condition_may_be_about_the_region_and_about_several_values() {
        let value = |condition: &str| {
            let text = TEMPLATE.replace("!Not [!Equals [!Ref Named, none]]", condition);
            let template = decided_for(&text, &[("Named", "arn:b")])?;
            Ok::<_, TemplateError>(template["Resources"]["Text"].clone())
        };
        for (condition, expected) in [
            ("!Equals [!Ref AWS::Region, us-east-1]", "arn:b"),
            ("!Equals [!Ref AWS::Region, mx-central-1]", "[]"),
            (
                "!Or [!Equals [!Ref AWS::Region, mx-central-1], !Equals [!Ref Named, \"arn:b\"]]",
                "arn:b",
            ),
            (
                "!Not [!Or [!Equals [!Ref AWS::Partition, aws-us-gov], !Equals [!Ref Named, none]]]",
                "arn:b",
            ),
            (
                "!Or [!Equals [!Ref AWS::Partition, aws-us-gov], !Equals [!Ref Named, none]]",
                "[]",
            ),
        ] {
            assert_eq!(value(condition).unwrap(), expected, "{condition}");
        }
        for (condition, says) in [
            (
                "!Equals [!Ref AWS::StackId, a]",
                "AWS::StackId is not supported",
            ),
            ("!Equals [!Ref Orders, a]", "may compare only values"),
            ("!Or [!Equals [a, b]]", "Fn::Or of two to ten"),
            ("!Or [!Equals [a, a], !And [a, b]]", "Fn::Or of two to ten"),
        ] {
            let error = value(condition).unwrap_err();
            assert!(error.message.contains(says), "{condition}: {error}");
            assert!(error.line > 0, "{error}");
        }
    }

    #[test]
    fn an_unknown_condition_is_an_error_with_its_line() {
        for (old, new, says) in [
            (
                "[HasName, !Ref Named",
                "[HasNme, !Ref Named",
                "not a condition of this template",
            ),
            ("!Not [", "!Or [", "only Fn::Equals"),
            ("Type: String", "Type: Number", "Default must be an integer"),
            ("Type: String", "Type: List<Number>", "List<Number>"),
            (", Default: none", "", "Default is missing"),
        ] {
            let error = decided(&TEMPLATE.replacen(old, new, 1)).unwrap_err();
            assert!(error.message.contains(says), "{error}");
            assert!(error.line > 0, "{error}");
        }
    }

    #[test]
    fn a_number_is_a_number_where_it_is_used() {
        let template = decided(
            r#"
Parameters:
  Memory: { Type: Number, Default: 3008, MinValue: 128, MaxValue: 10240, AllowedValues: [3008] }
Resources:
  Orders: { MemorySize: !Ref Memory }
"#,
        )
        .unwrap();
        assert_eq!(template["Resources"]["Orders"]["MemorySize"], 3008);
    }

    #[test]
    fn parameters_in_a_pattern_have_their_values() {
        let template = decided(
            r#"
Parameters:
  Memory: { Type: Number, Default: 3008 }
  Named: { Type: String, Default: here }
Resources:
  Orders: !Sub "${Named}/${Memory}/${Memories}/${AWS::Region}"
"#,
        )
        .unwrap();
        assert_eq!(
            template["Resources"]["Orders"],
            serde_json::json!({"Fn::Sub": "here/3008/${Memories}/${AWS::Region}"})
        );
    }

    #[test]
    fn variables_of_a_pattern_are_in_their_places() {
        let text = r#"
Parameters:
  Named: { Type: String, Default: none }
Conditions:
  HasName: !Not [!Equals [!Ref Named, none]]
Resources:
  Orders: !Sub
    - "[${Table.Arn}${More}]"
    - More: !If [HasName, !Sub ", ${Named}, ${Other.Arn}", ""]
"#;
        let pattern = |text: &str| decided(text).unwrap()["Resources"]["Orders"].clone();
        assert_eq!(
            pattern(text),
            serde_json::json!({"Fn::Sub": "[${Table.Arn}]"})
        );
        assert_eq!(
            pattern(&text.replace("Default: none", "Default: a")),
            serde_json::json!({"Fn::Sub": "[${Table.Arn}, a, ${Other.Arn}]"})
        );
        let error = decided(&text.replace("!If [HasName", "[HasName")).unwrap_err();
        assert!(error.message.contains("its variables"), "{error}");
    }

    #[test]
    fn a_resource_whose_condition_is_false_does_not_exist() {
        let text = TEMPLATE.replace("Text: !If", "Text: { Condition: HasName }\n  Other2: !If");
        let without = decided(&text).unwrap();
        assert_eq!(without["Resources"].get("Text"), None);
        let with = decided(&text.replace("Default: none", "Default: a")).unwrap();
        assert_eq!(with["Resources"]["Text"], serde_json::json!({}));
        let error = decided(&text.replace("Condition: HasName", "Condition: HasNone"));
        let error = error.unwrap_err();
        assert!(error.message.contains("not a condition"), "{error}");
    }
}
