//! Deriving all caches of a file: plain `symbolic`, symdepot's code in this process, and symdepot's
//! parser process.
//!
//! `SYMDEPOT_BENCH_DIF` selects an additional debug file besides that of the sample program. The
//! parser process needs `SYMDEPOT_BINARIES`. `make bench-real` measures the same with large files,
//! and runs plain `symbolic` in its own process each time.

#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot continue panics"
)]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use symdepot::adapters::parser::{InProcessDeriver, ParserLimits, ProcessDeriver};
use symdepot::adapters::scratch::ScratchSpace;
use symdepot::cache::{DeriveJob, Kind, ReleaseNumbers};
use symdepot::domain::Written;
use symdepot::ports::Deriver;
use symdepot_tests::bench_real::plain;
use symdepot_tests::stack::{Binaries, fixture};
use tokio::runtime::Runtime;

const MEMORY: u64 = 16 << 30;

fn all_caches(criterion: &mut Criterion) {
    bench(criterion, "sample", &fixture("elf/crash.debug"));
    if let Some(path) = std::env::var_os("SYMDEPOT_BENCH_DIF").map(PathBuf::from) {
        bench(criterion, "SYMDEPOT_BENCH_DIF", &path);
    }
}

fn bench(criterion: &mut Criterion, name: &str, path: &Path) {
    let bytes = Bytes::from(
        std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    );
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let mut group = criterion.benchmark_group(format!("derive {name}"));
    if bytes.len() > 10_000_000 {
        group.sample_size(10);
    }
    group.bench_function("plain symbolic", |bencher| {
        bencher.iter(|| plain::derive(path).unwrap());
    });
    let ours = InProcessDeriver::new(MEMORY);
    group.bench_function("symdepot, in this process", |bencher| {
        bencher.iter(|| runtime.block_on(derive(&ours, &bytes)));
    });
    match Binaries::from_env() {
        Ok(binaries) => {
            let limits = ParserLimits {
                memory_bytes: MEMORY,
                cpu_seconds: 900,
                needs_seccomp: true,
            };
            let ours = ProcessDeriver::new(
                binaries.get("derive"),
                limits,
                ScratchSpace::new(folder.path(), MEMORY),
            );
            group.bench_function("symdepot, in a parser process", |bencher| {
                bencher.iter(|| runtime.block_on(derive(&ours, &bytes)));
            });
        }
        Err(missing) => eprintln!("parser process skipped: {missing}"),
    }
    group.finish();
}

/// Derives all caches of a file, and returns their total size in bytes.
async fn derive(deriver: &dyn Deriver, bytes: &Bytes) -> usize {
    let mut dif = deriver.reserve(bytes.len() as u64).unwrap();
    dif.write_at(0, bytes.clone()).await.unwrap();
    let mut parser = deriver.open(dif, Written::Whole).await.unwrap();
    let mut derived = 0;
    for (index, object) in parser.inspect().await.unwrap().objects.iter().enumerate() {
        let job = |kind: &Kind| DeriveJob::of(*kind, &object.features, &ReleaseNumbers::CURRENT);
        let jobs: Vec<DeriveJob> = Kind::derived_from(object.file_type)
            .iter()
            .map(job)
            .collect();
        let answers = parser.derive(index, &jobs).await.unwrap();
        derived += answers
            .into_iter()
            .map(|answer| answer.unwrap().blob.len())
            .sum::<usize>();
    }
    derived
}

criterion_group!(benches, all_caches);
criterion_main!(benches);
