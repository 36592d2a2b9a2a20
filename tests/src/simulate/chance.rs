//! The chance of a run, from its seed.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A source of random values. Each concern of a run has its own, so that without the faults, for
/// example, the users of a run do the same.
#[derive(Debug)]
pub(super) struct Chance(StdRng);

impl Chance {
    /// Returns the values of a concern.
    pub(super) fn of(seed: u64, concern: u64) -> Self {
        Self(StdRng::seed_from_u64(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add(concern),
        ))
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0.random()
    }

    /// Returns a number below a limit, which must not be zero.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0.random_range(0..limit)
    }

    /// Returns an index of a list, which must not be empty.
    pub(super) fn index(&mut self, length: usize) -> usize {
        self.0.random_range(0..length)
    }

    /// Returns `true` once in so many times.
    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns `true` so many times in a hundred thousand.
    pub(super) fn happens(&mut self, per_100_000: u32) -> bool {
        self.below(100_000) < u64::from(per_100_000)
    }

    /// Returns a number from zero to one.
    pub(super) fn fraction(&mut self) -> f64 {
        self.0.random()
    }

    /// Returns a number of seconds from `least` to `most`; small ones are as likely as large ones.
    pub(super) fn seconds(&mut self, least: f64, most: f64) -> std::time::Duration {
        let exponent = least.ln() + self.fraction() * (most.ln() - least.ln());
        std::time::Duration::from_micros((exponent.exp() * 1e6) as u64)
    }

    /// Returns a key of a map, which must not be empty.
    pub(super) fn pick_key<V>(&mut self, keys: &BTreeMap<String, V>) -> String {
        let at = self.index(keys.len());
        keys.keys().nth(at).cloned().unwrap_or_default()
    }

    /// Returns a seed for an invocation.
    pub(super) fn seed(&mut self) -> [u8; 32] {
        self.0.random()
    }
}
