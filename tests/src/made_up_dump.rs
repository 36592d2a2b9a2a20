//! Minidumps of processes that never ran, written byte by byte as the format describes them.

use symbolic::common::DebugId;

/// The size of the registers of x86-64, and where some of them are.
const CONTEXT_BYTES: usize = 1232;
const CONTEXT_FLAGS: usize = 0x30;
const RSP: usize = 0x98;
const RBP: usize = 0xa0;
const RIP: usize = 0xf8;

/// The types of the streams.
const THREAD_LIST: u32 = 3;
const MODULE_LIST: u32 = 4;
const MEMORY64_LIST: u32 = 9;
const EXCEPTION: u32 = 6;
const SYSTEM_INFO: u32 = 7;
const HANDLES: u32 = 12;
const UNLOADED_MODULES: u32 = 14;
const THREAD_NAMES: u32 = 24;
const CLIENT_STACKS: u32 = 0x5379_0001;

/// A minidump of a process of Linux on x86-64.
#[derive(Clone, Debug, Default)]
pub struct MadeUpDump {
    /// The stacks; threads may share one.
    pub stacks: Vec<MadeUpStack>,
    /// The threads.
    pub threads: Vec<MadeUpThread>,
    /// The modules.
    pub modules: Vec<MadeUpModule>,
    /// The id of the thread that crashed.
    pub crashed: Option<u32>,
    /// Whether the system is Windows.
    pub is_windows: bool,
    /// Whether the stream with the system is left out.
    pub without_system: bool,
    /// The stacks that the client walked, by the id of the thread: addresses and symbols.
    pub client_stacks: Vec<(u32, Vec<(u64, String)>)>,
    /// The modules that were unloaded. They have no debug ids.
    pub unloaded: Vec<MadeUpModule>,
    /// The open handles: their numbers, types and names.
    pub handles: Vec<(u64, String, String)>,
    /// Further streams, by their types.
    pub streams: Vec<(u32, Vec<u8>)>,
}

/// A stack.
#[derive(Clone, Debug)]
pub struct MadeUpStack {
    /// The address of its first byte.
    pub address: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A thread.
#[derive(Clone, Debug, Default)]
pub struct MadeUpThread {
    /// The id.
    pub id: u32,
    /// The name.
    pub name: Option<String>,
    /// The index of its stack.
    pub stack: usize,
    /// The instruction pointer.
    pub rip: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// The frame pointer.
    pub rbp: u64,
}

/// A module.
#[derive(Clone, Debug, Default)]
pub struct MadeUpModule {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub size: u32,
    /// The path of its file.
    pub name: String,
    /// Its debug id; nil if there is no debug record.
    pub debug_id: DebugId,
    /// When it was built, as a part of its code id in Windows.
    pub timestamp: u32,
}

/// Bytes that grow, and where pieces of them are.
#[derive(Default)]
struct Pieces(Vec<u8>);

impl Pieces {
    fn add(&mut self, piece: &[u8]) -> u32 {
        let at = self.0.len();
        self.0.extend_from_slice(piece);
        u32::try_from(at).unwrap_or_else(|error| panic!("{error}"))
    }

    fn add_text(&mut self, text: &str) -> u32 {
        let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let at = self.add(&length(&units).to_le_bytes());
        self.add(&units);
        at
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or_else(|error| panic!("{error}"))
}

fn context(thread: &MadeUpThread) -> Vec<u8> {
    let mut context = vec![0; CONTEXT_BYTES];
    // AMD64, with all registers.
    context[CONTEXT_FLAGS..][..4].copy_from_slice(&0x0010_000f_u32.to_le_bytes());
    for (at, value) in [(RSP, thread.rsp), (RBP, thread.rbp), (RIP, thread.rip)] {
        context[at..][..8].copy_from_slice(&value.to_le_bytes());
    }
    context
}

/// The address of the first stack, and the distance between two.
const STACK: u64 = 0x6000_0000_0000;
const STACK_BYTES: u64 = 0x1000;

impl MadeUpDump {
    /// Returns a minidump in which each thread, with an id from 1 on, has this instruction pointer
    /// and these words on its stack. The first thread crashed.
    pub fn of_threads(
        threads: impl IntoIterator<Item = (u64, Vec<u64>)>,
        modules: Vec<MadeUpModule>,
    ) -> Self {
        let mut dump = Self {
            modules,
            crashed: Some(1),
            ..Self::default()
        };
        for (number, (rip, words)) in threads.into_iter().enumerate() {
            let address = STACK + number as u64 * STACK_BYTES;
            dump.stacks.push(MadeUpStack {
                address,
                bytes: words.into_iter().flat_map(u64::to_le_bytes).collect(),
            });
            dump.threads.push(MadeUpThread {
                id: number as u32 + 1,
                stack: number,
                rip,
                rsp: address,
                ..MadeUpThread::default()
            });
        }
        dump
    }

