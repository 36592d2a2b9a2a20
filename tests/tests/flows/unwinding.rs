//! Stacks of minidumps, walked with CFI caches that are read slice by slice.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use minidump::format::{CONTEXT_AMD64, CONTEXT_ARM64, MINIDUMP_MEMORY_DESCRIPTOR};
use minidump::system_info::{Cpu, Os};
use minidump::{
    CpuContext, Endian, Minidump, MinidumpContext, MinidumpContextValidity, MinidumpMemory,
    MinidumpModule, MinidumpModuleList, MinidumpRawContext, MinidumpSystemInfo, MinidumpThreadList,
    Module, UnifiedMemory, UnifiedMemoryList,
};
use minidump_unwind::{
    CallStack, FrameTrust, Symbolizer, SystemInfo, string_symbol_supplier, walk_stack,
};
use symbolic::cfi::CfiCache;
use symbolic::debuginfo::Object;
use symdepot::cache::Kind;
use symdepot::debuginfo::{Bounds, CfiRecords};
use symdepot::flows::unwinding::{CfiReader, ModuleCaches};
use symdepot::unwind::{
    KnownUnwinding, MAX_FRAMES, MAX_LATER, MAX_PREFETCHED, ModuleCfi, Stack, StackWalker,
    UnwindInfo, WalkEnd, pointed_at, walk,
};
use symdepot_tests::harness::{World, fixture};

use crate::slices::make_whole;
use crate::{CRASH, INVENTORY};

pub(crate) fn system() -> SystemInfo {
    SystemInfo {
        os: Os::Linux,
        os_version: None,
        os_build: None,
        cpu: Cpu::X86_64,
        cpu_info: None,
        cpu_microcode_version: None,
        cpu_count: 1,
    }
}

/// Returns the memory at an address.
pub(crate) fn memory_at(address: u64, bytes: &[u8]) -> MinidumpMemory<'_> {
    MinidumpMemory {
        desc: MINIDUMP_MEMORY_DESCRIPTOR::default(),
        base_address: address,
        size: bytes.len() as u64,
        bytes,
        endian: Endian::Little,
    }
}

/// The only stack of a minidump, and the inputs of a walk of it.
pub(crate) struct Dump {
    minidump: Minidump<'static, Bytes>,
    modules: MinidumpModuleList,
}

impl Dump {
    pub(crate) fn of(name: &str) -> Self {
        let minidump = Minidump::read(fixture(&format!("minidump/{name}.dmp"))).unwrap();
        let modules = minidump.get_stream().unwrap();
        Self { minidump, modules }
    }

    fn with_stack<T>(&self, show: impl FnOnce(MinidumpContext, UnifiedMemory<'_, '_>) -> T) -> T {
        let system: MinidumpSystemInfo = self.minidump.get_stream().unwrap();
        let threads: MinidumpThreadList<'_> = self.minidump.get_stream().unwrap();
        let thread = &threads.threads[0];
        let context = thread.context(&system, None).unwrap().into_owned();
        show(
            context,
            thread.stack_memory(&UnifiedMemoryList::default()).unwrap(),
        )
    }

    /// Walks the stack with the slices that were read.
    fn walk(&self, info: &dyn UnwindInfo) -> CallStack {
        let (modules, system) = (&self.modules, system());
        self.with_stack(|context, memory| {
            futures::executor::block_on(walk(info, modules, &system, context, Some(memory)))
        })
    }

    /// Walks the stack as the walker itself does, with a whole CFI cache of a module that
    /// `symbolic` made.
    pub(crate) fn walk_plainly(&self, name: &str) -> CallStack {
        let dif = fixture(&format!("elf/{name}"));
        let cache = CfiCache::from_object(&Object::parse(&dif).unwrap()).unwrap();
        let records = String::from_utf8(cache.as_slice().to_vec()).unwrap();
        let symbolizer = Symbolizer::new(string_symbol_supplier(HashMap::from([(
            name.to_owned(),
            records,
        )])));
        let (modules, system) = (&self.modules, system());
        self.with_stack(|context, memory| {
            let mut stack = CallStack::with_context(context);
            let memory = Some(memory);
            let walked = walk_stack(0, (), &mut stack, memory, modules, &system, &symbolizer);
            futures::executor::block_on(walked);
            stack
        })
    }
}

