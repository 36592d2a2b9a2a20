//! Companions on symbol servers: the shared file of `dwz`, by its build id, and the package with
//! the split units of a program, by the build id of the program.

use std::time::Duration;

use symdepot::adapters::faulty::Operation;
use symdepot::api::symbolicator::{DownloadStatus, ModuleStatus};
use symdepot::cache::{Entry, Kind};
use symdepot::domain::{Cause, HttpSource, Location, Missing};
use symdepot::ports::{Concerns, ServerFailure};
use symdepot_tests::harness::{Crash, World, fixture, function_names, sample_crash};

use crate::companions::{PACKAGED, SHARED, Together, answered, upload};
use crate::health::{break_circuit, occupy};
use crate::servers::{DEBUG, at, source};

const HOUR: Duration = Duration::from_secs(3600);

/// The build id of the shared file of [`SHARED`].
const SHARED_ID: &str = "b7960ddcedd4e2e125922e00f0888450ce10f0ac";

const DEBUGINFOD: &str = r#", "layout": {"type": "debuginfod"}"#;

/// The locations of a program and of the shared file, and of a package, on a server of the
/// debuginfod layout.
fn program_of(together: &Together) -> Location {
    at(&format!(
        "http://symbols.test/{}/executable",
        together.build_id
    ))
}

fn package_of(together: &Together) -> Location {
    at(&format!(
        "http://symbols.test/{}/debuginfo",
        together.build_id
    ))
}

fn shared() -> Location {
    at(&format!("http://symbols.test/{SHARED_ID}/debuginfo"))
}

fn world_of(more: &str) -> World {
    World::with(|settings| settings.sources = vec![source("distribution", more).into()])
}

/// Returns how often a location was requested.
fn times(asked: &[Location], location: &Location) -> usize {
    asked.iter().filter(|asked| *asked == location).count()
}

fn entry_of(world: &World, is_upload: bool) -> Entry {
    let is_it = |entry: &Entry| {
        entry.module().source.is_uploads() == is_upload
            && entry.kind() == Kind::SymCache
            && entry.ready().is_some()
    };
    world.entries().into_iter().find(is_it).unwrap()
}

fn made_from(world: &World, is_upload: bool) -> Vec<Location> {
    let entry = entry_of(world, is_upload);
    let made_from = entry.ready().unwrap().made_from.iter();
    made_from.map(|dif| dif.location.clone()).collect()
}

/// Returns the answer after the first probe, an hour after the build.
pub(crate) async fn answered_after_a_probe(
    world: &World,
    crash: &Crash,
) -> (Vec<String>, Option<String>) {
    world.pass(HOUR + Duration::from_secs(1)).await;
    answered(world, crash).await;
    world.settle().await;
    answered(world, crash).await
}

