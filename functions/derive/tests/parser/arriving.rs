//! The parser process, while a part of its DIF is still arriving.

use std::ops::Range;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join;
use symdepot::debuginfo::{FileEnds, units_range};
use symdepot::ports::{Deriver, FaultKind, Parser, Scratch};

use super::{Bench, bench, both};

/// The size of the pieces in which the units arrive.
const PIECE: usize = 500;

/// A file that cannot have split units, so that its units are not read when it is inspected.
const WITHOUT_SPLIT_UNITS: &str = "zoo/cold-parts";

impl Bench {
    /// Opens a file without its units. Also returns the means to write them.
    async fn open_without_units(&self, file: &Bytes) -> (Box<dyn Parser>, Box<dyn Scratch>) {
        let units = units(file);
        let mut scratch = self.deriver.reserve(file.len() as u64).unwrap();
        let (head, tail) = (file.slice(..units.start), file.slice(units.end..));
        scratch.write_at(0, head).await.unwrap();
        scratch.write_at(units.end as u64, tail).await.unwrap();
        let rest = units.start as u64..units.end as u64;
        self.deriver.open_arriving(scratch, rest).await.unwrap()
    }
}

fn units(file: &Bytes) -> Range<usize> {
    let size = file.len() as u64;
    let (head, tail) = (&**file, &**file);
    let range = units_range(FileEnds { head, tail, size }).unwrap();
    range.start as usize..range.end as usize
}

/// Writes a part of a file, piece by piece. Other futures run between the pieces.
async fn write(rest: &mut dyn Scratch, file: &Bytes, part: Range<usize>) {
    for at in part.clone().step_by(PIECE) {
        let piece = file.slice(at..part.end.min(at + PIECE));
        rest.write_at(at as u64, piece).await.unwrap();
        tokio::task::yield_now().await;
    }
}

fn fixture(name: &str) -> Bytes {
    super::fixture(name).into()
}

#[tokio::test]
async fn units_are_read_as_they_arrive() {
    let bench = bench();
    for name in [
        "elf/crash.debug",
        "elf/crash.zlib.debug",
        "elf/crash.zstd.debug",
        WITHOUT_SPLIT_UNITS,
        "zoo/lto",
    ] {
        let file = fixture(name);
        let mut whole = bench.open(file.clone()).await;
        let expected = whole.inspect().await.unwrap();
        let expected_caches = whole.derive(0, &both()).await.unwrap();
        drop(whole);
        let (mut parser, mut rest) = bench.open_without_units(&file).await;
        let jobs = both();
        let parsing = async {
            assert_eq!(parser.inspect().await.unwrap(), expected, "{name}");
            parser.derive(0, &jobs).await.unwrap()
        };
        let arriving = write(&mut *rest, &file, units(&file));
        let (caches, ()) = join(parsing, arriving).await;
        assert_eq!(caches, expected_caches, "{name}");
    }
    assert_eq!(bench.scratch.budget().used(), 0);
}

#[tokio::test]
async fn a_process_that_takes_over_waits_only_for_what_has_not_arrived() {
    let bench = bench();
    let file = fixture(WITHOUT_SPLIT_UNITS);
    let jobs = both();
    let expected = bench
        .open(file.clone())
        .await
        .derive(0, &jobs)
        .await
        .unwrap();
    let units = units(&file);
    let middle = units.start + units.len() / 2;
    let (mut parser, mut rest) = bench.open_without_units(&file).await;
    parser.inspect().await.unwrap();
    write(&mut *rest, &file, units.start..middle).await;
    // The call is cancelled half-way: the process ends with it.
    assert!(parser.derive(0, &jobs).now_or_never().is_none());
    let arriving = write(&mut *rest, &file, middle..units.end);
    let (caches, ()) = join(parser.derive(0, &jobs), arriving).await;
    assert_eq!(caches.unwrap(), expected);
    // One that starts after everything has arrived waits for nothing.
    assert!(parser.derive(0, &jobs).now_or_never().is_none());
    assert_eq!(parser.derive(0, &jobs).await.unwrap(), expected);
}

#[tokio::test]
async fn the_rest_is_written_in_order_and_within_its_range() {
    let bench = bench();
    let file = fixture("elf/crash.debug");
    let units = units(&file);
    let (_parser, mut rest) = bench.open_without_units(&file).await;
    let at = |offset: usize| (offset as u64, file.slice(offset..offset + 1));
    let after_the_next = at(units.start + 1);
    let before_the_range = at(units.start - 1);
    for (offset, byte) in [after_the_next, before_the_range] {
        let refused = rest.write_at(offset, byte).await.unwrap_err();
        assert_eq!(refused.kind(), FaultKind::Bug, "{refused}");
    }
    let too_many = file.slice(units.start..units.end + 1);
    let refused = rest.write_at(units.start as u64, too_many).await;
    assert_eq!(refused.unwrap_err().kind(), FaultKind::Bug);
    write(&mut *rest, &file, units).await;
}

#[tokio::test]
async fn a_file_without_split_units_is_inspected_before_its_units_arrive() {
    let bench = bench();
    let file = fixture(WITHOUT_SPLIT_UNITS);
    let (mut parser, rest) = bench.open_without_units(&file).await;
    parser.inspect().await.unwrap();
    let jobs = both();
    let deriving = parser.derive(0, &jobs);
    assert!(deriving.now_or_never().is_none());
    drop((parser, rest));
    assert_eq!(bench.scratch.budget().used(), 0);
}
