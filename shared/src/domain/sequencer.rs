//! The order of the events of one key.

use std::cmp::Ordering;
use std::iter;

use serde::{Deserialize, Serialize};

/// The sequencer of an S3 event, which orders the events of one key: a later event has a greater
/// sequencer. The default is less than that of any event.
///
/// Sequencers are hex digits. They are compared from the left; the shorter one is padded with zeros
/// on the right ("Event message structure", Amazon S3 user guide).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Sequencer(String);

impl Sequencer {
    /// Wraps the text of a sequencer.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns its digits in lower case, and endless zeros after them.
    fn digits(&self) -> impl Iterator<Item = u8> + '_ {
        let digits = self.0.bytes().map(|digit| digit.to_ascii_lowercase());
        digits.chain(iter::repeat(b'0'))
    }
}

impl Ord for Sequencer {
    fn cmp(&self, other: &Self) -> Ordering {
        let length = self.0.len().max(other.0.len());
        self.digits().take(length).cmp(other.digits().take(length))
    }
}

impl PartialOrd for Sequencer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sequencer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Sequencer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequencers_of_different_lengths_are_compared_as_if_padded() {
        let order = |a: &str, b: &str| Sequencer::new(a).cmp(&Sequencer::new(b));
        assert!(order("0055", "0055aa").is_lt());
        assert!(order("0056", "0055AA").is_gt());
        assert!(order("00aa", "00AA00").is_eq());
        assert!(order("", "00").is_eq());
    }
}
