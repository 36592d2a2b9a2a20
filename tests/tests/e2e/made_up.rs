//! Modules that are made up: symbol files as large as one likes, whose functions say which module they are in.

use std::fmt::Write;

use serde_json::Value;

use crate::crash;

/// Bytes of each function; the first one begins at this address, too.
const FUNCTION_BYTES: usize = 0x10;

/// A module that is made up, and its file in Breakpad's format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeUp {
    number: u32,
    functions: usize,
}

impl MadeUp {
    /// Returns a module of so many functions; modules of different numbers have different ids and names.
    pub(crate) fn new(number: u32, functions: usize) -> Self {
        Self { number, functions }
    }

    /// Returns the key that it is uploaded to.
    pub(crate) fn key(self) -> String {
        format!("global/made-up/{}.sym", self.number)
    }

    /// Returns its debug id.
    pub(crate) fn debug_id(self) -> String {
        format!("decade00-0000-4000-8000-{:012x}", self.number)
    }

    /// Returns the file: about 120 bytes a function.
    ///
    /// Source of the format: Breakpad, docs/symbol_files.md.
    pub(crate) fn file(self) -> Vec<u8> {
        let id = self.debug_id().replace('-', "").to_ascii_uppercase();
        let mut file = format!("MODULE Linux x86_64 {id}0 made-up\nFILE 0 /src/made_up.c\n");
        let half = FUNCTION_BYTES / 2;
        for at in 0..self.functions {
            let (begin, middle) = (address(at), address(at) + half);
            let (name, line, next) = (self.name(at), 2 * at + 1, 2 * at + 2);
            let function = write!(
                file,
                "FUNC {begin:x} {FUNCTION_BYTES:x} 0 {name}\n{begin:x} {half:x} {line} 0\n{middle:x} {half:x} {next} 0\n"
            );
            function.unwrap();
        }
        for begin in (0..self.functions).map(address) {
            let unwinding = writeln!(
                file,
                "STACK CFI INIT {begin:x} {FUNCTION_BYTES:x} .cfa: $rsp 8 + .ra: .cfa -8 + ^"
            );
            unwinding.unwrap();
        }
        file.into_bytes()
    }

    fn name(self, at: usize) -> String {
        format!("function_{at}_of_module_{}", self.number)
    }

    /// Returns a crash in its first function, one in its midst, and its last.
    pub(crate) fn crash(self) -> Value {
        let module = crash::module("elf", &self.debug_id(), None);
        let addresses = self.places().map(|at| address(at) as u64);
        crash::of_module(module, &addresses)
    }

    fn places(self) -> [usize; 3] {
        [0, self.functions / 2, self.functions - 1]
    }

    /// Panics unless an answer is the stack of that crash.
    pub(crate) fn assert_symbolicated(self, answer: &Value) {
        let frames = answer["stacktraces"][0]["frames"]
            .as_array()
            .unwrap_or_else(|| panic!("{answer:#}"));
        let names = frames.iter().map(|frame| frame["function"].as_str());
        let expected = self.places().map(|at| self.name(at));
        assert!(
            names.eq(expected.iter().map(|name| Some(name.as_str()))),
            "module {}: {answer:#}",
            self.number
        );
    }
}

/// Returns where a function begins.
fn address(at: usize) -> usize {
    (at + 1) * FUNCTION_BYTES
}
