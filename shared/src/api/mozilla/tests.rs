//! Tests of the rules for jobs, and of their results.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::symbolicator::CompletedModule;
use crate::domain::Features;

const ID: &str = "BC6E45AC487FF425367208B89F51AD480";

fn parse(body: &Value) -> Result<SymbolicationJobs, JobsError> {
    parse_jobs(body.to_string().as_bytes())
}

/// Returns the title of the error for a body.
fn title(body: &Value) -> String {
    parse(body).unwrap_err().to_string()
}

/// Returns a job with these modules and stacks.
fn job(modules: &Value, stacks: &Value) -> Value {
    json!({"memoryMap": modules, "stacks": stacks})
}

/// Returns a job with one module and these stacks.
fn job_with(stacks: &Value) -> Value {
    job(&json!([["abc.so", "ABC"]]), stacks)
}

/// Returns a function that was found for the frame at this index.
fn found(index: usize, function: &str, line: u32, start: Option<u64>) -> CompletedFrame {
    CompletedFrame {
        status: FrameStatus::Symbolicated,
        original_index: Some(index),
        frame: Frame {
            function: Some(function.into()),
            filename: Some("a.h".into()),
            abs_path: Some("/src/a.h".into()),
            lineno: Some(line),
            sym_addr: start.map(Hex),
            ..Frame::default()
        },
    }
}

/// Returns a response to jobs in which these modules are used: their status and detail.
fn completed(
    jobs: &SymbolicationJobs,
    frames: Vec<Vec<CompletedFrame>>,
    statuses: &[(ModuleStatus, Option<&str>)],
) -> Completed {
    let modules = jobs.request().modules.iter().zip(statuses);
    let modules = modules.map(|(module, (status, detail))| CompletedModule {
        debug_status: *status,
        unwind_status: None,
        debug_detail: detail.map(str::to_owned),
        features: Features::default(),
        arch: "x86_64".to_owned(),
        module: module.clone(),
        candidates: Vec::new(),
    });
    let stacktraces = frames.into_iter().map(|frames| CompletedStacktrace {
        frames,
        ..CompletedStacktrace::default()
    });
    Completed {
        stacktraces: stacktraces.collect(),
        modules: modules.collect(),
        ..Completed::default()
    }
}

/// The table of Eliot's tests.
#[test]
fn modules_and_stacks_are_refused_with_the_words_of_mozillas_server() {
    for (modules, problem) in [
        (json!(123), "modules must be a list"),
        (
            json!(["abc"]),
            "module index 0 does not have a debug_filename and debug_id",
        ),
        (
            json!([["abc"]]),
            "module index 0 does not have a debug_filename and debug_id",
        ),
        (
            json!([["abc", "abc"], ["abc", "abc", "abc"]]),
            "module index 1 does not have a debug_filename and debug_id",
        ),
        (
            json!([["a/b", "ABC"]]),
            "module index 0 has an invalid debug_filename",
        ),
        (
            json!([["a\nb", "ABC"]]),
            "module index 0 has an invalid debug_filename",
        ),
        (
            json!([[5, "ABC"]]),
            "module index 0 has an invalid debug_filename",
        ),
        (
            json!([["abc.so", "xyz"]]),
            "module index 0 has an invalid debug_id",
        ),
        (
            json!([["abc.so", "  abc"]]),
            "module index 0 has an invalid debug_id",
        ),
        (
            json!([["abc.so", null]]),
            "module index 0 has an invalid debug_id",
        ),
    ] {
        let expected = format!("job 0 has invalid modules: {problem}");
        assert_eq!(title(&job(&modules, &json!([[]]))), expected, "{modules}");
    }
    for (stacks, problem) in [
        (json!([]), "no stacks specified"),
        (json!("abc"), "stacks must be a list of lists"),
        (json!(["abc"]), "stack 0 is not a list"),
        (json!([[], {}]), "stack 1 is not a list"),
        (json!([[0]]), "stack 0 frame 0 is not a list of two items"),
        (
            json!([[[0, 1, 2]]]),
            "stack 0 frame 0 is not a list of two items",
        ),
        (
            json!([[["abc", 0]]]),
            "stack 0 frame 0 has an invalid module_index",
        ),
        (
            json!([[[true, 0]]]),
            "stack 0 frame 0 has an invalid module_index",
        ),
        (
            json!([[[-2, 0]]]),
            "stack 0 frame 0 has a module_index that isn't in modules",
        ),
        (
            json!([[[0, 1], [1, 0]]]),
            "stack 0 frame 1 has a module_index that isn't in modules",
        ),
        (
            json!([[[0, "abc"]]]),
            "stack 0 frame 0 has an invalid module_offset",
        ),
        (
            json!([[[0, 1.5]]]),
            "stack 0 frame 0 has an invalid module_offset",
        ),
        (
            json!([[[0, u64::MAX]]]),
            "stack 0 frame 0 has an invalid module_offset",
        ),
        (
            json!([[[0, -2]]]),
            "stack 0 frame 0 has an invalid module_offset",
        ),
    ] {
        let expected = format!("job 0 has invalid stacks: {problem}");
        assert_eq!(title(&job_with(&stacks)), expected, "{stacks}");
    }
}

