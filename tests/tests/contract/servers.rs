//! The adapter to symbol servers against servers that behave, and against those that do not.

use futures::TryStreamExt;
use symdepot::adapters::http::HttpServers;
use symdepot::domain::{Cause, HttpSource, Location};
use symdepot::ports::{ServerFailure, SymbolServers};

use crate::script::{Script, answer};

const SECRET: &str = "bearer opensesame";

fn source(url: &str) -> HttpSource {
    let json = format!(
        r#"{{"type": "http", "id": "a", "url": "{url}", "headers": {{"authorization": "{SECRET}"}}}}"#
    );
    serde_json::from_str(&json).unwrap()
}

/// Fetches everything from a server that answers from a script; also returns the requests, in small letters.
async fn fetch(answers: &[String]) -> (Result<Vec<u8>, ServerFailure>, Vec<String>) {
    let script = Script::play(answers.to_vec()).await;
    let fetched = fetch_from(&HttpServers::new(true), &script.url).await;
    let asked = script.asked().await.into_iter().map(|request| request.head);
    (fetched, asked.collect())
}

async fn fetch_from(servers: &HttpServers, url: &str) -> Result<Vec<u8>, ServerFailure> {
    let location = Location::new(format!("{url}/ab/cd.debug"));
    let download = servers.get(&source(url), &location).await?;
    let pieces: Vec<_> = download.body.try_collect().await?;
    Ok(pieces.concat())
}

fn redirect(to: &str) -> String {
    answer("302 Found", &format!("location: {to}\r\n"), 0, "")
}

#[tokio::test]
async fn a_file_is_fetched_with_the_headers_of_its_source() {
    let script = Script::play(vec![answer("200 OK", "etag: \"e\"\r\n", 4, "file")]).await;
    let servers = HttpServers::new(true);
    let location = Location::new(format!("{}/ab/cd%20e.debug", script.url));
    let download = servers.get(&source(&script.url), &location).await.unwrap();
    assert_eq!((download.etag.as_str(), download.size), ("\"e\"", Some(4)));
    let pieces: Vec<_> = download.body.try_collect().await.unwrap();
    assert_eq!(pieces.concat(), b"file");
    let head = &script.asked().await[0].head;
    assert!(head.starts_with("get /ab/cd%20e.debug http/1.1"), "{head}");
    assert!(head.contains(&format!("authorization: {SECRET}")), "{head}");
    assert!(head.contains("accept-encoding: identity"), "{head}");
}

#[tokio::test]
async fn a_file_without_an_etag_is_known_by_its_date_and_length() {
    let date = "Wed, 21 Oct 2015 07:28:00 GMT";
    let headers = format!("last-modified: {date}\r\n");
    let script = Script::play(vec![answer("200 OK", &headers, 4, "file")]).await;
    let servers = HttpServers::new(true);
    let location = Location::new(format!("{}/a", script.url));
    let download = servers.get(&source(&script.url), &location).await.unwrap();
    assert_eq!(download.etag, format!("{date}/4"));
}

#[tokio::test]
async fn a_server_that_fails_is_asked_three_times_and_one_that_answers_once() {
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
async fn a_body_that_is_shorter_than_announced_is_no_file() {
    let (fetched, _) = fetch(&[answer("200 OK", "", 400, "only this")]).await;
    assert_eq!(fetched.unwrap_err().missing.cause, Cause::DownloadFailed);
}

#[tokio::test]
async fn a_redirect_is_followed_and_credentials_stay_behind() {
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
async fn redirects_that_lead_nowhere_end() {
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
async fn nothing_in_a_private_network_is_asked_unless_that_is_allowed() {
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
            missing.detail.contains("ALLOW_PRIVATE_SOURCES"),
            "{missing:?}"
        );
    }
    assert!(private.asked().await.is_empty());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_failure_of_the_source() {
    let script = Script::play(Vec::new()).await;
    let url = script.url.clone();
    drop(script);
    let fetched = fetch_from(&HttpServers::new(true), &url).await;
    assert_eq!(fetched.unwrap_err().missing.cause, Cause::DownloadFailed);
    let fetched = fetch_from(&HttpServers::new(true), "http://nowhere.invalid").await;
    assert_eq!(fetched.unwrap_err().missing.cause, Cause::DownloadFailed);
}

/// A source that is asked as Microsoft's clients do.
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
    let download = servers.get(&symsrv(url), &location).await?;
    let pieces: Vec<_> = download.body.try_collect().await?;
    Ok(pieces.concat())
}

fn first_lines(asked: Vec<crate::script::Request>) -> Vec<String> {
    let line = |request: crate::script::Request| request.head.lines().next().unwrap().to_owned();
    asked.into_iter().map(line).collect()
}

#[tokio::test]
async fn a_server_says_once_whether_it_has_two_tiers_of_folders() {
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
    // A server that fails has said nothing of its folders, nor of the file.
    let script = Script::play(vec![answer("500 Oh", "", 0, ""); 3]).await;
    let failed = fetch_symsrv(&HttpServers::new(true), &script.url, "app.pdb").await;
    assert_eq!(failed.unwrap_err().missing.cause, Cause::DownloadFailed);
}

#[tokio::test]
async fn a_pointer_is_followed_and_credentials_stay_behind() {
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
async fn a_pointer_that_leads_nowhere_says_why() {
    let endless = "x".repeat(20_000);
    for (text, cause, said) in [
        ("MSG: not kept", Cause::NotFound, "not kept"),
        (
            "PATH:\\\\server\\share\\app.pdb",
            Cause::NotFound,
            "cannot be read from here",
        ),
        (
            "PATH:file:///etc/passwd",
            Cause::NotFound,
            "cannot be read from here",
        ),
        ("", Cause::Malformed, "nothing that can be read"),
        (endless.as_str(), Cause::Malformed, "more than 16384 bytes"),
    ] {
        let absent = answer("404 Not Found", "", 0, "");
        let script = Script::play(vec![absent, answer("200 OK", "", text.len(), text)]).await;
        let failed = fetch_symsrv(&HttpServers::new(true), &script.url, "file.ptr").await;
        let missing = failed.unwrap_err().missing;
        assert_eq!(missing.cause, cause, "{missing:?}");
        assert!(missing.detail.contains(said), "{missing:?}");
    }
}