    /// Returns the bytes of the file.
    pub fn file(&self) -> Vec<u8> {
        // The directory is written last, at the place that is reserved for it.
        let mut pieces = Pieces(vec![0; 32 + (9 + self.streams.len()) * 12]);
        let mut streams = vec![
            (THREAD_LIST, self.thread_list(&mut pieces)),
            (MODULE_LIST, self.module_list(&mut pieces)),
            (THREAD_NAMES, self.thread_names(&mut pieces)),
        ];
        if !self.without_system {
            streams.push((SYSTEM_INFO, self.system_info()));
        }
        if let Some(crashed) = self.crashed {
            streams.push((EXCEPTION, self.exception(crashed, &mut pieces)));
        }
        if !self.client_stacks.is_empty() {
            streams.push((CLIENT_STACKS, self.client_stacks()));
        }
        if !self.unloaded.is_empty() {
            streams.push((UNLOADED_MODULES, self.unloaded_modules(&mut pieces)));
        }
        if !self.handles.is_empty() {
            streams.push((HANDLES, self.handle_list(&mut pieces)));
        }
        streams.extend(self.streams.iter().cloned());
        let mut start = Vec::new();
        start.extend(b"MDMP");
        for number in [
            0xa793,
            u32::try_from(streams.len()).unwrap_or(0),
            32,
            0,
            1_700_000_000,
        ] {
            start.extend(number.to_le_bytes());
        }
        start.extend([0; 8]);
        for (kind, stream) in streams {
            let at = pieces.add(&stream);
            for number in [kind, length(&stream), at] {
                start.extend(number.to_le_bytes());
            }
        }
        pieces.0[..start.len()].copy_from_slice(&start);
        pieces.0
    }

    fn thread_list(&self, pieces: &mut Pieces) -> Vec<u8> {
        let stacks = self.stacks.iter();
        let stacks: Vec<(u64, u32, u32)> = stacks
            .map(|stack| {
                (
                    stack.address,
                    length(&stack.bytes),
                    pieces.add(&stack.bytes),
                )
            })
            .collect();
        let mut list = count(self.threads.len());
        for thread in &self.threads {
            let context = pieces.add(&context(thread));
            let (address, size, at) = stacks[thread.stack];
            for number in [thread.id, 0, 0, 0, 0, 0] {
                list.extend(number.to_le_bytes());
            }
            list.extend(address.to_le_bytes());
            for number in [size, at, CONTEXT_BYTES as u32, context] {
                list.extend(number.to_le_bytes());
            }
        }
        list
    }

    /// Returns the record with the debug id of a module: the build id of an ELF file, or the id,
    /// the age and the name of a PDB.
    fn debug_record(&self, module: &MadeUpModule) -> Vec<u8> {
        if module.debug_id.is_nil() {
            return Vec::new();
        }
        let id = module.debug_id.uuid().to_bytes_le();
        if !self.is_windows {
            return [&b"LEpB"[..], &id].concat();
        }
        let age = module.debug_id.appendix().to_le_bytes();
        let name = module.name.strip_suffix(".exe").unwrap_or(&module.name);
        let name = format!("{name}.pdb\0");
        [&b"RSDS"[..], &id, &age, name.as_bytes()].concat()
    }

    fn module_list(&self, pieces: &mut Pieces) -> Vec<u8> {
        let mut list = count(self.modules.len());
        for module in &self.modules {
            let name = pieces.add_text(&module.name);
            let record = self.debug_record(module);
            let at = pieces.add(&record);
            list.extend(module.address.to_le_bytes());
            for number in [module.size, 0, module.timestamp, name] {
                list.extend(number.to_le_bytes());
            }
            list.extend([0; 52]);
            for number in [length(&record), at, 0, 0] {
                list.extend(number.to_le_bytes());
            }
            list.extend([0; 16]);
        }
        list
    }

    fn unloaded_modules(&self, pieces: &mut Pieces) -> Vec<u8> {
        let mut list = [count(12), count(24), count(self.unloaded.len())].concat();
        for module in &self.unloaded {
            let name = pieces.add_text(&module.name);
            list.extend(module.address.to_le_bytes());
            for number in [module.size, 0, module.timestamp, name] {
                list.extend(number.to_le_bytes());
            }
        }
        list
    }

    fn handle_list(&self, pieces: &mut Pieces) -> Vec<u8> {
        let mut list = [count(16), count(40), count(self.handles.len()), count(0)].concat();
        for (handle, kind, name) in &self.handles {
            list.extend(handle.to_le_bytes());
            for number in [
                pieces.add_text(kind),
                pieces.add_text(name),
                0,
                0,
                1,
                1,
                0,
                0,
            ] {
                list.extend(number.to_le_bytes());
            }
        }
        list
    }

    fn thread_names(&self, pieces: &mut Pieces) -> Vec<u8> {
        let named = self.threads.iter();
        let named = named.filter_map(|thread| Some((thread.id, thread.name.as_ref()?)));
        let named: Vec<(u32, &String)> = named.collect();
        let mut list = count(named.len());
        for (id, name) in named {
            list.extend(id.to_le_bytes());
            list.extend(u64::from(pieces.add_text(name)).to_le_bytes());
        }
        list
    }

