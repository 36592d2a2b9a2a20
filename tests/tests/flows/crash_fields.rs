//! The parts of a form besides the crash file: each has its effect on walks and on answers. And
//! modules that a response leaves out.

use std::time::Duration;

use serde_json::json;
use symbolic::common::DebugId;
use symdepot::api::crash::ReadCrash;
use symdepot::api::crash::apple::parse_report;
use symdepot::api::crash::form::CrashFields;
use symdepot::api::symbolicator::{FrameTrust, ModuleStatus, Options};
use symdepot::domain::Location;
use symdepot::flows::minidump::{MinidumpForm, WalkOutcome};
use symdepot_tests::harness::{MadeUpDump, MadeUpModule, World, fixture, sample_crash};

use crate::CRASH;
use crate::crash_files::{by_name, rules};
use crate::minidump::{answered, walk};
use crate::source_lines::{context, frames, in_the_sources, lines_shown};

const ID: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";
const BASE: u64 = 0x5555_0000_0000;

fn module(address: u64, name: &str, id: &str) -> MadeUpModule {
    MadeUpModule {
        address,
        size: 0x1000,
        name: name.to_owned(),
        debug_id: id.parse().unwrap_or_default(),
        ..MadeUpModule::default()
    }
}

/// A minidump of one thread in the first of these modules, with one caller there.
fn dump(modules: Vec<MadeUpModule>) -> MadeUpDump {
    let words = vec![7, BASE + 0x31, 7, 0];
    MadeUpDump::of_threads([(BASE + 0x10, words)], modules)
}

/// Walks a minidump, and does the builds that it waits for.
async fn walked(world: &World, dump: &MadeUpDump, fields: CrashFields) -> ReadCrash {
    let dump = MinidumpForm {
        file: dump.file().into(),
        fields,
    };
    for _ in 0..3 {
        match walk(world, &dump, Duration::ZERO).await.unwrap() {
            WalkOutcome::Walked(report, _) => return *report,
            WalkOutcome::Pending => world.settle().await,
            WalkOutcome::Failed(message) => panic!("{message}"),
        }
    }
    panic!("the walk does not end");
}

/// The client of Electron's applications sends this rule: the program has the name of the
/// application, and the server has its files under the name of Electron.
#[tokio::test(start_paused = true)]
async fn a_walk_unwinds_the_first_module_with_the_file_of_the_name_that_a_rule_gives_it() {
    let id: DebugId = ID.parse().unwrap();
    let file = format!(
        "MODULE Linux x86_64 {0} electron\nFUNC 0 40 0 run\n\
         STACK CFI INIT 0 40 .cfa: $rsp 16 + .ra: .cfa 8 - ^\n",
        id.breakpad()
    );
    let at = format!(
        "http://symbols.test/electron/{}/electron.sym",
        id.breakpad()
    );
    let dump = dump(vec![module(BASE, "/opt/Chat", ID)]);
    let found = async |fields: CrashFields| {
        let world = by_name();
        world.servers.put(&Location::new(at.clone()), file.clone());
        let options = Options {
            dif_candidates: true,
            ..Options::default()
        };
        let fields = CrashFields { options, ..fields };
        let report = walked(&world, &dump, fields).await;
        let trusts = report.request.stacktraces[0].frames.iter();
        let trusts: Vec<FrameTrust> = trusts.map(|frame| frame.trust).collect();
        let unwinding = report.unwinding[0].as_ref().unwrap();
        let candidates = unwinding.candidates.iter();
        let searched = candidates.map(|candidate| candidate.location.to_string());
        let searched = searched.filter(|location| location.starts_with("http:"));
        let searched: Vec<String> = searched.collect();
        let completed = answered(&world, &report).await;
        let shown = &completed.modules[0];
        assert_eq!(shown.module.debug_file.as_deref(), Some("/opt/Chat"));
        (trusts, searched, shown.unwind_status)
    };
    let (trusts, searched, status) = found(rules("^.*Chat( Helper)?$", "electron")).await;
    assert_eq!(trusts, [FrameTrust::Context, FrameTrust::Cfi]);
    assert_eq!(searched, std::slice::from_ref(&at));
    assert_eq!(status, Some(ModuleStatus::Found));

    let (trusts, searched, status) = found(CrashFields::default()).await;
    assert_eq!(trusts, [FrameTrust::Context, FrameTrust::Scan]);
    assert!(
        !searched.is_empty() && searched.iter().all(|place| place.contains("/Chat/")),
        "{searched:?}"
    );
    assert_eq!(status, Some(ModuleStatus::Missing));
}

