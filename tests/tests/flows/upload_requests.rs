//! `POST /uploads`: which files the service requests, and how a client sends them.

use std::time::Duration;

use sha2::{Digest, Sha256};
use symdepot::api::uploads::{
    BYTES_IN_PARTS, FileToUpload, PART_BYTES, RequestedFile, RequestedFileState, SIGNED_PARTS,
    Transfer, UploadsRequest,
};
use symdepot::domain::{Location, Scope};
use symdepot::flows::Error;
use symdepot::ports::DifReader;
use symdepot_tests::harness::{World, fixture, function_names, sample_crash};

use crate::CRASH;

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn file(name: &str, size: u64) -> FileToUpload {
    FileToUpload {
        name: name.to_owned(),
        size: Some(size),
        parts: Vec::new(),
        sha256: Some(DIGEST.to_owned()),
        ids: vec![CRASH.to_owned()],
    }
}

/// Returns a file of this many parts, none of which is stored.
fn file_of_parts(name: &str, parts: usize) -> FileToUpload {
    FileToUpload {
        parts: vec![DIGEST.to_owned(); parts],
        ..file(name, PART_BYTES * parts as u64)
    }
}

/// Returns a large file, and its parts. Each part is full of one byte, but the last, which has
/// five.
fn large_file(name: &str, whole_parts: u8) -> (FileToUpload, Vec<Vec<u8>>) {
    let part = usize::try_from(PART_BYTES).unwrap();
    let whole = (1..=whole_parts).map(|byte| vec![byte; part]);
    let bodies: Vec<Vec<u8>> = whole.chain([b"12345".to_vec()]).collect();
    let digests = bodies.iter().map(|body| hex::encode(Sha256::digest(body)));
    let size = PART_BYTES * u64::from(whole_parts) + 5;
    let file = FileToUpload {
        parts: digests.collect(),
        ..file(name, size)
    };
    (file, bodies)
}

async fn requested(
    world: &World,
    scope: &Scope,
    files: Vec<FileToUpload>,
) -> Result<Vec<RequestedFile>, Error> {
    let request = UploadsRequest {
        scope: Some(scope.clone()),
        files,
    };
    let invocation = world.invocation(Duration::from_secs(29));
    let answer = world
        .service()
        .request_uploads(&invocation, scope, &request);
    Ok(answer.await?.files)
}

async fn requested_one(world: &World, file: FileToUpload) -> RequestedFile {
    let files = requested(world, &Scope::Global, vec![file]).await.unwrap();
    let [file] = files.try_into().unwrap();
    file
}

