//! A pipe for bytes that one thread writes while another thread reads them.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::debuginfo::limits::{MAX_WHOLE_BYTES, too_large};

/// The maximum size of a batch that is copied for the other thread, in bytes.
const BATCH_BYTES: usize = 64 << 10;

/// The number of batches that may wait.
const WAITING_BATCHES: usize = 2;

/// Returns the two ends of a pipe: the writer, and the receiver of the written batches. Writing
/// more than [`MAX_WHOLE_BYTES`] in total is an error.
pub(super) fn pipe() -> (PipeWriter, Receiver<Vec<u8>>) {
    let (sender, receiver) = sync_channel(WAITING_BATCHES);
    let writer = PipeWriter {
        batches: sender,
        length: 0,
    };
    (writer, receiver)
}

/// The writing end of a pipe.
pub(super) struct PipeWriter {
    batches: SyncSender<Vec<u8>>,
    length: u64,
}

impl PipeWriter {
    /// Returns the number of bytes written so far.
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
