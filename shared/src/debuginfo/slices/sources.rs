//! Sources in slices: the lines of source files, cut by path and line.
//!
//! A frame shows eleven lines of one file, and a source bundle may have a gigabyte of text.
//! Therefore each file is cut into *chunks* of [`LINES_PER_CHUNK`] lines. The address of a chunk is
//! the hash of the path of its file plus the number of the chunk. So a reader that has the index of
//! a blob computes which slices have the lines of a path, without a table of all paths, and the
//! chunks of a file are next to each other.
//!
//! A slice consists of the chunks whose addresses it covers, each as one line of JSON. Two files
//! may have chunks with the same address. These are in one slice, and are distinguished by the
//! path.
//!
//! ```text
//! {"path":"/src/main.c","first":1,"lines":["#include <stdio.h>","int main(void) {",…]}
//! {"path":"/src/Main.cs","first":1,"lines":[],"link":"https://example.com/src/Main.cs"}
//! ```
//!
//! Lines are stored as responses show them ([`shown_line`]), so a file of one long line is not
//! larger than the part of it that a response can contain.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::cut::Cut;

/// The number of lines of a chunk.
const LINES_PER_CHUNK: u32 = 256;

/// The size at which a slice ends, in bytes. A frame in another file needs another slice, so slices
/// are smaller than those of SymCaches.
const SLICE_BYTES: usize = 64 << 10;

/// The longest line that is shown whole, in bytes. Symbolicator's clients expect this limit, and
/// the next one.
const LONGEST_LINE: usize = 150;

/// How much of a longer line is shown, in bytes.
const SHOWN_BYTES: usize = 140;

/// What follows the shown part of a longer line.
const SNIP: &str = " {snip}";

/// The number of bits of the hash of a path. An address is less than 2³², so that a file can have
/// as many chunks as addresses remain.
const PATH_BITS: u32 = 31;

/// Source files, one after the other, whose chunks become slices.
///
/// The files must arrive in the order of [`SourceFile::address`]. Then only the chunks of files
/// whose addresses overlap are in memory at the same time.
pub(in crate::debuginfo) struct SourceCutter<I> {
    files: I,
    /// The chunks that were not cut yet, in the order of their addresses.
    waiting: Vec<(u32, String)>,
    next_file: Option<SourceFile>,
}

/// A source file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::debuginfo) struct SourceFile {
    /// The path, as debug information has it.
    pub(in crate::debuginfo) path: String,
    /// The text; empty if only the link is known.
    pub(in crate::debuginfo) text: String,
    /// Where the file can be downloaded.
    pub(in crate::debuginfo) link: Option<String>,
}

/// Some lines of a source file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Chunk<'a> {
    path: Cow<'a, str>,
    /// The number of the first line.
    first: u32,
    lines: Vec<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<Cow<'a, str>>,
}

/// The chunks of a slice. Cheap to clone.
#[derive(Clone)]
pub struct SourceChunks {
    chunks: Arc<[Chunk<'static>]>,
    bytes: usize,
}

/// What is known about some lines of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundLines {
    /// The lines with their numbers, in order.
    pub lines: Vec<(u32, String)>,
    /// Where the file can be downloaded.
    pub link: Option<String>,
}

/// Returns a path as it is compared: with slashes, whichever kind it was written with.
pub(in crate::debuginfo) fn compared(path: &str) -> Cow<'_, str> {
    if path.contains('\\') {
        path.replace('\\', "/").into()
    } else {
        path.into()
    }
}

/// Returns the address of the first chunk of a file.
pub(in crate::debuginfo) fn address_of(path: &str) -> u32 {
    let hash = xxh3_64(compared(path).as_bytes());
    u32::try_from(hash >> (u64::BITS - PATH_BITS)).unwrap_or_default()
}

/// Returns the addresses that have these lines of a file, and the one that has its link. Lines are
/// counted from one.
pub fn source_addresses(path: &str, lines: RangeInclusive<u32>) -> impl Iterator<Item = u64> {
    let address = u64::from(address_of(path));
    let chunk_of = |line: u32| u64::from(line.saturating_sub(1) / LINES_PER_CHUNK);
    let chunks = chunk_of(*lines.start())..=chunk_of(*lines.end());
    let first = (!chunks.contains(&0)).then_some(address);
    first
        .into_iter()
        .chain(chunks.map(move |chunk| address + chunk))
}

