//! Large uploads, whose units are read while they arrive.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use symdepot::adapters::parser::{ParserLimits, ProcessDeriver};
use symdepot::adapters::scratch::ScratchSpace;
use symdepot::cache::{DeriveJob, Kind, ReleaseNumbers};
use symdepot::debuginfo::{FileEnds, units_range};
use symdepot::domain::{Location, Written};
use symdepot::flows::dif_parser::DifParser;
use symdepot::flows::fetch;
use symdepot::ports::{Deriver, DifError, DifReader, DifStat};
use symdepot_tests::stack::Binaries;

use crate::{Running, bytes_of, crash};

/// The size by which the first unit is padded, in bytes. The file is too large to be read whole.
const PADDING: usize = 24 << 20;

/// The bytes that are read of each end of a large file first, and of the rest at a time.
const END_BYTES: u64 = 1 << 20;
const RANGE_BYTES: u64 = 8 << 20;

const LIMITS: ParserLimits = ParserLimits {
    memory_bytes: 512 << 20,
    cpu_seconds: 60,
    needs_seccomp: true,
};

/// Returns the debug file of the sample with its units at the end. The first unit ends with null
/// entries.
fn large_file() -> Bytes {
    const SECTION_HEADER_BYTES: usize = 64;
    let mut file = bytes_of("elf/crash.debug");
    let units = units_of(&file);
    let (begin, end) = (units.start as usize, units.end as usize);
    let mut info = file[begin..end].to_vec();
    let length = u32::from_le_bytes(*info.first_chunk().unwrap());
    let end_of_first = length as usize + size_of::<u32>();
    info[..size_of::<u32>()].copy_from_slice(&(length + PADDING as u32).to_le_bytes());
    info.splice(end_of_first..end_of_first, vec![0; PADDING]);
    let word = |at: usize| u64::from_le_bytes(*file[at..].first_chunk().unwrap());
    let table = word(0x28) as usize; // `e_shoff`
    let headers = (table..file.len()).step_by(SECTION_HEADER_BYTES);
    let mut headers = headers.filter(|at| word(at + 0x18) == units.start);
    let header = headers.next().unwrap();
    file[begin..end].fill(0);
    let place = file.len() as u64;
    file[header + 0x18..][..8].copy_from_slice(&place.to_le_bytes()); // `sh_offset`
    file[header + 0x20..][..8].copy_from_slice(&(info.len() as u64).to_le_bytes()); // `sh_size`
    file.extend(info);
    file.into()
}

fn units_of(file: &[u8]) -> Range<u64> {
    let size = file.len() as u64;
    let (head, tail) = (file, file);
    units_range(FileEnds { head, tail, size }).unwrap()
}

/// The part that arrives last: the units, without the ends of the file.
fn last_part(file: &[u8]) -> Range<u64> {
    let units = units_of(file);
    let (first, last) = (END_BYTES, file.len() as u64 - END_BYTES);
    units.start.max(first)..units.end.min(last)
}

/// An upload that can be overwritten.
#[derive(Debug)]
struct Upload {
    file: Bytes,
    /// The reads that find the file overwritten begin here or later.
    overwritten_from: u64,
    read: Mutex<Vec<Range<u64>>>,
}

#[async_trait]
impl DifReader for Upload {
    async fn stat(&self, _: &Location) -> Result<DifStat, DifError> {
        Ok(self.stat())
    }

    async fn read(&self, _: &Location, _: &str, range: Range<u64>) -> Result<Bytes, DifError> {
        let is_end = range.end == self.file.len() as u64;
        if range.start >= self.overwritten_from && !is_end {
            return Err(DifError::Changed);
        }
        self.read.lock().unwrap().push(range.clone());
        Ok(self.file.slice(range.start as usize..range.end as usize))
    }
}

impl Upload {
    fn new(file: &Bytes, overwritten_from: u64) -> Arc<Self> {
        Arc::new(Self {
            file: file.clone(),
            overwritten_from,
            read: Mutex::default(),
        })
    }

