//! Every call of a flow fails once, in each way. Afterwards the same event, message or request leads to the same end.

use std::fmt::Debug;
use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::symbolicator::ModuleStatus;
use symdepot::domain::Scope;
use symdepot::flows::Error;
use symdepot::flows::symbolicate::Answer;
use symdepot::flows::uploads::UploadEvent;
use symdepot::ports::LaneMessage;
use symdepot_tests::harness::{Crash, World, fixture, function_names, in_module};

use crate::CHECKSUM;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What is delivered, perhaps several times.
#[derive(Debug, Clone)]
enum Step {
    Event(UploadEvent),
    Message(LaneMessage),
    Request(Box<Crash>),
    Sweep,
}

impl Step {
    async fn run(&self, world: &World) -> Result<(), Error> {
        match self {
            Step::Event(event) => world.deliver(event).await,
            Step::Message(message) => world.serve(message).await,
            Step::Request(request) => {
                let instance = world.another_instance();
                let answer = instance.answer(request, &Scope::Global, Duration::from_secs(25));
                finished(world.with_derive_at_work(answer).await?)
            }
            Step::Sweep => world.prune().await.map(drop),
        }
    }

    /// Runs again until it is done: at once, but for requests, whose message may be lost for as long as an ask stands.
    async fn run_again(&self, world: &World) {
        for _ in 0..3 {
            match (self, self.run(world).await) {
                (_, Ok(())) => return,
                (Step::Request(_), Err(Error::Deadline { .. })) => {}
                (step, Err(error)) => panic!("{step:?} fails without a fault: {error}"),
            }
        }
        panic!("{self:?} is never done");
    }
}

fn finished(answer: Answer) -> Result<(), Error> {
    match answer {
        Answer::Pending => Err(Error::Deadline {
            what: "a request".to_owned(),
        }),
        Answer::Completed(completed, _) => {
            // A fault of ours is told as one: the caller asks again.
            if completed.modules[0].debug_status == ModuleStatus::Other {
                return Err(Error::Deadline {
                    what: "a request".to_owned(),
                });
            }
            assert_eq!(
                function_names(&completed),
                ["checksum"],
                "an answer is right, or there is none"
            );
            Ok(())
        }
    }
}

/// Runs a step in each world that differs from a sound one by one failed call.
async fn check<F: Future<Output = (World, Step)>>(prepare: impl Fn() -> F) {
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
                world.faults.fail(operation, nth, *how);
                let _ = step.run(&world).await;
                world.check();
                world.faults.heal();
                let what = format!(
                    "{operation:?} number {} of the step failed: {how:?}",
                    nth - before[at]
                );
                step.run_again(&world).await;
                world.settle().await;
                world.check();
                assert_eq!(asked_for(&world.summary()), asked_for(&goal), "{what}");
                // Delivered once more, when every lease is over, it brings what nobody waited for.
                if !matches!(step, Step::Request(_)) {
                    world.pass(HOUR / 4).await;
                    step.run_again(&world).await;
                    world.settle().await;
                    assert_eq!(world.summary(), goal, "{what}");
                }
                // What was left over goes.
                world.pass(2 * HOUR).await;
                world.prune().await.unwrap();
                world.check();
                assert_eq!(world.orphans(), Vec::<String>::new(), "{what}");
                broken += 1;
            }
        }
    }
    assert!(broken > 10, "only {broken} calls");
}

