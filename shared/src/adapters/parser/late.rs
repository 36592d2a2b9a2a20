//! The part of a DIF that is written while parser processes read the rest, and the pipe that tells
//! each process how far it is.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use crate::adapters::scratch::{ScratchFile, ScratchWriter};
use crate::ports::{Fault, FaultKind, Scratch};

/// The part, which is written in order.
#[derive(Debug)]
pub(super) struct LatePart {
    file: ScratchWriter,
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
            rest: range,
            pipe: None,
        };
        Self {
            file: file.writer(),
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
        let end = self.arrivals.end_of_next(offset, bytes.len())?;
        self.file.write_at(offset, bytes).await?;
        self.arrivals.progress(end);
        Ok(())
    }
}

impl ArrivalNotices {
    /// Returns the range that a new process has to wait for, and the pipe that tells it how far the
    /// range has arrived; `None` if all of it has. An earlier process receives no more offsets.
    pub(super) fn pipe(&self) -> io::Result<Option<(Range<u64>, PipeReader)>> {
        let mut state = self.lock();
        if state.rest.is_empty() {
            return Ok(None);
        }
        let (reader, writer) = io::pipe()?;
        state.pipe = Some(writer);
        Ok(Some((state.rest.clone(), reader)))
    }

    /// Returns where the next bytes end, if this is their offset.
    fn end_of_next(&self, offset: u64, length: usize) -> Result<u64, Fault> {
        let rest = &self.lock().rest;
        let end = offset.checked_add(length as u64);
        let end = end.filter(|end| offset == rest.start && *end <= rest.end);
        end.ok_or_else(|| {
            let context = format!("writing {length} bytes at offset {offset} of the rest {rest:?}");
            Fault::new(FaultKind::Bug, context)
        })
    }

    /// Tells the current process that everything before `end` has arrived.
    fn progress(&self, end: u64) {
        let mut state = self.lock();
        if let Some(pipe) = &mut state.pipe {
            // A pipe holds some thousand offsets, one for each range that is fetched, so this does
            // not block. It fails if the process has ended, which its replies show.
            let _ = pipe.write_all(&end.to_le_bytes());
        }
        state.rest.start = end;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
