//! The budget of read units that all steps of a run share.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cache::Stored;

/// The bytes that an eventually consistent read returns for half a read unit, and a strongly
/// consistent read for a whole one (DynamoDB developer guide, "Read capacity units").
const UNIT_BYTES: u64 = 4096;

/// The read units that were consumed, and when more may be.
#[derive(Debug)]
pub(super) struct Pace {
    /// Read units per second; 0: no limit.
    rate: u64,
    state: Mutex<PaceState>,
}

#[derive(Debug, Default)]
pub(super) struct PaceState {
    read_units: f64,
    /// When more may be read, as the time since the beginning of the run.
    pub(super) due: Duration,
}

impl Pace {
    pub(super) fn new(rate: u64) -> Self {
        Self {
            rate,
            state: Mutex::default(),
        }
    }

    /// Returns the read units that were consumed so far, rounded up.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "no table is large enough to reach the limits"
    )]
    pub(super) fn read_units(&self) -> u64 {
        self.state().read_units.ceil() as u64
    }

    /// Charges read units. Unused time is not credited.
    pub(super) fn spend(&self, read_units: f64, elapsed: Duration) {
        let mut state = self.state();
        state.read_units += read_units;
        if self.rate > 0 {
            let rate = f64::from(u32::try_from(self.rate).unwrap_or(u32::MAX));
            let takes = Duration::try_from_secs_f64(read_units / rate).unwrap_or_default();
            state.due = state.due.max(elapsed) + takes;
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the read units that a strongly consistent read of an item consumes, estimated from the
/// size of its JSON.
pub(super) fn units_of(stored: Option<&Stored>) -> u64 {
    let bytes = stored.map_or(0, |stored| {
        let mut bytes = Bytes(0);
        // The item of a newer release cannot be serialized, and counts as a small one.
        let _ = serde_json::to_writer(&mut bytes, &stored.item);
        bytes.0
    });
    bytes.div_ceil(UNIT_BYTES).max(1)
}

/// Counts the bytes that are written to it.
struct Bytes(u64);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_reads_is_kept_and_unused_time_is_not_saved_up() {
        let pace = Pace::new(10);
        let seconds = Duration::from_secs;
        pace.spend(20.0, seconds(0));
        assert_eq!(pace.state().due, seconds(2));
        pace.spend(10.5, seconds(1));
        assert_eq!(pace.state().due, Duration::from_millis(3050));
        pace.spend(10.0, seconds(100));
        assert_eq!(pace.state().due, seconds(101));
        assert_eq!(pace.read_units(), 41);
        let any = Pace::new(0);
        any.spend(1e6, seconds(0));
        assert_eq!(any.state().due, seconds(0));
    }
}
