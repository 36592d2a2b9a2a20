//! Tests of whole requests, over small caches.

use std::io::Cursor;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use symbolic::debuginfo::Object;
use symbolic::ppdb::PortablePdbCache;
use symbolic::symcache::{SymCache, SymCacheConverter};

use super::*;
use crate::api::symbolicator::{
    AddrMode, Frame, FrameOrder, FrameTrust, Hex, Module, Options, Response, Stacktrace,
    parse_request,
};
use crate::domain::{
    Arch, Candidate, Cause, Download, Features, Kind, Location, Missing, ObjectType, SourceKey,
};

/// Two functions; the second has an inlined one at its end, in which another is inlined.
const BREAKPAD: &str = "\
MODULE Linux x86_64 492E2DD23CC306CA9C494EEF1533A3810 demo
FILE 0 /src/main.cpp
FILE 1 /src/./lib/../inner.h
INLINE_ORIGIN 0 outer_inline()
INLINE_ORIGIN 1 _ZN4demo12inner_inlineEv
FUNC 1000 20 0 _start
1000 20 7 0
FUNC 2000 30 0 _ZN4demo4workEi
INLINE 0 22 0 0 2020 10
INLINE 1 11 1 1 2020 10
2000 20 21 0
2020 10 5 1
PUBLIC 5000 0 exported
";

fn sym_cache(breakpad: &str) -> Vec<u8> {
    let mut converter = SymCacheConverter::new();
    converter
        .process_object(&Object::parse(breakpad.as_bytes()).unwrap())
        .unwrap();
    let mut cache = Vec::new();
    converter.serialize(&mut Cursor::new(&mut cache)).unwrap();
    cache
}

/// Symbolicates a request with the same outcome for every module of its plan.
fn answer(request: Value, outcome: &ModuleOutcome<'_>) -> (Value, Stats) {
    let request = parse_request(request.to_string().as_bytes()).unwrap();
    let plan = plan(&request);
    let (completed, stats) =
        symbolicate(&request, &plan, &vec![outcome.clone(); plan.caches().len()]);
    (
        serde_json::to_value(Response::Completed(completed)).unwrap(),
        stats,
    )
}

/// Symbolicates a request in which every module of the plan is the demo module.
fn demo(request: Value) -> (Value, Stats) {
    demo_of(BREAKPAD, request)
}

/// Symbolicates a request in which every module of the plan has these symbols.
fn demo_of(breakpad: &str, request: Value) -> (Value, Stats) {
    let cache = sym_cache(breakpad);
    let features = Features {
        has_debug_info: true,
        ..Features::default()
    };
    let cache = LookupCache::Sym(SymCache::parse(&cache).unwrap().into());
    answer(
        request,
        &ModuleOutcome::Found {
            cache,
            features,
            arch: Arch::Amd64.name(),
            lacks: None,
            considered: Considered::default(),
        },
    )
}

