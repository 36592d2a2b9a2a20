//! What the walker asks during walks, answered with the unwind information that was read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::future::join;
use futures::stream::{self, StreamExt};
use minidump::system_info::{Cpu, Os};
use minidump::{MinidumpModuleList, Module};
use minidump_unwind::{
    FileError, FileKind, FillSymbolError, FrameSymbolizer, FrameWalker, SymbolProvider, SystemInfo,
};

use super::info::{MAX_LATER, ModuleCfi, UnwindInfo, WalkEnd, end_walk};
use crate::debuginfo::CfiRecords;

/// Modules whose slices are prefetched concurrently: more than a stack usually points into, so that
/// they are one round of reads.
const MODULES_IN_FLIGHT: usize = 64;

/// The most parameters, in words, that an unknown function may have.
const MAX_PARAMETERS: u32 = 16;

/// What functions keep to on Windows: one without unwind information is a leaf. It leaves the stack
/// as it was when it was entered, and calls no other function.
///
/// Sources: Microsoft, "x64 ABI conventions", "x64 exception handling", "ARM64 exception handling".
#[derive(Debug)]
struct Conventions {
    stack_pointer: &'static str,
    /// The register with the return address when a function is entered; `None` if a call pushes it.
    return_address: Option<&'static str>,
    /// The registers that a function preserves, but not on other systems.
    preserved: &'static [&'static str],
}

impl Conventions {
    const WINDOWS_AMD64: Self = Self {
        stack_pointer: "rsp",
        return_address: None,
        preserved: &["rdi", "rsi"],
    };
    const WINDOWS_ARM64: Self = Self {
        stack_pointer: "sp",
        return_address: Some("x30"),
        preserved: &[],
    };

    fn of(system: &SystemInfo) -> Option<&'static Self> {
        match (system.os, system.cpu) {
            (Os::Windows, Cpu::X86_64) => Some(&Self::WINDOWS_AMD64),
            (Os::Windows, Cpu::Arm64) => Some(&Self::WINDOWS_ARM64),
            _ => None,
        }
    }

    /// Passes the registers that a function preserves on to its caller.
    fn preserve(&self, walker: &mut (dyn FrameWalker + Send)) {
        for name in self.preserved {
            if let Some(value) = walker.get_callee_register(name) {
                // The name is that of a register, so this does not fail.
                let _ = walker.set_caller_register(name, value);
            }
        }
    }

    /// Finds the caller of a leaf.
    fn leave_leaf(&self, walker: &mut (dyn FrameWalker + Send)) -> Option<()> {
        let top = walker.get_callee_register(self.stack_pointer)?;
        let (return_address, top) = match self.return_address {
            Some(register) => (walker.get_callee_register(register)?, top),
            None => (walker.get_register_at_address(top)?, top.checked_add(8)?),
        };
        walker.set_cfa(top)?;
        walker.set_ra(return_address)
    }
}

/// The state that all walks over the same unwind information share.
pub(super) struct StackWalk<'a> {
    info: &'a dyn UnwindInfo,
    modules: &'a MinidumpModuleList,
    /// The indices of the modules, by their base addresses.
    numbers: HashMap<u64, usize>,
    /// The conventions of the functions, if more is known of them than the walker knows.
    conventions: Option<&'static Conventions>,
    current: Mutex<CurrentWalk>,
    known: KnownUnwinding,
}

/// What is known of the current walk.
#[derive(Default)]
struct CurrentWalk {
    /// Where its frames were interrupted by a signal or a trap.
    interrupted: BTreeSet<u64>,
    /// The instruction that called an address without code.
    call_of_nowhere: Option<u64>,
}

/// What walks of the stacks of one minidump have read. Clones share it.
#[derive(Clone, Default)]
pub struct KnownUnwinding(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// By module; `None` if it has no unwind information.
    modules: HashMap<usize, Option<CfiRanges>>,
    /// Whether addresses are in functions, by module and address.
    functions: HashMap<(usize, u64), Option<bool>>,
    /// The number of reads on demand.
    read_later: usize,
    /// The number of reads on demand that were refused.
    refused: usize,
    /// The modules whose unwind information was needed.
    asked_for: BTreeSet<usize>,
}

