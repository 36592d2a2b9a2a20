//! The part of a DIF that is written while parser processes read the rest, and the pipe that tells
//! each process how far it is.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use crate::adapters::scratch::{ScratchFile, ScratchPart};
use crate::ports::{Fault, Scratch};

/// The part, which is written in order.
#[derive(Debug)]
pub(super) struct LatePart {
    part: ScratchPart,
    arrivals: ArrivalNotices,
}

/// Tells parser processes how far the part has arrived. Clones share the state.
#[derive(Clone, Debug)]
pub(super) struct ArrivalNotices(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The range that has not arrived.
    rest: Range<u64>,
    /// The pipe to the current process.
    pipe: Option<PipeWriter>,
}

impl LatePart {
    /// Returns the part of a file that will be written.
    pub(super) fn of(file: &ScratchFile, range: Range<u64>) -> Self {
        let state = State {
            rest: range.clone(),
            pipe: None,
        };
        Self {
            part: file.part(range),
            arrivals: ArrivalNotices(Arc::new(Mutex::new(state))),
        }
    }

    pub(super) fn arrivals(&self) -> ArrivalNotices {
        self.arrivals.clone()
    }
}

#[async_trait]
impl Scratch for LatePart {
    async fn write_at(&mut self, offset: u64, bytes: Bytes) -> Result<(), Fault> {
        self.part.write_at(offset, bytes).await?;
        self.arrivals.progress(self.part.rest());
        Ok(())
    }
}

impl ArrivalNotices {
    /// Returns the range that a new process has to wait for, and the pipe that tells it how far the
    /// range has arrived; `None` if all of it has. An earlier process is told nothing more.
    pub(super) fn pipe(&self) -> io::Result<Option<(Range<u64>, PipeReader)>> {
        let mut state = self.lock();
        if state.rest.is_empty() {
            return Ok(None);
        }
        let (reader, writer) = io::pipe()?;
        state.pipe = Some(writer);
        Ok(Some((state.rest.clone(), reader)))
    }

    /// Tells the current process what is left.
    fn progress(&self, rest: Range<u64>) {
        let mut state = self.lock();
        if let Some(pipe) = &mut state.pipe {
            // A pipe holds some thousand offsets, one for each range that is fetched, so this does
            // not block. It fails if the process has ended, which its replies show.
            let _ = pipe.write_all(&rest.start.to_le_bytes());
        }
        state.rest = rest;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
