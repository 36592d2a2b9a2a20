//! Bytes that one thread writes and another reads at the same time.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::debuginfo::limits::{MAX_WHOLE_BYTES, too_large};

/// The largest piece that is copied for the other thread, in bytes.
const BATCH_BYTES: usize = 64 << 10;

/// Pieces that may wait.
const WAITING_BATCHES: usize = 2;

/// Returns two ends of a pipe: what is written to, and the pieces as they were written. What is
/// written is an error from [`MAX_WHOLE_BYTES`] on.
pub(super) fn pipe() -> (PipeWriter, Receiver<Vec<u8>>) {
    let (sender, receiver) = sync_channel(WAITING_BATCHES);
    let writer = PipeWriter {
        batches: sender,
        length: 0,
    };
    (writer, receiver)
}

/// The end that is written to.
pub(super) struct PipeWriter {
    batches: SyncSender<Vec<u8>>,
    length: u64,
}

impl PipeWriter {
    /// Returns how many bytes were written.
    pub(super) fn length(&self) -> u64 {
        self.length
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes.get(..BATCH_BYTES).unwrap_or(bytes);
        let length = self.length + bytes.len() as u64;
        if length > MAX_WHOLE_BYTES {
            return Err(too_large(MAX_WHOLE_BYTES));
        }
        // The receiver is gone only if the other thread ran out of memory.
        let sent = self.batches.send(bytes.to_vec());
        sent.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.length = length;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