impl KnownUnwinding {
    /// Returns the number of reads on demand that were refused, because there were [`MAX_LATER`].
    pub fn reads_refused(&self) -> usize {
        self.known().refused
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KnownUnwinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownUnwinding").finish_non_exhaustive()
    }
}

/// Returns the indices of modules, by their base addresses.
pub(super) fn numbers(modules: &MinidumpModuleList) -> HashMap<u64, usize> {
    let numbers = modules.iter().enumerate();
    numbers
        .map(|(number, module)| (module.base_address(), number))
        .collect()
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

impl fmt::Debug for StackWalk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackWalk").finish_non_exhaustive()
    }
}

impl<'a> StackWalk<'a> {
    pub(super) fn new(
        info: &'a dyn UnwindInfo,
        modules: &'a MinidumpModuleList,
        system: &SystemInfo,
    ) -> Self {
        Self {
            info,
            modules,
            numbers: numbers(modules),
            conventions: Conventions::of(system),
            current: Mutex::default(),
            known: KnownUnwinding::default(),
        }
    }

    /// Continues with what earlier walks have read.
    pub(super) fn continuing(self, known: &KnownUnwinding) -> Self {
        Self {
            known: known.clone(),
            ..self
        }
    }

    /// Begins the walk of a stack.
    pub(super) fn begin(&self) {
        *self.current() = CurrentWalk::default();
    }

    /// Notes that an instruction called an address without code: nothing is known of the function
    /// that was meant.
    pub(super) fn note_unknown_callee(&self, call: u64) {
        self.current().call_of_nowhere = Some(call);
    }

    fn current(&self) -> MutexGuard<'_, CurrentWalk> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a frame of the current walk, which is not the innermost, executes the
    /// instruction at its address. Others return to it. Such a frame was interrupted, or it is what
    /// the system interrupted another one with.
    pub(super) fn is_exact(&self, address: u64) -> bool {
        let interrupts = || {
            let module = self.modules.module_at_address(address)?;
            let number = self.numbers.get(&module.base_address())?;
            let address = address - module.base_address();
            match self.lookup(*number, address)? {
                CfiLookup::Known(Some(records)) => Some(records.was_interrupted(address)),
                CfiLookup::Known(None) | CfiLookup::NoneAtAll => None,
            }
        };
        let is_interrupted = self.current().interrupted.contains(&address);
        is_interrupted || interrupts().unwrap_or_default()
    }

    /// Returns whether an address, behind a call, may be one that a function returns to.
    pub(super) async fn may_return_to(&self, address: u64) -> bool {
        self.may_execute(address.wrapping_sub(1)).await
    }

    /// Returns whether a thread may execute an instruction at an address: it is in a module, and
    /// not known to be outside of its functions.
    pub(super) async fn may_execute(&self, address: u64) -> bool {
        let Some(module) = self.modules.module_at_address(address) else {
            return false;
        };
        let (Some(number), CfiLookup::Known(records)) = self.answer(module, address).await else {
            return true;
        };
        let address = address.saturating_sub(module.base_address());
        self.may_be_code(number, address, records.as_ref()).await
    }

    /// Returns whether an address may be in a function: its records cover it, or a function does,
    /// or that is unknown.
    async fn may_be_code(&self, module: usize, address: u64, records: Option<&CfiRecords>) -> bool {
        records.is_some_and(|records| records.cover(address))
            || self.is_in_function(module, address).await != Some(false)
    }

