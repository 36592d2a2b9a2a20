//! Unwinds the stacks of a minidump into frames, using CFI caches in slices.
//!
//! [`dump`] reads the minidump. The walker of `minidump-unwind` finds a frame only after it has
//! unwound the previous one. If each frame requested its slice, there would be as many sequential
//! reads as frames. However, every return address is a word on the stack. Before a walk, the slices
//! of all words that point into a module are therefore read in parallel, up to [`MAX_PREFETCHED`]
//! addresses. Everything else that the walks need is read on demand, at most [`MAX_LATER`] times in
//! all walks of a minidump ([`KnownUnwinding`]). Beyond that, and without unwind information, the
//! walker falls back to frame pointers and scanning.
//!
//! A walk that needs information which is still being built does not fall back: it ends, and is
//! repeated when the information is there.
//!
//! A stack may continue in another region of memory: handlers of signals have stacks of their own.
//! The walker knows one region, so the walk is continued in the next one ([`StackWalker::within`]).

pub mod dump;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
mod info;
mod provider;

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use minidump::format::ArmRegisterNumbers;
use minidump::system_info::{Cpu, PointerWidth};
use minidump::{MinidumpContext, MinidumpModuleList, MinidumpRawContext, Module, UnifiedMemory};
use minidump_unwind::{CallStack, FrameTrust as WalkedTrust, StackFrame, SystemInfo, walk_stack};

use self::dump::{Dump, StackPart};
use self::info::end_walk;
pub use self::info::{MAX_FRAMES, MAX_LATER, ModuleCfi, UnwindInfo, WalkEnd};
pub use self::provider::KnownUnwinding;
use self::provider::StackWalk;
use crate::api::symbolicator::FrameTrust;

/// The most addresses of a stack whose slices are prefetched: those nearest to its top.
pub const MAX_PREFETCHED: usize = 512;

/// The most addresses of all stacks together whose slices are prefetched.
pub const MAX_ALL_PREFETCHED: usize = 4_096;

/// The most regions of memory that a walk continues in, after that of its thread. A handler of a
/// signal with a stack of its own adds one, as does a fiber or a coroutine that runs another one.
/// In a damaged file, every frame may lead to another region.
pub const MAX_REGIONS: usize = 8;

/// The fewest addresses of a stack that are prefetched, until [`MAX_ALL_PREFETCHED`] is reached.
const MIN_PREFETCHED: usize = 64;

/// The stack of a thread, and where its walk begins.
#[derive(Clone, Copy, Debug)]
pub struct Stack<'a> {
    /// The registers of the topmost frame.
    pub context: &'a MinidumpContext,
    /// The memory; without it, the walk has only the topmost frame.
    pub memory: Option<UnifiedMemory<'a, 'a>>,
}

/// A frame of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedFrame {
    /// The address where the thread continues when it returns to this frame.
    pub address: u64,
    /// The address of the instruction that the thread executes in this frame: that of the call, if
    /// it called another function.
    pub instruction: u64,
    /// The start of the module that the frame lies in.
    pub module: Option<u64>,
    /// How the frame was found.
    pub trust: FrameTrust,
    /// Whether the thread is at `address`, which it does not return to: in the topmost frame, in
    /// one that a signal or a trap interrupted, and in what the system interrupted it with.
    pub is_exact: bool,
}

/// Walks the stacks of a minidump one by one, with unwind information that they share.
#[derive(Debug)]
pub struct StackWalker<'a> {
    walk: StackWalk<'a>,
    system: &'a SystemInfo,
    /// Where the regions of memory are that a stack continues in.
    dump: Option<&'a Dump<'a>>,
}

impl<'a> StackWalker<'a> {
    /// Returns a walker of stacks with these modules.
    pub fn new(
        info: &'a dyn UnwindInfo,
        modules: &'a MinidumpModuleList,
        system: &'a SystemInfo,
    ) -> Self {
        Self {
            walk: StackWalk::new(info, modules, system),
            system,
            dump: None,
        }
    }

