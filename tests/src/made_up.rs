//! Modules that are made up: symbol files as large as one likes, whose functions say which module
//! they are in.

use std::fmt::Write;

use serde_json::{Value, json};

/// Bytes of each function; the first one begins at this address, too.
const FUNCTION_BYTES: usize = 0x10;

/// Where the first module of a crash is mapped.
const IMAGE: usize = 0x7000_0000_0000;

/// Bytes from one module of a crash to the next.
const IMAGE_BYTES: usize = 0x1000_0000;

/// A module that is made up, and its file in Breakpad's format.
#[derive(Clone, Copy, Debug)]
pub struct MadeUp {
    number: u32,
    functions: usize,
}

impl MadeUp {
    /// Returns a module of so many functions; modules of different numbers have different ids and
    /// names.
    pub fn new(number: u32, functions: usize) -> Self {
        Self { number, functions }
    }

    /// Returns the key that it is uploaded to.
    pub fn key(self) -> String {
        format!("global/made-up/{}.sym", self.number)
    }

    /// Returns its debug id.
    pub fn debug_id(self) -> String {
        format!("decade00-0000-4000-8000-{:012x}", self.number)
    }

    /// Returns the file: about 120 bytes a function.
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

    /// Returns a crash in its first function, one in its midst, and its last.
    pub fn crash(self) -> Value {
        crash_in(&[self])
    }

    fn places(self) -> [usize; 3] {
        [0, self.functions / 2, self.functions - 1]
    }

    /// Panics unless an answer is the stack of that crash.
    pub fn assert_symbolicated(self, answer: &Value) {
        assert!(
            is_symbolicated(&[self], answer),
            "module {}: {answer:#}",
            self.number
        );
    }
}

/// Returns a crash with three frames in each of these modules: in its first function, one in its
/// midst, and its last.
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

/// Returns whether an answer is the stack of [`crash_in`] these modules.
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

/// Returns where a function begins.
fn address(at: usize) -> usize {
    (at + 1) * FUNCTION_BYTES
}