    pub(super) fn modules(&self) -> &'a MinidumpModuleList {
        self.modules
    }

    pub(super) fn asked_for(&self) -> BTreeSet<usize> {
        self.known().asked_for.clone()
    }

    pub(super) async fn prefetch(&self, addresses: HashMap<usize, BTreeSet<u64>>) {
        stream::iter(addresses)
            .for_each_concurrent(MODULES_IN_FLIGHT, |(module, addresses)| async move {
                let addresses: Vec<u64> = addresses.into_iter().collect();
                let cfi = self.info.cfi(module, &addresses);
                let (cfi, ()) = join(cfi, self.info.prepare_functions(module)).await;
                if self.info.is_decided(module) {
                    self.remember(module, cfi);
                }
            })
            .await;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.known()
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

    /// Returns the unwind information of an address, and reads it if necessary and within the
    /// limit. Beyond the limit, nothing is said about the module.
    async fn answer(
        &self,
        module: &(dyn Module + Sync),
        address: u64,
    ) -> (Option<usize>, CfiLookup) {
        let base = module.base_address();
        let Some(number) = self.numbers.get(&base).copied() else {
            return (None, CfiLookup::NoneAtAll);
        };
        self.must_be_decided(number);
        self.known().asked_for.insert(number);
        let address = address.saturating_sub(base);
        if let Some(answer) = self.lookup(number, address) {
            return (Some(number), answer);
        }
        if !self.may_read() {
            return (Some(number), CfiLookup::NoneAtAll);
        }
        let cfi = self.info.cfi(number, &[address]).await;
        self.must_be_decided(number);
        self.remember(number, cfi);
        let answer = self.lookup(number, address);
        (Some(number), answer.unwrap_or(CfiLookup::Known(None)))
    }

    /// Returns whether the unwind information that was read of a module has records.
    fn has_records(&self, module: usize) -> bool {
        let known = self.known();
        let parts = known.modules.get(&module).and_then(Option::as_ref);
        let mut records = parts.into_iter().flat_map(BTreeMap::values);
        records.any(|(_, records)| !records.is_empty())
    }

    /// Returns whether an address is in a function, and reads that if necessary and within the
    /// limit.
    async fn is_in_function(&self, module: usize, address: u64) -> Option<bool> {
        let known = self.known().functions.get(&(module, address)).copied();
        if let Some(known) = known {
            return known;
        }
        if !self.may_read() {
            return None;
        }
        let found = self.info.is_in_function(module, address).await;
        self.must_be_decided(module);
        self.known().functions.insert((module, address), found);
        found
    }

    /// Walks a frame that called an unknown function, whose parameters are still on the stack.
    /// Their size is the smallest with which the frame has an address that it may return to. If
    /// there is none, the walker has other means.
    async fn walk_over_parameters(
        &self,
        records: &CfiRecords,
        module: &(dyn Module + Sync),
        walker: &mut InstructionWalker<'_>,
    ) -> Option<()> {
        for words in 0..=MAX_PARAMETERS {
            walker.assumed_parameters = Some(words * 4);
            walker.return_address = None;
            records.file().walk_frame(module, walker)?;
            let found = walker.return_address?;
            if self.may_return_to(found).await {
                return Some(());
            }
        }
        None
    }

    /// Ends the walk if a module is not decided, also if a read has just shown it.
    fn must_be_decided(&self, module: usize) {
        if !self.info.is_decided(module) {
            end_walk(WalkEnd::Undecided(module));
        }
    }

    /// Returns whether one more read is within the limit, and counts it.
    fn may_read(&self) -> bool {
        let mut known = self.known();
        let may_read = known.read_later < MAX_LATER;
        known.read_later += usize::from(may_read);
        known.refused += usize::from(!may_read);
        may_read
    }
}

/// The walker of a frame, at an instruction of its own.
struct InstructionWalker<'w> {
    walker: &'w mut (dyn FrameWalker + Send),
    instruction: u64,
    /// The size of the parameters of the function that the frame called, if it is assumed.
    assumed_parameters: Option<u32>,
    /// What was found for the caller.
    return_address: Option<u64>,
}

