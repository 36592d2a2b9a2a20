//! The walks of all stacks of a minidump, and what they found.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use minidump::{MinidumpMemory, Module as _, UnifiedMemory};

use crate::api::crash::stackwalk::{StackwalkFrame, StackwalkReport};
use crate::api::limits;
use crate::api::symbolicator::{Frame, FrameTrust, Hex, Stacktrace};
use crate::unwind::dump::{ClientFrame, Dump, DumpThread, ReportHead, STACKS_BYTES, registers};
use crate::unwind::{Stack, StackWalker, WalkEnd, WalkedFrame, pointed_at};

/// The walks of a minidump.
pub(super) struct Walks<'a> {
    dump: &'a Dump<'a>,
    /// One for each thread, in order.
    walks: Vec<ThreadWalk<'a>>,
    /// The addresses in modules that the words of the stacks may be, by module.
    pointed_at: HashMap<usize, BTreeSet<u64>>,
    /// The modules whose unwind information was needed.
    needed_modules: BTreeSet<usize>,
    stats: WalkStats,
}

/// The walk of a thread's stack.
struct ThreadWalk<'a> {
    thread: &'a DumpThread,
    memory: Option<MinidumpMemory<'a>>,
    frames: ThreadFrames<'a>,
}

/// The frames of a thread.
enum ThreadFrames<'a> {
    /// The client walked the stack, and sent them.
    Sent(&'a [ClientFrame]),
    /// The walk is not complete.
    Unwalked,
    Walked(Vec<WalkedFrame>),
}

/// What was walked, and what was cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkStats {
    /// The number of threads.
    pub threads: usize,
    /// The number of frames.
    pub frames: usize,
    /// The number of threads that are not in the response.
    pub threads_cut: usize,
    /// The number of stacks of which a part or nothing was walked.
    pub stacks_cut: usize,
    /// The number of stacks that have more frames than the response.
    pub stacks_shortened: usize,
    /// The number of reads of unwind information that the walks had to do without, because of their
    /// limit.
    pub reads_cut: usize,
    /// The number of walks that ended because the walker panicked. Their frames before are in the
    /// response.
    pub panics: usize,
}

