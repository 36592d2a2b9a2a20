//! Measures a warm frame: symdepot's core with slices, compared with plain `symbolic` and the whole
//! SymCache.

use std::hint::black_box;
use std::time::Instant;

use serde_json::json;
use symbolic::demangle::{Demangle, DemangleOptions};
use symbolic::symcache::SymCache;
use symdepot::api::symbolicator::{Request, parse_request};
use symdepot::debuginfo::{Bounds, SliceIndex, SlicedCache, cut};
use symdepot::domain::Features;
use symdepot::symbolicate::{
    Considered, KnownNames, LookupCache, ModuleOutcome, NameMemory, plan, symbolicate_with,
};

use super::program::Program;
use super::report::{Report, Row, ratio};
use super::{BenchError, percentile, plain, say};

/// Frames of a stack.
const FRAMES: usize = 30;

/// Stacks of random addresses.
const STACKS: u64 = 50;

/// How often each stack is symbolicated.
const ROUNDS: usize = 40;

/// The size limit of the cache of names: more than the names of all stacks need, as in an instance.
const NAME_BYTES: u64 = 10 << 20;

/// Address at which the module is mapped.
const IMAGE: u64 = 0x5555_0000_0000;

/// Symbolicates stacks repeatedly in memory, alternating between both implementations.
///
/// # Errors
/// The debug file cannot be read, or its SymCache cannot be cut.
pub fn measure(program: &Program, seed: u64, report: &mut Report) -> Result<(), BenchError> {
    say(
        "warm frames",
        &format!("{STACKS} stacks of {FRAMES} frames in {}", program.name),
    );
    let unreadable = |reason: String| BenchError::dif(&program.debug, reason);
    let whole = plain::symcache_of(&program.debug)?;
    let blob = cut(&whole, Bounds::CURRENT).map_err(unreadable)?;
    let cache = SymCache::parse(&whole).map_err(|error| unreadable(error.to_string()))?;
    let index = SliceIndex::of_blob(&blob).map_err(|error| unreadable(error.to_string()))?;
    let names = NameMemory::new(NAME_BYTES);
    let (mut plainly, mut ours) = (Vec::new(), Vec::new());
    for stack in 0..STACKS {
        let addresses = program.addresses(FRAMES, seed.wrapping_add(stack));
        let request = request(program, &addresses).map_err(unreadable)?;
        let sliced = opened(&index, &blob, &addresses).map_err(unreadable)?;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            black_box(told_plainly(&cache, &addresses));
            plainly.push(began.elapsed().as_secs_f64());
            let began = Instant::now();
            let found = ModuleOutcome::Found {
                cache: LookupCache::Sym(sliced.sym_caches()),
                features: Features::default(),
                arch: "x86_64",
                lacks: None,
                considered: Considered::default(),
            };
            let (plan, outcomes) = (plan(&request), [found]);
            let known = KnownNames::remembered(&names);
            black_box(symbolicate_with(&request, &plan, &outcomes, known));
            ours.push(began.elapsed().as_secs_f64());
        }
    }
    let per_frame = |seconds: &[f64]| percentile(seconds, 50) / FRAMES as f64 * 1e6;
    let (plainly, ours) = (per_frame(&plainly), per_frame(&ours));
    let group = format!("A warm frame, with names ({})", program.name);
    report.add(
        &group,
        Row::new(
            "plain symbolic: lookup and demangling",
            format!("{plainly:.1} µs"),
        ),
    );
    report.add(
        &group,
        Row::new(
            "symdepot: slices, demangling, the response",
            format!("{ours:.1} µs"),
        ),
    );
    let share = ours / plainly;
    report.add(
        &group,
        Row::new("time, relative to plain", ratio(share)).target("≤ 1.2 ×", share <= 1.2),
    );
    Ok(())
}

/// Looks up frames as a program would that uses plain `symbolic`: all data of each frame in a
/// response.
fn told_plainly(cache: &SymCache<'_>, addresses: &[u64]) -> Vec<(String, Option<String>, u32)> {
    const OPTIONS: DemangleOptions = DemangleOptions::complete().return_type(false);
    let locations = addresses.iter().flat_map(|address| cache.lookup(*address));
    locations
        .map(|location| {
            let name = location.function().name_for_demangling();
            let name = name.demangle(OPTIONS).unwrap_or_else(|| name.to_string());
            let path = location.file().map(|file| file.full_path());
            (name, path, location.line())
        })
        .collect()
}

fn request(program: &Program, addresses: &[u64]) -> Result<Request, String> {
    let frame = |address: &u64| {
        let address = IMAGE + address;
        json!({"instruction_addr": format!("{address:#x}"), "adjust_instruction_addr": false})
    };
    let request = json!({
        "modules": [{"type": "elf", "debug_id": program.debug_id, "image_addr": format!("{IMAGE:#x}")}],
        "stacktraces": [{"frames": addresses.iter().map(frame).collect::<Vec<_>>()}],
    });
    parse_request(request.to_string().as_bytes()).map_err(|error| error.to_string())
}

/// Opens the slices of some addresses.
fn opened(index: &SliceIndex, blob: &[u8], addresses: &[u64]) -> Result<SlicedCache, String> {
    let slices = addresses
        .iter()
        .filter_map(|address| index.slice_of(*address));
    let mut slices: Vec<u32> = slices.collect();
    slices.sort_unstable();
    slices.dedup();
    let open = |number: u32| {
        let range = index.range(number).unwrap_or_default();
        let range = range.start as usize..range.end as usize;
        let slice = index.open_slice(number, blob.get(range).unwrap_or_default());
        slice
            .map(|slice| (number, slice))
            .map_err(|error| error.to_string())
    };
    Ok(SlicedCache {
        slices: slices.into_iter().map(open).collect::<Result<_, _>>()?,
        index: index.clone(),
    })
}
