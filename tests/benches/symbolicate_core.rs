//! The pure part of a warm request: from the bytes of its body to the bytes of its response, with
//! thirty frames in one module.
//!
//! `SYMDEPOT_BENCH_DIF` selects an additional debug file besides that of the sample program.

#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot continue panics"
)]

use std::hint::black_box;
use std::path::{Path, PathBuf};

use criterion::{Criterion, criterion_group, criterion_main};
use symbolic::common::ByteView;
use symbolic::debuginfo::Object;
use symbolic::symcache::SymCache;
use symdepot::api::symbolicator::{Response, parse_request};
use symdepot::domain::Features;
use symdepot::symbolicate::{Considered, LookupCache, ModuleOutcome, plan, symbolicate};
use symdepot_tests::bench_real::plain;
use symdepot_tests::stack::fixture;

const FRAMES: usize = 30;
const IMAGE: u64 = 0x5555_0000_0000;

fn thirty_frames(criterion: &mut Criterion) {
    bench(criterion, "sample", &fixture("elf/crash.debug"));
    if let Some(path) = std::env::var_os("SYMDEPOT_BENCH_DIF").map(PathBuf::from) {
        bench(criterion, "SYMDEPOT_BENCH_DIF", &path);
    }
}

fn bench(criterion: &mut Criterion, name: &str, path: &Path) {
    let view = ByteView::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let object = Object::parse(&view).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let raw =
        plain::symcache(&object).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let body = body(&object);
    criterion.bench_function(
        &format!("30 frames, {name}, SymCache of {} kB", raw.len() / 1000),
        |bencher| {
            bencher.iter(|| {
                // As in the handler, the header of the cache is parsed for each request.
                let request = parse_request(black_box(&body)).unwrap();
                let cache = LookupCache::Sym(SymCache::parse(&raw).unwrap().into());
                let found = ModuleOutcome::Found {
                    cache,
                    features: Features::default(),
                    arch: "x86_64",
                    lacks: None,
                    considered: Considered::default(),
                };
                let (completed, stats) = symbolicate(&request, &plan(&request), &[found]);
                // A file from `SYMDEPOT_BENCH_DIF` may have a few functions without names.
                assert!(stats.frames.symbolicated > FRAMES * 8 / 10, "{stats:?}");
                serde_json::to_vec(&Response::Completed(completed)).unwrap()
            });
        },
    );
}

/// Returns a request with frames in the middle of functions that are far apart.
fn body(object: &Object<'_>) -> Vec<u8> {
    let mut functions: Vec<u64> = object
        .symbols()
        .filter(|symbol| symbol.size > 0)
        .map(|symbol| symbol.address + symbol.size / 2)
        .collect();
    functions.sort_unstable();
    let frame = |number: usize| {
        let address = IMAGE + functions[number * functions.len() / FRAMES];
        serde_json::json!({"instruction_addr": format!("{address:#x}"), "adjust_instruction_addr": false})
    };
    let request = serde_json::json!({
        "modules": [{"type": "elf", "debug_id": object.debug_id().to_string(), "image_addr": format!("{IMAGE:#x}")}],
        "stacktraces": [{"frames": (0..FRAMES).map(frame).collect::<Vec<_>>()}],
    });
    request.to_string().into_bytes()
}

criterion_group!(benches, thirty_frames);
criterion_main!(benches);
