//! Attachments: crash files that requests refer to, and large minidumps that are read in parts.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use symdepot::adapters::memory::MemoryRemoteFiles;
use symdepot::api::crash::ReadCrash;
use symdepot::api::crash::attachment::{ATTACHMENT_BYTES, StorageUrl};
use symdepot::api::crash::form::CrashFields;
use symdepot::api::symbolicator::FrameTrust;
use symdepot::domain::{ResponseFormat, Scope};
use symdepot::flows::attachments::AttachmentError;
use symdepot::flows::minidump::{
    MinidumpForm, MinidumpRequest, WalkOutcome, WalkStats, decode_dump,
};
use symdepot::flows::requests::CallState;
use symdepot::flows::{HttpService, Invocation};
use symdepot::ports::{RemoteFailure, RemoteFile, RemoteFiles, RemotePart};
use symdepot::unwind::dump::{DumpBytes, READ_BYTES};
use symdepot_tests::harness::{
    MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread, World, fixture, full_dump, stored_request,
    travel,
};
use tokio::time::Instant;

const TIME: Duration = Duration::from_secs(29);
const ID: &str = "a-dump";
const REMOTE: &str = "https://files.example.com/crash.dmp";
const MIB: u64 = 1 << 20;

fn tenant() -> Scope {
    Scope::Tenant("acme".to_owned())
}

/// Stores a file as a client does, and returns its storage URL.
async fn stored(world: &World, scope: &Scope, file: impl Into<Bytes>) -> StorageUrl {
    let file = file.into();
    let invocation = world.invocation(TIME);
    let service = world.service();
    let offer = service.offer_attachment(&invocation, scope, file.len() as u64);
    let offer = offer.await.unwrap();
    assert_eq!(offer.upload.method, "PUT");
    assert_eq!(
        offer.upload.headers["content-length"],
        file.len().to_string()
    );
    let path = offer.upload.url.strip_prefix("memory://attachments/");
    let (path, _) = path.unwrap().split_once('?').unwrap();
    world.attachments.blobs.overwrite(path, file);
    StorageUrl::parse(&offer.storage_url, &[]).unwrap()
}

async fn read(
    service: &HttpService,
    scope: &Scope,
    url: &StorageUrl,
) -> Result<Result<DumpBytes, String>, AttachmentError> {
    let invocation = Invocation::new(ID.to_owned(), Duration::ZERO, TIME, [0; 32]);
    let attachment = service.attachment(&invocation, scope, url.clone(), None);
    Box::pin(attachment.minidump(ResponseFormat::Symbolicator)).await
}

/// Stores a large minidump, and reads what an answer of this format needs of it.
pub(crate) async fn read_large(world: &World, file: Vec<u8>, format: ResponseFormat) -> DumpBytes {
    let url = stored(world, &Scope::Global, file).await;
    let invocation = world.invocation(TIME);
    let service = world.service();
    let attachment = service.attachment(&invocation, &Scope::Global, url, None);
    Box::pin(attachment.minidump(format))
        .await
        .unwrap()
        .unwrap()
}

async fn walk(world: &World, file: DumpBytes) -> WalkOutcome {
    let invocation = world.invocation(TIME);
    let request = MinidumpRequest {
        file,
        fields: &CrashFields::default(),
        call: CallState::first(ID, &Scope::Global, Duration::ZERO),
    };
    let walked = world.service().walk_minidump(&invocation, request);
    Box::pin(walked).await.unwrap()
}

async fn walked(world: &World, file: DumpBytes) -> (ReadCrash, WalkStats) {
    match walk(world, file).await {
        WalkOutcome::Walked(report, stats) => (*report, stats),
        other => panic!("{other:?}"),
    }
}

/// Returns a world in which the program of the minidump can be unwound.
async fn world() -> World {
    let world = World::new();
    world.upload("global/crash", "elf/crash").await;
    world
}

