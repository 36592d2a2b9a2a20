//! Bytes that one thread writes and another reads at the same time.

use std::io::{self, Cursor, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::blob::{MAX_RAW_BYTES, too_large};

/// The largest piece that is copied for the other thread, in bytes.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// Pieces that may wait.
const WAITING_PIECES: usize = 2;

/// Returns two ends of a pipe. What is written is an error from [`MAX_RAW_BYTES`] on.
pub(super) fn pipe() -> (PieceWriter, PieceReader) {
    let (sender, receiver) = sync_channel(WAITING_PIECES);
    let writer = PieceWriter {
        pieces: sender,
        length: 0,
    };
    let reader = PieceReader {
        pieces: receiver,
        piece: Cursor::default(),
    };
    (writer, reader)
}

/// The end that is written to.
pub(super) struct PieceWriter {
    pieces: SyncSender<Vec<u8>>,
    length: u64,
}

impl PieceWriter {
    /// Returns how many bytes were written.
    pub(super) fn length(&self) -> u64 {
        self.length
    }
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes.get(..PIECE_BYTES).unwrap_or(bytes);
        let length = self.length + bytes.len() as u64;
        if length > MAX_RAW_BYTES {
            return Err(too_large());
        }
        // A reader that does not listen any more has failed for want of memory.
        let sent = self.pieces.send(bytes.to_vec());
        sent.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.length = length;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end that is read from.
pub(super) struct PieceReader {
    pieces: Receiver<Vec<u8>>,
    piece: Cursor<Vec<u8>>,
}

impl PieceReader {
    /// Returns the pieces as they were written.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Vec<u8>> {
        self.pieces.iter()
    }
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.piece.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match self.pieces.recv() {
                Ok(piece) => self.piece = Cursor::new(piece),
                Err(_) => return Ok(0),
            }
        }
    }
}
