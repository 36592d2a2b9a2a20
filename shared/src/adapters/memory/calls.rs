//! Counts of calls, by operation.

use std::collections::BTreeMap;
use std::fmt;

/// How often each operation of a port was called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls(BTreeMap<&'static str, u64>);

impl Calls {
    /// Returns how often an operation was called, by the name of its method.
    pub fn of(&self, operation: &str) -> u64 {
        self.0.get(operation).copied().unwrap_or_default()
    }

    /// Returns how often any operation was called.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub(super) fn count(&mut self, operation: &'static str) {
        *self.0.entry(operation).or_default() += 1;
    }
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|(operation, count)| writeln!(f, "{operation}: {count}"))
    }
}
