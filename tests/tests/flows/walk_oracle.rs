//! The walks of every minidump at hand, against those of `minidump-processor` with the whole
//! unwind information of every DIF at hand. They are those of this repository, and those of
//! `../shared/fixtures`, where these lie beside the checkout.
//!
//! The processor judges the words that a scan finds by the functions of a Breakpad file. A walk
//! here judges them by the unwind information, then by the SymCache. For the processor to judge
//! alike, its Breakpad file has a `FUNC` record for each word of a stack that is covered by one of
//! them: by the text of `symbolic`'s whole CFI cache, or by `symbolic`'s whole SymCache. Neither of
//! them is made or read by the code that is tested. A module without unwind information has no
//! file, because a walk here has no opinion on its words, and the processor has none without a
//! file. With these records, the processor also knows how many bytes of parameters a function of
//! 32-bit Windows removes from the stack.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use minidump::format::CONTEXT_X86;
use minidump::system_info::{Cpu, Os};
use minidump::{
    Minidump, MinidumpContext, MinidumpContextValidity, MinidumpException, MinidumpMiscInfo,
    MinidumpModule, MinidumpModuleList, MinidumpRawContext, MinidumpSystemInfo, MinidumpThreadList,
    Module, UnifiedMemory,
};
use minidump_processor::{ProcessError, ProcessorOptions, process_minidump_with_options};
use minidump_unwind::{
    CallStack, CallStackInfo, FrameTrust as WalkedTrust, StackFrame, Symbolizer, SystemInfo,
    string_symbol_supplier, walk_stack,
};
use symbolic::cfi::CfiCache;
use symbolic::debuginfo::dwarf::Dwarf;
use symbolic::debuginfo::{Archive, Object};
use symbolic::symcache::{SymCache, SymCacheConverter};
use symdepot::api::crash::form::CrashFields;
use symdepot::api::symbolicator::{FrameTrust, Stacktrace};
use symdepot::cache::Kind;
use symdepot::flows::minidump::{MinidumpForm, WalkOutcome};
use symdepot::flows::unwinding::ModuleCaches;
use symdepot::unwind::dump::{Dump, DumpBytes, DumpFile};
use symdepot::unwind::{MAX_FRAMES, walk as walk_one};
use symdepot_tests::harness::{World, fixture, manifest};

use crate::minidump::walk;
use crate::unwinding::memory_at;

/// Minidumps of this repository.
const OWN: [&str; 3] = ["crash", "inventory", "threads"];

/// A file, named by its path.
#[derive(Clone)]
struct Named {
    name: String,
    bytes: Bytes,
}

/// A DIF that can unwind a module.
struct Dif {
    file: Named,
    debug_id: String,
}

/// Returns the folder beside the checkout that holds more fixtures.
fn beside() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: more minidumps are not beside this checkout, in ../shared/fixtures");
    None
}

/// Returns the files of a folder and of all folders in it, in the order of their paths.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let (folders, mut files): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| files_of(folder)));
    files
}

/// Returns the minidumps and all other files at hand.
fn at_hand() -> (Vec<Named>, Vec<Named>) {
    let named = |name: String| Named {
        bytes: fixture(&name),
        name,
    };
    let own = OWN.map(|name| named(format!("minidump/{name}.dmp")));
    let files = manifest().into_iter();
    let files = files.filter(|file| file.kind != "hostile");
    let mut others: Vec<Named> = files.map(|file| named(file.file)).collect();
    let mut dumps = Vec::from(own);
    for path in beside().iter().flat_map(|folder| files_of(folder)) {
        let bytes = std::fs::read(&path).unwrap().into();
        let is_dump = path.extension().is_some_and(|extension| extension == "dmp");
        let name = path.display().to_string();
        let file = Named { name, bytes };
        if is_dump {
            dumps.push(file);
        } else {
            others.push(file);
        }
    }
    (dumps, others)
}

/// Returns the DIFs with unwind information among files, for modules with these debug ids.
fn difs(files: Vec<Named>, wanted: &BTreeSet<String>) -> Vec<Dif> {
    let mut difs = Vec::new();
    for file in files {
        let Ok(archive) = Archive::parse(&file.bytes) else {
            continue;
        };
        let objects = archive.objects().filter_map(Result::ok);
        let mut useful = objects.filter(|object| {
            wanted.contains(&object.debug_id().to_string()) && object.has_unwind_info()
        });
        if let Some(object) = useful.next() {
            let debug_id = object.debug_id().to_string();
            difs.push(Dif {
                debug_id,
                file: file.clone(),
            });
        }
    }
    difs
}

