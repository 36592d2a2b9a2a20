//! The error of a function that cannot start because of its settings.

use std::fmt;

/// The problems of the environment: all of them, not only the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub(super) Vec<(&'static str, String)>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration is incomplete:")?;
        let width = self
            .0
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or_default();
        for (name, problem) in &self.0 {
            write!(f, "\n  {name:width$}  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
