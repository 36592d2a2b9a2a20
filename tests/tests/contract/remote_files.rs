//! Tests of the adapter to files on other hosts, against hosts that behave well and hosts that do
//! not.

use symdepot::adapters::http::HttpRemoteFiles;
use symdepot::ports::{RemoteFailure, RemoteFile, RemoteFiles, RemotePart};

use crate::script::{Script, answer};

/// Reads ten bytes from a host with scripted responses; also returns the requests, in lower case.
async fn read(answers: &[String]) -> (Result<RemotePart, RemoteFailure>, Vec<String>) {
    let answers = answers.iter().map(|answer| answer.clone().into_bytes());
    read_bytes(answers.collect()).await
}

/// Likewise, from responses that need not be text.
async fn read_bytes(answers: Vec<Vec<u8>>) -> (Result<RemotePart, RemoteFailure>, Vec<String>) {
    let script = Script::play_bytes(answers).await;
    let file = RemoteFile {
        url: format!("{}/a.dmp?sig=1", script.url).parse().unwrap(),
        token: Some("sesame".to_owned()),
    };
    assert!(!format!("{file:?}").contains("sesame"));
    let read = HttpRemoteFiles::new(true).read(&file, 5..15, 100).await;
    let asked = script.asked().await.into_iter().map(|request| request.head);
    (read, asked.collect())
}

#[tokio::test]
async fn a_part_is_requested_with_the_token() {
    let headers = "content-range: bytes 5-14/1000\r\n";
    let (part, asked) = read(&[answer("206 Partial Content", headers, 10, "0123456789")]).await;
    let part = part.unwrap();
    assert_eq!(
        (part.start, part.length, &*part.bytes),
        (5, 1000, &b"0123456789"[..])
    );
    for header in [
        "get /a.dmp?sig=1 ",
        "range: bytes=5-14",
        "authorization: bearer sesame",
    ] {
        assert!(asked[0].contains(header), "{asked:?}");
    }
}

#[tokio::test]
async fn a_host_without_ranges_sends_a_small_file_from_its_beginning() {
    let (part, _) = read(&[answer("200 OK", "", 4, "file")]).await;
    let part = part.unwrap();
    assert_eq!(
        (part.start, part.length, &*part.bytes),
        (0, 4, &b"file"[..])
    );
    let (part, _) = read(&[answer("200 OK", "", 101, &"x".repeat(101))]).await;
    assert!(matches!(part, Err(RemoteFailure::Absent(_))), "{part:?}");
}

/// The encodings of files, and how such a file begins.
const COMPRESSED: [(&str, &[u8; 10]); 3] = [
    ("gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03"),
    ("x-gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03"),
    ("zstd", b"\x28\xb5\x2f\xfd\x04\x58\x01\0\0\x61"),
];

#[tokio::test]
async fn a_file_that_is_stored_compressed_is_read_as_it_is_stored_in_parts_or_as_a_whole() {
    for (encoding, body) in COMPRESSED {
        let range = "content-range: bytes 5-14/1000\r\n";
        for (status, range, expected) in [
            ("206 Partial Content", range, (5, 1000)),
            ("200 OK", "", (0, 10)),
        ] {
            let headers = format!("{range}content-encoding: {encoding}\r\n");
            let head = answer(status, &headers, body.len(), "").into_bytes();
            let (part, _) = read_bytes(vec![[head, body.to_vec()].concat()]).await;
            let part = part.unwrap();
            assert_eq!((part.start, part.length), expected, "{encoding} {status}");
            assert_eq!(part.bytes, &body[..], "{encoding} {status}");
        }
    }
}

#[tokio::test]
async fn a_file_in_an_encoding_that_its_reader_does_not_know_is_refused_by_name() {
    for (encoding, unknown) in [("br", "br"), ("deflate", "deflate"), ("gzip, br", "br")] {
        let headers = format!("content-encoding: {encoding}\r\n");
        let (part, asked) = read(&[answer("200 OK", &headers, 4, "file")]).await;
        let Err(RemoteFailure::Absent(detail)) = part else {
            panic!("{part:?}");
        };
        assert!(
            detail.contains(&format!("Content-Encoding {unknown}:")),
            "{detail}"
        );
        assert_eq!(asked.len(), 1);
    }
}

#[tokio::test]
async fn more_bytes_than_requested_are_not_read() {
    let headers = "content-range: bytes 5-14/1000\r\n";
    let (part, _) = read(&[answer("206 Partial Content", headers, 11, "0123456789a")]).await;
    assert!(matches!(part, Err(RemoteFailure::Absent(_))), "{part:?}");
}

#[tokio::test]
async fn a_part_that_begins_elsewhere_than_the_requested_one_is_refused() {
    for range in [
        "6-15/1000",
        "18446744073709551605-18446744073709551614/18446744073709551615",
    ] {
        let headers = format!("content-range: bytes {range}\r\n");
        let sent = answer("206 Partial Content", &headers, 10, "0123456789");
        let (part, asked) = read(&[sent]).await;
        assert!(matches!(part, Err(RemoteFailure::Absent(_))), "{part:?}");
        assert_eq!(asked.len(), 1);
    }
}

#[tokio::test]
async fn a_redirect_of_an_attachment_is_not_followed() {
    let elsewhere = Script::play(vec![answer("200 OK", "", 4, "file")]).await;
    let headers = format!("location: {}/a\r\n", elsewhere.url);
    let (part, asked) = read(&[answer("302 Found", &headers, 0, "")]).await;
    let Err(RemoteFailure::Absent(detail)) = part else {
        panic!("{part:?}");
    };
    assert!(detail.contains("redirects"), "{detail}");
    assert!(
        !detail.contains("sig") && !detail.contains(&elsewhere.url),
        "{detail}"
    );
    assert_eq!(asked.len(), 1);
}

#[tokio::test]
async fn a_host_that_fails_is_asked_three_times_and_one_that_refuses_once() {
    let failing = answer("503 Service Unavailable", "", 0, "");
    let (part, asked) = read(&[failing.clone(), failing.clone(), failing]).await;
    assert!(
        matches!(part, Err(RemoteFailure::Unreachable(_))),
        "{part:?}"
    );
    assert_eq!(asked.len(), 3);
    for status in ["401 Unauthorized", "403 Forbidden", "404 Not Found"] {
        let (part, asked) = read(&[answer(status, "", 0, "")]).await;
        assert!(matches!(part, Err(RemoteFailure::Absent(_))), "{part:?}");
        assert_eq!(asked.len(), 1);
    }
}