/// Returns a line as responses show it: the beginning of a long one, with a mark.
pub(in crate::debuginfo) fn shown_line(line: &str) -> Cow<'_, str> {
    if line.len() <= LONGEST_LINE {
        return line.into();
    }
    let cut = line.floor_char_boundary(SHOWN_BYTES);
    format!("{}{SNIP}", &line[..cut]).into()
}

impl SourceFile {
    /// Returns the address of its first chunk.
    fn address(&self) -> u32 {
        address_of(&self.path)
    }

    /// Returns its chunks with their addresses. A file without text has one chunk.
    fn chunks(&self) -> Vec<(u32, String)> {
        let (path, address) = (compared(&self.path), self.address());
        let mut chunks = Vec::new();
        let mut lines = self.text.lines();
        let mut first = 1;
        loop {
            let shown = lines.by_ref().take(LINES_PER_CHUNK as usize);
            let shown: Vec<Cow<'_, str>> = shown.map(shown_line).collect();
            let at = u32::try_from(chunks.len())
                .ok()
                .and_then(|number| address.checked_add(number));
            let (Some(at), false) = (at, shown.is_empty() && !chunks.is_empty()) else {
                return chunks;
            };
            let chunk = Chunk {
                path: Cow::Borrowed(&path),
                first,
                lines: shown,
                link: self.link.as_deref().map(Cow::Borrowed),
            };
            // Strings and numbers can always be written as JSON.
            chunks.extend(serde_json::to_string(&chunk).map(|json| (at, json)));
            first += LINES_PER_CHUNK;
        }
    }
}

impl<I: Iterator<Item = SourceFile>> SourceCutter<I> {
    /// Cuts files, which must arrive in the order of their addresses.
    pub(in crate::debuginfo) fn new(mut files: I) -> Self {
        let next_file = files.next();
        Self {
            files,
            waiting: Vec::new(),
            next_file,
        }
    }

    /// Adds the chunks of files until a slice is complete: it is large enough, and no further chunk
    /// can have one of its addresses.
    fn fill(&mut self) {
        while !self.has_slice()
            && let Some(file) = self.next_file.take()
        {
            self.waiting.extend(file.chunks());
            self.waiting.sort_by_key(|(address, _)| *address);
            self.next_file = self.files.next();
        }
    }

    /// Returns whether the waiting chunks include a whole slice.
    fn has_slice(&self) -> bool {
        let length = self.slice_length();
        let last = length.checked_sub(1).and_then(|at| self.waiting.get(at));
        let bytes: usize = self.waiting[..length]
            .iter()
            .map(|(_, json)| json.len())
            .sum();
        // The chunks of the files that follow have at least the address of the next file.
        let next = self.next_file.as_ref().map(SourceFile::address);
        bytes >= SLICE_BYTES && last.is_some_and(|(last, _)| next.is_none_or(|next| *last < next))
    }

    /// Returns the number of waiting chunks that the next slice has. Chunks with the same address
    /// stay together.
    fn slice_length(&self) -> usize {
        let (mut length, mut bytes) = (0, 0);
        while let Some((address, json)) = self.waiting.get(length) {
            let before = length.checked_sub(1).and_then(|at| self.waiting.get(at));
            let stays = before.is_none_or(|(before, _)| before == address);
            if bytes >= SLICE_BYTES && !stays {
                break;
            }
            bytes += json.len() + 1;
            length += 1;
        }
        length
    }
}

impl<I: Iterator<Item = SourceFile>> Iterator for SourceCutter<I> {
    type Item = Cut;

    fn next(&mut self) -> Option<Cut> {
        self.fill();
        let start = self.waiting.first()?.0;
        let length = self.slice_length();
        let mut raw = Vec::new();
        for (_, json) in self.waiting.drain(..length) {
            raw.extend_from_slice(json.as_bytes());
            raw.push(b'\n');
        }
        Some(Cut { start, raw })
    }
}

