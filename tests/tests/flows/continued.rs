//! Requests over HTTP that were pending: what the call that completes one stores, what later calls
//! send, and what they cost.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use symbolic::common::DebugId;
use symbolicate::testing::{Answer, answer};
use symdepot::adapters::faulty::{How, Operation};
use symdepot::api::limits::SENT_ANSWER_BYTES;
use symdepot::cache::{Item, ItemKey, PendingRequest};
use symdepot::domain::Scope;
use symdepot::flows::HttpService;
use symdepot::flows::requests::{FinishedAnswer, FoundRequest, RequestStage, RequestToStore};
use symdepot_tests::harness::{MadeUpDump, MadeUpModule, World, fixture, fixture_text};

use crate::CRASH;

const TIME: Duration = Duration::from_secs(29);
const DAY: Duration = Duration::from_secs(24 * 3600);
const BOUNDARY: &str = "a-boundary-that-no-file-has";

/// Sends a request of an operator to an instance.
pub(crate) async fn send_to(
    instance: &HttpService,
    world: &World,
    (method, target): (&str, &str),
    (content_type, body): (&str, &[u8]),
) -> Answer {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let event = json!({
        "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": query,
        "headers": {"content-type": content_type},
        "isBase64Encoded": true, "body": BASE64_STANDARD.encode(body),
        "requestContext": {
            "accountId": "1", "apiId": "abc", "domainName": "abc", "domainPrefix": "abc",
            "requestId": "1", "routeKey": "$default", "stage": "$default",
            "time": "12/Mar/2020:19:03:58 +0000", "timeEpoch": 1,
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "1.2.3.4", "userAgent": "a"},
            "authorizer": {"iam": {"userArn": "arn:aws:iam::123456789012:user/operator", "accountId": "123456789012"}},
        }
    });
    let answered = answer(instance.clone(), world.invocation(TIME), &event);
    Box::pin(answered).await.unwrap()
}

/// Sends a request of an operator to an instance without caches.
async fn send(world: &World, target: (&str, &str), content: (&str, &[u8])) -> Answer {
    let instance = world.another_instance();
    send_to(instance.service(), &instance, target, content).await
}

pub(crate) async fn post(world: &World, target: &str, content: (&str, &[u8])) -> Answer {
    send(world, ("POST", target), content).await
}

/// Continues a request without waiting.
async fn poll(world: &World, id: &str) -> Answer {
    let target = format!("/requests/{id}?timeout=0");
    send(world, ("GET", &target), ("application/json", b"")).await
}

pub(crate) fn body(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// Returns the content type and the body of a form with a minidump.
pub(crate) fn minidump(file: &[u8]) -> (String, Vec<u8>) {
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"upload_file_minidump\"\r\n\r\n"
    );
    let end = format!("\r\n--{BOUNDARY}--\r\n");
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    (
        content_type,
        [head.as_bytes(), file, end.as_bytes()].concat(),
    )
}

/// A world with the files of the sample, whose caches were removed because no request used them.
async fn cold() -> World {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/crash", "elf/crash").await;
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    world
}

/// Sends a request that is pending. Returns its id.
async fn pending(world: &World, path: &str, content: (&str, &[u8])) -> String {
    let sent = post(world, &format!("{path}?timeout=0"), content).await;
    let answer = body(&sent);
    assert_eq!((sent.status, &answer["status"]), (200, &json!("pending")));
    answer["request_id"].as_str().unwrap().to_owned()
}

/// Sends a request that is pending, and polls until it is complete. Returns its id, the last
/// response, and the number of polls.
async fn completed(world: &World, path: &str, content: (&str, &[u8])) -> (String, Answer, u32) {
    let id = pending(world, path, content).await;
    let mut polls = 0;
    loop {
        world.settle().await;
        let answer = poll(world, &id).await;
        polls += 1;
        assert!(polls < 10, "{answer:?}");
        if answer.status != 200 || body(&answer)["status"] != "pending" {
            return (id, answer, polls);
        }
    }
}

