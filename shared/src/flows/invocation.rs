//! The context of one invocation: its id, the clock, the deadline, the randomness, and notes of
//! what it did.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;
use uuid::Uuid;

use crate::cache::{Revision, Token};
use crate::domain::{AccessToken, Timestamp};
use crate::flows::notes::Notes;

/// One invocation of a function. Its time and its seed come from the edge.
pub struct Invocation {
    request_id: String,
    epoch_at_start: Duration,
    started: Instant,
    deadline: Instant,
    chance: Mutex<StdRng>,
    notes: Mutex<Notes>,
}

impl Invocation {
    /// Begins an invocation.
    ///
    /// `epoch_at_start` is the time since 1970, `time_left` is how long the function may run, and
    /// `seed` is random.
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
            notes: Mutex::default(),
        }
    }

    /// Returns the id of this invocation in logs and leases.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.since_epoch().as_secs())
    }

    /// Returns the time since 1970 by the wall clock, which is read once per invocation.
    pub fn since_epoch(&self) -> Duration {
        self.epoch_at_start + self.started.elapsed()
    }

    /// Returns the time since the invocation began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns how long the invocation may still run.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns the time by which the invocation ends, for use in leases.
    pub fn deadline(&self) -> Timestamp {
        self.now().plus(self.time_left())
    }

    /// Draws an id for a request.
    pub fn uuid(&self) -> Uuid {
        uuid::Builder::from_random_bytes(self.draw()).into_uuid()
    }

    /// Draws a token.
    pub fn token(&self) -> Token {
        Token::from_random(self.draw())
    }

    /// Draws a revision.
    pub fn revision(&self) -> Revision {
        Revision::from_random(self.draw())
    }

    /// Draws an access token. The generator is a cryptographic one, and its seed has 256 random
    /// bits of the operating system.
    pub fn access_token(&self) -> AccessToken {
        AccessToken::from_random(self.draw())
    }

    /// Draws a nonce for encryption.
    pub fn nonce(&self) -> [u8; 12] {
        self.draw()
    }

    /// Returns a random time between half of `duration` and `duration`.
    pub fn jittered(&self, duration: Duration) -> Duration {
        duration.mul_f64(0.5 + self.draw::<f64>() / 2.0)
    }

    /// Adds to the notes of what this invocation did.
    pub(super) fn note(&self, add: impl FnOnce(&mut Notes)) {
        add(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the notes since the last call.
    pub fn take_notes(&self) -> Notes {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *notes)
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