    fn stat(&self) -> DifStat {
        DifStat {
            etag: "an etag".to_owned(),
            size: self.file.len() as u64,
        }
    }

    /// Starts a parser.
    async fn fetch(self: &Arc<Self>, deriver: &ProcessDeriver) -> DifParser {
        let location = Location::new("global/large.debug");
        let reader: Arc<dyn DifReader> = Arc::clone(self) as _;
        let fetched = fetch::fetch(&reader, deriver, &location, &self.stat(), u64::MAX).await;
        fetched.unwrap()
    }

    /// Returns the ranges that were read, in ascending order.
    fn read(&self) -> Vec<Range<u64>> {
        let mut read = self.read.lock().unwrap().clone();
        read.sort_unstable_by_key(|range| range.start);
        read
    }
}

fn deriver(folder: &tempfile::TempDir) -> ProcessDeriver {
    let scratch = ScratchSpace::new(folder.path(), 256 << 20);
    let program = Binaries::from_env().unwrap().get("derive");
    ProcessDeriver::new(program, LIMITS, scratch)
}

fn jobs() -> [DeriveJob; 2] {
    [Kind::SymCache, Kind::CfiCache]
        .map(|kind| DeriveJob::of(kind, &Default::default(), &ReleaseNumbers::CURRENT))
}

#[tokio::test]
async fn units_are_fetched_after_everything_else_and_each_byte_once() {
    let folder = tempfile::tempdir().unwrap();
    let deriver = deriver(&folder);
    let file = large_file();
    let mut scratch = deriver.reserve(file.len() as u64).unwrap();
    scratch.write_at(0, file.clone()).await.unwrap();
    let mut whole = deriver.open(scratch, Written::Whole).await.unwrap();
    let expected = whole.derive(0, &jobs()).await.unwrap();
    drop(whole);

    let last = last_part(&file);
    assert!(last.end - last.start > 2 * RANGE_BYTES, "{last:?}");
    let upload = Upload::new(&file, u64::MAX);
    let mut parser = upload.fetch(&deriver).await;
    let early = upload.read();
    let is_early = |range: &Range<u64>| range.end <= last.start || last.end <= range.start;
    assert!(early.iter().all(is_early), "{early:?}");
    assert_eq!(parser.derive(0, &jobs()).await.unwrap(), expected);
    assert!(parser.is_complete());
    let all = upload.read();
    let (first, end) = (all.first().unwrap(), all.last().unwrap());
    assert_eq!((first.start, end.end), (0, file.len() as u64));
    assert!(
        all.windows(2).all(|pair| pair[0].end == pair[1].start),
        "{all:?}"
    );
}

#[tokio::test]
async fn a_file_that_is_overwritten_while_its_units_arrive_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let deriver = deriver(&folder);
    let file = large_file();
    let upload = Upload::new(&file, last_part(&file).start + RANGE_BYTES);
    let mut parser = upload.fetch(&deriver).await;
    for _ in 0..2 {
        let derived = parser.derive(0, &jobs()).await;
        assert!(matches!(derived, Err(DifError::Changed)), "{derived:?}");
    }
}

#[tokio::test]
async fn a_large_upload_is_fetched_once_and_answers_as_the_small_one() {
    let running = Running::start().await;
    let file = large_file();
    running.upload("global/large.debug", file.to_vec()).await;
    let (state, upload) = running.state_of("global/large.debug").await;
    assert_eq!(state, "applied", "{upload:#}");
    crash::assert_symbolicated(&running.sample_answer().await);
    let stats = running.client().stats().await.unwrap();
    let uploads = running.client().addresses().uploads();
    let fetched = stats.of_bucket(uploads, "GetObject");
    let last = last_part(&file);
    let between = last.start.saturating_sub(END_BYTES).div_ceil(RANGE_BYTES);
    let ranges = 2 + between + (last.end - last.start).div_ceil(RANGE_BYTES);
    assert_eq!(
        (fetched.calls, fetched.bytes_out),
        (ranges, file.len() as u64),
        "{stats:#?}"
    );
}
