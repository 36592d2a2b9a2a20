//! The parser process as `derive` starts it: results of good files, and isolation of bad ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod arriving;

use std::path::PathBuf;

use bytes::Bytes;
use futures::FutureExt;
use symdepot::adapters::parser::{ParserLimits, ProcessDeriver};
use symdepot::adapters::scratch::ScratchSpace;
use symdepot::cache::{DeriveJob, Derived, Kind, ReleaseNumbers};
use symdepot::debuginfo::checksum;
use symdepot::domain::{AuxiliaryFile, Cause, DebugId, Inspection, Missing, Written, WrittenFile};
use symdepot::ports::{Deriver, FaultKind, ParseError, Parser};
use symdepot::runtime::sandbox::refuse_as_lambda;

const LIMITS: ParserLimits = ParserLimits {
    memory_bytes: 512 << 20,
    cpu_seconds: 60,
    needs_seccomp: true,
};

/// A deriver with its own scratch space.
struct Bench {
    _folder: tempfile::TempDir,
    scratch: ScratchSpace,
    deriver: ProcessDeriver,
}

impl Bench {
    /// Opens files that were written together. An auxiliary file has an id.
    async fn open_together(&self, files: &[(Vec<u8>, Option<DebugId>)]) -> Box<dyn Parser> {
        let (mut written, mut places) = (Vec::new(), Vec::new());
        for (bytes, id) in files {
            places.push(WrittenFile {
                offset: written.len() as u64,
                length: bytes.len() as u64,
                id: *id,
            });
            written.extend_from_slice(bytes);
            written.resize(written.len().next_multiple_of(16), 0);
        }
        let mut scratch = self.deriver.reserve(written.len() as u64).unwrap();
        scratch.write_at(0, written.into()).await.unwrap();
        let opened = self.deriver.open(scratch, Written::Together(places)).await;
        opened.unwrap()
    }

    fn new(limits: ParserLimits, scratch_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scratch = ScratchSpace::new(folder.path(), scratch_bytes);
        let deriver = ProcessDeriver::new(env!("CARGO_BIN_EXE_derive"), limits, scratch.clone());
        Self {
            _folder: folder,
            scratch,
            deriver,
        }
    }

    async fn open(&self, dif: impl Into<Bytes>) -> Box<dyn Parser> {
        let dif = dif.into();
        let mut scratch = self.deriver.reserve(dif.len() as u64).unwrap();
        scratch.write_at(0, dif).await.unwrap();
        self.deriver.open(scratch, Written::Whole).await.unwrap()
    }

    /// Inspects and derives both native kinds of the first object.
    async fn derive(&self, dif: impl Into<Bytes>) -> Vec<Result<Derived, Missing>> {
        let mut parser = self.open(dif).await;
        parser.inspect().await.unwrap();
        parser.derive(0, &both()).await.unwrap()
    }

    /// Asserts that earlier files have no effect: a good file is derived, and the whole budget is
    /// free again.
    async fn still_works(&self) {
        for derived in self.derive(fixture("elf/crash.debug")).await {
            assert_eq!(
                derived.as_ref().map(|derived| derived.checksum),
                Ok(checksum(&derived.as_ref().unwrap().blob))
            );
        }
        assert_eq!(self.scratch.budget().used(), 0);
    }
}

fn bench() -> Bench {
    Bench::new(LIMITS, 64 << 20)
}

