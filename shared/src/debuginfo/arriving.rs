//! A part of a DIF that arrives while the rest is parsed.
//!
//! Everything in a file but `.debug_info` may be needed at any time, and `.debug_info`, three
//! quarters of a large debug file, is read once and in order. So a file without it can be
//! inspected, and its units can be read as they arrive. Until then, their place in the file reads
//! as zeros. Readers that know nothing of this must therefore wait for the whole part first.

use std::fmt::Debug;
use std::io::{self, Read};
use std::ops::Range;

/// The part of a DIF that arrives in order. It is read through this value until it has arrived.
pub trait Arriving: Debug + Send + Sync {
    /// Returns the part, as byte offsets in the DIF.
    fn range(&self) -> Range<u64>;

    /// Waits until the byte at `offset` has arrived, and reads the bytes from there on, as many as
    /// have arrived and the buffer holds. At the end of the DIF, that is none.
    ///
    /// # Errors
    ///
    /// The bytes do not arrive, or cannot be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Waits until the whole part has arrived.
    ///
    /// # Errors
    ///
    /// It does not arrive.
    fn wait(&self) -> io::Result<()>;
}

/// Reads a range of a DIF in order, as it arrives.
pub(super) struct ArrivingReader<'d> {
    arriving: &'d dyn Arriving,
    rest: Range<u64>,
}

impl<'d> ArrivingReader<'d> {
    /// Returns a reader of a range, or `None` if the arriving part is not within it.
    pub(super) fn of(arriving: &'d dyn Arriving, range: Range<u64>) -> Option<Self> {
        let part = arriving.range();
        let is_within = range.start <= part.start && part.end <= range.end;
        is_within.then_some(Self {
            arriving,
            rest: range,
        })
    }
}

impl Read for ArrivingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX);
        let most = buffer.len().min(left);
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else {
            return Ok(0);
        };
        let read = self.arriving.read_at(self.rest.start, buffer)?;
        self.rest.start += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::cache::{DeriveJob, Derived, Kind, ReleaseNumbers};
    use crate::debuginfo::tests::{debug_files, fixture, text, zoo};
    use crate::debuginfo::{
        DifBytes, Failure, FileEnds, Layout, RoomLimit, derive, inspect, units_range, unpack,
    };
    use crate::domain::{Inspection, Written};

    /// A part of a file that arrives in small pieces.
    #[derive(Debug)]
    struct SmallPieces {
        file: Vec<u8>,
        range: Range<u64>,
        /// Whether a reader waited for the whole part.
        is_awaited: AtomicBool,
    }

    impl Arriving for SmallPieces {
        fn range(&self) -> Range<u64> {
            self.range.clone()
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            const PIECE: usize = 777;
            let left = &self.file[offset as usize..];
            let length = left.len().min(buffer.len()).min(PIECE);
            buffer[..length].copy_from_slice(&left[..length]);
            Ok(length)
        }

        fn wait(&self) -> io::Result<()> {
            self.is_awaited.store(true, Ordering::Relaxed);
            Ok(())
        }
    }

    type Caches = Vec<Result<Derived, Failure>>;

    fn read(bytes: DifBytes<'_>) -> (Layout, Inspection) {
        let room = RoomLimit {
            bytes: 0,
            budget: 0,
        };
        let mut layout = unpack(bytes.dif, &Written::Whole, &mut Vec::new(), room).unwrap();
        let inspection = inspect(&mut layout, bytes);
        (layout, inspection)
    }

    fn caches(bytes: DifBytes<'_>, (layout, inspection): &(Layout, Inspection)) -> Caches {
        let of_object = |object: usize| {
            [Kind::SymCache, Kind::CfiCache].map(|kind| {
                let features = &inspection.objects[object].features;
                let job = DeriveJob::of(kind, features, &ReleaseNumbers::CURRENT);
                derive(layout, bytes, object, job, 2)
            })
        };
        (0..inspection.objects.len()).flat_map(of_object).collect()
    }

    /// Inspects a file and derives its caches, without the bytes of its units in their place.
    /// Returns whether a reader waited for all units, or `None` if the file has no units.
    fn waits(file: Vec<u8>, name: &str) -> Option<bool> {
        let range = units_range(FileEnds {
            head: &file,
            tail: &file,
            size: file.len() as u64,
        })?;
        let complete = DifBytes::complete(&file, &[]);
        let expected = read(complete);
        let expected_caches = caches(complete, &expected);
        let mut absent = file.clone();
        absent[range.start as usize..range.end as usize].fill(0xa5);
        let pieces = SmallPieces {
            file: file.clone(),
            range,
            is_awaited: AtomicBool::new(false),
        };
        let bytes = DifBytes {
            arriving: Some(&pieces),
            ..DifBytes::complete(&absent, &[])
        };
        let found = read(bytes);
        let found_caches = caches(bytes, &found);
        let waits = pieces.is_awaited.load(Ordering::Relaxed);
        if !waits {
            assert_eq!(found, expected, "{name}");
            assert_eq!(found_caches, expected_caches, "{name}");
        }
        Some(waits)
    }

    #[test]
    fn units_that_arrive_in_pieces_give_the_same_caches_and_are_not_read_from_the_file() {
        let fixtures = debug_files();
        let fixtures = fixtures
            .iter()
            .map(|entry| text(entry, "file").unwrap().to_owned());
        let zoo = zoo().into_iter().map(|name| format!("zoo/{name}"));
        let (mut streamed, mut awaited) = (Vec::new(), Vec::new());
        for name in fixtures.chain(zoo) {
            match waits(fixture(&name), &name) {
                Some(true) => awaited.push(name),
                Some(false) => streamed.push(name),
                None => {}
            }
        }
        for name in [
            "elf/crash.debug",
            "elf/crash.zlib.debug",
            "elf/crash.zstd.debug",
            "elf/crash-arm64.debug",
            "zoo/split-alone",
        ] {
            assert!(
                streamed.iter().any(|other| other == name),
                "{name}: {awaited:?}"
            );
        }
        // Their units refer to each other.
        for name in ["zoo/lto", "zoo/dwz"] {
            assert!(
                awaited.iter().any(|other| other == name),
                "{name}: {streamed:?}"
            );
        }
    }

    #[test]
    fn a_part_that_reaches_beyond_the_section_is_awaited() {
        let mut file = fixture("elf/crash.debug");
        file.extend([0; 100]);
        let size = file.len() as u64;
        let pieces = SmallPieces {
            range: 1000..size,
            file,
            is_awaited: AtomicBool::new(false),
        };
        let bytes = DifBytes {
            arriving: Some(&pieces),
            ..DifBytes::complete(&pieces.file, &[])
        };
        let found = read(bytes);
        let found_caches = caches(bytes, &found);
        assert!(pieces.is_awaited.load(Ordering::Relaxed));
        let complete = DifBytes::complete(&pieces.file, &[]);
        assert_eq!(found_caches, caches(complete, &found));
    }
}
