//! The cost of many requests, in calls of the stores.

use std::time::Duration;

use futures::future::{join, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::symbolicator::{ModuleStatus, parse_request};
use symdepot::cache::{Kind, UploadState};
use symdepot::domain::{HttpSource, Location, Scope};
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot_tests::harness::{Crash, World, function_names};
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The latency of DynamoDB: long enough for other tasks to run between a read and the write that
/// depends on it.
const LATENCY: Duration = Duration::from_millis(10);

/// An invented module with one function, in Breakpad's format.
#[derive(Clone, Copy)]
struct MadeUp(u32);

impl MadeUp {
    fn debug_id(self) -> String {
        format!("decade00-0000-4000-8000-{:012x}", self.0)
    }

    fn name(self) -> String {
        format!("made-up-{}", self.0)
    }

    /// Its id as Breakpad writes it.
    fn breakpad_id(self) -> String {
        format!("DECADE000000400080000000{:08X}0", self.0)
    }

    fn function(self) -> String {
        format!("function_of_module_{}", self.0)
    }

    fn file(self) -> String {
        format!(
            "MODULE Linux x86_64 {} {}\nFILE 0 /src/made_up.c\nFUNC 1000 10 0 {}\n1000 10 7 0\n",
            self.breakpad_id(),
            self.name(),
            self.function(),
        )
    }

    /// Its location on a server, in the native layout.
    fn at(self, server: &str) -> Location {
        let (name, id) = (self.name(), self.breakpad_id());
        Location::new(format!("{}{name}/{id}/{name}.sym", url(server)))
    }
}

/// A crash with a frame in each of these modules.
fn crash_in(modules: &[MadeUp]) -> Crash {
    let image = |at: usize| 0x1_0000_0000 * (at as u64 + 1);
    let module = |(at, module): (usize, &MadeUp)| {
        json!({
            "type": "elf", "debug_id": module.debug_id(), "debug_file": module.name(),
            "image_addr": format!("{:#x}", image(at)), "image_size": 0x1_0000,
        })
    };
    let frame = |at: usize| json!({"instruction_addr": format!("{:#x}", image(at) + 0x1008)});
    let body = json!({
        "modules": modules.iter().enumerate().map(module).collect::<Vec<Value>>(),
        "stacktraces": [{"frames": (0..modules.len()).map(frame).collect::<Vec<Value>>()}],
    });
    parse_request(body.to_string().as_bytes()).unwrap()
}

fn url(server: &str) -> String {
    format!("http://{server}.test/")
}

fn source(id: &str) -> HttpSource {
    let definition = json!({"type": "http", "id": id, "url": url(id)});
    serde_json::from_value(definition).unwrap()
}

/// Uploads a module, and delivers all events and messages.
async fn upload(world: &World, module: MadeUp) {
    let event = world.put(&format!("global/{}.sym", module.name()), module.file());
    world.deliver(&event).await.unwrap();
    world.settle().await;
}

#[tokio::test(start_paused = true)]
async fn fifty_instances_together_record_the_use_of_an_entry_about_once_an_hour() {
    const INSTANCES: u64 = 50;
    const MODULES: u32 = 6;
    const HOURS: u32 = 24;
    let world = World::new();
    let modules: Vec<MadeUp> = (1..=MODULES).map(MadeUp).collect();
    for module in &modules {
        upload(&world, *module).await;
    }
    let writes = || {
        let calls = world.records.calls();
        calls.of("replace") + calls.of("remove")
    };
    let before = writes();
    let end = world.now().plus(HOUR * HOURS);

    let instances = (0..INSTANCES).map(|seed| {
        let instance = world.distant_instance(LATENCY);
        let (world, modules) = (&world, &modules);
        async move {
            let mut chance = StdRng::seed_from_u64(seed);
            let mut answered = 0_u32;
            loop {
                world
                    .wait(chance.random_range(MINUTE / 2..MINUTE * 6))
                    .await;
                if world.now() >= end {
                    return answered;
                }
                // Some of the modules, as in crashes: each is in half of the requests.
                let mut some = modules.clone();
                some.retain(|_| chance.random_bool(0.5));
                let answer = instance
                    .answer(&crash_in(&some), &Scope::Global, Duration::ZERO)
                    .await;
                assert!(
                    matches!(answer, Ok(SymbolicateOutcome::Completed(..))),
                    "{answer:?}"
                );
                answered += 1;
            }
        }
    });
    let watching = async {
        while world.now() < end {
            world.wait(MINUTE).await;
            for entry in world.entries() {
                let unused = world.now().since(entry.last_used_at());
                let is_used = entry.kind() == Kind::SymCache;
                assert!(!is_used || unused <= HOUR * 2, "{unused:?}: {entry:?}");
            }
        }
    };
    let (answered, ()) = join(join_all(instances), watching).await;
    assert!(
        answered.iter().all(|answered| *answered > 200),
        "{answered:?}"
    );

    let writes = writes() - before;
    let entry_hours = f64::from(MODULES * HOURS);
    let rate = f64::from(u32::try_from(writes).unwrap()) / entry_hours;
    assert!(
        (0.6..=1.05).contains(&rate),
        "{writes} writes, {rate} of an entry an hour"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cold_instance_reads_the_records_of_ten_modules_in_three_places_at_once() {
    let world = World::with(|settings| {
        settings.sources = vec![source("first").into(), source("second").into()];
    });
    let modules: Vec<MadeUp> = (1..=10).map(MadeUp).collect();
    let (uploaded, served) = modules.split_at(4);
    let (of_first, of_second) = served.split_at(3);
    for module in uploaded {
        upload(&world, *module).await;
    }
    for (server, modules) in [("first", of_first), ("second", of_second)] {
        for module in modules {
            world.servers.put(&module.at(server), module.file());
        }
    }
    let crash = crash_in(&modules);
    let expected: Vec<String> = modules.iter().map(|module| module.function()).collect();
    assert_eq!(function_names(&world.symbolicate(&crash).await), expected);

    let (records, blobs) = (world.records.calls(), world.caches.calls());
    let cold = world.another_instance();
    let answer = cold.answer(&crash, &Scope::Global, Duration::ZERO).await;
    let Ok(SymbolicateOutcome::Completed(completed, _)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(function_names(&completed), expected);
    let mut modules = completed.modules.iter();
    assert!(modules.all(|module| module.debug_status == ModuleStatus::Found));
    let (records_now, blobs_now) = (world.records.calls(), world.caches.calls());
    // 30 keys: one `BatchGetItem`.
    assert_eq!(records_now.of("load") - records.of("load"), 1);
    assert_eq!(
        records_now.total() - records.total(),
        1,
        "one round, and no other call"
    );
    assert_eq!(blobs_now.of("get") - blobs.of("get"), 10);
    assert_eq!(blobs_now.total() - blobs.total(), 10);
}

#[tokio::test(start_paused = true)]
async fn the_uses_of_entries_are_recorded_by_one_read_and_a_write_for_each() {
    let world = World::new();
    let modules: Vec<MadeUp> = (1..=3).map(MadeUp).collect();
    for module in &modules {
        upload(&world, *module).await;
    }
    world.pass(2 * HOUR).await;
    let cold = world.distant_instance(LATENCY);
    let (before, began) = (world.records.calls(), Instant::now());
    let crash = crash_in(&modules);
    let answer = cold.answer(&crash, &Scope::Global, Duration::ZERO).await;
    assert!(
        matches!(answer, Ok(SymbolicateOutcome::Completed(..))),
        "{answer:?}"
    );
    let rounds = began.elapsed().div_duration_f64(LATENCY);
    let calls = world.records.calls();
    let made = ["load", "replace"].map(|operation| calls.of(operation) - before.of(operation));
    assert_eq!((made, calls.total() - before.total()), ([2, 3], 5));
    assert_eq!(rounds, 3.0, "the writes are parallel");
}

#[tokio::test(start_paused = true)]
async fn an_upload_makes_fifteen_sequential_rounds_of_calls_to_the_records() {
    let world = World::new();
    let instance = world.distant_instance(LATENCY);
    let module = MadeUp(1);
    let event = instance.put(&format!("global/{}.sym", module.name()), module.file());
    let began = Instant::now();
    instance.deliver(&event).await.unwrap();
    let waited = began.elapsed();
    assert_eq!(waited.div_duration_f64(LATENCY), 15.0, "sequential calls");
    let (uploads, records) = (world.uploads.calls(), world.records.calls());
    assert_eq!(
        (uploads.total(), uploads.of("read")),
        (1, 1),
        "the event contains the size and the ETag of the file"
    );
    assert_eq!((records.of("load"), records.of("query")), (2, 3));
    let answer = instance.symbolicate(&crash_in(&[module])).await;
    assert_eq!(function_names(&answer), [module.function()]);
}

/// The health of the server is read once, and the partition before and after the leases are taken.
#[tokio::test(start_paused = true)]
async fn a_build_from_a_server_reads_no_item_that_it_has_read_or_written() {
    let world = of_these([source("company")]);
    let module = MadeUp(1);
    world.servers.put(&module.at("company"), module.file());
    let crash = crash_in(&[module]);
    world.leave_pending(&crash).await;
    let message = world.queues.drain().remove(0).message;
    let before = world.records.calls();
    world.serve(&message).await.unwrap();
    let after = world.records.calls();
    let reads = ["load", "query"].map(|operation| after.of(operation) - before.of(operation));
    assert_eq!(reads, [1, 2]);
    assert_eq!(
        function_names(&world.symbolicate(&crash).await),
        [module.function()]
    );
}

/// The upload item is read together with the generation, and again after the file is filed.
#[tokio::test(start_paused = true)]
async fn reconciling_a_pending_upload_reads_no_more_items_than_its_event() {
    let world = World::new();
    let module = MadeUp(1);
    let key = format!("global/{}.sym", module.name());
    let event = world.put(&key, module.file());
    world.faults.fail_always(Operation::ReadDif, How::Throttled);
    world.deliver(&event).await.unwrap_err();
    world.faults.heal();
    assert_eq!(world.upload_item(&key).state, UploadState::Pending);
    let before = world.records.calls();
    world.reconcile(&key).await.unwrap();
    let after = world.records.calls();
    let reads = ["load", "query"].map(|operation| after.of(operation) - before.of(operation));
    assert_eq!(reads, [2, 3]);
    assert_eq!(world.upload_item(&key).state, UploadState::Applied);
}

/// One source of each kind, none of which has a file.
fn source_of_each_kind() -> [HttpSource; 4] {
    [
        json!({"type": "http", "id": "http", "url": url("http")}),
        json!({"type": "s3", "id": "s3", "bucket": "symbols", "region": "eu-central-1"}),
        json!({"type": "gcs", "id": "gcs", "bucket": "symbols", "bearer_token": "t"}),
        json!({"type": "sentry", "id": "sentry", "url": url("sentry"), "token": "t"}),
    ]
    .map(|definition| serde_json::from_value(definition).unwrap())
}

fn of_these(sources: impl IntoIterator<Item = HttpSource>) -> World {
    let sources: Vec<_> = sources.into_iter().map(Into::into).collect();
    World::with(|settings| settings.sources = sources)
}

/// Two scopes: the uploads of both, the five sources in the caller's scope.
#[tokio::test(start_paused = true)]
async fn ten_unknown_modules_of_five_sources_cost_two_reads_before_their_build_requests() {
    let world = of_these(source_of_each_kind().into_iter().chain([source("fifth")]));
    upload(&world, MadeUp(11)).await;
    let modules: Vec<MadeUp> = (1..=10).map(MadeUp).collect();
    let crash = crash_in(&modules);
    let scope = "acme".parse::<Scope>().unwrap();
    let cold = world.distant_instance(LATENCY);
    let (before, began) = (world.records.calls(), Instant::now());
    let answer = cold.answer(&crash, &scope, Duration::ZERO).await;
    let rounds = began.elapsed().div_duration_f64(LATENCY);
    assert!(
        matches!(answer, Ok(SymbolicateOutcome::Pending)),
        "{answer:?}"
    );
    let loads = world.records.calls().of("load") - before.of("load");
    // Ten modules in five sources, at most ten modules in a message.
    assert_eq!(world.queues.sent().len(), 5);
    assert!(loads <= 2, "{loads} reads");
    assert!(rounds <= 4.0, "{rounds} rounds");
}

/// Some servers send a page with status 200 for each absent file.
#[tokio::test(start_paused = true)]
async fn modules_for_which_a_server_sends_web_pages_cost_no_further_messages() {
    let modules: Vec<MadeUp> = (1..=10).map(MadeUp).collect();
    let crash = crash_in(&modules);
    let messages_in = async |world: &World| {
        world.leave_pending(&crash).await;
        world.settle().await;
        world.queues.sent().len()
    };
    let world = of_these([source("absent")]);
    let messages = messages_in(&world).await;
    let locations = world.servers.take_asked();
    assert!(locations.len() >= modules.len(), "{locations:?}");
    let of_pages = of_these([source("absent")]);
    for location in &locations {
        of_pages.servers.put(location, "<!DOCTYPE html>");
    }
    assert_eq!(messages_in(&of_pages).await, messages);
    assert_eq!(of_pages.servers.take_asked().len(), locations.len());
}

#[tokio::test(start_paused = true)]
async fn sixty_modules_of_a_source_of_each_kind_take_24_invocations_and_then_none() {
    let world = of_these(source_of_each_kind());
    let modules: Vec<MadeUp> = (1..=60).map(MadeUp).collect();
    let crash = crash_in(&modules);
    world.leave_pending(&crash).await;
    world.settle().await;
    // `derive` runs once for each message, and sent no further one.
    let messages = world.queues.sent().len();
    assert!(messages <= 24, "{messages} messages");
    let asked = world.servers.take_asked();
    for scheme in ["http://", "s3://", "gs://", "sentry://"] {
        let of_kind = asked
            .iter()
            .filter(|location| location.as_str().starts_with(scheme));
        assert!(of_kind.count() >= 60, "{scheme}");
    }

    let again = world.another_instance();
    let answer = again.answer(&crash, &Scope::Global, Duration::ZERO).await;
    let Ok(SymbolicateOutcome::Completed(completed, _)) = answer else {
        panic!("{answer:?}");
    };
    let mut statuses = completed.modules.iter().map(|module| module.debug_status);
    assert!(statuses.all(|status| status == ModuleStatus::Missing));
    assert_eq!(world.queues.sent().len(), messages);
    assert_eq!(world.servers.take_asked(), []);
}

/// Serves the messages of the queues, with at most this many runs at a time, until there is none.
/// Returns the number of runs.
async fn serve_all(world: &World, runs_at_a_time: usize) -> u32 {
    let mut waiting = Vec::new();
    let mut running = FuturesUnordered::new();
    let mut runs = 0;
    loop {
        let now = Instant::now();
        let sent = world.queues.drain().into_iter();
        // SQS counts whole seconds.
        let due = |delay: Duration| now + Duration::from_secs_f64(delay.as_secs_f64().ceil());
        waiting.extend(sent.map(|sent| (due(sent.delay), sent.message)));
        waiting.sort_by_key(|(due, _)| *due);
        while running.len() < runs_at_a_time && waiting.first().is_some_and(|(due, _)| *due <= now)
        {
            let (_, message) = waiting.remove(0);
            runs += 1;
            running.push(async move { world.serve(&message).await });
        }
        let next = waiting.first().map(|(due, _)| *due);
        tokio::select! {
            Some(served) = running.next() => served.unwrap(),
            () = async { tokio::time::sleep_until(next.unwrap()).await },
                if next.is_some() && running.len() < runs_at_a_time => {}
            else => return runs,
        }
    }
}

/// The eager queue has twenty runs, as in the template. Each file takes the server a second, and
/// each build two requests.
#[tokio::test(start_paused = true)]
async fn files_of_one_server_wait_little_longer_for_permits_than_for_the_server() {
    for (permits, modules, longest) in [(8, 60, 25), (2, 24, 35)] {
        let world = World::with(|settings| {
            settings.sources = vec![source("company").into()];
            settings.source_max_permits = permits;
        });
        let modules: Vec<MadeUp> = (1..=modules).map(MadeUp).collect();
        for module in &modules {
            let location = module.at("company");
            world.servers.put(&location, module.file());
            world.servers.slow_down(&location, Duration::from_secs(1));
        }
        let crash = crash_in(&modules);
        world.leave_pending(&crash).await;
        let began = Instant::now();
        let runs = serve_all(&world.distant_instance(LATENCY), 20).await;
        let waited = began.elapsed();
        let answer = world.another_instance().symbolicate(&crash).await;
        assert_eq!(function_names(&answer).len(), modules.len());
        assert!(waited < Duration::from_secs(longest), "{waited:?}");
        assert!(runs < 250, "{runs} runs");
    }
}
