//! Stacks with frames that called nothing: one at an address without code, ones that a signal
//! interrupted, and the outermost.

use minidump::format::CONTEXT_AMD64;
use minidump::{
    MinidumpContext, MinidumpContextValidity, MinidumpModule, MinidumpModuleList,
    MinidumpRawContext, UnifiedMemory,
};
use symdepot::cache::Kind;
use symdepot::flows::unwinding::ModuleCaches;
use symdepot::unwind::{Stack, StackWalker, WalkEnd, WalkedFrame};
use symdepot_tests::harness::World;

use crate::unwinding::{memory_at, system};

const BASE: u64 = 0x5555_0000_0000;
const TOP: u64 = 0x7fff_0000_0000;

/// Returns a file of a module with these records, whose functions are at 0x1000, 0x2000 and so on.
fn symbol_file(records: &str) -> String {
    let functions = (1..=6).map(|number| format!("FUNC {number}000 100 0 function_{number}\n"));
    let functions: String = functions.collect();
    format!("MODULE Linux x86_64 502FC0A51EC13E479998684FA139DCA70 made-up\n{functions}{records}")
}

/// Walks a stack of these words, with the registers of its topmost frame.
async fn walked(
    records: &str,
    registers: CONTEXT_AMD64,
    words: &[u64],
) -> (Vec<WalkedFrame>, WalkEnd) {
    let world = World::new();
    let event = world.put("global/made-up.sym", symbol_file(records));
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let id = "502fc0a5-1ec1-3e47-9998-684fa139dca7";
    let ready = |kind| world.entry("global", id, kind).unwrap().ready().cloned();
    let caches = ModuleCaches {
        cfi: ready(Kind::CfiCache),
        symbols: ready(Kind::SymCache),
    };
    let instance = world.another_instance();
    let unwinding = instance.symbolicator().unwinding(vec![caches]);
    let module = MinidumpModule::new(BASE, 0x10000, "made-up");
    let modules = MinidumpModuleList::from_modules(vec![module]);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let memory = memory_at(TOP, &bytes);
    let context = MinidumpContext {
        raw: MinidumpRawContext::Amd64(CONTEXT_AMD64 {
            rsp: TOP,
            ..registers
        }),
        valid: MinidumpContextValidity::All,
    };
    let stack = Stack {
        context: &context,
        memory: Some(UnifiedMemory::Memory(&memory)),
    };
    let system = system();
    let walker = StackWalker::new(&unwinding, &modules, &system);
    walker.walk(stack).await
}

fn addresses(frames: &[WalkedFrame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.address).collect()
}

/// A function with a frame pointer, at 0x1000, and one without a caller, at 0x2000.
const WITH_FRAME_POINTER: &str = "\
STACK CFI INIT 1000 100 .cfa: $rbp 16 + .ra: .cfa 8 - ^ $rbp: .cfa 16 - ^
STACK CFI INIT 2000 100 .cfa: $rsp 8 + .ra: .undef
";

#[tokio::test(start_paused = true)]
async fn the_function_that_called_null_is_not_skipped() {
    for called in [0, 0x10, 0x4141_4141_4141_4141] {
        let registers = CONTEXT_AMD64 {
            rip: called,
            rbp: TOP + 24,
            ..CONTEXT_AMD64::default()
        };
        let words = [BASE + 0x1010, 1, 2, 0, BASE + 0x2010, 3];
        let (frames, end) = walked(WITH_FRAME_POINTER, registers, &words).await;
        let expected = [called, BASE + 0x1010, BASE + 0x2010];
        assert_eq!(addresses(&frames), expected, "{frames:x?}");
        assert_eq!(frames[1].instruction, BASE + 0x100f);
        assert_eq!(end, WalkEnd::Complete);
    }
}

#[tokio::test(start_paused = true)]
async fn a_word_that_is_in_no_function_did_not_call_null() {
    let registers = CONTEXT_AMD64 {
        rip: 0,
        rbp: TOP + 24,
        ..CONTEXT_AMD64::default()
    };
    let words = [BASE + 0x9000, 1, 2, TOP + 40, BASE + 0x2010, 3];
    let (frames, _) = walked(WITH_FRAME_POINTER, registers, &words).await;
    assert_eq!(addresses(&frames), [0, BASE + 0x2010], "{frames:x?}");
}

#[tokio::test(start_paused = true)]
async fn a_stack_ends_at_a_function_without_a_caller() {
    let registers = CONTEXT_AMD64 {
        rip: BASE + 0x1010,
        rbp: TOP + 8,
        ..CONTEXT_AMD64::default()
    };
    // The last word would be found if the stack was scanned.
    let words = [7, 0, BASE + 0x2010, 8, BASE + 0x1020];
    let (frames, end) = walked(WITH_FRAME_POINTER, registers, &words).await;
    assert_eq!(addresses(&frames), [BASE + 0x1010, BASE + 0x2010]);
    assert_eq!(end, WalkEnd::Complete);
}

/// A handler at 0x3000, which returns to the trampoline at 0x4000. This restores the registers from
/// a record on the stack. A function at 0x5000 pushes one word first.
const WITH_SIGNAL: &str = "\
STACK CFI INIT 2000 100 .cfa: $rsp 8 + .ra: .undef
STACK CFI INIT 3000 100 .cfa: $rsp 8 + .ra: .cfa 8 - ^
STACK CFI INIT 3fff 9 .cfa: $rsp 8 + ^ .ra: $rsp ^ $rsp: $rsp 8 + ^ $rbp: $rsp 16 + ^
STACK CFI INIT 4f00 100 .cfa: $rsp 800 + .ra: .cfa 8 - ^
STACK CFI INIT 5000 100 .cfa: $rsp 8 + .ra: .cfa 8 - ^
STACK CFI 5001 .cfa: $rsp 16 +
";

#[tokio::test(start_paused = true)]
async fn a_function_that_a_signal_interrupted_is_at_its_instruction() {
    let registers = CONTEXT_AMD64 {
        rip: BASE + 0x3010,
        ..CONTEXT_AMD64::default()
    };
    // At the first instruction of a function, and behind its push.
    for (offset, pushed) in [(0, 0), (1, 1)] {
        let interrupted = BASE + 0x5000 + offset;
        let stack = TOP + 32 + 8 * (1 - pushed);
        let words = [BASE + 0x4000, interrupted, stack, 5, 6, BASE + 0x2010, 9];
        let (frames, end) = walked(WITH_SIGNAL, registers.clone(), &words).await;
        let expected = [BASE + 0x3010, BASE + 0x4000, interrupted, BASE + 0x2010];
        assert_eq!(addresses(&frames), expected, "{frames:x?}");
        let is_exact: Vec<bool> = frames.iter().map(|frame| frame.is_exact).collect();
        assert_eq!(is_exact, [true, true, true, false]);
        assert_eq!(frames[2].instruction, interrupted);
        assert_eq!(end, WalkEnd::Complete);
    }
}