fn with_source_context(apply_source_context: bool) -> CrashFields {
    CrashFields {
        options: Options {
            apply_source_context,
            ..Options::default()
        },
        ..CrashFields::default()
    }
}

/// A report of the sample's crash.
fn apple_report() -> ReadCrash {
    let sample = sample_crash();
    let base = sample.modules[0].image_addr.0;
    let frames = sample.stacktraces[0].frames.iter();
    let frames = frames
        .map(|frame| json!({"imageIndex": 0, "imageOffset": frame.instruction_addr.0 - base}));
    let json = json!({
        "threads": [{"triggered": true, "frames": frames.collect::<Vec<_>>()}],
        "usedImages": [{"base": BASE, "size": 0x10_0000, "path": "/opt/crash", "uuid": CRASH}],
    });
    parse_report(json.to_string().as_bytes()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_minidump_and_a_report_show_source_lines_unless_their_options_forbid_it() {
    let world = World::new();
    for (key, file) in [
        ("global/crash", "elf/crash"),
        ("global/crash.debug", "elf/crash.debug"),
        ("global/crash.src.zip", "bundle/crash.src.zip"),
    ] {
        world.upload(key, file).await;
    }
    let mut reads = Vec::new();
    for is_applied in [true, false] {
        let dump = MinidumpForm {
            file: fixture("minidump/crash.dmp").into(),
            fields: with_source_context(is_applied),
        };
        let outcome = walk(&world, &dump, Duration::ZERO).await.unwrap();
        let WalkOutcome::Walked(dump, _) = outcome else {
            panic!("{outcome:?}");
        };
        let report = apple_report().with_fields(with_source_context(is_applied));
        for (what, report) in [("minidump", &*dump), ("report", &report)] {
            let before = world.caches.calls().total();
            let completed = answered(&world.another_instance(), report).await;
            reads.push(world.caches.calls().total() - before);
            let shown = lines_shown(&completed);
            if is_applied {
                assert!(shown > 2, "{what}: {shown}");
                for frame in frames(&completed) {
                    assert_eq!(context(frame), in_the_sources(frame), "{what}: {frame:?}");
                }
            } else {
                assert_eq!(shown, 0, "{what}");
            }
        }
    }
    // The sources are not even read.
    let [dump_with, report_with, dump_without, report_without] = reads[..] else {
        panic!("{reads:?}");
    };
    assert!(
        dump_without < dump_with && report_without < report_with,
        "{reads:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_module_without_ids_is_listed_only_if_a_frame_lies_in_it() {
    let named = async |modules: Vec<MadeUpModule>| {
        let report = walked(&World::new(), &dump(modules), CrashFields::default()).await;
        let modules = report.request.modules.iter();
        let names = modules.map(|module| module.code_file.as_deref().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let with_id = module(BASE + 0x10_0000, "/opt/with-an-id", ID);
    let unused = module(BASE + 0x20_0000, "/opt/unused", "");
    let first = |id| module(BASE, "/opt/app", id);
    assert_eq!(
        named(vec![first(""), with_id.clone(), unused.clone()]).await,
        ["/opt/app", "/opt/with-an-id"]
    );
    assert_eq!(
        named(vec![first(CRASH), unused, with_id]).await,
        ["/opt/app", "/opt/with-an-id"]
    );
}
