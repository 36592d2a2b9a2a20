//! Generated modules: symbol files of any size, whose function names contain the number of their
//! module.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::made_up_dump::{MadeUpDump, MadeUpModule};

/// Bytes of each function, and the address of the first one.
const FUNCTION_BYTES: usize = 0x10;

/// Address at which the first module of a crash is mapped.
const IMAGE: usize = 0x7000_0000_0000;

/// Bytes from one module of a crash to the next.
const IMAGE_BYTES: usize = 0x1000_0000;

/// A generated module with its Breakpad symbol file.
#[derive(Clone, Copy, Debug)]
pub struct MadeUp {
    number: u32,
    functions: usize,
}

impl MadeUp {
    /// Returns a module with this many functions. Modules with different numbers have different ids
    /// and names.
    pub fn new(number: u32, functions: usize) -> Self {
        Self { number, functions }
    }

    /// Returns the key for its upload.
    pub fn key(self) -> String {
        format!("global/made-up/{}.sym", self.number)
    }

    /// Returns its debug id.
    pub fn debug_id(self) -> String {
        format!("decade00-0000-4000-8000-{:012x}", self.number)
    }

    /// Returns the symbol file: about 120 bytes per function.
    ///
    /// Source of the format: Breakpad, docs/symbol_files.md.
    pub fn file(self) -> Vec<u8> {
        let id = self.debug_id().replace('-', "").to_ascii_uppercase();
        let mut file = format!("MODULE Linux x86_64 {id}0 made-up\nFILE 0 /src/made_up.c\n");
        let half = FUNCTION_BYTES / 2;
        for at in 0..self.functions {
            let (begin, middle) = (address(at), address(at) + half);
            let (name, line, next) = (self.name(at), 2 * at + 1, 2 * at + 2);
            let _ = write!(
                file,
                "FUNC {begin:x} {FUNCTION_BYTES:x} 0 {name}\n{begin:x} {half:x} {line} 0\n{middle:x} {half:x} {next} 0\n"
            );
        }
        for begin in (0..self.functions).map(address) {
            let _ = writeln!(
                file,
                "STACK CFI INIT {begin:x} {FUNCTION_BYTES:x} .cfa: $rsp 8 + .ra: .cfa -8 + ^"
            );
        }
        file.into_bytes()
    }

    fn name(self, at: usize) -> String {
        format!("function_{at}_of_module_{}", self.number)
    }

    /// Returns a crash with three frames: in its first, its middle and its last function.
    pub fn crash(self) -> Value {
        crash_in(&[self])
    }

    fn places(self) -> [usize; 3] {
        [0, self.functions / 2, self.functions - 1]
    }

    /// Panics unless a response contains the symbolicated stack of that crash.
    pub fn assert_symbolicated(self, answer: &Value) {
        assert!(
            is_symbolicated(&[self], answer),
            "module {}: {answer:#}",
            self.number
        );
    }
}

/// Returns a crash with three frames in each of these modules: in its first, its middle and its
/// last function.
pub fn crash_in(modules: &[MadeUp]) -> Value {
    let image = |at: usize| IMAGE + at * IMAGE_BYTES;
    let module = |(at, module): (usize, &MadeUp)| {
        json!({
            "type": "elf",
            "debug_id": module.debug_id(),
            "image_addr": format!("{:#x}", image(at)),
            "image_size": IMAGE_BYTES,
        })
    };
    let frames = |(at, module): (usize, &MadeUp)| {
        module.places().map(|place| {
            let address = image(at) + address(place);
            json!({"instruction_addr": format!("{address:#x}"), "adjust_instruction_addr": false})
        })
    };
    json!({
        "modules": modules.iter().enumerate().map(module).collect::<Vec<_>>(),
        "stacktraces": [{"frames": modules.iter().enumerate().flat_map(frames).collect::<Vec<_>>()}],
    })
}

/// Returns whether a response contains the symbolicated stack of [`crash_in`] for these modules.
pub fn is_symbolicated(modules: &[MadeUp], answer: &Value) -> bool {
    let frames = answer["stacktraces"][0]["frames"].as_array();
    let names = frames
        .into_iter()
        .flatten()
        .map(|frame| frame["function"].as_str());
    let expected = modules
        .iter()
        .flat_map(|module| module.places().map(|place| module.name(place)));
    let expected: Vec<String> = expected.collect();
    names.eq(expected.iter().map(|name| Some(name.as_str())))
}

/// A minidump of threads whose frames are in made-up modules, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct MadeUpCrash<'a> {
    /// The modules.
    pub modules: &'a [MadeUp],
    /// The number of modules at the end of these in which no frame is, although words of the
    /// stacks point into them.
    pub unreached: usize,
    /// The number of threads.
    pub threads: usize,
    /// The number of frames of each thread.
    pub frames: usize,
}

impl MadeUpCrash<'_> {
    /// Returns the module and the function of a frame. Frames next to each other are in different
    /// modules.
    fn place(&self, thread: usize, frame: usize) -> (usize, usize) {
        let module = (thread + frame) % (self.modules.len() - self.unreached);
        let functions = self.modules[module].functions;
        (module, (thread * 131 + frame * 17) % functions)
    }

    /// Returns the minidump.
    pub fn dump(&self) -> Vec<u8> {
        let image = |at: usize| (IMAGE + at * IMAGE_BYTES) as u64;
        // In the middle of a function, so that the call before it is in the function, too.
        let at = |thread: usize, frame: usize| {
            let (module, function) = self.place(thread, frame);
            image(module) + (address(function) + FUNCTION_BYTES / 2) as u64
        };
        let modules = (0..)
            .zip(self.modules)
            .map(|(number, module)| MadeUpModule {
                address: image(number),
                size: IMAGE_BYTES as u32,
                name: format!("/opt/made-up-{number}"),
                debug_id: module.debug_id().parse().unwrap_or_default(),
                ..MadeUpModule::default()
            });
        let unreached = self.modules.len() - self.unreached..self.modules.len();
        let unreached = unreached.map(|module| image(module) + address(1) as u64);
        let threads = (0..self.threads).map(|thread| {
            let callers = (1..self.frames).map(|frame| at(thread, frame));
            let words = callers.chain([0; 8]).chain(unreached.clone());
            (at(thread, 0), words.collect())
        });
        MadeUpDump::of_threads(threads, modules.collect()).file()
    }

    /// Returns whether a response has all frames, with their names.
    pub fn is_symbolicated(&self, answer: &Value) -> bool {
        let names = |stacktrace: &Value| {
            let frames = stacktrace["frames"].as_array().into_iter().flatten();
            let names = frames.map(|frame| frame["function"].as_str().map(str::to_owned));
            names.collect::<Vec<_>>()
        };
        let found = answer["stacktraces"]
            .as_array()
            .into_iter()
            .flatten()
            .map(names);
        let expected = (0..self.threads).map(|thread| {
            let places = (0..self.frames).map(|frame| self.place(thread, frame));
            let names = places.map(|(module, function)| Some(self.modules[module].name(function)));
            names.collect::<Vec<_>>()
        });
        found.eq(expected)
    }
}

/// Returns the first address of a function.
fn address(at: usize) -> usize {
    (at + 1) * FUNCTION_BYTES
}
