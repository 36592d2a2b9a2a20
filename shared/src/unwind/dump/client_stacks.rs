//! The stacks that the client walked itself, in a stream of the minidump: Sentry's fork of Crashpad
//! writes it where a walk on the server has no unwind information (consoles, mobile devices).
//!
//! The stream has a header (version, numbers of threads and frames, length of the texts), the
//! threads (id, first frame, number of frames), the frames (address, place and length of the
//! symbol), and the texts. Each of these parts begins at a multiple of 8 bytes. The source is
//! `minidump/minidump_stacktrace_writer.cc` in <https://github.com/getsentry/crashpad>.

use std::collections::HashMap;

use bytes::Bytes;
use minidump::{Endian, Minidump};

use super::bounds::{LISTED_THREADS, number};
use crate::api::limits;
use crate::unwind::MAX_FRAMES;

/// The type of the stream.
pub(super) const CLIENT_STACKS: u32 = 0x5379_0001;

/// The version of the format.
const VERSION: usize = 1;

/// The size of the header, and of an element of each list.
const HEADER: usize = 16;
const THREAD: usize = 12;
const FRAME: usize = 16;

/// The maximum size of the texts, and of all symbols that are returned. Frames may share a text.
const SYMBOLS_BYTES: usize = 4 * 1024 * 1024;

/// The maximum size of the stream, in bytes.
pub(super) const STREAM_BYTES: usize =
    HEADER + LISTED_THREADS * THREAD + limits::FRAMES * FRAME + SYMBOLS_BYTES;

/// A frame that the client found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFrame {
    /// The address.
    pub address: u64,
    /// The name of the function, as the client knows it.
    pub symbol: Option<String>,
}

/// Returns the stacks that the client walked, by the id of the thread, none of them empty. A
/// damaged stream has none. Stacks have at most [`MAX_FRAMES`] frames.
pub(super) fn read(dump: &Minidump<'_, Bytes>) -> HashMap<u32, Vec<ClientFrame>> {
    let stream = dump.get_raw_stream(CLIENT_STACKS);
    let stream = stream.ok().filter(|stream| stream.len() <= STREAM_BYTES);
    let read = stream.and_then(|stream| ClientStream::of(stream, dump.endian));
    read.map(|stream| stream.stacks()).unwrap_or_default()
}

/// The parts of the stream.
struct ClientStream<'a> {
    threads: &'a [u8],
    frames: &'a [u8],
    symbols: &'a [u8],
    endian: Endian,
}

impl<'a> ClientStream<'a> {
    fn of(stream: &'a [u8], endian: Endian) -> Option<Self> {
        let header = |at| number(stream, at, endian);
        if header(0)? != VERSION {
            return None;
        }
        let mut start = HEADER;
        let mut part = |count: usize, size: usize| {
            let begin = start.next_multiple_of(8);
            let end = begin.checked_add(count.checked_mul(size)?)?;
            let part = stream.get(begin..end)?;
            start = end;
            Some(part)
        };
        let threads = part(header(4)?, THREAD)?;
        let frames = part(header(8)?, FRAME)?;
        let length = header(12)?;
        // Without texts, the padding before them may be missing.
        let symbols = match length {
            0 => Some(&[][..]),
            _ => part(length, 1),
        };
        Some(Self {
            threads,
            frames,
            symbols: symbols?,
            endian,
        })
    }

    fn stacks(&self) -> HashMap<u32, Vec<ClientFrame>> {
        let mut symbols_left = SYMBOLS_BYTES;
        let mut frames_left = limits::FRAMES;
        let mut stacks = HashMap::new();
        for thread in self.threads.chunks_exact(THREAD) {
            let field = |at| number(thread, at, self.endian).unwrap_or(0);
            let frames = self.frames.chunks_exact(FRAME).skip(field(4));
            let count = field(8).min(MAX_FRAMES).min(frames_left);
            let frames = frames.take(count);
            let frames = frames.filter_map(|frame| self.frame(frame, &mut symbols_left));
            let frames: Vec<ClientFrame> = frames.collect();
            frames_left -= frames.len();
            if let (Ok(id), false) = (u32::try_from(field(0)), frames.is_empty()) {
                stacks.insert(id, frames);
            }
        }
        stacks
    }

    /// Reads a frame, and its symbol within the limit.
    fn frame(&self, frame: &[u8], symbols_left: &mut usize) -> Option<ClientFrame> {
        let field = |at| number(frame, at, self.endian);
        let (first, second) = (field(0)? as u64, field(4)? as u64);
        let address = match self.endian {
            Endian::Little => second << 32 | first,
            Endian::Big => first << 32 | second,
        };
        let (start, length) = (field(8)?, field(12)?);
        let symbol = self.symbols.get(start..start.saturating_add(length));
        let symbol = symbol.and_then(|symbol| std::str::from_utf8(symbol).ok());
        let symbol = symbol.filter(|symbol| !symbol.is_empty() && length <= *symbols_left);
        *symbols_left -= symbol.map_or(0, str::len);
        Some(ClientFrame {
            address,
            symbol: symbol.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of two threads, one of them without frames.
    fn stream(numbers: [u32; 4]) -> Vec<u8> {
        let mut stream = Vec::new();
        stream.extend(numbers.into_iter().flat_map(u32::to_le_bytes));
        stream.extend(
            [7_u32, 0, 2, 8, 2, 0]
                .into_iter()
                .flat_map(u32::to_le_bytes),
        );
        for (address, start, length) in [(0x1_0000_0002_u64, 0_u32, 4_u32), (3, 90, 4)] {
            stream.extend(address.to_le_bytes());
            stream.extend([start, length].into_iter().flat_map(u32::to_le_bytes));
        }
        stream.extend(b"main");
        stream
    }

    fn stacks(stream: &[u8]) -> Option<HashMap<u32, Vec<ClientFrame>>> {
        ClientStream::of(stream, Endian::Little).map(|stream| stream.stacks())
    }

    #[test]
    fn the_stacks_of_a_client_have_addresses_and_symbols() {
        let stacks = stacks(&stream([1, 2, 2, 4])).unwrap();
        let frame = |address, symbol: Option<&str>| ClientFrame {
            address,
            symbol: symbol.map(str::to_owned),
        };
        let expected = vec![frame(0x1_0000_0002, Some("main")), frame(3, None)];
        assert_eq!(stacks, HashMap::from([(7, expected)]));
    }

    #[test]
    fn another_version_or_a_count_beyond_the_stream_has_no_stacks() {
        for numbers in [
            [2, 2, 2, 4],
            [1, u32::MAX, 2, 4],
            [1, 2, u32::MAX, 4],
            [1, 2, 2, u32::MAX],
        ] {
            assert_eq!(stacks(&stream(numbers)), None, "{numbers:?}");
        }
        assert_eq!(stacks(b"\x01"), None);
    }

    #[test]
    fn symbols_that_frames_share_are_copied_within_the_limit() {
        let (frames, length) = (8_u32, SYMBOLS_BYTES / 4);
        let mut stream: Vec<u8> = [1, 1, frames, length as u32, 7, 0, frames, 0]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        for _ in 0..frames {
            let frame = [1, 0, 0, length as u32];
            stream.extend(frame.into_iter().flat_map(u32::to_le_bytes));
        }
        stream.extend(vec![b'x'; length]);
        let stacks = stacks(&stream).unwrap();
        let named = stacks[&7].iter().filter(|frame| frame.symbol.is_some());
        assert_eq!((stacks[&7].len(), named.count()), (8, 4));
    }
}