/// Returns the debug ids of modules, by their indices.
fn debug_ids(modules: &MinidumpModuleList) -> Vec<Option<String>> {
    let ids = modules.iter().map(Module::debug_identifier);
    ids.map(|id| id.map(|id| id.to_string())).collect()
}

/// Returns the modules of a minidump; none if it cannot be read.
fn modules_of(dump: &Named) -> MinidumpModuleList {
    let dump = Minidump::read(dump.bytes.clone());
    let modules = dump.and_then(|dump| dump.get_stream());
    modules.unwrap_or_default()
}

/// Returns the instructions that the threads of a minidump may be at: those in their registers, and
/// for every word of a stack, at any place in it, the call that it would return to.
fn instructions(dump: &Minidump<'_, Bytes>) -> BTreeSet<u64> {
    let threads: MinidumpThreadList<'_> = dump.get_stream().unwrap();
    let system: MinidumpSystemInfo = dump.get_stream().unwrap();
    let misc: Option<MinidumpMiscInfo> = dump.get_stream().ok();
    let exception: Option<MinidumpException<'_>> = dump.get_stream().ok();
    let memory = dump.get_memory().unwrap_or_default();
    let of_threads = threads.threads.iter();
    let of_threads = of_threads.filter_map(|thread| thread.context(&system, misc.as_ref()));
    let of_exception = exception.as_ref();
    let of_exception = of_exception.and_then(|at| at.context(&system, misc.as_ref()));
    let contexts = of_threads.chain(of_exception);
    let mut found: BTreeSet<u64> = contexts
        .map(|context| context.get_instruction_pointer())
        .collect();
    for thread in &threads.threads {
        let Some(stack) = thread.stack_memory(&memory) else {
            continue;
        };
        let narrow = stack.bytes().windows(4);
        let narrow = narrow.map(|word| u32::from_le_bytes(word.try_into().unwrap()).into());
        let wide = stack.bytes().windows(8);
        let wide = wide.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        found.extend(narrow.chain(wide).map(|word: u64| word.saturating_sub(1)));
    }
    found
}

/// Returns the address ranges of the records of a Breakpad file.
fn covered(records: &str) -> Vec<Range<u64>> {
    let ranges = records.lines().filter_map(|line| {
        let range = match line.strip_prefix("STACK CFI INIT ") {
            Some(range) => range,
            // The first number is the type of the record.
            None => line.strip_prefix("STACK WIN ")?.split_once(' ')?.1,
        };
        let mut numbers = range.split(' ');
        let mut number = || u64::from_str_radix(numbers.next()?, 16).ok();
        let (start, size) = (number()?, number()?);
        Some(start..start + size)
    });
    ranges.collect()
}

/// Returns the sections of an object that have code, relative to its start.
fn sections(object: &Object<'_>) -> Vec<Range<u64>> {
    const NAMES: [&str; 7] = ["init", "plt", "plt.got", "plt.sec", "text", "fini", "stubs"];
    let section = |name| match object {
        Object::Elf(elf) => elf.raw_section(name),
        Object::MachO(mach) => mach.raw_section(name),
        _ => None,
    };
    let sections = NAMES.into_iter().filter_map(section);
    let ranges = sections.map(|section| {
        let start = section.address - object.load_address();
        start..start + section.data.len() as u64
    });
    ranges.collect()
}

/// The Breakpad file of an object, for the processor.
struct Records {
    text: String,
    /// The words that `symbolic` takes for a part of a function in another section.
    outside_of_code: usize,
}

/// Returns the Breakpad file of an object: its unwind information, and functions at these
/// addresses, which are relative to the module.
fn records(object: &Object<'_>, addresses: impl Iterator<Item = u64>) -> Records {
    let cache = CfiCache::from_object(object).unwrap();
    let unwinding = std::str::from_utf8(cache.as_slice()).unwrap();
    let covered = covered(unwinding);
    assert!(!covered.is_empty());
    let mut converter = SymCacheConverter::new();
    converter.process_object(object).unwrap();
    let mut cache = Vec::new();
    converter.serialize(&mut Cursor::new(&mut cache)).unwrap();
    let cache = SymCache::parse(&cache).unwrap();
    let has_functions = object.has_debug_info() || object.has_symbols();
    let sections = sections(object);
    let section_of = |address: u64| sections.iter().find(|section| section.contains(&address));
    let mut records = Records {
        text: String::new(),
        outside_of_code: 0,
    };
    for address in addresses {
        let is_covered = covered.iter().any(|range| range.contains(&address));
        let function = cache.lookup(address).last().map(|at| at.function());
        // The last symbol of a section reaches into the next section for `symbolic`, and to the end
        // of the section here (decision 0014, "No names outside of code"). `readelf` shows that
        // these words are not in the function.
        let start = function.map(|function| u64::from(function.entry_pc()));
        let is_outside = start.is_some_and(|start| section_of(start) != section_of(address));
        if is_covered || !has_functions || (start.is_some() && !is_outside) {
            let _ = writeln!(records.text, "FUNC {address:x} 1 0 a_function");
        } else {
            records.outside_of_code += usize::from(is_outside);
        }
    }
    records.text.push_str(unwinding);
    records
}

