//! Crash files over HTTP while a store fails or the code panics: the status says whose fault it is,
//! the file that the request refers to stays, and the instance lives.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use symbolicate::testing::Answer;
use symdepot::adapters::faulty::{How, Operation};
use symdepot::domain::Scope;
use symdepot::flows::HttpService;
use symdepot::ports::{BlobPage, BlobStore, Created, Fault, NotDeleted};
use symdepot_tests::harness::{
    MadeUpDump, MadeUpModule, World, fixture, fixture_text, sample_crash,
};

use crate::CRASH;
use crate::continued::{body, minidump, post, send_to};

const TIME: Duration = Duration::from_secs(29);

/// A world with the program of the minidump, its debug file and its sources.
async fn world() -> World {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.upload("global/crash", "elf/crash").await;
    world
        .upload("global/crash.src.zip", "bundle/crash.src.zip")
        .await;
    world
}

/// Stores a file as a client does. Returns the body of a request that refers to it.
async fn stored(world: &World, file: &Bytes) -> Value {
    let invocation = world.invocation(TIME);
    let service = world.service();
    let offer = service.offer_attachment(&invocation, &Scope::Global, file.len() as u64);
    let offer = offer.await.unwrap();
    let path = offer.upload.url.strip_prefix("memory://attachments/");
    let (path, _) = path.unwrap().split_once('?').unwrap();
    world.attachments.blobs.overwrite(path, file.clone());
    let storage_url = offer.storage_url;
    json!({"symbolicate": {"type": "minidump", "storage_url": storage_url}})
}

/// Each read of a walk, of the names and of the source lines fails once.
#[tokio::test(start_paused = true)]
async fn a_fault_of_a_store_is_a_503_and_the_attachment_stays_until_a_request_is_answered() {
    let world = world().await;
    let dump = fixture("minidump/crash.dmp");
    let there = || world.attachments.blobs.paths().len();
    let send = async |request: &Value| {
        let content = ("application/json", &*serde_json::to_vec(request).unwrap());
        post(&world, "/symbolicate-any?timeout=0", content).await
    };
    let reads = [Operation::Load, Operation::GetBlob];
    let calls = || reads.map(|operation| world.faults.calls(operation));
    let before = calls();
    let expected = send(&stored(&world, &dump).await).await;
    let after = calls();
    assert_eq!(body(&expected)["status"], "completed", "{expected:?}");
    assert_eq!(there(), 0);
    let records = world.records.items();
    for (at, operation) in reads.into_iter().enumerate() {
        let calls = after[at] - before[at];
        // Of blobs: unwind information, names, and lines.
        assert!(calls >= [1, 3][at], "{operation:?}: {calls} calls");
        for nth in 1..=calls {
            for how in [How::Before, How::Throttled, How::Denied] {
                let what = format!("{operation:?} number {nth}: {how:?}");
                let request = stored(&world, &dump).await;
                let done = world.faults.calls(operation);
                world.faults.fail(operation, done + nth, how);
                let failed = send(&request).await;
                world.faults.heal();
                assert_eq!(failed.status, 503, "{what}: {failed:?}");
                assert_eq!(there(), 1, "{what}: the file is removed");
                assert_eq!(world.records.items(), records, "{what}");
                assert_eq!(send(&request).await, expected, "{what}");
                assert_eq!(there(), 0, "{what}: the file is not removed");
            }
        }
    }
}

/// A store that panics at its first read below a prefix.
#[derive(Debug)]
struct PanickingBlobs {
    inner: Arc<dyn BlobStore>,
    prefix: &'static str,
    has_panicked: AtomicBool,
}

/// What the message of the panic quotes.
const SECRET: &str = "the memory of a process";

#[async_trait]
impl BlobStore for PanickingBlobs {
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault> {
        let is_first =
            path.starts_with(self.prefix) && !self.has_panicked.swap(true, Ordering::Relaxed);
        assert!(!is_first, "cannot read {SECRET}");
        self.inner.get(path, range).await
    }

    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        self.inner.create(path, body).await
    }

    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault> {
        self.inner.delete_many(paths).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault> {
        self.inner.list(prefix, after).await
    }

    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault> {
        self.inner.presign(path, lifetime, content_type).await
    }
}

