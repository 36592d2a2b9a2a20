//! Servers for Microsoft's clients, whose `index2.txt` says whether their folders have two tiers,
//! over HTTP on loopback: a request for it that fails does not disable the source.

use futures::TryStreamExt;
use symdepot::adapters::http::HttpServers;
use symdepot::domain::{Cause, HttpSource, Location, Missing};
use symdepot::ports::{FileQuery, ServerFailure, SymbolServers};
use symdepot_tests::hostile_server::{Behavior, HostileServer};

const ONE_TIER: &str = "/s/app.pdb/1/app.pdb";
const TWO_TIERS: &str = "/s/ap/app.pdb/1/app.pdb";

fn refusal(status: &str) -> Behavior {
    Behavior::response(status, "content-length: 0\r\n", b"")
}

/// A server whose `index2.txt` has this behavior, with a file at this path.
async fn server(index2: Behavior, path: &'static str) -> HostileServer {
    let file = Behavior::file("", b"file");
    let behaviors = vec![("/index2.txt", index2), (path, file)];
    HostileServer::start(behaviors).await.unwrap()
}

async fn fetch(
    servers: &HttpServers,
    server: &HostileServer,
    name: &str,
) -> Result<Vec<u8>, Missing> {
    let url = server.url();
    let json = format!(
        r#"{{"type": "http", "id": "a", "url": "{url}/s", "layout": {{"type": "symsrv"}}}}"#
    );
    let source: HttpSource = serde_json::from_str(&json).unwrap();
    let query = FileQuery {
        key: &source.configured_key(),
        source: &source,
        location: &Location::new(format!("{url}/s/app.pdb/1/{name}")),
        checksum: None,
    };
    let missing = |failure: ServerFailure| failure.missing;
    let incoming = servers.get(query).await.map_err(missing)?;
    let pieces: Vec<_> = incoming.body.try_collect().await.map_err(missing)?;
    Ok(pieces.concat())
}

/// Returns the paths that were requested since the first `after` requests.
fn paths(server: &HostileServer, after: usize) -> Vec<String> {
    let asked = server.asked().into_iter().skip(after);
    let path = |head: String| head.split(' ').nth(1).unwrap().to_owned();
    asked.map(path).collect()
}

#[tokio::test]
async fn a_server_that_refuses_its_index2_has_one_tier_of_folders() {
    for status in ["401 Unauthorized", "403 Forbidden", "404 Not Found"] {
        let server = server(refusal(status), ONE_TIER).await;
        let servers = HttpServers::new(true);
        let fetched = fetch(&servers, &server, "app.pdb").await;
        assert_eq!(fetched.unwrap(), b"file", "{status}");
        let absent = fetch(&servers, &server, "app.pd_").await.unwrap_err();
        assert_eq!(absent.cause, Cause::NotFound, "{status}");
        let expected = ["/s/index2.txt", ONE_TIER, "/s/app.pdb/1/app.pd_"];
        assert_eq!(paths(&server, 0), expected, "{status}");
    }
}

#[tokio::test]
async fn files_are_requested_in_both_arrangements_if_the_index2_fails() {
    let failing = [
        refusal("500 Internal Server Error"),
        refusal("503 Service Unavailable"),
        // The connection is closed without a response.
        Behavior::Bytes(Vec::new()),
        // A redirect without a target.
        refusal("302 Found"),
        // Web pages, which some servers send in place of each absent file.
        Behavior::file("", b"\xef\xbb\xbf\r\n<!DOCTYPE html><title>Oh</title>"),
        Behavior::file("content-type: text/html; charset=utf-8\r\n", b"Oh"),
        Behavior::file("", &b"<html>".repeat(1 << 17)),
    ];
    for index2 in failing {
        for (path, requests) in [(ONE_TIER, 1), (TWO_TIERS, 2)] {
            let server = server(index2.clone(), path).await;
            let servers = HttpServers::new(true);
            let fetched = fetch(&servers, &server, "app.pdb").await;
            assert_eq!(fetched.unwrap(), b"file", "{index2:?} {path}");
            let asked = server.asked().len();
            assert_eq!(asked, 1 + requests, "{index2:?} {path}");
            let absent = fetch(&servers, &server, "app.pd_").await.unwrap_err();
            assert_eq!(absent.cause, Cause::NotFound, "{index2:?}");
            let both = ["/s/app.pdb/1/app.pd_", "/s/ap/app.pdb/1/app.pd_"];
            assert_eq!(paths(&server, asked), both, "{index2:?}");
        }
    }
}

#[tokio::test]
async fn an_index2_may_be_empty_or_long() {
    for (headers, content) in [
        ("", Vec::new()),
        ("content-type: text/html\r\n", Vec::new()),
        ("", b"x".repeat(1 << 20)),
    ] {
        let server = server(Behavior::file(headers, &content), TWO_TIERS).await;
        let fetched = fetch(&HttpServers::new(true), &server, "app.pdb").await;
        assert_eq!(fetched.unwrap(), b"file");
        assert_eq!(paths(&server, 0), ["/s/index2.txt", TWO_TIERS]);
    }
}

#[tokio::test]
async fn a_file_is_requested_in_two_tiers_if_one_tier_is_refused_and_the_index2_fails() {
    for (path, found) in [
        (TWO_TIERS, Ok(b"file".to_vec())),
        ("/other", Err(Cause::PermissionDenied)),
    ] {
        let behaviors = vec![
            ("/index2.txt", refusal("500 Internal Server Error")),
            (ONE_TIER, refusal("403 Forbidden")),
            (path, Behavior::file("", b"file")),
        ];
        let server = HostileServer::start(behaviors).await.unwrap();
        let fetched = fetch(&HttpServers::new(true), &server, "app.pdb").await;
        assert_eq!(fetched.map_err(|missing| missing.cause), found);
        let asked = paths(&server, 0);
        assert!(
            asked.ends_with(&[ONE_TIER.to_owned(), TWO_TIERS.to_owned()]),
            "{asked:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_pause_at_its_index2_is_asked_for_no_file() {
    let server = server(refusal("429 Too Many Requests"), ONE_TIER).await;
    let failed = fetch(&HttpServers::new(true), &server, "app.pdb").await;
    let missing = failed.unwrap_err();
    assert_eq!(missing.cause, Cause::DownloadFailed);
    assert!(missing.detail.contains("index2.txt"), "{missing:?}");
    assert!(paths(&server, 0).iter().all(|path| path == "/s/index2.txt"));
}

#[tokio::test]
async fn a_source_that_fails_is_asked_once_for_each_further_file_until_it_answers() {
    let failing = refusal("500 Internal Server Error");
    let behaviors = vec![("/app.pdb/1/app.pd", failing)];
    let server = HostileServer::start(behaviors).await.unwrap();
    let servers = HttpServers::new(true);
    let mut requests = Vec::new();
    // The first request includes that for `index2.txt`.
    for name in ["app.pdb", "app.pd_", "file.ptr", "app.pdb"] {
        let before = server.asked().len();
        fetch(&servers, &server, name).await.unwrap_err();
        requests.push(server.asked().len() - before);
    }
    assert_eq!(requests, [4, 1, 1, 3]);
}
