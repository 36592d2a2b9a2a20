//! Answers to minidumps in the schema of `minidump-stackwalk`, a tool of rust-minidump. Its readers
//! (Socorro is one) receive the names and lines of our answer.
//!
//! The schema is described in `json-schema.md` of the crate `minidump-processor`. That crate writes
//! everything but the frames ([`StackwalkReport::head`]); the frames are written here.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::api::symbolicator::{
    Completed, CompletedFrame, CompletedModule, CompletedStacktrace, FrameTrust, Hex, ModuleStatus,
    ThreadSize, frames_left, json_bytes,
};

/// What a minidump says, in this schema, before its frames have names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StackwalkReport {
    /// Everything but the frames. Its threads are those of the answer, in their order.
    pub head: Map<String, Value>,
    /// Whether addresses have 32 bits.
    pub is_narrow: bool,
    /// The frames of each thread, from the callee.
    pub threads: Vec<Vec<StackwalkFrame>>,
}

/// A frame, as a walk found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackwalkFrame {
    /// The address of the instruction. In a caller, that is the call.
    pub instruction: Hex,
    /// Where the module begins that the frame lies in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<Hex>,
    /// The unloaded modules that were once at the address, with the offsets in them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unloaded: BTreeMap<String, BTreeSet<Hex>>,
}

/// The modules of an answer, by where they begin.
type ModulesByStart<'a> = HashMap<u64, &'a CompletedModule>;

impl StackwalkReport {
    /// Returns the answer in this schema.
    pub fn completed(mut self, completed: &Completed) -> Value {
        let modules = completed.modules.iter();
        let modules: ModulesByStart<'_> = modules
            .map(|module| (module.module.image_addr.0, module))
            .collect();
        self.complete_modules(&modules);
        let threads = self.threads.iter().zip(&completed.stacktraces);
        let frames: Vec<Vec<Value>> = threads
            .map(|(walked, stacktrace)| self.frames(walked, stacktrace, &modules))
            .collect();
        if let Some(Value::Array(threads)) = self.head.get_mut("threads") {
            for (thread, frames) in threads.iter_mut().zip(frames) {
                thread["frame_count"] = frames.len().into();
                thread["frames"] = frames.into();
            }
        }
        self.complete_crashing_thread();
        Value::Object(self.head)
    }

    /// Writes an address in the width of the processor.
    fn address(&self, address: u64) -> Value {
        if self.is_narrow {
            format!("{address:#010x}")
        } else {
            format!("{address:#018x}")
        }
        .into()
    }

    /// Says which modules have symbols, and completes their ids.
    fn complete_modules(&mut self, modules: &ModulesByStart<'_>) {
        let Some(Value::Array(listed)) = self.head.get_mut("modules") else {
            return;
        };
        for listed in listed {
            let start = listed["base_addr"]
                .as_str()
                .and_then(|text| text.parse::<Hex>().ok());
            let Some(module) = start.and_then(|Hex(start)| modules.get(&start)) else {
                continue;
            };
            let status = module.debug_status;
            listed["loaded_symbols"] = (status == ModuleStatus::Found).into();
            listed["corrupt_symbols"] = (status == ModuleStatus::Malformed).into();
            let is_missing = !matches!(status, ModuleStatus::Found | ModuleStatus::Unused);
            listed["missing_symbols"] = is_missing.into();
            if let Some(id) = module.module.debug_id {
                listed["debug_id"] = id.breakpad().to_string().into();
            }
        }
    }

    /// Returns the frames of a thread that the answer has, with their names.
    fn frames(
        &self,
        walked: &[StackwalkFrame],
        stacktrace: &CompletedStacktrace,
        modules: &ModulesByStart<'_>,
    ) -> Vec<Value> {
        let mut frames = Vec::with_capacity(walked.len());
        // The functions of a frame follow one another, from the innermost one.
        for functions in stacktrace
            .frames
            .chunk_by(|a, b| a.original_index == b.original_index)
        {
            let index = functions.first().and_then(|first| first.original_index);
            let walked = index.and_then(|index| walked.get(index));
            if let (Some(walked), [inlined @ .., function]) = (walked, functions) {
                frames.push(self.frame(frames.len(), walked, inlined, function, modules));
            }
        }
        frames
    }