    fn system_info(&self) -> Vec<u8> {
        let mut info = Vec::new();
        // x86-64.
        for number in [9_u16, 0, 0, 1] {
            info.extend(number.to_le_bytes());
        }
        // Linux 5.4.0, or a Windows of this version.
        let platform = if self.is_windows { 2 } else { 0x8201 };
        for number in [5_u32, 4, 0, platform, 0, 0] {
            info.extend(number.to_le_bytes());
        }
        info.extend([0; 24]);
        info
    }

    fn client_stacks(&self) -> Vec<u8> {
        let (mut threads, mut frames) = (Vec::new(), Vec::new());
        let mut symbols: Vec<u8> = Vec::new();
        for (id, stack) in &self.client_stacks {
            threads.extend(id.to_le_bytes());
            threads.extend([count(frames.len() / 16), count(stack.len())].concat());
            for (address, symbol) in stack {
                frames.extend(address.to_le_bytes());
                frames.extend([count(symbols.len()), count(symbol.len())].concat());
                symbols.extend(symbol.as_bytes());
            }
        }
        let counts = [self.client_stacks.len(), frames.len() / 16, symbols.len()];
        let mut stream = count(1);
        stream.extend(counts.map(count).concat());
        stream.extend(threads);
        stream.resize(stream.len().next_multiple_of(8), 0);
        stream.extend(frames);
        stream.extend(symbols);
        stream
    }

    fn exception(&self, crashed: u32, pieces: &mut Pieces) -> Vec<u8> {
        let thread = self.threads.iter().find(|thread| thread.id == crashed);
        let context = thread.map_or(0, |thread| pieces.add(&context(thread)));
        let mut exception = Vec::new();
        // SIGSEGV at 0x45.
        for number in [crashed, 0, 11, 0] {
            exception.extend(number.to_le_bytes());
        }
        for number in [0_u64, 0x45] {
            exception.extend(number.to_le_bytes());
        }
        exception.extend([0; 8 + 15 * 8]);
        for number in [CONTEXT_BYTES as u32, context] {
            exception.extend(number.to_le_bytes());
        }
        exception
    }
}

fn count(elements: usize) -> Vec<u8> {
    let count = u32::try_from(elements).unwrap_or_else(|error| panic!("{error}"));
    count.to_le_bytes().to_vec()
}

/// The address of the heap in full minidumps. No module or stack of a fixture is there.
const HEAP: u64 = 0x10_0000_0000;

/// The sizes of elements of the directory, and of the list of threads.
const DIRECTORY: usize = 12;
const LISTED_THREAD: usize = 48;

fn number(file: &[u8], at: usize) -> usize {
    let bytes: [u8; 4] = file[at..][..4]
        .try_into()
        .unwrap_or_else(|error| panic!("{error}"));
    u32::from_le_bytes(bytes) as usize
}

/// Returns a minidump as a tool writes it that saves all memory: the stacks of a small one are in a
/// list of memory regions at the end of the file, after a heap of this size, of zeros.
pub fn full_dump(small: &[u8], heap: u64) -> Vec<u8> {
    let mut head = small.to_vec();
    let streams: Vec<Vec<u8>> = small[number(small, 12)..]
        .chunks_exact(DIRECTORY)
        .take(number(small, 8))
        .map(<[u8]>::to_vec)
        .collect();
    let threads = streams
        .iter()
        .find(|stream| number(stream, 0) == THREAD_LIST as usize);
    let threads = threads.map_or(0, |stream| number(stream, 8));
    let mut regions = vec![(HEAP, heap, &[][..])];
    for thread in 0..number(small, threads) {
        let at = threads + 4 + thread * LISTED_THREAD;
        let address = u64::try_from(number(small, at + 24)).unwrap_or(0)
            | (number(small, at + 28) as u64) << 32;
        let stack = &small[number(small, at + 36)..][..number(small, at + 32)];
        regions.push((address, stack.len() as u64, stack));
        // The region in the other list is the only place of the stack.
        head[at + 32..at + 40].fill(0);
    }
    let directory = head.len();
    let list = directory + (streams.len() + 1) * DIRECTORY;
    let list_bytes = 16 + 16 * regions.len();
    let memory = (list + list_bytes) as u64;
    head[8..12].copy_from_slice(&count(streams.len() + 1));
    head[12..16].copy_from_slice(&count(directory));
    streams.iter().for_each(|stream| head.extend(stream));
    head.extend(MEMORY64_LIST.to_le_bytes());
    head.extend([count(list_bytes), count(list)].concat());
    head.extend((regions.len() as u64).to_le_bytes());
    head.extend(memory.to_le_bytes());
    for (address, bytes, _) in &regions {
        head.extend([address.to_le_bytes(), bytes.to_le_bytes()].concat());
    }
    let total: u64 = memory + regions.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
    // Zeros take no memory until they are written.
    let mut file = vec![0; usize::try_from(total).unwrap_or_else(|error| panic!("{error}"))];
    file[..head.len()].copy_from_slice(&head);
    let mut end = file.len();
    for (_, _, stack) in regions.iter().rev() {
        file[end - stack.len()..end].copy_from_slice(stack);
        end -= stack.len();
    }
    file
}
