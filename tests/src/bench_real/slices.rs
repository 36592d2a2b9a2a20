//! Measures what a cold stack reads of a sliced SymCache, with the counters of the store.

use serde_json::Value;

use super::program::Program;
use super::report::{Report, Row, bytes};
use super::{BenchError, agreement, percentile, say};
use crate::stack::Client;

/// Frames of a stack.
const FRAMES: usize = 30;

/// Stacks of random addresses are the worst case: frames of a real stack are closer to each other.
const STACKS: u64 = 100;

/// Measures stacks of random addresses in one module, each with a new instance.
///
/// # Errors
/// A request is not completed.
pub async fn measure(
    client: &Client,
    program: &Program,
    seed: u64,
    report: &mut Report,
) -> Result<(), BenchError> {
    say(
        "slices",
        &format!(
            "{STACKS} cold stacks of {FRAMES} frames in {}",
            program.name
        ),
    );
    let stacks: Vec<Vec<u64>> = (0..STACKS)
        .map(|stack| program.addresses(FRAMES, seed.wrapping_add(stack)))
        .collect();
    let reads = read_cold(client, program, &stacks).await?;
    let group = format!(
        "Cold stacks of {FRAMES} random frames, one module ({})",
        program.name
    );
    reads.add_to(
        report,
        &group,
        (1_500_000, "≤ 1.5 MB"),
        (3_000_000, "≤ 3 MB"),
    );
    Ok(())
}

/// The reads of stacks, in the order in which the stacks were sent.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    calls: Vec<f64>,
    bytes: Vec<f64>,
    frames: usize,
    found: usize,
}

impl Reads {
    /// Adds the reads to a group, with limits for the median and for the maximum of bytes.
    pub fn add_to(
        &self,
        report: &mut Report,
        group: &str,
        (limit, median_target): (u64, &str),
        (limit_of_most, most_target): (u64, &str),
    ) {
        let (median, most) = (self.bytes(50), self.bytes(100));
        report.add(
            group,
            Row::new("bytes read, median", bytes(median)).target(median_target, median <= limit),
        );
        report.add(
            group,
            Row::new("bytes read, maximum", bytes(most)).target(most_target, most <= limit_of_most),
        );
        report.add(
            group,
            Row::new(
                "reads of blobs, median: the index, then all slices in parallel",
                self.calls(50).to_string(),
            ),
        );
    }

    /// Returns the percentile of the number of reads.
    pub fn calls(&self, percent: usize) -> u64 {
        percentile(&self.calls, percent) as u64
    }

    /// Returns the percentage of frames that have a function.
    pub fn found_percent(&self) -> f64 {
        100.0 * self.found as f64 / self.frames.max(1) as f64
    }

    /// Returns the percentile of the bytes read.
    pub fn bytes(&self, percent: usize) -> u64 {
        percentile(&self.bytes, percent) as u64
    }
}

/// Symbolicates stacks of one module, each with a new instance, and counts what the store returns.
///
/// # Errors
/// A request is not completed, or its module is not found.
pub async fn read_cold(
    client: &Client,
    program: &Program,
    stacks: &[Vec<u64>],
) -> Result<Reads, BenchError> {
    let caches = client.addresses().caches();
    let mut reads = Reads::default();
    for addresses in stacks {
        client.end_functions().await?;
        client.clear_stats().await?;
        let answer = client
            .completed("", &agreement::request(program, addresses))
            .await?;
        if answer["modules"][0]["debug_status"] != "found" {
            return Err(BenchError::Answer {
                what: "the module of the response",
                found: answer["modules"].to_string(),
            });
        }
        let frames = answer["stacktraces"][0]["frames"].as_array();
        let found = |index: &usize| {
            let of_it = |frame: &&Value| frame["original_index"].as_u64() == Some(*index as u64);
            let frame = frames.into_iter().flatten().find(of_it);
            frame.is_some_and(|frame| frame["status"] == "symbolicated")
        };
        reads.frames += addresses.len();
        reads.found += (0..addresses.len()).filter(found).count();
        let calls = client.stats().await?.of_bucket(caches, "GetObject");
        reads.calls.push(calls.calls as f64);
        reads.bytes.push(calls.bytes_out as f64);
    }
    Ok(reads)
}
