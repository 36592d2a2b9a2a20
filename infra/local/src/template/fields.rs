//! Reads a map with a fixed set of keys: each key is taken once, and a key that is not taken is an
//! error that names it.

use super::error::TemplateError;
use super::node::{Node, Value};

/// The entries of a map that have not been taken yet.
#[derive(Debug)]
pub(super) struct Fields {
    place: String,
    line: usize,
    entries: Vec<(String, Node)>,
}

impl Fields {
    /// Returns the entries of `node`; error messages contain `place`.
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
                format!("expected a map, found {}", node.kind()),
            )),
        }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Takes the entry `key`, if it exists.
    pub(super) fn take(&mut self, key: &str) -> Option<Node> {
        let index = self.entries.iter().position(|(name, _)| name == key)?;
        Some(self.entries.remove(index).1)
    }

    /// Takes the entry `key`, which must exist.
    pub(super) fn require(&mut self, key: &str) -> Result<Node, TemplateError> {
        self.take(key)
            .ok_or_else(|| self.error(self.line, format!("{key} is missing")))
    }

    /// Takes the map under `key`; empty if it does not exist.
    pub(super) fn map(&mut self, key: &str) -> Result<Self, TemplateError> {
        let node = self.take(key).unwrap_or(Node {
            line: self.line,
            value: Value::Null,
        });
        Self::of(node, self.path(key))
    }

    /// Takes the string under `key`.
    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, TemplateError> {
        self.take(key)
            .map(|node| self.as_text(key, node))
            .transpose()
    }

    /// Takes the string under `key`, which must exist.
    pub(super) fn required_text(&mut self, key: &str) -> Result<String, TemplateError> {
        let node = self.require(key)?;
        self.as_text(key, node)
    }

    /// Takes the string under `key`, which must be one of `allowed`.
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
                    "{key} {text:?} is not supported by the local stack, only {}",
                    allowed.join(", ")
                ),
            ));
        }
        Ok(Some(text))
    }

    /// Takes the integer under `key`, which must be in `range`.
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
                    "{key} is {number}, but must be from {} to {}",
                    range.start(),
                    range.end()
                );
                Err(self.error(node.line, message))
            }
            _ => Err(self.error(
                node.line,
                format!("{key} must be an integer, but is {}", node.kind()),
            )),
        }
    }

    /// Takes the list under `key`; empty if it does not exist.
    pub(super) fn list(&mut self, key: &str) -> Result<Vec<Node>, TemplateError> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Node {
                value: Value::List(items),
                ..
            }) => Ok(items),
            Some(node) => Err(self.error(
                node.line,
                format!("{key} must be a list, but is {}", node.kind()),
            )),
        }
    }

    /// Returns the entries that have not been taken.
    pub(super) fn rest(self) -> Vec<(String, Node)> {
        self.entries
    }

    /// Returns an error if an entry has not been taken.
    pub(super) fn end(self) -> Result<(), TemplateError> {
        match self.entries.first() {
            None => Ok(()),
            Some((key, node)) => Err(self.error(
                node.line,
                format!("{key} is not supported by the local stack"),
            )),
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
                format!("{key} must be a string, but is {}", node.kind()),
            )),
        }
    }
}
