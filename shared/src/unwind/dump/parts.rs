//! The bytes of a minidump: the whole file, or the parts of a large file that are read.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use memmap2::{Advice, MmapMut, MmapOptions};

/// The bytes of a minidump. What was not read of a large file is zero.
#[derive(Clone, Debug)]
pub struct DumpBytes {
    pub(super) file: Bytes,
    parts: Vec<Range<usize>>,
    /// The number of stacks that were not read, because the limits of reading were reached.
    pub stacks_unread: usize,
}

impl DumpBytes {
    /// Returns the bytes of a file of this length, of which these parts were read. They are mapped
    /// at their places, so that what was not read takes no memory.
    ///
    /// # Errors
    ///
    /// There is no address space for the file, or a part lies outside of it.
    pub fn of_parts(length: u64, read: &BTreeMap<u64, Bytes>) -> std::io::Result<Self> {
        let out_of_range = || std::io::Error::other("a part lies outside of its file");
        let length = usize::try_from(length).map_err(std::io::Error::other)?;
        let mut map = empty_map(length)?;
        let mut parts = Vec::with_capacity(read.len());
        for (start, bytes) in read {
            let start = usize::try_from(*start).map_err(std::io::Error::other)?;
            let part = start..start.checked_add(bytes.len()).ok_or_else(out_of_range)?;
            let place = map.get_mut(part.clone()).ok_or_else(out_of_range)?;
            place.copy_from_slice(bytes);
            parts.push(part);
        }
        Ok(Self {
            file: Bytes::from_owner(map.make_read_only()?),
            parts,
            stacks_unread: 0,
        })
    }

    /// Returns a file of the same length that has these ranges of this one, as far as it has them.
    /// In it, the other ranges are zero, and other bytes are at some places.
    ///
    /// # Errors
    ///
    /// There is no address space for the file.
    pub(super) fn copied(
        &self,
        ranges: &[Range<u64>],
        zeros: &[Range<usize>],
        others: &[(usize, Vec<u8>)],
    ) -> std::io::Result<Self> {
        let mut map = empty_map(self.length())?;
        for range in ranges {
            let start = usize::try_from(range.start).unwrap_or(usize::MAX);
            let end = usize::try_from(range.end).unwrap_or(usize::MAX);
            let range = start..end.min(self.length());
            if let (Some(to), Some(from)) = (map.get_mut(range.clone()), self.file.get(range)) {
                to.copy_from_slice(from);
            }
        }
        for zeros in zeros {
            if let Some(zeros) = map.get_mut(zeros.clone()) {
                zeros.fill(0);
            }
        }
        for (start, bytes) in others {
            let end = start.saturating_add(bytes.len());
            if let Some(to) = map.get_mut(*start..end) {
                to.copy_from_slice(bytes);
            }
        }
        Ok(Bytes::from_owner(map.make_read_only()?).into())
    }

    /// Returns whether the file begins with these bytes.
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        self.file.starts_with(bytes)
    }

    /// Returns the length of the file.
    pub fn length(&self) -> usize {
        self.file.len()
    }

    /// Returns the parts that are present, in order, each with its place in the file.
    pub fn parts(&self) -> impl Iterator<Item = (Range<usize>, &[u8])> {
        let parts = self.parts.iter();
        parts.filter_map(|part| Some((part.clone(), self.file.get(part.clone())?)))
    }
}

/// Returns a file of zeros, which takes no memory.
fn empty_map(length: usize) -> std::io::Result<MmapMut> {
    let map = MmapOptions::new()
        .len(length)
        .no_reserve_swap()
        .map_anon()?;
    // A huge page would take 2 MiB for each small part.
    #[cfg(target_os = "linux")]
    map.advise(Advice::NoHugePage).or_else(is_unsupported)?;
    Ok(map)
}

/// Ignores that the kernel was built without huge pages.
fn is_unsupported(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        std::io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(error),
    }
}

impl From<Bytes> for DumpBytes {
    fn from(file: Bytes) -> Self {
        Self {
            parts: std::iter::once(0..file.len()).collect(),
            file,
            stacks_unread: 0,
        }
    }
}

impl From<Vec<u8>> for DumpBytes {
    fn from(file: Vec<u8>) -> Self {
        Bytes::from(file).into()
    }
}

/// The parts of a large minidump that were read so far, and those to read.
#[derive(Debug)]
pub struct DumpParts {
    length: u64,
    read: BTreeMap<u64, Bytes>,
    bytes: u64,
}

/// Parts that are closer together than this are read together.
const GAP_BYTES: u64 = 64 * 1024;

