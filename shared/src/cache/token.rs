//! Random values that identify a write, a lease holder or a mark. The random bits are drawn at the
//! edge of the program.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A unique random value: a lease's token, a build request's id, a dirty mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// Returns the token of these random bits.
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

/// The value that compare-and-swap compares. Every write of an item draws a new random one.
///
/// A counter would repeat after an item is removed and created again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(String);

impl Revision {
    /// Returns the revision of these random bits.
    pub fn from_random(bits: u64) -> Self {
        Self(format!("{bits:016x}"))
    }

    /// Returns the text, 16 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Token {
    /// Returns a number in `0.0..1.0` that depends only on the token. It serves as jitter without
    /// further randomness.
    pub(super) fn fraction(&self) -> f64 {
        let digits = self.0.get(..8).unwrap_or_default();
        f64::from(u32::from_str_radix(digits, 16).unwrap_or_default()) / (f64::from(u32::MAX) + 1.0)
    }
}
