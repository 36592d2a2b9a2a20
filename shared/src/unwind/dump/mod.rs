//! Reads a minidump: its facts, modules, threads, and where their stacks are.
//!
//! Of the memory in a dump, only stacks are read. Nothing of it is logged.

mod bounds;
mod client_stacks;
mod error;
mod modules;
mod parts;
mod ranges;
mod references;
mod report;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use bytes::Bytes;
use minidump::system_info::{Cpu, Os};
use minidump::{
    Endian, Minidump, MinidumpAssertion, MinidumpBreakpadInfo, MinidumpContext, MinidumpException,
    MinidumpMemory, MinidumpMiscInfo, MinidumpModuleList, MinidumpSystemInfo, MinidumpThread,
    MinidumpThreadList, MinidumpThreadNames, UnifiedMemory, UnifiedMemoryList,
};
use minidump_unwind::SystemInfo as WalkedSystem;

pub use self::client_stacks::ClientFrame;
pub use self::error::DumpError;
pub use self::parts::{DumpBytes, DumpParts};
pub use self::ranges::{NeededRanges, READ_BYTES, READ_PARTS, WHOLE_BYTES, needed};
pub use self::report::ReportHead;
use crate::api::crash::CrashFacts;
use crate::api::symbolicator::{Hex, Module, SystemInfo};

/// The maximum size of a minidump that is read as a whole, in bytes after decompression. A larger
/// one is read in parts, which needs a file that is not compressed.
pub const DUMP_BYTES: usize = 64 * 1024 * 1024;

/// The maximum number of threads in a response. The thread that crashed is among them.
pub const THREADS: usize = 4_096;

/// The maximum size of the part of a stack that is walked, in bytes.
pub const STACK_BYTES: usize = 1024 * 1024;

/// The maximum size of all stacks together that are walked, in bytes. It also counts each stack
/// that several threads share. The threads after that have only their topmost frame.
pub const STACKS_BYTES: usize = 64 * 1024 * 1024;

/// The bytes below the stack pointer that are kept of a longer stack.
const BELOW_STACK_POINTER: u64 = 64 * 1024;

/// The bytes of a minidump whose lists are within their limits.
#[derive(Debug)]
pub struct DumpFile(Minidump<'static, Bytes>);

impl DumpFile {
    /// Reads the directory of a minidump, and checks its lists.
    ///
    /// # Errors
    ///
    /// [`DumpError`] if the file is not a minidump, or exceeds a limit.
    pub fn open(DumpBytes { file, .. }: &DumpBytes) -> Result<Self, DumpError> {
        bounds::check_header(file)?;
        let dump = Minidump::read(file.clone())?;
        bounds::check_counts(&dump)?;
        bounds::check_texts(&dump, file)?;
        Ok(Self(dump))
    }
}

/// The content of a minidump.
#[derive(Debug)]
pub struct Dump<'a> {
    /// What the response repeats.
    pub facts: CrashFacts,
    /// The system that the process ran on, for the walker.
    pub system: WalkedSystem,
    /// The modules, for the walker.
    pub modules: MinidumpModuleList,
    /// The threads, at most [`THREADS`].
    pub threads: Vec<DumpThread>,
    /// The number of threads in the file that are not in `threads`.
    pub threads_cut: usize,
    endian: Endian,
    list: MinidumpThreadList<'a>,
    memory: UnifiedMemoryList<'a>,
    /// The stacks of the threads: by the address of its first byte, the index of its thread in the
    /// list of the file. Walks look regions up so often that they must not go through all threads.
    stacks: BTreeMap<u64, usize>,
}

/// A thread of a minidump.
#[derive(Debug)]
pub struct DumpThread {
    /// The id of the thread.
    pub id: u64,
    /// The name of the thread.
    pub name: Option<String>,
    /// Whether this is the thread that crashed or requested the dump.
    pub is_requesting: bool,
    /// Its registers; `None` if they cannot be read.
    pub context: Option<MinidumpContext>,
    /// The frames that the client found itself, if there are any. They replace those of a walk.
    pub client_frames: Option<Vec<ClientFrame>>,
    /// The index in the list of the file.
    listed: usize,
}

/// The part of a stack that is walked.
#[derive(Debug)]
pub struct StackPart<'a> {
    /// The memory.
    pub memory: MinidumpMemory<'a>,
    /// The addresses of the whole region.
    pub region: Range<u64>,
    /// Whether the stack is longer than the part.
    pub is_cut: bool,
}

