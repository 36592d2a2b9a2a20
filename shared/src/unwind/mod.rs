//! Unwinds the stack of a minidump into frames, using CFI caches in slices.
//!
//! The walker of `minidump-unwind` finds a frame only after it has unwound the previous one. If
//! each frame requested its slice, there would be as many sequential reads as frames. However,
//! every return address is a word on the stack. Before a walk, the slices of all words that point
//! into a module are therefore read in parallel, up to [`MAX_PREFETCHED`] addresses. Everything
//! else that a walk needs is read on demand, at most [`MAX_LATER`] times. Beyond that, and without
//! unwind information, the walker falls back to frame pointers and scanning.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::stream::{self, StreamExt};
use minidump::system_info::PointerWidth;
use minidump::{MinidumpContext, MinidumpModuleList, Module, UnifiedMemory};
use minidump_unwind::{
    CallStack, FileError, FileKind, FillSymbolError, FrameSymbolizer, FrameWalker, SymbolProvider,
    SystemInfo, walk_stack,
};

use crate::debuginfo::CfiRecords;

/// The maximum number of frames of a stack in the result.
pub const MAX_FRAMES: usize = 256;

/// The most addresses of a stack whose slices are prefetched: those nearest to its top.
pub const MAX_PREFETCHED: usize = 512;

/// The maximum number of reads on demand in a walk.
pub const MAX_LATER: usize = 256;

/// Modules whose slices are prefetched concurrently.
const MODULES_IN_FLIGHT: usize = 8;

/// A source of unwind information for a walk. Modules are identified by their index in the
/// minidump's list; addresses are relative to them.
#[async_trait]
pub trait UnwindInfo: Send + Sync {
    /// Returns the unwind information of a module, at least for these addresses; `None` if the
    /// module has none, or if it is not available.
    async fn cfi(&self, module: usize, addresses: &[u64]) -> Option<ModuleCfi>;

    /// Returns whether an address is in a function; `None` if that is unknown.
    async fn is_in_function(&self, module: usize, address: u64) -> Option<bool>;
}

/// Unwind information of a module, or parts of it, each with the address range that it covers.
#[derive(Clone, Debug, Default)]
pub struct ModuleCfi(pub Vec<(Range<u64>, CfiRecords)>);

/// Walks a stack. Never fails: without information, the frames end.
pub async fn walk(
    info: &dyn UnwindInfo,
    modules: &MinidumpModuleList,
    system: &SystemInfo,
    context: MinidumpContext,
    memory: Option<UnifiedMemory<'_, '_>>,
) -> CallStack {
    let walk = StackWalk::new(info, modules);
    let on_stack = memory.map(|memory| {
        let top = context.get_stack_pointer();
        let words = words(memory, top, system.cpu.pointer_width());
        walk.pointed_at([context.get_instruction_pointer()].into_iter().chain(words))
    });
    walk.prefetch(on_stack.unwrap_or_default()).await;
    let mut stack = CallStack::with_context(context);
    walk_stack(0, (), &mut stack, memory, modules, system, &walk).await;
    stack.frames.truncate(MAX_FRAMES);
    stack
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

/// The state of one walk.
struct StackWalk<'a> {
    info: &'a dyn UnwindInfo,
    modules: &'a MinidumpModuleList,
    /// The indices of the modules, by their base addresses.
    numbers: HashMap<u64, usize>,
    known: Mutex<KnownCfi>,
}

#[derive(Default)]
struct KnownCfi {
    /// By module; `None` if it has no unwind information.
    modules: HashMap<usize, Option<CfiRanges>>,
    /// The number of reads on demand.
    asked: usize,
}

/// The end and the records of each range, by its first address.
type CfiRanges = BTreeMap<u64, (u64, CfiRecords)>;

/// The result of looking up an address.
enum CfiLookup {
    /// The records of its range; `None` if no range of the module covers it.
    Known(Option<CfiRecords>),
    /// The module has no unwind information.
    NoneAtAll,
}

impl<'a> StackWalk<'a> {
    fn new(info: &'a dyn UnwindInfo, modules: &'a MinidumpModuleList) -> Self {
        let numbers = modules.iter().enumerate();
        Self {
            info,
            modules,
            numbers: numbers
                .map(|(number, module)| (module.base_address(), number))
                .collect(),
            known: Mutex::default(),
        }
    }