/// A frame, in a form in which both walks can be compared: its address, its trust, and all its
/// registers.
fn described(frame: &StackFrame) -> String {
    let registers: BTreeMap<_, _> = frame.context.valid_registers().collect();
    let (address, trust) = (frame.resume_address, frame.trust);
    format!("{address:x} {trust:?} {registers:x?}")
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

/// What was compared.
#[derive(Debug, Default)]
struct Compared {
    dumps: usize,
    /// The minidumps that neither reads.
    refused: Vec<String>,
    /// The walks of a whole minidump.
    walks: usize,
    /// Those in which a module has a DIF.
    walks_with_difs: usize,
    threads: usize,
    /// By their trust.
    frames: BTreeMap<String, usize>,
    /// The words that `symbolic` takes for a part of a function in another section.
    outside_of_code: usize,
    differences: Vec<String>,
}

/// A minidump, with the DIFs that one walk of it has.
struct Case<'a> {
    dump: &'a Named,
    modules: &'a MinidumpModuleList,
    /// By the index of the module.
    difs: BTreeMap<usize, &'a Dif>,
}

impl Case<'_> {
    fn name(&self) -> String {
        let difs = self.difs.values().map(|dif| &*dif.file.name);
        format!("{} with {:?}", self.dump.name, difs.collect::<Vec<_>>())
    }

    /// Walks the minidump as the processor does.
    async fn processed(&self, compared: &mut Compared) -> Result<Vec<CallStack>, ProcessError> {
        let dump = Minidump::read(self.dump.bytes.clone())?;
        let instructions = if self.difs.is_empty() {
            BTreeSet::new()
        } else {
            instructions(&dump)
        };
        let mut files = HashMap::new();
        for (index, dif) in &self.difs {
            let module = self.modules.iter().nth(*index).unwrap();
            let archive = Archive::parse(&dif.file.bytes).unwrap();
            let mut objects = archive.objects().map(Result::unwrap);
            let object = objects.find(|object| object.debug_id().to_string() == dif.debug_id);
            let (start, size) = (module.base_address(), module.size());
            let within = instructions.range(start..start + size).map(|at| at - start);
            let records = records(&object.unwrap(), within);
            compared.outside_of_code += records.outside_of_code;
            files.insert(module.code_file().into_owned(), records.text);
        }
        let symbolizer = Symbolizer::new(string_symbol_supplier(files));
        let options = ProcessorOptions::stable_basic();
        let state = process_minidump_with_options(&dump, &symbolizer, options).await?;
        let threads = state.threads.into_iter();
        // Neither walks the thread that wrote the minidump, which here is not a thread at all.
        let threads = threads.filter(|thread| thread.info != CallStackInfo::DumpThreadSkipped);
        Ok(threads.collect())
    }

    /// Returns a world to which the DIFs were uploaded.
    async fn world(&self) -> World {
        let world = World::new();
        for dif in self.difs.values() {
            let key = format!("global/{}", dif.debug_id);
            let event = world.put(&key, dif.file.bytes.clone());
            world.deliver(&event).await.unwrap();
        }
        world.settle().await;
        world
    }

    /// Walks each thread, for the registers of all its frames, which no response has.
    async fn walked(&self, world: &World) -> Vec<Vec<String>> {
        let ready = |index: &usize, kind| {
            let dif = self.difs.get(index)?;
            let entry = world.entry("global", &dif.debug_id, kind)?;
            entry.ready().cloned()
        };
        let caches = (0..self.modules.iter().count()).map(|index| ModuleCaches {
            cfi: ready(&index, Kind::CfiCache),
            symbols: ready(&index, Kind::SymCache),
        });
        let unwinding = world.service().unwinding(caches.collect());
        let bytes = DumpBytes::from(self.dump.bytes.clone());
        let file = DumpFile::open(&bytes).unwrap();
        let dump = Dump::read(&file).unwrap();
        let mut threads = Vec::new();
        for thread in &dump.threads {
            let Some(context) = thread.context.clone() else {
                threads.push(Vec::new());
                continue;
            };
            let stack = dump.stack(thread).map(|part| part.memory);
            let memory = stack.as_ref().map(UnifiedMemory::Memory);
            let stack = walk_one(&unwinding, &dump.modules, &dump.system, context, memory).await;
            threads.push(stack.frames.iter().map(described).collect());
        }
        threads
    }

    async fn compare(&self, compared: &mut Compared) {
        let name = self.name();
        let world = self.world().await;
        let request = MinidumpForm {
            file: self.dump.bytes.clone().into(),
            fields: CrashFields::default(),
        };
        let outcome = walk(&world, &request, std::time::Duration::ZERO).await;
        let report = match (outcome.unwrap(), self.processed(compared).await) {
            (WalkOutcome::Walked(report, _), Ok(expected)) => (report, expected),
            (WalkOutcome::Failed(_), Err(_)) => {
                compared.refused.push(name);
                return;
            }
            (found, expected) => panic!("{name}: {found:?}, but {expected:?}"),
        };
        let (report, expected) = report;
        let found = self.walked(&world).await;
        let stacktraces = &report.request.stacktraces;
        assert_eq!(stacktraces.len(), expected.len(), "{name}");
        assert_eq!(found.len(), expected.len(), "{name}");
        for ((stacktrace, found), expected) in stacktraces.iter().zip(&found).zip(&expected) {
            let frames = &expected.frames[..expected.frames.len().min(MAX_FRAMES)];
            let by_processor: Vec<String> = frames.iter().map(described).collect();
            let is_shown = shown(stacktrace) == shown_of(frames);
            if *found != by_processor || !is_shown {
                let id = expected.thread_id;
                let difference = format!(
                    "{name}, thread {id}, shown {is_shown}:\n{found:#?}\nand not\n{by_processor:#?}"
                );
                compared.differences.push(difference);
            }
            compared.threads += 1;
            for frame in frames {
                let trust = format!("{:?}", frame.trust);
                *compared.frames.entry(trust).or_default() += 1;
            }
        }
        compared.walks += 1;
        compared.walks_with_difs += usize::from(!self.difs.is_empty());
    }
}

