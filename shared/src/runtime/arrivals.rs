//! The part of a DIF that its parent process still writes while the parser process reads the rest.
//!
//! For each written piece, the parent sends the offset of its end through a pipe.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use crate::debuginfo::Arriving;

/// The part, and how far it has arrived.
#[derive(Debug)]
pub(super) struct Arrivals {
    dif: File,
    range: Range<u64>,
    progress: Mutex<ArrivedSoFar>,
}

#[derive(Debug)]
struct ArrivedSoFar {
    pipe: File,
    /// The end of what has arrived.
    end: u64,
}

impl Arrivals {
    /// Returns the part of which nothing has arrived yet.
    pub(super) fn new(dif: File, pipe: File, range: Range<u64>) -> Self {
        let end = range.start;
        Self {
            dif,
            range,
            progress: Mutex::new(ArrivedSoFar { pipe, end }),
        }
    }

    /// Waits until the byte at an offset of the DIF has arrived. Returns the end of the bytes that
    /// have.
    fn wait_for(&self, offset: u64) -> io::Result<u64> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        while progress.end <= offset && progress.end < self.range.end {
            let mut end = [0; size_of::<u64>()];
            progress.pipe.read_exact(&mut end)?;
            progress.end = u64::from_le_bytes(end);
        }
        if progress.end < self.range.end {
            Ok(progress.end)
        } else {
            Ok(u64::MAX) // the rest of the DIF arrived earlier
        }
    }
}

impl Arriving for Arrivals {
    fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let arrived = self.wait_for(offset)?.saturating_sub(offset);
        let most = buffer
            .len()
            .min(usize::try_from(arrived).unwrap_or(usize::MAX));
        self.dif
            .read_at(buffer.get_mut(..most).unwrap_or_default(), offset)
    }

    fn wait(&self) -> io::Result<()> {
        self.wait_for(self.range.end.saturating_sub(1)).map(drop)
    }
}