    fn frame(
        &self,
        number: usize,
        walked: &StackwalkFrame,
        inlined: &[CompletedFrame],
        function: &CompletedFrame,
        modules: &ModulesByStart<'_>,
    ) -> Value {
        let Hex(instruction) = walked.instruction;
        let CompletedFrame { frame, .. } = function;
        let after = |start: Hex| self.address(instruction.saturating_sub(start.0));
        let module = walked.module.and_then(|Hex(start)| modules.get(&start));
        let code_file = module.and_then(|module| module.module.code_file.as_deref());
        let inlines: Vec<Value> = inlined.iter().map(named).collect();
        let unloaded: Vec<Value> = walked
            .unloaded
            .iter()
            .map(|(name, offsets)| {
                let offsets = offsets.iter().map(|offset| self.address(offset.0));
                json!({"module": name, "offsets": offsets.collect::<Value>()})
            })
            .collect();
        let mut written = named(function);
        written["frame"] = number.into();
        written["module"] = code_file.map(basename).into();
        written["offset"] = self.address(instruction);
        written["module_offset"] = walked.module.map(after).into();
        written["function_offset"] = frame.sym_addr.map(after).into();
        written["inlines"] = listed(inlines);
        written["unloaded_modules"] = listed(unloaded);
        written["missing_symbols"] = written["function"].is_null().into();
        written["trust"] = trust(frame.trust).into();
        written
    }

    /// Repeats the thread that crashed beside the others, with its registers.
    fn complete_crashing_thread(&mut self) {
        let index = self
            .head
            .get("crash_info")
            .map(|info| &info["crashing_thread"]);
        let Some(index) = index.and_then(Value::as_u64) else {
            return;
        };
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let thread = self
            .head
            .get("threads")
            .and_then(|threads| threads.get(at))
            .cloned();
        let Some(mut thread) = thread else {
            return;
        };
        let before = self.head.get_mut("crashing_thread");
        let registers = before.and_then(|before| before.pointer_mut("/frames/0/registers"));
        if let (Some(registers), Some(first)) = (registers, thread.pointer_mut("/frames/0")) {
            first["registers"] = registers.take();
        }
        thread["threads_index"] = index.into();
        self.head.insert("crashing_thread".to_owned(), thread);
    }
}

/// Leaves outer frames out of an answer in this schema, until it has `excess` bytes less. Returns
/// how many threads have fewer frames than before.
pub fn leave_out_frames(answer: &mut Value, excess: usize) -> usize {
    let crashed = answer["crashing_thread"]["threads_index"].as_u64();
    let threads = answer["threads"].as_array();
    let threads = threads.map(Vec::as_slice).unwrap_or_default();
    let sizes = (0_u64..).zip(threads).map(|(index, thread)| {
        let has_crashed = crashed == Some(index);
        // The answer repeats the thread that crashed.
        let times = if has_crashed { 2 } else { 1 };
        let frames = thread["frames"].as_array();
        let bytes = frames.into_iter().flatten().map(json_bytes);
        ThreadSize {
            has_crashed,
            frames: bytes.map(|bytes| times * bytes).collect(),
        }
    });
    let sizes: Vec<ThreadSize> = sizes.collect();
    let left = frames_left(&sizes, excess);
    let mut shortened = 0;
    for (index, (size, left)) in sizes.iter().zip(left).enumerate() {
        if left < size.frames.len() {
            shortened += 1;
            keep_inner(&mut answer["threads"][index], left);
            if size.has_crashed {
                keep_inner(&mut answer["crashing_thread"], left);
            }
        }
    }
    shortened
}

fn keep_inner(thread: &mut Value, frames: usize) {
    if let Some(all) = thread["frames"].as_array_mut() {
        all.truncate(frames);
    }
    thread["frame_count"] = frames.into();
}

/// Returns the name and the line of a function.
fn named(function: &CompletedFrame) -> Value {
    let frame = &function.frame;
    json!({
        "function": frame.function.as_ref().or(frame.symbol.as_ref()),
        "file": frame.abs_path.as_ref().or(frame.filename.as_ref()),
        "line": frame.lineno.filter(|line| *line != 0),
    })
}