    /// Continues walks in other regions of memory of a minidump.
    #[must_use]
    pub fn within(self, dump: &'a Dump<'a>) -> Self {
        Self {
            dump: Some(dump),
            ..self
        }
    }

    /// Continues with what earlier walks of the same minidump have read, and within the same limit
    /// of reads.
    #[must_use]
    pub fn continuing(self, known: &KnownUnwinding) -> Self {
        Self {
            walk: self.walk.continuing(known),
            ..self
        }
    }

    /// Reads the unwind information of addresses, in parallel.
    pub async fn prefetch(&self, addresses: HashMap<usize, BTreeSet<u64>>) {
        self.walk.prefetch(addresses).await;
    }

    /// Walks a stack. Never fails: without information, the frames end.
    pub async fn walk(&self, stack: Stack<'_>) -> (Vec<WalkedFrame>, WalkEnd) {
        let (stack, end) = self.call_stack(stack).await;
        let frames = stack.frames.iter().enumerate().map(|(number, frame)| {
            let address = frame.resume_address;
            let is_exact = number == 0 || self.walk.is_exact(address);
            WalkedFrame {
                address,
                instruction: if is_exact { address } else { frame.instruction },
                module: frame.module.as_ref().map(Module::base_address),
                trust: trust(frame.trust),
                is_exact,
            }
        });
        (frames.collect(), end)
    }

    /// Returns the modules whose unwind information a walk has asked for.
    pub fn asked_for(&self) -> BTreeSet<usize> {
        self.walk.asked_for()
    }

    /// Returns the frame of the function that called an address without code, such as null or data:
    /// the walker would continue with the frame pointer, which is still that of this function, and
    /// so skip it.
    async fn caller_of_nowhere(
        &self,
        context: &MinidumpContext,
        memory: Option<UnifiedMemory<'_, '_>>,
    ) -> Option<StackFrame> {
        let called = context.get_instruction_pointer();
        if self.walk.may_execute(called).await {
            return None;
        }
        let (caller, call) = registers_of_caller(context, memory)?;
        let address = caller.get_instruction_pointer();
        if !self.walk.may_return_to(address).await {
            return None;
        }
        self.walk.note_unknown_callee(call);
        let mut frame = StackFrame::from_context(caller, WalkedTrust::Scan);
        frame.instruction = call;
        Some(frame)
    }

    async fn call_stack(&self, Stack { context, memory }: Stack<'_>) -> (CallStack, WalkEnd) {
        let mut stack = CallStack::with_context(context.clone());
        self.walk.begin();
        let walked = AssertUnwindSafe(async {
            let stack = &mut stack;
            stack
                .frames
                .extend(self.caller_of_nowhere(context, memory).await);
            self.walk_region(stack, memory).await;
            if let Some(memory) = memory {
                self.walk_other_regions(stack, memory).await;
            }
        });
        let end = match walked.catch_unwind().await {
            Ok(()) => WalkEnd::Complete,
            Err(payload) => end_of(&*payload),
        };
        stack.frames.truncate(MAX_FRAMES);
        (stack, end)
    }

    /// Adds the callers of the last frame, as far as a region of memory has them.
    async fn walk_region(&self, stack: &mut CallStack, memory: Option<UnifiedMemory<'_, '_>>) {
        let (walk, modules, system) = (&self.walk, self.walk.modules(), self.system);
        let walked = walk_stack(0, count_frames, stack, memory, modules, system, walk);
        // The walker has several frames at a time, each with all registers.
        Box::pin(walked).await;
    }

