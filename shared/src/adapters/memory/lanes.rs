//! Lanes as lists.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::Calls;
use crate::domain::Location;
use crate::ports::{LaneMessage, Lanes, ReconcileMessage, StoreError};

/// Messages of one call.
const BATCH_MESSAGES: usize = 10;

/// Lanes as lists. They print as what waits in them.
#[derive(Debug, Default)]
pub struct MemoryLanes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sent: Vec<SentMessage>,
    reconciled: Vec<Location>,
    calls: Calls,
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentMessage {
    /// The message.
    pub message: LaneMessage,
    /// How long it is not to be seen.
    pub delay: Duration,
}

impl MemoryLanes {
    /// Returns empty lanes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns what waits, in the order in which it was sent.
    pub fn sent(&self) -> Vec<SentMessage> {
        self.lock().sent.clone()
    }

    /// Takes everything that waits, in the order in which it was sent.
    pub fn drain(&self) -> Vec<SentMessage> {
        std::mem::take(&mut self.lock().sent)
    }

    /// Takes every key that was asked to be reconciled, in the order in which it was.
    pub fn drain_reconciled(&self) -> Vec<Location> {
        std::mem::take(&mut self.lock().reconciled)
    }

    /// Returns what waits as readable text.
    pub fn state(&self) -> String {
        self.to_string()
    }

    /// Returns how often each operation was called.
    pub fn calls(&self) -> Calls {
        self.lock().calls.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Lanes for MemoryLanes {
    async fn send(&self, messages: &[LaneMessage], delay: Duration) -> Result<(), StoreError> {
        let mut state = self.lock();
        // As queues count: so many messages in a call.
        for batch in messages.chunks(BATCH_MESSAGES) {
            state.calls.count("send");
            let sent = batch.iter().cloned();
            let sent = sent.map(|message| SentMessage { message, delay });
            state.sent.extend(sent);
        }
        Ok(())
    }

    async fn reconcile(
        &self,
        message: &ReconcileMessage,
        _delay: Duration,
    ) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.calls.count("reconcile");
        state.reconciled.push(message.reconcile.clone());
        Ok(())
    }
}

impl fmt::Display for MemoryLanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        for location in &state.reconciled {
            writeln!(f, "Uploads: reconcile {location}")?;
        }
        state
            .sent
            .iter()
            .try_for_each(|SentMessage { message, delay }| {
                let kinds: Vec<_> = message.kinds.iter().map(|kind| kind.to_string()).collect();
                let module = &message.module;
                write!(
                    f,
                    "{:?}: {} of {} in {} for {}",
                    message.lane,
                    kinds.join(", "),
                    module.module,
                    module.source,
                    module.scope
                )?;
                write!(
                    f,
                    ", ask {}, converter {}",
                    message.ask, message.min_converter.0
                )?;
                for asked in &message.further {
                    write!(f, ", and {}, ask {}", asked.module, asked.ask)?;
                }
                if delay.is_zero() {
                    writeln!(f)
                } else {
                    writeln!(f, ", after {} s", delay.as_secs())
                }
            })
    }
}
