//! A service of AWS refuses every call for ten minutes. Requests are answered from what can be
//! read, are pending, or fail with an error that says so. Afterwards everything catches up: no
//! message is lost, and no response is wrong because of what was refused.

use std::time::Duration;

use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::symbolicator::ModuleStatus;
use symdepot::domain::Scope;
use symdepot::flows::Error;
use symdepot::flows::requests::RequestToStore;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::flows::uploads::{ReconcileMessage, UploadEvent};
use symdepot::ports::QueueMessage;
use symdepot_tests::harness::{Crash, World, function_names, in_module};
use symdepot_tests::made_up::MadeUp;
use tokio::time::Instant;

/// How long a service refuses its calls.
const OUTAGE: Duration = Duration::from_secs(600);

/// The time from one request of a client to the next.
const PACE: Duration = Duration::from_secs(60);

/// How long everything may take to catch up: the longest delay of a retry, and the build.
const CATCHING_UP: Duration = Duration::from_secs(20 * 60);

/// How often a message is received before it becomes a dead letter (`maxReceiveCount` of the
/// queues).
const MAX_RECEIVES: u32 = 6;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A service, and the operations of the ports that call it.
#[derive(Clone, Copy, Debug)]
struct Service {
    name: &'static str,
    operations: &'static [Operation],
    /// Without it, Lambda receives no messages, and S3 delivers no events.
    is_queue: bool,
}

const SERVICES: [Service; 3] = [
    Service {
        name: "DynamoDB",
        operations: &[
            Operation::Load,
            Operation::Query,
            Operation::Replace,
            Operation::Remove,
            Operation::Page,
        ],
        is_queue: false,
    },
    Service {
        name: "S3",
        operations: &[
            Operation::GetBlob,
            Operation::CreateBlob,
            Operation::DeleteBlobs,
            Operation::ListBlobs,
            Operation::StatDif,
            Operation::ReadDif,
            Operation::ListDifs,
        ],
        is_queue: false,
    },
    Service {
        name: "SQS",
        operations: &[Operation::Send, Operation::Reconcile, Operation::RetryLater],
        is_queue: true,
    },
];

/// What invokes `derive`.
#[derive(Clone, Debug)]
enum Work {
    Event(UploadEvent),
    Message(QueueMessage),
    Reconcile(ReconcileMessage),
}

/// A message with the time of its next delivery.
#[derive(Debug)]
struct Waiting {
    due: Instant,
    work: Work,
    receives: u32,
}

/// The queues, and `derive` behind them.
#[derive(Debug, Default)]
struct Queues {
    waiting: Vec<Waiting>,
}

impl Queues {
    fn put(&mut self, due: Instant, work: Work) {
        let receives = 0;
        self.waiting.push(Waiting {
            due,
            work,
            receives,
        });
    }

    /// Moves what the flows have sent to the queues.
    fn collect(&mut self, world: &World) {
        for sent in world.queues.drain() {
            self.put(Instant::now() + sent.delay, Work::Message(sent.message));
        }
        for sent in world.queues.drain_reconcile_messages() {
            self.put(Instant::now() + sent.delay, Work::Reconcile(sent.message));
        }
    }

    /// Delivers messages when they are due, until `end`. Without `receives`, none is received.
    async fn run_until(&mut self, world: &World, end: Instant, receives: bool) {
        loop {
            self.collect(world);
            let next = self
                .waiting
                .iter()
                .enumerate()
                .min_by_key(|(_, one)| one.due);
            let Some((at, due)) = next
                .map(|(at, one)| (at, one.due))
                .filter(|(_, due)| receives && *due <= end)
            else {
                break;
            };
            world
                .pass(due.saturating_duration_since(Instant::now()))
                .await;
            let mut one = self.waiting.swap_remove(at);
            let done = match &one.work {
                Work::Event(event) => world.deliver(event).await,
                Work::Message(message) => world.serve(message).await,
                Work::Reconcile(message) => world.go_on(message).await,
            };
            if let Err(error) = done {
                one.receives += 1;
                assert!(
                    one.receives < MAX_RECEIVES,
                    "a dead letter: {one:?}: {error}"
                );
                one.due = Instant::now() + world.delay_of_retry(one.receives).await;
                self.waiting.push(one);
            }
        }
        world
            .pass(end.saturating_duration_since(Instant::now()))
            .await;
    }
}

/// A crash in the first function of a module.
fn crash_in(module: MadeUp) -> Crash {
    in_module(
        serde_json::json!({"type": "elf", "debug_id": module.debug_id()}),
        &[0x10],
    )
}

/// What a client sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Symbolicated,
    Pending,
    /// A status 503.
    Unavailable,
    /// A response that says that no source has the file.
    Missing,
}

