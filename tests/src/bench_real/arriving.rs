//! An upload that arrives as slowly as from S3: parsed when all of it has arrived, and parsed while
//! its units arrive.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use symdepot::adapters::parser::ProcessDeriver;
use symdepot::domain::{Location, Written};
use symdepot::flows::fetch;
use symdepot::ports::{Deriver, DifError, DifReader, DifStat, ParseError, Parser, Scratch};
use tokio::time::Instant;

use super::parser_process::{deriver, jobs_of};
use super::report::{Report, Row, ratio};
use super::{BenchError, percentile};
use crate::stack::Binaries;

/// How fast a function receives a large file, as assumed for the costs (`docs/cost.md`).
const BYTES_PER_SECOND: f64 = 75e6;

/// The time until the first byte of a read, as with `--latency aws`.
const LATENCY: Duration = Duration::from_millis(15);

/// A file that is received through a slow connection, which all reads share.
#[derive(Debug)]
struct SlowUpload {
    file: Bytes,
    /// When the connection has delivered all reads so far.
    is_free: Mutex<Instant>,
}

#[async_trait]
impl DifReader for SlowUpload {
    async fn stat(&self, _: &Location) -> Result<DifStat, DifError> {
        Ok(self.stat())
    }

    async fn read(&self, _: &Location, _: &str, range: Range<u64>) -> Result<Bytes, DifError> {
        let takes = Duration::from_secs_f64((range.end - range.start) as f64 / BYTES_PER_SECOND);
        let done = {
            let mut is_free = self.is_free.lock().unwrap_or_else(PoisonError::into_inner);
            *is_free = (*is_free).max(Instant::now() + LATENCY) + takes;
            *is_free
        };
        tokio::time::sleep_until(done).await;
        Ok(self.file.slice(range.start as usize..range.end as usize))
    }
}

impl SlowUpload {
    fn stat(&self) -> DifStat {
        DifStat {
            etag: String::new(),
            size: self.file.len() as u64,
        }
    }
}

/// Starts a parser only when the whole file has arrived.
#[derive(Debug)]
struct WholeFirst(ProcessDeriver);

#[async_trait]
impl Deriver for WholeFirst {
    fn reserve(&self, size: u64) -> Result<Box<dyn Scratch>, ParseError> {
        self.0.reserve(size)
    }

    async fn open(
        &self,
        dif: Box<dyn Scratch>,
        written: Written,
    ) -> Result<Box<dyn Parser>, ParseError> {
        self.0.open(dif, written).await
    }
}

/// Fetches a file and derives its caches, in both ways in turn, and adds the medians.
///
/// # Errors
/// The parser fails, or the caches differ.
pub async fn compare(
    binaries: &Binaries,
    (name, path): (&str, &Path),
    runs: usize,
    report: &mut Report,
) -> Result<(), BenchError> {
    let file = Bytes::from(std::fs::read(path).map_err(BenchError::file(path))?);
    let early = deriver(binaries, path, file.len() as u64);
    let late = WholeFirst(early.clone());
    let (mut early_runs, mut late_runs) = (Vec::new(), Vec::new());
    for _ in 0..runs.max(1) {
        let (took, expected) = fetch_and_derive(&late, &file, path).await?;
        late_runs.push(took);
        let (took, checksums) = fetch_and_derive(&early, &file, path).await?;
        early_runs.push(took);
        if checksums != expected {
            return Err(BenchError::Answer {
                what: "the checksums of the caches",
                found: format!("{checksums:?} instead of {expected:?}"),
            });
        }
    }
    let group = format!("Receiving {name} with 75 MB/s, and deriving");
    let [late, early] = [late_runs, early_runs].map(|runs| percentile(&runs, 50));
    for (what, seconds) in [
        ("parsed when all of it has arrived", late),
        ("parsed while its units arrive", early),
    ] {
        report.add(&group, Row::new(what, format!("{seconds:.2} s")));
    }
    let what = "time, relative to the former";
    report.add(&group, Row::new(what, ratio(early / late)));
    Ok(())
}

/// Returns the seconds from the first read until the last blob is received, and the checksums of
/// the blobs.
async fn fetch_and_derive(
    deriver: &dyn Deriver,
    file: &Bytes,
    path: &Path,
) -> Result<(f64, Vec<u64>), BenchError> {
    let began = Instant::now();
    let upload = SlowUpload {
        file: file.clone(),
        is_free: Mutex::new(began),
    };
    let stat = upload.stat();
    let location = Location::new("global/upload.debug");
    let reader: Arc<dyn DifReader> = Arc::new(upload);
    let failed = |error: DifError| BenchError::Dif {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let fetched = fetch::fetch(&reader, deriver, &location, &stat, u64::MAX).await;
    let mut parser = fetched.map_err(failed)?;
    let inspection = parser.inspect().await.map_err(failed)?;
    let mut checksums = Vec::new();
    for (index, object) in inspection.objects.iter().enumerate() {
        let derived = parser.derive(index, &jobs_of(object)).await;
        for derived in derived.map_err(failed)? {
            let derived = derived.map_err(|missing| failed(DifError::Missing(missing)))?;
            checksums.push(derived.checksum);
        }
    }
    Ok((began.elapsed().as_secs_f64(), checksums))
}
