//! `upload`: what is sent, and how it is shown.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::service::signing::Counting;
use crate::service::{Service, explained_upload, parts, present, signing, store};
use crate::{debug_file_without_id, fixture, run};

#[test]
fn the_parts_of_a_file_are_sent_until_the_service_wants_no_more() {
    let (service, parts) = parts::start();
    let file = fixture("elf/crash.debug");
    let ended = run(&["upload", &file, "--json", "--url", &service.url()]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let sent = parts.lock().unwrap().concat();
    assert_eq!(
        zstd::decode_all(&*sent).unwrap(),
        std::fs::read(&file).unwrap()
    );
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let uploaded = &json["files"][0];
    assert_eq!(uploaded["sent_bytes"], sent.len());
    assert_eq!(uploaded["state"], "pending");
}

/// Uploads three files to a service that signs so many parts in a response, and checks that it has
/// all of them.
fn upload_three_in_parts(signatures: usize, counting: Counting) {
    let (service, files) = signing::start(signatures, counting);
    let folder = tempfile::tempdir().unwrap();
    let names = ["a.debug", "b.debug", "c.debug"];
    for name in names {
        std::fs::copy(fixture("elf/crash.debug"), folder.path().join(name)).unwrap();
    }
    let path = folder.path().display().to_string();
    let ended = run(&["upload", &path, "--json", "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let files = files.lock().unwrap();
    let sent: Vec<&String> = files.joined.keys().collect();
    assert_eq!(sent, names);
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    let whole = std::fs::read(fixture("elf/crash.debug")).unwrap();
    let uploaded = json["files"].as_array().unwrap();
    for (sent, file) in files.joined.values().zip(uploaded) {
        assert_eq!(zstd::decode_all(&**sent).unwrap(), whole);
        assert_eq!(file["sent_bytes"], sent.len());
        assert_eq!(file["state"], "pending");
    }
}

#[test]
fn a_file_is_sent_although_the_files_before_it_used_up_the_signatures() {
    upload_three_in_parts(4, Counting::All);
}

#[test]
fn a_file_that_was_joined_is_not_sent_again_while_its_event_is_on_its_way() {
    upload_three_in_parts(3, Counting::Lacking);
}

#[test]
fn a_file_of_which_the_service_signs_no_part_is_not_sent() {
    let (service, files) = signing::start(0, Counting::Lacking);
    let file = fixture("elf/crash.debug");
    let upload = |arguments: &[&str]| {
        let url = service.url();
        let all = [&["upload", &file, "--url", &url][..], arguments].concat();
        run(&all)
    };
    let ended = upload(&[]);
    assert_eq!(ended.code, 3, "{}", ended.out);
    assert!(ended.out.starts_with("not sent "), "{}", ended.out);
    assert!(ended.out.contains("\nnot sent 1, sent 0 (0 B), present 0,"));
    assert!(ended.err.contains("run the same command again"));
    let json: Value = serde_json::from_str(&upload(&["--json"]).out).unwrap();
    let uploaded = &json["files"][0];
    let states = [&uploaded["state"], &uploaded["sent_bytes"]];
    assert_eq!(states, [&json!("absent"), &Value::Null]);
    assert!(files.lock().unwrap().joined.is_empty());
}

#[test]
fn a_file_that_another_client_completes_meanwhile_stops_no_other_file() {
    let (service, files) = signing::start(4, Counting::Lacking);
    files.lock().unwrap().is_raced = true;
    let (first, second) = (fixture("elf/crash.debug"), fixture("elf/crash-arm64.debug"));
    let ended = run(&["upload", &first, &second, "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    assert!(ended.out.contains("sent 2 "), "{}", ended.out);
    assert_eq!(files.lock().unwrap().joined.len(), 2);
}

#[test]
fn an_upload_that_waits_also_waits_for_a_file_that_was_sent_before() {
    let explained = [present::with_cache("pending"), present::with_cache("used")];
    let service = present::start(["pending", "pending", "applied"], explained);
    let file = fixture("elf/crash.debug");
    let ended = run(&["upload", &file, "--wait", "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    assert!(ended.out.starts_with("present "), "{}", ended.out);
    assert!(ended.out.contains("  in use  "), "{}", ended.out);
}

#[test]
fn the_longest_time_to_wait_is_a_value_of_wait_or_an_option_of_its_own() {
    let service = present::start(["pending"], [present::with_cache("pending")]);
    let file = fixture("elf/crash.debug");
    for wait in [&["--wait=0"][..], &["--wait", "--wait-seconds", "0"]] {
        let url = service.url();
        let ended = run(&[&["upload", &file, "--url", &url][..], wait].concat());
        assert_eq!((ended.code, ended.err.as_str()), (4, ""), "{wait:?}");
    }
}

#[test]
fn what_only_a_newer_service_says_of_a_file_does_not_stop_an_upload() {
    let service = present::start(["applied"], [present::with_cache("frozen")]);
    let file = fixture("elf/crash.debug");
    let ended = run(&["upload", &file, "--wait", "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    assert!(ended.out.contains("  applied  "), "{}", ended.out);
}

#[test]
fn a_file_that_was_removed_meanwhile_is_not_in_use() {
    let unknown = json!({"detail": "no event of this key has arrived"});
    let gone = explained_upload("global/app.debug", "gone", &[]);
    for explained in [(StatusCode::NOT_FOUND, unknown), (StatusCode::OK, gone)] {
        let service = present::start(["applied"], [explained]);
        let file = fixture("elf/crash.debug");
        let upload = |format: &[&str]| {
            let url = service.url();
            let all = [&["upload", &file, "--wait", "--url", &url][..], format].concat();
            run(&all)
        };
        let ended = upload(&[]);
        assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{}", ended.out);
        assert!(ended.out.starts_with("removed "), "{}", ended.out);
        assert!(ended.out.contains("upload it again"), "{}", ended.out);
        assert!(ended.out.contains("removed 1, "), "{}", ended.out);
        let json: Value = serde_json::from_str(&upload(&["--json"]).out).unwrap();
        assert_eq!(json["files"][0]["state"], "removed");
    }
}

/// Uploads the debug files of a folder with a file for each end.
fn upload(service: &Service, arguments: &[&str]) -> crate::Ended {
    let folder = tempfile::tempdir().unwrap();
    for (name, from) in [
        ("applied.debug", "elf/crash.debug"),
        ("ignored.debug", "elf/crash-arm64"),
        ("pending.debug", "reports/asan.debug"),
    ] {
        std::fs::copy(fixture(from), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("broken.so"), b"\x7fELF and nothing else").unwrap();
    std::fs::write(folder.path().join("notes.txt"), b"text").unwrap();
    let path = folder.path().display().to_string();
    let url = service.url();
    let mut all = vec!["upload", &path, "--url", &url];
    all.extend(arguments);
    let mut ended = run(&all);
    for text in [&mut ended.out, &mut ended.err] {
        *text = text.replace(&path, "BUILD").replace(&url, "URL");
    }
    ended
}

#[test]
fn an_upload_is_printed_as_text_and_as_json() {
    let (service, _) = store::start(0);
    let mut table = String::new();
    for (arguments, code) in [
        (&["--dry-run"][..], 3),
        (&["--dry-run", "--json"], 3),
        (&["--wait", "--wait-seconds", "0", "--verbose"], 3),
        (&["--json"], 3),
    ] {
        let ended = upload(&service, arguments);
        assert_eq!(
            (ended.code, ended.err.as_str()),
            (code, ""),
            "{arguments:?}"
        );
        table.push_str(&format!("--- {}\n{}", arguments.join(" "), ended.out));
    }
    insta::assert_snapshot!("upload", table);
}

#[test]
fn the_exit_code_of_an_upload_says_what_became_of_the_files() {
    let (service, _) = store::start(0);
    let upload = |name: &str, arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::copy(fixture("elf/crash.debug"), &path).unwrap();
        let path = path.display().to_string();
        let url = service.url();
        let mut all = vec!["upload", &path, "--url", &url];
        all.extend(arguments);
        run(&all).code
    };
    let wait = ["--wait", "--wait-seconds", "0"];
    assert_eq!(upload("applied.debug", &wait), 0);
    assert_eq!(upload("pending.debug", &[]), 0);
    assert_eq!(upload("pending.debug", &wait), 4);
    assert_eq!(upload("ignored.debug", &wait), 3);
    // Of these, requests use nothing, a part, or another file of the same program.
    assert_eq!(upload("unused.debug", &wait), 3);
    assert_eq!(upload("partial.debug", &wait), 3);
    assert_eq!(upload("copy.debug", &wait), 0);
    assert_eq!(upload("building.debug", &wait), 4);
    assert_eq!(upload("unused.debug", &[]), 0);
    assert_eq!(run(&["upload", "absent", "--url", &service.url()]).code, 1);
    assert_eq!(run(&["upload", "--url", &service.url()]).code, 2);
}

#[test]
fn a_file_that_requests_do_not_use_is_listed_with_the_reason() {
    let (service, _) = store::start(0);
    let folder = tempfile::tempdir().unwrap();
    for name in ["copy", "partial", "unused"] {
        let path = folder.path().join(name).with_extension("debug");
        std::fs::copy(fixture("elf/crash.debug"), path).unwrap();
    }
    let path = folder.path().display().to_string();
    let url = service.url();
    let ended = run(&["upload", &path, "--wait", "--url", &url]);
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{}", ended.out);
    let lines: Vec<&str> = ended.out.lines().collect();
    let [copy, partial, unused, summary] = lines[..] else {
        panic!("{}", ended.out);
    };
    assert!(copy.starts_with("sent "), "{copy}");
    assert!(copy.contains("not needed, global/1/firmware.elf of the same program is in use"));
    assert!(partial.starts_with("sent "), "{partial}");
    assert!(partial.contains("in use in part: its DWARF is damaged; do this"));
    assert!(unused.starts_with("unused "), "{unused}");
    assert!(unused.contains(": it is not used: global/1/firmware.elf is; do this"));
    assert!(
        summary.contains("ignored 0, unused 1, skipped 0"),
        "{summary}"
    );
    let json = run(&["upload", &path, "--wait", "--json", "--url", &url]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let files = json["files"].as_array().unwrap();
    let states: Vec<_> = files.iter().map(|file| &file["state"]).collect();
    assert_eq!(states, ["applied", "in_part", "unused"]);
    assert_eq!(files[1]["reason"], "its DWARF is damaged; do this");
}

/// The time for which an instance of the service may know no file for a module (docs/protocol.md).
const REMEMBERED: Duration = Duration::from_secs(2);

#[test]
fn an_upload_that_waits_ends_when_no_instance_remembers_that_there_was_no_file() {
    let (service, _) = store::start(0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("applied.debug");
    std::fs::copy(fixture("elf/crash.debug"), &path).unwrap();
    let path = path.display().to_string();
    let began = Instant::now();
    let ended = run(&["upload", &path, "--wait", "--url", &service.url()]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let took = began.elapsed();
    assert!(took >= REMEMBERED, "{took:?}");
}

#[test]
fn four_files_are_sent_at_a_time() {
    let (service, stored) = store::start_for(4);
    let folder = tempfile::tempdir().unwrap();
    for number in 0..8 {
        let path = folder.path().join(format!("applied.{number}.debug"));
        std::fs::copy(fixture("elf/crash.debug"), path).unwrap();
    }
    let path = folder.path().display().to_string();
    let ended = run(&["upload", &path, "--url", &service.url()]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let stored = stored.lock().unwrap();
    assert_eq!((stored.files.len(), stored.most_at_once), (8, 4));
}

#[test]
fn what_the_store_refuses_for_a_moment_is_sent_again() {
    let (service, stored) = store::start(1);
    let file = fixture("elf/crash.debug");
    let ended = run(&["upload", &file, "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    assert_eq!(stored.lock().unwrap().attempts, 2);
    assert_eq!(stored.lock().unwrap().files.len(), 1);
}

#[test]
fn a_file_that_was_named_is_listed_with_the_reason_if_it_is_skipped() {
    let (service, _) = store::start(0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.so");
    std::fs::write(&path, b"\x7fELF and nothing else").unwrap();
    let name = path.display().to_string();
    let of = |argument: &str| run(&["upload", argument, "--url", &service.url()]).out;
    let named = of(&name);
    assert!(
        named.starts_with(&format!("skipped    {name}: ")),
        "{named}"
    );
    assert!(!named.contains("--verbose"), "{named}");
    let walked = of(&folder.path().display().to_string());
    assert!(!walked.contains(&name), "{walked}");
    assert!(
        walked.contains("--verbose lists the skipped files"),
        "{walked}"
    );
}

#[test]
fn a_debug_file_without_any_id_is_skipped_for_its_true_reason() {
    let (service, _) = store::start(0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.debug");
    std::fs::write(&path, debug_file_without_id()).unwrap();
    let path = path.display().to_string();
    let ended = run(&["upload", &path, "--url", &service.url()]);
    assert_eq!(ended.code, 3, "{}", ended.err);
    let reason = "it has neither a debug id nor a code id, by which it could be looked up";
    let skipped = format!("skipped    {path}: {reason}");
    assert!(ended.out.starts_with(&skipped), "{}", ended.out);
}

#[test]
fn a_file_whose_name_the_service_refuses_is_skipped_and_the_others_are_sent() {
    let (service, stored) = store::start(0);
    let folder = tempfile::tempdir().unwrap();
    for name in ["applied.debug", "applied\u{7}.debug"] {
        std::fs::copy(fixture("elf/crash.debug"), folder.path().join(name)).unwrap();
    }
    let path = folder.path().display().to_string();
    let ended = run(&["upload", &path, "--verbose", "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{}", ended.out);
    let skipped = ended.out.lines().find(|line| line.starts_with("skipped "));
    let skipped = skipped.unwrap_or_default();
    assert!(skipped.contains("applied\u{fffd}.debug: "), "{}", ended.out);
    assert!(skipped.contains("control characters"), "{}", ended.out);
    let files = stored
        .lock()
        .unwrap()
        .files
        .keys()
        .cloned()
        .collect::<Vec<_>>();
    assert_eq!(files, ["applied.debug"]);
}