#[test]
fn a_body_that_has_no_jobs_is_refused_with_the_words_of_mozillas_server() {
    for body in ["", "{", "{}{}", "\u{feff}", "{\"jobs\": [}", "\x1f\x08"] {
        let error = parse_jobs(body.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "Payload is not valid JSON", "{body:?}");
    }
    assert_eq!(parse_jobs(b"{\"jobs\": \"\xff\"}"), Err(JobsError::Syntax));
    let valid = job(&json!([]), &json!([[]]));
    for (body, expected) in [
        (json!([]), "job 0 is invalid"),
        (json!(5), "job 0 is invalid"),
        (json!({}), "job 0 is invalid: no stacks specified"),
        (
            json!({"jobs": [valid, {"stacks": [[]]}]}),
            "job 1 is invalid: no memoryMap specified",
        ),
        (json!({"jobs": [valid, [[], [[]]]]}), "job 1 is invalid"),
        (json!({"jobs": valid}), "jobs must be a list"),
        (
            json!({"jobs": vec![valid.clone(); 11]}),
            "please limit number of jobs in a single request to <= 10",
        ),
    ] {
        assert_eq!(title(&body), expected, "{body}");
    }
    assert!(parse(&json!({"jobs": vec![valid; 10]})).is_ok());
    assert!(parse(&json!({"jobs": []})).is_ok());
}

#[test]
fn a_single_job_is_a_body_and_a_byte_order_mark_and_other_fields_change_nothing() {
    let single = json!({"memoryMap": [["a", ID]], "stacks": [[[0, 16], [-1, 5]]], "version": 5});
    let jobs = parse(&single).unwrap();
    assert_eq!(parse(&json!({"jobs": [single], "x": {}})), Ok(jobs.clone()));
    let marked = format!("\u{feff}{single} ");
    assert_eq!(parse_jobs(marked.as_bytes()), Ok(jobs));
}

#[test]
fn all_jobs_become_one_request_in_which_offsets_are_looked_up_as_they_are() {
    let jobs = json!({"jobs": [
        job(&json!([["libc.so.6", ID], ["APP.PDB", "c7d4c24f1fb854084c4c44205044422e1"]]), &json!([[[1, 16]], []])),
        job(&json!([["[vdso]", ""]]), &json!([[[0, 32], [-1, 48], [0, -1]]])),
    ]});
    let jobs = parse(&jobs).unwrap();
    let request = jobs.request();
    let modules: Vec<_> = request
        .modules
        .iter()
        .map(|module| {
            let id = module.debug_id.map(|id| id.to_string());
            (module.object_type, module.debug_file.as_deref(), id)
        })
        .collect();
    assert_eq!(
        modules,
        [
            (
                ObjectType::Unknown,
                Some("libc.so.6"),
                Some("bc6e45ac-487f-f425-3672-08b89f51ad48".to_owned())
            ),
            (
                ObjectType::Pe,
                Some("APP.PDB"),
                Some("c7d4c24f-1fb8-5408-4c4c-44205044422e-1".to_owned())
            ),
            (ObjectType::Unknown, Some("[vdso]"), None),
        ]
    );
    let stacks: Vec<Vec<_>> = request
        .stacktraces
        .iter()
        .map(|stack| {
            let frames = stack.frames.iter();
            frames
                .map(|frame| (frame.addr_mode, frame.instruction_addr))
                .collect()
        })
        .collect();
    assert_eq!(
        stacks,
        [
            vec![(AddrMode::Rel(1), Hex(16))],
            vec![],
            vec![
                (AddrMode::Rel(2), Hex(32)),
                (NO_MODULE, Hex(48)),
                (AddrMode::Rel(2), NO_OFFSET)
            ],
        ]
    );
    let frames = request.stacktraces.iter().flat_map(|stack| &stack.frames);
    let mut adjusted = frames.map(|frame| frame.adjust_instruction_addr);
    assert!(adjusted.all(|adjusted| adjusted == Some(false)));
    assert!(!request.options.apply_source_context);
}

