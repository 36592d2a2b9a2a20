//! Each call of a flow fails once in each way, or is delayed. After that, the same event, message
//! or request leads to the same result.

use std::fmt::Debug;
use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::symbolicator::{SourceRef, Sources};
use symdepot::cache::{Change, Entry, Kind, Token};
use symdepot::domain::Scope;
use symdepot::flows::requests::RequestToStore;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::flows::uploads::UploadEvent;
use symdepot::flows::{Error, RecordWriter};
use symdepot::ports::QueueMessage;
use symdepot_tests::harness::{Crash, World, fixture, function_names, in_module, stored_request};

use crate::servers::at;
use crate::{CHECKSUM, servers};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The number of requests, of 25 s each, that outlast the lease of a builder that was killed (60 s,
/// extended after 20 s) and a build request (30 s).
const REQUESTS: u32 = 5;

/// An event, a message or a request; it may be delivered several times.
#[derive(Debug, Clone)]
enum Step {
    Event(UploadEvent),
    Message(QueueMessage),
    Request(Box<Crash>),
    /// A request that is kept, so that the client can get the response later.
    Kept(String),
    Sweep,
}

/// Why a step did not succeed.
#[derive(Debug)]
enum Unfinished {
    /// The builds that a request needs are not complete.
    Pending,
    Failed(Error),
}

impl Step {
    async fn run(&self, world: &World) -> Result<(), Unfinished> {
        let ran = match self {
            Step::Event(event) => world.deliver(event).await,
            Step::Message(message) => world.serve(message).await,
            Step::Request(request) => {
                let instance = world.another_instance();
                let answer = instance.answer(request, &Scope::Global, Duration::from_secs(25));
                let answered = world.with_derive_at_work(answer).await;
                return finished(answered.map_err(Unfinished::Failed)?);
            }
            Step::Kept(body) => keep(world, body).await,
            Step::Sweep => world.prune().await.map(drop),
        };
        ran.map_err(Unfinished::Failed)
    }

    /// Repeats the step until it succeeds: at once, but requests as often as necessary. A builder
    /// is killed together with each request. First the lease of the last builder must end, then the
    /// build request whose message found the lease.
    async fn run_again(&self, world: &World, what: &str) {
        for _ in 0..REQUESTS {
            match (self, self.run(world).await) {
                (_, Ok(())) => return,
                (_, Err(Unfinished::Pending)) => {}
                (step, Err(Unfinished::Failed(error))) => {
                    panic!("{what}: {step:?} fails again: {error}")
                }
            }
        }
        panic!("{what}: {self:?} never completes");
    }
}

/// Keeps a request, and gets its response from another instance.
async fn keep(world: &World, body: &str) -> Result<(), Error> {
    let invocation = world.invocation(Duration::from_secs(29));
    let service = world.service();
    service
        .store_request(
            &invocation,
            "id",
            &Scope::Global,
            RequestToStore::received(body.as_bytes()),
        )
        .await?;
    let kept = stored_request(service, &invocation, "id").await?;
    assert!(
        kept.is_some_and(|(_, kept)| kept == body.as_bytes()),
        "the kept request differs from the one that was sent"
    );
    Ok(())
}

fn finished(answer: SymbolicateOutcome) -> Result<(), Unfinished> {
    match answer {
        SymbolicateOutcome::Pending => Err(Unfinished::Pending),
        SymbolicateOutcome::Completed(completed, _) => {
            assert_eq!(
                function_names(&completed),
                ["checksum"],
                "a completed response has the right names"
            );
            Ok(())
        }
    }
}

/// Runs a step in many worlds; in each of them, another single call fails. Returns the summary of
/// the end state, which is the same in all of them.
async fn check<F: Future<Output = (World, Step)>>(prepare: impl Fn() -> F) -> String {
    let (world, step) = prepare().await;
    let before = Operation::ALL.map(|operation| world.faults.calls(operation));
    step.run(&world).await.unwrap();
    let calls = Operation::ALL.map(|operation| world.faults.calls(operation));
    world.settle().await;
    let goal = world.summary();
    let mut broken = 0;
    for (at, operation) in Operation::ALL.into_iter().enumerate() {
        for nth in before[at] + 1..=calls[at] {
            for how in operation.ways() {
                let (world, step) = prepare().await;
                let lost = world.gone_blobs();
                world.faults.fail(operation, nth, *how);
                let _ = step.run(&world).await;
                world.check_but(&lost);
                world.faults.heal();
                let what = format!(
                    "{operation:?} number {} of the step failed: {how:?}",
                    nth - before[at]
                );
                step.run_again(&world, &what).await;
                world.settle().await;
                world.check();
                assert_eq!(asked_for(&world.summary()), asked_for(&goal), "{what}");
                // One more delivery, after all leases have ended, builds what no request waited
                // for.
                // A message is dropped together with its build request.
                if !matches!(step, Step::Request(_) | Step::Message(_)) {
                    world.pass(HOUR / 4).await;
                    step.run_again(&world, &what).await;
                    world.settle().await;
                    assert_eq!(needed(&world.summary()), needed(&goal), "{what}");
                }
                // Leftover blobs are removed: blobs are swept once a day.
                world.pass(DAY).await;
                world.prune().await.unwrap();
                world.check();
                assert_eq!(world.orphans(), Vec::<String>::new(), "{what}");
                broken += 1;
            }
        }
    }
    assert!(broken >= 10, "only {broken} calls");
    goal
}

/// Panics unless the end state has all of these texts, and none of the others.
fn assert_end(end: &str, has: &[&str], has_not: &[&str]) {
    for text in has {
        assert!(end.contains(text), "without {text:?}:\n{end}");
    }
    for text in has_not {
        assert!(!end.contains(text), "with {text:?}:\n{end}");
    }
}

/// Ignores caches that were built in addition to the requested ones.
fn asked_for(summary: &str) -> String {
    let needed = needed(summary);
    let lines = needed.lines().filter(|line| !line.starts_with("cficache"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Ignores copies: they save time, and nothing depends on them.
fn needed(summary: &str) -> String {
    let lines = summary.lines().filter(|line| !line.starts_with("copy"));
    lines.collect::<Vec<_>>().join("\n")
}

async fn with_checksum() -> World {
    let world = World::new();
    world.upload("global/file", "elf/checksum").await;
    world
}

fn crash_in_checksum() -> Crash {
    in_module(
        serde_json::json!({"type": "elf", "debug_id": CHECKSUM}),
        &[IN_CHECKSUM],
    )
}

/// Returns the path of the only SymCache.
fn symcache_of(world: &World) -> String {
    let mut paths = world.caches.paths().into_iter();
    paths.find(|path| path.contains("/symcache/")).unwrap()
}

/// The address of `checksum` in elf/checksum, as llvm-symbolizer prints it.
const IN_CHECKSUM: u64 = 0x1280;

#[tokio::test(start_paused = true)]
async fn an_upload_survives_each_fault() {
    check(async || {
        let world = World::new();
        let event = world.put("global/file", fixture("elf/checksum"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_of_several_objects_survives_each_fault() {
    check(async || {
        let world = World::new();
        let event = world.put("global/file", fixture("containers/several.zip"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_useless_upload_is_ignored_despite_each_fault() {
    let end = check(async || {
        let world = World::new();
        let event = world.put("global/file", fixture("hostile/text.txt"));
        (world, Step::Event(event))
    })
    .await;
    let nothing = ["symcache", "cficache", "dif "];
    assert_end(&end, &["upload global/file ignored: "], &nothing);
}

#[tokio::test(start_paused = true)]
async fn a_file_overwritten_by_one_of_another_module_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        let event = world.put("global/file", fixture("elf/crash-arm64.debug"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_good_file_overwritten_by_a_worse_one_survives_each_fault() {
    check(async || {
        let world = World::new();
        world.upload("global/file", "elf/crash-arm64.debug").await;
        let event = world.put("global/file", fixture("elf/crash-arm64"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_overwritten_by_a_useless_one_is_in_no_response() {
    let end = check(async || {
        let world = with_checksum().await;
        let event = world.put("global/file", fixture("hostile/text.txt"));
        (world, Step::Event(event))
    })
    .await;
    let of_the_first = ["dif global/file", "from global/file", ": ready"];
    assert_end(&end, &["upload global/file ignored: "], &of_the_first);
}

#[tokio::test(start_paused = true)]
async fn a_better_file_survives_each_fault() {
    check(async || {
        let world = World::new();
        world.upload("global/crash-arm64", "elf/crash-arm64").await;
        let event = world.put("global/crash-arm64.debug", fixture("elf/crash-arm64.debug"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        let event = world.take_away("global/file");
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_leaves_another_file_of_the_module_in_use() {
    let end = check(async || {
        let world = World::new();
        world.upload("global/crash-arm64", "elf/crash-arm64").await;
        world
            .upload("global/crash-arm64.debug", "elf/crash-arm64.debug")
            .await;
        let event = world.take_away("global/crash-arm64.debug");
        (world, Step::Event(event))
    })
    .await;
    let of_the_other = ["dif global/crash-arm64 for ", ": ready"];
    let of_the_removed = [
        "dif global/crash-arm64.debug",
        "from global/crash-arm64.debug",
    ];
    assert_end(&end, &of_the_other, &of_the_removed);
}

#[tokio::test(start_paused = true)]
async fn a_removal_before_its_creation_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        // There was no event for these bytes, and there will be none.
        drop(world.put("global/file", fixture("elf/crash-arm64.debug")));
        let event = world.take_away("global/file");
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_of_a_lost_blob_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        world.caches.lose(&symcache_of(&world));
        world
            .answer(&crash_in_checksum(), &Scope::Global, Duration::ZERO)
            .await
            .unwrap();
        let message = world.queues.drain().remove(0).message;
        (world, Step::Message(message))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_requested_build_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        world.pass(8 * DAY).await;
        world.prune().await.unwrap();
        world
            .answer(&crash_in_checksum(), &Scope::Global, Duration::ZERO)
            .await
            .unwrap();
        let message = world.queues.drain().remove(0).message;
        (world, Step::Message(message))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_cold_request_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        world.pass(8 * DAY).await;
        world.prune().await.unwrap();
        (world, Step::Request(Box::new(crash_in_checksum())))
    })
    .await;
}

/// A world whose server has the files that the request needs.
fn with_a_server() -> World {
    let world = servers::world();
    world
        .servers
        .put(&at(CHECKSUM_PLACE), fixture("elf/checksum"));
    world
}

/// The location of elf/checksum on the server.
const CHECKSUM_PLACE: &str = "http://symbols.test/25/ad22c82b157436514986d3331447921c78e868";

fn crash_sought_by_code() -> Crash {
    let code_id = "25ad22c82b157436514986d3331447921c78e868";
    let module = serde_json::json!({"type": "elf", "debug_id": CHECKSUM, "code_id": code_id});
    let mut crash = in_module(module, &[IN_CHECKSUM]);
    crash.sources = Sources::Listed(vec![SourceRef::Named("company".to_owned())]);
    crash
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_file_on_a_server_survives_each_fault() {
    check(async || {
        (
            with_a_server(),
            Step::Request(Box::new(crash_sought_by_code())),
        )
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_build_from_a_file_on_a_server_survives_each_fault() {
    check(async || {
        let world = with_a_server();
        let message = asked_of_the_server(&world).await;
        (world, Step::Message(message))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_build_from_a_copy_survives_each_fault() {
    check(async || {
        let world = with_a_server();
        world.symbolicate(&crash_sought_by_code()).await;
        // The derived cache is lost. The copy exists, and so does the file on the server.
        world.caches.lose(&symcache_of(&world));
        let message = asked_of_the_server(&world.another_instance()).await;
        (world, Step::Message(message))
    })
    .await;
}

/// Sends a request for the file on the server. Returns the message of the build request.
async fn asked_of_the_server(world: &World) -> QueueMessage {
    let crash = crash_sought_by_code();
    let answer = world.answer(&crash, &Scope::Global, Duration::ZERO).await;
    assert!(matches!(answer.unwrap(), SymbolicateOutcome::Pending));
    world.queues.drain().remove(0).message
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_removes_copies_survives_each_fault() {
    check(async || {
        let world = with_a_server();
        world.symbolicate(&crash_sought_by_code()).await;
        world.pass(8 * DAY).await;
        (world, Step::Sweep)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_finds_a_lost_blob_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        world
            .caches
            .overwrite(&symcache_of(&world), b"other bytes".to_vec());
        (world, Step::Request(Box::new(crash_in_checksum())))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_code_id_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        world.pass(8 * DAY).await;
        world.prune().await.unwrap();
        let code_id = "25ad22c82b157436514986d3331447921c78e868";
        let module = serde_json::json!({"type": "elf", "code_id": code_id});
        let request = in_module(module, &[IN_CHECKSUM]);
        (world, Step::Request(Box::new(request)))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_records_a_use_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        world.pass(3 * HOUR).await;
        (world, Step::Request(Box::new(crash_in_checksum())))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_kept_request_survives_each_fault() {
    check(async || (World::new(), Step::Kept("{}".to_owned()))).await;
}

#[tokio::test(start_paused = true)]
async fn a_large_kept_request_survives_each_fault() {
    check(async || (World::new(), Step::Kept(" ".repeat(400 << 10)))).await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_removes_leftovers_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        let named = symcache_of(&world);
        let (folder, _) = named.rsplit_once('/').unwrap();
        let orphan = format!("{folder}/{}", Token::from_random(7));
        world
            .caches
            .overwrite(&orphan, b"no record names it".to_vec());
        keep(&world, "{}").await.unwrap();
        let invocation = world.invocation(HOUR);
        let writer = RecordWriter {
            records: &*world.records,
            policy: &world.settings.policy,
            invocation: &invocation,
        };
        let vanished = Change::TakeLease {
            holder: "a holder that was killed".to_owned(),
            token: invocation.token(),
            deadline: invocation.deadline(),
        };
        let module = world.module("global", CHECKSUM);
        writer
            .apply(&module, Kind::SymCache, &vanished)
            .await
            .unwrap();
        world.pass(2 * HOUR).await;
        (world, Step::Sweep)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_survives_each_fault() {
    check(async || {
        let world = with_checksum().await;
        world.upload("global/other", "elf/crash-arm64.debug").await;
        world.pass(8 * DAY).await;
        (world, Step::Sweep)
    })
    .await;
}

/// The maximum number of calls of an invocation to a store that does not respond.
const MAX_CALLS: u64 = 20;

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_respond_is_called_a_bounded_number_of_times() {
    for operation in [Operation::Load, Operation::Replace, Operation::CreateBlob] {
        let world = World::new();
        let event = world.put("global/file", fixture("elf/checksum"));
        world.faults.fail_always(operation, How::Throttled);
        let before = world.faults.calls(operation);
        let delivered = world.deliver(&event).await;
        assert!(matches!(delivered, Err(Error::Fault(_))), "{operation:?}");
        let calls = world.faults.calls(operation) - before;
        assert!((1..=MAX_CALLS).contains(&calls), "{operation:?}: {calls}");
        let _ = world
            .answer(&crash_in_checksum(), &Scope::Global, Duration::ZERO)
            .await;
        let calls = world.faults.calls(operation) - before - calls;
        assert!(calls <= MAX_CALLS, "{operation:?}: {calls}");
        world.faults.heal();
        world.check();
        for entry in world.entries() {
            assert_eq!(
                entry.missing(),
                None,
                "{operation:?}: a failed store is not a property of the file"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_delivered_again_after_days_does_nothing() {
    let world = with_checksum().await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    let crash = crash_in_checksum();
    let asked = world.answer(&crash, &Scope::Global, Duration::ZERO).await;
    assert!(matches!(asked.unwrap(), SymbolicateOutcome::Pending));
    let message = world.queues.drain().remove(0).message;
    world.serve(&message).await.unwrap();
    let (derived, before) = (world.derivations.derived(), world.summary());
    world.pass(3 * DAY).await;
    world.serve(&message).await.unwrap();
    assert_eq!(
        (
            world.derivations.derived(),
            world.summary(),
            world.queues.sent()
        ),
        (derived, before, vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn a_throttled_or_denied_call_is_never_cached_as_missing() {
    for operation in [
        Operation::Query,
        Operation::Replace,
        Operation::StatDif,
        Operation::ReadDif,
        Operation::CreateBlob,
    ] {
        for how in [How::Throttled, How::Denied] {
            let world = World::new();
            let mut event = world.put("global/file", fixture("elf/checksum"));
            if operation == Operation::StatDif {
                event.written = None; // otherwise `derive` does not stat the file
            }
            world.faults.fail_always(operation, how);
            let failed = world.deliver(&event).await;
            assert!(failed.is_err(), "{operation:?} {how:?}");
            let remembers = |entry: &Entry| entry.missing().is_some();
            assert!(
                !world.entries().iter().any(remembers),
                "{operation:?} {how:?}: {world:?}"
            );
            world.faults.heal();
            let what = format!("{operation:?} always failed: {how:?}");
            Step::Event(event).run_again(&world, &what).await;
            world.settle().await;
            let entry = world.entry("global", CHECKSUM, Kind::SymCache).unwrap();
            assert!(entry.ready().is_some(), "{operation:?} {how:?}: {entry:#?}");
        }
    }
}