/// Symbolicates frames in the demo module, which is mapped at 0x10000.
fn demo_frames(frames: Value, options: Value) -> Vec<Value> {
    let module = json!({"type": "elf", "image_addr": "0x10000", "image_size": 0x8000, "code_file": "/bin/demo"});
    let (answer, stats) =
        demo(json!({"modules": [module], "stacktraces": [{"frames": frames}], "options": options}));
    let frames = answer["stacktraces"][0]["frames"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(
        frames.len(),
        stats.frames.total() + stats.inlined - stats.dropped,
        "{stats:?}"
    );
    frames
}

/// Returns the named fields of frames, as one line each.
fn fields(frames: &[Value], names: &[&str]) -> Vec<String> {
    let line = |frame: &Value| {
        names
            .iter()
            .map(|name| frame[name].to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    frames.iter().map(line).collect()
}

/// A name of 16 KiB in ten thousand frames takes 16 KiB of memory.
#[test]
fn names_and_paths_that_frames_share_are_in_memory_once() {
    let frame = json!({"instruction_addr": "0x12025"});
    let module = json!({"type": "elf", "image_addr": "0x10000", "code_file": "/bin/demo"});
    let body = json!({"modules": [module], "stacktraces": [{"frames": [frame, frame]}]});
    let request = parse_request(body.to_string().as_bytes()).unwrap();
    let cache = sym_cache(BREAKPAD);
    let outcome = ModuleOutcome::Found {
        cache: LookupCache::Sym(SymCache::parse(&cache).unwrap().into()),
        features: Features::default(),
        arch: Arch::Amd64.name(),
        lacks: None,
        considered: Considered::default(),
    };
    let (completed, _) = symbolicate(&request, &plan(&request), &[outcome]);
    let frames = &completed.stacktraces[0].frames;
    let (one, other) = frames.split_at(frames.len() / 2);
    assert_eq!(one.len(), 3);
    for (one, other) in one.iter().zip(other) {
        for text in [
            |frame: &Frame| frame.symbol.clone(),
            |frame: &Frame| frame.function.clone(),
            |frame: &Frame| frame.filename.clone(),
            |frame: &Frame| frame.abs_path.clone(),
            |frame: &Frame| frame.package.clone(),
        ] {
            let (one, other) = (text(&one.frame).unwrap(), text(&other.frame).unwrap());
            assert!(Arc::ptr_eq(&one, &other), "{one}");
        }
    }
}

#[test]
fn an_inlined_function_comes_before_the_one_that_it_is_inlined_into() {
    let frames = demo_frames(
        json!([{"instruction_addr": "0x12025", "trust": "cfi", "platform": "native", "in_app": true}]),
        json!({}),
    );
    insta::assert_json_snapshot!(frames, @r#"
    [
      {
        "abs_path": "/src/inner.h",
        "filename": "inner.h",
        "function": "demo::inner_inline()",
        "instruction_addr": "0x12025",
        "lineno": 5,
        "original_index": 0,
        "package": "/bin/demo",
        "platform": "native",
        "status": "symbolicated",
        "symbol": "_ZN4demo12inner_inlineEv",
        "trust": "cfi"
      },
      {
        "abs_path": "/src/inner.h",
        "filename": "inner.h",
        "function": "outer_inline()",
        "instruction_addr": "0x12025",
        "lineno": 11,
        "original_index": 0,
        "package": "/bin/demo",
        "platform": "native",
        "status": "symbolicated",
        "symbol": "outer_inline()",
        "trust": "cfi"
      },
      {
        "abs_path": "/src/main.cpp",
        "filename": "main.cpp",
        "function": "demo::work(int)",
        "instruction_addr": "0x12025",
        "lineno": 22,
        "original_index": 0,
        "package": "/bin/demo",
        "platform": "native",
        "status": "symbolicated",
        "sym_addr": "0x12000",
        "symbol": "_ZN4demo4workEi",
        "trust": "cfi"
      }
    ]
    "#);
}

#[test]
fn the_topmost_frame_is_looked_up_at_its_address_and_its_callers_before_the_return() {
    let frames = demo_frames(
        json!([{"instruction_addr": "0x12020"}, {"instruction_addr": "0x12020"}]),
        json!({}),
    );
    assert_eq!(
        fields(&frames, &["original_index", "instruction_addr", "lineno"]),
        [
            r#"0 "0x12020" 5"#,
            r#"0 "0x12020" 11"#,
            r#"0 "0x12020" 22"#,
            r#"1 "0x1201f" 21"#
        ]
    );
}

/// A handler of a signal, a trampoline directly behind another function, and a function with two
/// lines, which the signal interrupted.
const WITH_SIGNAL: &str = "\
MODULE Linux x86_64 492E2DD23CC306CA9C494EEF1533A3810 demo
FILE 0 /src/main.c
FUNC 1000 20 0 handler
1000 20 3 0
FUNC 2000 10 0 before
2000 10 5 0
FUNC 2010 40 0 __restore_rt
2010 40 7 0
FUNC 3000 20 0 interrupted
3000 10 11 0
3010 10 12 0
FUNC 4000 20 0 main
4000 20 21 0
";

/// Symbolicates frames in a module with these symbols, which is mapped at 0x10000. Returns the
/// function and the line of each.
fn called(breakpad: &str, frames: Value, frame_order: &str) -> Vec<String> {
    let module = json!({"type": "elf", "image_addr": "0x10000", "image_size": 0x8000});
    let options = json!({"frame_order": frame_order});
    let request =
        json!({"modules": [module], "stacktraces": [{"frames": frames}], "options": options});
    let (answer, _) = demo_of(breakpad, request);
    let frames = answer["stacktraces"][0]["frames"].as_array().unwrap();
    fields(frames, &["function", "lineno", "instruction_addr"])
}

#[test]
fn a_trampoline_of_a_signal_and_what_the_signal_interrupted_are_at_their_addresses() {
    let at = |address: &str| json!({"instruction_addr": address});
    let expected = [
        r#""handler" 3 "0x11008""#,
        r#""__restore_rt" 7 "0x12010""#,
        r#""interrupted" 12 "0x13010""#,
        r#""main" 21 "0x14007""#,
    ];
    let stack = ["0x11008", "0x12010", "0x13010", "0x14008"];
    let callee_first = json!(stack.map(at));
    assert_eq!(called(WITH_SIGNAL, callee_first, "callee_first"), expected);
    let mut caller_first = stack.map(at);
    caller_first.reverse();
    let mut found = called(WITH_SIGNAL, json!(caller_first), "caller_first");
    found.reverse();
    assert_eq!(found, expected);

    // The client says where the topmost frame is, and nothing about the others.
    let mut frames = stack.map(at);
    frames[0]["adjust_instruction_addr"] = json!(false);
    assert_eq!(called(WITH_SIGNAL, json!(frames), "callee_first"), expected);
}

#[test]
fn on_systems_of_apple_the_trampoline_of_a_signal_calls_the_handler() {
    let symbols = WITH_SIGNAL.replace("__restore_rt", "_sigtramp");
    let at = |address: &str| json!({"instruction_addr": address});
    let stack = json!(["0x11008", "0x12030", "0x13010", "0x14008"].map(at));
    let expected = [
        r#""handler" 3 "0x11008""#,
        r#""_sigtramp" 7 "0x1202f""#,
        r#""interrupted" 12 "0x13010""#,
        r#""main" 21 "0x14007""#,
    ];
    assert_eq!(called(&symbols, stack, "callee_first"), expected);
}

/// Checks that all frames but the topmost one are return addresses, although one is the first
/// instruction of a function.
fn assert_return_addresses(symbols: &str) {
    let at = |address: &str| json!({"instruction_addr": address});
    let stack = json!(["0x11008", "0x12010", "0x13010"].map(at));
    let expected = [
        r#""handler" 3 "0x11008""#,
        r#""before" 5 "0x1200f""#,
        r#""interrupted" 11 "0x1300f""#,
    ];
    assert_eq!(called(symbols, stack, "callee_first"), expected);
}

#[test]
fn what_an_injected_function_interrupted_is_at_its_address() {
    let at = |address: &str| json!({"instruction_addr": address});
    for name in ["runtime.sigpanic", "runtime.asyncPreempt"] {
        let symbols = WITH_SIGNAL.replace("__restore_rt", name);
        let stack = json!(["0x11008", "0x12030", "0x13010", "0x14008"].map(at));
        let expected = [
            r#""handler" 3 "0x11008""#,
            &format!(r#""{name}" 7 "0x1202f""#),
            r#""interrupted" 12 "0x13010""#,
            r#""main" 21 "0x14007""#,
        ];
        assert_eq!(called(&symbols, stack, "callee_first"), expected);
        // A return address at its start is behind the function before.
        assert_return_addresses(&symbols);
    }
}

#[test]
fn a_trampoline_without_symbols_is_known_by_the_name_that_was_sent() {
    let top = json!({"instruction_addr": "0x11008"});
    let named = json!({"instruction_addr": "0x99000", "function": "__restore_rt"});
    let interrupted = json!({"instruction_addr": "0x13010"});
    let frames = json!([top, named, interrupted]);
    let found = called(WITH_SIGNAL, frames, "callee_first");
    assert_eq!(found[2], r#""interrupted" 12 "0x13010""#);
}

#[test]
fn a_frame_is_a_return_address_if_the_client_says_so_even_after_a_signal() {
    let at = |address: &str| json!({"instruction_addr": address});
    let after =
        |address: &str| json!({"instruction_addr": address, "adjust_instruction_addr": true});
    let frames = json!([at("0x11008"), after("0x12010"), at("0x13010")]);
    let found = called(WITH_SIGNAL, frames, "callee_first");
    assert_eq!(found[1], r#""before" 5 "0x1200f""#);
    assert_eq!(found[2], r#""interrupted" 11 "0x1300f""#);

    let frames = json!([at("0x11008"), at("0x12010"), after("0x13010")]);
    let found = called(WITH_SIGNAL, frames, "callee_first");
    assert_eq!(found[1], r#""__restore_rt" 7 "0x12010""#);
    assert_eq!(found[2], r#""interrupted" 11 "0x1300f""#);
}

#[test]
fn a_return_address_at_the_start_of_another_function_is_one() {
    let symbols = WITH_SIGNAL.replace("__restore_rt", "behind");
    assert_return_addresses(&symbols);
}

/// As if the C library were not uploaded.
#[test]
fn what_a_signal_interrupted_is_at_its_address_though_the_trampoline_has_no_name() {
    let at = |address: &str| json!({"instruction_addr": address});
    let stack = json!(["0x11008", "0x99000", "0x13000", "0x14008"].map(at));
    let found = called(WITH_SIGNAL, stack, "callee_first");
    assert_eq!(
        found[2..],
        [r#""interrupted" 11 "0x13000""#, r#""main" 21 "0x14007""#]
    );
    // What called a function with a name is at a call, though of a function that is not known.
    let stack = json!(["0x11008", "0x12008", "0x13000"].map(at));
    let found = called(WITH_SIGNAL, stack, "callee_first");
    assert_eq!(*found.last().unwrap(), r#"null null "0x13000""#);
    // Any other address behind a gap is in no function.
    let stack = json!(["0x11008", "0x99000", "0x12ff0"].map(at));
    let found = called(WITH_SIGNAL, stack, "callee_first");
    assert_eq!(found[2], r#"null null "0x12ff0""#);
}

#[test]
fn a_pointer_to_a_function_that_was_found_by_scanning_is_no_frame() {
    for trust in ["scan", "cfi"] {
        let pointer = json!({"instruction_addr": "0x13000", "trust": trust});
        let frames = json!([{"instruction_addr": "0x11008"}, pointer]);
        let found = called(WITH_SIGNAL, frames, "callee_first");
        assert_eq!(found.len(), if trust == "scan" { 1 } else { 2 }, "{trust}");
    }
}

#[test]
fn frames_sent_caller_first_are_returned_caller_first() {
    let frames = demo_frames(
        json!([{"instruction_addr": "0x11008"}, {"instruction_addr": "0x12020"}]),
        json!({"frame_order": "caller_first"}),
    );
    assert_eq!(
        fields(&frames, &["original_index", "instruction_addr", "lineno"]),
        [
            r#"1 "0x11007" 7"#,
            r#"0 "0x12020" 22"#,
            r#"0 "0x12020" 11"#,
            r#"0 "0x12020" 5"#
        ]
    );
}

#[test]
fn a_relative_address_is_shown_as_absolute_if_its_module_has_a_base_address() {
    let frames = demo_frames(
        json!([{"instruction_addr": "0x1004", "addr_mode": "rel:0"}]),
        json!({}),
    );
    assert_eq!(
        fields(&frames, &["instruction_addr", "addr_mode", "sym_addr"]),
        [r#""0x11004" null "0x11000""#]
    );
}

#[test]
fn a_module_without_a_base_address_is_addressed_from_its_start() {
    let request = |frame: Value| json!({"modules": [{"type": "elf"}, {"type": "elf", "code_id": "aa"}, {"type": "wasm", "code_id": "bb"}], "stacktraces": [{"frames": [{"instruction_addr": 1}, frame]}]});
    let check = |frame: Value, want: &str| {
        let (answer, _) = demo(request(frame));
        let frames = answer["stacktraces"][0]["frames"].as_array().unwrap();
        let shown = fields(
            &frames[1..2],
            &["status", "instruction_addr", "addr_mode", "sym_addr"],
        );
        assert_eq!(shown, [want]);
    };
    check(
        json!({"instruction_addr": "0x1001", "addr_mode": "rel:1"}),
        r#""symbolicated" "0x1000" "rel:1" "0x1000""#,
    );
    check(
        json!({"instruction_addr": "0x1001", "addr_mode": "rel:1", "adjust_instruction_addr": false}),
        r#""symbolicated" "0x1001" "rel:1" "0x1000""#,
    );
    // A client that calls its module WebAssembly sends the addresses of calls.
    check(
        json!({"instruction_addr": "0x1001", "addr_mode": "rel:2"}),
        r#""symbolicated" "0x1001" "rel:2" "0x1000""#,
    );
    check(
        json!({"instruction_addr": "0x1000"}),
        r#""missing_symbol" "0x1000" null null"#,
    );
}

#[test]
fn the_source_file_of_a_request_is_kept_if_the_cache_has_none() {
    let sent = json!({"instruction_addr": "0x15000", "abs_path": "/a.c", "filename": "a.c", "lineno": 3, "function": "f"});
    let frames = demo_frames(json!([sent]), json!({}));
    let shown = fields(
        &frames,
        &["function", "abs_path", "filename", "lineno", "sym_addr"],
    );
    assert_eq!(shown, [r#""exported" "/a.c" "a.c" 0 "0x15000""#]);
}

#[test]
fn a_frame_that_no_function_covers_stays_as_it_was_sent() {
    let sent = json!({"instruction_addr": "0x14000", "function": "_Z3foov", "in_app": true, "lineno": 3, "package": "x", "pre_context": ["a"]});
    let frames = demo_frames(json!([sent]), json!({}));
    insta::assert_json_snapshot!(frames, @r#"
    [
      {
        "function": "foo()",
        "in_app": true,
        "instruction_addr": "0x14000",
        "lineno": 3,
        "original_index": 0,
        "package": "/bin/demo",
        "pre_context": [
          "a"
        ],
        "status": "missing_symbol",
        "symbol": "_Z3foov"
      }
    ]
    "#);
}

#[test]
fn impossible_addresses_are_missing_symbols() {
    let check = |frame: Value| {
        assert_eq!(
            fields(&demo_frames(json!([frame]), json!({})), &["status"]),
            [r#""missing_symbol""#]
        );
    };
    check(json!({"instruction_addr": "0x10000", "adjust_instruction_addr": true})); // before the module
    check(json!({"instruction_addr": "0xffffffffffffffff", "addr_mode": "rel:0"})); // beyond all memory
    check(json!({"instruction_addr": "0x100000000", "addr_mode": "rel:0"})); // beyond all SymCaches
}

#[test]
fn a_scanned_frame_outside_of_code_is_dropped() {
    let frames = demo_frames(
        json!([
            {"instruction_addr": "0x11004", "trust": "scan"},
            {"instruction_addr": "0x14000", "trust": "scan"},
            {"instruction_addr": "0x99000", "trust": "scan"},
            {"instruction_addr": "0x14000", "trust": "cfi"}
        ]),
        json!({}),
    );
    assert_eq!(
        fields(&frames, &["original_index", "status"]),
        [r#"0 "symbolicated""#, r#"3 "missing_symbol""#]
    );
}

#[test]
fn frames_below_the_start_of_the_process_are_dropped() {
    let check = |frames: Value, options: Value, want: usize| {
        assert_eq!(demo_frames(frames, options).len(), want);
    };
    let start = json!({"instruction_addr": "0x11004"});
    let nowhere = json!({"instruction_addr": "0x99000"});
    check(json!([start, nowhere]), json!({}), 1);
    check(
        json!([nowhere, start]),
        json!({"frame_order": "caller_first"}),
        1,
    );
    check(json!([nowhere, start]), json!({}), 2);
    check(json!([start, nowhere, nowhere]), json!({}), 3);
    check(
        json!([start, {"instruction_addr": "0x14000"}]),
        json!({}),
        2,
    );
    check(json!([nowhere]), json!({}), 1);
}

#[test]
fn each_cause_has_its_statuses() {
    let check = |cause: Cause, frame: &str, module: &str, detail: Option<&str>| {
        let missing = Missing::new(cause, "what happened");
        let request = json!({
            "modules": [{"type": "elf", "code_id": "aa"}, {"type": "elf", "code_id": "bb"}],
            "stacktraces": [{"frames": [{"instruction_addr": 1, "addr_mode": "rel:0"}]}]
        });
        let (answer, stats) = answer(
            request,
            &ModuleOutcome::Missing {
                missing,
                features: Features::default(),
                considered: Considered::default(),
            },
        );
        assert_eq!(
            answer["stacktraces"][0]["frames"][0]["status"], frame,
            "{cause:?}"
        );
        assert_eq!(answer["modules"][0]["debug_status"], module, "{cause:?}");
        assert_eq!(
            answer["modules"][0]
                .get("debug_detail")
                .and_then(Value::as_str),
            detail,
            "{cause:?}"
        );
        assert_eq!(answer["modules"][1]["debug_status"], "unused");
        assert_eq!(
            (
                stats.frames.total(),
                stats.modules.total(),
                stats.modules.unused
            ),
            (1, 2, 1)
        );
    };
    check(Cause::NotFound, "missing", "missing", None);
    check(
        Cause::PermissionDenied,
        "missing",
        "fetching_failed",
        Some("what happened"),
    );
    check(
        Cause::DownloadFailed,
        "missing",
        "fetching_failed",
        Some("what happened"),
    );
    check(Cause::Timeout, "missing", "timeout", Some("what happened"));
    check(
        Cause::Malformed,
        "malformed",
        "malformed",
        Some("what happened"),
    );
    check(
        Cause::TooLarge { limit: 7 },
        "malformed",
        "malformed",
        Some("what happened"),
    );
    check(
        Cause::Crashed,
        "malformed",
        "malformed",
        Some("what happened"),
    );
    check(
        Cause::Unsupported,
        "missing",
        "unsupported",
        Some("what happened"),
    );
}

#[test]
fn an_internal_failure_is_not_blamed_on_the_module() {
    let request = json!({
        "modules": [{"type": "elf"}], "stacktraces": [{"frames": [{"instruction_addr": 1, "addr_mode": "rel:0"}]}]
    });
    let (failed, _) = answer(
        request.clone(),
        &ModuleOutcome::Failed {
            detail: "the store is away".to_owned(),
        },
    );
    assert_eq!(failed["stacktraces"][0]["frames"][0]["status"], "missing");
    assert_eq!(
        (
            &failed["modules"][0]["debug_status"],
            &failed["modules"][0]["debug_detail"]
        ),
        (&json!("other"), &json!("the store is away"))
    );

    let request = parse_request(request.to_string().as_bytes()).unwrap();
    let (completed, stats) = symbolicate(&request, &plan(&request), &[]);
    assert_eq!(
        (
            stats.modules.other,
            stats.frames.missing,
            completed.modules.len()
        ),
        (1, 1, 1)
    );
}

fn candidate(location: &str, download: Download) -> Candidate {
    Candidate {
        source: SourceKey::Uploads,
        location: Location::new(location),
        download,
        size: None,
        duration_ms: None,
        fault: None,
    }
}

fn fetched(location: &str) -> Candidate {
    let features = Features::default();
    candidate(location, Download::Ok { features })
}

/// A request with a frame in one module.
fn one_frame(dif_candidates: bool) -> Value {
    json!({
        "modules": [{"type": "elf", "code_id": "aa"}], "options": {"dif_candidates": dif_candidates},
        "stacktraces": [{"frames": [{"instruction_addr": 1, "addr_mode": "rel:0"}]}]
    })
}

/// Returns the candidates of a response, as one line each.
fn shown(outcome: &ModuleOutcome<'_>) -> Vec<String> {
    let (answer, _) = answer(one_frame(true), outcome);
    let candidates = answer["modules"][0]["candidates"].as_array().unwrap();
    let line = |shown: &Value| {
        let download = &shown["download"]["status"];
        format!("{} {download} {}", shown["location"], shown["debug"])
    };
    candidates.iter().map(line).collect()
}

/// Returns the outcome of a module without a cache.
fn missing(missing: Missing, considered: Considered<'_>) -> ModuleOutcome<'_> {
    ModuleOutcome::Missing {
        missing,
        features: Features::default(),
        considered,
    }
}

#[test]
fn requested_candidates_are_shown_once_and_in_order() {
    let candidates = [
        candidate("b", Download::NotFound),
        fetched("c"),
        fetched("a"),
        candidate("b", Download::NotFound),
    ];
    let (source, location) = (SourceKey::Uploads, Location::new("c"));
    let too_large = || Missing::new(Cause::TooLarge { limit: 7 }, "8 bytes, 7 are allowed");
    let used = Considered {
        candidates: &candidates,
        used: Some((&source, &location)),
    };
    assert_eq!(
        shown(&missing(too_large(), used)),
        [
            r#""a" "ok" null"#,
            r#""b" "notfound" null"#,
            r#""c" "ok" {"details":"8 bytes, 7 are allowed","status":"malformed"}"#
        ]
    );
    let only = Considered {
        candidates: &candidates[..2],
        used: None,
    };
    assert_eq!(
        shown(&missing(Missing::new(Cause::Timeout, "too slow"), only)),
        [r#""b" "notfound" null"#, r#""c" "ok" null"#]
    );
    let cache = sym_cache(BREAKPAD);
    let cache = LookupCache::Sym(SymCache::parse(&cache).unwrap().into());
    assert_eq!(
        shown(&ModuleOutcome::Found {
            cache,
            features: Features::default(),
            arch: Arch::Amd64.name(),
            lacks: None,
            considered: only
        }),
        [r#""b" "notfound" null"#, r#""c" "ok" {"status":"ok"}"#]
    );

    let (hidden, _) = answer(one_frame(false), &missing(too_large(), used));
    assert_eq!(hidden["modules"][0].get("candidates"), None);
}

#[test]
fn a_file_that_lacks_what_is_needed_is_listed_but_not_as_used() {
    let candidates = [fetched("a"), candidate("b", Download::NotFound)];
    let (source, location) = (SourceKey::Uploads, Location::new("a"));
    for used in [Some((&source, &location)), None] {
        let considered = Considered {
            candidates: &candidates,
            used,
        };
        assert_eq!(
            shown(&missing(Missing::not_found(), considered)),
            [r#""a" "ok" null"#, r#""b" "notfound" null"#]
        );
    }
    // What is wrong with the file itself is still said.
    let damaged = Candidate {
        fault: Some("cut short".to_owned()),
        ..fetched("a")
    };
    let considered = Considered {
        candidates: &[damaged],
        used: Some((&source, &location)),
    };
    assert_eq!(
        shown(&missing(Missing::not_found(), considered)),
        [r#""a" "ok" {"details":"cut short","status":"malformed"}"#]
    );
}

#[test]
fn files_that_cannot_be_parsed_are_reported_as_malformed_if_that_is_the_reason() {
    let candidates = [
        candidate("a", Download::Malformed),
        candidate("b", Download::NotFound),
        fetched("c"),
        candidate("d", Download::Malformed),
    ];
    let of = |candidates| Considered {
        candidates,
        used: None,
    };
    for cause in [Cause::Malformed, Cause::Crashed] {
        let garbage = || Missing::new(cause, "garbage");
        assert_eq!(
            shown(&missing(garbage(), of(&candidates[..3]))),
            [
                r#""a" "malformed" {"details":"garbage","status":"malformed"}"#,
                r#""b" "notfound" null"#,
                r#""c" "ok" null"#,
            ]
        );
        // The details are about one of them.
        assert_eq!(
            shown(&missing(garbage(), of(&candidates[..]))),
            [
                r#""a" "malformed" {"status":"malformed"}"#,
                r#""b" "notfound" null"#,
                r#""c" "ok" null"#,
                r#""d" "malformed" {"status":"malformed"}"#,
            ]
        );
    }
    let absent = shown(&missing(Missing::not_found(), of(&candidates[..2])));
    assert_eq!(
        absent,
        [r#""a" "malformed" null"#, r#""b" "notfound" null"#]
    );
}

#[test]
fn a_file_that_is_unsupported_is_reported_with_its_features() {
    let features = Features {
        has_debug_info: true,
        ..Features::default()
    };
    let candidates = [fetched("a"), fetched("b")];
    let (source, location) = (SourceKey::Uploads, Location::new("b"));
    let outcome = ModuleOutcome::Missing {
        missing: Missing::new(Cause::Unsupported, "the other kind"),
        features,
        considered: Considered {
            candidates: &candidates,
            used: Some((&source, &location)),
        },
    };
    assert_eq!(
        shown(&outcome),
        [
            r#""a" "ok" null"#,
            r#""b" "ok" {"details":"unsupported: the other kind","status":"error"}"#,
        ]
    );
    // Whether the candidates are listed does not matter.
    let (answer, _) = answer(one_frame(false), &outcome);
    let module = &answer["modules"][0];
    assert_eq!(module["debug_status"], "unsupported");
    assert_eq!(module["features"]["has_debug_info"], true);
}

#[test]
fn a_module_is_returned_as_sent_with_the_results() {
    let (answer, _) = demo(json!({
        "modules": [
            {"type": "elf", "code_id": "ABCD", "code_file": "/bin/demo", "debug_checksum": "SHA256:00", "image_addr": "0x10000", "other": 1},
            {"type": "elf", "image_addr": "0x20000"}
        ],
        "stacktraces": [{"thread_id": 7, "frames": [{"instruction_addr": "0x11004"}], "registers": {"rip": "0x11004"}}],
        "signal": 11
    }));
    insta::assert_json_snapshot!(answer["modules"][0], @r#"
    {
      "arch": "x86_64",
      "code_file": "/bin/demo",
      "code_id": "abcd",
      "debug_checksum": "SHA256:00",
      "debug_status": "found",
      "features": {
        "has_debug_info": true,
        "has_sources": false,
        "has_symbols": false,
        "has_unwind_info": false
      },
      "image_addr": "0x10000",
      "image_size": 65536,
      "type": "elf"
    }
    "#);
    assert_eq!(
        (&answer["signal"], &answer["stacktraces"][0]["thread_id"]),
        (&json!(11), &json!(7))
    );
    assert_eq!(
        answer["stacktraces"][0]["registers"],
        json!({"rip": "0x11004"})
    );

    // In the order in which they were sent, which need not be that of their addresses.
    let at = |address: &str| json!({"type": "elf", "image_addr": address, "image_size": 16});
    let modules = ["0x30000", "0x10000", "0x20000"];
    let (answer, _) = demo(json!({
        "modules": modules.map(at),
        "stacktraces": [{"frames": [{"instruction_addr": "0x10004"}]}],
    }));
    let returned = answer["modules"].as_array().unwrap().iter();
    let returned: Vec<(&str, &str)> = returned
        .map(|module| {
            let text = |field: &str| module[field].as_str().unwrap();
            (text("image_addr"), text("debug_status"))
        })
        .collect();
    let statuses = ["unused", "found", "unused"];
    let expected: Vec<(&str, &str)> = modules.into_iter().zip(statuses).collect();
    assert_eq!(returned, expected);
}

#[test]
fn of_a_chain_of_too_many_inlined_functions_the_one_that_was_called_is_shown() {
    let inlined = 300;
    let mut breakpad = "MODULE Linux x86_64 492E2DD23CC306CA9C494EEF1533A3810 demo\nFILE 0 a.c\nINLINE_ORIGIN 0 again\nFUNC 1000 10 0 main\n".to_owned();
    for depth in 0..inlined {
        breakpad += &format!("INLINE {depth} {} 0 0 1000 10\n", depth + 1);
    }
    breakpad += "1000 10 7 0\n";
    let cache = sym_cache(&breakpad);
    let cache = LookupCache::Sym(SymCache::parse(&cache).unwrap().into());
    let outcome = ModuleOutcome::Found {
        cache,
        features: Features::default(),
        arch: Arch::Amd64.name(),
        lacks: None,
        considered: Considered::default(),
    };

    let request = |frames: usize| {
        let frame = json!({"instruction_addr": "0x1004", "addr_mode": "rel:0"});
        let frames = vec![frame; frames];
        let request = json!({"modules": [{"type": "elf"}], "stacktraces": [{"frames": frames}]});
        parse_request(request.to_string().as_bytes()).unwrap()
    };
    let outcomes = [outcome];
    let few = request(100);
    let (completed, stats) = symbolicate(&few, &plan(&few), &outcomes);
    let frames = &completed.stacktraces[0].frames;
    assert_eq!(
        (stats.truncated, stats.frames.symbolicated, stats.inlined),
        (100, 100, 100 * 255)
    );
    for chain in frames.chunks(256) {
        let (called, inlined) = chain.split_last().unwrap();
        assert_eq!(called.frame.function.as_deref(), Some("main"));
        assert_eq!(called.frame.sym_addr, Some(Hex(0x1000)));
        assert_eq!(called.frame.lineno, Some(1));
        assert!(inlined.iter().all(|frame| frame.frame.sym_addr.is_none()));
    }
    let many = request(4000);
    let (completed, stats) = symbolicate(&many, &plan(&many), &outcomes);
    let frames = completed.stacktraces[0].frames.len();
    assert!(
        stats.is_too_large() && frames < 4000 * 100,
        "{frames} frames were made for a response that is refused"
    );
}

/// The count never exceeds the size of the response, and is not much smaller.
#[test]
fn bytes_of_an_answer_are_counted_after_escaping() {
    let function = "a\"b\\c\u{1}d\ne".repeat(200);
    let symbol = "b".repeat(40_000);
    let frames = json!([
        {"instruction_addr": "0x1", "function": function, "filename": "x"},
        {"instruction_addr": "0x2", "symbol": symbol},
    ]);
    let request = json!({"stacktraces": [{"frames": frames}]});
    let request = parse_request(request.to_string().as_bytes()).unwrap();
    let (completed, stats) = symbolicate(&request, &plan(&request), &[]);
    let written = serde_json::to_vec(&completed.stacktraces[0].frames)
        .unwrap()
        .len();
    assert!(
        stats.answer_bytes <= written && written <= stats.answer_bytes + 2 * 200,
        "{} of {written} bytes were counted",
        stats.answer_bytes
    );
}

/// The bytes of a PPDB cache in the layout of `symbolic`: method 2 begins in line 10 and continues
/// in line 11.
fn ppdb_cache() -> Vec<u8> {
    const CSHARP: u32 = 9;
    let path = b"/src/Program.cs";
    let words = |words: &[u32]| {
        words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect::<Vec<u8>>()
    };
    let mut cache = Vec::new();
    let mut section = |bytes: &[u8]| {
        cache.extend(bytes);
        cache.resize(cache.len().next_multiple_of(8), 0);
    };
    let strings = [&[path.len() as u8][..], path].concat();
    let counts = words(&[1, 2, strings.len() as u32]); // files, ranges, bytes of strings
    section(&[&b"PDBC"[..], &words(&[1]), &[0; 32], &counts, &[0; 16]].concat());
    section(&words(&[0, CSHARP]));
    section(&words(&[10, 0, 11, 0]));
    section(&words(&[2, 0, 2, 8]));
    section(&strings);
    cache
}

#[test]
fn a_dotnet_frame_is_found_by_method_and_offset() {
    let cache = ppdb_cache();
    let cache = LookupCache::Ppdb(PortablePdbCache::parse(&cache).unwrap());
    let outcome = ModuleOutcome::Found {
        cache,
        features: Features::default(),
        arch: Arch::Amd64.name(),
        lacks: None,
        considered: Considered::default(),
    };
    let frames = |frame: Value| {
        let request = json!({"modules": [{"type": "pe_dotnet", "code_file": "a.dll"}], "stacktraces": [{"frames": [frame]}]});
        answer(request, &outcome).0["stacktraces"][0]["frames"]
            .as_array()
            .unwrap()
            .clone()
    };
    let check = |frame: Value, want: &str| {
        assert_eq!(fields(&frames(frame), &["status", "lineno"]), [want]);
    };
    let at = |offset: u64, method: u64| json!({"instruction_addr": offset, "function_id": method, "addr_mode": "rel:0"});
    check(at(0, 2), r#""symbolicated" 10"#);
    check(at(7, 2), r#""symbolicated" 10"#);
    check(at(8, 2), r#""symbolicated" 11"#);
    check(at(0, 1), r#""missing_symbol" null"#);
    check(at(0, 3), r#""missing_symbol" null"#);
    check(at(0, 1 << 32 | 2), r#""missing_symbol" null"#);
    check(at(1 << 32, 2), r#""missing_symbol" null"#);
    check(
        json!({"instruction_addr": 0, "addr_mode": "rel:0"}),
        r#""missing_symbol" null"#,
    );

    let frame = json!({"instruction_addr": 8, "function_id": "0x2", "addr_mode": "rel:0", "function": "Main", "in_app": true});
    insta::assert_json_snapshot!(frames(frame), @r#"
    [
      {
        "abs_path": "/src/Program.cs",
        "addr_mode": "rel:0",
        "filename": "Program.cs",
        "function": "Main",
        "function_id": "0x2",
        "in_app": true,
        "instruction_addr": "0x8",
        "lang": "csharp",
        "lineno": 11,
        "original_index": 0,
        "package": "a.dll",
        "status": "symbolicated"
      }
    ]
    "#);
}

/// Any address: mostly in the demo module or at the ends of memory.
fn any_address() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..0x40_u64,
        0x1_0ff0..0x1_2100_u64,
        0xff0..0x2100_u64,
        u64::MAX - 0x40..=u64::MAX,
        any::<u64>()
    ]
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let mode = prop_oneof![
        Just(AddrMode::Abs),
        (0..4_usize).prop_map(AddrMode::Rel),
        Just(AddrMode::Rel(usize::MAX))
    ];
    let trust = prop_oneof![
        Just(FrameTrust::None),
        Just(FrameTrust::Scan),
        Just(FrameTrust::Context)
    ];
    (
        any_address(),
        mode,
        any::<Option<bool>>(),
        trust,
        any::<Option<u32>>(),
        "(_Z|\\?|\\$s|_R)?[0-9A-Za-z@]{0,12}",
    )
        .prop_map(
            |(address, addr_mode, adjust_instruction_addr, trust, function_id, symbol)| Frame {
                instruction_addr: Hex(address),
                addr_mode,
                adjust_instruction_addr,
                trust,
                function_id: function_id.map(|id| Hex(id.into())),
                symbol: Some(symbol.into()),
                ..Frame::default()
            },
        )
}

fn any_request() -> impl Strategy<Value = Request> {
    let module = (any_address(), any::<Option<u64>>(), any::<bool>()).prop_map(
        |(address, image_size, is_dotnet)| Module {
            object_type: if is_dotnet {
                ObjectType::PeDotnet
            } else {
                ObjectType::Elf
            },
            image_addr: Hex(address),
            image_size,
            ..Module::default()
        },
    );
    let registers =
        prop::collection::btree_map("rip|pc|eip|srr0", any_address().prop_map(Hex), 0..3);
    let stacktrace =
        (prop::collection::vec(any_frame(), 0..6), registers).prop_map(|(frames, registers)| {
            Stacktrace {
                frames,
                registers,
                ..Stacktrace::default()
            }
        });
    let parts = (
        prop::collection::vec(module, 0..4),
        prop::collection::vec(stacktrace, 0..3),
        prop::option::of(0..12_u32),
        any::<bool>(),
    );
    parts.prop_map(|(modules, stacktraces, signal, caller_first)| {
        let frame_order = if caller_first {
            FrameOrder::CallerFirst
        } else {
            FrameOrder::CalleeFirst
        };
        let options = Options {
            frame_order,
            ..Options::default()
        };
        Request {
            modules,
            stacktraces,
            signal,
            options,
            ..Request::default()
        }
    })
}

proptest! {
    #[test]
    fn every_frame_of_any_request_is_answered(
        request in any_request(),
        arch in prop::sample::select(vec!["x86", "x86_64", "arm", "arm64", "ppc", "ppc64", "mips", "mips64", "unknown"]),
    ) {
        let sym = sym_cache(&BREAKPAD.replace("x86_64", arch));
        let ppdb = ppdb_cache();
        let plan = plan(&request);
        let outcome = |wanted: &PlannedCache| ModuleOutcome::Found {
            cache: match wanted.kind {
                Kind::PpdbCache => LookupCache::Ppdb(PortablePdbCache::parse(&ppdb).unwrap()),
                _ => LookupCache::Sym(SymCache::parse(&sym).unwrap().into()),
            },
            features: Features::default(),
            arch: Arch::Amd64.name(),
            lacks: None,
            considered: Considered::default(),
        };
        let outcomes: Vec<_> = plan.caches().iter().map(outcome).collect();
        let (completed, stats) = symbolicate(&request, &plan, &outcomes);

        prop_assert_eq!(completed.modules.len(), request.modules.len());
        prop_assert_eq!(completed.stacktraces.len(), request.stacktraces.len());
        let mut shown = 0;
        for (stacktrace, sent) in completed.stacktraces.iter().zip(&request.stacktraces) {
            shown += stacktrace.frames.len();
            let mut indices: Vec<_> = stacktrace.frames.iter().map(|frame| frame.original_index.unwrap()).collect();
            if request.options.frame_order == FrameOrder::CallerFirst {
                indices.reverse();
            }
            prop_assert!(indices.is_sorted() && indices.iter().all(|index| *index < sent.frames.len()));
        }
        prop_assert_eq!(shown, stats.frames.total() + stats.inlined - stats.dropped);
        let json = serde_json::to_vec(&Response::Completed(completed.clone())).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Response>(&json).unwrap(), Response::Completed(completed));
    }
}