#[test]
fn a_frame_has_the_function_that_was_called_and_those_inlined_into_it_innermost_first() {
    let body = job(
        &json!([["crash", ID]]),
        &json!([[[0, 0x3950], [-1, 7], [0, -1], [0, 0x10]]]),
    );
    let jobs = parse(&body).unwrap();
    let unresolved = |index, status| CompletedFrame {
        status,
        original_index: Some(index),
        frame: Frame::default(),
    };
    let frames = vec![
        found(0, "innermost", 20, None),
        found(0, "inner", 0, None),
        found(0, "outer", 26, Some(0x38b0)),
        unresolved(1, FrameStatus::UnknownImage),
        unresolved(2, FrameStatus::MissingSymbol),
        // Its start is not known, or behind it.
        found(3, "part", 3, Some(0x20)),
    ];
    let completed = completed(&jobs, vec![frames], &[(ModuleStatus::Found, None)]);
    let results = serde_json::to_value(jobs.results(&completed)).unwrap();
    assert_eq!(
        results,
        json!({"results": [{
            "stacks": [[
                {
                    "frame": 0, "module": "crash", "module_offset": "0x3950",
                    "function": "outer", "function_offset": "0xa0", "file": "/src/a.h", "line": 26,
                    "inlines": [
                        {"function": "innermost", "file": "/src/a.h", "line": 20},
                        {"function": "inner", "file": "/src/a.h"},
                    ],
                },
                {"frame": 1, "module": "<unknown>", "module_offset": "0x7"},
                {"frame": 2, "module": "crash", "module_offset": "-0x1"},
                {
                    "frame": 3, "module": "crash", "module_offset": "0x10",
                    "function": "part", "function_offset": "0x0", "file": "/src/a.h", "line": 3,
                },
            ]],
            "found_modules": {format!("crash/{ID}"): true},
        }]})
    );
}

#[test]
fn a_frame_that_the_response_leaves_out_has_no_function_and_keeps_its_place() {
    let body = job(&json!([["crash", ID]]), &json!([[[0, 16], [0, 32]]]));
    let jobs = parse(&body).unwrap();
    let frames = vec![vec![found(1, "main", 1, Some(0))]];
    let completed = completed(&jobs, frames, &[(ModuleStatus::Found, None)]);
    let results = jobs.results(&completed);
    let [first, second] = &results.results[0].stacks[0][..] else {
        panic!("two frames");
    };
    assert_eq!((first.frame, first.function.function), (0, None));
    assert_eq!((second.frame, second.function.function), (1, Some("main")));
}

#[test]
fn a_file_without_a_path_has_its_name_and_a_line_without_a_file_is_left_out() {
    let check = |abs_path: Option<&str>, filename: Option<&str>, file, line| {
        let frame = Frame {
            abs_path: abs_path.map(Into::into),
            filename: filename.map(Into::into),
            lineno: Some(7),
            ..Frame::default()
        };
        let found = FunctionInFile::of(&frame);
        assert_eq!((found.file, found.line), (file, line));
    };
    check(Some("/a/b.c"), Some("b.c"), Some("/a/b.c"), Some(7));
    check(None, Some("b.c"), Some("b.c"), Some(7));
    check(None, None, None, None);
    check(Some(""), None, None, None);
}

#[test]
fn modules_are_found_missing_or_unused_under_the_names_and_ids_that_were_sent() {
    let lower = ID.to_lowercase();
    let body = json!({"jobs": [
        job(&json!([["a", lower], ["b", ID], ["c", ""], ["a", lower]]), &json!([[]])),
        job(&json!([["b", ID]]), &json!([[]])),
    ]});
    let jobs = parse(&body).unwrap();
    let statuses = [
        (ModuleStatus::Unused, None),
        (ModuleStatus::Missing, Some("upload it")),
        (ModuleStatus::FetchingFailed, None),
        // The same file as the first.
        (ModuleStatus::Found, Some("it has symbols only")),
        (ModuleStatus::Unused, None),
    ];
    let completed = completed(&jobs, vec![Vec::new(); 2], &statuses);
    let results = serde_json::to_value(jobs.results(&completed)).unwrap();
    assert_eq!(
        results,
        json!({"results": [
            {
                "stacks": [[]],
                "found_modules": {format!("a/{lower}"): true, format!("b/{ID}"): false, "c/": false},
                "module_errors": {
                    format!("b/{ID}"): [{"name": "missing", "message": "upload it"}],
                    "c/": [{"name": "fetching_failed", "message": NO_DETAIL}],
                },
            },
            {"stacks": [[]], "found_modules": {format!("b/{ID}"): null}},
        ]})
    );
}