fn bytes_read(file: &DumpBytes) -> u64 {
    file.parts().map(|(place, _)| place.len() as u64).sum()
}

#[tokio::test(start_paused = true)]
async fn a_large_minidump_answers_as_its_small_part_does() {
    let world = world().await;
    let small = fixture("minidump/crash.dmp");
    let expected = walked(&world, small.clone().into()).await;
    let trusts = expected.0.request.stacktraces[0].frames.iter();
    assert!(
        trusts
            .filter(|frame| frame.trust == FrameTrust::Cfi)
            .count()
            > 2
    );

    let large = full_dump(&small, 64 * MIB);
    let whole = walked(&world, large.clone().into()).await;
    assert_eq!(whole, expected, "as a whole");
    let url = stored(&world, &Scope::Global, large).await;
    let file = read(world.service(), &Scope::Global, &url)
        .await
        .unwrap()
        .unwrap();
    assert!(file.parts().count() > 1);
    assert_eq!(walked(&world, file).await, expected, "in parts");
}

#[tokio::test(start_paused = true)]
async fn of_a_minidump_of_a_gibibyte_little_is_read_in_few_rounds() {
    let world = world().await;
    let large = full_dump(&fixture("minidump/crash.dmp"), 1024 * MIB);
    let url = stored(&world, &Scope::Global, large).await;
    let file = read(world.service(), &Scope::Global, &url)
        .await
        .unwrap()
        .unwrap();
    assert!(file.length() as u64 > 1024 * MIB);
    // The beginning, which has all lists, and the stack.
    assert!(bytes_read(&file) < 128 * 1024, "{}", bytes_read(&file));
    assert_eq!(world.attachments.blobs.calls().of("get"), 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_read_of_a_large_minidump_is_stored_and_continued_without_the_file() {
    let world = world().await;
    let large = full_dump(&fixture("minidump/crash.dmp"), 64 * MIB);
    let url = stored(&world, &Scope::Global, large).await;
    let file = read(world.service(), &Scope::Global, &url)
        .await
        .unwrap()
        .unwrap();
    let (expected, _) = walked(&world, file.clone()).await;

    world.pass(Duration::from_secs(8 * 24 * 3600)).await;
    world.prune().await.unwrap();
    let cold = world.another_instance();
    let outcome = walk(&cold, file.clone()).await;
    assert!(matches!(outcome, WalkOutcome::Pending), "{outcome:?}");
    let invocation = cold.invocation(TIME);
    let attachment = cold
        .service()
        .attachment(&invocation, &Scope::Global, url.clone(), None);
    attachment.remove().await;
    assert_eq!(world.attachments.blobs.paths(), Vec::<String>::new());

    world.settle().await;
    let other = world.another_instance();
    let invocation = other.invocation(TIME);
    let kept = stored_request(other.service(), &invocation, ID).await;
    let (_, body) = kept.unwrap().unwrap();
    assert!((body.len() as u64) < MIB, "{}", body.len());
    let MinidumpForm { file: again, .. } = decode_dump(&body).unwrap();
    assert_eq!(again.length(), file.length());
    assert!(again.parts().eq(file.parts()));
    let (report, _) = walked(&other, again).await;
    assert_eq!(report.request.stacktraces, expected.request.stacktraces);
}

#[tokio::test(start_paused = true)]
async fn an_attachment_is_read_only_in_the_scope_that_asked_for_it() {
    let world = world().await;
    let service = world.service();
    let url = stored(&world, &tenant(), fixture("minidump/crash.dmp")).await;
    assert!(read(service, &tenant(), &url).await.unwrap().is_ok());
    for other in [Scope::Global, Scope::Tenant("acme2".to_owned())] {
        let refused = read(service, &other, &url).await;
        assert!(
            matches!(refused, Err(AttachmentError::Absent(_))),
            "{refused:?}"
        );
    }
    let StorageUrl::Own(id) = &url else {
        panic!("{url:?}");
    };
    let mut longer = *id;
    longer.bytes += 1;
    let refused = read(service, &tenant(), &StorageUrl::Own(longer)).await;
    assert!(
        matches!(refused, Err(AttachmentError::Absent(_))),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_small_or_compressed_minidump_is_read_as_a_whole() {
    let world = world().await;
    let large = full_dump(&fixture("minidump/crash.dmp"), 8 * MIB);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&large).unwrap();
    for file in [
        fixture("minidump/crash.dmp").to_vec(),
        gzip.finish().unwrap(),
        zstd::encode_all(&*large, 1).unwrap(),
    ] {
        let url = stored(&world, &Scope::Global, file).await;
        let read = read(world.service(), &Scope::Global, &url).await;
        assert_eq!(read.unwrap().unwrap().parts().count(), 1);
    }
    let bomb = zstd::encode_all(&*vec![0; 65 << 20], 1).unwrap();
    let url = stored(&world, &Scope::Global, bomb).await;
    let refused = read(world.service(), &Scope::Global, &url).await;
    assert!(
        matches!(refused, Err(AttachmentError::Request(_))),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_minidump_on_another_host_is_read_with_or_without_ranges() {
    let world = world().await;
    let small = fixture("minidump/crash.dmp");
    let large = Bytes::from(full_dump(&small, 16 * MIB));
    let url = StorageUrl::parse(REMOTE, &["files.example.com".to_owned()]).unwrap();
    let (expected, _) = walked(&world, small.into()).await;
    let on_host = |file: &Bytes, without_ranges| HttpService {
        remote_files: Arc::new(MemoryRemoteFiles {
            files: [(REMOTE.to_owned(), file.clone())].into(),
            without_ranges,
        }),
        ..world.service().clone()
    };
    for (without_ranges, parts) in [(false, 2), (true, 1)] {
        let service = on_host(&large, without_ranges);
        let file = read(&service, &Scope::Global, &url).await.unwrap().unwrap();
        assert_eq!(file.parts().count(), parts);
        assert_eq!(walked(&world, file).await.0, expected);
    }
    let too_large = Bytes::from(vec![0; 65 << 20]);
    let refused = read(&on_host(&too_large, true), &Scope::Global, &url).await;
    assert!(
        matches!(refused, Err(AttachmentError::Absent(_))),
        "{refused:?}"
    );
    let refused = read(world.service(), &Scope::Global, &url).await;
    assert!(
        matches!(refused, Err(AttachmentError::Absent(_))),
        "{refused:?}"
    );
}

/// A host that states this length for its file, of which it sends the beginning.
#[derive(Debug)]
struct HostOfLongFile {
    begin: Bytes,
    length: u64,
}

#[async_trait]
impl RemoteFiles for HostOfLongFile {
    async fn read(
        &self,
        _: &RemoteFile,
        range: Range<u64>,
        _: u64,
    ) -> Result<RemotePart, RemoteFailure> {
        Ok(RemotePart {
            start: range.start,
            bytes: self.begin.clone(),
            length: self.length,
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_minidump_whose_host_states_more_than_an_attachment_may_have_is_refused() {
    let world = World::new();
    let url = StorageUrl::parse(REMOTE, &["files.example.com".to_owned()]).unwrap();
    for length in [ATTACHMENT_BYTES + 1, 1 << 60, u64::MAX] {
        let begin = fixture("minidump/crash.dmp");
        let service = HttpService {
            remote_files: Arc::new(HostOfLongFile { begin, length }),
            ..world.service().clone()
        };
        let refused = read(&service, &Scope::Global, &url).await;
        assert!(
            matches!(refused, Err(AttachmentError::Request(_))),
            "{refused:?}"
        );
    }
}

/// A host that takes this long for each part of its file.
#[derive(Debug)]
struct SlowHost {
    file: MemoryRemoteFiles,
    time: Duration,
}

#[async_trait]
impl RemoteFiles for SlowHost {
    async fn read(
        &self,
        file: &RemoteFile,
        range: Range<u64>,
        most: u64,
    ) -> Result<RemotePart, RemoteFailure> {
        travel(self.time).await;
        self.file.read(file, range, most).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_does_not_arrive_before_the_end_of_the_call_is_unreachable() {
    let world = World::new();
    let url = StorageUrl::parse(REMOTE, &["files.example.com".to_owned()]).unwrap();
    let file = Bytes::from(full_dump(&fixture("minidump/crash.dmp"), 16 * MIB));
    let with_host = |seconds: u64| HttpService {
        remote_files: Arc::new(SlowHost {
            file: MemoryRemoteFiles {
                files: [(REMOTE.to_owned(), file.clone())].into(),
                without_ranges: false,
            },
            time: Duration::from_secs(seconds),
        }),
        ..world.service().clone()
    };
    // The file is read in two parts.
    let in_time = read(&with_host(11), &Scope::Global, &url).await;
    assert!(matches!(in_time, Ok(Ok(_))), "{in_time:?}");
    for seconds in [13, 3600] {
        let began = Instant::now();
        let refused = read(&with_host(seconds), &Scope::Global, &url).await;
        let Err(AttachmentError::Unreachable(detail)) = refused else {
            panic!("{refused:?}");
        };
        assert!(detail.contains("files.example.com"), "{detail}");
        assert!(began.elapsed() < TIME, "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_timeout_is_over_while_its_file_is_read_receives_an_answer() {
    let world = World::new();
    let url = StorageUrl::parse(REMOTE, &["files.example.com".to_owned()]).unwrap();
    let file = Bytes::from(full_dump(&fixture("minidump/crash.dmp"), 16 * MIB));
    let service = HttpService {
        remote_files: Arc::new(SlowHost {
            file: MemoryRemoteFiles {
                files: [(REMOTE.to_owned(), file.clone())].into(),
                without_ranges: false,
            },
            time: Duration::from_secs(4),
        }),
        ..world.service().clone()
    };
    // The file is read in two parts, of four seconds each.
    for (timeout, takes) in [(0, 5_500), (5, 5_500), (7, 7_500), (8, 8_000), (60, 8_000)] {
        let (began, invocation) = (Instant::now(), world.invocation(TIME));
        let attachment = service
            .attachment(&invocation, &Scope::Global, url.clone(), None)
            .within(Duration::from_secs(timeout));
        let read = Box::pin(attachment.minidump(ResponseFormat::default())).await;
        assert_eq!(began.elapsed(), Duration::from_millis(takes), "{timeout} s");
        let is_refused = matches!(read, Err(AttachmentError::Unreachable(_)));
        assert_eq!(is_refused, timeout < 8, "{timeout} s: {read:?}");
    }
    // A file in our own bucket may take longer.
    let own = stored(&world, &Scope::Global, file).await;
    let invocation = world.invocation(TIME);
    world.pass(Duration::from_secs(6)).await;
    let attachment = service
        .attachment(&invocation, &Scope::Global, own, None)
        .within(Duration::ZERO);
    let read = Box::pin(attachment.minidump(ResponseFormat::default())).await;
    assert!(matches!(read, Ok(Ok(_))), "{read:?}");
}

/// A minidump of this many threads, each with a stack of its own of this size.
fn threads(count: u32, stack_bytes: usize) -> MadeUpDump {
    let address = |thread: u32| 0x7f00_0000_0000 + u64::from(thread) * 0x100_0000;
    MadeUpDump {
        stacks: (0..count)
            .map(|thread| MadeUpStack {
                address: address(thread),
                bytes: vec![0; stack_bytes],
            })
            .collect(),
        threads: (0..count)
            .map(|thread| MadeUpThread {
                id: thread + 1,
                stack: thread as usize,
                rip: 0x5555_0000_0100,
                rsp: address(thread),
                ..MadeUpThread::default()
            })
            .collect(),
        modules: vec![MadeUpModule {
            address: 0x5555_0000_0000,
            size: 0x10_0000,
            name: "/opt/app".to_owned(),
            debug_id: "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap(),
            ..MadeUpModule::default()
        }],
        crashed: Some(count),
        ..MadeUpDump::default()
    }
}

#[tokio::test(start_paused = true)]
async fn of_more_stacks_than_are_read_that_of_the_crash_is_one_and_the_others_are_counted() {
    let world = World::new();
    let dump = threads(64, 1 << 20).file();
    let url = stored(&world, &Scope::Global, dump).await;
    let file = read(world.service(), &Scope::Global, &url)
        .await
        .unwrap()
        .unwrap();
    assert!(bytes_read(&file) <= READ_BYTES, "{}", bytes_read(&file));
    assert_eq!(file.stacks_unread, 44);
    // The stacks are in the order of the threads, and that of the last one was read.
    let places: Vec<_> = file.parts().map(|(place, _)| place).collect();
    let crashed = 32 + 72 + 63 * (1 << 20) + (1 << 19);
    assert!(
        places.iter().any(|place| place.contains(&crashed)),
        "{places:?}"
    );
    let (report, stats) = walked(&world, file).await;
    assert_eq!((stats.threads, stats.stacks_cut), (64, 44));
    assert_eq!(report.request.stacktraces.len(), 64);
}

#[tokio::test(start_paused = true)]
async fn a_large_minidump_that_is_damaged_fails_with_the_reason() {
    let world = World::new();
    let check = async |file: Vec<u8>, expected: &str| {
        let url = stored(&world, &Scope::Global, file).await;
        let read = read(world.service(), &Scope::Global, &url).await;
        let message = read.unwrap().unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    check(vec![b'x'; 5 << 20], "Header mismatch").await;
    let large = full_dump(&fixture("minidump/crash.dmp"), 5 * MIB);
    let with = |at: usize, number: u32| {
        let mut file = large.clone();
        file[at..at + 4].copy_from_slice(&number.to_le_bytes());
        file
    };
    check(with(8, u32::MAX), "more than 1024 streams").await;
    // The directory lies beyond the file.
    check(with(12, u32::MAX - 8), "directory").await;
    let directory = u32::from_le_bytes(large[12..16].try_into().unwrap()) as usize;
    let last = directory + 3 * 12;
    check(
        with(last + 4, 5 << 20),
        "more than 4194320 bytes in a stream",
    )
    .await;
    let list = u32::from_le_bytes(large[last + 8..last + 12].try_into().unwrap()) as usize;
    check(with(list, u32::MAX), "more than 262144 memory regions").await;
}

#[tokio::test(start_paused = true)]
async fn names_that_are_spread_over_a_large_file_are_not_read() {
    // Each name is in another part of the file, and each part would be a read.
    let mut dump = threads(1, 8);
    let module = dump.modules[0].clone();
    dump.modules = vec![module; 2_100];
    let mut file = dump.file();
    let directory = (0..6).map(|at| 32 + 12 * at);
    let list = directory
        .map(|at| {
            (
                file[at],
                u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()),
            )
        })
        .find(|(kind, _)| *kind == 4);
    let list = list.unwrap().1 as usize;
    let begin = file.len().next_multiple_of(1 << 20);
    let apart = 128 * 1024;
    file.resize(begin + 2_100 * apart, 0);
    for module in 0..2_100 {
        let name = u32::try_from(begin + module * apart).unwrap();
        let at = list + 4 + module * 108 + 20;
        file[at..at + 4].copy_from_slice(&name.to_le_bytes());
    }
    let world = World::new();
    let url = stored(&world, &Scope::Global, file).await;
    let read = read(world.service(), &Scope::Global, &url).await;
    let message = read.unwrap().unwrap_err();
    assert!(message.contains("more than 2048 places"), "{message}");
}
