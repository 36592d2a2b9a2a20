//! What responses say about the files that were considered for a module: whether each was used, and
//! what became of it.

use std::time::Duration;

use serde_json::json;
use symdepot::api::crash::form::CrashFields;
use symdepot::api::symbolicator::{
    CandidateReport, CompletedModule, Derivation, DownloadStatus, ModuleStatus, Options,
};
use symdepot::domain::Cause;
use symdepot::flows::minidump::{MinidumpForm, WalkOutcome};
use symdepot::ports::{Concerns, ServerFailure};
use symdepot_tests::harness::{Crash, World, fixture, in_module};

use crate::minidump::{answered, walk};
use crate::servers::{self, DEBUG, at};
use crate::{CRASH, CRASH_PE};

/// The location of the portable PDB of pe/x64/crash.exe, if it were a program of .NET.
const PORTABLE_PDB: &str =
    "http://symbols.test/crash.pdb/C7D4C24F1FB854084C4C44205044422Effffffff/crash.pdb";

/// A crash in pe/x64/crash.exe, as a module of this type.
fn windows_crash(object_type: &str) -> Crash {
    let module = json!({"type": object_type, "debug_id": CRASH_PE, "debug_file": "crash.pdb"});
    let mut crash = in_module(module, &[0x1050]);
    crash.options.dif_candidates = true;
    crash
}

async fn module_of(world: &World, crash: &Crash) -> CompletedModule {
    let completed = world.symbolicate(crash).await;
    completed.modules.into_iter().next().unwrap()
}

/// Returns the module of elf/crash in the response for its minidump.
async fn module_of_minidump(world: &World) -> CompletedModule {
    let dump = MinidumpForm {
        file: fixture("minidump/crash.dmp").into(),
        fields: CrashFields {
            options: Options {
                dif_candidates: true,
                ..Options::default()
            },
            ..CrashFields::default()
        },
    };
    let walk = walk(world, &dump, Duration::from_secs(25));
    let outcome = world.with_derive_at_work(walk).await.unwrap();
    let WalkOutcome::Walked(report, _) = outcome else {
        panic!("{outcome:?}");
    };
    let completed = answered(world, &report).await;
    let mut modules = completed.modules.into_iter();
    let is_program = |module: &CompletedModule| {
        let id = module.module.debug_id.map(|id| id.to_string());
        id.as_deref() == Some(CRASH)
    };
    modules.find(is_program).unwrap()
}

/// Returns the candidate that was fetched; there must be one.
fn fetched(module: &CompletedModule) -> &CandidateReport {
    let candidates = module.candidates.iter();
    let is_fetched =
        |candidate: &&CandidateReport| matches!(candidate.download, DownloadStatus::Ok { .. });
    let fetched: Vec<_> = candidates.filter(is_fetched).collect();
    let &[fetched] = &fetched[..] else {
        panic!("{:#?}", module.candidates);
    };
    fetched
}

#[tokio::test(start_paused = true)]
async fn a_windows_pdb_of_a_dotnet_module_is_listed_as_found_and_unsupported() {
    let uploaded = World::new();
    uploaded
        .upload("global/crash.pdb", "pe/x64/crash.pdb")
        .await;
    let served = servers::world();
    served
        .servers
        .put(&at(PORTABLE_PDB), fixture("pe/x64/crash.pdb"));
    for world in [uploaded, served] {
        let mut crash = windows_crash("pe_dotnet");
        let module = module_of(&world, &crash).await;
        assert_eq!(module.debug_status, ModuleStatus::Unsupported);
        assert!(module.features.has_debug_info && module.features.has_symbols);
        let pdb = fetched(&module);
        let features = module.features.clone();
        assert_eq!(pdb.download, DownloadStatus::Ok { features });
        assert!(
            matches!(&pdb.debug, Some(Derivation::Error { details }) if details.starts_with("unsupported: a Windows PDB")),
            "{pdb:?}"
        );
        crash.options.dif_candidates = false;
        let unlisted = module_of(&world, &crash).await;
        assert_eq!(unlisted.features, module.features);
        assert_eq!(unlisted.candidates, []);
        world.check();
    }
}

/// Some servers refuse access to files that they do not have.
#[tokio::test(start_paused = true)]
async fn a_windows_pdb_of_a_dotnet_module_is_the_reason_although_another_location_fails() {
    let world = servers::world();
    let pdb = fixture("pe/x64/crash.pdb");
    world.servers.put(&at(PORTABLE_PDB), pdb);
    let compressed = at(&format!("{}_", PORTABLE_PDB.strip_suffix('b').unwrap()));
    let refused = ServerFailure {
        concerns: Concerns::Location,
        ..servers::failure(Cause::PermissionDenied, None)
    };
    world.servers.fail(&compressed, refused);
    let module = module_of(&world, &windows_crash("pe_dotnet")).await;
    assert!(world.servers.take_asked().contains(&compressed));
    assert_eq!(module.debug_status, ModuleStatus::Unsupported);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_program_without_names_is_listed_but_not_as_used() {
    let world = World::new();
    world.upload("global/crash.exe", "pe/x64/crash.exe").await;
    let module = module_of(&world, &windows_crash("pe")).await;
    assert_eq!(module.debug_status, ModuleStatus::Missing);
    assert_eq!(fetched(&module).debug, None);
    // The advice is about the file nevertheless.
    let detail = module.debug_detail.unwrap();
    assert!(detail.contains("is stripped"), "{detail}");
}

#[tokio::test(start_paused = true)]
async fn a_debug_file_without_unwind_information_is_used_for_names_only() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let module = module_of_minidump(&world).await;
    assert_eq!(module.debug_status, ModuleStatus::Found);
    assert_eq!(module.unwind_status, Some(ModuleStatus::Missing));
    let debug_file = fetched(&module);
    assert_eq!(debug_file.debug, Some(Derivation::Ok));
    assert_eq!(debug_file.unwind, None);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_parsed_is_malformed_for_names_and_for_unwinding() {
    let world = servers::world();
    world.servers.put(&at(DEBUG), "no debug file");
    let module = module_of_minidump(&world).await;
    assert_eq!(module.debug_status, ModuleStatus::Malformed);
    assert_eq!(module.unwind_status, Some(ModuleStatus::Malformed));
    for candidate in &module.candidates {
        let is_it = candidate.location == at(DEBUG);
        let is_malformed = |derivation: &Option<Derivation>| {
            matches!(derivation, Some(Derivation::Malformed { .. }))
        };
        assert_eq!(
            candidate.download == DownloadStatus::Malformed,
            is_it,
            "{candidate:?}"
        );
        assert_eq!(is_malformed(&candidate.debug), is_it, "{candidate:?}");
        assert_eq!(is_malformed(&candidate.unwind), is_it, "{candidate:?}");
    }
    let mut candidates = module.candidates.iter();
    assert!(candidates.any(|candidate| candidate.location == at(DEBUG)));
}