/// Sends a request to an instance of `symbolicate`, which keeps it if it is pending.
async fn ask(world: &World, module: MadeUp) -> Seen {
    let scope = Scope::Global;
    let answer = world
        .answer(&crash_in(module), &scope, Duration::from_secs(5))
        .await;
    let error = match answer {
        Ok(SymbolicateOutcome::Pending) => {
            let invocation = world.invocation(Duration::from_secs(29));
            let body = RequestToStore::received(b"{}");
            let id = format!("{:?} {}", Instant::now(), module.debug_id());
            let kept = world
                .service()
                .store_request(&invocation, &id, &scope, body)
                .await;
            match kept {
                Ok(_) => return Seen::Pending,
                Err(error) => error,
            }
        }
        Ok(SymbolicateOutcome::Completed(completed, _)) => {
            return match completed.modules[0].debug_status {
                ModuleStatus::Found => {
                    let names = function_names(&completed);
                    assert!(names[0].starts_with("function_0_of_module_"), "{names:?}");
                    Seen::Symbolicated
                }
                ModuleStatus::Missing => Seen::Missing,
                other => panic!("{other:?} of a module that has a file"),
            };
        }
        Err(error) => error,
    };
    assert!(
        matches!(error, Error::Fault(_)) && error.status() == 503,
        "{error}"
    );
    Seen::Unavailable
}

/// Lets a service refuse all calls for ten minutes. Meanwhile, a file is uploaded, clients request
/// three modules, and `prune` runs. Returns what the clients saw of the module that was ready.
async fn outage(service: Service, how: How) -> Vec<Seen> {
    let what = format!("{} {how:?}", service.name);
    let world = World::new();
    let [ready, retired, uploaded] = [1, 2, 3].map(|number| MadeUp::new(number, 3));
    let put = |module: MadeUp| world.put(&module.key(), module.file());
    // The caches of one module are retired: a request has to have them built again.
    world.deliver(&put(retired)).await.unwrap();
    world.settle().await;
    world.pass(8 * DAY).await;
    assert!(world.prune().await.unwrap().retired > 0, "{what}");
    world.deliver(&put(ready)).await.unwrap();
    world.settle().await;
    let warm = world.another_instance();
    assert_eq!(ask(&warm, ready).await, Seen::Symbolicated, "{what}");

    let mut queues = Queues::default();
    for operation in service.operations {
        world.faults.fail_always(*operation, how);
    }
    let end = Instant::now() + OUTAGE;
    queues.put(Instant::now(), Work::Event(put(uploaded)));
    let mut seen = Vec::new();
    while Instant::now() < end {
        for instance in [&warm, &world.another_instance()] {
            seen.push(ask(instance, ready).await);
            let of_retired = ask(instance, retired).await;
            assert_ne!(
                of_retired,
                Seen::Missing,
                "{what}: a file that was uploaded before"
            );
            // Whether it is known depends on when its event is processed.
            ask(instance, uploaded).await;
        }
        // The schedule reports the failure, or has nothing to do.
        let _ = world.prune_despite_failures().await;
        let next = Instant::now() + PACE;
        queues
            .run_until(&world, next.min(end.max(Instant::now())), !service.is_queue)
            .await;
    }
    world.faults.heal();
    let caught_up = Instant::now() + CATCHING_UP;
    queues.run_until(&world, caught_up, true).await;
    assert!(queues.waiting.is_empty(), "{what}: {queues:#?}");
    for module in [ready, retired, uploaded] {
        let cold = world.another_instance();
        let mut answer = world.with_derive_at_work(ask(&cold, module)).await;
        if answer == Seen::Pending {
            world.settle().await;
            answer = ask(&world.another_instance(), module).await;
        }
        assert_eq!(answer, Seen::Symbolicated, "{what}: {}", module.debug_id());
        assert_eq!(
            ask(&warm, module).await,
            Seen::Symbolicated,
            "{what}, a warm instance"
        );
    }
    world.pass(DAY).await;
    world.prune().await.unwrap();
    world.check();
    assert_eq!(world.orphans(), Vec::<String>::new(), "{what}");
    seen
}

#[tokio::test(start_paused = true)]
async fn after_ten_minutes_without_a_service_everything_catches_up() {
    for service in SERVICES {
        for how in [How::Before, How::Throttled, How::Denied] {
            let seen = Box::pin(outage(service, how)).await;
            assert!(
                !seen.contains(&Seen::Missing),
                "{} {how:?}: {seen:?}",
                service.name
            );
            // A request for what is ready sends no message.
            let needs_none = service.is_queue;
            let all_answered = seen.iter().all(|one| *one == Seen::Symbolicated);
            assert_eq!(
                all_answered, needs_none,
                "{} {how:?}: {seen:?}",
                service.name
            );
        }
    }
}

/// A message that fails during the outage is received five times: one more would make it a dead
/// letter.
#[tokio::test]
async fn the_retries_of_a_message_outlast_ten_minutes() {
    let world = World::new();
    let mut total = Duration::ZERO;
    for receives in 1..MAX_RECEIVES {
        total += world.delay_of_retry(receives).await;
    }
    assert!(total > OUTAGE, "{total:?}");
}
