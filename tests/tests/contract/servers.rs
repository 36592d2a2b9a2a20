//! Tests of the adapter to symbol servers, against servers that behave well and servers that do
//! not.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::TryStreamExt;
use symdepot::adapters::http::HttpServers;
use symdepot::domain::{Cause, HttpSource, Location, SourceKey};
use symdepot::ports::{Concerns, FileQuery, IncomingDif, ServerFailure, SymbolServers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::script::{Script, answer};

const SECRET: &str = "bearer opensesame";

fn source(url: &str) -> HttpSource {
    let json = format!(
        r#"{{"type": "http", "id": "a", "url": "{url}", "headers": {{"authorization": "{SECRET}"}}}}"#
    );
    serde_json::from_str(&json).unwrap()
}

/// Fetches a whole file from a server with scripted responses; also returns the requests, in lower
/// case.
async fn fetch(answers: &[String]) -> (Result<Vec<u8>, ServerFailure>, Vec<String>) {
    let script = Script::play(answers.to_vec()).await;
    let fetched = fetch_from(&HttpServers::new(true), &script.url).await;
    let asked = script.asked().await.into_iter().map(|request| request.head);
    (fetched, asked.collect())
}

async fn fetch_from(servers: &HttpServers, url: &str) -> Result<Vec<u8>, ServerFailure> {
    let location = Location::new(format!("{url}/ab/cd.debug"));
    let download = get(servers, &source(url), &location).await?;
    let pieces: Vec<_> = download.body.try_collect().await?;
    Ok(pieces.concat())
}

/// Requests a location from a configured source.
async fn get(
    servers: &HttpServers,
    source: &HttpSource,
    location: &Location,
) -> Result<IncomingDif, ServerFailure> {
    let key = source.configured_key();
    get_by_key(servers, &key, source, location).await
}

async fn get_by_key(
    servers: &HttpServers,
    key: &SourceKey,
    source: &HttpSource,
    location: &Location,
) -> Result<IncomingDif, ServerFailure> {
    let query = FileQuery {
        key,
        source,
        location,
        checksum: None,
    };
    servers.get(query).await
}

/// Returns a source with additional fields.
fn source_with(url: &str, more: &str) -> HttpSource {
    let json = format!(r#"{{"type": "http", "id": "a", "url": "{url}"{more}}}"#);
    serde_json::from_str(&json).unwrap()
}

const PRIVATE: &str = r#", "is_private": true"#;

fn redirect(to: &str) -> String {
    answer("302 Found", &format!("location: {to}\r\n"), 0, "")
}

#[tokio::test]
async fn a_file_is_fetched_with_the_headers_of_its_source() {
    let script = Script::play(vec![answer("200 OK", "etag: \"e\"\r\n", 4, "file")]).await;
    let servers = HttpServers::new(true);
    let location = Location::new(format!("{}/ab/cd%20e.debug", script.url));
    let download = get(&servers, &source(&script.url), &location)
        .await
        .unwrap();
    assert_eq!((download.etag.as_str(), download.size), ("\"e\"", Some(4)));
    let pieces: Vec<_> = download.body.try_collect().await.unwrap();
    assert_eq!(pieces.concat(), b"file");
    let head = &script.asked().await[0].head;
    assert!(head.starts_with("get /ab/cd%20e.debug http/1.1"), "{head}");
    assert!(head.contains(&format!("authorization: {SECRET}")), "{head}");
    assert!(head.contains("accept-encoding: identity"), "{head}");
}

#[tokio::test]
async fn a_file_without_an_etag_is_identified_by_its_date_and_length() {
    let date = "Wed, 21 Oct 2015 07:28:00 GMT";
    let headers = format!("last-modified: {date}\r\n");
    let script = Script::play(vec![answer("200 OK", &headers, 4, "file")]).await;
    let servers = HttpServers::new(true);
    let location = Location::new(format!("{}/a", script.url));
    let download = get(&servers, &source(&script.url), &location)
        .await
        .unwrap();
    assert_eq!(download.etag, format!("{date}/4"));
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_is_not_an_absent_file() {
    for (code, expected) in [
        ("NoSuchKey", Cause::NotFound),
        ("NoSuchBucket", Cause::DownloadFailed),
    ] {
        let body = format!("<Error><Code>{code}</Code><Message>scripted</Message></Error>");
        let headers = "content-type: application/xml\r\n";
        let script = Script::play(vec![answer("404 Not Found", headers, body.len(), &body)]).await;
        let json = format!(
            r#"{{"type": "s3", "id": "a", "bucket": "misspelled", "region": ["us-east-1", "{}"]}}"#,
            script.url
        );
        let source = serde_json::from_str(&json).unwrap();
        let location = Location::new("s3://misspelled/ab/cd.debug");
        let got = get(&HttpServers::new(true), &source, &location).await;
        let missing = got.err().unwrap().missing;
        assert_eq!(missing.cause, expected, "{missing:?}");
        let names_it = missing
            .detail
            .contains("the bucket misspelled does not exist");
        assert_eq!(names_it, code == "NoSuchBucket", "{missing:?}");
        assert_eq!(script.asked().await.len(), 1);
    }
}

#[tokio::test]
async fn a_failing_server_is_called_three_times_and_a_responding_one_once() {
    let failing = answer("500 Internal Server Error", "", 0, "");
    let (fetched, asked) = fetch(&[failing.clone(), failing.clone(), failing.clone()]).await;
    assert_eq!(
        (fetched.unwrap_err().missing.cause, asked.len()),
        (Cause::DownloadFailed, 3)
    );
    let (fetched, asked) = fetch(&[failing.clone(), answer("200 OK", "", 2, "ok")]).await;
    assert_eq!((fetched.unwrap(), asked.len()), (b"ok".to_vec(), 2));
    for (status, cause) in [
        ("404 Not Found", Cause::NotFound),
        ("401 Unauthorized", Cause::PermissionDenied),
        ("403 Forbidden", Cause::PermissionDenied),
    ] {
        let (fetched, asked) = fetch(&[answer(status, "", 0, "")]).await;
        assert_eq!(
            (fetched.unwrap_err().missing.cause, asked.len()),
            (cause, 1),
            "{status}"
        );
    }
    let busy = answer("503 Service Unavailable", "retry-after: 120\r\n", 0, "");
    let (fetched, asked) = fetch(&[busy]).await;
    let retry_after = fetched.unwrap_err().retry_after.unwrap();
    assert_eq!((retry_after.as_secs(), asked.len()), (120, 1));
}

#[tokio::test]
async fn a_body_shorter_than_announced_is_a_failed_download() {
    let (fetched, _) = fetch(&[answer("200 OK", "", 400, "only this")]).await;
    assert_eq!(fetched.unwrap_err().missing.cause, Cause::DownloadFailed);
}

#[tokio::test]
async fn a_redirect_to_another_server_is_followed_without_credentials() {
    let elsewhere = Script::play(vec![answer("200 OK", "", 4, "file")]).await;
    let begin = Script::play(vec![
        redirect("/there"),
        redirect(&format!("{}/x", elsewhere.url)),
    ])
    .await;
    let fetched = fetch_from(&HttpServers::new(true), &begin.url).await;
    assert_eq!(fetched.unwrap(), b"file");
    let asked = begin.asked().await;
    assert!(
        asked[1].head.starts_with("get /there ") && asked[1].head.contains(SECRET),
        "{asked:?}"
    );
    let head = &elsewhere.asked().await[0].head;
    assert!(!head.contains("opensesame"), "{head}");
}

#[tokio::test]
async fn redirect_loops_and_invalid_targets_fail() {
    let (fetched, asked) = fetch(&vec![redirect("/again"); 10]).await;
    assert_eq!(
        (fetched.unwrap_err().missing.cause, asked.len()),
        (Cause::DownloadFailed, 6)
    );
    for to in ["file:///etc/passwd", "", "http://[broken"] {
        let (fetched, _) = fetch(&vec![redirect(to); 3]).await;
        let missing = fetched.unwrap_err().missing;
        assert_eq!(missing.cause, Cause::DownloadFailed, "{to:?}: {missing:?}");
    }
}

#[tokio::test]
async fn private_addresses_are_not_contacted_unless_allowed() {
    let servers = HttpServers::new(false);
    let private = Script::play(vec![answer("200 OK", "", 4, "file")]).await;
    let port = private.url.rsplit(':').next().unwrap().to_owned();
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
    ] {
        let fetched = fetch_from(&servers, &format!("http://{host}:{port}")).await;
        let missing = fetched.unwrap_err().missing;
        assert_eq!(
            missing.cause,
            Cause::PermissionDenied,
            "{host}: {missing:?}"
        );
        assert!(
            missing.detail.contains(r#""is_private": true"#),
            "{missing:?}"
        );
    }
    assert!(private.asked().await.is_empty());
}

#[tokio::test]
async fn an_unreachable_server_is_a_failed_download() {
    let script = Script::play(Vec::new()).await;
    let url = script.url.clone();
    drop(script);
    let fetched = fetch_from(&HttpServers::new(true), &url).await;
    assert_eq!(fetched.unwrap_err().missing.cause, Cause::DownloadFailed);
    let fetched = fetch_from(&HttpServers::new(true), "http://nowhere.invalid").await;
    assert_eq!(fetched.unwrap_err().missing.cause, Cause::DownloadFailed);
}

/// Returns a source with the layout of Microsoft's symbol servers.
fn symsrv(url: &str) -> HttpSource {
    let json = format!(
        r#"{{"type": "http", "id": "a", "url": "{url}/s", "layout": {{"type": "symsrv"}},
            "headers": {{"authorization": "{SECRET}"}}}}"#
    );
    serde_json::from_str(&json).unwrap()
}

async fn fetch_symsrv(
    servers: &HttpServers,
    url: &str,
    file: &str,
) -> Result<Vec<u8>, ServerFailure> {
    let location = Location::new(format!("{url}/s/app.pdb/1/{file}"));
    let download = get(servers, &symsrv(url), &location).await?;
    let pieces: Vec<_> = download.body.try_collect().await?;
    Ok(pieces.concat())
}

fn first_lines(asked: Vec<crate::script::Request>) -> Vec<String> {
    let line = |request: crate::script::Request| request.head.lines().next().unwrap().to_owned();
    asked.into_iter().map(line).collect()
}

#[tokio::test]
async fn the_folder_tiers_of_a_server_are_requested_once() {
    let absent = answer("404 Not Found", "", 0, "");
    let file = || answer("200 OK", "", 4, "file");
    for (index2, tier) in [(absent.clone(), ""), (file(), "ap/")] {
        let script = Script::play(vec![index2, file(), absent.clone()]).await;
        let servers = HttpServers::new(true);
        let found = fetch_symsrv(&servers, &script.url, "app.pdb").await;
        assert_eq!(found.unwrap(), b"file");
        let found = fetch_symsrv(&servers, &script.url, "app.pd_").await;
        assert_eq!(found.unwrap_err().missing.cause, Cause::NotFound);
        assert_eq!(
            first_lines(script.asked().await),
            [
                "get /s/index2.txt http/1.1".to_owned(),
                format!("get /s/{tier}app.pdb/1/app.pdb http/1.1"),
                format!("get /s/{tier}app.pdb/1/app.pd_ http/1.1"),
            ]
        );
    }
    // A failing server reveals neither the layout of its folders nor whether the file exists.
    let script = Script::play(vec![answer("500 Oh", "", 0, ""); 3]).await;
    let failed = fetch_symsrv(&HttpServers::new(true), &script.url, "app.pdb").await;
    assert_eq!(failed.unwrap_err().missing.cause, Cause::DownloadFailed);
}

#[tokio::test]
async fn a_pointer_to_another_server_is_followed_without_credentials() {
    let elsewhere = Script::play(vec![answer("200 OK", "", 4, "file")]).await;
    let pointer = format!("PATH:{}/kept/app.pdb\r\n", elsewhere.url);
    let absent = answer("404 Not Found", "", 0, "");
    let to = answer(
        "200 OK",
        "content-type: text/plain\r\n",
        pointer.len(),
        &pointer,
    );
    let script = Script::play(vec![absent, to]).await;
    let found = fetch_symsrv(&HttpServers::new(true), &script.url, "file.ptr").await;
    assert_eq!(found.unwrap(), b"file");
    let asked = script.asked().await;
    assert!(asked[1].head.contains(SECRET), "{asked:?}");
    let head = &elsewhere.asked().await[0].head;
    assert!(head.starts_with("get /kept/app.pdb "), "{head}");
    assert!(!head.contains("opensesame"), "{head}");
}

#[tokio::test]
async fn an_unusable_pointer_fails_with_a_reason() {
    let endless = "x".repeat(20_000);
    for (text, cause, said) in [
        (
            "MSG: not kept",
            Cause::NotFound,
            "a message instead of the file",
        ),
        (
            "PATH:\\\\server\\share\\app.pdb",
            Cause::NotFound,
            "not an http or https address",
        ),
        (
            "PATH:file:///etc/passwd",
            Cause::NotFound,
            "not an http or https address",
        ),
        ("", Cause::Malformed, "cannot be parsed"),
        (
            endless.as_str(),
            Cause::Malformed,
            "longer than 16384 bytes",
        ),
    ] {
        let absent = answer("404 Not Found", "", 0, "");
        let script = Script::play(vec![absent, answer("200 OK", "", text.len(), text)]).await;
        let failed = fetch_symsrv(&HttpServers::new(true), &script.url, "file.ptr").await;
        let missing = failed.unwrap_err().missing;
        assert_eq!(missing.cause, cause, "{missing:?}");
        assert!(missing.detail.contains(said), "{missing:?}");
    }
}

/// A private source may be contacted at its own address, but it cannot redirect to another private
/// address.
#[tokio::test]
async fn a_private_source_cannot_redirect_to_another_private_address() {
    let servers = HttpServers::new(false);
    let fetch = async |url: &str, more: &str, is_defined: bool| {
        let source = source_with(url, more);
        let key = if is_defined {
            source.defined_key("hash".to_owned())
        } else {
            source.configured_key()
        };
        let location = Location::new(format!("{url}/ab/cd.debug"));
        get_by_key(&servers, &key, &source, &location).await
    };
    let file = || answer("200 OK", "", 4, "file");

    let own = Script::play(vec![file()]).await;
    assert!(fetch(&own.url, PRIVATE, false).await.is_ok());
    assert_eq!(own.asked().await.len(), 1);

    // By name: the source itself is on loopback.
    let own = Script::play(vec![redirect("/there"), file()]).await;
    let by_name = own.url.replace("127.0.0.1", "localhost");
    assert!(fetch(&by_name, PRIVATE, false).await.is_ok());

    // A source that a request defines is not private, even if it says so; neither is a configured
    // source that does not say so.
    let own = Script::play(vec![file(), file()]).await;
    for (more, is_defined) in [(PRIVATE, true), ("", false)] {
        let refused = fetch(&own.url, more, is_defined).await.unwrap_err();
        assert_eq!(refused.missing.cause, Cause::PermissionDenied);
    }
    assert_eq!(own.asked().await.len(), 0);

    let elsewhere = Script::play(vec![file()]).await;
    let own = Script::play(vec![redirect(&format!("{}/x?token=sesame", elsewhere.url))]).await;
    let refused = fetch(&own.url, PRIVATE, false).await.unwrap_err();
    assert_eq!(refused.missing.cause, Cause::PermissionDenied);
    assert_eq!(elsewhere.asked().await.len(), 0);
}

/// A pointer file of a private source cannot lead to another private address.
#[tokio::test]
async fn a_pointer_of_a_private_source_cannot_lead_to_another_private_address() {
    let elsewhere = Script::play(vec![answer("200 OK", "", 4, "file")]).await;
    let pointer = format!("PATH:{}/kept/app.pdb", elsewhere.url);
    let script = Script::play(vec![
        answer("404 Not Found", "", 0, ""),
        answer("200 OK", "", pointer.len(), &pointer),
    ])
    .await;
    let more = r#", "is_private": true, "layout": {"type": "symsrv"}"#;
    let source = source_with(&format!("{}/s", script.url), more);
    let location = Location::new(format!("{}/s/app.pdb/1/file.ptr", script.url));
    let refused = get(&HttpServers::new(false), &source, &location).await;
    assert_eq!(refused.unwrap_err().missing.cause, Cause::PermissionDenied);
    assert_eq!(elsewhere.asked().await.len(), 0);
}

/// The query of a source may contain a secret: it is not sent to redirect targets, and errors do
/// not contain it.
#[tokio::test]
async fn the_query_of_a_source_is_sent_only_to_it_and_never_reported() {
    let elsewhere = Script::play(vec![answer("500 Oh", "", 0, "")]).await;
    let own = Script::play(vec![
        redirect("/there?signed=opensesame"),
        redirect(&format!("{}/x?signed=opensesame", elsewhere.url)),
        redirect("file:///etc/passwd?signed=opensesame"),
    ])
    .await;
    let source = source_with(&format!("{}/s?sv=1&sig=opensesame", own.url), "");
    let location = Location::new(format!("{}/s/ab/cd.debug", own.url));
    let failed = get(&HttpServers::new(true), &source, &location).await;
    let detail = failed.unwrap_err().missing.detail;
    assert!(!detail.contains("sesame"), "{detail}");
    let heads = |asked: Vec<crate::script::Request>| first_lines(asked);
    assert_eq!(
        heads(own.asked().await),
        [
            "get /s/ab/cd.debug?sv=1&sig=opensesame http/1.1",
            "get /there?signed=opensesame http/1.1",
            "get /s/ab/cd.debug?sv=1&sig=opensesame http/1.1",
        ]
    );
    assert_eq!(
        heads(elsewhere.asked().await),
        ["get /x?signed=opensesame http/1.1"]
    );
}

/// All requests that a layout needs contain the query of the source.
#[tokio::test]
async fn the_query_of_a_source_is_sent_with_every_request_of_its_layout() {
    let pointer = answer("200 OK", "", 12, "PATH:nowhere");
    let script = Script::play(vec![answer("200 OK", "", 2, "ok"), pointer]).await;
    let more = r#", "layout": {"type": "symsrv"}"#;
    let source = source_with(&format!("{}/s?sig=opensesame", script.url), more);
    let location = Location::new(format!("{}/s/app.pdb/1/file.ptr", script.url));
    let failed = get(&HttpServers::new(true), &source, &location).await;
    assert!(failed.is_err());
    assert_eq!(
        first_lines(script.asked().await),
        [
            "get /s/index2.txt?sig=opensesame http/1.1",
            "get /s/ap/app.pdb/1/file.ptr?sig=opensesame http/1.1",
        ]
    );
}

/// A location outside the URL of its source is rejected without a request.
#[tokio::test]
async fn a_location_outside_its_source_is_not_requested() {
    let script = Script::play(vec![answer("200 OK", "", 4, "file")]).await;
    let source = source_with(&format!("{}/s/", script.url), "");
    for location in [
        format!("{}/other", script.url),
        format!("{}/s/../other", script.url),
        format!("{}/s/a?b=c", script.url),
        "http://127.0.0.1:9001/2018-06-01/runtime/invocation/next".to_owned(),
        "no address".to_owned(),
    ] {
        let refused = get(&HttpServers::new(true), &source, &Location::new(&location)).await;
        let missing = refused.unwrap_err().missing;
        assert!(
            missing.detail.contains("not below the address"),
            "{location}: {missing:?}"
        );
    }
    assert_eq!(script.asked().await.len(), 0);
}

/// Only an unreachable server or a `Retry-After` concerns all locations of a source. Every other
/// failure concerns one location.
#[tokio::test]
async fn only_an_unreachable_or_throttling_server_concerns_all_locations() {
    let concerns = async |answers: Vec<String>| {
        let script = Script::play(answers).await;
        let failed = fetch_from(&HttpServers::new(true), &script.url).await;
        failed.unwrap_err().concerns
    };
    let failing = answer("500 Oh", "", 0, "");
    assert_eq!(concerns(vec![failing; 3]).await, Concerns::Location);
    let nothing = vec![String::new(); 3];
    assert_eq!(concerns(nothing).await, Concerns::Location);
    let short = vec![answer("200 OK", "", 400, "only this")];
    assert_eq!(concerns(short).await, Concerns::Location);
    let busy = answer("503 Oh", "retry-after: 7\r\n", 0, "");
    assert_eq!(concerns(vec![busy.clone()]).await, Concerns::Server);

    let gone = Script::play(Vec::new()).await.url.clone();
    let failed = fetch_from(&HttpServers::new(true), &gone).await;
    assert_eq!(failed.unwrap_err().concerns, Concerns::Server);
    let failed = fetch_from(&HttpServers::new(true), "http://nowhere.invalid").await;
    assert_eq!(failed.unwrap_err().concerns, Concerns::Server);

    // The target of a redirect is not the source.
    assert_eq!(concerns(vec![redirect(&gone); 3]).await, Concerns::Location);
    let other = Script::play(vec![busy]).await;
    assert_eq!(
        concerns(vec![redirect(&other.url)]).await,
        Concerns::Location
    );
}

/// Sends one response of any bytes.
async fn answering(head: String, body: Vec<u8>) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            connection.read_buf(&mut asked).await.unwrap();
        }
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.write_all(&body).await.unwrap();
        connection.shutdown().await.unwrap();
    });
    (url, serving)
}

