//! Passes runs of units to workers. Of a compressed section, one worker at a time decompresses runs
//! ahead of the others, so that no worker has to wait for the one that decompresses.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use symbolic::debuginfo::dwarf::Endian;

use super::units::Units;

/// A run of units: its number, and its bytes.
pub(super) type NumberedRun<'d> = (u32, Cow<'d, [u8]>);

/// Runs that are ready, and the rest of the section.
pub(super) struct RunQueue<'d> {
    state: Mutex<UnreadRuns<'d>>,
    has_changed: Condvar,
    /// The number of runs that may be ready.
    most: usize,
    endianity: Endian,
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
    /// Why the section ended early, until a worker returns it.
    error: Option<io::Error>,
}

impl<'d> RunQueue<'d> {
    /// Returns the runs of a section for a number of workers. Memory holds at most two runs for
    /// each, one that it reads and one that is ready, and the run that is being decompressed.
    pub(super) fn of(units: Units<'d>, workers: usize) -> Self {
        Self {
            endianity: units.endianity(),
            state: Mutex::new(UnreadRuns {
                units: Some(units),
                count: 0,
                ready: VecDeque::new(),
                spare: Vec::new(),
                at_end: false,
                error: None,
            }),
            has_changed: Condvar::new(),
            most: workers.max(1),
        }
    }

    pub(super) fn endianity(&self) -> Endian {
        self.endianity
    }

    /// Decompresses runs before any worker reads one, while `has_time`: at most as many as may be
    /// ready later, and those that the workers then read. A single worker has no time for that.
    /// Returns if another worker decompresses.
    pub(super) fn fill(&self, has_time: impl Fn() -> bool) {
        let mut state = self.lock();
        while self.most > 1
            && has_time()
            && state.ready.len() < 2 * self.most
            && let Some(units) = state.unread()
        {
            state = self.decompress(state, units);
        }
    }

    /// Returns the next run, or `None` after the last one. If too few runs are ready and no other
    /// worker decompresses, it decompresses some.
    pub(super) fn next(&self) -> Option<io::Result<NumberedRun<'d>>> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Some(Err(error));
            }
            if state.ready.len() < self.most
                && let Some(units) = state.unread()
            {
                state = self.decompress(state, units);
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

    /// Decompresses a run without holding the lock.
    fn decompress<'q>(
        &'q self,
        mut state: MutexGuard<'q, UnreadRuns<'d>>,
        mut units: Units<'d>,
    ) -> MutexGuard<'q, UnreadRuns<'d>> {
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
                state.error = Some(error);
            }
            None => state.at_end = true,
        }
        self.has_changed.notify_all();
        state
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

impl<'d> UnreadRuns<'d> {
    /// Takes the rest of the section, unless another worker has it or it has ended.
    fn unread(&mut self) -> Option<Units<'d>> {
        if self.at_end { None } else { self.units.take() }
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