    /// Continues a walk that left its part of a region of memory, in the region that its last frame
    /// is in. Each region is walked once, and at most [`MAX_REGIONS`] are.
    async fn walk_other_regions(&self, stack: &mut CallStack, memory: UnifiedMemory<'_, '_>) {
        let part = memory.memory_range();
        let part = part.map(|range| range.start..range.end.saturating_add(1));
        let mut walked: Vec<Range<u64>> = part.into_iter().collect();
        let first = stack.frames.first().and_then(|top| self.region_of(top));
        let first = first.map(|first| first.region);
        let mut others = 0;
        while let Some(last) = stack.frames.last()
            && !is_in(&walked, last.context.get_stack_pointer())
            && let Some(next) = self.region_of(last)
        {
            // Of a large region, only a part was walked.
            if first.as_ref() == Some(&next.region) {
                break;
            }
            if others == MAX_REGIONS {
                end_walk(WalkEnd::Cut);
            }
            others += 1;
            walked.push(next.region.clone());
            let memory = UnifiedMemory::Memory(&next.memory);
            self.walk_region(stack, Some(memory)).await;
        }
    }

    /// Returns the region of memory that the stack pointer of a frame is in.
    fn region_of(&self, frame: &StackFrame) -> Option<StackPart<'_>> {
        self.dump?.region_at(frame.context.get_stack_pointer())
    }
}

/// Returns whether a stack pointer is in one of these regions. At the end of one, it is that of an
/// empty stack, not of the memory behind it.
fn is_in(regions: &[Range<u64>], pointer: u64) -> bool {
    let mut regions = regions.iter();
    regions.any(|region| (region.start..=region.end).contains(&pointer))
}

/// Returns the registers of a function that called an address, at which nothing was executed, and
/// where the call is. The registers that it preserves are as they were.
fn registers_of_caller(
    context: &MinidumpContext,
    memory: Option<UnifiedMemory<'_, '_>>,
) -> Option<(MinidumpContext, u64)> {
    /// The bit of a return address that stands for Thumb code.
    const THUMB: u32 = 1;
    let (raw, call) = match context.raw.clone() {
        MinidumpRawContext::X86(mut registers) => {
            registers.eip = memory?.get_memory_at_address(registers.esp.into())?;
            registers.esp = registers.esp.checked_add(4)?;
            let call = u64::from(registers.eip).saturating_sub(1);
            (MinidumpRawContext::X86(registers), call)
        }
        MinidumpRawContext::Amd64(mut registers) => {
            registers.rip = memory?.get_memory_at_address(registers.rsp)?;
            registers.rsp = registers.rsp.checked_add(8)?;
            let call = registers.rip.saturating_sub(1);
            (MinidumpRawContext::Amd64(registers), call)
        }
        MinidumpRawContext::Arm(mut registers) => {
            let link = registers.iregs[ArmRegisterNumbers::LinkRegister as usize];
            let address = link & !THUMB;
            registers.iregs[ArmRegisterNumbers::ProgramCounter as usize] = address;
            let call = match link & THUMB {
                0 => address.saturating_sub(4),
                _ => address.saturating_sub(2),
            };
            (MinidumpRawContext::Arm(registers), u64::from(call))
        }
        MinidumpRawContext::Arm64(mut registers) => {
            registers.pc = registers.iregs[30];
            let call = registers.pc.saturating_sub(4);
            (MinidumpRawContext::Arm64(registers), call)
        }
        _ => return None,
    };
    let valid = context.valid.clone();
    Some((MinidumpContext { raw, valid }, call))
}

