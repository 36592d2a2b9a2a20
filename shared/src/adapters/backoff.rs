//! Pauses between attempts, with jitter so that clients that failed together do not retry together.

use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;

use crate::domain::Backoff;

/// The limits of the pauses.
const LIMITS: Backoff = Backoff {
    first: Duration::from_millis(25),
    longest: Duration::from_secs(1),
};

/// Waits before the attempt that follows `failures` (one or more) failed ones.
pub(in crate::adapters) async fn pause(failures: u32) {
    tokio::time::sleep(ceiling(failures).mul_f64(fraction())).await;
}

fn ceiling(failures: u32) -> Duration {
    LIMITS.after(failures.saturating_sub(1))
}

/// Returns a random number in `0.0..=1.0`.
fn fraction() -> f64 {
    // Without random numbers from the system, the pause is half of its limit.
    SysRng
        .try_next_u32()
        .map_or(0.5, |bits| f64::from(bits) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_no_further() {
        let ceilings: Vec<_> = (1..=8)
            .map(|failures| ceiling(failures).as_millis())
            .collect();
        assert_eq!(ceilings, [25, 50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(ceiling(u32::MAX), LIMITS.longest);
    }

    #[test]
    fn a_fraction_is_between_zero_and_one() {
        assert!(
            (0..100)
                .map(|_| fraction())
                .all(|fraction| (0.0..=1.0).contains(&fraction))
        );
    }
}