#[test]
fn jobs_exceed_the_limits_of_all_requests_together() {
    let of_limit = |what: &str, jobs: Value| {
        let title = title(&json!({"jobs": jobs}));
        assert!(title.contains(what), "{title}");
    };
    let modules = |count| json!(vec![["a", ""]; count]);
    let many = limits::MODULES;
    let one = || job(&modules(many), &json!([[]]));
    assert!(parse(&one()).is_ok());
    of_limit(
        "16384 modules",
        json!([one(), job(&modules(1), &json!([[]]))]),
    );
    let stacks = |count| job(&json!([]), &json!(vec![json!([]); count]));
    let many = limits::STACKTRACES;
    assert!(parse(&stacks(many)).is_ok());
    of_limit("16384 stack traces", json!([stacks(many), stacks(1)]));
    let frames = |count| job(&json!([]), &json!([vec![[-1, 0]; count]]));
    let half = limits::FRAMES / 2;
    assert!(parse(&json!({"jobs": [frames(half), frames(half)]})).is_ok());
    of_limit("131072 frames", json!([frames(half), frames(half + 1)]));
}

#[test]
fn pages_of_the_profiler_and_of_this_machine_may_read_and_no_others() {
    for origin in [
        "https://profiler.firefox.com",
        "http://localhost",
        "http://localhost:4242",
        "http://127.0.0.1:8000",
    ] {
        assert!(is_allowed_page(origin), "{origin}");
    }
    for origin in [
        "",
        "null",
        "*",
        "http://profiler.firefox.com",
        "https://profiler.firefox.com:444",
        "https://profiler.firefox.com.evil.example",
        "https://evil.example/https://profiler.firefox.com",
        "https://localhost",
        "http://localhost:",
        "http://localhost:+80",
        "http://localhost:80:80",
        "http://localhost:99999",
        "http://localhost.evil.example",
        "http://localhost:80@evil.example",
        "http://127.0.0.1.evil.example",
        "http://[::1]",
    ] {
        assert!(!is_allowed_page(origin), "{origin}");
    }
}

/// Returns values among which those of valid jobs are frequent.
fn value() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        (-3_i64..4).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-f0-9/(]{0,33}".prop_map(Value::from),
        Just(Value::Null),
        Just(json!(["a", ID])),
        Just(json!([0, 16])),
        Just(json!([-1, -1])),
    ];
    let nested = leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec(inner.clone(), 0..12).prop_map(|jobs| json!({"jobs": jobs})),
            (inner.clone(), inner).prop_map(|(modules, stacks)| job(&modules, &stacks)),
        ]
    });
    nested.boxed()
}

/// Returns bodies of which many are valid.
fn body() -> impl Strategy<Value = Value> {
    let module = prop_oneof![4 => ("[a-z.]{0,8}", "[0-9A-F]{0,34}").prop_map(|(name, id)| json!([name, id])), 1 => value()];
    let frame = prop_oneof![8 => (-1_i64..2, -1_i64..9).prop_map(|(at, offset)| json!([at, offset])), 1 => value()];
    let stacks = prop::collection::vec(prop::collection::vec(frame, 0..5), 0..4);
    let job = (prop::collection::vec(module, 0..4), stacks)
        .prop_map(|(modules, stacks)| job(&json!(modules), &json!(stacks)));
    prop_oneof![
        prop::collection::vec(job.clone(), 0..11).prop_map(|jobs| json!({"jobs": jobs})),
        job,
        value(),
    ]
}

proptest! {
    #[test]
    fn any_body_is_refused_or_has_a_result_for_each_of_its_frames(body in body()) {
        if let Ok(jobs) = parse(&body) {
            let request = jobs.request();
            let frames: usize = request.stacktraces.iter().map(|stack| stack.frames.len()).sum();
            prop_assert!(jobs.jobs.len() <= limits::JOBS && frames <= limits::FRAMES);
            prop_assert_eq!(request.modules.len(), jobs.ids.len());
            let statuses = vec![(ModuleStatus::Missing, None); request.modules.len()];
            let found_frames = request.stacktraces.iter().map(|stack| {
                (0..stack.frames.len()).map(|at| found(at, "f", 1, Some(0))).collect::<Vec<_>>()
            });
            let completed = completed(&jobs, found_frames.collect(), &statuses);
            let results = jobs.results(&completed);
            prop_assert_eq!(results.results.len(), jobs.jobs.len());
            let answered = results.results.iter().flat_map(|result| &result.stacks);
            prop_assert_eq!(answered.map(Vec::len).sum::<usize>(), frames);
            // A response of another shape makes no difference to that.
            let nothing = Completed::default();
            prop_assert_eq!(jobs.results(&nothing).results.len(), jobs.jobs.len());
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parse_jobs(&bytes).is_err());
    }
}
