//! What a cold stack reads of a sliced SymCache, counted at the store.

use super::program::Program;
use super::report::{Report, Row, bytes};
use super::{BenchError, agreement, percentile, say};
use crate::stack::Client;

/// Frames of a stack.
const FRAMES: usize = 30;

/// Stacks of random addresses, the worst case: frames of a real one lie nearer to each other.
const STACKS: u64 = 100;

/// Measures stacks of random addresses in one module, each by an instance that knows nothing.
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
    let caches = client.addresses().caches();
    let (mut reads, mut read) = (Vec::new(), Vec::new());
    for stack in 0..STACKS {
        let addresses = program.addresses(FRAMES, seed.wrapping_add(stack));
        client.end_functions().await?;
        client.clear_stats().await?;
        client
            .completed("", &agreement::request(program, &addresses))
            .await?;
        let calls = client.stats().await?.of_bucket(caches, "GetObject");
        reads.push(calls.calls as f64);
        read.push(calls.bytes_out as f64);
    }
    let group = format!(
        "Cold stacks of {FRAMES} random frames, one module ({})",
        program.name
    );
    let (median, most) = (percentile(&read, 50), percentile(&read, 100));
    report.add(
        &group,
        Row::new("bytes read, median", bytes(median as u64)).target("≤ 1.5 MB", median <= 1.5e6),
    );
    report.add(
        &group,
        Row::new("bytes read, most", bytes(most as u64)).target("≤ 3 MB", most <= 3e6),
    );
    report.add(
        &group,
        Row::new(
            "reads of blobs, median: the index, then all slices at once",
            format!("{:.0}", percentile(&reads, 50)),
        ),
    );
    Ok(())
}