/// Returns a text in each encoding that servers use although they were asked not to.
fn encoded(text: &[u8]) -> [(&'static str, Vec<u8>); 4] {
    let level = flate2::Compression::fast();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
    gzip.write_all(text).unwrap();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
    zlib.write_all(text).unwrap();
    let mut brotli = Vec::new();
    brotli::BrotliCompress(&mut &*text, &mut brotli, &Default::default()).unwrap();
    [
        ("gzip", gzip.finish().unwrap()),
        ("deflate", zlib.finish().unwrap()),
        ("br", brotli),
        ("zstd", zstd::encode_all(text, 3).unwrap()),
    ]
}

/// Some servers compress although they were asked not to.
#[tokio::test]
async fn an_encoded_response_is_decoded() {
    let text = b"a debug file, ".repeat(10_000);
    for (encoding, bytes) in encoded(&text) {
        let length = bytes.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {length}\r\n\r\n"
        );
        let (url, _serving) = answering(head, bytes).await;
        let fetched = fetch_from(&HttpServers::new(true), &url).await;
        assert!(fetched.unwrap() == text, "{encoding}");
    }
}

#[tokio::test]
async fn a_response_that_does_not_match_its_encoding_is_malformed() {
    for (encoding, mut bytes) in encoded(&b"a debug file, ".repeat(10_000)) {
        bytes.truncate(bytes.len() / 2);
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        let length = bytes.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {length}\r\n\r\n"
        );
        let (url, _serving) = answering(head, bytes).await;
        let failure = fetch_from(&HttpServers::new(true), &url).await.unwrap_err();
        assert_eq!(failure.missing.cause, Cause::Malformed, "{encoding}");
        let detail = &failure.missing.detail;
        assert!(detail.contains("Content-Encoding"), "{detail}");
    }
}