impl<'a> Walks<'a> {
    pub(super) fn new(dump: &'a Dump<'a>, stacks_unread: usize) -> Self {
        let mut stats = WalkStats {
            threads: dump.threads.len(),
            threads_cut: dump.threads_cut,
            stacks_cut: stacks_unread,
            ..WalkStats::default()
        };
        let mut left = STACKS_BYTES;
        let mut memory = |thread: &'a DumpThread| {
            let part = dump.stack(thread)?;
            let bytes = part.memory.bytes.len();
            let is_within = bytes <= left;
            stats.stacks_cut += usize::from(part.is_cut || !is_within);
            left -= if is_within { bytes } else { 0 };
            is_within.then_some(part.memory)
        };
        let mut walks: Vec<ThreadWalk<'a>> = dump
            .threads
            .iter()
            .map(|thread| ThreadWalk {
                thread,
                memory: None,
                frames: match &thread.client_frames {
                    Some(frames) => ThreadFrames::Sent(frames),
                    None => ThreadFrames::Unwalked,
                },
            })
            .collect();
        // The most important stack is within the limit.
        let (first, others): (Vec<_>, Vec<_>) =
            walks.iter_mut().partition(|walk| walk.thread.is_requesting);
        let walks_left = first.into_iter().chain(others);
        for walk in walks_left.filter(|walk| walk.is_unwalked()) {
            walk.memory = memory(walk.thread);
        }
        let unwalked = walks.iter().filter(|walk| walk.is_unwalked());
        let stacks: Vec<Stack<'_>> = unwalked.filter_map(ThreadWalk::stack).collect();
        stats.frames = dump
            .threads
            .iter()
            .filter_map(|thread| Some(thread.client_frames.as_ref()?.len()))
            .sum();
        Self {
            pointed_at: pointed_at(&stacks, &dump.modules, &dump.system),
            dump,
            walks,
            needed_modules: BTreeSet::new(),
            stats,
        }
    }

    /// Returns the addresses in modules that the words of the stacks may be, by module.
    pub(super) fn pointed_at(&self) -> &HashMap<usize, BTreeSet<u64>> {
        &self.pointed_at
    }

    /// Walks the stacks whose walks are not complete. Returns the modules that they reached
    /// although they are not decided.
    pub(super) async fn run(&mut self, walker: &StackWalker<'_>) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        for walk in self.walks.iter_mut().filter(|walk| walk.is_unwalked()) {
            let Some(stack) = walk.stack() else {
                walk.frames = ThreadFrames::Walked(Vec::new());
                continue;
            };
            // All frames together are limited like those of a request.
            let left = limits::FRAMES.saturating_sub(self.stats.frames);
            if left == 0 {
                self.stats.stacks_shortened += 1;
                walk.frames = ThreadFrames::Walked(Vec::new());
                continue;
            }
            let (mut frames, end) = walker.walk(stack).await;
            match end {
                WalkEnd::Complete => {}
                WalkEnd::Cut => self.stats.stacks_shortened += 1,
                WalkEnd::Panicked => self.stats.panics += 1,
                WalkEnd::Undecided(module) => {
                    reached.insert(module);
                    continue;
                }
            }
            if frames.len() > left {
                self.stats.stacks_shortened += usize::from(end != WalkEnd::Cut);
                frames.truncate(left);
            }
            self.stats.frames += frames.len();
            walk.frames = ThreadFrames::Walked(frames);
        }
        self.needed_modules.extend(walker.asked_for());
        reached
    }

    /// Returns the modules whose unwind information was needed.
    pub(super) fn needed_modules(&self) -> &BTreeSet<usize> {
        &self.needed_modules
    }

    /// Returns the start addresses of the modules that frames lie in.
    pub(super) fn frames_in(&self) -> BTreeSet<u64> {
        let mut modules = BTreeSet::new();
        for walk in &self.walks {
            match &walk.frames {
                ThreadFrames::Sent(frames) => modules.extend(frames.iter().filter_map(|frame| {
                    let module = self.dump.modules.module_at_address(frame.address)?;
                    Some(module.base_address())
                })),
                ThreadFrames::Unwalked => {}
                ThreadFrames::Walked(frames) => {
                    modules.extend(frames.iter().filter_map(|frame| frame.module));
                }
            }
        }
        modules
    }

    /// Returns what the minidump says in the schema of `minidump-stackwalk`.
    pub(super) fn stackwalk_report(&self, mut head: ReportHead) -> StackwalkReport {
        let modules = &self.dump.modules;
        let mut frame = |instruction: u64, module: Option<u64>| {
            let unloaded = match module {
                Some(_) => BTreeMap::new(),
                None => head.unloaded_at(instruction),
            };
            StackwalkFrame {
                instruction: Hex(instruction),
                module: module.map(Hex),
                unloaded,
            }
        };
        let mut threads = Vec::with_capacity(self.walks.len());
        for walk in &self.walks {
            let frames = match &walk.frames {
                ThreadFrames::Sent(frames) => frames
                    .iter()
                    .map(|walked| {
                        let module = modules.module_at_address(walked.address);
                        frame(walked.address, module.map(|module| module.base_address()))
                    })
                    .collect(),
                ThreadFrames::Walked(frames) => frames
                    .iter()
                    .map(|walked| frame(walked.instruction, walked.module))
                    .collect(),
                ThreadFrames::Unwalked => Vec::new(),
            };
            threads.push(frames);
        }
        StackwalkReport {
            is_narrow: head.is_narrow,
            head: head.json,
            threads,
        }
    }

    /// Returns the stack traces, in the order of the threads.
    pub(super) fn into_stacktraces(self) -> (Vec<Stacktrace>, WalkStats) {
        let modules = self.dump.modules.iter();
        let names = modules.map(|module| (module.base_address(), Arc::from(&*module.code_file())));
        let names: HashMap<u64, Arc<str>> = names.collect();
        let is_requested = self.walks.iter().any(|walk| walk.thread.is_requesting);
        let modules = &self.dump.modules;
        let sent = |frame: &ClientFrame| Frame {
            instruction_addr: Hex(frame.address),
            package: modules
                .module_at_address(frame.address)
                .and_then(|module| names.get(&module.base_address()).cloned()),
            symbol: frame.symbol.as_deref().map(Into::into),
            trust: FrameTrust::PreWalked,
            ..Frame::default()
        };
        let stacktraces = self.walks.into_iter().map(|walk| {
            let thread = walk.thread;
            Stacktrace {
                thread_id: Some(thread.id),
                thread_name: thread.name.clone(),
                is_requesting: is_requested.then_some(thread.is_requesting),
                registers: thread.context.as_ref().map(registers).unwrap_or_default(),
                frames: match walk.frames {
                    ThreadFrames::Sent(frames) => frames.iter().map(sent).collect(),
                    ThreadFrames::Unwalked => Vec::new(),
                    ThreadFrames::Walked(frames) => of_walk(frames, &names),
                },
            }
        });
        let stacktraces = stacktraces.collect();
        (stacktraces, self.stats)
    }
}

impl ThreadWalk<'_> {
    fn stack(&self) -> Option<Stack<'_>> {
        Some(Stack {
            context: self.thread.context.as_ref()?,
            memory: self.memory.as_ref().map(UnifiedMemory::Memory),
        })
    }

    fn is_unwalked(&self) -> bool {
        matches!(self.frames, ThreadFrames::Unwalked)
    }
}

/// Returns the frames of a walk. `names` has the files of the modules, by their start addresses.
fn of_walk(frames: Vec<WalkedFrame>, names: &HashMap<u64, Arc<str>>) -> Vec<Frame> {
    let has_exact_callers = frames.iter().skip(1).any(|frame| frame.is_exact);
    let frame = |frame: WalkedFrame| Frame {
        instruction_addr: Hex(frame.address),
        package: frame.module.and_then(|module| names.get(&module).cloned()),
        trust: frame.trust,
        // Otherwise, the topmost frame is the only exact one, as is assumed. Those without a value
        // are return addresses, unless their callee is known to interrupt its caller.
        adjust_instruction_addr: (has_exact_callers && frame.is_exact).then_some(false),
        ..Frame::default()
    };
    frames.into_iter().map(frame).collect()
}