/// Returns the numbers of the parts to send.
fn parts(file: &RequestedFile) -> Vec<u32> {
    match &file.state {
        RequestedFileState::Upload(Transfer::Parts { parts, .. }) => {
            parts.iter().map(|part| part.number).collect()
        }
        state => panic!("not in parts: {state:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_is_sent_once_and_its_state_is_that_of_the_upload() {
    let world = World::new();
    let bytes = fixture("elf/crash.debug");
    let sent = file("crash.debug", bytes.len() as u64);
    let asked = requested_one(&world, sent.clone()).await;
    assert_eq!(
        asked.key,
        format!("global/crash.debug/{CRASH}/0123456789abcdef")
    );
    let RequestedFileState::Upload(Transfer::Put(put)) = asked.state else {
        panic!("{asked:?}");
    };
    assert_eq!(put.headers["content-length"], bytes.len().to_string());
    assert_eq!(put.headers["lifetime"], "900");
    let event = world.put(&asked.key, bytes);
    world.deliver(&event).await.unwrap();
    let again = requested_one(&world, sent.clone()).await;
    assert_eq!(again.state, RequestedFileState::Applied);
    let names = function_names(&world.symbolicate(&sample_crash()).await);
    assert_eq!(names.len(), 13);
    // The same bytes belong to another tenant separately.
    let acme: Scope = "acme".parse().unwrap();
    let theirs = requested(&world, &acme, vec![sent.clone()]).await.unwrap();
    assert!(matches!(theirs[0].state, RequestedFileState::Upload(_)));
    world.remove(&asked.key).await;
    let removed = requested_one(&world, sent).await;
    assert!(matches!(removed.state, RequestedFileState::Upload(_)));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_no_request_can_use_is_reported_with_the_reason() {
    let world = World::new();
    let sent = file("notes.txt", 4);
    let key = requested_one(&world, sent.clone()).await.key;
    let event = world.put(&key, "text");
    world.deliver(&event).await.unwrap();
    let RequestedFileState::Ignored { reason } = requested_one(&world, sent).await.state else {
        panic!("not ignored");
    };
    assert!(!reason.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_large_file_is_sent_in_parts_and_continues_where_it_stopped() {
    let world = World::new();
    let (sent, bodies) = large_file("large.debug", 4);
    let asked = requested_one(&world, sent.clone()).await;
    assert_eq!(parts(&asked), [1, 2, 3, 4, 5]);
    let location = Location::new(&*asked.key);
    for at in [0, 2] {
        world
            .uploads
            .put_part(&location, at + 1, bodies[at as usize].clone());
    }
    // A part of another attempt, which compressed the file in another way.
    world.uploads.put_part(&location, 2, bodies[3].clone());
    let again = requested_one(&world, sent.clone()).await;
    assert_eq!(parts(&again), [2, 4, 5]);
    for at in [1, 3, 4] {
        world
            .uploads
            .put_part(&location, at + 1, bodies[at as usize].clone());
    }
    // Asked again, the service joins the parts.
    let joined = requested_one(&world, sent).await;
    assert_eq!(joined.state, RequestedFileState::Pending);
    let stat = world.uploads.stat(&location).await.unwrap();
    assert_eq!(stat.size, BYTES_IN_PARTS + 5);
    let begun = world.uploads.calls().of("begin_parts");
    assert_eq!((begun, world.uploads.calls().of("join_parts")), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_response_signs_the_parts_of_the_first_large_files() {
    let world = World::with(|settings| settings.dif_max_bytes = 1 << 40);
    let large = |name: &str| file_of_parts(name, SIGNED_PARTS / 2 + 1);
    let files = vec![large("a"), large("b"), large("c")];
    let asked = requested(&world, &Scope::Global, files).await.unwrap();
    let signed: Vec<usize> = asked.iter().map(|file| parts(file).len()).collect();
    assert_eq!(signed, [129, 127, 0]);
}

#[tokio::test(start_paused = true)]
async fn files_that_need_no_signatures_leave_them_to_the_others() {
    let limit = PART_BYTES * SIGNED_PARTS as u64;
    let world = World::with(|settings| settings.dif_max_bytes = limit);
    let applied = file_of_parts("applied.debug", SIGNED_PARTS);
    let key = requested_one(&world, applied.clone()).await.key;
    let event = world.put(&key, fixture("elf/crash.debug"));
    world.deliver(&event).await.unwrap();
    let too_large = file_of_parts("b.debug", SIGNED_PARTS + 1);
    let lacking = file_of_parts("c.debug", SIGNED_PARTS);
    let files = vec![applied, too_large, lacking];
    let asked = requested(&world, &Scope::Global, files).await.unwrap();
    assert_eq!(asked[0].state, RequestedFileState::Applied);
    assert!(matches!(asked[1].state, RequestedFileState::Ignored { .. }));
    assert_eq!(parts(&asked[2]).len(), SIGNED_PARTS);
}

#[tokio::test(start_paused = true)]
async fn parts_that_are_stored_leave_their_signatures_to_the_next_file() {
    let world = World::with(|settings| settings.dif_max_bytes = 1 << 40);
    let (first, mut bodies) = large_file("a.debug", 4);
    let last = bodies.pop().unwrap();
    let next = file_of_parts("b.debug", SIGNED_PARTS);
    let files = vec![first, next];
    let ask = async || {
        let files = files.clone();
        requested(&world, &Scope::Global, files).await.unwrap()
    };
    let asked = ask().await;
    let signed = |asked: &[RequestedFile]| -> Vec<usize> {
        asked.iter().map(|file| parts(file).len()).collect()
    };
    assert_eq!(signed(&asked), [5, SIGNED_PARTS - 5]);
    let location = Location::new(&*asked[0].key);
    for (number, body) in (1..).zip(bodies) {
        world.uploads.put_part(&location, number, body);
    }
    assert_eq!(signed(&ask().await), [1, SIGNED_PARTS - 1]);
    // The question that joins the first file signs all parts of the next one.
    world.uploads.put_part(&location, 5, last);
    let joined = ask().await;
    assert_eq!(joined[0].state, RequestedFileState::Pending);
    assert_eq!(parts(&joined[1]).len(), SIGNED_PARTS);
}

#[tokio::test(start_paused = true)]
async fn a_file_without_a_size_is_only_looked_up() {
    let world = World::new();
    let sent = FileToUpload {
        size: None,
        ..file("a", 1)
    };
    let asked = requested_one(&world, sent).await;
    assert_eq!(asked.state, RequestedFileState::Absent);
}

#[tokio::test(start_paused = true)]
async fn a_file_of_a_wrong_size_is_ignored_with_the_limit() {
    let world = World::new();
    let limit = world.settings.dif_max_bytes;
    let large = FileToUpload {
        parts: vec![DIGEST.to_owned(); usize::try_from(limit.div_ceil(PART_BYTES)).unwrap() + 1],
        ..file("a", limit + 1)
    };
    for sent in [file("a", 0), large] {
        let asked = requested_one(&world, sent).await;
        let RequestedFileState::Ignored { reason } = asked.state else {
            panic!("{asked:?}");
        };
        assert!(reason.contains("DIF_MAX_BYTES"), "{reason}");
    }
    assert_eq!(world.uploads.calls().total(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_files_cost_one_read_and_each_key_is_answered() {
    let world = World::new();
    let sent = |number: usize| file(&format!("lib{}.so", number % 999), 100);
    let before = world.calls();
    let files = (0..1000).map(sent).collect();
    let asked = requested(&world, &Scope::Global, files).await.unwrap();
    assert_eq!(asked.len(), 1000);
    // 999 keys, as one file is named twice.
    assert_eq!(asked[999], asked[0]);
    assert_eq!(world.calls() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_file_without_a_digest_is_a_new_one_each_time() {
    let world = World::new();
    let sent = FileToUpload {
        sha256: None,
        ..file("a", 1)
    };
    let first = requested_one(&world, sent.clone()).await;
    assert_ne!(requested_one(&world, sent).await.key, first.key);
}

#[tokio::test(start_paused = true)]
async fn a_file_whose_key_or_parts_are_wrong_is_refused_before_any_call() {
    let world = World::new();
    let before = world.calls();
    let with_parts = |size, parts: &[&str]| FileToUpload {
        parts: parts.iter().map(|part| (*part).to_owned()).collect(),
        ..file("a", size)
    };
    for (sent, reason) in [
        (file("../a", 1), "the name must be"),
        (file("a.symcache", 1), "Microsoft's tools"),
        (
            FileToUpload {
                ids: Vec::new(),
                ..file("a", 1)
            },
            "`ids` is missing",
        ),
        (with_parts(1, &[DIGEST]), "have parts"),
        (with_parts(BYTES_IN_PARTS, &[DIGEST]), "each of its 4 parts"),
        (with_parts(BYTES_IN_PARTS, &["x"; 4]), "SHA-256"),
    ] {
        let files = vec![file("good", 1), sent];
        let error = requested(&world, &Scope::Global, files).await.unwrap_err();
        assert_eq!(error.status(), 422);
        let text = error.to_string();
        assert!(
            text.starts_with("files[1]: ") && text.contains(reason),
            "{text}"
        );
    }
    assert_eq!(world.calls(), before);
}