/// A body that expands without end is read only as far as its reader wants.
#[tokio::test]
async fn a_bomb_in_each_encoding_is_read_as_far_as_its_reader_wants() {
    const WANTED: usize = 1 << 20;
    for (encoding, bytes) in encoded(&vec![0; 64 << 20]) {
        let length = bytes.len();
        assert!(length < WANTED, "{encoding}");
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {length}\r\n\r\n"
        );
        let (url, _serving) = answering(head, bytes).await;
        let location = Location::new(format!("{url}/ab/cd.debug"));
        let mut download = get(&HttpServers::new(true), &source(&url), &location)
            .await
            .unwrap();
        // The length of what is sent says nothing about what it decodes to.
        assert_eq!(download.size, None, "{encoding}");
        let mut read = 0;
        while read < WANTED {
            let piece = download.body.try_next().await.unwrap().unwrap();
            assert!(piece.len() < WANTED, "{encoding}: {}", piece.len());
            read += piece.len();
        }
    }
}

/// Starts a server that keeps connections open and responds to each request on them; counts the
/// connections.
async fn keeping(connections: Arc<AtomicUsize>) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut open = JoinSet::new();
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            connections.fetch_add(1, Ordering::SeqCst);
            open.spawn(async move {
                let mut head = Vec::new();
                while let Ok(1..) = connection.read_buf(&mut head).await {
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        let file = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfile";
                        connection.write_all(file).await.unwrap();
                    }
                }
            });
        }
    });
    (url, serving)
}

/// A source that a request defines uses a new connection for each download.
#[tokio::test]
async fn a_source_defined_by_a_request_shares_no_connection() {
    let connections = Arc::new(AtomicUsize::new(0));
    let (url, _serving) = keeping(connections.clone()).await;
    let servers = HttpServers::new(true);
    let source = source_with(&url, "");
    let location = Location::new(format!("{url}/ab/cd.debug"));
    let fetch = async |key: SourceKey| {
        let download = get_by_key(&servers, &key, &source, &location).await;
        let download = download.unwrap();
        let pieces: Vec<_> = download.body.try_collect().await.unwrap();
        assert_eq!(pieces.concat(), b"file");
        connections.load(Ordering::SeqCst)
    };
    let (defined, configured) = (source.defined_key("1".to_owned()), source.configured_key());
    assert_eq!(fetch(configured.clone()).await, 1);
    assert_eq!(
        fetch(configured.clone()).await,
        1,
        "a configured source reuses its connection"
    );
    assert_eq!(fetch(defined.clone()).await, 2);
    assert_eq!(fetch(defined).await, 3);
    assert_eq!(fetch(configured).await, 3);
}
