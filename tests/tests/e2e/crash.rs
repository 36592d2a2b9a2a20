//! Crashes, and what other tools say of them.

use serde_json::{Value, json};

use crate::json_of;

/// Where the modules of made-up crashes are mapped.
const IMAGE: u64 = 0x7000_0000_0000;

/// Returns the crash of the sample program.
pub(crate) fn sample() -> Value {
    json_of("crash.json")
}

/// Returns the ids of the sample program's module.
pub(crate) fn sample_module() -> Value {
    sample()["modules"][0].clone()
}

/// Panics unless an answer is the stack of the sample crash, as gdb and llvm-symbolizer agree on it.
pub(crate) fn assert_symbolicated(answer: &Value) {
    let expected = json_of("crash.expected.json");
    let expected = expected["frames"].as_array().unwrap();
    let frames = answer["stacktraces"][0]["frames"].as_array().unwrap_or_else(|| panic!("{answer:#}"));
    assert_eq!(answer["modules"][0]["debug_status"], "found", "{:#}", answer["modules"]);
    assert_eq!(frames.len(), expected.len(), "{frames:#?}");
    for (at, (frame, expected)) in frames.iter().zip(expected).enumerate() {
        assert_eq!(frame["status"], "symbolicated", "frame {at}");
        assert_eq!(frame["instruction_addr"], expected["instruction_addr"], "frame {at}");
        assert_eq!(frame["abs_path"], expected["file"], "frame {at}");
        assert_eq!(frame["lineno"], expected["line"], "frame {at}");
        let symbol = if expected["mangled"].is_string() { &expected["mangled"] } else { &expected["function"] };
        assert_eq!(frame["symbol"], *symbol, "frame {at}");
        // gdb names functions without their parameters.
        let (name, gdb) = (frame["function"].as_str().unwrap(), expected["gdb"].as_str().unwrap());
        assert!(name.replace(' ', "").starts_with(&gdb.replace(' ', "")), "frame {at}: {name} is {gdb} in gdb");
        // Inlined calls come from the frame of their caller, which is the next one that is not inlined.
        let is_inlined = frames.get(at + 1).is_some_and(|next| next["original_index"] == frame["original_index"]);
        assert_eq!(is_inlined, expected["inlined"].as_bool().unwrap_or(false), "frame {at}");
    }
}

/// Panics unless an answer says this of its one module, and nothing of its frames.
pub(crate) fn assert_nothing_found(answer: &Value, debug_status: &str) {
    assert_eq!(answer["modules"][0]["debug_status"], debug_status, "{answer:#}");
    let frames = answer["stacktraces"][0]["frames"].as_array().unwrap();
    assert!(frames.iter().all(|frame| frame["function"].is_null() && frame["lineno"].is_null()), "{frames:#?}");
}

/// Returns a crash of one module, with a frame at each of these addresses in it.
pub(crate) fn of_module(mut module: Value, addresses: &[u64]) -> Value {
    module["image_addr"] = format!("{IMAGE:#x}").into();
    let frame = |address: &u64| json!({"instruction_addr": format!("{:#x}", IMAGE + address), "adjust_instruction_addr": false});
    json!({
        "modules": [module],
        "stacktraces": [{"frames": addresses.iter().map(frame).collect::<Vec<_>>()}],
    })
}

/// Returns a module of these ids.
pub(crate) fn module(kind: &str, debug_id: &str, code_id: Option<&str>) -> Value {
    let mut module = json!({"type": kind, "debug_id": debug_id});
    if let Some(code_id) = code_id {
        module["code_id"] = code_id.into();
    }
    module
}

/// What a tool says of one address: file and line of each frame, innermost first.
pub(crate) struct Oracle {
    /// The addresses, relative to the module.
    pub(crate) addresses: Vec<u64>,
    lines: Vec<Vec<(String, u64)>>,
}

impl Oracle {
    /// Reads what a tool said of a fixture; only addresses whose every frame has a line.
    pub(crate) fn of(name: &str) -> Self {
        let said = json_of(name);
        let mut oracle = Self { addresses: Vec::new(), lines: Vec::new() };
        for place in said["frames"].as_array().unwrap() {
            let line = |frame: &Value| Some((base_name(frame["file"].as_str()?), frame["line"].as_u64().filter(|line| *line > 0)?));
            let lines: Option<Vec<_>> = place["frames"].as_array().unwrap().iter().map(line).collect();
            if let Some(lines) = lines.filter(|lines| !lines.is_empty()) {
                let address = place["address"].as_str().unwrap();
                oracle.addresses.push(u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap());
                oracle.lines.push(lines);
            }
        }
        assert!(oracle.addresses.len() > 20, "{name} says little: {}", oracle.addresses.len());
        oracle
    }

    /// Panics unless an answer says the same of the frames that [`of_module`] makes of the addresses.
    pub(crate) fn assert_agrees(&self, answer: &Value) {
        let frames = answer["stacktraces"][0]["frames"].as_array().unwrap_or_else(|| panic!("{answer:#}"));
        for (at, expected) in self.lines.iter().enumerate() {
            let mine = frames.iter().filter(|frame| frame["original_index"] == at);
            let lines: Vec<(String, u64)> = mine
                .map(|frame| (base_name(frame["abs_path"].as_str().unwrap_or_default()), frame["lineno"].as_u64().unwrap_or(0)))
                .collect();
            assert_eq!(lines, *expected, "at {:#x}", self.addresses[at]);
        }
    }
}

fn base_name(path: &str) -> String {
    path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned()
}
