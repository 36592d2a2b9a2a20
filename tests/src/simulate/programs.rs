//! Programs whose debug information is in several files, each of which is uploaded, overwritten and
//! removed on its own: one with a shared file of `dwz`, and one with split DWARF.
//!
//! A response shows which of the files its names were made from. The names of each set of files are
//! those of a world in which nothing else happens.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::json;
use symdepot::api::symbolicator::Request;

use super::workload;
use crate::harness::{World, fixture, fixture_text, in_module};

/// The modules from this number on are programs.
const FIRST: usize = 2000;

/// A program: the archive of the fixtures with its files, of which the first is the program itself,
/// and its build id.
const PROGRAMS: [(&str, &str); 2] = [
    ("zoo/shared.zip", "0a2b21dc4a70f2d3b6655c3732179c6f3f030162"),
    (
        "zoo/split-single.zip",
        "85998e94faf041c7a78b254e954ed8b91bf6fae5",
    ),
];

/// Every which address of a program is in a crash.
const STEP: usize = 5;

/// The names of the frames of a response.
pub(super) type Names = Vec<Option<String>>;

/// A program, and what its files are for.
struct Program {
    parts: Vec<Bytes>,
    addresses: Vec<u64>,
    /// The names for each set of parts: those with the bits of its key.
    names: BTreeMap<u32, Names>,
}

static ALL: LazyLock<Vec<Program>> = LazyLock::new(|| (0..PROGRAMS.len()).map(prepare).collect());

/// The number of programs.
pub(super) const COUNT: usize = PROGRAMS.len();

/// Finds out the names of each set of files. Otherwise the first run would do it, and what it
/// traces would be part of that run.
pub(super) fn prepare_all() {
    LazyLock::force(&ALL);
}

/// Returns the number of the module of a program.
pub(super) fn module(program: usize) -> usize {
    FIRST + program
}

/// Returns the number of files of a program.
pub(super) fn parts(program: usize) -> usize {
    ALL[program].parts.len()
}

/// Returns a file of a program.
pub(super) fn part(program: usize, part: usize) -> Bytes {
    ALL[program].parts[part].clone()
}

/// Returns the text that stands for a file of a program in the reference.
pub(super) fn name(program: usize, part: usize) -> String {
    format!("module{}_part{part}", module(program))
}

/// Returns a crash in a program.
pub(super) fn crash(program: usize) -> Request {
    crash_at(program, &ALL[program].addresses)
}

/// Returns the names of a crash in a program with these files.
pub(super) fn names(program: usize, parts: impl Iterator<Item = usize>) -> Names {
    let set = parts.map(|part| 1 << part).sum();
    ALL[program].names.get(&set).cloned().unwrap_or_default()
}

/// Returns the sets of files, each of which may have given these names.
pub(super) fn made_from(program: usize, names: &Names) -> Vec<Vec<usize>> {
    let Program {
        parts, names: of, ..
    } = &ALL[program];
    let sets = of.iter().filter(|(_, others)| *others == names);
    let parts_of = |set: u32| (0..parts.len()).filter(move |part| set & (1 << part) != 0);
    sets.map(|(set, _)| parts_of(*set).collect()).collect()
}

fn crash_at(program: usize, addresses: &[u64]) -> Request {
    let (_, build_id) = PROGRAMS[program];
    in_module(json!({"type": "elf", "code_id": build_id}), addresses)
}

fn prepare(program: usize) -> Program {
    let (archive, _) = PROGRAMS[program];
    let parts = members(archive);
    let oracle = fixture_text(&format!("{archive}.expected"));
    let address = |line: &str| {
        let address = line.split("  ").next()?.strip_prefix("0x")?;
        u64::from_str_radix(address, 16).ok()
    };
    let addresses: Vec<u64> = oracle.lines().filter_map(address).step_by(STEP).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap_or_else(|error| panic!("cannot create a runtime: {error}"));
    let crash = crash_at(program, &addresses);
    let names = (0..1 << parts.len()).map(|set: u32| {
        let of_set = parts.iter().enumerate();
        let of_set = of_set.filter(|(part, _)| set & (1 << part) != 0);
        let of_set = of_set.map(|(part, bytes)| (part, bytes.clone())).collect();
        (set, runtime.block_on(names_of(of_set, &crash)))
    });
    let names: BTreeMap<u32, Names> = names.collect();
    Program {
        parts,
        addresses,
        names,
    }
}

/// Returns the names of a crash if only these files were uploaded.
async fn names_of(parts: Vec<(usize, Bytes)>, crash: &Request) -> Names {
    let world = World::new();
    for (part, bytes) in parts {
        let event = world.put(&format!("global/part-{part}"), bytes);
        let delivered = world.deliver(&event).await;
        delivered.unwrap_or_else(|error| panic!("part {part}: {error:?}"));
        world.settle().await;
    }
    workload::names(&world.symbolicate(crash).await)
}

fn members(archive: &str) -> Vec<Bytes> {
    let failed = |error: String| -> ! { panic!("{archive}: {error}") };
    let opened = zip::ZipArchive::new(Cursor::new(fixture(archive)));
    let mut opened = opened.unwrap_or_else(|error| failed(error.to_string()));
    let mut parts = Vec::new();
    for number in 0..opened.len() {
        let file = opened.by_index(number);
        let mut file = file.unwrap_or_else(|error| failed(error.to_string()));
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .unwrap_or_else(|error| failed(error.to_string()));
        parts.push(bytes.into());
    }
    parts
}