impl DumpParts {
    /// Returns a file of this length, of which nothing was read.
    pub fn of(length: u64) -> Self {
        Self {
            length,
            read: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Returns the number of bytes that were read.
    pub fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of parts that were read.
    pub fn count(&self) -> usize {
        self.read.len()
    }

    /// Adds a part. It must be one that [`missing`](Self::missing) returned.
    pub fn add(&mut self, start: u64, bytes: Bytes) {
        self.bytes += length_of(&bytes);
        self.read.insert(start, bytes);
    }

    /// Returns what is not read yet of these ranges, as far as the file has it. Ranges that are
    /// close together are one.
    pub fn missing(&self, mut wanted: Vec<Range<u64>>) -> Vec<Range<u64>> {
        wanted.sort_by_key(|range| range.start);
        let mut missing: Vec<Range<u64>> = Vec::new();
        for range in wanted {
            let end = range.end.min(self.length);
            let last = missing.last().map_or(0, |last| last.end);
            let mut start = range.start.max(last);
            while start < end {
                let Some(part) = self.part_from(start) else {
                    push(&mut missing, start..end);
                    break;
                };
                if start < part.start {
                    push(&mut missing, start..part.start.min(end));
                }
                start = part.end;
            }
        }
        self.joined(missing)
    }

    /// Joins the ranges with small gaps between them in which nothing was read.
    fn joined(&self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last)
                    if range.start - last.end <= GAP_BYTES
                        && self
                            .part_from(last.end)
                            .is_none_or(|part| part.start >= range.start) =>
                {
                    last.end = range.end;
                }
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Returns the first part that was read and that ends after an offset.
    fn part_from(&self, offset: u64) -> Option<Range<u64>> {
        let before = self.read.range(..=offset).next_back();
        let after = self.read.range(offset.saturating_add(1)..).next();
        let parts = before.into_iter().chain(after);
        let mut parts = parts.map(|(start, bytes)| *start..start + length_of(bytes));
        parts.find(|part| part.end > offset)
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    ///
    /// There is no address space for the file.
    pub fn mapped(&self) -> std::io::Result<DumpBytes> {
        DumpBytes::of_parts(self.length, &self.read)
    }
}

fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

fn length_of(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: u64 = 1 << 20;

    fn parts(read: &[Range<u64>]) -> DumpParts {
        let mut parts = DumpParts::of(10 * FAR);
        for range in read {
            let length = usize::try_from(range.end - range.start).unwrap();
            parts.add(range.start, vec![1; length].into());
        }
        parts
    }

    /// What is missing of ranges, each as its start and its end.
    fn missing(parts: &DumpParts, wanted: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let wanted = wanted.iter().map(|(start, end)| *start..*end);
        let missing = parts.missing(wanted.collect());
        missing
            .iter()
            .map(|range| (range.start, range.end))
            .collect()
    }

    #[test]
    fn what_was_read_is_not_read_again() {
        let parts = parts(&[0..100, 200..300]);
        assert_eq!(missing(&parts, &[(0, 100), (210, 220)]), []);
        assert_eq!(missing(&parts, &[(50, 150)]), [(100, 150)]);
        assert_eq!(missing(&parts, &[(250, 400), (0, 50)]), [(300, 400)]);
        assert_eq!(missing(&parts, &[(0, FAR)]), [(100, 200), (300, FAR)]);
    }

    #[test]
    fn ranges_that_are_close_or_overlap_are_read_together() {
        let parts = parts(&[]);
        let near = [(500, 600), (0, 100), (50, 80)];
        assert_eq!(missing(&parts, &near), [(0, 600)]);
        let far = [(0, 10), (FAR, FAR + 10)];
        assert_eq!(missing(&parts, &far), far);
    }

    #[test]
    fn nothing_is_read_beyond_the_end() {
        let parts = parts(&[]);
        let beyond = [(9 * FAR, u64::MAX), (11 * FAR, 12 * FAR)];
        assert_eq!(missing(&parts, &beyond), [(9 * FAR, 10 * FAR)]);
    }

    #[test]
    fn parts_are_mapped_at_their_places() {
        let bytes = parts(&[5..8, FAR..FAR + 1]).mapped().unwrap();
        assert_eq!(bytes.file.len() as u64, 10 * FAR);
        assert_eq!(bytes.file[..10], [0, 0, 0, 0, 0, 1, 1, 1, 0, 0]);
        let far = usize::try_from(FAR).unwrap();
        let places: Vec<_> = bytes.parts().map(|(place, _)| place).collect();
        assert_eq!(places, [5..8, far..far + 1]);
        assert_eq!(bytes.file[far..far + 2], [1, 0]);
    }

    #[test]
    fn a_part_outside_of_its_file_is_refused() {
        let read = BTreeMap::from([(5, Bytes::from_static(b"abc"))]);
        assert!(DumpBytes::of_parts(8, &read).is_ok());
        assert!(DumpBytes::of_parts(7, &read).is_err());
        assert!(DumpBytes::of_parts(0, &BTreeMap::new()).is_ok());
    }
}
