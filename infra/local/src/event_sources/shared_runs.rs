//! How the queues of one function share its runs.
//!
//! In AWS, each queue has runs of its own (`MaximumConcurrency`), and there are many. Here, all
//! queues share the few runs that one machine affords. An event may wait for a server that does not
//! respond, so the events of one client must not take them all:
//!
//! - A message group has at most half of the runs, over all queues without events of a bucket. Its
//!   other messages stay in the queue.
//! - A queue with the events of a bucket has a run that no other queue takes, from three runs on.
//!
//! A queue with the events of a bucket may use all runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::queues::Received;

/// The number of runs from which one is kept for the events of buckets. With fewer, one slow
/// message group would have all that the other queues may take.
const KEEPS_ONE_FROM: usize = 3;

/// The runs of a function that one of its queues may take.
#[derive(Clone, Debug)]
pub struct QueueRuns {
    shared: SharedRuns,
    has_bucket_events: bool,
}

/// The runs of a function that its queues share. Clones share the same runs.
#[derive(Clone, Debug)]
pub struct SharedRuns {
    /// The runs that one message group may have at the same time.
    most_of_group: usize,
    /// All runs. It is fair, so that no queue starves another.
    all: Arc<Semaphore>,
    /// The runs that queues without events of buckets may have together.
    without_bucket_events: Arc<Semaphore>,
    groups: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// A run that is taken, until it is dropped. No permit is present only if a semaphore was closed,
/// which does not happen.
#[derive(Debug)]
pub(super) struct TakenRun {
    _all: Option<OwnedSemaphorePermit>,
    _without_bucket_events: Option<OwnedSemaphorePermit>,
}

/// Message groups that have a run, until it is dropped.
#[derive(Debug)]
pub(super) struct GroupsOfRun {
    groups: BTreeSet<String>,
    running: SharedRuns,
}

impl SharedRuns {
    /// Returns this number of runs. One is kept for the events of buckets if a queue of the
    /// function has such events.
    #[must_use]
    pub fn new(runs: usize, has_bucket_events: bool) -> Self {
        let kept = usize::from(has_bucket_events && runs >= KEEPS_ONE_FROM);
        Self {
            most_of_group: (runs / 2).max(1),
            all: Arc::new(Semaphore::new(runs)),
            without_bucket_events: Arc::new(Semaphore::new(runs - kept)),
            groups: Arc::default(),
        }
    }

    /// Returns those that a queue may take, with the events of a bucket or without.
    #[must_use]
    pub fn of_queue(&self, has_bucket_events: bool) -> QueueRuns {
        QueueRuns {
            shared: self.clone(),
            has_bucket_events,
        }
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueRuns {
    /// Waits for a run.
    pub(super) async fn take(&self) -> TakenRun {
        let SharedRuns {
            all,
            without_bucket_events,
            ..
        } = &self.shared;
        let without_bucket_events = if self.has_bucket_events {
            None
        } else {
            permit(without_bucket_events).await
        };
        TakenRun {
            _all: permit(all).await,
            _without_bucket_events: without_bucket_events,
        }
    }

    /// Returns the groups of which the queue may begin no further messages now.
    pub(super) fn full_groups(&self) -> BTreeSet<String> {
        if self.has_bucket_events {
            return BTreeSet::new();
        }
        let groups = self.shared.groups();
        let most = self.shared.most_of_group;
        let full = groups.iter().filter(|(_, runs)| **runs >= most);
        full.map(|(group, _)| group.clone()).collect()
    }

    /// Counts a run for the groups of these messages, unless their queue has the events of a
    /// bucket. (Two queues that receive messages of one group at the same time may exceed its limit
    /// by one run.)
    pub(super) fn begin(&self, messages: &[Received]) -> GroupsOfRun {
        let limited = messages.iter().filter(|_| !self.has_bucket_events);
        let groups: BTreeSet<String> = limited.filter_map(|it| it.group.clone()).collect();
        let mut running = self.shared.groups();
        for group in &groups {
            *running.entry(group.clone()).or_default() += 1;
        }
        drop(running);
        GroupsOfRun {
            groups,
            running: self.shared.clone(),
        }
    }
}

/// Acquires a permit. `None` only if the semaphore was closed, which does not happen.
pub(super) async fn permit(semaphore: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(semaphore).acquire_owned().await.ok()
}

impl Drop for GroupsOfRun {
    fn drop(&mut self) {
        let mut running = self.running.groups();
        for group in &self.groups {
            if let Some(runs) = running.get_mut(group) {
                *runs = runs.saturating_sub(1);
            }
        }
        running.retain(|_, runs| *runs > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a run if one is free.
    async fn free(runs: &QueueRuns) -> Option<TakenRun> {
        tokio::select! {
            biased;
            run = runs.take() => Some(run),
            () = std::future::ready(()) => None,
        }
    }

    /// Takes all runs that are free for queues with the events of a bucket or without.
    async fn take_all(runs: &SharedRuns, has_bucket_events: bool) -> Vec<TakenRun> {
        let runs = runs.of_queue(has_bucket_events);
        let mut taken = Vec::new();
        while let Some(run) = free(&runs).await {
            taken.push(run);
        }
        taken
    }

    #[tokio::test]
    async fn a_group_has_half_of_the_runs_and_bucket_events_keep_one() {
        for (runs, of_group, without_bucket_events) in [
            (1, 1, 1),
            (2, 1, 2),
            (3, 1, 2),
            // One core and two, then four, eight and sixteen.
            (4, 2, 3),
            (8, 4, 7),
            (16, 8, 15),
            (32, 16, 31),
        ] {
            let shared = SharedRuns::new(runs, true);
            assert_eq!(shared.most_of_group, of_group, "{runs} runs");
            let taken = take_all(&shared, false).await;
            assert_eq!(taken.len(), without_bucket_events, "{runs} runs");
            let kept = take_all(&shared, true).await;
            assert_eq!(taken.len() + kept.len(), runs);
            drop((taken, kept));
            assert_eq!(take_all(&shared, true).await.len(), runs);
            let none_kept = SharedRuns::new(runs, false);
            assert_eq!(take_all(&none_kept, false).await.len(), runs);
        }
    }
}
