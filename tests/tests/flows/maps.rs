//! Auxiliary files: UUID maps and symbol maps of Mach-O files with hidden names, and line maps of
//! Unity, in the uploads and on symbol servers.

use std::time::Duration;

use serde_json::json;
use symdepot::api::symbolicator::{Completed, DownloadStatus};
use symdepot::cache::{Kind, UploadState};
use symdepot::domain::{Cause, FileType, Location};
use symdepot_tests::harness::{
    Crash, World, archive, fixture, fixture_text, function_names, in_module, oracle,
};

use crate::CRASH;
use crate::companions::answered;
use crate::companions_of_servers::answered_after_a_probe;
use crate::first_hour::explained;
use crate::health::occupy;
use crate::servers::{failure, put_listed, source, world_with_lists};

const HOUR: Duration = Duration::from_secs(3600);

/// The debug id of the dSYM with hidden names, and of the same dSYM before they were hidden.
const HIDDEN: &str = "f9d1d247-0ca9-55df-ab9d-50d65c32a93d";
const BEFORE: &str = "4c4c445c-5555-3144-a106-efef076dfa3c";

const BEFORE_DSYM: &str = "macho/arm64/crash.dSYM/Contents/Resources/DWARF/crash";

/// The files that make up the names of the hidden dSYM: each with its key and its fixture.
const FILES: [(&str, &str); 3] = [
    (
        "global/crash",
        "maps/crash.dSYM/Contents/Resources/DWARF/crash",
    ),
    (
        "global/crash.dSYM/F9D1D247-0CA9-55DF-AB9D-50D65C32A93D.plist",
        "maps/crash.dSYM/Contents/Resources/F9D1D247-0CA9-55DF-AB9D-50D65C32A93D.plist",
    ),
    (
        "global/4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap",
        "maps/4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap",
    ),
];

/// The paths of these files in the unified layout.
const UNIFIED: [&str; 3] = [
    "f9/d1d2470ca955dfab9d50d65c32a93d/debuginfo",
    "f9/d1d2470ca955dfab9d50d65c32a93d/uuidmap",
    "4c/4c445c55553144a106efef076dfa3c/bcsymbolmap",
];

const LINE_MAP: &str = "maps/crash.il2cpp";

/// Returns a crash at the addresses of an oracle.
fn crash_of(module: serde_json::Value, of: &str) -> Crash {
    let oracle = oracle(&format!("expected/{of}.llvm-symbolizer.json"));
    let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let frames = oracle.frames.iter();
    let addresses: Vec<u64> = frames.map(|frame| address(&frame.address)).collect();
    assert!(addresses.len() > 30);
    in_module(module, &addresses)
}

fn mach_crash(debug_id: &str) -> Crash {
    let module = json!({"type": "macho", "debug_id": debug_id});
    crash_of(module, "macho-arm64-crash.dSYM")
}

/// Returns a crash of the sample program under the name of a binary of Unity.
fn unity_crash(code_file: &str) -> Crash {
    let module = json!({
        "type": "elf", "debug_id": CRASH, "code_id": "ac456ebc7f4825f4367208b89f51ad481774aae7",
        "code_file": code_file,
    });
    crash_of(module, "elf-crash.debug")
}

/// Returns the names of the functions before they were hidden.
async fn names_before() -> Vec<String> {
    let world = World::new();
    world.upload("global/before", BEFORE_DSYM).await;
    let answer = world.symbolicate(&mach_crash(BEFORE)).await;
    assert_eq!(answer.modules[0].debug_detail, None);
    function_names(&answer)
}

fn are_hidden(names: &[String]) -> bool {
    names.iter().any(|name| name.contains("__hidden#"))
}

/// Returns the number of frames whose file is one of C#.
fn managed_frames(answer: &Completed) -> usize {
    let frames = answer.stacktraces.iter().flat_map(|stack| &stack.frames);
    let paths = frames.filter_map(|frame| frame.frame.abs_path.as_deref());
    paths
        .filter(|path| path.starts_with("Assets/Scripts/"))
        .count()
}