/// Returns the addresses in modules that the words of these stacks may be, by the index of the
/// module. They are those nearest to the top of each stack, within the limits of prefetching.
pub fn pointed_at(
    stacks: &[Stack<'_>],
    modules: &MinidumpModuleList,
    system: &SystemInfo,
) -> HashMap<usize, BTreeSet<u64>> {
    let share = MAX_ALL_PREFETCHED / stacks.len().max(1);
    let share = share.clamp(MIN_PREFETCHED, MAX_PREFETCHED);
    let mask = address_bits(modules, system);
    let numbers = provider::numbers(modules);
    let mut addresses: HashMap<usize, BTreeSet<u64>> = HashMap::new();
    let mut left = MAX_ALL_PREFETCHED;
    for stack in stacks {
        let top = stack.context.get_stack_pointer();
        let words = stack
            .memory
            .map(|memory| words(memory, top, system.cpu.pointer_width()));
        let words = words.into_iter().flatten();
        let words = std::iter::once(stack.context.get_instruction_pointer()).chain(words);
        // A return address follows its call, and the call is looked up.
        let calls = words.filter_map(|word| (word & mask).checked_sub(1));
        let mut added = 0;
        for call in calls {
            if added == share.min(left) {
                break;
            }
            let Some(base) = modules.module_at_address(call).map(Module::base_address) else {
                continue;
            };
            if let Some(number) = numbers.get(&base) {
                let of_module = addresses.entry(*number).or_default();
                added += usize::from(of_module.insert(call - base));
            }
        }
        left -= added;
    }
    addresses
}

/// Returns the bits of a word that are those of an address. On 64-bit Arm, the bits above them may
/// be a signature of the address ("pointer authentication"), which the walker removes, too. It
/// takes the same bits for those of an address: as many as are needed for the modules, and at least
/// as many as Apple's systems have.
fn address_bits(modules: &MinidumpModuleList, system: &SystemInfo) -> u64 {
    const APPLE: u64 = (1 << 47) - 1;
    if !matches!(system.cpu, Cpu::Arm64) {
        return u64::MAX;
    }
    let last = modules.by_addr().next_back();
    let end = last.map_or(0, |last| last.base_address().saturating_add(last.size()));
    let above = end.max(APPLE).checked_next_power_of_two();
    above.map_or(u64::MAX, |above| above - 1)
}

fn count_frames(index: usize, _: &StackFrame) {
    if index + 1 >= MAX_FRAMES {
        end_walk(WalkEnd::Cut);
    }
}

fn end_of(payload: &(dyn Any + Send)) -> WalkEnd {
    let end = payload.downcast_ref::<WalkEnd>().copied();
    end.unwrap_or(WalkEnd::Panicked)
}

fn trust(trust: WalkedTrust) -> FrameTrust {
    match trust {
        WalkedTrust::None => FrameTrust::None,
        WalkedTrust::Scan => FrameTrust::Scan,
        WalkedTrust::CfiScan => FrameTrust::CfiScan,
        WalkedTrust::FramePointer => FrameTrust::Fp,
        WalkedTrust::CallFrameInfo => FrameTrust::Cfi,
        WalkedTrust::PreWalked => FrameTrust::PreWalked,
        WalkedTrust::Context => FrameTrust::Context,
    }
}

/// Walks one stack. Never fails: without information, the frames end.
pub async fn walk(
    info: &dyn UnwindInfo,
    modules: &MinidumpModuleList,
    system: &SystemInfo,
    context: MinidumpContext,
    memory: Option<UnifiedMemory<'_, '_>>,
) -> CallStack {
    let walker = StackWalker::new(info, modules, system);
    let stack = Stack {
        context: &context,
        memory,
    };
    walker.prefetch(pointed_at(&[stack], modules, system)).await;
    walker.call_stack(stack).await.0
}

/// Returns the words of a stack, from its top.
fn words(
    memory: UnifiedMemory<'_, '_>,
    top: u64,
    width: PointerWidth,
) -> impl Iterator<Item = u64> {
    let (width, is_wide) = match width {
        PointerWidth::Bits64 => (8, true),
        PointerWidth::Bits32 | PointerWidth::Unknown => (4, false),
    };
    let end = memory.memory_range().map_or(top, |range| range.end);
    (top..end).step_by(width).map_while(move |at| {
        if is_wide {
            memory.get_memory_at_address::<u64>(at)
        } else {
            memory.get_memory_at_address::<u32>(at).map(u64::from)
        }
    })
}
