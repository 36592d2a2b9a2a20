//! Measures what the walk of a cold minidump reads of the CFI caches of a large program.
//!
//! The minidump is made up: its frames are at first addresses of random functions of the program.
//! There, the caller's address is at the stack pointer, so a stack of such addresses has as many
//! frames as words. Frames of real stacks are closer to each other, and threads that wait share
//! most of theirs.

use std::path::Path;

use serde_json::Value;

use super::program::Program;
use super::report::{Report, Row, bytes, milliseconds};
use super::{BenchError, PATIENCE, percentile, say};
use crate::bench_latency::measure::Run;
use crate::made_up_dump::{MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread};
use crate::stack::Client;

/// Threads of a minidump.
const THREADS: usize = 30;

/// Frames of each thread in the program. A thread of a server has about ten.
const FRAMES: usize = 10;

/// The first addresses of the program and of the stacks.
const IMAGE: u64 = 0x5555_0000_0000;
const STACK: u64 = 0x7fff_0000_0000;
const STACK_BYTES: u64 = 0x1_0000;

/// Uploads the program, not its debug file, and measures minidumps, each with a new instance.
///
/// # Errors
/// The upload fails, or a minidump is not answered.
pub async fn measure(
    client: &Client,
    (program, file): (&Program, &Path),
    runs: usize,
    seed: u64,
    report: &mut Report,
) -> Result<(), BenchError> {
    let what = format!(
        "{THREADS} threads of {FRAMES} random frames in {}",
        program.name
    );
    say("crash files", &what);
    let key = format!("global/bench/{}", program.name);
    client.upload_file(&key, file).await?;
    client.idle(PATIENCE).await?;
    let size = std::fs::metadata(file)
        .map_err(BenchError::file(file))?
        .len();
    let (mut times, mut read, mut walked) = (Vec::new(), Vec::new(), 0);
    for run in 0..runs.max(1) {
        let dump = dump(program, size, seed.wrapping_add(run as u64));
        client.end_functions().await?;
        let request = async { Ok(client.minidump("", &dump).await?) };
        let (run, answer) = Run::of(client, request).await?;
        let caches = client.addresses().caches();
        times.push(run.time);
        read.push(run.stats.of_bucket(caches, "GetObject").bytes_out as f64);
        walked += frames_by_cfi(&answer);
    }
    let wanted = runs.max(1) * THREADS * (FRAMES - 1);
    let percent = 100.0 * walked as f64 / wanted as f64;
    let group = format!("A cold minidump: {what}");
    let row = Row::new("frames found by CFI", format!("{percent:.1} %"));
    report.add(&group, row.target("≥ 99 %", percent >= 99.0));
    let p50 = percentile(&times, 50);
    let row = Row::new("response time, p50", milliseconds(p50));
    report.add(&group, row.target("≤ 1000 ms", p50 <= 1000.0));
    let most = percentile(&read, 100) as u64;
    let row = Row::new("bytes read of caches, maximum", bytes(most));
    report.add(&group, row.target("≤ 5 MB", most <= 5_000_000));
    Ok(())
}

/// Returns how many frames beside the innermost were found by CFI.
fn frames_by_cfi(answer: &Value) -> usize {
    let stacktraces = answer["stacktraces"].as_array().into_iter().flatten();
    let frames = stacktraces.flat_map(|stack| stack["frames"].as_array().into_iter().flatten());
    frames.filter(|frame| frame["trust"] == "cfi").count()
}

/// Returns a minidump of the program.
fn dump(program: &Program, size: u64, seed: u64) -> Vec<u8> {
    let starts = program.starts(THREADS * FRAMES, seed);
    let stacks = starts.chunks(FRAMES).zip(0..).map(|(frames, thread)| {
        // A caller's address is after its call; the byte before it is looked up.
        let callers = frames.iter().skip(1).map(|start| IMAGE + start + 1);
        MadeUpStack {
            address: STACK + thread * STACK_BYTES,
            bytes: callers.chain([0; 8]).flat_map(u64::to_le_bytes).collect(),
        }
    });
    let threads = starts
        .chunks(FRAMES)
        .zip(0..)
        .map(|(frames, thread)| MadeUpThread {
            id: thread as u32 + 1,
            stack: thread,
            rip: IMAGE + frames.first().copied().unwrap_or_default(),
            rsp: STACK + thread as u64 * STACK_BYTES,
            ..MadeUpThread::default()
        });
    let dump = MadeUpDump {
        stacks: stacks.collect(),
        threads: threads.collect(),
        modules: vec![MadeUpModule {
            address: IMAGE,
            size: u32::try_from(size).unwrap_or(u32::MAX),
            name: format!("/usr/bin/{}", program.name),
            debug_id: program.debug_id.parse().unwrap_or_default(),
            ..MadeUpModule::default()
        }],
        crashed: Some(1),
        ..MadeUpDump::default()
    };
    dump.file()
}