#[tokio::test(start_paused = true)]
async fn hidden_names_are_shown_in_any_order_of_uploads_until_a_map_is_removed() {
    let (whole, crash) = (names_before().await, mach_crash(HIDDEN));
    assert!(!are_hidden(&whole));
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let world = World::new();
        for (done, file) in order.into_iter().enumerate() {
            let (key, path) = FILES[file];
            let item = world.upload(key, path).await;
            assert_eq!(item.state, UploadState::Applied, "{key}");
            if order[..=done].contains(&0) && done < 2 {
                let (names, detail) = answered(&world, &crash).await;
                assert!(are_hidden(&names), "{order:?}");
                let detail = detail.unwrap();
                let file = if order[..=done].contains(&1) {
                    "4c4c445c-5555-3144-a106-efef076dfa3c.bcsymbolmap"
                } else {
                    "f9d1d247-0ca9-55df-ab9d-50d65c32a93d.plist"
                };
                assert!(detail.contains(file), "{detail}");
            }
        }
        assert_eq!(
            answered(&world, &crash).await,
            (whole.clone(), None),
            "{order:?}"
        );
        let entry = world.entry("global", HIDDEN, Kind::SymCache).unwrap();
        let made_from = entry.ready().unwrap().made_from.iter();
        let made_from: Vec<&str> = made_from.map(|dif| dif.location.as_str()).collect();
        assert_eq!(made_from, FILES.map(|(key, _)| key));
        world.check();
        for (key, path) in &FILES[1..] {
            world.remove(key).await;
            assert!(are_hidden(&answered(&world, &crash).await.0), "{key}");
            world.check();
            world.upload(key, path).await;
            assert_eq!(answered(&world, &crash).await.0, whole, "{key}");
        }
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn an_archive_with_its_maps_needs_no_other_file() {
    let member = |path: &str| (path.to_owned(), fixture(path).to_vec());
    let world = World::new();
    let all = archive(&FILES.map(|(_, path)| member(path)));
    world
        .deliver(&world.put("global/all.zip", all))
        .await
        .unwrap();
    world.settle().await;
    let whole = (names_before().await, None);
    let crash = mach_crash(HIDDEN);
    assert_eq!(answered(&world, &crash).await, whole);

    // The symbol maps of an archive are found one by one.
    let world = World::new();
    let dsym = archive(&[member(FILES[0].1), member(FILES[1].1)]);
    let maps = archive(&[
        (
            "BCSymbolMaps/00000000-0000-0000-0000-000000000001.bcsymbolmap".to_owned(),
            b"BCSymbolMap Version: 2.0\nwrong\n".to_vec(),
        ),
        (
            "BCSymbolMaps/4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap".to_owned(),
            fixture(FILES[2].1).to_vec(),
        ),
    ]);
    for (key, bytes) in [("global/maps.zip", maps), ("global/dsym.zip", dsym)] {
        world.deliver(&world.put(key, bytes)).await.unwrap();
        world.settle().await;
    }
    assert_eq!(answered(&world, &crash).await, whole);
    world.remove("global/maps.zip").await;
    assert!(are_hidden(&answered(&world, &crash).await.0));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn lines_of_unity_are_those_of_the_source_until_the_line_map_is_removed() {
    let crash = unity_crash("/data/app/libil2cpp.so");
    for is_map_first in [true, false] {
        let world = World::new();
        let mut files = [
            ("global/crash.debug", "elf/crash.debug"),
            ("global/lines.json", LINE_MAP),
        ];
        if is_map_first {
            files.reverse();
        }
        for (key, path) in files {
            let item = world.upload(key, path).await;
            assert_eq!(item.state, UploadState::Applied, "{key}");
        }
        let answer = world.another_instance().symbolicate(&crash).await;
        assert!(managed_frames(&answer) > 30, "{}", managed_frames(&answer));
        assert_eq!(answer.modules[0].debug_detail, None);
        world.remove("global/lines.json").await;
        let answer = world.another_instance().symbolicate(&crash).await;
        assert_eq!(managed_frames(&answer), 0);
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_module_without_hidden_names_costs_no_call_for_maps() {
    let calls_of = |files: Vec<(&'static str, &'static str)>| async move {
        let world = World::new();
        let before = world.calls();
        for (key, path) in files {
            world.upload(key, path).await;
        }
        world.calls() - before
    };
    let elf = calls_of(vec![("global/a", "elf/crash.debug")]).await;
    let mach = calls_of(vec![("global/a", BEFORE_DSYM)]).await;
    let hidden = calls_of(vec![("global/a", FILES[0].1)]).await;
    // An ELF file has an alias from its code id, which a Mach-O file has, too.
    assert_eq!((mach, hidden), (elf, elf));
}

fn unified() -> World {
    let unified = source("company", r#", "layout": {"type": "unified"}"#);
    World::with(|settings| settings.sources = vec![unified.into()])
}

fn at(path: &str) -> Location {
    Location::new(format!("http://symbols.test/{path}"))
}

#[tokio::test(start_paused = true)]
async fn the_maps_of_a_mach_o_file_with_hidden_names_are_found_on_its_server() {
    let world = unified();
    for (path, (_, file)) in UNIFIED.into_iter().zip(FILES) {
        world.servers.put(&at(path), fixture(file));
    }
    let crash = mach_crash(HIDDEN);
    let whole = (names_before().await, None);
    let answer = world.symbolicate(&crash).await;
    assert_eq!(function_names(&answer), whole.0);
    assert_eq!(answer.modules[0].debug_detail, None);
    let asked = world.servers.take_asked();
    for path in UNIFIED {
        let times = asked.iter().filter(|asked| **asked == at(path)).count();
        assert_eq!(times, 1, "{path} of {asked:?}");
    }
    assert_eq!(answered(&world, &crash).await, whole);
    assert_eq!(world.servers.take_asked(), []);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn maps_are_found_on_a_server_without_copies_of_its_files() {
    let world = World::with(|settings| {
        let unified = source("company", r#", "layout": {"type": "unified"}"#);
        settings.sources = vec![unified.into()];
        settings.dif_max_unused = Duration::ZERO;
    });
    for (path, (_, file)) in UNIFIED.into_iter().zip(FILES) {
        world.servers.put(&at(path), fixture(file));
    }
    let answer = world.symbolicate(&mach_crash(HIDDEN)).await;
    assert_eq!(function_names(&answer), names_before().await);
}

#[tokio::test(start_paused = true)]
async fn a_map_that_a_server_lacks_is_asked_for_again_at_growing_intervals() {
    let world = unified();
    world.servers.put(&at(UNIFIED[0]), fixture(FILES[0].1));
    let crash = mach_crash(HIDDEN);
    assert!(are_hidden(&answered(&world, &crash).await.0));
    let times = |asked: &[Location]| {
        asked
            .iter()
            .filter(|asked| **asked == at(UNIFIED[1]))
            .count()
    };
    assert_eq!(times(&world.servers.take_asked()), 1);
    // The miss is known.
    assert!(are_hidden(&answered(&world, &crash).await.0));
    assert_eq!(world.servers.take_asked(), []);
    for (path, (_, file)) in UNIFIED.into_iter().zip(FILES).skip(1) {
        world.servers.put(&at(path), fixture(file));
    }
    let found = answered_after_a_probe(&world, &crash).await;
    assert_eq!(found, (names_before().await, None));
    // The dSYM is read from its copy.
    let asked = world.servers.take_asked();
    assert!(
        times(&asked) == 1 && !asked.contains(&at(UNIFIED[0])),
        "{asked:?}"
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_probe_for_a_map_that_gets_no_permit_is_repeated_after_the_same_interval() {
    let world = unified();
    world.servers.put(&at(UNIFIED[0]), fixture(FILES[0].1));
    let crash = mach_crash(HIDDEN);
    assert!(are_hidden(&answered(&world, &crash).await.0));
    for (path, (_, file)) in UNIFIED.into_iter().zip(FILES).skip(1) {
        world.servers.put(&at(path), fixture(file));
    }
    world.servers.take_asked();
    world.pass(HOUR + Duration::from_secs(1)).await;
    let company = source("company", r#", "layout": {"type": "unified"}"#);
    occupy(&world, &company).await;
    answered(&world, &crash).await;
    world.settle().await;
    assert!(are_hidden(&answered(&world, &crash).await.0));
    assert_eq!(world.servers.take_asked(), []);

    let found = answered_after_a_probe(&world, &crash).await;
    assert_eq!(found, (names_before().await, None));
    world.check();
}

/// Unwind information is sought in other files, after the dSYM was found.
#[tokio::test(start_paused = true)]
async fn a_map_is_asked_for_an_hour_later_if_the_server_fails_before_it_is_asked_for() {
    let crash = mach_crash(HIDDEN);
    let world = unified();
    world.servers.put(&at(UNIFIED[0]), fixture(FILES[0].1));
    answered(&world, &crash).await;
    let asked = world.servers.take_asked();
    let dsym = asked.iter().position(|asked| *asked == at(UNIFIED[0]));
    let after_it = &asked[dsym.unwrap() + 1];
    assert_ne!(*after_it, at(UNIFIED[1]));

    let world = unified();
    for (path, (_, file)) in UNIFIED.into_iter().zip(FILES) {
        world.servers.put(&at(path), fixture(file));
    }
    world.servers.fail(after_it, failure(Cause::Timeout, None));
    assert!(are_hidden(&answered(&world, &crash).await.0));
    let found = answered_after_a_probe(&world, &crash).await;
    assert_eq!(found, (names_before().await, None));
    world.check();
}

/// The line map is the first one that is sought.
#[tokio::test(start_paused = true)]
async fn after_a_failure_of_the_server_no_further_map_is_requested() {
    let world = unified();
    for (path, (_, file)) in UNIFIED.into_iter().zip(FILES) {
        world.servers.put(&at(path), fixture(file));
    }
    let line_map = at("f9/d1d2470ca955dfab9d50d65c32a93d/il2cpp");
    world.servers.fail(&line_map, failure(Cause::Timeout, None));
    let module = json!({"type": "macho", "debug_id": HIDDEN, "code_file": "/UnityFramework"});
    let crash = crash_of(module, "macho-arm64-crash.dSYM");
    assert!(are_hidden(&answered(&world, &crash).await.0));
    let asked = world.servers.take_asked();
    assert!(
        asked.contains(&line_map) && !asked.contains(&at(UNIFIED[1])),
        "{asked:?}"
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn only_modules_that_may_have_maps_are_searched_for_them() {
    let is_map = |location: &Location| {
        let path = location.as_str();
        ["uuidmap", "bcsymbolmap", "il2cpp"]
            .iter()
            .any(|what| path.ends_with(what))
    };
    let world = unified();
    let before = "4c/4c445c55553144a106efef076dfa3c/debuginfo";
    let elf = "ac/456ebc7f4825f4367208b89f51ad481774aae7/debuginfo";
    world.servers.put(&at(before), fixture(BEFORE_DSYM));
    world.servers.put(&at(elf), fixture("elf/crash.debug"));
    world.symbolicate(&mach_crash(BEFORE)).await;
    world.symbolicate(&unity_crash("/usr/bin/crash")).await;
    let asked = world.servers.take_asked();
    assert!(asked.contains(&at(before)) && asked.contains(&at(elf)));
    assert!(!asked.iter().any(is_map), "{asked:?}");

    let line_map = at("ac/456ebc7f4825f4367208b89f51ad481774aae7/il2cpp");
    world.servers.put(&line_map, fixture(LINE_MAP));
    let answer = world
        .symbolicate(&unity_crash("/data/app/libil2cpp.so"))
        .await;
    assert!(managed_frames(&answer) > 30);
    let asked = world.servers.take_asked();
    let maps: Vec<&Location> = asked.iter().filter(|location| is_map(location)).collect();
    assert_eq!(maps, [&line_map]);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_lists_its_files_lists_the_maps() {
    let world = world_with_lists();
    let types = [
        FileType::MachDebug,
        FileType::UuidMap,
        FileType::BcSymbolMap,
    ];
    let files: Vec<_> = types.into_iter().zip(FILES.map(|(_, file)| file)).collect();
    let listed = put_listed(&world, &files);
    // A listing of auxiliary files alone has nothing to symbolicate with.
    world.servers.list_files(Ok(listed[1..].to_vec()));
    let crash = mach_crash(HIDDEN);
    answered(&world, &crash).await;
    let asked = world.servers.take_asked();
    assert!(
        asked.iter().all(|asked| asked.as_str().ends_with('/')),
        "{asked:?}"
    );
    world.servers.list_files(Ok(listed));
    world.pass(Duration::from_secs(90)).await;
    answered(&world, &crash).await;
    world.settle().await;
    assert_eq!(answered(&world, &crash).await, (names_before().await, None));
}

#[tokio::test(start_paused = true)]
async fn a_map_that_cannot_be_read_is_ignored_with_a_reason_and_harms_nothing() {
    let world = World::new();
    world.upload(FILES[0].0, FILES[0].1).await;
    let crash = mach_crash(HIDDEN);
    let alone = answered(&world, &crash).await;
    let plist = fixture_text(FILES[1].1);
    let nil = plist.replace(
        &BEFORE.to_uppercase(),
        "00000000-0000-0000-0000-000000000000",
    );
    let of_another = format!("{{\"__debug-id__\": {{\"{BEFORE}\": {{}}}}}}");
    for (name, bytes, expected) in [
        (
            "x.plist",
            plist.clone().into_bytes(),
            "name it <UUID of the Mach-O file>.plist",
        ),
        (
            &format!("{HIDDEN}.plist"),
            nil.into_bytes(),
            "it has no DBGOriginalUUID",
        ),
        (&format!("{HIDDEN}.plist"), vec![b'<'; 9000], "XML"),
        (
            &format!("{BEFORE}.bcsymbolmap"),
            b"BCSymbolMap Version: 2.0\n\xff".to_vec(),
            "not valid UTF-8",
        ),
        (
            "x.bcsymbolmap",
            fixture(FILES[2].1).to_vec(),
            "name it <UUID>.bcsymbolmap",
        ),
        (
            &format!("{HIDDEN}.il2cpp"),
            "{\"a\":".repeat(100_000).into_bytes(),
            "JSON that is not a line map",
        ),
        (
            &format!("{HIDDEN}.il2cpp"),
            of_another.into_bytes(),
            "although its name has the id",
        ),
    ] {
        let key = format!("global/maps/{name}");
        world.deliver(&world.put(&key, bytes)).await.unwrap();
        world.settle().await;
        let UploadState::Ignored { reason } = explained(&world, &key).await.unwrap().state else {
            panic!("{key} is not ignored")
        };
        assert!(reason.contains(expected), "{reason}");
        assert_eq!(answered(&world, &crash).await, alone);
    }
    // A UUID map may refer to the file's own id.
    let to_itself = plist.replace(&BEFORE.to_uppercase(), HIDDEN);
    let key = format!("global/{HIDDEN}.plist");
    world.deliver(&world.put(&key, to_itself)).await.unwrap();
    world
        .upload(&format!("global/{HIDDEN}.bcsymbolmap"), FILES[2].1)
        .await;
    assert_eq!(answered(&world, &crash).await.0, names_before().await);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_server_with_a_wrong_map_has_it_as_a_malformed_candidate() {
    let world = unified();
    world.servers.put(&at(UNIFIED[0]), fixture(FILES[0].1));
    world.servers.put(&at(UNIFIED[1]), fixture(BEFORE_DSYM));
    let mut crash = mach_crash(HIDDEN);
    crash.options.dif_candidates = true;
    let answer = world.symbolicate(&crash).await;
    assert!(are_hidden(&function_names(&answer)));
    let candidates = &answer.modules[0].candidates;
    let map = candidates
        .iter()
        .find(|candidate| candidate.location == at(UNIFIED[1]));
    assert_eq!(map.unwrap().download, DownloadStatus::Malformed);
}