/// Returns an instance whose store panics once, at a read of this kind of cache.
fn panicking(world: &World, prefix: &'static str) -> (HttpService, Arc<PanickingBlobs>) {
    let instance = world.another_instance();
    let blobs = Arc::new(PanickingBlobs {
        inner: instance.service().caches.clone(),
        prefix,
        has_panicked: AtomicBool::new(false),
    });
    let service = HttpService {
        caches: blobs.clone(),
        ..instance.service().clone()
    };
    (service, blobs)
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_the_invocation_quotes_nothing_and_the_instance_lives() {
    let world = world().await;
    let (content_type, form) = minidump(&fixture("minidump/crash.dmp"));
    let crash = fixture_text("crash.json");
    let json = "application/json";
    for (path, content, prefix) in [
        // What the words of all stacks point to is read before the walks.
        ("/minidump", (&*content_type, &*form), "derived/cficache/"),
        (
            "/symbolicate",
            (json, crash.as_bytes()),
            "derived/symcache/",
        ),
        ("/symbolicate", (json, crash.as_bytes()), "derived/sources/"),
    ] {
        let target = ("POST", path);
        let expected = post(&world, path, content).await;
        assert_eq!(body(&expected)["status"], "completed", "{expected:?}");
        let (service, blobs) = panicking(&world, prefix);
        let failed = send_to(&service, &world, target, content).await;
        assert!(blobs.has_panicked.load(Ordering::Relaxed), "{prefix}");
        let said = String::from_utf8_lossy(&failed.body);
        assert_eq!(failed.status, 500, "{prefix}: {said}");
        assert!(!said.contains(SECRET), "{prefix}: {said}");
        let again = send_to(&service, &world, target, content).await;
        assert_eq!(again, expected, "{prefix}");
    }
}

/// The frames before the panic and those of all other threads are answered.
#[tokio::test(start_paused = true)]
async fn a_panic_in_a_walk_ends_the_stack_of_its_thread_alone() {
    const BASE: u64 = 0x5555_0000_0000;
    const OUTSIDE: u64 = 0x1000;
    let world = world().await;
    let sample = sample_crash();
    let caller = sample.stacktraces[0].frames.last().unwrap();
    let in_main = BASE + caller.instruction_addr.0 - sample.modules[0].image_addr.0;
    let threads = [
        // Without unwind information, the stack is searched. The first word points into the header
        // of the program: its functions are read to find out that it is no return address.
        (OUTSIDE, vec![BASE + 0x10, in_main]),
        (in_main, vec![0, 0]),
    ];
    let module = MadeUpModule {
        address: BASE,
        size: 0x10_0000,
        name: "/opt/crash".to_owned(),
        debug_id: CRASH.parse().unwrap(),
        ..MadeUpModule::default()
    };
    let dump = MadeUpDump::of_threads(threads, vec![module]).file();
    let (content_type, form) = minidump(&dump);
    let (target, content) = (("POST", "/minidump?timeout=0"), (&*content_type, &*form));
    let functions = |answer: &Answer| {
        let body = body(answer);
        assert_eq!((answer.status, &body["status"]), (200, &json!("completed")));
        let stacktraces = body["stacktraces"].as_array().unwrap().iter();
        let frames = stacktraces.map(|stacktrace| {
            let frames = stacktrace["frames"].as_array().unwrap().iter();
            let names = frames.map(|frame| frame["function"].as_str().map(str::to_owned));
            names.collect::<Vec<_>>()
        });
        frames.collect::<Vec<_>>()
    };
    let main = || Some("main".to_owned());
    let expected = post(&world, target.1, content).await;
    assert_eq!(
        functions(&expected),
        [vec![None, main()], vec![main()]],
        "{expected:?}"
    );
    let (service, blobs) = panicking(&world, "derived/symcache/");
    let cut = send_to(&service, &world, target, content).await;
    assert!(blobs.has_panicked.load(Ordering::Relaxed));
    assert_eq!(functions(&cut), [vec![None], vec![main()]], "{cut:?}");
    let again = send_to(&service, &world, target, content).await;
    assert_eq!(again, expected);
}
