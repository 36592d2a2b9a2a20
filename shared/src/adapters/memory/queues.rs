//! Lanes as lists.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::Calls;
use crate::domain::Location;
use crate::ports::{Fault, QueueMessage, Queues, Received, ReconcileMessage};

/// Messages of one call.
const BATCH_MESSAGES: usize = 10;

/// Lanes as lists. They print as what waits in them.
#[derive(Debug, Default)]
pub struct MemoryQueues {
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    sent: Vec<SentMessage>,
    reconciled: Vec<SentReconcile>,
    retried: Vec<(Received, Duration)>,
    calls: Calls,
}

/// A message that asks to reconcile a key, and waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentReconcile {
    /// The message.
    pub message: ReconcileMessage,
    /// How long it is not to be seen.
    pub delay: Duration,
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentMessage {
    /// The message.
    pub message: QueueMessage,
    /// How long it is not to be seen.
    pub delay: Duration,
}

impl MemoryQueues {
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

    /// Takes every key that was requested to be reconciled, in the order in which it was.
    pub fn drain_reconciled(&self) -> Vec<Location> {
        let messages = self.drain_reconcile_messages().into_iter();
        messages.map(|sent| sent.message.reconcile).collect()
    }

    /// Takes every message that asks to reconcile a key, in the order in which it was sent.
    pub fn drain_reconcile_messages(&self) -> Vec<SentReconcile> {
        std::mem::take(&mut self.lock().reconciled)
    }

    /// Takes every message that is to be seen again later, in the order in which that was requested for.
    pub fn drain_retried(&self) -> Vec<(Received, Duration)> {
        std::mem::take(&mut self.lock().retried)
    }

    /// Returns what waits as readable text.
    pub fn state(&self) -> String {
        self.to_string()
    }

    /// Returns how often each operation was called.
    pub fn calls(&self) -> Calls {
        self.lock().calls.clone()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Queues for MemoryQueues {
    async fn send(&self, messages: &[QueueMessage], delay: Duration) -> Result<(), Fault> {
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

    async fn reconcile(&self, message: &ReconcileMessage, delay: Duration) -> Result<(), Fault> {
        let mut state = self.lock();
        state.calls.count("reconcile");
        let message = message.clone();
        state.reconciled.push(SentReconcile { message, delay });
        Ok(())
    }

    async fn retry_later(&self, received: &Received, delay: Duration) -> Result<(), Fault> {
        let mut state = self.lock();
        state.calls.count("retry_later");
        state.retried.push((received.clone(), delay));
        Ok(())
    }
}

impl fmt::Display for MemoryQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        for SentReconcile { message, .. } in &state.reconciled {
            writeln!(f, "Uploads: reconcile {}", message.reconcile)?;
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
                    message.queue,
                    kinds.join(", "),
                    module.id,
                    module.source,
                    module.scope
                )?;
                write!(
                    f,
                    ", build request {}, converter {}",
                    message.build_request, message.min_converter.0
                )?;
                for requested in &message.further {
                    write!(
                        f,
                        ", and {}, build request {}",
                        requested.module, requested.build_request
                    )?;
                }
                if delay.is_zero() {
                    writeln!(f)
                } else {
                    writeln!(f, ", after {} s", delay.as_secs())
                }
            })
    }
}
