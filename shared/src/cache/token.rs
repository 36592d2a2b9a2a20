//! Random values that tell one write, one holder, one mark from every other. They are drawn at the edge.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A random value that nobody else has: a lease's token, an ask's id, a dirty mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// Returns the token made of these random bits.
    pub fn from_random(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }

    /// Returns the text, 32 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What compare-and-swap compares: random, new with every write of an item.
///
/// A counter would repeat after an item is removed and made again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(String);

impl Revision {
    /// Returns the revision made of these random bits.
    pub fn from_random(bits: u64) -> Self {
        Self(format!("{bits:016x}"))
    }

    /// Returns the text, 16 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Token {
    /// Returns a number in `0.0..1.0` that depends on nothing but the token: jitter without drawing again.
    pub(super) fn fraction(&self) -> f64 {
        let digits = self.0.get(..8).unwrap_or_default();
        f64::from(u32::from_str_radix(digits, 16).unwrap_or_default()) / (f64::from(u32::MAX) + 1.0)
    }
}
