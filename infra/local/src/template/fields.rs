//! Reads a map whose keys are known: each key is taken once, and one that nobody takes is an error that names it.

use super::TemplateError;
use super::node::{Node, Value};

/// The entries of a map that have not been taken yet.
#[derive(Debug)]
pub(super) struct Fields {
    place: String,
    line: usize,
    entries: Vec<(String, Node)>,
}

impl Fields {
    /// The entries of `node`, which messages call `place`.
    pub(super) fn of(node: Node, place: impl Into<String>) -> Result<Self, TemplateError> {
        let place = place.into();
        match node.value {
            Value::Map(entries) => Ok(Self {
                place,
                line: node.line,
                entries,
            }),
            Value::Null => Ok(Self {
                place,
                line: node.line,
                entries: Vec::new(),
            }),
            _ => Err(TemplateError::new(
                node.line,
                place,
                format!("{} where a map belongs", node.kind()),
            )),
        }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// The entry `key`, if it is there.
    pub(super) fn take(&mut self, key: &str) -> Option<Node> {
        let index = self.entries.iter().position(|(name, _)| name == key)?;
        Some(self.entries.remove(index).1)
    }

    /// The entry `key`.
    pub(super) fn require(&mut self, key: &str) -> Result<Node, TemplateError> {
        self.take(key)
            .ok_or_else(|| self.error(self.line, format!("{key} is missing")))
    }

    /// The map under `key`, empty if it is absent.
    pub(super) fn map(&mut self, key: &str) -> Result<Self, TemplateError> {
        let node = self.take(key).unwrap_or(Node {
            line: self.line,
            value: Value::Null,
        });
        Self::of(node, self.path(key))
    }

    /// The text under `key`.
    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, TemplateError> {
        self.take(key)
            .map(|node| self.as_text(key, node))
            .transpose()
    }

    /// The text under `key`, which must be there.
    pub(super) fn required_text(&mut self, key: &str) -> Result<String, TemplateError> {
        let node = self.require(key)?;
        self.as_text(key, node)
    }

    /// The text under `key`, which must be there and one of `allowed`.
    pub(super) fn choice(
        &mut self,
        key: &str,
        allowed: &[&str],
    ) -> Result<Option<String>, TemplateError> {
        let Some(node) = self.take(key) else {
            return Ok(None);
        };
        let line = node.line;
        let text = self.as_text(key, node)?;
        if !allowed.contains(&text.as_str()) {
            return Err(self.error(
                line,
                format!(
                    "{key} {text:?} is not known to the local stack, only {}",
                    allowed.join(", ")
                ),
            ));
        }
        Ok(Some(text))
    }

    /// The whole number under `key`, which must lie in `range`.
    pub(super) fn number(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<u64>, TemplateError> {
        let Some(node) = self.take(key) else {
            return Ok(None);
        };
        match node.value {
            Value::Integer(number) if range.contains(&number) => Ok(Some(number.unsigned_abs())),
            Value::Integer(number) => {
                let message = format!(
                    "{key} is {number}, not from {} to {}",
                    range.start(),
                    range.end()
                );
                Err(self.error(node.line, message))
            }
            _ => Err(self.error(
                node.line,
                format!("{key} is {} where a whole number belongs", node.kind()),
            )),
        }
    }

    /// The list under `key`, empty if it is absent.
    pub(super) fn list(&mut self, key: &str) -> Result<Vec<Node>, TemplateError> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Node {
                value: Value::List(items),
                ..
            }) => Ok(items),
            Some(node) => Err(self.error(
                node.line,
                format!("{key} is {} where a list belongs", node.kind()),
            )),
        }
    }

    /// The remaining entries.
    pub(super) fn rest(self) -> Vec<(String, Node)> {
        self.entries
    }

    /// Fails if an entry has not been taken.
    pub(super) fn end(self) -> Result<(), TemplateError> {
        match self.entries.first() {
            None => Ok(()),
            Some((key, node)) => {
                Err(self.error(node.line, format!("{key} is not known to the local stack")))
            }
        }
    }

    pub(super) fn error(&self, line: usize, message: impl Into<String>) -> TemplateError {
        TemplateError::new(line, self.place.clone(), message)
    }

    pub(super) fn path(&self, key: &str) -> String {
        if self.place.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.place)
        }
    }

    fn as_text(&self, key: &str, node: Node) -> Result<String, TemplateError> {
        match node.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.error(
                node.line,
                format!("{key} is {} where a text belongs", node.kind()),
            )),
        }
    }
}