impl FrameWalker for InstructionWalker<'_> {
    fn get_instruction(&self) -> u64 {
        self.instruction
    }

    fn has_grand_callee(&self) -> bool {
        self.walker.has_grand_callee()
    }

    fn get_grand_callee_parameter_size(&self) -> u32 {
        let known = self.walker.get_grand_callee_parameter_size();
        self.assumed_parameters.unwrap_or(known)
    }

    fn get_register_at_address(&self, address: u64) -> Option<u64> {
        self.walker.get_register_at_address(address)
    }

    fn get_callee_register(&self, name: &str) -> Option<u64> {
        self.walker.get_callee_register(name)
    }

    fn set_caller_register(&mut self, name: &str, value: u64) -> Option<()> {
        // The records of 32-bit Windows set it by its name.
        if name == "eip" {
            self.return_address = Some(value);
        }
        self.walker.set_caller_register(name, value)
    }

    fn clear_caller_register(&mut self, name: &str) {
        self.walker.clear_caller_register(name);
    }

    fn set_cfa(&mut self, value: u64) -> Option<()> {
        self.walker.set_cfa(value)
    }

    fn set_ra(&mut self, value: u64) -> Option<()> {
        self.return_address = Some(value);
        self.walker.set_ra(value)
    }

    fn set_cfi_rules_start_address(&mut self, address: Option<u64>) {
        self.walker.set_cfi_rules_start_address(address);
    }
}

#[async_trait]
impl SymbolProvider for StackWalk<'_> {
    /// Decides whether a word may be a return address: `Ok` without a name rejects it, and an error
    /// accepts it. Names are not resolved during a walk. Of a frame's function, only the size of
    /// its parameters is set.
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
        // Between the frame of a caller and that of its caller are the parameters of the function
        // that it called. Without a name, this does not reject a word.
        let records = records.as_ref();
        if let Some(bytes) = records.and_then(|records| records.parameter_bytes(address)) {
            frame.set_function("", module.base_address(), bytes);
        }
        if !self.may_be_code(number, address, records).await {
            Ok(())
        } else {
            Err(FillSymbolError {})
        }
    }

    async fn walk_frame(
        &self,
        module: &(dyn Module + Sync),
        walker: &mut (dyn FrameWalker + Send),
    ) -> Option<()> {
        let before = walker.get_instruction();
        // The walker takes all addresses but the first one for return addresses.
        let is_caller = walker.has_grand_callee();
        let was_interrupted =
            is_caller && self.current().interrupted.contains(&before.wrapping_add(1));
        let has_unknown_callee = is_caller && self.current().call_of_nowhere == Some(before);
        let instruction = before.wrapping_add(u64::from(was_interrupted));
        let (Some(number), CfiLookup::Known(records)) = self.answer(module, instruction).await
        else {
            return None;
        };
        let walker = &mut InstructionWalker {
            walker,
            instruction,
            assumed_parameters: None,
            return_address: None,
        };
        let address = instruction.saturating_sub(module.base_address());
        let is_covered = records
            .as_ref()
            .is_some_and(|records| records.cover(address));
        if let Some(conventions) = self.conventions {
            conventions.preserve(walker);
            // A leaf is the innermost function. Examples are those of `ntdll.dll` in which threads
            // wait.
            let is_innermost = was_interrupted || !walker.has_grand_callee();
            let may_be_leaf = is_innermost && !is_covered;
            if may_be_leaf && self.has_records(number) {
                return conventions.leave_leaf(walker);
            }
        }
        let records = records?;
        if records.is_outermost(address) {
            end_walk(WalkEnd::Complete);
        }
        // Only records of 32-bit Windows need to know the callee.
        if has_unknown_callee && records.parameter_bytes(address).is_some() {
            return self.walk_over_parameters(&records, module, walker).await;
        }
        records.file().walk_frame(module, walker)?;
        if records.was_interrupted(address) {
            self.current().interrupted.extend(walker.return_address);
        }
        Some(())
    }

    async fn get_file_path(
        &self,
        _: &(dyn Module + Sync),
        _: FileKind,
    ) -> Result<PathBuf, FileError> {
        Err(FileError::NotFound)
    }
}
