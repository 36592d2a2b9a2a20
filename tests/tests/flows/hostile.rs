//! Hostile files: each gets a result, and no process crashes.

use serde_json::json;
use symdepot::api::crash;
use symdepot::api::crash::apple::parse_report;
use symdepot::api::report;
use symdepot::cache::UploadState;
use symdepot::{debuginfo, symbolicate, unwind};
use symdepot_tests::harness::{World, hostile_files, in_module};

/// Ends the process that parses it, which is the test itself here. The tests of the parser process
/// use it.
const DEADLY: &str = "hostile/section-claims-a-tebibyte";

fn harmless_here() -> impl Iterator<Item = String> {
    hostile_files().into_iter().filter(|file| file != DEADLY)
}

#[tokio::test(start_paused = true)]
async fn each_hostile_file_gets_a_result() {
    let mut table = String::new();
    for file in harmless_here() {
        // The bomb unpacks to a gibibyte. The budget is one that every test machine has.
        let world = World::with(|settings| settings.scratch_bytes = 64 << 20);
        world.upload("global/file", &file).await;
        world.check();
        assert_ne!(
            world.upload_item("global/file").state,
            UploadState::Pending,
            "{file}"
        );
        assert_eq!(
            world.queues.sent(),
            [],
            "{file}: the message is not retried"
        );
        table.push_str(&format!(
            "{file}\n  {}\n",
            world.summary().replace('\n', "\n  ")
        ));
    }
    insta::assert_snapshot!("hostile_files", table);
}

#[tokio::test(start_paused = true)]
async fn a_hostile_file_delivered_twice_is_not_derived_twice() {
    for file in harmless_here() {
        let world = World::with(|settings| settings.scratch_bytes = 64 << 20);
        let event = world.put("global/file", symdepot_tests::harness::fixture(&file));
        world.deliver(&event).await.unwrap();
        let (derived, before) = (world.derivations.derived(), world.summary());
        world.deliver(&event).await.unwrap();
        assert_eq!(
            (world.derivations.derived(), world.summary()),
            (derived, before),
            "{file}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_in_a_hostile_file_gets_a_response() {
    let addresses: Vec<u64> = (0..0x4000).step_by(16).collect();
    for file in harmless_here() {
        let world = World::with(|settings| settings.scratch_bytes = 64 << 20);
        let upload = world.upload("global/file", &file).await;
        for object in upload.objects {
            let debug_id = object.debug_id.map(|id| id.to_string());
            let module = json!({"type": "elf", "debug_id": debug_id, "code_id": object.code_id});
            let answer = world.symbolicate(&in_module(module, &addresses)).await;
            assert!(
                answer.stacktraces[0].frames.len() >= addresses.len(),
                "{file}"
            );
        }
    }
}

/// A fuzz target: its name, and what it calls.
type FuzzTarget = (&'static str, fn(&[u8]));

#[test]
fn the_seeds_of_the_fuzz_targets_cause_no_panic() {
    let targets: [FuzzTarget; 20] = [
        ("footer", debuginfo::hostile::footer),
        ("index", debuginfo::hostile::index),
        ("slice", debuginfo::hostile::slice),
        ("cfi_slice", debuginfo::hostile::cfi_slice),
        ("source_slice", debuginfo::hostile::source_slice),
        ("source_links", debuginfo::hostile::source_links),
        ("map", debuginfo::hostile::map),
        ("dwarf", debuginfo::hostile::dwarf),
        ("archive", debuginfo::hostile::dif),
        ("breakpad", debuginfo::hostile::dif),
        ("name", symbolicate::hostile::name),
        ("request", symbolicate::hostile::request),
        ("report", report::hostile::report),
        ("source", symbolicate::hostile::source),
        ("link", symbolicate::hostile::link),
        ("listing", symdepot::adapters::http::hostile::listing),
        ("apple_report", |bytes| drop(parse_report(bytes))),
        ("minidump", unwind::hostile::dump),
        ("form", crash::hostile::form),
        ("rewrite", crash::hostile::rewrite),
    ];
    for (target, call) in targets {
        let folder = format!("{}/fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
        let seeds = std::fs::read_dir(&folder).unwrap().map(Result::unwrap);
        let seeds: Vec<Vec<u8>> = seeds
            .map(|seed| std::fs::read(seed.path()).unwrap())
            .collect();
        assert!(seeds.len() > 1, "{target}");
        for seed in seeds {
            call(&seed);
            // A thousand bytes at most, each replaced once.
            for at in (0..seed.len()).step_by(seed.len().div_ceil(1000).max(1)) {
                let mut bad = seed.clone();
                bad[at] ^= 0xff;
                call(&bad);
            }
        }
    }
}