impl<'a> Dump<'a> {
    /// Reads the content of a minidump.
    ///
    /// # Errors
    ///
    /// [`DumpError`] if it does not say which system it is of, or has no list of threads. Other
    /// streams that are missing or damaged are treated as empty.
    pub fn read(file: &'a DumpFile) -> Result<Self, DumpError> {
        let DumpFile(dump) = file;
        let system: MinidumpSystemInfo = dump.get_stream().map_err(|_| DumpError::NoSystemInfo)?;
        let list: MinidumpThreadList<'a> = dump.get_stream().map_err(|_| DumpError::NoThreads)?;
        let modules = dump
            .get_stream()
            .unwrap_or_else(|_| MinidumpModuleList::new());
        let exception: Option<MinidumpException<'a>> = dump.get_stream().ok();
        let mut read = Self {
            facts: facts(dump, &system, exception.as_ref()),
            system: walked(&system),
            modules,
            threads: Vec::new(),
            threads_cut: 0,
            endian: dump.endian,
            list,
            memory: dump.get_memory().unwrap_or_default(),
            stacks: BTreeMap::new(),
        };
        (read.threads, read.threads_cut) = read.threads(dump, &system, exception.as_ref());
        read.stacks = read.stacks();
        Ok(read)
    }

    /// Returns the threads, the one that crashed first if it would be cut otherwise, and the number
    /// of those that are cut.
    fn threads(
        &self,
        dump: &'a Minidump<'static, Bytes>,
        system: &MinidumpSystemInfo,
        exception: Option<&MinidumpException<'a>>,
    ) -> (Vec<DumpThread>, usize) {
        let misc: Option<MinidumpMiscInfo> = dump.get_stream().ok();
        let names: MinidumpThreadNames = dump.get_stream().unwrap_or_default();
        let mut client_stacks: HashMap<u32, Vec<ClientFrame>> = client_stacks::read(dump);
        let breakpad: Option<MinidumpBreakpadInfo> = dump.get_stream().ok();
        let writer = breakpad.as_ref().and_then(|info| info.dump_thread_id);
        let requesting = exception
            .map(MinidumpException::get_crashing_thread_id)
            .or_else(|| breakpad.as_ref()?.requesting_thread_id);
        let of_exception = exception.and_then(|exception| exception.context(system, misc.as_ref()));
        let listed = self.list.threads.iter().enumerate();
        // The thread that wrote the dump of its own process has nothing to say.
        let listed = listed.filter(|(_, thread)| writer != Some(thread.raw.thread_id));
        let mut threads: Vec<(usize, &MinidumpThread<'_>)> = listed.collect();
        let is_requesting = |thread: &MinidumpThread<'_>| requesting == Some(thread.raw.thread_id);
        if threads.len() > THREADS {
            threads.sort_by_key(|(_, thread)| !is_requesting(thread));
        }
        let cut = threads.len().saturating_sub(THREADS);
        threads.truncate(THREADS);
        let describe = |(listed, thread): (usize, &MinidumpThread<'_>)| {
            let is_requesting = is_requesting(thread);
            let own = || Some(thread.context(system, misc.as_ref())?.into_owned());
            let context = match (&of_exception, is_requesting) {
                (Some(context), true) => Some(context.clone().into_owned()),
                _ => own(),
            };
            let name = names.get_name(thread.raw.thread_id);
            DumpThread {
                id: thread.raw.thread_id.into(),
                name: name.map(|name| name.into_owned()),
                is_requesting,
                context,
                client_frames: client_stacks.remove(&thread.raw.thread_id),
                listed,
            }
        };
        (threads.into_iter().map(describe).collect(), cut)
    }

    /// Returns the stacks of the threads. Of threads that share one, the first one counts.
    fn stacks(&self) -> BTreeMap<u64, usize> {
        let mut stacks = BTreeMap::new();
        for DumpThread { listed, .. } in &self.threads {
            let thread = self.list.threads.get(*listed);
            let stack = thread.and_then(|thread| thread.stack_memory(&self.memory));
            if let Some(stack) = stack {
                stacks.entry(stack.base_address()).or_insert(*listed);
            }
        }
        stacks
    }

    /// Returns the part of a thread's stack that is walked: the region that its stack pointer is
    /// in, from there on. The registers of an exception may refer to another region than the
    /// thread does.
    pub fn stack(&self, thread: &DumpThread) -> Option<StackPart<'_>> {
        let pointer = thread.context.as_ref()?.get_stack_pointer();
        let listed = self.list.threads.get(thread.listed)?;
        let own = listed.stack_memory(&self.memory);
        let memory = match own {
            Some(memory) if has_word_at(memory, pointer) => memory,
            other => self.memory.memory_at_address(pointer).or(other)?,
        };
        self.part(memory, pointer)
    }

