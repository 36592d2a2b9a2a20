//! What a flow knows of the invocation it runs in: who it is, what time it is, how long it has, and chance.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::cache::{Revision, Token};
use crate::domain::Timestamp;

/// One invocation of a function. Everything in it was drawn at the edge.
pub struct Invocation {
    request_id: String,
    epoch_at_start: Duration,
    started: Instant,
    deadline: Instant,
    chance: Mutex<StdRng>,
}

impl Invocation {
    /// Begins an invocation.
    ///
    /// `epoch_at_start` is the time since 1970, `time_left` how long the function may run, `seed` random.
    pub fn new(
        request_id: String,
        epoch_at_start: Duration,
        time_left: Duration,
        seed: [u8; 32],
    ) -> Self {
        let started = Instant::now();
        Self {
            request_id,
            epoch_at_start,
            started,
            deadline: started + time_left,
            chance: Mutex::new(StdRng::from_seed(seed)),
        }
    }

    /// Returns the id that names this invocation in logs and leases.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Returns the time now.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.since_epoch().as_secs())
    }

    /// Returns the time since 1970 by the wall clock, which each invocation reads anew.
    pub fn since_epoch(&self) -> Duration {
        self.epoch_at_start + self.started.elapsed()
    }

    /// Returns the time since the invocation began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns how long it may still run.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns when it must have ended, as a time that leases can name.
    pub fn deadline(&self) -> Timestamp {
        self.now().plus(self.time_left())
    }

    /// Draws a token.
    pub fn token(&self) -> Token {
        Token::from_random(self.draw())
    }

    /// Draws a revision.
    pub fn revision(&self) -> Revision {
        Revision::from_random(self.draw())
    }

    /// Draws a nonce, to seal something with.
    pub fn nonce(&self) -> [u8; 12] {
        self.draw()
    }

    /// Returns a time between `duration` and the half of it.
    pub fn jittered(&self, duration: Duration) -> Duration {
        duration.mul_f64(0.5 + self.draw::<f64>() / 2.0)
    }

    fn draw<T>(&self) -> T
    where
        rand::distr::StandardUniform: rand::distr::Distribution<T>,
    {
        self.chance
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .random()
    }
}

impl fmt::Debug for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invocation")
            .field("request_id", &self.request_id)
            .field("time_left", &self.time_left())
            .finish()
    }
}
