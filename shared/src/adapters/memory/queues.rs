//! Queues as lists.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::Calls;
use crate::ports::{Fault, QueueMessage, Queues, Received, ReconcileMessage};

/// Messages per call.
const BATCH_MESSAGES: usize = 10;

/// Queues as lists. `Display` prints the messages that wait.
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

/// A waiting message that requests the reconciliation of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentReconcile {
    /// The message.
    pub message: ReconcileMessage,
    /// How long the message is invisible.
    pub delay: Duration,
}

/// A waiting message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentMessage {
    /// The message.
    pub message: QueueMessage,
    /// How long the message is invisible.
    pub delay: Duration,
}

impl MemoryQueues {
    /// Returns empty queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the waiting messages, in the order in which they were sent.
    pub fn sent(&self) -> Vec<SentMessage> {
        self.lock().sent.clone()
    }

    /// Takes the waiting messages, in the order in which they were sent.
    pub fn drain(&self) -> Vec<SentMessage> {
        std::mem::take(&mut self.lock().sent)
    }

    /// Takes the messages that request reconciliation, in the order in which they were sent.
    pub fn drain_reconcile_messages(&self) -> Vec<SentReconcile> {
        std::mem::take(&mut self.lock().reconciled)
    }

    /// Takes the messages that are to be retried later, in the order of these requests.
    pub fn drain_retried(&self) -> Vec<(Received, Duration)> {
        std::mem::take(&mut self.lock().retried)
    }

    /// Returns the waiting messages as readable text.
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
        // Counted as SQS does: one call per batch.
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
            writeln!(f, "Uploads: reconcile {}", message.key)?;
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
