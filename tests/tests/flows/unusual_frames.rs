//! Stacks with frames that called nothing: one at an address without code, ones that a signal
//! interrupted, and the outermost. Some continue in another region of memory.

use std::time::Duration;

use minidump::format::{CONTEXT_AMD64, CONTEXT_ARM, CONTEXT_X86};
use minidump::system_info::{Cpu, Os};
use minidump::{
    MinidumpContext, MinidumpContextValidity, MinidumpModule, MinidumpModuleList,
    MinidumpRawContext, UnifiedMemory,
};
use minidump_unwind::SystemInfo;
use symdepot::api::crash::form::CrashFields;
use symdepot::cache::Kind;
use symdepot::flows::minidump::{MinidumpForm, WalkOutcome};
use symdepot::flows::unwinding::ModuleCaches;
use symdepot::unwind::{MAX_REGIONS, Stack, StackWalker, WalkEnd, WalkedFrame};
use symdepot_tests::harness::{
    MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread, World, full_dump,
};

use crate::minidump::walk;
use crate::unwinding::{memory_at, system};

const BASE: u64 = 0x5555_0000_0000;
const TOP: u64 = 0x7fff_0000_0000;

/// The addresses of the module and of the stack on 32-bit machines.
const NARROW_BASE: u32 = 0x4000_0000;
const NARROW_TOP: u32 = 0x7000_0000;

/// The debug id of the module.
const ID: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";

/// Returns a file of a module with these records, whose functions are at 0x1000, 0x2000 and so on.
fn symbol_file(machine: &str, records: &str) -> String {
    let functions = (1..=6).map(|number| format!("FUNC {number}000 100 0 function_{number}\n"));
    let functions: String = functions.collect();
    format!("MODULE {machine} 502FC0A51EC13E479998684FA139DCA70 made-up\n{functions}{records}")
}

/// Returns a world to which a file was uploaded.
async fn with_file(file: String) -> World {
    let world = World::new();
    let event = world.put("global/made-up.sym", file);
    world.deliver(&event).await.unwrap();
    world.settle().await;
    world
}

/// A stack in the made-up module.
struct OneStack {
    file: String,
    system: SystemInfo,
    /// The address of the module.
    base: u64,
    /// The registers of its topmost frame.
    registers: MinidumpRawContext,
    /// The address of its first byte.
    top: u64,
    bytes: Vec<u8>,
}

impl OneStack {
    async fn walked(self) -> (Vec<WalkedFrame>, WalkEnd) {
        let world = with_file(self.file).await;
        let ready = |kind| world.entry("global", ID, kind).unwrap().ready().cloned();
        let caches = ModuleCaches {
            cfi: ready(Kind::CfiCache),
            symbols: ready(Kind::SymCache),
        };
        let instance = world.another_instance();
        let unwinding = instance.service().unwinding(vec![caches]);
        let module = MinidumpModule::new(self.base, 0x10000, "made-up");
        let modules = MinidumpModuleList::from_modules(vec![module]);
        let memory = memory_at(self.top, &self.bytes);
        let context = MinidumpContext {
            raw: self.registers,
            valid: MinidumpContextValidity::All,
        };
        let stack = Stack {
            context: &context,
            memory: Some(UnifiedMemory::Memory(&memory)),
        };
        let walker = StackWalker::new(&unwinding, &modules, &self.system);
        Box::pin(walker.walk(stack)).await
    }
}

/// Walks a stack of these words, with the registers of its topmost frame.
async fn walked(
    records: &str,
    registers: CONTEXT_AMD64,
    words: &[u64],
) -> (Vec<WalkedFrame>, WalkEnd) {
    let stack = OneStack {
        file: symbol_file("Linux x86_64", records),
        system: system(),
        base: BASE,
        registers: MinidumpRawContext::Amd64(CONTEXT_AMD64 {
            rsp: TOP,
            ..registers
        }),
        top: TOP,
        bytes: words.iter().copied().flat_map(u64::to_le_bytes).collect(),
    };
    stack.walked().await
}