    /// Returns the part to walk of the region of memory that a stack pointer is in.
    pub fn region_at(&self, pointer: u64) -> Option<StackPart<'_>> {
        let listed = self.memory.memory_at_address(pointer);
        // The stacks of threads need not be in the list of all memory.
        let memory = listed.or_else(|| self.stack_at(pointer))?;
        self.part(memory, pointer)
    }

    /// Returns the stack of a thread that has a word at an address.
    fn stack_at(&self, pointer: u64) -> Option<UnifiedMemory<'_, 'a>> {
        let (_, listed) = self.stacks.range(..=pointer).next_back()?;
        let thread = self.list.threads.get(*listed)?;
        let stack = thread.stack_memory(&self.memory)?;
        has_word_at(stack, pointer).then_some(stack)
    }

    /// Returns the part of a region of memory to walk.
    fn part<'s>(&'s self, memory: UnifiedMemory<'s, 'a>, pointer: u64) -> Option<StackPart<'s>> {
        let (base, bytes) = (memory.base_address(), memory.bytes());
        let part = part_of(base, bytes.len(), pointer);
        let start = u64::try_from(part.start).ok()?;
        let end = base.saturating_add(u64::try_from(bytes.len()).ok()?);
        let bytes = bytes.get(part.clone())?;
        let is_cut = bytes.len() < memory.bytes().len();
        Some(StackPart {
            memory: MinidumpMemory {
                desc: minidump::format::MINIDUMP_MEMORY_DESCRIPTOR::default(),
                base_address: base.checked_add(start)?,
                size: u64::try_from(bytes.len()).ok()?,
                bytes,
                endian: self.endian,
            },
            region: base..end,
            is_cut,
        })
    }

    /// Returns the modules of a request, sorted by their addresses, each with its index in
    /// [`Dump::modules`].
    pub fn request_modules(&self) -> Vec<(usize, Module)> {
        modules::of(&self.modules, self.system.os)
    }
}

/// Returns whether a region of memory has a word at an address.
fn has_word_at(memory: UnifiedMemory<'_, '_>, address: u64) -> bool {
    memory.get_memory_at_address::<u64>(address).is_some()
}

/// Returns the part of a stack to walk.
fn part_of(base: u64, length: usize, pointer: u64) -> Range<usize> {
    if length <= STACK_BYTES {
        return 0..length;
    }
    let start = pointer
        .saturating_sub(base)
        .saturating_sub(BELOW_STACK_POINTER);
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(length);
    start..start.saturating_add(STACK_BYTES).min(length)
}

/// Returns the registers of a context, by name.
pub fn registers(context: &MinidumpContext) -> BTreeMap<String, Hex> {
    let registers = context.valid_registers();
    registers
        .map(|(name, value)| (name.to_owned(), Hex(value)))
        .collect()
}

fn walked(system: &MinidumpSystemInfo) -> WalkedSystem {
    let (version, build) = system.os_parts();
    WalkedSystem {
        os: system.os,
        os_version: Some(version),
        os_build: build,
        cpu: system.cpu,
        cpu_info: None,
        cpu_microcode_version: None,
        cpu_count: usize::from(system.raw.number_of_processors),
    }
}

fn facts(
    dump: &Minidump<'static, Bytes>,
    system: &MinidumpSystemInfo,
    exception: Option<&MinidumpException<'_>>,
) -> CrashFacts {
    let (version, build) = system.os_parts();
    let reason = |exception: &MinidumpException<'_>| {
        let reason = exception.get_crash_reason(system.os, system.cpu);
        let address = exception.get_crash_address(system.os, system.cpu);
        format!("{reason} / {address:#x}")
    };
    let assertion: Option<MinidumpAssertion> = dump.get_stream().ok();
    let assertion = assertion.map(|assertion| assertion_text(&assertion));
    let facts = CrashFacts {
        timestamp: Some(dump.header.time_date_stamp.into()),
        system_info: Some(SystemInfo {
            os_name: os_name(system.os).to_owned(),
            os_version: version,
            os_build: build.unwrap_or_default(),
            cpu_arch: cpu_name(system.cpu).to_owned(),
            device_model: String::new(),
        }),
        crashed: Some(exception.is_some()),
        crash_reason: Some(exception.map(reason).unwrap_or_default()),
        crash_details: None,
        assertion: Some(assertion.unwrap_or_default()),
    };
    facts.shortened()
}

/// Returns the assertion that failed, and where it is.
fn assertion_text(assertion: &MinidumpAssertion) -> String {
    let given = |part: Option<String>| part.filter(|part| !part.is_empty());
    let function = given(assertion.function()).map(|function| format!("in {function}"));
    let line = assertion.raw.line;
    let file = given(assertion.file()).map(|file| format!("at {file}:{line}"));
    let parts = [given(assertion.expression()), function, file];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(" ")
}

fn os_name(os: Os) -> &'static str {
    match os {
        Os::Windows => "Windows",
        Os::MacOs => "macOS",
        Os::Ios => "iOS",
        Os::Linux => "Linux",
        Os::Solaris => "Solaris",
        Os::Android => "Android",
        Os::Ps3 => "PS3",
        Os::NaCl => "NaCl",
        Os::Unknown(_) => "",
    }
}

fn cpu_name(cpu: Cpu) -> &'static str {
    match cpu {
        Cpu::X86 => "x86",
        Cpu::X86_64 => "x86_64",
        Cpu::Ppc => "ppc",
        Cpu::Ppc64 => "ppc64",
        Cpu::Arm => "arm",
        Cpu::Arm64 => "arm64",
        Cpu::Mips => "mips",
        Cpu::Mips64 => "mips64",
        _ => "unknown",
    }
}