/// Returns the numbers of calls: of records, of those that read some, of blobs, of reads of blobs,
/// and of queues.
fn calls(world: &World) -> [u64; 5] {
    let (records, blobs) = (world.records.calls(), world.caches.calls());
    [
        records.total(),
        records.of("load"),
        blobs.total(),
        blobs.of("get"),
        world.queues.calls().total(),
    ]
}

/// Polls once more. Returns the response, and the calls that it made.
async fn poll_again(world: &World, id: &str) -> (Answer, [u64; 5]) {
    let before = calls(world);
    let keys = world.records.keys_loaded();
    let answer = poll(world, id).await;
    let after = calls(world);
    assert!(world.records.keys_loaded() - keys >= 1, "the item is read");
    (answer, std::array::from_fn(|at| after[at] - before[at]))
}

fn item(world: &World, id: &str) -> PendingRequest {
    let stored = world.records.peek(&ItemKey::request(id)).unwrap();
    PendingRequest::try_from(stored.item).unwrap()
}

pub(crate) fn names(answer: &Answer) -> Vec<String> {
    let body = body(answer);
    let frames = body["stacktraces"][0]["frames"].as_array().unwrap().iter();
    let names = frames.filter_map(|frame| frame["function"].as_str());
    names.map(str::to_owned).collect()
}

/// What a poll of a complete request costs: one read of an item, and one of a blob.
const ONE_READ_EACH: [u64; 5] = [1, 1, 1, 1, 0];

#[tokio::test(start_paused = true)]
async fn a_request_that_is_complete_is_answered_again_by_one_read_of_a_record_and_one_of_a_blob() {
    let dump = minidump(&fixture("minidump/crash.dmp"));
    let crash = fixture_text("crash.json");
    for (path, content) in [
        ("/minidump", (&*dump.0, &*dump.1)),
        ("/symbolicate", ("application/json", crash.as_bytes())),
    ] {
        let world = cold().await;
        let (id, first, _) = completed(&world, path, content).await;
        assert_eq!(body(&first)["status"], "completed", "{path}");
        assert!(names(&first).contains(&"main".to_owned()), "{path}");
        let derived = world.derivations.derived();
        for _ in 0..2 {
            let (again, cost) = poll_again(&world, &id).await;
            assert_eq!(again, first, "{path}");
            assert_eq!(cost, ONE_READ_EACH, "{path}");
        }
        assert_eq!(world.derivations.derived(), derived, "{path}");
        // Not even by a caller that may see all scopes, if it names another one.
        let other = format!("/requests/{id}?scope=acme");
        let before = world.caches.calls();
        let unseen = send(&world, ("GET", &other), ("application/json", b"")).await;
        assert_eq!(unseen.status, 404, "{path}: {unseen:?}");
        assert_eq!(world.caches.calls(), before, "{path}: the answer is read");
    }
}