/// Describes each frame of a walk: its address, its trust, and all registers. Leaves out the
/// guessed frames at the end: on its own, the walker guesses by function records, which a CFI cache
/// does not have.
fn described(stack: &CallStack) -> Vec<String> {
    let frame = |frame: &minidump_unwind::StackFrame| {
        let context = &frame.context;
        let mut registers: Vec<_> = context.valid_registers().collect();
        registers.sort_unstable();
        format!("{:x} {:?} {registers:x?}", frame.instruction, frame.trust)
    };
    let frames = stack.frames.iter();
    let found = frames.take_while(|frame| frame.trust != FrameTrust::Scan);
    found.map(frame).collect()
}

/// Returns the caches of the modules of a minidump; a world has those of one of them.
fn caches(world: &World, modules: &MinidumpModuleList, name: &str, id: &str) -> Vec<ModuleCaches> {
    let ready = |kind| {
        let entry = world.entry("global", id, kind)?;
        entry.ready().cloned()
    };
    modules
        .iter()
        .map(|module| {
            if &*module.code_file() == name {
                ModuleCaches {
                    cfi: ready(Kind::CfiCache),
                    symbols: ready(Kind::SymCache),
                }
            } else {
                ModuleCaches::default()
            }
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_walk_with_slices_equals_one_with_the_whole_cache_and_the_debugger() {
    for (name, id) in [("crash", CRASH), ("inventory", INVENTORY)] {
        let world = World::new();
        world
            .upload(&format!("global/{name}"), &format!("elf/{name}"))
            .await;
        let dump = Dump::of(name);
        let instance = world.another_instance();
        let modules = caches(&world, &dump.modules, name, id);
        let unwinding = instance.service().unwinding(modules);
        let stack = dump.walk(&unwinding);
        let found = described(&stack);
        assert_eq!(found, described(&dump.walk_plainly(name)), "{name}");

        let by_gdb = fixture(&format!("expected/minidump-{name}.gdb.json"));
        let by_gdb: Vec<u64> = serde_json::from_slice(&by_gdb).unwrap();
        let module = dump
            .modules
            .iter()
            .find(|module| &*module.code_file() == name);
        let (base, size) = module
            .map(|module| (module.base_address(), module.size()))
            .unwrap();
        let in_module = |address: &u64| (base..base + size).contains(address);
        let expected: Vec<u64> = by_gdb.into_iter().take_while(in_module).collect();
        let found = stack.frames.iter().map(|frame| frame.resume_address);
        let found: Vec<u64> = found.take(expected.len()).collect();
        assert_eq!(found, expected, "{name}");
        let by_rules = stack.frames.iter().skip(1).take(expected.len() - 1);
        assert!(by_rules.clone().count() > 1);
        assert!(
            by_rules
                .clone()
                .all(|frame| frame.trust == FrameTrust::CallFrameInfo),
            "{name}: {:?}",
            described(&stack)
        );
        // The blobs are small: each is read once. The SymCache is read only if a frame has to be
        // guessed.
        let counts = unwinding.counts();
        assert!((1..=2).contains(&counts.reads), "{name}: {counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_of_the_earlier_version_unwinds_as_well() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    make_whole(&world, Kind::CfiCache).await;
    let dump = Dump::of("crash");
    let modules = caches(&world, &dump.modules, "crash", CRASH);
    assert_eq!(modules[0].cfi.as_ref().unwrap().version, 1);
    let unwinding = world.service().unwinding(modules);
    assert_eq!(
        described(&dump.walk(&unwinding)),
        described(&dump.walk_plainly("crash"))
    );
}

#[tokio::test(start_paused = true)]
async fn without_caches_a_stack_is_scanned() {
    let dump = Dump::of("crash");
    let world = World::new();
    let unwinding = world.service().unwinding(Vec::new());
    let stack = dump.walk(&unwinding);
    assert!(stack.frames.len() > 1);
    let by_rules = |frame: &minidump_unwind::StackFrame| frame.trust == FrameTrust::CallFrameInfo;
    assert!(!stack.frames.iter().any(by_rules));
    assert_eq!(unwinding.counts().reads, 0);
}

#[tokio::test(start_paused = true)]
async fn a_walk_ends_where_it_needs_a_cache_that_cannot_be_read() {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    let dump = Dump::of("crash");
    let modules = caches(&world, &dump.modules, "crash", CRASH);
    let path = &modules[0].cfi.as_ref().unwrap().blob.path;
    let mut damaged = world.caches.peek(path).unwrap().to_vec();
    damaged[40] ^= 1;
    world.caches.overwrite(path, damaged);
    let instance = world.another_instance();
    let damaged = instance.service().unwinding(modules);
    let system = system();
    let walker = StackWalker::new(&damaged, &dump.modules, &system);
    let end = dump.with_stack(|context, memory| {
        let stack = Stack {
            context: &context,
            memory: Some(memory),
        };
        futures::executor::block_on(walker.walk(stack)).1
    });
    assert_eq!(end, WalkEnd::Undecided(0));
}

/// The number of functions in the large module.
const FUNCTIONS: u64 = 120_000;

/// The size of each of them, in bytes.
const FUNCTION_BYTES: u64 = 0x20;

/// The address of the large module.
const BASE: u64 = 0x5555_0000_0000;

const STACK: u64 = 0x7fff_0000_0000;

const LARGE: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";

/// A Breakpad file of functions that save one word each, so that each frame has two words.
fn large_file() -> Vec<u8> {
    let mut text = "MODULE Linux x86_64 502FC0A51EC13E479998684FA139DCA70 large\n".to_owned();
    for number in 0..FUNCTIONS {
        let start = number * FUNCTION_BYTES;
        let _ = writeln!(
            text,
            "FUNC {start:x} {FUNCTION_BYTES:x} 0 function_{number}"
        );
    }
    for number in 0..FUNCTIONS {
        let start = number * FUNCTION_BYTES;
        let _ = writeln!(
            text,
            "STACK CFI INIT {start:x} {FUNCTION_BYTES:x} .cfa: $rsp 16 + .ra: .cfa 8 - ^"
        );
        // No two are equal, otherwise they would compress to nothing.
        let offset = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let _ = writeln!(text, "STACK CFI {:x} $rbx: {offset}", start + 4);
    }
    text.into_bytes()
}

/// Counts the requests of a walk for slices.
struct Counting<'a> {
    inner: &'a CfiReader<'a>,
    asked: AtomicUsize,
}

#[async_trait]
impl UnwindInfo for Counting<'_> {
    async fn cfi(&self, module: usize, addresses: &[u64]) -> Option<ModuleCfi> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.inner.cfi(module, addresses).await
    }

    async fn is_in_function(&self, module: usize, address: u64) -> Option<bool> {
        self.inner.is_in_function(module, address).await
    }
}

/// A call stack of these functions, innermost first: its words, and the addresses of its frames.
fn stack_of(functions: &[u64]) -> (Vec<u8>, Vec<u64>) {
    let within = |function: &u64| BASE + function * FUNCTION_BYTES + 0x10;
    let addresses: Vec<u64> = functions.iter().map(within).collect();
    let words = addresses.iter().skip(1).flat_map(|caller| [7, *caller]);
    let words = words.chain([7, 0]);
    (words.flat_map(u64::to_le_bytes).collect(), addresses)
}

/// Walks a stack in the large module. Returns the frames and the number of requests.
async fn walked(unwinding: &CfiReader<'_>, functions: &[u64]) -> (Vec<u64>, usize) {
    let (bytes, addresses) = stack_of(functions);
    let memory = memory_at(STACK, &bytes);
    let context = MinidumpContext {
        raw: MinidumpRawContext::Amd64(CONTEXT_AMD64 {
            rip: addresses[0],
            rsp: STACK,
            ..CONTEXT_AMD64::default()
        }),
        valid: MinidumpContextValidity::All,
    };
    let modules = large_module();
    let counting = Counting {
        inner: unwinding,
        asked: AtomicUsize::new(0),
    };
    let memory = Some(UnifiedMemory::Memory(&memory));
    let stack = walk(&counting, &modules, &system(), context, memory).await;
    let frames = stack.frames.iter().map(|frame| frame.resume_address);
    (frames.collect(), counting.asked.into_inner())
}

async fn with_large_module() -> World {
    let world = World::new();
    let event = world.put("global/large.sym", large_file());
    world.deliver(&event).await.unwrap();
    world.settle().await;
    world
}

fn large(world: &World) -> Vec<ModuleCaches> {
    let entry = world.entry("global", LARGE, Kind::CfiCache).unwrap();
    vec![ModuleCaches {
        cfi: entry.ready().cloned(),
        symbols: None,
    }]
}

/// Functions that are far apart.
fn spread(count: u64) -> Vec<u64> {
    (0..count).map(|n| n * 7919 % FUNCTIONS).collect()
}

#[tokio::test(start_paused = true)]
async fn the_slices_of_a_stack_are_read_at_once_before_it_is_walked() {
    let world = with_large_module().await;
    let instance = world.another_instance();
    let unwinding = instance.service().unwinding(large(&world));
    let functions = spread(30);
    let (frames, asked) = walked(&unwinding, &functions).await;
    assert_eq!(frames, stack_of(&functions).1);
    // One request for the slices of all words, and no further one.
    assert_eq!(asked, 1);
    let counts = unwinding.counts();
    assert!((10..=31).contains(&counts.reads), "{counts:?}");
    let blob = large(&world)[0].cfi.clone().unwrap().blob;
    assert!(blob.bytes > 1 << 20, "{blob:?}");
    assert!(counts.bytes * 3 < blob.bytes * 2, "{counts:?} of {blob:?}");

    let again = instance.service().unwinding(large(&world));
    assert_eq!(walked(&again, &functions).await.0, frames);
    assert_eq!(again.counts().reads, 0, "slices are cached");
}

#[tokio::test(start_paused = true)]
async fn a_deep_stack_is_prefetched_from_its_top_and_then_read_within_bounds() {
    let world = with_large_module().await;
    let instance = world.another_instance();
    let unwinding = instance.service().unwinding(large(&world));
    let functions = spread(2 * MAX_PREFETCHED as u64);
    let (frames, asked) = walked(&unwinding, &functions).await;
    assert_eq!(frames, stack_of(&functions).1[..frames.len()]);
    assert_eq!(frames.len(), MAX_FRAMES);
    assert!(asked <= 1 + MAX_LATER, "{asked}");
    // Each slice once, and the index.
    assert!(
        unwinding.counts().reads <= 1 + FUNCTIONS.div_ceil(Bounds::CURRENT.ranges as u64),
        "{:?}",
        unwinding.counts()
    );
}

/// A stack in the large module.
struct MadeUpStack {
    context: MinidumpContext,
    bytes: Vec<u8>,
}

impl MadeUpStack {
    fn new(address: u64, words: impl Iterator<Item = u64>) -> Self {
        Self {
            context: MinidumpContext {
                raw: MinidumpRawContext::Amd64(CONTEXT_AMD64 {
                    rip: address,
                    rsp: STACK,
                    ..CONTEXT_AMD64::default()
                }),
                valid: MinidumpContextValidity::All,
            },
            bytes: words.flat_map(u64::to_le_bytes).collect(),
        }
    }

    /// Walks it without having read anything before. Returns the addresses of the frames.
    async fn walk(&self, walker: &StackWalker<'_>) -> (Vec<u64>, WalkEnd) {
        let memory = memory_at(STACK, &self.bytes);
        let stack = Stack {
            context: &self.context,
            memory: Some(UnifiedMemory::Memory(&memory)),
        };
        let (frames, end) = walker.walk(stack).await;
        (frames.iter().map(|frame| frame.address).collect(), end)
    }
}

fn large_module() -> MinidumpModuleList {
    let size = u32::try_from(FUNCTIONS * FUNCTION_BYTES).unwrap();
    MinidumpModuleList::from_modules(vec![MinidumpModule::new(BASE, size, "large")])
}

/// Pointer authentication puts a signature above the bits of a return address.
#[test]
fn the_modules_of_signed_return_addresses_on_arm_are_prefetched() {
    const MODULE: u64 = 0xffff_8000_0000;
    const TOP: u64 = 0xffff_f000_0000;
    const SIGNATURE: u64 = 0x002b << 48;
    let module = MinidumpModule::new(MODULE, 0x10000, "made-up");
    let modules = MinidumpModuleList::from_modules(vec![module]);
    let words = [SIGNATURE | (MODULE + 0x1011), MODULE + 0x2011, SIGNATURE];
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let memory = memory_at(TOP, &bytes);
    let context = MinidumpContext {
        raw: MinidumpRawContext::Arm64(CONTEXT_ARM64 {
            pc: MODULE + 0x3011,
            sp: TOP,
            ..CONTEXT_ARM64::default()
        }),
        valid: MinidumpContextValidity::All,
    };
    let stack = Stack {
        context: &context,
        memory: Some(UnifiedMemory::Memory(&memory)),
    };
    let found = |cpu| {
        let system = SystemInfo { cpu, ..system() };
        let mut found = pointed_at(&[stack], &modules, &system);
        let of_module = found.remove(&0).unwrap_or_default();
        of_module.into_iter().collect::<Vec<u64>>()
    };
    assert_eq!(found(Cpu::Arm64), [0x1010, 0x2010, 0x3010]);
    // On other machines, all bits are those of an address.
    assert_eq!(found(Cpu::X86_64), [0x2010, 0x3010]);
}

/// Unwind information in which each address is a part of its own, so that each is read for itself.
struct Apart {
    records: CfiRecords,
    cfi: AtomicUsize,
    functions: AtomicUsize,
}

impl Apart {
    /// Returns unwind information for the first functions of the large module.
    async fn of_first_functions() -> Self {
        let world = with_large_module().await;
        let unwinding = world.service().unwinding(large(&world));
        let ModuleCfi(parts) = unwinding.cfi(0, &[0x10]).await.unwrap();
        let [(addresses, records)] = &*parts else {
            panic!("{parts:?}");
        };
        assert!(addresses.start <= 0x10 && addresses.end > MAX_FRAMES as u64 * FUNCTION_BYTES);
        assert!(!records.cover(FAR * FUNCTION_BYTES));
        Self {
            records: records.clone(),
            cfi: AtomicUsize::new(0),
            functions: AtomicUsize::new(0),
        }
    }

    /// Returns the reads of unwind information, and those of functions.
    fn reads(&self) -> (usize, usize) {
        let [cfi, functions] =
            [&self.cfi, &self.functions].map(|reads| reads.load(Ordering::Relaxed));
        (cfi, functions)
    }
}

#[async_trait]
impl UnwindInfo for Apart {
    async fn cfi(&self, _: usize, addresses: &[u64]) -> Option<ModuleCfi> {
        self.cfi.fetch_add(addresses.len(), Ordering::Relaxed);
        let parts = addresses
            .iter()
            .map(|address| (*address..address + 1, self.records.clone()));
        Some(ModuleCfi(parts.collect()))
    }

    async fn is_in_function(&self, _: usize, _: u64) -> Option<bool> {
        self.functions.fetch_add(1, Ordering::Relaxed);
        Some(false)
    }
}

/// A function that the first part of the unwind information does not cover.
const FAR: u64 = 100_000;

#[tokio::test(start_paused = true)]
async fn all_walks_together_read_later_within_one_limit() {
    let (modules, system) = (large_module(), system());
    let info = Apart::of_first_functions().await;
    let known = KnownUnwinding::default();
    // The same functions in each stack, at other addresses.
    let frames: Vec<Vec<u64>> = (0..4)
        .map(|stack| {
            (0..MAX_FRAMES as u64).map(move |function| BASE + function * FUNCTION_BYTES + 8 + stack)
        })
        .map(Iterator::collect)
        .collect();
    let stacks: Vec<MadeUpStack> = frames
        .iter()
        .map(|frames| {
            MadeUpStack::new(
                frames[0],
                frames[1..].iter().flat_map(|caller| [7, *caller]),
            )
        })
        .collect();
    let mut walked = Vec::new();
    for stack in &stacks {
        // A walker for each, as for walks that are repeated after builds.
        let walker = StackWalker::new(&info, &modules, &system).continuing(&known);
        walked.push(stack.walk(&walker).await.0);
    }
    assert_eq!(walked[..2], frames[..2]);
    assert!(walked[2..].iter().all(|frames| !frames.is_empty()));
    assert_eq!(info.reads(), (MAX_LATER, 0));
    assert!(known.reads_refused() > 0);
    // What was read is known.
    let walker = StackWalker::new(&info, &modules, &system).continuing(&known);
    let refused = known.reads_refused();
    assert_eq!(
        stacks[0].walk(&walker).await,
        (frames[0].clone(), WalkEnd::Cut)
    );
    assert_eq!(
        (info.reads(), known.reads_refused()),
        ((MAX_LATER, 0), refused)
    );
}

#[tokio::test(start_paused = true)]
async fn reads_of_functions_count_as_reads_of_unwind_information() {
    let (modules, system) = (large_module(), system());
    let info = Apart::of_first_functions().await;
    let known = KnownUnwinding::default();
    let outside = 0x1000;
    let mut walked = Vec::new();
    for stack in 0..4 {
        // Words that may be return addresses, and are in no function.
        let words = (0..200).map(|word| BASE + (FAR + stack * 200 + word) * FUNCTION_BYTES);
        let stack = MadeUpStack::new(outside, words);
        let walker = StackWalker::new(&info, &modules, &system).continuing(&known);
        walked.push(stack.walk(&walker).await.0);
    }
    assert_eq!(walked[0], [outside], "each word is rejected");
    let (cfi, functions) = info.reads();
    assert_eq!(cfi + functions, MAX_LATER);
    assert_eq!(cfi, functions, "each word is read twice");
    assert!(known.reads_refused() > 0);
}

/// Panics when an address is read.
struct Panicking<'a> {
    inner: &'a CfiReader<'a>,
    at: u64,
}

#[async_trait]
impl UnwindInfo for Panicking<'_> {
    async fn cfi(&self, module: usize, addresses: &[u64]) -> Option<ModuleCfi> {
        assert!(!addresses.contains(&self.at), "told to panic");
        self.inner.cfi(module, addresses).await
    }

    async fn is_in_function(&self, module: usize, address: u64) -> Option<bool> {
        self.inner.is_in_function(module, address).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_walk_that_panics_keeps_its_frames_and_the_next_one_works() {
    const GOOD: usize = 5;
    let world = with_large_module().await;
    let unwinding = world.service().unwinding(large(&world));
    let (modules, system) = (large_module(), system());
    // They are so far apart that each is in another slice.
    let functions = spread(10);
    let (bytes, addresses) = stack_of(&functions);
    let stack = MadeUpStack {
        bytes,
        ..MadeUpStack::new(addresses[0], std::iter::empty())
    };
    // The walker looks a caller up by the address of its call.
    let info = Panicking {
        inner: &unwinding,
        at: addresses[GOOD] - 1 - BASE,
    };
    let walker = StackWalker::new(&info, &modules, &system);
    let (frames, end) = stack.walk(&walker).await;
    assert_eq!((&*frames, end), (&addresses[..=GOOD], WalkEnd::Panicked));
    let (bytes, addresses) = stack_of(&functions[GOOD + 1..]);
    let stack = MadeUpStack {
        bytes,
        ..MadeUpStack::new(addresses[0], std::iter::empty())
    };
    assert_eq!(stack.walk(&walker).await, (addresses, WalkEnd::Complete));
}

/// A Windows program that was run in an emulator (`tests/fixtures/unwinding.sh`).
struct Emulated {
    base: u64,
    machine: &'static Machine,
    steps: Vec<EmulatedStep>,
}

/// What the machines of these programs differ in.
struct Machine {
    cpu: Cpu,
    stack_pointer: &'static str,
    /// The registers that a function leaves as they were.
    preserved: &'static [&'static str],
}

const AMD64: Machine = Machine {
    cpu: Cpu::X86_64,
    stack_pointer: "rsp",
    preserved: &["rbx", "rbp", "rdi", "rsi", "r12", "r13", "r14", "r15"],
};

const ARM64: Machine = Machine {
    cpu: Cpu::Arm64,
    stack_pointer: "sp",
    preserved: &[
        "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29",
    ],
};

/// The state before an instruction.
struct EmulatedStep {
    at: u64,
    registers: BTreeMap<String, u64>,
    /// The words of the stack from its top on.
    top: u64,
    stack: Vec<u8>,
    /// The return addresses of the active functions, innermost first. The last is outside of the
    /// program.
    returns: Vec<u64>,
    /// The registers when each of these functions was called.
    at_calls: Vec<BTreeMap<String, u64>>,
    is_epilogue: bool,
}

impl Emulated {
    fn read(name: &str, machine: &'static Machine) -> Self {
        let whole = fixture(&format!("unwinding/{name}.json"));
        let whole: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        let number = |value: &serde_json::Value| {
            let text = value.as_str().unwrap();
            u64::from_str_radix(text, 16).unwrap()
        };
        let numbers = |value: &serde_json::Value| -> BTreeMap<String, u64> {
            let pairs = value.as_object().into_iter().flatten();
            pairs
                .map(|(name, value)| (name.clone(), number(value)))
                .collect()
        };
        let mut registers = BTreeMap::new();
        let mut memory = BTreeMap::new();
        let mut returns: Vec<u64> = Vec::new();
        let mut at_calls: Vec<BTreeMap<String, u64>> = Vec::new();
        let mut steps = Vec::new();
        for step in whole["steps"].as_array().unwrap() {
            let before = registers.clone();
            registers.extend(numbers(&step["registers"]));
            let written = numbers(&step["stack"]);
            memory.extend(
                written
                    .iter()
                    .map(|(at, word)| (u64::from_str_radix(at, 16).unwrap(), *word)),
            );
            if let Some(now) = step["returns"].as_array() {
                returns = now.iter().map(number).collect();
                at_calls.truncate(returns.len());
                if at_calls.len() < returns.len() {
                    at_calls.push(before);
                }
            }
            let top = registers[machine.stack_pointer];
            let end = memory.keys().next_back().unwrap() + 8;
            let words = (top..end).step_by(8);
            let word = |at: u64| memory.get(&at).copied().unwrap_or_default();
            steps.push(EmulatedStep {
                at: number(&step["at"]),
                registers: registers.clone(),
                top,
                stack: words.flat_map(|at| word(at).to_le_bytes()).collect(),
                returns: returns.clone(),
                at_calls: at_calls.iter().rev().cloned().collect(),
                is_epilogue: step["epilogue"].as_bool().unwrap_or_default(),
            });
        }
        Self {
            base: number(&whole["base"]),
            machine,
            steps,
        }
    }
}

impl EmulatedStep {
    fn context(&self, cpu: Cpu) -> MinidumpContext {
        fn set<C: CpuContext<Register = u64>>(mut context: C, step: &EmulatedStep) -> C {
            let at = context.instruction_pointer_register_name();
            context.set_register(at, step.at).unwrap();
            for (name, value) in &step.registers {
                context.set_register(name, *value).unwrap();
            }
            context
        }
        MinidumpContext {
            raw: match cpu {
                Cpu::Arm64 => MinidumpRawContext::Arm64(set(CONTEXT_ARM64::default(), self)),
                _ => MinidumpRawContext::Amd64(set(CONTEXT_AMD64::default(), self)),
            },
            valid: MinidumpContextValidity::All,
        }
    }

    /// Walks the stack, and returns what is wrong about it.
    async fn misread(
        &self,
        machine: &Machine,
        info: &dyn UnwindInfo,
        modules: &MinidumpModuleList,
    ) -> Option<String> {
        let memory = memory_at(self.top, &self.stack);
        let windows = SystemInfo {
            os: Os::Windows,
            cpu: machine.cpu,
            ..system()
        };
        let memory = Some(UnifiedMemory::Memory(&memory));
        let stack = walk(info, modules, &windows, self.context(machine.cpu), memory).await;
        let callers = &stack.frames[1..];
        let addresses: Vec<u64> = callers.iter().map(|frame| frame.resume_address).collect();
        let (_, expected) = self.returns.split_last().unwrap();
        if addresses != expected {
            return Some(format!("{addresses:x?} instead of {expected:x?}"));
        }
        for (frame, at_call) in callers.iter().zip(&self.at_calls) {
            if frame.trust != FrameTrust::CallFrameInfo {
                return Some(format!("{:x} is a guess", frame.resume_address));
            }
            for name in machine.preserved {
                let found = frame.context.get_register(name);
                if found != Some(at_call[*name]) {
                    let expected = at_call[*name];
                    return Some(format!("{name} is {found:x?} instead of {expected:x}"));
                }
            }
        }
        None
    }
}

/// Walks the stack before each instruction of a program. Returns the number of walks that were
/// right, and that of walks that were not, which are those of instructions of epilogues.
async fn walk_each_step(name: &str, machine: &'static Machine) -> (usize, usize) {
    let world = World::new();
    let key = "global/windows.exe";
    world.upload(key, &format!("unwinding/{name}.exe")).await;
    let entries = world.entries();
    let cfi = entries.iter().find(|entry| entry.kind() == Kind::CfiCache);
    let caches = ModuleCaches {
        cfi: cfi.unwrap().ready().cloned(),
        ..ModuleCaches::default()
    };
    let instance = world.another_instance();
    let unwinding = instance.service().unwinding(vec![caches]);
    let emulated = Emulated::read(name, machine);
    let module = MinidumpModule::new(emulated.base, 0x8000, "windows.exe");
    let modules = MinidumpModuleList::from_modules(vec![module]);
    let (mut right, mut epilogues) = (0, 0);
    for step in &emulated.steps {
        let misread = step.misread(emulated.machine, &unwinding, &modules).await;
        match misread {
            None => right += 1,
            Some(_) if step.is_epilogue => epilogues += 1,
            Some(wrong) => panic!("{name} at {:x}: {wrong}", step.at - emulated.base),
        }
    }
    (right, epilogues)
}

#[tokio::test(start_paused = true)]
async fn each_instruction_of_a_windows_program_is_unwound_but_those_of_epilogues() {
    let (right, epilogues) = walk_each_step("windows-x64", &AMD64).await;
    // Only the instructions themselves show that a function is about to return.
    assert!(right > 450 && epilogues < 60, "{right} {epilogues}");
}

#[tokio::test(start_paused = true)]
async fn each_instruction_of_a_windows_program_on_arm_is_unwound() {
    for name in ["windows-arm64", "windows-arm64-frames"] {
        let (right, epilogues) = walk_each_step(name, &ARM64).await;
        assert!(right > 300 && epilogues == 0, "{name}: {right} {epilogues}");
    }
}