/// Returns a list, which the schema omits if it is empty.
fn listed(list: Vec<Value>) -> Value {
    if list.is_empty() {
        Value::Null
    } else {
        list.into()
    }
}

fn basename(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

fn trust(trust: FrameTrust) -> &'static str {
    match trust {
        FrameTrust::None => "none",
        FrameTrust::Scan => "scan",
        FrameTrust::CfiScan => "cfi_scan",
        FrameTrust::Fp => "frame_pointer",
        FrameTrust::Cfi => "cfi",
        FrameTrust::PreWalked => "prewalked",
        FrameTrust::Context => "context",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::{FrameStatus, Module};
    use crate::domain::{Features, ObjectType};

    /// A frame of the answer for the frame of the walk with this index.
    fn function(index: usize, name: &str, trust: FrameTrust) -> CompletedFrame {
        let mut completed = CompletedFrame {
            status: FrameStatus::Symbolicated,
            original_index: Some(index),
            frame: Default::default(),
        };
        completed.frame.function = Some(name.into());
        completed.frame.lineno = Some(7);
        completed.frame.sym_addr = Some(Hex(0x1010));
        completed.frame.trust = trust;
        completed
    }

    fn module() -> CompletedModule {
        CompletedModule {
            debug_status: ModuleStatus::Malformed,
            unwind_status: None,
            debug_detail: None,
            features: Features::default(),
            arch: String::new(),
            module: Module {
                object_type: ObjectType::Pe,
                code_id: None,
                code_file: Some("C:\\app\\app.exe".into()),
                debug_id: None,
                debug_file: None,
                debug_checksum: None,
                image_addr: Hex(0x1000),
                image_size: None,
            },
            candidates: Vec::new(),
        }
    }

    #[test]
    fn frames_that_the_answer_does_not_have_are_not_in_the_report() {
        let walked = |instruction| StackwalkFrame {
            instruction: Hex(instruction),
            module: Some(Hex(0x1000)),
            unloaded: BTreeMap::new(),
        };
        let head = json!({
            "threads": [{"frames": []}, {"frames": [], "frame_count": 0}],
            "modules": [{"base_addr": "0x00001000"}],
            "crash_info": {"crashing_thread": 1},
            "crashing_thread": {"frames": [{"registers": {"eip": "0x00001020"}}]},
        });
        let report = StackwalkReport {
            head: head.as_object().unwrap().clone(),
            is_narrow: true,
            threads: vec![
                Vec::new(),
                vec![walked(0x1020), walked(0x1030), walked(0x1040)],
            ],
        };
        let completed = Completed {
            stacktraces: vec![
                CompletedStacktrace::default(),
                CompletedStacktrace {
                    frames: vec![
                        function(0, "inlined", FrameTrust::Context),
                        function(0, "outer", FrameTrust::Context),
                        function(2, "caller", FrameTrust::Fp),
                    ],
                    ..CompletedStacktrace::default()
                },
            ],
            modules: vec![module()],
            ..Completed::default()
        };
        let answer = report.completed(&completed);
        assert_eq!(answer["modules"][0]["corrupt_symbols"], true);
        assert_eq!(answer["modules"][0]["missing_symbols"], true);
        let thread = &answer["crashing_thread"];
        assert_eq!(
            (&thread["threads_index"], &thread["frame_count"]),
            (&json!(1), &json!(2))
        );
        assert_eq!(
            thread["frames"][0],
            json!({
                "frame": 0, "module": "app.exe", "function": "outer", "file": null, "line": 7,
                "offset": "0x00001020", "module_offset": "0x00000020", "function_offset": "0x00000010",
                "inlines": [{"function": "inlined", "file": null, "line": 7}],
                "unloaded_modules": null, "missing_symbols": false, "trust": "context",
                "registers": {"eip": "0x00001020"},
            })
        );
        let caller = &answer["threads"][1]["frames"][1];
        assert_eq!(
            (&caller["function"], &caller["trust"]),
            (&json!("caller"), &json!("frame_pointer"))
        );
        assert_eq!(answer["threads"][1]["frames"][0].get("registers"), None);
    }
}
