//! Passes runs of units to workers. Of a compressed section, one worker at a time decompresses runs
//! ahead of the others, so that no worker has to wait for the one that decompresses.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::units::Units;

/// A run of units: its number, and its bytes.
pub(super) type NumberedRun<'d> = (u32, Cow<'d, [u8]>);

/// Runs that are ready, and the rest of the section.
pub(super) struct RunQueue<'d> {
    state: Mutex<UnreadRuns<'d>>,
    has_changed: Condvar,
    /// The number of runs that may be ready.
    most: usize,
}

struct UnreadRuns<'d> {
    /// The rest of the section, unless a worker decompresses a run of it.
    units: Option<Units<'d>>,
    /// The number of runs so far.
    count: u32,
    ready: VecDeque<NumberedRun<'d>>,
    /// Buffers of runs that were read.
    spare: Vec<Vec<u8>>,
    at_end: bool,
}

impl<'d> RunQueue<'d> {
    /// Returns the runs of a section for a number of workers. Memory holds at most two runs for
    /// each, one that it reads and one that is ready, and the run that is being decompressed.
    pub(super) fn of(units: Units<'d>, workers: usize) -> Self {
        Self {
            state: Mutex::new(UnreadRuns {
                units: Some(units),
                count: 0,
                ready: VecDeque::new(),
                spare: Vec::new(),
                at_end: false,
            }),
            has_changed: Condvar::new(),
            most: workers.max(1),
        }
    }

    /// Returns the next run, or `None` after the last one. If too few runs are ready and no other
    /// worker decompresses, it decompresses some.
    pub(super) fn next(&self) -> Option<io::Result<NumberedRun<'d>>> {
        let mut state = self.lock();
        loop {
            if state.ready.len() < self.most
                && !state.at_end
                && let Some(mut units) = state.units.take()
            {
                let buffer = state.spare.pop().unwrap_or_default();
                drop(state);
                let guard = EndOnPanic(self);
                let run = units.next_run(buffer);
                drop(guard);
                state = self.lock();
                match run {
                    Some(Ok(run)) => {
                        let number = state.count;
                        state.count += 1;
                        state.ready.push_back((number, run));
                        state.units = Some(units);
                    }
                    Some(Err(error)) => {
                        state.at_end = true;
                        self.has_changed.notify_all();
                        return Some(Err(error));
                    }
                    None => state.at_end = true,
                }
                self.has_changed.notify_all();
            } else if let Some(run) = state.ready.pop_front() {
                return Some(Ok(run));
            } else if state.at_end {
                return None;
            } else {
                let changed = self.has_changed.wait(state);
                state = changed.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Takes back the bytes of a run.
    pub(super) fn give_back(&self, run: Cow<'d, [u8]>) {
        if let Cow::Owned(buffer) = run {
            self.lock().spare.push(buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, UnreadRuns<'d>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the queue if the worker that decompresses panics. The others would wait for it otherwise.
struct EndOnPanic<'q, 'd>(&'q RunQueue<'d>);

impl Drop for EndOnPanic<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().at_end = true;
            self.0.has_changed.notify_all();
        }
    }
}
