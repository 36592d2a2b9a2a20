//! Errors of templates.

use std::fmt;

/// An error in a template, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The line, from 1.
    pub line: usize,
    /// The resource and property; empty if there is none.
    pub place: String,
    /// The reason.
    pub message: String,
}

impl TemplateError {
    pub(super) fn new(line: usize, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            line,
            place: place.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.as_str() {
            "" => write!(formatter, "line {}: {}", self.line, self.message),
            place => write!(formatter, "line {}, {place}: {}", self.line, self.message),
        }
    }
}

impl std::error::Error for TemplateError {}