/// The frames and the registers of a thread, as a response shows them.
type Shown = (Vec<(u64, FrameTrust)>, BTreeMap<String, u64>);

fn shown(stacktrace: &Stacktrace) -> Shown {
    let frames = stacktrace.frames.iter();
    let frames = frames.map(|frame| (frame.instruction_addr.0, frame.trust));
    let registers = stacktrace.registers.iter();
    let registers = registers.map(|(register, value)| (register.clone(), value.0));
    (frames.collect(), registers.collect())
}

/// Returns what a response is to show of these frames.
fn shown_of(frames: &[StackFrame]) -> Shown {
    let context: Option<&MinidumpContext> = frames.first().map(|frame| &frame.context);
    let registers = context
        .into_iter()
        .flat_map(MinidumpContext::valid_registers);
    let registers = registers.map(|(register, value)| (register.to_owned(), value));
    let frames = frames.iter();
    let frames = frames.map(|frame| (frame.resume_address, trust(frame.trust)));
    (frames.collect(), registers.collect())
}

#[tokio::test(start_paused = true)]
async fn the_walks_of_every_minidump_at_hand_are_those_of_the_processor() {
    let (dumps, others) = at_hand();
    let ids = dumps.iter().flat_map(|dump| debug_ids(&modules_of(dump)));
    let difs = difs(others, &ids.flatten().collect());
    let mut compared = Compared::default();
    for dump in &dumps {
        let modules = modules_of(dump);
        let ids = debug_ids(&modules).into_iter().enumerate();
        let of_modules = ids.filter_map(|(index, id)| {
            let id = id?;
            let of_module = difs.iter().filter(move |dif| dif.debug_id == id);
            Some((index, of_module.collect::<Vec<_>>())).filter(|(_, difs)| !difs.is_empty())
        });
        let of_modules: BTreeMap<usize, Vec<&Dif>> = of_modules.collect();
        let most = of_modules.values().map(Vec::len).max().unwrap_or(0);
        compared.dumps += 1;
        // Without DIFs, then with each DIF of a module.
        for number in 0..=most {
            let chosen = of_modules.iter().filter_map(|(index, difs)| {
                let dif = difs.get(number.checked_sub(1)?).or(difs.last())?;
                Some((*index, *dif))
            });
            let case = Case {
                dump,
                modules: &modules,
                difs: chosen.collect(),
            };
            Box::pin(case.compare(&mut compared)).await;
        }
    }
    println!("{compared:#?}");
    let differences = &compared.differences;
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    assert!(compared.walks_with_difs >= OWN.len(), "{compared:?}");
    assert!(
        compared.frames["CallFrameInfo"] > 0 && compared.frames["Scan"] > 0,
        "{compared:?}"
    );
}