#[tokio::test(start_paused = true)]
async fn the_shared_file_of_a_program_is_found_on_its_server() {
    let whole = (SHARED.answer_of_one_archive().await, None);
    let (program, companions) = SHARED.files();
    for is_copied in [true, false] {
        let world = World::with(|settings| {
            settings.sources = vec![source("distribution", DEBUGINFOD).into()];
            if !is_copied {
                settings.dif_max_unused = Duration::ZERO;
            }
        });
        world.servers.put(&program_of(&SHARED), program.clone());
        world.servers.put(&shared(), companions[0].clone());
        assert_eq!(answered(&world, &SHARED.crash()).await, whole);
        let asked = world.servers.take_asked();
        // Without a copy, each file is fetched again when both are read together.
        let expected = if is_copied { 1 } else { 2 };
        assert_eq!(times(&asked, &program_of(&SHARED)), expected, "{asked:?}");
        assert_eq!(times(&asked, &shared()), expected, "{asked:?}");
        assert_eq!(made_from(&world, false), [program_of(&SHARED), shared()]);
        assert_eq!(answered(&world, &SHARED.crash()).await, whole);
        assert_eq!(world.servers.take_asked(), []);
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_file_is_fetched_once_for_all_programs_and_kinds() {
    let world = world_of(DEBUGINFOD);
    let (program, companions) = SHARED.files();
    world.servers.put(&program_of(&SHARED), program.clone());
    world.servers.put(&shared(), companions[0].clone());
    let whole = (SHARED.answer_of_one_archive().await, None);
    let crash = SHARED.crash();
    assert_eq!(answered(&world, &crash).await, whole);
    world.servers.take_asked();
    // The same program under the key of another query, which has no copy.
    let mut with_name = SHARED.crash();
    with_name.modules[0].code_file = Some("/usr/bin/shop".into());
    assert_eq!(answered(&world, &with_name).await, whole);
    assert_eq!(times(&world.servers.take_asked(), &shared()), 0);
    world.check();
}

/// Returns what was requested, except source files.
fn of_companions(world: &World) -> Vec<Location> {
    let asked = world.servers.take_asked().into_iter();
    let is_source = |location: &Location| location.as_str().contains("/source/");
    asked.filter(|location| !is_source(location)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_missing_shared_file_is_named_and_sought_again_at_growing_intervals() {
    let world = world_of(DEBUGINFOD);
    let (program, companions) = SHARED.files();
    world.servers.put(&program_of(&SHARED), program);
    let mut crash = SHARED.crash();
    crash.options.dif_candidates = true;
    let (alone, detail) = answered(&world, &crash).await;
    let detail = detail.unwrap();
    assert!(
        detail.contains(&format!("the shared file shared (build id {SHARED_ID})")),
        "{detail}"
    );
    assert_eq!(times(&world.servers.take_asked(), &shared()), 1);
    let entry = entry_of(&world, false);
    let lacks = entry.ready().unwrap().lacks.clone();
    assert_eq!(lacks, Some(detail), "/explain says the same");
    let is_shared = |candidate: &&symdepot::domain::Candidate| candidate.location == shared();
    assert_eq!(entry.candidates().iter().filter(is_shared).count(), 1);

    // The miss is cached, and each probe that finds nothing doubles the interval.
    for hours in [1, 2] {
        world.pass(HOUR * hours - Duration::from_secs(60)).await;
        assert_eq!(answered(&world, &crash).await.0, alone);
        world.settle().await;
        assert_eq!(of_companions(&world), [], "{hours} h");
        world.pass(Duration::from_secs(61)).await;
        answered(&world, &crash).await;
        world.settle().await;
        assert_eq!(of_companions(&world), [shared()], "{hours} h");
    }
    world.servers.put(&shared(), companions[0].clone());
    world.pass(HOUR * 4 + Duration::from_secs(1)).await;
    answered(&world, &crash).await;
    world.settle().await;
    let whole = (SHARED.answer_of_one_archive().await, None);
    assert_eq!(answered(&world, &crash).await, whole);
    // The program is read from its copy.
    assert_eq!(of_companions(&world), [shared()]);
    assert_eq!(entry_of(&world, false).probes(), None);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_uploaded_program_finds_its_shared_file_on_a_configured_server() {
    let world = world_of(DEBUGINFOD);
    let (program, companions) = SHARED.files();
    let crash = SHARED.crash();
    upload(&world, "global/program", program).await;
    let (alone, detail) = answered(&world, &crash).await;
    assert!(detail.unwrap().contains(SHARED_ID));
    assert_eq!(world.servers.take_asked(), [shared()]);
    world.servers.put(&shared(), companions[0].clone());
    let whole = (SHARED.answer_of_one_archive().await, None);
    assert_eq!(answered_after_a_probe(&world, &crash).await, whole);
    assert_eq!(made_from(&world, true), [at("global/program"), shared()]);
    assert_eq!(world.servers.take_asked(), [shared()]);

    // An upload of the same file takes its place, and leaves when it is removed.
    upload(&world, "global/shared", companions[0].clone()).await;
    let uploaded = [at("global/program"), at("global/shared")];
    assert_eq!(made_from(&world, true), uploaded);
    world.remove("global/shared").await;
    assert_eq!(answered(&world, &crash).await, whole);
    assert_eq!(made_from(&world, true), [at("global/program"), shared()]);
    assert_eq!(world.servers.take_asked(), [], "there is a copy");
    world.remove("global/program").await;
    let gone = world.another_instance().symbolicate(&crash).await;
    assert_eq!(gone.modules[0].debug_status, ModuleStatus::Missing);
    assert_ne!(alone, whole.0);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn the_intervals_of_probes_grow_while_a_server_is_down_but_not_while_it_is_busy() {
    let (program, _) = SHARED.files();
    let crash = SHARED.crash();
    let distribution = source("distribution", DEBUGINFOD);
    for (is_busy, expected) in [(true, 0), (false, 1)] {
        let world = world_of(DEBUGINFOD);
        upload(&world, "global/program", program.clone()).await;
        answered(&world, &crash).await;
        assert_eq!(world.servers.take_asked(), [shared()]);
        let first = entry_of(&world, true).probes().unwrap();
        world.pass(HOUR + Duration::from_secs(1)).await;
        if is_busy {
            occupy(&world, &distribution).await;
        } else {
            break_circuit(&world, &distribution).await;
        }
        answered(&world, &crash).await;
        world.settle().await;
        assert_eq!(world.servers.take_asked(), []);
        let second = entry_of(&world, true).probes().unwrap();
        assert!(second.at > first.at);
        assert_eq!((first.fruitless, second.fruitless), (0, expected));
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn the_shared_file_may_be_on_another_server_than_the_program() {
    let other = r#"{"type": "http", "id": "other", "url": "http://other.test/symbols/"}"#;
    let other: HttpSource = serde_json::from_str(other).unwrap();
    let world = World::with(|settings| {
        settings.sources = vec![source("distribution", DEBUGINFOD).into(), other.into()];
    });
    let (program, companions) = SHARED.files();
    world.servers.put(&program_of(&SHARED), program);
    let (head, rest) = SHARED_ID.split_at(2);
    let elsewhere = at(&format!("http://other.test/symbols/{head}/{rest}.debug"));
    world.servers.put(&elsewhere, companions[0].clone());
    let whole = (SHARED.answer_of_one_archive().await, None);
    assert_eq!(answered(&world, &SHARED.crash()).await, whole);
    assert_eq!(made_from(&world, false), [program_of(&SHARED), elsewhere]);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn the_package_of_a_program_is_found_by_the_build_id_of_the_program() {
    let whole = (PACKAGED.answer_of_one_archive().await, None);
    let (program, companions) = PACKAGED.files();
    let (head, rest) = PACKAGED.build_id.split_at(2);
    let native = |extension: &str| at(&format!("http://symbols.test/{head}/{rest}{extension}"));
    for (more, program_at, package_at) in [
        (DEBUGINFOD, program_of(&PACKAGED), package_of(&PACKAGED)),
        ("", native(""), native(".dwp")),
        ("", native(".debug"), native(".debug.dwp")),
    ] {
        let world = world_of(more);
        world.servers.put(&program_at, program.clone());
        let (_, detail) = answered(&world, &PACKAGED.crash()).await;
        assert!(detail.unwrap().contains("2 of 2 units"), "{package_at}");
        let asked = world.servers.take_asked();
        assert_eq!(times(&asked, &package_at), 1, "{asked:?}");
        world.servers.put(&package_at, companions[0].clone());
        world.pass(HOUR + Duration::from_secs(1)).await;
        answered(&world, &PACKAGED.crash()).await;
        world.settle().await;
        assert_eq!(answered(&world, &PACKAGED.crash()).await, whole);
        assert_eq!(made_from(&world, false), [program_at, package_at]);
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn another_file_in_the_place_of_a_companion_is_refused_by_its_ids() {
    let (program, companions) = SHARED.files();
    let (_, package) = PACKAGED.files();
    let cut = companions[0][..companions[0].len() / 2].to_vec();
    let others = [
        fixture("elf/crash.debug").to_vec(),
        package[0].clone(),
        cut,
        b"no ELF".to_vec(),
    ];
    for other in others {
        let world = world_of(DEBUGINFOD);
        world.servers.put(&program_of(&SHARED), program.clone());
        world.servers.put(&shared(), other);
        let mut crash = SHARED.crash();
        crash.options.dif_candidates = true;
        let answer = world.symbolicate(&crash).await;
        assert_eq!(answer.modules[0].debug_status, ModuleStatus::Found);
        let detail = answer.modules[0].debug_detail.as_deref().unwrap();
        assert!(detail.contains(SHARED_ID), "{detail}");
        let candidates = answer.modules[0].candidates.iter();
        let mut of_shared = candidates.filter(|candidate| candidate.location == shared());
        let download = &of_shared.next().unwrap().download;
        assert_eq!(*download, DownloadStatus::Malformed, "{download:?}");
        world.check();
    }
}

fn is_down() -> ServerFailure {
    ServerFailure {
        missing: Missing::new(Cause::DownloadFailed, "the server is down"),
        retry_after: None,
        concerns: Concerns::Server,
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_delays_only_the_companion() {
    let world = world_of(DEBUGINFOD);
    let (program, _) = SHARED.files();
    world.servers.put(&program_of(&SHARED), program);
    world.servers.fail(&shared(), is_down());
    let (names, detail) = answered(&world, &SHARED.crash()).await;
    assert!(names.len() > 30 && detail.unwrap().contains(SHARED_ID));
    assert_eq!(times(&world.servers.take_asked(), &shared()), 1);
    assert!(entry_of(&world, false).probes().is_some());
    world.check();
}

/// Without a copy, a companion is fetched a second time, to be read together with its program.
#[tokio::test(start_paused = true)]
async fn a_companion_whose_second_download_fails_is_fetched_by_the_next_probe() {
    let world = World::with(|settings| {
        settings.sources = vec![source("distribution", DEBUGINFOD).into()];
        settings.dif_max_unused = Duration::ZERO;
    });
    let (program, companions) = SHARED.files();
    world.servers.put(&program_of(&SHARED), program);
    world.servers.put(&shared(), companions[0].clone());
    // The server fails as soon as the companion was fetched.
    for nth in 1..=100 {
        let servers = world.servers.clone();
        let fail = move || async move {
            if servers.take_asked().contains(&shared()) {
                servers.fail(&shared(), is_down());
            }
        };
        world.faults.interrupt(Operation::Load, nth, fail);
    }
    let crash = SHARED.crash();
    let (names, detail) = answered(&world, &crash).await;
    assert!(names.len() > 30 && detail.unwrap().contains(SHARED_ID));
    assert_eq!(made_from(&world, false), [program_of(&SHARED)]);
    world.faults.heal();
    world.servers.put(&shared(), companions[0].clone());
    let whole = (SHARED.answer_of_one_archive().await, None);
    assert_eq!(answered_after_a_probe(&world, &crash).await, whole);
    assert_eq!(made_from(&world, false), [program_of(&SHARED), shared()]);
    assert_eq!(entry_of(&world, false).probes(), None);
    world.check();
}

/// It sends 4 KiB in 20 ms, which is fast enough for a server.
#[tokio::test(start_paused = true)]
async fn a_companion_that_arrives_slowly_leaves_half_of_the_time_to_its_program() {
    const FUNCTION_TIME: Duration = Duration::from_secs(60);
    let world = world_of(DEBUGINFOD);
    let (program, companions) = SHARED.files();
    world.servers.put(&program_of(&SHARED), program);
    let mut endless = companions[0].clone();
    endless.resize(32 << 20, 0);
    world.servers.put(&shared(), endless);
    world
        .servers
        .slow_down(&shared(), Duration::from_millis(20));
    let crash = SHARED.crash();
    world.leave_pending(&crash).await;
    world.serve_queued_within(FUNCTION_TIME).await;
    let entry = entry_of(&world, false);
    assert_eq!(made_from(&world, false), [program_of(&SHARED)]);
    assert!(entry.probes().is_some());
    let (names, detail) = answered(&world, &crash).await;
    assert!(names.len() > 30 && detail.unwrap().contains(SHARED_ID));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn filters_of_a_source_apply_to_companions() {
    let (program, companions) = SHARED.files();
    for (filter, is_searched) in [
        (r#""filetypes": ["elf_code"]"#, false),
        (r#""filetypes": ["elf_debug"]"#, true),
        // Only the ids of an uploaded program are known.
        (r#""path_patterns": ["/usr/**"]"#, false),
        (r#""requires_checksum": true"#, false),
    ] {
        let world = world_of(&format!("{DEBUGINFOD}, \"filters\": {{{filter}}}"));
        world.servers.put(&shared(), companions[0].clone());
        upload(&world, "global/program", program.clone()).await;
        let (_, detail) = answered(&world, &SHARED.crash()).await;
        assert_eq!(detail.is_none(), is_searched, "{filter}");
        let asked = world.servers.take_asked();
        assert_eq!(
            times(&asked, &shared()),
            usize::from(is_searched),
            "{filter}"
        );
        assert_eq!(entry_of(&world, true).probes(), None, "{filter}");
    }
}

/// Returns how many calls of stores and servers it takes until a program on a server has names.
async fn calls_for(
    program: &Location,
    files: &[(&Location, &[u8])],
    crash: &Crash,
) -> (u64, usize) {
    let world = world_of(DEBUGINFOD);
    for (location, bytes) in files {
        world.servers.put(location, bytes.to_vec());
    }
    let before = world.calls();
    let answer = world.symbolicate(crash).await;
    assert!(!function_names(&answer).is_empty(), "{program}");
    (world.calls() - before, world.servers.take_asked().len())
}

#[tokio::test(start_paused = true)]
async fn only_a_program_with_a_link_costs_calls_for_companions() {
    let (program, companions) = SHARED.files();
    let sample = "http://symbols.test/ac456ebc7f4825f4367208b89f51ad481774aae7/executable";
    let sample = at(sample);
    assert!(DEBUG.contains("456ebc7f4825f4367208b89f51ad481774aae7"));
    let bytes = fixture("elf/crash.debug");
    let plain = calls_for(&sample, &[(&sample, &bytes)], &sample_crash()).await;
    let at_program = program_of(&SHARED);
    let linked = calls_for(&at_program, &[(&at_program, &program)], &SHARED.crash()).await;
    let files = [(&at_program, &*program), (&shared(), &*companions[0])];
    let whole = calls_for(&at_program, &files, &SHARED.crash()).await;
    insta::assert_snapshot!(format!("{plain:?} {linked:?} {whole:?}"), @"(47, 9) (34, 3) (40, 3)");
}
