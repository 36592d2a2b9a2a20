//! Crash files that do not fit into a request.

use std::fs::File;
use std::io::Write;

use crate::service::store;
use crate::{APPLE, noise, run, run_with};

/// The size from which a crash file is stored, whatever it is compressed to.
const STORED_BYTES: u64 = 64 << 20;

#[test]
fn a_crash_file_is_stored_uncompressed_and_again_if_the_store_refuses_for_a_moment() {
    let (service, stored) = store::start(2);
    let dump = [b"MDMP".to_vec(), noise(7 << 20)].concat();
    let ended = run_with(&dump, &["symbolicate", "-", "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    assert!(ended.out.contains("of_the_stored_dump"), "{}", ended.out);
    let stored = stored.lock().unwrap();
    assert_eq!(stored.attempts, 3);
    assert!(stored.files["dump"] == dump);
    let reference = format!("attachment:0/{}", dump.len());
    assert!(stored.forms[0].contains(&reference), "{:?}", stored.forms);
}

#[test]
fn a_crash_file_is_stored_again_if_the_answer_about_it_is_lost() {
    let (service, stored) = store::start(0);
    stored.lock().unwrap().lost_answers = 1;
    let dump = [b"MDMP".to_vec(), noise(7 << 20)].concat();
    let ended = run_with(&dump, &["symbolicate", "-", "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let stored = stored.lock().unwrap();
    // The second form refers to the file that is gone.
    assert_eq!((stored.attempts, stored.forms.len()), (2, 3));
}

#[test]
fn the_size_alone_decides_that_a_large_crash_file_is_stored() {
    let (service, stored) = store::start(0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeros.dmp");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"MDMP").unwrap();
    file.set_len(STORED_BYTES + 1).unwrap();
    let path = path.display().to_string();
    let ended = run(&["symbolicate", &path, "--url", &service.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let stored = stored.lock().unwrap();
    assert_eq!(stored.files["dump"].len() as u64, STORED_BYTES + 1);
    assert_eq!(stored.forms.len(), 1);
}

#[test]
fn a_large_apple_report_is_stored_compressed() {
    let (service, stored) = store::start(0);
    // Such text takes six bits a character when it is compressed. A report may have 8 MiB.
    let letters: Vec<char> = ('0'..='9').chain('A'..='Z').chain('a'..='z').collect();
    let letters = |bytes: &[u8]| -> String {
        let letters = bytes
            .iter()
            .map(|byte| letters[usize::from(*byte) % letters.len()]);
        letters.chain(['\n']).collect()
    };
    let notes: String = noise(7 << 20).chunks(80).map(letters).collect();
    let information = format!("Application Specific Information:\n{notes}\nThread 0 Crashed:\n");
    let report = APPLE.replace("Thread 0 Crashed:\n", &information);
    let ended = run_with(
        report.as_bytes(),
        &["symbolicate", "-", "--url", &service.url()],
    );
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{}", ended.out);
    assert!(ended.out.contains("of_the_stored_dump"), "{}", ended.out);
    let stored = stored.lock().unwrap();
    let sent = &stored.files["dump"];
    assert!(sent.len() < report.len(), "{}", sent.len());
    assert!(zstd::decode_all(&**sent).unwrap() == report.as_bytes());
    let reference = format!("attachment:0/{}", sent.len());
    assert_eq!(stored.forms.len(), 1);
    assert!(stored.forms[0].contains(&reference), "{:?}", stored.forms);
}

#[test]
fn what_the_store_refuses_is_an_error_with_its_reason() {
    let (service, stored) = store::start(usize::MAX);
    let dump = [b"MDMP".to_vec(), noise(5 << 20)].concat();
    let ended = run_with(&dump, &["symbolicate", "-", "--url", &service.url()]);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    let expected = "symdepot: standard input was not sent: the store answered 503 Service Unavailable: Reduce your rate\n";
    assert_eq!(ended.err, expected);
    assert_eq!(stored.lock().unwrap().attempts, 4);
}
