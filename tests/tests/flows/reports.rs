//! Crash reports as text become the frames that llvm-symbolizer finds for them.

use serde::Deserialize;
use symbolic::debuginfo::Object;
use symdepot::api::report::{CrashReport, FrameName, GivenModule};
use symdepot::domain::CodeId;
use symdepot_tests::harness::{World, fixture, fixture_text};

/// A frame in one of our programs, as `fixtures/tools/reports.py` writes it.
#[derive(Deserialize)]
struct Expected {
    /// The line of the report, from 1.
    line: usize,
    /// Function, file and line, innermost first.
    names: Vec<(String, String, u32)>,
}

/// A report, the program that it is about, and what has to be given: its name in the report, and
/// its load address.
struct Case {
    report: &'static str,
    program: &'static str,
    given: Option<(&'static str, Option<u64>)>,
}

/// Where programs that are not position independent are linked to.
const FIXED: Option<u64> = Some(0x40_0000);

const CASES: [Case; 15] = [
    case("asan.txt", "asan", None),
    case("asan-fixed.txt", "asan-fixed", Some(("asan-fixed", FIXED))),
    case("tsan.txt", "tsan", None),
    case("msan.txt", "msan", None),
    case("ubsan.txt", "ubsan", None),
    case("ubsan-overflow.txt", "overflow", None),
    case("android.txt", "fault", None),
    case("glibc-fault.txt", "fault", Some(("fault", None))),
    case(
        "glibc-fault-fixed.txt",
        "fault-fixed",
        Some(("fault-fixed", FIXED)),
    ),
    case("gdb.txt", "fault", Some(("fault", None))),
    case("systemd.txt", "fault", Some(("fault", None))),
    case("systemd-with-ids.txt", "fault", None),
    case("rust.txt", "panic", Some(("panic", None))),
    case("hs_err.txt", "libnative.so", Some(("libnative.so", None))),
    case("markup.txt", "fault", None),
];

const fn case(
    report: &'static str,
    program: &'static str,
    given: Option<(&'static str, Option<u64>)>,
) -> Case {
    Case {
        report,
        program,
        given,
    }
}

fn build_id(program: &str) -> CodeId {
    let file = fixture(&format!("reports/{program}.debug"));
    Object::parse(&file).unwrap().code_id().unwrap()
}

/// Returns the names of each frame with names, by the line of the report that it is in.
fn by_line(bytes: &[u8], report: &CrashReport, names: &[Vec<Vec<FrameName>>]) -> Vec<Expected> {
    let frames = report.stacks.iter().flat_map(|stack| &stack.frames);
    let named = frames.zip(names.iter().flatten());
    let named = named.filter(|(frame, names)| frame.place.is_some() && !names.is_empty());
    let line = |at: usize| 1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count();
    let name = |name: &FrameName| {
        let path = name.path.clone().unwrap_or_default();
        (name.function.clone(), path, name.line.unwrap_or_default())
    };
    let expected = named.map(|(frame, names)| Expected {
        line: line(frame.place.as_ref().unwrap().name.start),
        names: names.iter().map(name).collect(),
    });
    expected.collect()
}

/// Returns the name without its module, as it is in the mangled name: llvm-symbolizer was told not
/// to demangle.
fn last_part(name: &str) -> &str {
    let last = name.rsplit("::").next().unwrap();
    last.trim_matches(['{', '}'])
}

#[tokio::test(start_paused = true)]
async fn each_report_gets_the_frames_of_llvm_symbolizer() {
    for case in CASES {
        let world = World::new();
        let debug = format!("reports/{}.debug", case.program);
        world.upload("global/program.debug", &debug).await;
        let bytes = fixture(&format!("reports/{}", case.report));
        let mut report = CrashReport::read(&bytes).unwrap();
        if let Some((name, base)) = case.given {
            assert!(!report.lacks().is_empty(), "{}", case.report);
            let changed = report.complete(&GivenModule {
                name: name.to_owned(),
                code_id: Some(build_id(case.program)),
                base,
                ..GivenModule::default()
            });
            assert!(changed, "{}", case.report);
        }
        let completed = world.symbolicate(&report.request()).await;
        let found = by_line(&bytes, &report, &report.names(&completed));
        let expected = fixture_text(&format!("reports/{}.expected.json", case.report));
        let expected: Vec<Expected> = serde_json::from_str(&expected).unwrap();
        assert!(!expected.is_empty());
        for frame in &expected {
            let of_line = found.iter().find(|found| found.line == frame.line);
            let of_line = of_line.unwrap_or_else(|| panic!("{}:{}", case.report, frame.line));
            let at = |names: &[(String, String, u32)]| -> Vec<(String, u32)> {
                names
                    .iter()
                    .map(|(_, file, line)| (file.clone(), *line))
                    .collect()
            };
            assert_eq!(
                at(&of_line.names),
                at(&frame.names),
                "{}:{}",
                case.report,
                frame.line
            );
            for ((function, ..), (expected, ..)) in of_line.names.iter().zip(&frame.names) {
                let function = last_part(function);
                assert!(
                    expected.contains(function),
                    "{}: {function}, {expected}",
                    case.report
                );
            }
        }
        // The text names the innermost function in the line of its frame.
        let text = String::from_utf8(report.text(&bytes, &completed)).unwrap();
        let (function, ..) = &found[0].names[0];
        assert!(text.contains(function.as_str()), "{text}");
    }
}

/// The entry of the journal has the message of systemd-coredump, which `systemd.txt` is.
#[tokio::test(start_paused = true)]
async fn an_entry_of_the_journal_gets_the_frames_of_its_message() {
    let world = World::new();
    world
        .upload("global/program.debug", "reports/fault.debug")
        .await;
    let mut names = Vec::new();
    for file in ["systemd.txt", "journal.json"] {
        let mut report = CrashReport::read(&fixture(&format!("reports/{file}"))).unwrap();
        report.complete(&GivenModule {
            name: "fault".to_owned(),
            code_id: Some(build_id("fault")),
            ..GivenModule::default()
        });
        let completed = world.symbolicate(&report.request()).await;
        names.push(report.names(&completed));
    }
    assert!(names[0].iter().flatten().flatten().count() > 3, "{names:?}");
    assert_eq!(names[0], names[1]);
}
