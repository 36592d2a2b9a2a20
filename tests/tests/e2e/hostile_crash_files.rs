//! Crash files that are made to cost much: each has a status, a reason that names its limit,
//! bounded memory and bounded time.

use std::time::{Duration, Instant};

use serde_json::Value;
use symdepot_tests::harness::{MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread};
use symdepot_tests::made_up::{MadeUp, MadeUpCrash};
use symdepot_tests::stack::Stats;

use crate::crash_files::{form, send};
use crate::{Running, bytes_of};

/// The size limit of the instance's memory, in bytes.
const CACHE_BYTES: u64 = 16 << 20;

/// The memory that an instance may need in addition to its cache, in bytes.
const BESIDE: u64 = 256 << 20;

const STACK: u64 = 0x7fff_0000_0000;
const BASE: u64 = 0x5555_0000_0000;
const MIB: usize = 1 << 20;

/// The time that an answer may take, with unoptimised programs on a busy machine too. On an idle
/// one, the slowest takes a second and a half.
const TIME: Duration = Duration::from_secs(20);

/// The maximum number of frames of a stack trace.
const FRAMES: usize = 256;

/// What a crash file is answered with.
enum Answered {
    /// Stack traces: how many, and the most frames of one of them.
    Completed(usize, usize),
    /// The file cannot be read, for a reason that contains this.
    Failed(&'static str),
    /// The request is refused with this status, for a reason that contains this.
    Refused(u16, &'static str),
}

use Answered::{Completed, Failed, Refused};

fn thread(id: u32, rbp: u64) -> MadeUpThread {
    MadeUpThread {
        id,
        rip: BASE + 0x100,
        rsp: STACK,
        rbp,
        ..MadeUpThread::default()
    }
}

/// A minidump of one thread with this stack, in one module.
fn with_stack(words: impl Iterator<Item = u64>) -> MadeUpDump {
    MadeUpDump {
        stacks: vec![MadeUpStack {
            address: STACK,
            bytes: words.flat_map(u64::to_le_bytes).collect(),
        }],
        threads: vec![thread(1, STACK)],
        modules: vec![MadeUpModule {
            address: BASE,
            size: 0x10_0000,
            name: "/opt/app".to_owned(),
            debug_id: "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap(),
            ..MadeUpModule::default()
        }],
        crashed: Some(1),
        ..MadeUpDump::default()
    }
}

/// A chain of frame pointers of this many frames, which return to an address.
fn chain(frames: u64, caller: u64) -> MadeUpDump {
    with_stack((1..=frames).flat_map(move |frame| [STACK + frame * 16, caller]))
}

/// A minidump with this 32-bit number at an offset.
fn with_number(mut file: Vec<u8>, at: usize, number: u32) -> Vec<u8> {
    file[at..at + 4].copy_from_slice(&number.to_le_bytes());
    file
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;

    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a form with a minidump.
fn dump(file: &[u8]) -> Vec<u8> {
    form(&[("upload_file_minidump", file)])
}

/// The cases: what it is, the body, and the answer.
fn cases() -> Vec<(&'static str, Vec<u8>, Answered)> {
    let mut threads = with_stack(std::iter::repeat_n(0, MIB / 8));
    threads.threads = (1..=40_000).map(|id| thread(id, 0)).collect();
    let mut names = with_stack([0].into_iter());
    names.modules[0].name = "x".repeat(30_000);
    names.modules = vec![names.modules[0].clone(); 300];
    let small = bytes_of("minidump/crash.dmp");
    let wrapped = dump(&small);
    vec![
        (
            "40,000 threads on one stack",
            dump(&zstd(&threads.file())),
            Completed(4_096, 1),
        ),
        (
            "a chain of frame pointers of a mebibyte",
            dump(&zstd(&chain(MIB as u64 / 16, 0x1000).file())),
            Completed(1, FRAMES),
        ),
        (
            "a recursion of 100,000 frames",
            dump(&zstd(&chain(100_000, BASE + 0x200).file())),
            Completed(1, FRAMES),
        ),
        (
            "a count beyond the file",
            dump(&with_number(small.clone(), 8, u32::MAX)),
            Failed("more than 1024 streams"),
        ),
        (
            "an address beyond the file",
            dump(&with_number(small.clone(), 12, u32::MAX)),
            Failed("Failed to read minidump"),
        ),
        (
            "names of 18 MB",
            dump(&zstd(&names.file())),
            Failed("more than 16777216 bytes in all names"),
        ),
        (
            "a bomb in gzip",
            dump(&gzip(&vec![0; 65 * MIB])),
            Refused(413, "upload_file_minidump has more than 67108864 bytes"),
        ),
        (
            "a bomb in zstd",
            dump(&zstd(&vec![0; 1024 * MIB])),
            Refused(413, "upload_file_minidump has more than 67108864 bytes"),
        ),
        (
            "a body that is a bomb",
            zstd(&vec![0; 1024 * MIB]),
            Refused(413, "the body has more than"),
        ),
        (
            "a bomb in a bomb",
            zstd(&dump(&zstd(&vec![0; 256 * MIB]))),
            Refused(413, "upload_file_minidump has more than 67108864 bytes"),
        ),
        (
            "a minidump that is a form",
            dump(&wrapped),
            Refused(400, "multipart form data"),
        ),
        (
            "a part without an end",
            wrapped[..wrapped.len() - 20].to_vec(),
            Refused(400, "received with incomplete data"),
        ),
    ]
}

/// Asserts that the function did not fail, and stayed within its memory.
fn assert_within_memory(what: &str, stats: &Stats) {
    let symbolicate = stats.function("symbolicate");
    assert_eq!(symbolicate.errors, 0, "{what}: {stats:#?}");
    assert!(
        symbolicate.max_rss < CACHE_BYTES + BESIDE,
        "{what}: {} bytes",
        symbolicate.max_rss
    );
}

fn assert_answered(what: &str, status: u16, body: &Value, expected: &Answered) {
    match expected {
        Completed(stacktraces, frames) => {
            assert_eq!(
                (status, &body["status"]),
                (200, &"completed".into()),
                "{what}: {body:.300}"
            );
            let found = body["stacktraces"].as_array().unwrap();
            let counts = found
                .iter()
                .map(|stacktrace| stacktrace["frames"].as_array().unwrap().len());
            assert_eq!(
                (found.len(), counts.max()),
                (*stacktraces, Some(*frames)),
                "{what}"
            );
        }
        Failed(reason) => {
            assert_eq!(
                (status, &body["status"]),
                (200, &"failed".into()),
                "{what}: {body:.300}"
            );
            let message = body["message"].as_str().unwrap();
            assert!(message.contains(reason), "{what}: {message}");
        }
        Refused(refused, reason) => {
            let detail = body["detail"].as_str().unwrap_or_default();
            assert_eq!(status, *refused, "{what}: {detail}");
            assert!(detail.contains(reason), "{what}: {detail}");
        }
    }
}

#[tokio::test]
async fn no_crash_file_uses_more_memory_than_its_limits_allow() {
    let running =
        Running::start_with(|options| options.variable("MEMORY_CACHE_BYTES", CACHE_BYTES)).await;
    let client = running.client();
    let modules: Vec<MadeUp> = (1..=100).map(|number| MadeUp::new(number, 200)).collect();
    for module in &modules {
        client.upload(&module.key(), module.file()).await.unwrap();
    }
    running.idle().await;
    let scattered = MadeUpCrash {
        modules: &modules,
        unreached: 0,
        threads: 1,
        frames: MIB / 8 - 108,
    };
    let mut cases = cases();
    cases.push((
        "a stack of code addresses in 100 modules that are ready",
        dump(&zstd(&scattered.dump())),
        Completed(1, FRAMES),
    ));
    for (what, body, expected) in cases {
        for path in ["/minidump", "/minidump?format=stackwalk"] {
            client.clear_stats().await.unwrap();
            let began = Instant::now();
            let reply = send(&running, path, body.clone()).await;
            let took = began.elapsed();
            println!("{what}: {} ms, {path}", took.as_millis());
            assert!(took < TIME, "{what}: {took:?}, {path}");
            if path == "/minidump" {
                assert_answered(what, reply.status, &reply.body, &expected);
            }
            let stats = client.stats().await.unwrap();
            assert_within_memory(what, &stats);
            let reads = stats
                .of_bucket(client.addresses().caches(), "GetObject")
                .calls;
            assert!(reads <= 512, "{what}: {reads} reads");
        }
    }
    // The function has survived all of them.
    let reply = send(&running, "/minidump", dump(&bytes_of("minidump/crash.dmp"))).await;
    assert_eq!(reply.body["status"], "completed", "{}", reply.text);
}

/// 131,072 frames: as many as a minidump may have, and more than a response holds.
#[tokio::test]
async fn a_minidump_of_more_frames_than_a_response_holds_needs_no_more_memory() {
    const THREADS: usize = 512;
    let running =
        Running::start_with(|options| options.variable("MEMORY_CACHE_BYTES", CACHE_BYTES)).await;
    let client = running.client();
    let module = MadeUp::new(1, 200);
    client.upload(&module.key(), module.file()).await.unwrap();
    running.idle().await;
    let crash = MadeUpCrash {
        modules: &[module],
        unreached: 0,
        threads: THREADS,
        frames: FRAMES,
    };
    let body = dump(&zstd(&crash.dump()));
    for (path, crashed) in [
        ("/minidump", "/stacktraces/0"),
        ("/minidump?format=stackwalk", "/crashing_thread"),
    ] {
        client.clear_stats().await.unwrap();
        let reply = send(&running, path, body.clone()).await;
        assert_eq!(reply.status, 200, "{path}: {:.300}", reply.text);
        if path == "/minidump" {
            let expected = Completed(THREADS, FRAMES);
            assert_answered(path, reply.status, &reply.body, &expected);
        }
        // Only the thread that crashed keeps all of its frames.
        let crashed = reply.body.pointer(crashed).unwrap();
        let frames = crashed["frames"].as_array().unwrap();
        assert_eq!(frames.len(), FRAMES, "{path}");
        assert_within_memory(path, &client.stats().await.unwrap());
    }
}