/// Functions of 32-bit Windows: the first has a frame pointer and three parameters, which it
/// removes from the stack; the second calls it, and has no frame pointer. After the test of
/// rust-minidump for sizes of parameters (`minidump-unwind/src/x86_unittest.rs`).
const WITH_PARAMETERS: &str = "\
MODULE windows x86 5A9832E5287241C1838ED98914E9B7FF1 app.pdb
FUNC 1000 100 c wheedle
FUNC 2000 176 4 whine
STACK WIN 4 1000 100 0 0 c 0 0 0 1 $T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + =
STACK WIN 4 2000 176 0 0 4 10 4 0 1 $T2 $esp .cbLocals + .cbSavedRegs + = $T0 .raSearchStart = \
$eip $T0 ^ = $esp $T0 4 + = $ebp $T0 20 - ^ = $ebx $T0 8 - ^ =
";

#[tokio::test(start_paused = true)]
async fn parameters_that_a_function_removes_are_not_in_the_frame_of_its_caller() {
    const BASE: u32 = 0x4000_0000;
    const STACK: u32 = 0x8000_0000;
    const CALLER: u32 = BASE + 0x2010;
    const LAST: u32 = 0x2a17_9e38;
    let mut words = vec![0; 4];
    words.extend([0x6fa9_02e0, CALLER]);
    // Three parameters, the saved ebp, two locals, the saved ebx, one more local.
    words.extend([3, 2, 1, 0x8000_0100, 0, 0, 0x2558_c7f3, 0]);
    words.extend([LAST, 0, 0, 0, 0, 0]);
    let bytes: Vec<u8> = words.iter().copied().flat_map(u32::to_le_bytes).collect();
    let memory = memory_at(STACK.into(), &bytes);
    let context = MinidumpContext {
        raw: MinidumpRawContext::X86(CONTEXT_X86 {
            eip: BASE + 0x1004,
            esp: STACK,
            ebp: STACK + 16,
            ..CONTEXT_X86::default()
        }),
        valid: MinidumpContextValidity::All,
    };
    let module = MinidumpModule::new(BASE.into(), 0x10000, "app");
    let modules = MinidumpModuleList::from_modules(vec![module]);
    let system = SystemInfo {
        os: Os::Windows,
        os_version: None,
        os_build: None,
        cpu: Cpu::X86,
        cpu_info: None,
        cpu_microcode_version: None,
        cpu_count: 1,
    };

    let files = HashMap::from([("app".to_owned(), WITH_PARAMETERS.to_owned())]);
    let symbolizer = Symbolizer::new(string_symbol_supplier(files));
    let mut expected = CallStack::with_context(context.clone());
    let stack = Some(UnifiedMemory::Memory(&memory));
    walk_stack(0, (), &mut expected, stack, &modules, &system, &symbolizer).await;
    let expected: Vec<String> = expected.frames.iter().map(described).collect();

    let world = World::new();
    let event = world.put("global/app.sym", WITH_PARAMETERS);
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let id = "5a9832e5-2872-41c1-838e-d98914e9b7ff-1";
    let ready = |kind| world.entry("global", id, kind)?.ready().cloned();
    let caches = vec![ModuleCaches {
        cfi: ready(Kind::CfiCache),
        symbols: ready(Kind::SymCache),
    }];
    let unwinding = world.service().unwinding(caches);
    let stack = Some(UnifiedMemory::Memory(&memory));
    let walked = walk_one(&unwinding, &modules, &system, context, stack).await;
    let found: Vec<String> = walked.frames.iter().map(described).collect();
    assert_eq!(found, expected);
    let addresses = walked.frames.iter().map(|frame| frame.resume_address);
    let of_stack = [BASE + 0x1004, CALLER, LAST].map(u64::from);
    assert_eq!(addresses.take(3).collect::<Vec<_>>(), of_stack);
}