impl SourceChunks {
    /// Reads the chunks of a slice.
    pub(in crate::debuginfo) fn parse(raw: &[u8]) -> Result<Self, String> {
        let lines = raw.split(|byte| *byte == b'\n');
        let chunks = lines
            .filter(|line| !line.is_empty())
            .map(|line| {
                let chunk: Chunk<'static> =
                    serde_json::from_slice(line).map_err(|error| error.to_string())?;
                Ok(chunk)
            })
            .collect::<Result<Arc<[_]>, String>>()?;
        let lines: usize = chunks.iter().map(|chunk| chunk.lines.len()).sum();
        Ok(Self {
            bytes: raw.len() + size_of_val(&*chunks) + lines * size_of::<Cow<'_, str>>(),
            chunks,
        })
    }

    /// Adds the lines of a file that this slice has.
    pub(in crate::debuginfo) fn find(
        &self,
        path: &str,
        lines: &RangeInclusive<u32>,
        found: &mut FoundLines,
    ) {
        let path = compared(path);
        for chunk in self.chunks.iter().filter(|chunk| chunk.path == path) {
            if found.link.is_none() {
                found.link = chunk.link.as_deref().map(str::to_owned);
            }
            let numbered = (chunk.first..=u32::MAX).zip(&chunk.lines);
            let requested = numbered.filter(|(number, _)| lines.contains(number));
            found
                .lines
                .extend(requested.map(|(number, line)| (number, line.clone().into_owned())));
        }
    }

