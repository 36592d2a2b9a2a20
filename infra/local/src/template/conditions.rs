//! Parameters and conditions. Before anything else is parsed, they are replaced by their values for
//! the parameters' defaults.
//!
//! Supported are parameters of type `String` with a default, `Fn::Equals` and `Fn::Not` in
//! conditions, `Ref` of a parameter, `Fn::If`, and `Ref` of `AWS::NoValue`. Anything else is an
//! error that names it.

use std::collections::BTreeMap;

use super::error::TemplateError;
use super::fields::Fields;
use super::node::{Node, Value};

/// The values of the parameters and conditions.
#[derive(Default)]
struct Decided {
    parameters: BTreeMap<String, String>,
    conditions: BTreeMap<String, bool>,
}

/// Returns the template without its parameters and conditions.
pub(super) fn decide(mut root: Node) -> Result<Node, TemplateError> {
    let mut decided = Decided::default();
    if let Value::Map(entries) = &mut root.value {
        let mut take = |key: &str| {
            let at = entries.iter().position(|(name, _)| name == key)?;
            Some(entries.remove(at).1)
        };
        let (parameters, conditions) = (take("Parameters"), take("Conditions"));
        if let Some(node) = parameters {
            for (name, node) in Fields::of(node, "Parameters")?.rest() {
                let mut fields = Fields::of(node, format!("Parameters.{name}"))?;
                fields.choice("Type", &["String"])?;
                fields.text("Description")?;
                fields.text("AllowedPattern")?;
                let default = fields.required_text("Default")?;
                fields.end()?;
                decided.parameters.insert(name, default);
            }
        }
        if let Some(node) = conditions {
            for (name, node) in Fields::of(node, "Conditions")?.rest() {
                let holds = decided.holds(&node, &format!("Conditions.{name}"))?;
                decided.conditions.insert(name, holds);
            }
        }
    }
    let line = root.line;
    let nothing = Node {
        line,
        value: Value::Null,
    };
    Ok(decided.replace(root)?.unwrap_or(nothing))
}

impl Decided {
    /// Returns whether a condition is true.
    fn holds(&self, condition: &Node, place: &str) -> Result<bool, TemplateError> {
        let fail = |message: &str| Err(TemplateError::new(condition.line, place, message));
        let Value::Map(entries) = &condition.value else {
            return fail("a condition must be an intrinsic function");
        };
        match entries.as_slice() {
            [(name, argument)] => match (name.as_str(), &argument.value) {
                ("Fn::Equals", Value::List(sides)) if sides.len() == 2 => {
                    let value =
                        |side: &Node| Ok(self.replace(side.clone())?.map(|node| node.value));
                    Ok(value(&sides[0])? == value(&sides[1])?)
                }
                ("Fn::Not", Value::List(inner)) if inner.len() == 1 => {
                    Ok(!self.holds(&inner[0], place)?)
                }
                _ => fail("a condition may use only Fn::Equals of two values and Fn::Not of one"),
            },
            _ => fail("a condition must be a single intrinsic function"),
        }
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
                [(name, argument)] if name == "Ref" || name == "Fn::If" => {
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

    fn call(
        &self,
        name: &str,
        argument: &Node,
        line: usize,
    ) -> Result<Option<Node>, TemplateError> {
        match (name, &argument.value) {
            ("Ref", Value::Text(target)) if target == "AWS::NoValue" => Ok(None),
            ("Ref", Value::Text(target)) if self.parameters.contains_key(target) => {
                Ok(Some(Node::text(line, &self.parameters[target])))
            }
            ("Fn::If", Value::List(parts)) => {
                let [condition, then, otherwise] = parts.as_slice() else {
                    let message = "Fn::If needs a condition and two values";
                    return Err(TemplateError::new(line, "", message));
                };
                let holds = match &condition.value {
                    Value::Text(name) => self.conditions.get(name),
                    _ => None,
                };
                match holds {
                    Some(true) => self.replace(then.clone()),
                    Some(false) => self.replace(otherwise.clone()),
                    None => {
                        let message = "Fn::If does not refer to a condition of this template";
                        Err(TemplateError::new(condition.line, "", message))
                    }
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
        let root = decide(Node::read(text)?)?;
        Ok(root.to_json())
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
    fn an_unknown_condition_is_an_error_with_its_line() {
        for (old, new, says) in [
            (
                "[HasName, !Ref Named",
                "[HasNme, !Ref Named",
                "does not refer to a condition",
            ),
            ("!Not [", "!Or [", "only Fn::Equals"),
            ("Type: String", "Type: Number", "Number"),
            (", Default: none", "", "Default is missing"),
        ] {
            let error = decided(&TEMPLATE.replacen(old, new, 1)).unwrap_err();
            assert!(error.message.contains(says), "{error}");
            assert!(error.line > 0, "{error}");
        }
    }
}