    /// Returns the words that are addresses in a module, up to the limit of prefetching.
    fn pointed_at(&self, words: impl Iterator<Item = u64>) -> HashMap<usize, BTreeSet<u64>> {
        let mut addresses: HashMap<usize, BTreeSet<u64>> = HashMap::new();
        // A return address follows its call, and the call is looked up.
        let calls = words.filter_map(|word| word.checked_sub(1));
        let mut count = 0;
        for call in calls {
            let Some(module) = self.modules.module_at_address(call) else {
                continue;
            };
            let base = module.base_address();
            if let Some(number) = self.numbers.get(&base) {
                let of_module = addresses.entry(*number).or_default();
                count += usize::from(of_module.insert(call - base));
            }
            if count == MAX_PREFETCHED {
                break;
            }
        }
        addresses
    }

    async fn prefetch(&self, addresses: HashMap<usize, BTreeSet<u64>>) {
        stream::iter(addresses)
            .for_each_concurrent(MODULES_IN_FLIGHT, |(module, addresses)| async move {
                let addresses: Vec<u64> = addresses.into_iter().collect();
                let cfi = self.info.cfi(module, &addresses).await;
                self.remember(module, cfi);
            })
            .await;
    }

    fn known(&self) -> MutexGuard<'_, KnownCfi> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, module: usize, cfi: Option<ModuleCfi>) {
        let mut known = self.known();
        let Some(ModuleCfi(parts)) = cfi else {
            known.modules.entry(module).or_default();
            return;
        };
        let of_module = known.modules.entry(module).or_default();
        of_module.get_or_insert_default().extend(
            parts
                .into_iter()
                .map(|(addresses, records)| (addresses.start, (addresses.end, records))),
        );
    }

    /// Returns what is cached for an address; `None` if it must be read.
    fn lookup(&self, module: usize, address: u64) -> Option<CfiLookup> {
        match self.known().modules.get(&module)? {
            None => Some(CfiLookup::NoneAtAll),
            Some(parts) => {
                let (_, (end, records)) = parts.range(..=address).next_back()?;
                (address < *end).then(|| CfiLookup::Known(Some(records.clone())))
            }
        }
    }

    /// Returns the unwind information of an address, and reads it if necessary.
    async fn answer(
        &self,
        module: &(dyn Module + Sync),
        address: u64,
    ) -> (Option<usize>, CfiLookup) {
        let base = module.base_address();
        let Some(number) = self.numbers.get(&base).copied() else {
            return (None, CfiLookup::NoneAtAll);
        };
        let address = address.saturating_sub(base);
        if let Some(answer) = self.lookup(number, address) {
            return (Some(number), answer);
        }
        if self.may_ask() {
            let cfi = self.info.cfi(number, &[address]).await;
            self.remember(number, cfi);
        }
        let answer = self.lookup(number, address);
        (Some(number), answer.unwrap_or(CfiLookup::Known(None)))
    }

    fn may_ask(&self) -> bool {
        let mut known = self.known();
        known.asked += 1;
        known.asked <= MAX_LATER
    }
}

#[async_trait]
impl SymbolProvider for StackWalk<'_> {
    /// Decides whether a word may be a return address: `Ok` without a name rejects it, and an error
    /// accepts it. Names are not resolved during a walk.
    async fn fill_symbol(
        &self,
        module: &(dyn Module + Sync),
        frame: &mut (dyn FrameSymbolizer + Send),
    ) -> Result<(), FillSymbolError> {
        let instruction = frame.get_instruction();
        let (Some(number), CfiLookup::Known(records)) = self.answer(module, instruction).await
        else {
            return Err(FillSymbolError {});
        };
        let address = instruction.saturating_sub(module.base_address());
        if records.is_some_and(|records| records.cover(address)) {
            return Err(FillSymbolError {});
        }
        match self.info.is_in_function(number, address).await {
            Some(false) => Ok(()),
            Some(true) | None => Err(FillSymbolError {}),
        }
    }

    async fn walk_frame(
        &self,
        module: &(dyn Module + Sync),
        walker: &mut (dyn FrameWalker + Send),
    ) -> Option<()> {
        let instruction = walker.get_instruction();
        match self.answer(module, instruction).await.1 {
            CfiLookup::Known(Some(records)) => records.file().walk_frame(module, walker),
            CfiLookup::Known(None) | CfiLookup::NoneAtAll => None,
        }
    }

    async fn get_file_path(
        &self,
        _: &(dyn Module + Sync),
        _: FileKind,
    ) -> Result<PathBuf, FileError> {
        Err(FileError::NotFound)
    }
}
