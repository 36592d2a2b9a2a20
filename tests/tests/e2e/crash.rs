//! Crashes, and the expected results from other tools.

use serde_json::{Value, json};

use crate::json_of;

/// The address at which the modules of generated crashes are mapped.
const IMAGE: u64 = 0x7000_0000_0000;

/// Returns the crash of the sample program.
pub(crate) fn sample() -> Value {
    json_of("crash.json")
}

/// Returns the ids of the sample program's module.
pub(crate) fn sample_module() -> Value {
    sample()["modules"][0].clone()
}

/// Panics unless a response is the stack of the sample crash, for which gdb and llvm-symbolizer
/// agree.
pub(crate) fn assert_symbolicated(answer: &Value) {
    let expected = json_of("crash.expected.json");
    let expected = expected["frames"].as_array().unwrap();
    let frames = answer["stacktraces"][0]["frames"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer:#}"));
    assert_eq!(
        answer["modules"][0]["debug_status"], "found",
        "{:#}",
        answer["modules"]
    );
    assert_eq!(frames.len(), expected.len(), "{frames:#?}");
    let innermost = address(&expected[0]["instruction_addr"]);
    for (at, (frame, expected)) in frames.iter().zip(expected).enumerate() {
        assert_eq!(frame["status"], "symbolicated", "frame {at}");
        // The address of a caller is its return address. The service looks up the call before it,
        // and returns that address.
        let sent = address(&expected["instruction_addr"]);
        let looked_up = if sent == innermost { sent } else { sent - 1 };
        assert_eq!(address(&frame["instruction_addr"]), looked_up, "frame {at}");
        assert_eq!(frame["abs_path"], expected["file"], "frame {at}");
        assert_eq!(frame["lineno"], expected["line"], "frame {at}");
        let symbol = if expected["mangled"].is_string() {
            &expected["mangled"]
        } else {
            &expected["function"]
        };
        assert_eq!(frame["symbol"], *symbol, "frame {at}");
        // Demanglers differ in template arguments and parameters, which the symbol contains.
        let gdb = expected["gdb"].as_str().unwrap();
        let plain_name = gdb
            .split(['<', '('])
            .next()
            .filter(|name| !name.ends_with("::"))
            .unwrap_or(gdb);
        assert!(
            frame["function"].as_str().unwrap().starts_with(plain_name),
            "frame {at}: {} is {gdb} in gdb",
            frame["function"]
        );
        // Frames of inlined calls have the same original index as the next frame that is not
        // inlined, which is their caller.
        let is_inlined = frames
            .get(at + 1)
            .is_some_and(|next| next["original_index"] == frame["original_index"]);
        assert_eq!(
            is_inlined,
            expected["inlined"].as_bool().unwrap_or(false),
            "frame {at}"
        );
    }
}

/// Panics unless a response has this status for its one module, and no names or lines in its
/// frames.
pub(crate) fn assert_nothing_found(answer: &Value, debug_status: &str) {
    assert_eq!(
        answer["modules"][0]["debug_status"], debug_status,
        "{answer:#}"
    );
    let frames = answer["stacktraces"][0]["frames"].as_array().unwrap();
    assert!(
        frames
            .iter()
            .all(|frame| frame["function"].is_null() && frame["lineno"].is_null()),
        "{frames:#?}"
    );
}

/// Returns a crash of one module, with a frame at each of these addresses in it.
pub(crate) fn of_module(mut module: Value, addresses: &[u64]) -> Value {
    if module["type"] == "wasm" {
        // A WebAssembly module has no image address. With one, addresses would be rounded to four
        // bytes.
        let frame = |address: &u64| json!({"instruction_addr": format!("{address:#x}"), "addr_mode": "rel:0"});
        return json!({"modules": [module], "stacktraces": [{"frames": addresses.iter().map(frame).collect::<Vec<_>>()}]});
    }
    module["image_addr"] = format!("{IMAGE:#x}").into();
    let frame = |address: &u64| json!({"instruction_addr": format!("{:#x}", IMAGE + address), "adjust_instruction_addr": false});
    json!({
        "modules": [module],
        "stacktraces": [{"frames": addresses.iter().map(frame).collect::<Vec<_>>()}],
    })
}

/// Returns a module with these ids.
pub(crate) fn module(kind: &str, debug_id: &str, code_id: Option<&str>) -> Value {
    let mut module = json!({"type": kind, "debug_id": debug_id});
    if let Some(code_id) = code_id {
        module["code_id"] = code_id.into();
    }
    module
}

/// The expected file and line of each frame at some addresses, innermost first, as another tool
/// determines them.
pub(crate) struct Oracle {
    /// The addresses, relative to the module.
    pub(crate) addresses: Vec<u64>,
    lines: Vec<Vec<(String, u64)>>,
}

impl Oracle {
    /// Reads the result of a tool for a fixture; skips addresses with a frame that has no line.
    pub(crate) fn of(name: &str) -> Self {
        let said = json_of(name);
        let mut oracle = Self {
            addresses: Vec::new(),
            lines: Vec::new(),
        };
        for place in said["frames"].as_array().unwrap() {
            let line = |frame: &Value| {
                Some((
                    base_name(frame["file"].as_str()?),
                    frame["line"].as_u64().filter(|line| *line > 0)?,
                ))
            };
            let lines: Option<Vec<_>> = place["frames"]
                .as_array()
                .unwrap()
                .iter()
                .map(line)
                .collect();
            if let Some(lines) = lines.filter(|lines| !lines.is_empty()) {
                oracle.addresses.push(address(&place["address"]));
                oracle.lines.push(lines);
            }
        }
        assert!(
            oracle.addresses.len() > 20,
            "{name}: too few addresses: {}",
            oracle.addresses.len()
        );
        oracle
    }

    /// Keeps only the innermost frame of each address.
    pub(crate) fn innermost(mut self) -> Self {
        self.lines.iter_mut().for_each(|lines| lines.truncate(1));
        self
    }

    /// Panics unless a response agrees for the frames that [`of_module`] makes from the addresses.
    pub(crate) fn assert_agrees(&self, answer: &Value) {
        let frames = answer["stacktraces"][0]["frames"]
            .as_array()
            .unwrap_or_else(|| panic!("{answer:#}"));
        for (at, expected) in self.lines.iter().enumerate() {
            let mine = frames.iter().filter(|frame| frame["original_index"] == at);
            let lines: Vec<(String, u64)> = mine
                .map(|frame| {
                    (
                        base_name(frame["abs_path"].as_str().unwrap_or_default()),
                        frame["lineno"].as_u64().unwrap_or(0),
                    )
                })
                .collect();
            assert_eq!(
                lines.get(..expected.len()),
                Some(&**expected),
                "at {:#x}: {lines:?}",
                self.addresses[at]
            );
        }
    }
}

fn address(text: &Value) -> u64 {
    u64::from_str_radix(text.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

fn base_name(path: &str) -> String {
    path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned()
}