fn fixture(name: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../tests/fixtures", name]
        .iter()
        .collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn job(kind: Kind) -> DeriveJob {
    DeriveJob::of(kind, &Default::default(), &ReleaseNumbers::CURRENT)
}

fn both() -> [DeriveJob; 2] {
    [job(Kind::CfiCache), job(Kind::SymCache)]
}

/// A Breakpad file that makes the parser misbehave in a given way.
fn misbehaving(how: &str) -> Vec<u8> {
    format!("MODULE Linux x86_64 0123456789ABCDEF0123456789ABCDEF0 {how}\nFUNC 1000 10 0 f\n")
        .into_bytes()
}

fn causes(answers: Vec<Result<Derived, Missing>>) -> Vec<Option<(Cause, String)>> {
    answers
        .into_iter()
        .map(|answer| answer.err().map(|missing| (missing.cause, missing.detail)))
        .collect()
}

fn missing(error: ParseError) -> Missing {
    match error {
        ParseError::Missing(missing) => missing,
        ParseError::Fault(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

#[tokio::test]
async fn a_child_process_derives_the_same_caches() {
    let bench = bench();
    for file in [
        "elf/crash.debug",
        "containers/several.zip",
        "macho/fat/crash",
        "dotnet/Ledger.pdb",
        "wasm/crash.wasm",
    ] {
        let here = symdepot::adapters::parser::InProcessDeriver::new(64 << 20);
        let dif = Bytes::from(fixture(file));
        let mut there = bench.open(dif.clone()).await;
        let mut scratch = here.reserve(dif.len() as u64).unwrap();
        scratch.write_at(0, dif).await.unwrap();
        let mut here = here.open(scratch, Written::Whole).await.unwrap();

        let inspection: Inspection = there.inspect().await.unwrap();
        assert_eq!(inspection, here.inspect().await.unwrap(), "{file}");
        assert!(!inspection.objects.is_empty());
        for object in &inspection.objects {
            let jobs: Vec<_> = Kind::derived_from(object.file_type)
                .iter()
                .copied()
                .map(job)
                .collect();
            let derived = there.derive(object.index, &jobs).await.unwrap();
            assert_eq!(
                derived,
                here.derive(object.index, &jobs).await.unwrap(),
                "{file}"
            );
            assert!(derived.iter().all(Result::is_ok), "{file}: {derived:?}");
        }
    }
    bench.still_works().await;
}

#[tokio::test]
async fn unpacked_bytes_count_during_the_whole_session() {
    let bench = bench();
    let dif = fixture("containers/crash-arm64.debug.gz");
    let packed = dif.len() as u64;
    let mut parser = bench.open(dif).await;
    assert_eq!(bench.scratch.budget().used(), packed);
    parser.inspect().await.unwrap();
    assert_eq!(bench.scratch.budget().used(), packed + 26_232);
    drop(parser);
    assert_eq!(bench.scratch.budget().used(), 0);
}

#[tokio::test]
async fn hostile_files_get_a_reason_and_affect_nothing_else_in_the_parser() {
    let bench = bench();
    let manifest: serde_json::Value = serde_json::from_slice(&fixture("manifest.json")).unwrap();
    let hostile = manifest
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["kind"] == "hostile");
    for file in hostile.map(|entry| entry["file"].as_str().unwrap()) {
        let mut parser = bench.open(fixture(file)).await;
        match parser.inspect().await {
            Ok(inspection) => {
                assert!(
                    !inspection.objects.is_empty() || !inspection.skipped.is_empty(),
                    "{file}"
                );
                for object in inspection.objects {
                    for answer in parser.derive(object.index, &both()).await.unwrap() {
                        assert!(answer.map_or_else(
                            |missing| !missing.detail.is_empty(),
                            |made| !made.blob.is_empty()
                        ));
                    }
                }
            }
            Err(error) => assert!(!missing(error).detail.is_empty(), "{file}"),
        }
    }
    bench.still_works().await;
}

#[tokio::test]
async fn a_size_that_a_section_only_claims_takes_no_memory() {
    let bench = bench();
    let answers = causes(
        bench
            .derive(fixture("hostile/section-claims-a-tebibyte"))
            .await,
    );
    let [_, Some((cause, detail))] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    assert_eq!(*cause, Cause::Malformed);
    assert_eq!(
        detail,
        "its units cannot be decompressed: the size of the section differs from the size in its header"
    );
    bench.still_works().await;
}

#[tokio::test]
async fn a_bomb_is_too_large_under_a_small_budget_and_the_next_file_fits() {
    let bench = Bench::new(LIMITS, 8 << 20);
    let mut parser = bench.open(fixture("hostile/bomb-1-gib.zst")).await;
    let inspection = parser.inspect().await.unwrap();
    let id = inspection.objects[0].code_id.as_ref().unwrap();
    assert_eq!(id.as_str(), "211f31103fa00594195037650303f4a9fb6672dd");
    for answer in parser.derive(0, &both()).await.unwrap() {
        assert_eq!(
            answer.unwrap_err().cause,
            Cause::TooLarge { limit: 8 << 20 }
        );
    }
    drop(parser);
    bench.still_works().await;
}

#[tokio::test]
async fn a_lack_of_room_caused_by_others_is_not_cached_as_too_large() {
    let bench = Bench::new(LIMITS, 60_000);
    let mut parser = bench.open(fixture("containers/crash-arm64.debug.gz")).await;
    let other = bench.deriver.reserve(40_000).unwrap();
    let Err(ParseError::Fault(error)) = parser.inspect().await else {
        panic!("there is room")
    };
    assert_eq!(error.kind(), FaultKind::Transient);
    drop(other);
    assert_eq!(parser.inspect().await.unwrap().objects.len(), 1);
}

#[tokio::test]
async fn an_endless_loop_ends_with_its_cpu_time_and_affects_nothing_else() {
    let bench = Bench::new(
        ParserLimits {
            cpu_seconds: 1,
            ..LIMITS
        },
        64 << 20,
    );
    let answers = causes(bench.derive(misbehaving("symcache:loop")).await);
    assert_eq!(
        answers,
        [
            None,
            Some((
                Cause::Malformed,
                "parsing it exceeded 1 s of CPU time".to_owned()
            ))
        ]
    );
    bench.still_works().await;
}

/// A program in the parser's place tries what the sandbox must prevent.
#[tokio::test]
async fn a_denied_system_call_ends_the_parser_and_is_named() {
    let bench = bench();
    for (how, call) in [
        ("socket", "the system call `socket`"),
        ("connect", "the system call `socket`"),
        ("exec", "the system call `execve`"),
        ("kill", "the system call `kill`"),
        ("limits", "the system call `prlimit64`"),
        ("pidfd", "the system call `pidfd_open`"),
        ("open", "the system call `openat`"),
        ("create", "the system call `openat`"),
        ("environ", "the system call `openat`"),
        // The C library blocks all signals while it creates a process, so the kernel ends it
        // immediately.
        ("fork", "a system call"),
    ] {
        let mut parser = bench.open(misbehaving(&format!("inspect:{how}"))).await;
        let missing = missing(parser.inspect().await.unwrap_err());
        assert_eq!(missing.cause, Cause::Crashed, "{how}: {}", missing.detail);
        assert_eq!(
            missing.detail,
            format!("the parser made {call}, which its sandbox refuses"),
            "{how}"
        );
    }
    assert!(!std::path::Path::new("/tmp/parser-was-here").exists());
    bench.still_works().await;
}

/// In AWS Lambda, no filter can be installed.
#[test]
fn where_filters_are_refused_a_parser_opens_nothing_either() {
    let in_lambda = || {
        refuse_as_lambda().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let strict = bench();
            let mut parser = strict.open(misbehaving("inspect:nothing")).await;
            match parser.inspect().await.unwrap_err() {
                ParseError::Fault(fault) => assert_eq!(fault.kind(), FaultKind::Bug, "{fault}"),
                ParseError::Missing(missing) => panic!("{}", missing.detail),
            }
            drop(parser);
            let limits = ParserLimits {
                needs_seccomp: false,
                ..LIMITS
            };
            let bench = Bench::new(limits, 64 << 20);
            let mut parser = bench.open(misbehaving("inspect:openings")).await;
            assert_eq!(parser.inspect().await.unwrap().objects.len(), 1);
            drop(parser);
            bench.still_works().await;
        });
    };
    std::thread::scope(|scope| scope.spawn(in_lambda).join().unwrap());
}

/// The kernel setting that the C library reads is the only file whose opening fails instead of
/// ending the process.
#[tokio::test]
async fn the_system_calls_of_the_c_library_are_allowed() {
    let bench = bench();
    let mut parser = bench.open(misbehaving("inspect:overcommit")).await;
    assert_eq!(parser.inspect().await.unwrap().objects.len(), 1);
}

#[tokio::test]
async fn a_job_that_kills_the_parser_is_identified_and_the_other_one_completes() {
    let bench = bench();
    for (how, cause, detail) in [
        (
            "cficache:overflow",
            Cause::Malformed,
            "the parser overflowed its stack",
        ),
        (
            "cficache:abort",
            Cause::Malformed,
            "the parser aborted (signal 6)",
        ),
        (
            "cficache:noise",
            Cause::Malformed,
            "the parser aborted (signal 6): line 99999 of noise",
        ),
        (
            "cficache:memory",
            Cause::TooLarge {
                limit: LIMITS.memory_bytes,
            },
            "parsing it needs more than 536870912 bytes of memory",
        ),
    ] {
        let answers = causes(bench.derive(misbehaving(how)).await);
        assert_eq!(answers, [Some((cause, detail.to_owned())), None], "{how}");
    }
    bench.still_works().await;
}

#[tokio::test]
async fn two_jobs_that_kill_the_parser_each_get_a_reason() {
    let answers = causes(bench().derive(misbehaving("derive:abort")).await);
    let reason = Some((Cause::Malformed, "the parser aborted (signal 6)".to_owned()));
    assert_eq!(answers, [reason.clone(), reason]);
}

#[tokio::test]
async fn the_reason_for_a_panic_contains_its_place() {
    let answers = causes(bench().derive(misbehaving("symcache:panic")).await);
    let [None, Some((Cause::Malformed, detail))] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    assert!(
        detail.starts_with("the parser panicked at shared/src/runtime/parser.rs:")
            && detail.contains(": told to; report this with the file"),
        "{detail}"
    );
}

#[tokio::test]
async fn a_file_that_kills_the_parser_at_inspection_fails_all_kinds() {
    let bench = bench();
    let mut parser = bench.open(misbehaving("inspect:overflow")).await;
    let first = missing(parser.inspect().await.unwrap_err());
    assert_eq!(first, Missing::malformed("the parser overflowed its stack"));
    assert_eq!(missing(parser.derive(0, &both()).await.unwrap_err()), first);
    assert_eq!(missing(parser.inspect().await.unwrap_err()), first);
    drop(parser);
    bench.still_works().await;
}

#[tokio::test]
async fn an_unexpected_exit_of_the_parser_is_an_internal_fault() {
    let mut parser = bench().open(misbehaving("inspect:exit")).await;
    let Err(ParseError::Fault(error)) = parser.inspect().await else {
        panic!("the fault is attributed to the file")
    };
    assert_eq!(error.kind(), FaultKind::Bug);
}

#[tokio::test]
async fn objects_of_an_archive_survive_the_death_of_a_process_over_another() {
    let bench = bench();
    let mut parser = bench.open(fixture("containers/several.zip")).await;
    let inspection = parser.inspect().await.unwrap();
    assert_eq!(inspection.objects.len(), 3);
    let before = parser.derive(2, &both()).await.unwrap();
    // The call is cancelled half-way: the process ends with it.
    let abandoned = parser.derive(0, &both()).now_or_never();
    assert!(abandoned.is_none());
    assert_eq!(parser.derive(2, &both()).await.unwrap(), before);
}

#[tokio::test]
async fn a_file_of_which_only_the_ends_are_written_has_its_ids() {
    let bench = bench();
    let dif = Bytes::from(fixture("elf/crash.debug"));
    let (head, tail) = (dif.slice(..8192), dif.slice(dif.len() - 8192..));
    let far = (1u64 << 40) - tail.len() as u64;
    let mut scratch = bench.deriver.reserve(16_384).unwrap();
    scratch.write_at(0, head).await.unwrap();
    scratch.write_at(far, tail).await.unwrap();
    let mut parser = bench.deriver.open(scratch, Written::InPart).await.unwrap();
    let inspection = parser.inspect().await.unwrap();
    assert_eq!(
        inspection.objects[0].code_id.as_ref().unwrap().as_str(),
        "ac456ebc7f4825f4367208b89f51ad481774aae7"
    );
    assert_eq!(inspection.objects[0].features, Default::default());
}

#[tokio::test]
async fn maps_complete_the_object_with_their_id_and_hostile_ones_end_no_parser() {
    let bench = bench();
    let named = |path: &str| {
        (
            fixture(path),
            AuxiliaryFile::named(path).and_then(|(_, id)| id),
        )
    };
    let hidden = named("maps/crash.dSYM/Contents/Resources/DWARF/crash");
    let uuid_map =
        named("maps/crash.dSYM/Contents/Resources/F9D1D247-0CA9-55DF-AB9D-50D65C32A93D.plist");
    let symbol_map = named("maps/4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap");
    let all = [hidden.clone(), uuid_map.clone(), symbol_map.clone()];
    let mut together = bench.open_together(&all).await;
    let whole = together.derive(0, &both()).await.unwrap();
    assert!(
        whole
            .iter()
            .all(|derived| derived.as_ref().unwrap().lacks.is_none())
    );

    let plist = |body: String| format!("<?xml version=\"1.0\"?><plist version=\"1.0\">{body}");
    let names = format!("BCSymbolMap Version: 2.0{}", "\n".repeat((8 << 20) + 1));
    for (hostile, id) in [
        (plist("<dict>".repeat(500)), uuid_map.1),
        (plist("<dict>".repeat(1 << 20)), uuid_map.1),
        (names, symbol_map.1),
        ("{\"a\":".repeat(1 << 20), uuid_map.1),
        (
            format!("{{\"a\":{{\"b\":{}", "[".repeat(1 << 20)),
            uuid_map.1,
        ),
    ] {
        let files = [hidden.clone(), (hostile.into_bytes(), id)];
        let mut together = bench.open_together(&files).await;
        let inspection = together.inspect().await.unwrap();
        assert_eq!((inspection.objects.len(), inspection.skipped.len()), (1, 1));
        let derived = together.derive(0, &both()).await.unwrap();
        let lacks = derived
            .iter()
            .filter_map(|derived| derived.as_ref().unwrap().lacks.as_ref());
        assert!(
            lacks
                .into_iter()
                .any(|lacks| lacks.contains("its names are hidden"))
        );
    }
}

#[tokio::test]
async fn files_that_are_written_together_complete_each_other() {
    let bench = bench();
    let alone = bench.derive(fixture("zoo/split-alone")).await;
    let lacks = |derived: &[Result<Derived, Missing>]| {
        let mut caches = derived.iter().flatten();
        caches.any(|derived| derived.lacks.is_some())
    };
    assert!(lacks(&alone));
    let in_one_archive = bench.derive(fixture("zoo/split-packaged-4.zip")).await;
    let files = ["zoo/split-alone", "zoo/split-packaged-4.zip"];
    let files = files.map(|file| (fixture(file), None));
    let mut together = bench.open_together(&files).await;
    assert_eq!(together.inspect().await.unwrap().objects.len(), 2);
    let completed = together.derive(0, &both()).await.unwrap();
    assert_eq!(completed, in_one_archive);
    assert!(!lacks(&completed));
}

#[tokio::test]
async fn a_missing_parser_program_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = ScratchSpace::new(folder.path(), 1 << 20);
    let deriver = ProcessDeriver::new("/nowhere/derive", LIMITS, scratch);
    let scratch = deriver.reserve(0).unwrap();
    let mut parser = deriver.open(scratch, Written::Whole).await.unwrap();
    let Err(ParseError::Fault(error)) = parser.inspect().await else {
        panic!()
    };
    assert!(error.to_string().contains("/nowhere/derive"), "{error}");
}

#[test]
fn the_parser_command_started_by_hand_says_what_it_is_for() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_derive"))
        .arg("parse-dif")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("it parses a file that its parent opens"));
}