/// Leaves out what comes of a build beside what was asked for.
fn asked_for(summary: &str) -> String {
    let lines = summary.lines().filter(|line| !line.starts_with("cficache"));
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

/// Where `checksum` is in elf/checksum, by llvm-symbolizer.
const IN_CHECKSUM: u64 = 0x1280;

#[tokio::test(start_paused = true)]
async fn an_upload_comes_through() {
    check(async || {
        let world = World::new();
        let event = world.put("global/file", fixture("elf/checksum"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_of_several_objects_comes_through() {
    check(async || {
        let world = World::new();
        let event = world.put("global/file", fixture("containers/several.zip"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_of_no_use_is_ignored() {
    check(async || {
        let world = World::new();
        let event = world.put("global/file", fixture("hostile/text.txt"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_overwritten_by_one_of_another_module_comes_through() {
    check(async || {
        let world = with_checksum().await;
        let event = world.put("global/file", fixture("elf/crash-arm64.debug"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_good_file_overwritten_by_a_worse_one_comes_through() {
    check(async || {
        let world = World::new();
        world.upload("global/file", "elf/crash-arm64.debug").await;
        let event = world.put("global/file", fixture("elf/crash-arm64"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_overwritten_by_one_of_no_use_is_out_of_every_answer() {
    check(async || {
        let world = with_checksum().await;
        let event = world.put("global/file", fixture("hostile/text.txt"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_better_file_comes_through() {
    check(async || {
        let world = World::new();
        world.upload("global/crash-arm64", "elf/crash-arm64").await;
        let event = world.put("global/crash-arm64.debug", fixture("elf/crash-arm64.debug"));
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_comes_through() {
    check(async || {
        let world = with_checksum().await;
        let event = world.take_away("global/file");
        (world, Step::Event(event))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_build_that_was_asked_for_comes_through() {
    check(async || {
        let world = with_checksum().await;
        world.pass(8 * DAY).await;
        world.prune().await.unwrap();
        world
            .answer(&crash_in_checksum(), &Scope::Global, Duration::ZERO)
            .await
            .unwrap();
        let message = world.lanes.drain().remove(0).message;
        (world, Step::Message(message))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_cold_request_comes_through() {
    check(async || {
        let world = with_checksum().await;
        world.pass(8 * DAY).await;
        world.prune().await.unwrap();
        (world, Step::Request(Box::new(crash_in_checksum())))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_meets_a_lost_blob_comes_through() {
    check(async || {
        let world = with_checksum().await;
        let path = world
            .caches
            .paths()
            .into_iter()
            .find(|path| path.contains("/symcache/"))
            .unwrap();
        world.caches.overwrite(&path, b"not what it was".to_vec());
        (world, Step::Request(Box::new(crash_in_checksum())))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sweep_comes_through() {
    check(async || {
        let world = with_checksum().await;
        world.upload("global/other", "elf/crash-arm64.debug").await;
        world.pass(8 * DAY).await;
        (world, Step::Sweep)
    })
    .await;
}

/// Calls that one invocation may make of a store that is down.
const MOST_CALLS: u64 = 20;

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_called_a_few_times_and_then_left_alone() {
    for operation in [Operation::Load, Operation::Replace, Operation::CreateBlob] {
        let world = World::new();
        let event = world.put("global/file", fixture("elf/checksum"));
        world.faults.fail_always(operation, How::Throttled);
        let before = world.faults.calls(operation);
        let delivered = world.deliver(&event).await;
        assert!(matches!(delivered, Err(Error::Store(_))), "{operation:?}");
        let calls = world.faults.calls(operation) - before;
        assert!((1..=MOST_CALLS).contains(&calls), "{operation:?}: {calls}");
        let _ = world
            .answer(&crash_in_checksum(), &Scope::Global, Duration::ZERO)
            .await;
        let calls = world.faults.calls(operation) - before - calls;
        assert!(calls <= MOST_CALLS, "{operation:?}: {calls}");
        world.faults.heal();
        world.check();
        for entry in world.entries() {
            assert_eq!(
                entry.missing(),
                None,
                "{operation:?}: it is no property of the file"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_again_after_days_does_nothing() {
    let world = with_checksum().await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    let crash = crash_in_checksum();
    let asked = world.answer(&crash, &Scope::Global, Duration::ZERO).await;
    assert!(matches!(asked.unwrap(), Answer::Pending));
    let message = world.lanes.drain().remove(0).message;
    world.serve(&message).await.unwrap();
    let (derived, before) = (world.derivations.derived(), world.summary());
    world.pass(3 * DAY).await;
    world.serve(&message).await.unwrap();
    assert_eq!(
        (
            world.derivations.derived(),
            world.summary(),
            world.lanes.sent()
        ),
        (derived, before, vec![])
    );
}