    /// Returns the estimated memory of the chunks, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for SourceChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceChunks")
            .field("bytes", &self.bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::Kind;
    use crate::debuginfo::blob;
    use crate::debuginfo::slices::{SliceIndex, SlicedCache, encode_cuts};
    use crate::domain::Arch;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
            link: None,
        }
    }

    fn blob_of(mut files: Vec<SourceFile>) -> Vec<u8> {
        files.sort_by_key(SourceFile::address);
        let contents = blob::unfiled(Kind::SourceCode, Arch::Unknown, None);
        encode_cuts(SourceCutter::new(files.into_iter()), &contents).unwrap()
    }

    /// Reads lines like a request: only the slices at their addresses.
    fn find(blob: &[u8], path: &str, lines: RangeInclusive<u32>) -> FoundLines {
        let index = SliceIndex::of_blob(blob).unwrap();
        let mut numbers: Vec<u32> = source_addresses(path, lines.clone())
            .filter_map(|address| index.slice_of(address))
            .collect();
        numbers.dedup();
        let slices = numbers.into_iter().map(|number| {
            let range = index.range(number).unwrap();
            let frame = &blob[range.start as usize..range.end as usize];
            (number, index.open_slice(number, frame).unwrap())
        });
        let slices = slices.collect();
        SlicedCache { index, slices }.source_lines(path, lines)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_line_of_every_file_is_found(
            lengths in prop::collection::vec(0..3_000_u32, 1..40),
            width in 0..200_usize,
        ) {
            let text = |at: usize, length: u32| -> String {
                (1..=length).map(|line| format!("{at}:{line}{}\n", "x".repeat(width))).collect()
            };
            let path = |at: usize| format!("/src/{at}.c");
            let files = lengths.iter().enumerate();
            let files = files.map(|(at, length)| file(&path(at), &text(at, *length)));
            let blob = blob_of(files.collect());
            for (at, length) in lengths.iter().enumerate() {
                for line in [1, 255, 256, 257, 258, *length, *length + 1] {
                    let range = line.saturating_sub(5).max(1)..=line + 5;
                    let expected: Vec<(u32, String)> = text(at, *length)
                        .lines()
                        .zip(1..)
                        .filter(|(_, number)| range.contains(number))
                        .map(|(text, number)| (number, shown_line(text).into_owned()))
                        .collect();
                    prop_assert_eq!(find(&blob, &path(at), range).lines, expected);
                }
            }
            prop_assert_eq!(find(&blob, "/src/none.c", 1..=9), FoundLines::default());
        }

        #[test]
        fn any_bytes_are_rejected_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SourceChunks::parse(&bytes);
        }
    }

    #[test]
    fn files_whose_chunks_have_the_same_addresses_are_told_apart() {
        // With this many files, some addresses of the long file are those of others.
        let long: String = (1..=400_000).map(|line| format!("{line}\n")).collect();
        let mut files = vec![file("/long.c", &long)];
        files.extend((0..2_000).map(|at| file(&format!("/{at}.c"), &format!("file {at}"))));
        let blob = blob_of(files);
        for line in [1, 200_000, 400_000] {
            let found = find(&blob, "/long.c", line..=line);
            assert_eq!(found.lines, [(line, line.to_string())]);
        }
        for at in 0..2_000 {
            let found = find(&blob, &format!("/{at}.c"), 1..=6);
            assert_eq!(found.lines, [(1, format!("file {at}"))]);
        }
    }

    #[test]
    fn empty_lines_count_and_both_kinds_of_slashes_are_the_same() {
        let blob = blob_of(vec![file("C:\\src\\a.c", "one\r\n\r\nthree\n\n")]);
        let found = find(&blob, "C:/src/a.c", 1..=9);
        let lines = ["one", "", "three", ""];
        assert_eq!(
            found.lines,
            (1..).zip(lines.map(str::to_owned)).collect::<Vec<_>>()
        );
        assert_eq!(found, find(&blob, "C:\\src/a.c", 1..=9));
    }

    #[test]
    fn a_link_is_found_for_every_line_even_without_text() {
        let linked = SourceFile {
            link: Some("https://example.com/a.c".to_owned()),
            ..file("/a.c", "")
        };
        let blob = blob_of(vec![linked, file("/b.c", "text")]);
        for line in [1, 1_000_000] {
            let found = find(&blob, "/a.c", line..=line + 5);
            assert_eq!(found.link.as_deref(), Some("https://example.com/a.c"));
            assert_eq!(found.lines, []);
        }
    }

    #[test]
    fn a_long_line_is_cut_where_symbolicators_clients_expect_it() {
        assert_eq!(shown_line(&"x".repeat(150)).len(), 150);
        let cut = shown_line(&"ä".repeat(76)).into_owned();
        assert_eq!(cut, format!("{} {{snip}}", "ä".repeat(70)));
        // A byte limit inside of a character is rounded down.
        let cut = shown_line(&format!("x{}", "ä".repeat(75))).into_owned();
        assert_eq!(cut, format!("x{} {{snip}}", "ä".repeat(69)));
    }

    /// A request for thirty frames with lines in five such bundles reads five times this much.
    #[test]
    fn six_frames_in_fifty_megabytes_of_sources_take_less_than_200_kilobytes() {
        const FILES: u32 = 2_500;
        let line = |file: u32, line: u32| {
            let hash = xxh3_64(format!("{file} {line}").as_bytes());
            format!(
                "    let value_{hash:x} = call({file}, {line}); // {:x}",
                !hash
            )
        };
        let path = |file: u32| format!("/build/app/src/module_{}/file_{file}.c", file % 50);
        let files = (0..FILES).map(|file| {
            let text: String = (1..=300).map(|at| line(file, at) + "\n").collect();
            self::file(&path(file), &text)
        });
        let files: Vec<SourceFile> = files.collect();
        let bytes: usize = files.iter().map(|file| file.text.len()).sum();
        assert!(bytes > 50_000_000, "{bytes}");
        let blob = blob_of(files);
        let index = SliceIndex::of_blob(&blob).unwrap();
        let mut read = crate::debuginfo::slices::index_of(&blob).unwrap().length;
        for frame in 0..6 {
            let (file, at) = (frame * 397, 20 + frame * 47);
            let context = at - 5..=at + 5;
            let mut slices: Vec<u32> = source_addresses(&path(file), context.clone())
                .filter_map(|address| index.slice_of(address))
                .collect();
            slices.dedup();
            let ranges = slices.iter().map(|slice| index.range(*slice).unwrap());
            read += ranges.map(|range| range.end - range.start).sum::<u64>();
            let found = find(&blob, &path(file), context);
            assert_eq!(found.lines.len(), 11);
            assert_eq!(found.lines[5], (at, line(file, at)));
        }
        assert!(read < 200_000, "{read} bytes");
    }

    #[test]
    fn one_line_of_many_megabytes_takes_one_small_slice() {
        let blob = blob_of(vec![file("/bundle.js", &"x".repeat(32 << 20))]);
        assert!(blob.len() < 1_000, "{}", blob.len());
        let found = find(&blob, "/bundle.js", 1..=6);
        assert_eq!(found.lines.len(), 1);
        assert!(found.lines[0].1.ends_with(" {snip}"));
    }
}
