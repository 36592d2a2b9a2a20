//! Words of a stack that may be return addresses, where nothing else says who called a function:
//! they are judged by the unwind information of their module, then by its functions.

use std::time::Duration;

use symbolic::common::DebugId;
use symdepot::api::crash::form::CrashFields;
use symdepot::api::symbolicator::FrameTrust;
use symdepot::flows::minidump::{MinidumpForm, WalkOutcome};
use symdepot_tests::harness::{MadeUpDump, MadeUpModule, World};

use crate::minidump::walk;

const ID: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";
const BASE: u64 = 0x5555_0000_0000;

/// Return addresses: into what only unwind information covers, into what only a function covers,
/// and into what neither of them covers.
const UNWOUND: u64 = BASE + 0x211;
const IN_FUNCTION: u64 = BASE + 0x111;
const NEITHER: u64 = BASE + 0x311;

/// The records of the module.
const FUNCTION: &str = "FUNC 100 20 0 a_function\n";
const UNWIND: &str = "STACK CFI INIT 200 20 .cfa: $rsp 16 + .ra: .cfa 8 - ^\n";

/// Returns a minidump without frame pointers, whose stack has this word among others.
fn dump(word: u64) -> Vec<u8> {
    let module = MadeUpModule {
        address: BASE,
        size: 0x1000,
        name: "/opt/app".to_owned(),
        debug_id: ID.parse().unwrap(),
        ..MadeUpModule::default()
    };
    let words = vec![7, word, 0, 0, 0, 0];
    MadeUpDump::of_threads([(BASE + 0x400, words)], vec![module]).file()
}

/// Returns whether a walk takes a word for a return address, with these records of the module.
async fn is_taken(records: &[&str], word: u64) -> bool {
    let world = World::new();
    if !records.is_empty() {
        let id: DebugId = ID.parse().unwrap();
        let file = format!(
            "MODULE Linux x86_64 {} app\n{}",
            id.breakpad(),
            records.concat()
        );
        let event = world.put("global/app.sym", file);
        world.deliver(&event).await.unwrap();
        world.settle().await;
    }
    let dump = MinidumpForm {
        file: dump(word).into(),
        fields: CrashFields::default(),
    };
    let outcome = walk(&world, &dump, Duration::ZERO).await.unwrap();
    let WalkOutcome::Walked(report, _) = outcome else {
        panic!("{outcome:?}");
    };
    let frames = report.request.stacktraces[0].frames.iter();
    let frames: Vec<_> = frames
        .map(|frame| (frame.instruction_addr.0, frame.trust))
        .collect();
    let context = (BASE + 0x400, FrameTrust::Context);
    let taken = [context, (word, FrameTrust::Scan)];
    assert!(frames == taken || frames == taken[..1], "{frames:x?}");
    frames == taken
}

#[tokio::test(start_paused = true)]
async fn a_word_that_neither_unwind_information_nor_a_function_covers_is_no_return_address() {
    let records = [FUNCTION, UNWIND];
    assert!(is_taken(&records, UNWOUND).await);
    assert!(is_taken(&records, IN_FUNCTION).await);
    assert!(!is_taken(&records, NEITHER).await);
    // Outside of all modules.
    assert!(!is_taken(&records, 0x1234).await);
}

#[tokio::test(start_paused = true)]
async fn a_module_without_unwind_information_or_functions_rejects_no_word() {
    for records in [&[][..], &[FUNCTION], &[UNWIND]] {
        for word in [UNWOUND, IN_FUNCTION, NEITHER] {
            assert!(is_taken(records, word).await, "{records:?} {word:x}");
        }
    }
}