/// The cache with the names is lost, and that with the unwind information is not: the walk, which
/// needs no names, is complete in an earlier poll than the answer.
#[tokio::test(start_paused = true)]
async fn a_walk_that_is_complete_is_not_repeated_while_its_answer_waits() {
    const BASE: u64 = 0x5555_0000_0000;
    let id: DebugId = "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap();
    let file = format!(
        "MODULE Linux x86_64 {} made-up\nFUNC 0 40 0 run\n\
         STACK CFI INIT 0 40 .cfa: $rsp 16 + .ra: .cfa 8 - ^\n",
        id.breakpad()
    );
    let module = MadeUpModule {
        address: BASE,
        size: 0x1000,
        name: "made-up".to_owned(),
        debug_id: id,
        ..MadeUpModule::default()
    };
    let dump = MadeUpDump::of_threads([(BASE + 0x10, vec![7, 7, 7, 0])], vec![module]);
    let dump = minidump(&dump.file());
    let world = World::new();
    let event = world.put("global/made-up.sym", file);
    world.deliver(&event).await.unwrap();
    world.pass(8 * DAY).await;
    world.prune().await.unwrap();
    let id = pending(&world, "/minidump", (&dump.0, &dump.1)).await;
    assert_eq!(item(&world, &id).stage, RequestStage::Minidump);
    world.settle().await;
    let lose = |matches: &dyn Fn(&str) -> bool| {
        let blobs = world.caches.paths();
        let mut blobs = blobs.iter().filter(|path| matches(path));
        world.caches.lose(blobs.next().unwrap());
        assert_eq!(blobs.next(), None);
    };
    lose(&|path| path.starts_with("derived/symcache/"));
    let walked = poll(&world, &id).await;
    assert_eq!(body(&walked)["status"], "pending");
    assert_eq!(item(&world, &id).stage, RequestStage::CrashFile);
    world.settle().await;
    // Without its minidump, the request can only be answered from the stacks that were walked.
    lose(&|path| path.ends_with(".dmp"));
    let completed = poll(&world, &id).await;
    assert_eq!(names(&completed), ["run"]);
    assert_eq!(
        poll_again(&world, &id).await,
        (completed.clone(), ONE_READ_EACH)
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_gone_is_computed_and_stored_again() {
    let dump = minidump(&fixture("minidump/crash.dmp"));
    let world = cold().await;
    let (id, first, _) = completed(&world, "/minidump", (&dump.0, &dump.1)).await;
    let path = item(&world, &id).answer.unwrap().path;
    world.caches.lose(&path);
    let (again, cost) = poll_again(&world, &id).await;
    assert_eq!(again, first);
    assert!(cost[3] > ONE_READ_EACH[3], "{cost:?}");
    assert_eq!(poll_again(&world, &id).await, (first, ONE_READ_EACH));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_stored_is_sent_and_computed_again() {
    let dump = minidump(&fixture("minidump/crash.dmp"));
    for operation in [Operation::CreateBlob, Operation::Replace] {
        for how in [How::Before, How::Denied] {
            let what = format!("{operation:?} {how:?}");
            let world = cold().await;
            let id = pending(&world, "/minidump", (&dump.0, &dump.1)).await;
            world.settle().await;
            world.faults.fail_always(operation, how);
            let first = poll(&world, &id).await;
            world.faults.heal();
            assert_eq!(body(&first)["status"], "completed", "{what}");
            let (again, cost) = poll_again(&world, &id).await;
            assert_eq!(again, first, "{what}");
            assert!(cost[3] > ONE_READ_EACH[3], "{what}: {cost:?}");
            assert_eq!(
                poll_again(&world, &id).await,
                (first, ONE_READ_EACH),
                "{what}"
            );
        }
    }
}

/// Returns the sample crash with so many frames that its answer is too large to be sent.
fn large_crash() -> String {
    let mut crash: Value = serde_json::from_str(&fixture_text("crash.json")).unwrap();
    let more = vec![json!({"instruction_addr": 9}); 110_000];
    let stacktraces = crash["stacktraces"].as_array_mut().unwrap();
    stacktraces.push(json!({"frames": more}));
    crash.to_string()
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_that_cannot_be_stored_is_computed_again() {
    let world = cold().await;
    let crash = large_crash();
    let id = pending(
        &world,
        "/symbolicate",
        ("application/json", crash.as_bytes()),
    )
    .await;
    world.settle().await;
    for how in [How::Before, How::Denied] {
        world.faults.fail_always(Operation::CreateBlob, how);
        assert_eq!(poll(&world, &id).await.status, 503, "{how:?}");
        world.faults.heal();
        assert_eq!(item(&world, &id).answer, None, "{how:?}");
    }
    assert_eq!(poll(&world, &id).await.status, 303);
    let path = item(&world, &id).answer.unwrap().path;
    assert!(world.caches.peek(&path).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_is_complete_at_one_address_and_no_later_poll_reads_it() {
    let world = cold().await;
    let crash = large_crash();
    let content = ("application/json", crash.as_bytes());
    let (id, first, _) = completed(&world, "/symbolicate", content).await;
    assert_eq!(first.status, 303);
    let path = item(&world, &id).answer.unwrap().path;
    let location = first.headers["location"].to_str().unwrap();
    assert!(location.contains(&path), "{location}");
    assert!(world.caches.peek(&path).unwrap().len() > SENT_ANSWER_BYTES);
    let (again, cost) = poll_again(&world, &id).await;
    assert_eq!(again, first);
    // The signature of an address is no call.
    assert_eq!(cost, [1, 1, 1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn head_is_not_redirected_to_an_address_that_is_signed_for_get() {
    let world = cold().await;
    let crash = large_crash();
    let content = ("application/json", crash.as_bytes());
    let (id, _, _) = completed(&world, "/symbolicate", content).await;
    let answer_to = format!("/requests/{id}?timeout=0");
    let sym_cache = format!("/symcache?debug_id={CRASH}");
    for (target, redirect) in [(&answer_to, 303), (&sym_cache, 302)] {
        let empty = ("application/json", &b""[..]);
        let get = send(&world, ("GET", target), empty).await;
        assert_eq!(get.status, redirect, "{target}: {get:?}");
        let head = send(&world, ("HEAD", target), empty).await;
        assert_eq!(head.status, 200, "{target}: {head:?}");
        assert_eq!(head.headers.get("location"), None, "{target}");
    }
}

async fn found(world: &World, id: &str) -> FoundRequest {
    let invocation = world.invocation(TIME);
    let found = world.service().find_request(&invocation, id).await;
    found.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn of_two_calls_that_complete_a_request_the_answer_of_the_first_stays() {
    let large = vec![b' '; SENT_ANSWER_BYTES + 1];
    let cases: [[&[u8]; 2]; 3] = [[b"1", b"22"], [&large, b"1"], [b"1", &large]];
    for [first, second] in cases {
        let world = World::new();
        let (service, invocation) = (world.service(), world.invocation(TIME));
        let keep = async || {
            let body = RequestToStore::received(b"{}");
            let kept = service.store_request(&invocation, "id", &Scope::Global, body);
            kept.await.unwrap();
        };
        keep().await;
        // Both have read the item before either of them writes.
        let both = [found(&world, "id").await, found(&world, "id").await];
        for (request, answer) in both.iter().zip([first, second]) {
            let answer = answer.to_vec();
            let stored = service.store_answer(&invocation, "id", Some(request), answer);
            stored.await.unwrap();
        }
        let complete = found(&world, "id").await;
        let answered = service.finished_answer(&complete).await;
        match answered.unwrap().unwrap() {
            FinishedAnswer::Body(body) => assert_eq!(body, Bytes::copy_from_slice(first)),
            FinishedAnswer::Url(_) => assert_eq!(first.len(), large.len()),
        }
        // A third call, whose walks are complete and whose names are not, is late.
        keep().await;
        assert!(item(&world, "id").answer.is_some());
    }
}

/// An answer is no state of its own: the stage and the body stay what they were. So an earlier
/// release, which ignores the field, answers from the body, and the newer one then does the same if
/// the earlier one has dropped the field.
#[tokio::test(start_paused = true)]
async fn an_earlier_release_answers_a_complete_request_from_its_body() {
    let dump = minidump(&fixture("minidump/crash.dmp"));
    let world = cold().await;
    let id = pending(&world, "/minidump", (&dump.0, &dump.1)).await;
    let before = item(&world, &id);
    world.settle().await;
    let first = poll(&world, &id).await;
    let after = item(&world, &id);
    assert!(after.answer.is_some());
    let schema = |request: &PendingRequest| Item::Request(request.clone()).schema();
    assert_eq!(schema(&after), schema(&before));
    let without = PendingRequest {
        answer: None,
        ..after
    };
    assert_eq!(without, before);

    let written = symdepot::cache::Stored {
        revision: world.invocation(TIME).revision(),
        item: Item::Request(without),
    };
    let stored = world.records.peek(&ItemKey::request(&id)).unwrap();
    let records: &dyn symdepot::ports::RecordStore = &*world.records;
    let key = ItemKey::request(&id);
    let replaced = records.replace(&key, Some(&stored.revision), &written);
    assert_eq!(replaced.await.unwrap(), symdepot::ports::Replaced::Done);
    let (again, cost) = poll_again(&world, &id).await;
    assert_eq!(again, first);
    assert!(cost[3] > ONE_READ_EACH[3], "{cost:?}");
    assert_eq!(poll_again(&world, &id).await, (first, ONE_READ_EACH));
}
