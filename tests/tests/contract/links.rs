//! Tests of the adapter to symbol servers with links to source files.

use reqwest::Url;
use serde_json::json;
use symdepot::adapters::http::HttpServers;
use symdepot::domain::{Cause, HttpSource, Location, Missing, SourceLinks};
use symdepot::ports::{FileQuery, SymbolServers};

use crate::script::{Script, answer};

/// Returns the source of a link under these rules.
fn source(rules: serde_json::Value, link: &str) -> HttpSource {
    let links: SourceLinks = serde_json::from_value(rules).unwrap();
    let link = Url::parse(link).unwrap();
    links.allowed(&link).unwrap().source
}

/// Follows a link. Returns why there is no file, if there is none.
async fn follow(servers: &HttpServers, source: &HttpSource, link: &str) -> Result<(), Missing> {
    let query = FileQuery {
        key: &source.configured_key(),
        source,
        location: &Location::new(link),
        checksum: None,
    };
    let followed = servers.get(query).await;
    followed.map(drop).map_err(|failure| failure.missing)
}

fn redirect(to: &str) -> String {
    answer("302 Found", &format!("location: {to}\r\n"), 0, "")
}

#[tokio::test]
async fn a_link_is_requested_with_its_query_and_the_headers_of_its_rule_stay_within_it() {
    let answers = vec![
        redirect("/acme/b.c?v=2"),
        redirect("/elsewhere"),
        answer("200 OK", "", 4, "file"),
    ];
    let script = Script::play(answers).await;
    let rules =
        json!([{"origin": format!("{}/acme/", script.url), "headers": {"x-token": "sesame"}}]);
    let link = format!("{}/acme/a.c?v=1&path=/x", script.url);
    let source = source(rules, &link);
    let servers = HttpServers::new(true);
    follow(&servers, &source, &link).await.unwrap();
    let asked = script.asked().await;
    let sent: Vec<(&str, bool)> = asked
        .iter()
        .map(|request| {
            let line = request.head.lines().next().unwrap();
            (line, request.head.contains("x-token: sesame"))
        })
        .collect();
    assert_eq!(
        sent,
        [
            ("get /acme/a.c?v=1&path=/x http/1.1", true),
            ("get /acme/b.c?v=2 http/1.1", true),
            ("get /elsewhere http/1.1", false),
        ]
    );
    // Another part of the host is another source.
    let other = format!("{}/other/a.c", script.url);
    let refused = follow(&servers, &source, &other).await.unwrap_err();
    assert!(refused.detail.contains("not below"), "{refused:?}");
}

#[tokio::test]
async fn a_link_to_a_private_address_is_not_followed() {
    let script = Script::play(vec![answer("200 OK", "", 4, "file")]).await;
    let port = Url::parse(&script.url).unwrap().port().unwrap();
    let servers = HttpServers::new(false);
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "10.0.0.1",
        "169.254.169.254",
        "[::ffff:127.0.0.1]",
        "2130706433",
    ] {
        let link = format!("http://{host}:{port}/latest/meta-data/a.c");
        let link = Url::parse(&link).unwrap();
        let source = source(json!(["*"]), link.as_str());
        let refused = follow(&servers, &source, link.as_str()).await.unwrap_err();
        assert_eq!(refused.cause, Cause::PermissionDenied, "{link}");
        assert!(refused.detail.contains("in a private network"), "{link}");
    }
    assert!(script.asked().await.is_empty());
}

#[tokio::test]
async fn a_redirect_to_a_page_to_log_in_is_a_refusal() {
    let servers = HttpServers::new(true);
    for (to, is_page) in [
        ("/_signin?realm=x&reply_to=y", true),
        ("/users/sign_in", true),
        ("/Account/Login/", true),
        ("/raw/login.c", false),
        ("/login/a.c", false),
    ] {
        let script = Script::play(vec![redirect(to), answer("200 OK", "", 4, "file")]).await;
        let link = format!("{}/a.c", script.url);
        let source = source(json!(["*"]), &link);
        let followed = follow(&servers, &source, &link).await;
        if is_page {
            let refused = followed.unwrap_err();
            assert_eq!(refused.cause, Cause::PermissionDenied, "{to}");
            assert!(refused.detail.contains("a page to log in"), "{refused:?}");
            assert!(!refused.detail.contains("realm"), "{refused:?}");
            assert_eq!(script.asked().await.len(), 1);
        } else {
            assert_eq!(followed, Ok(()), "{to}");
        }
    }
}
