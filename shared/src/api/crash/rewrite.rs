//! Rules that rename the first module of a crash for lookups: programs that are built from another
//! one are renamed by those who ship them, and keep the debug files of the original (Electron).

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::api::symbolicator::{Module, RequestError, objects};

/// The maximum number of rules.
const REWRITE_RULES: usize = 32;

/// The maximum length of an expression, and of a replacement, in bytes.
const REWRITE_RULE_BYTES: usize = 1024;

/// The maximum length of a name that is rewritten, and of the result, in bytes.
const NAME_BYTES: usize = 4 * 1024;

/// The maximum size of a compiled expression, in bytes.
const COMPILED_BYTES: usize = 256 * 1024;

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RewriteRule {
    /// A regular expression, in the syntax of the crate `regex`.
    #[cfg_attr(feature = "openapi", schemars(length(max = REWRITE_RULE_BYTES)))]
    pub from: String,
    /// What replaces its first match. `$1` or `${name}` stand for groups of the match.
    #[cfg_attr(feature = "openapi", schemars(length(max = REWRITE_RULE_BYTES)))]
    pub to: String,
}

/// The rules, in order. The first one that matches is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct RewriteRules(
    #[serde(deserialize_with = "objects")]
    #[cfg_attr(feature = "openapi", schemars(length(max = REWRITE_RULES)))]
    pub Vec<RewriteRule>,
);

impl RewriteRule {
    fn expression(&self) -> Result<Regex, regex::Error> {
        RegexBuilder::new(&self.from)
            .size_limit(COMPILED_BYTES)
            .dfa_size_limit(COMPILED_BYTES)
            .build()
    }
}

impl RewriteRules {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks the limits, and the syntax of the expressions.
    ///
    /// # Errors
    ///
    /// [`RequestError::Part`], with the position of the rule.
    pub fn check(&self) -> Result<(), RequestError> {
        let invalid = |cause: String| RequestError::Part {
            name: "rewrite_first_module".to_owned(),
            cause,
        };
        if self.0.len() > REWRITE_RULES {
            return Err(invalid(format!("it has more than {REWRITE_RULES} rules")));
        }
        for (at, rule) in self.0.iter().enumerate() {
            if rule.from.len().max(rule.to.len()) > REWRITE_RULE_BYTES {
                let cause = format!("[{at}]: has more than {REWRITE_RULE_BYTES} bytes");
                return Err(invalid(cause));
            }
            if let Err(error) = rule.expression() {
                // The text of a syntax error repeats the expression over several lines.
                let error = error.to_string();
                let error = error.lines().last().unwrap_or_default();
                return Err(invalid(format!("[{at}].from: {error}")));
            }
        }
        Ok(())
    }

    /// Returns the index of a module, and the name under which it is looked up, if that is another
    /// one than its own.
    pub fn renamed(&self, module: Option<(usize, &Module)>) -> Option<(usize, String)> {
        let (index, module) = module?;
        let renamed = self.apply(module.debug_file.as_deref()?)?;
        Some((index, renamed))
    }

    /// Returns a name as the first rule that matches rewrites it; `None` if none matches, or if the
    /// name is too long before or after.
    pub fn apply(&self, name: &str) -> Option<String> {
        if name.len() > NAME_BYTES {
            return None;
        }
        let mut expressions = self.0.iter().filter_map(|rule| {
            let expression = rule.expression().ok()?;
            Some((expression, &rule.to))
        });
        let (expression, to) = expressions.find(|(expression, _)| expression.is_match(name))?;
        let rewritten = expression.replace(name, to).into_owned();
        (rewritten.len() <= NAME_BYTES).then_some(rewritten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(rules: &[(&str, &str)]) -> RewriteRules {
        let rules = rules.iter().map(|(from, to)| RewriteRule {
            from: (*from).to_owned(),
            to: (*to).to_owned(),
        });
        RewriteRules(rules.collect())
    }

    #[test]
    fn the_first_rule_that_matches_replaces_its_first_match() {
        let rules = rules(&[
            ("^no$", "never"),
            ("^.*[\\\\/](?P<name>[^\\\\/]+) Helper$", "${name}.helper"),
            ("Helper", "electron"),
        ]);
        let apply = |name: &str| rules.apply(name);
        assert_eq!(apply("/Apps/Chat Helper").as_deref(), Some("Chat.helper"));
        assert_eq!(apply("HelperHelper").as_deref(), Some("electronHelper"));
        assert_eq!(apply("other"), None);
    }

    #[test]
    fn rules_have_limits_that_errors_name() {
        let check = |rules: &RewriteRules, expected: &str| {
            let error = rules.check().unwrap_err();
            assert_eq!(error.status(), 400);
            assert!(error.to_string().contains(expected), "{error}");
        };
        assert_eq!(rules(&[("a(b)c", "$1")]).check(), Ok(()));
        check(&rules(&[("a", ""); 33]), "more than 32 rules");
        check(
            &rules(&[("a", ""), ("(", "")]),
            "[1].from: error: unclosed group",
        );
        check(
            &rules(&[(&"a".repeat(1025), "")]),
            "[0]: has more than 1024",
        );
        check(
            &rules(&[("a", &"b".repeat(1025))]),
            "[0]: has more than 1024",
        );
        check(&rules(&[("(?:a{1000}){1000}", "")]), "[0].from");
    }

    #[test]
    fn a_name_that_grows_beyond_the_limit_is_not_rewritten() {
        let growing = rules(&[("^.*$", &"$0".repeat(500))]);
        assert_eq!(growing.check(), Ok(()));
        assert_eq!(growing.apply(&"x".repeat(4096)), None);
        assert_eq!(growing.apply(&"x".repeat(4097)), None);
        assert_eq!(growing.apply("x").unwrap().len(), 500);
    }

    #[test]
    fn an_expression_that_backtracks_elsewhere_ends_soon() {
        let evil = rules(&[("^(a+)+$", "b")]);
        assert_eq!(evil.apply(&format!("{}!", "a".repeat(4000))), None);
    }
}