/// Returns a stack of these words on a 32-bit machine.
fn narrow(
    os: Os,
    cpu: Cpu,
    (machine, records): (&str, &str),
    registers: MinidumpRawContext,
    words: &[u32],
) -> OneStack {
    OneStack {
        file: symbol_file(machine, records),
        system: SystemInfo {
            os,
            cpu,
            ..system()
        },
        base: NARROW_BASE.into(),
        registers,
        top: NARROW_TOP.into(),
        bytes: words.iter().copied().flat_map(u32::to_le_bytes).collect(),
    }
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
async fn the_function_that_called_data_is_not_skipped() {
    let words = [BASE + 0x1010, 1, 2, TOP + 40, BASE + 0x2010, 3];
    let walked_from = async |rip| {
        let registers = CONTEXT_AMD64 {
            rip,
            rbp: TOP + 24,
            ..CONTEXT_AMD64::default()
        };
        let (frames, end) = walked(WITH_FRAME_POINTER, registers, &words).await;
        assert_eq!(end, WalkEnd::Complete);
        addresses(&frames)
    };
    // Neither unwind information nor a function covers it.
    let data = BASE + 0x9000;
    let expected = [data, BASE + 0x1010, BASE + 0x2010];
    assert_eq!(walked_from(data).await, expected);
    // A function without unwind information has a frame of its own.
    let code = BASE + 0x3010;
    assert_eq!(walked_from(code).await, [code, BASE + 0x2010]);
}

#[tokio::test(start_paused = true)]
async fn the_function_that_called_null_on_32_bit_arm_is_in_the_link_register() {
    const RECORDS: &str = "\
STACK CFI INIT 1000 100 .cfa: sp 8 + .ra: .cfa 4 - ^
STACK CFI INIT 2000 100 .cfa: sp 8 + .ra: .undef
";
    // Instructions of Thumb have two bytes, others four.
    for (mark, length) in [(1, 2), (0, 4)] {
        let mut registers = CONTEXT_ARM::default();
        registers.iregs[13] = NARROW_TOP;
        registers.iregs[14] = (NARROW_BASE + 0x1010) | mark;
        let registers = MinidumpRawContext::Arm(registers);
        let words = [5, NARROW_BASE + 0x2010, 6];
        let file = ("Linux arm", RECORDS);
        let stack = narrow(Os::Linux, Cpu::Arm, file, registers, &words);
        let (frames, end) = stack.walked().await;
        let base = u64::from(NARROW_BASE);
        let expected = [0, base + 0x1010, base + 0x2010];
        assert_eq!(addresses(&frames), expected, "{frames:x?}");
        assert_eq!(frames[1].instruction, base + 0x1010 - length);
        assert_eq!(end, WalkEnd::Complete);
    }
}

/// Functions of 32-bit Windows without frame pointers. The first saves a register and has a
/// parameter. The second has a parameter, too, and the third has none.
const WITHOUT_FRAME_POINTER: &str = "\
STACK WIN 4 1000 100 0 0 4 4 0 0 1 $T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + =
STACK WIN 4 2000 100 0 0 4 0 0 0 1 $T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + =
STACK WIN 4 3000 100 0 0 0 0 0 0 1 $T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + =
";

#[tokio::test(start_paused = true)]
async fn the_parameters_of_null_are_not_in_the_frame_of_the_function_that_called_it() {
    for parameters in 0..4 {
        let mut words = vec![NARROW_BASE + 0x1010];
        words.extend(std::iter::repeat_n(7, parameters));
        // The saved register, and the parameters of the callers.
        words.extend([8, NARROW_BASE + 0x2010, 5, NARROW_BASE + 0x3010, 1]);
        words.extend([0; 4]);
        let registers = MinidumpRawContext::X86(CONTEXT_X86 {
            esp: NARROW_TOP,
            ebp: NARROW_TOP + 0x1000,
            ..CONTEXT_X86::default()
        });
        let file = ("windows x86", WITHOUT_FRAME_POINTER);
        let stack = narrow(Os::Windows, Cpu::X86, file, registers, &words);
        let (frames, end) = stack.walked().await;
        let base = u64::from(NARROW_BASE);
        let expected = [0, base + 0x1010, base + 0x2010, base + 0x3010];
        assert_eq!(addresses(&frames), expected, "{parameters}: {frames:x?}");
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
/// a record on the stack. A function at 0x5000 pushes one word first, and one at 0x6000 runs on
/// another stack than its caller.
const WITH_SIGNAL: &str = "\
STACK CFI INIT 2000 100 .cfa: $rsp 8 + .ra: .undef
STACK CFI INIT 3000 100 .cfa: $rsp 8 + .ra: .cfa 8 - ^
STACK CFI INIT 3fff 9 .cfa: $rsp 8 + ^ .ra: $rsp ^ $rsp: $rsp 8 + ^ $rbp: $rsp 16 + ^
STACK CFI INIT 4f00 100 .cfa: $rsp 800 + .ra: .cfa 8 - ^
STACK CFI INIT 5000 100 .cfa: $rsp 8 + .ra: .cfa 8 - ^
STACK CFI 5001 .cfa: $rsp 16 +
STACK CFI INIT 6000 100 .cfa: $rsp 8 + ^ .ra: $rsp ^
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

/// As `symbolic` writes the record of `_sigtramp` of macOS, which is at 0x4000 here: `rbx` has the
/// address of a record of the system, which has that of the stored registers. The handler is at
/// 0x3000, and the function that was interrupted, at 0x5000, pushes one word first.
const WITH_SIGTRAMP: &str = "\
STACK CFI INIT 2000 100 .cfa: $rsp 8 + .ra: .undef
STACK CFI INIT 3000 100 .cfa: $rsp 8 + .ra: .cfa 8 - ^
STACK CFI INIT 4000 100 $rbx: $rbx 48 + ^ 24 + ^ $rbp: $rbx 48 + ^ 64 + ^ .cfa: $rbx 48 + ^ 72 + ^ .ra: $rbx 48 + ^ 144 + ^
STACK CFI INIT 5000 100 .cfa: $rsp 8 + .ra: .cfa 8 - ^
STACK CFI 5001 .cfa: $rsp 16 +
";

#[tokio::test(start_paused = true)]
async fn a_function_that_a_signal_interrupted_on_macos_is_at_its_instruction() {
    // At the first instruction of a function, and behind its push.
    for (offset, pushed) in [(0, 0), (1, 1)] {
        let interrupted = BASE + 0x5000 + offset;
        // The handler returns to `_sigtramp`. The address of the registers is 48 bytes behind that
        // of the record of the system.
        let (record, registers) = (TOP + 8, TOP + 64);
        let stack = TOP + 8 * (28 - pushed);
        let mut words = [0; 30];
        words[0] = BASE + 0x4010;
        words[7] = registers;
        words[8 + 72 / 8] = stack;
        words[8 + 144 / 8] = interrupted;
        words[28] = BASE + 0x2010;
        let handler = CONTEXT_AMD64 {
            rip: BASE + 0x3010,
            rbx: record,
            ..CONTEXT_AMD64::default()
        };
        let (frames, end) = walked(WITH_SIGTRAMP, handler, &words).await;
        let expected = [BASE + 0x3010, BASE + 0x4010, interrupted, BASE + 0x2010];
        assert_eq!(addresses(&frames), expected, "{frames:x?}");
        assert_eq!(frames[2].instruction, interrupted);
        assert_eq!((frames[2].is_exact, frames[3].is_exact), (true, false));
        assert_eq!(end, WalkEnd::Complete);
    }
}

/// The address of the stack of handlers.
const OTHER_TOP: u64 = 0x6000_0000_0000;

/// Walks the stack of the first thread of a minidump in which each thread has an instruction
/// pointer, and a stack of these words at an address. Returns the address of each frame, and
/// whether it is marked as a return address.
async fn walked_in_dump(
    threads: &[(u64, u64, &[u64])],
    all_memory: bool,
) -> Vec<(u64, Option<bool>)> {
    let mut dump = MadeUpDump {
        modules: vec![MadeUpModule {
            address: BASE,
            size: 0x10000,
            name: "made-up".to_owned(),
            debug_id: ID.parse().unwrap(),
            ..MadeUpModule::default()
        }],
        ..MadeUpDump::default()
    };
    for (index, (rip, address, words)) in threads.iter().enumerate() {
        dump.stacks.push(MadeUpStack {
            address: *address,
            bytes: words.iter().copied().flat_map(u64::to_le_bytes).collect(),
        });
        dump.threads.push(MadeUpThread {
            id: u32::try_from(index).unwrap() + 1,
            stack: index,
            rip: *rip,
            rsp: *address,
            ..MadeUpThread::default()
        });
    }
    let file = dump.file();
    let file = if all_memory {
        full_dump(&file, 64)
    } else {
        file
    };
    let request = MinidumpForm {
        file: file.into(),
        fields: CrashFields::default(),
    };
    let world = with_file(symbol_file("Linux x86_64", WITH_SIGNAL)).await;
    let walked = Box::pin(walk(&world, &request, Duration::ZERO)).await;
    let WalkOutcome::Walked(report, _) = walked.unwrap() else {
        panic!("the walks are not complete");
    };
    let frames = report.request.stacktraces[0].frames.iter();
    frames
        .map(|frame| (frame.instruction_addr.0, frame.adjust_instruction_addr))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_walk_continues_on_the_stack_that_a_handler_with_its_own_interrupted() {
    let (handler, trampoline, interrupted) = (BASE + 0x3010, BASE + 0x4000, BASE + 0x5001);
    let own = [trampoline, interrupted, TOP, 5];
    let other = [6, BASE + 0x2010, 9];
    for all_memory in [false, true] {
        let threads: [(u64, u64, &[u64]); 2] =
            [(handler, OTHER_TOP, &own), (BASE + 0x2010, TOP, &other)];
        let expected = [
            (handler, Some(false)),
            (trampoline, Some(false)),
            (interrupted, Some(false)),
            (BASE + 0x2010, None),
        ];
        assert_eq!(walked_in_dump(&threads, all_memory).await, expected);
        // Without the other stack.
        let found = walked_in_dump(&threads[..1], all_memory).await;
        assert_eq!(found, expected[..3]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_walk_ends_at_the_end_of_a_stack_although_another_begins_there() {
    let (handler, caller) = (BASE + 0x3010, BASE + 0x1010);
    let threads: [(u64, u64, &[u64]); 2] = [
        (handler, OTHER_TOP, &[caller]),
        (BASE + 0x2010, OTHER_TOP + 8, &[BASE + 0x2010, 9]),
    ];
    for all_memory in [false, true] {
        let expected = [(handler, None), (caller, None)];
        assert_eq!(walked_in_dump(&threads, all_memory).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_walk_continues_in_a_limited_number_of_regions() {
    let function = BASE + 0x6010;
    let address = |number: u64| OTHER_TOP + 0x1000 * number;
    // Each stack has one frame, and leads to the next one.
    let stacks: Vec<[u64; 2]> = (1..=20).map(|next| [function, address(next)]).collect();
    for all_memory in [false, true] {
        for (regions, frames) in [
            (MAX_REGIONS, MAX_REGIONS + 1),
            (MAX_REGIONS + 1, MAX_REGIONS + 2),
            (20, MAX_REGIONS + 2),
        ] {
            let threads: Vec<(u64, u64, &[u64])> = (0..)
                .zip(&stacks[..regions])
                .map(|(number, words)| (function, address(number), &words[..]))
                .collect();
            let found = walked_in_dump(&threads, all_memory).await;
            assert_eq!(found.len(), frames, "{regions} regions: {found:x?}");
        }
    }
}
