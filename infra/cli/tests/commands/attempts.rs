//! Requests that fail: which are sent again, and what is printed if that does not help.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use serde_json::{Value, json};

use crate::service::failing::{Failing, if_numbered};
use crate::service::{Service, routes, store};
use crate::{REPORT, fixture, run, run_with, run_with_variables};

/// Each request fails once. Its next attempt has the next number.
fn is_first_attempt(number: usize) -> bool {
    number % 2 == 1
}

const TRANSIENT: [Failing; 4] = [
    Failing::With(StatusCode::SERVICE_UNAVAILABLE),
    Failing::With(StatusCode::INTERNAL_SERVER_ERROR),
    Failing::WithPause(StatusCode::TOO_MANY_REQUESTS),
    Failing::ByConnection,
];

/// Starts a service that stores files, and whose requests fail so.
fn store_failing(failing: Failing, fails: fn(usize) -> bool) -> Service {
    let router = store::router(&store::Shared::default());
    Service::with(if_numbered(router, failing, fails))
}

/// Copies a debug file into a folder, under a name that says what becomes of it.
fn debug_file(folder: &tempfile::TempDir, name: &str) -> String {
    let path = folder.path().join(name);
    std::fs::copy(fixture("elf/crash.debug"), &path).unwrap();
    path.display().to_string()
}

#[test]
fn an_upload_survives_that_each_request_fails_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = debug_file(&folder, "applied.debug");
    // Each of them waits until every instance would use the file.
    std::thread::scope(|scope| {
        for failing in TRANSIENT {
            let file = &file;
            scope.spawn(move || {
                let service = store_failing(failing, is_first_attempt);
                let ended = run(&["upload", file, "--wait", "--url", &service.url()]);
                assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{failing:?}");
                assert!(ended.out.starts_with("sent "), "{}", ended.out);
            });
        }
    });
}

#[test]
fn a_report_that_is_pending_survives_that_each_request_fails_once() {
    for failing in TRANSIENT {
        let service = Service::with(if_numbered(routes(), failing, is_first_attempt));
        let url = service.url();
        let arguments = ["symbolicate", "-", "--url", &url, "--scope", "soon"];
        let ended = run_with(REPORT.as_bytes(), &arguments);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{failing:?}");
    }
}

#[test]
fn a_request_is_not_sent_again_after_the_time_to_wait() {
    let busy = Failing::With(StatusCode::SERVICE_UNAVAILABLE);
    // A second request would succeed.
    let service = Service::with(if_numbered(routes(), busy, |number| number == 1));
    let url = service.url();
    let arguments = ["symbolicate", "-", "--wait", "0", "--url", &url];
    let ended = run_with(REPORT.as_bytes(), &arguments);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert_eq!(
        ended.err,
        format!("symdepot: {url} answered 503: Not Now\n")
    );
}

/// Starts a proxy that cannot reach any service. Returns its address, and the number of attempts so
/// far.
fn proxy_to_nothing() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = BufReader::new(connection.unwrap());
            let mut line = String::new();
            while connection.read_line(&mut line).unwrap() > "\r\n".len() {
                line.clear();
            }
            counted.fetch_add(1, Ordering::SeqCst);
            let answer = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n";
            connection.get_mut().write_all(answer).unwrap();
        }
    });
    (url, attempts)
}

#[test]
fn a_service_that_does_not_run_is_not_asked_again() {
    let file = fixture("elf/crash.debug");
    let ended = run(&["upload", &file, "--url", "http://127.0.0.1:1"]);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert!(ended.err.contains("does not answer"), "{}", ended.err);
    // Only a proxy can count the attempts to connect.
    let (proxy, attempts) = proxy_to_nothing();
    let arguments = ["upload", &file, "--url", "https://symbols.test"];
    let ended = run_with_variables(b"", &arguments, &[("https_proxy", proxy.as_str())]);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert!(ended.err.contains("does not answer"), "{}", ended.err);
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
}

#[test]
fn what_was_sent_is_printed_although_the_service_fails_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let file = debug_file(&folder, "pending.debug");
    // The first three requests look the file up, ask how to send it, and send it. The fourth and
    // the fifth ask for its state.
    for fails in [|number| number > 3, |number| number > 4] {
        let broken = Failing::ByService(StatusCode::INTERNAL_SERVER_ERROR);
        let service = store_failing(broken, fails);
        let url = service.url();
        let ended = run(&["upload", &file, "--wait", "--url", &url]);
        assert_eq!(ended.code, 1, "{}", ended.out);
        let again = "run the command again: files that were sent are not sent again";
        let expected = format!("symdepot: {url} answered 500: Not Now; {again}\n");
        assert_eq!(ended.err, expected);
        assert!(ended.out.starts_with("sent "), "{}", ended.out);
        assert!(ended.out.contains("is being processed"), "{}", ended.out);
        assert!(ended.out.contains("\nsent 1 ("), "{}", ended.out);
    }
    let broken = Failing::ByService(StatusCode::INTERNAL_SERVER_ERROR);
    let service = store_failing(broken, |number| number > 1);
    let ended = run(&["upload", &file, "--json", "--url", &service.url()]);
    assert_eq!(ended.code, 1, "{}", ended.out);
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    let sent = [&json["files"][0]["sent_bytes"], &json["files"][0]["state"]];
    assert_eq!(sent, [&Value::Null, &json!("absent")]);
}

/// Runs a command with an access token against a service that refuses everything so.
fn refused(status: StatusCode, arguments: &[&str], token: &str) -> String {
    let answer = move || async move { (status, json!({"detail": "refused"}).to_string()) };
    let service = Service::with(Router::new().fallback(any(answer)));
    let url = service.url();
    let arguments = [&["rollout", "--url", url.as_str()], arguments].concat();
    let ended = run_with_variables(b"", &arguments, &[("SYMDEPOT_TOKEN", token)]);
    assert_eq!(ended.code, 1, "{}", ended.err);
    ended.err
}

#[test]
fn a_credential_that_is_missing_is_named_with_its_variable() {
    let without = refused(StatusCode::UNAUTHORIZED, &[], "");
    assert!(
        without.contains("401): refused; set SYMDEPOT_TOKEN"),
        "{without}"
    );
    let with = refused(StatusCode::UNAUTHORIZED, &[], "sdt_old");
    assert!(
        with.contains("SYMDEPOT_TOKEN or in config.toml is not valid"),
        "{with}"
    );
}

#[test]
fn a_refusal_in_the_global_scope_says_how_to_name_another_unless_it_was_chosen() {
    let assumed = refused(StatusCode::FORBIDDEN, &[], "sdt_of_acme");
    assert!(assumed.contains("no scope is set"), "{assumed}");
    assert!(assumed.contains("--scope"), "{assumed}");
    let chosen = refused(StatusCode::FORBIDDEN, &["--scope", "global"], "sdt_of_acme");
    assert!(!chosen.contains("--scope"), "{chosen}");
}

#[test]
fn what_a_service_says_does_not_move_the_cursor() {
    let answer = || async {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "\u{1b}[31mlib\u{202e}fed.so",
        )
    };
    let service = Service::with(Router::new().fallback(any(answer)));
    let url = service.url();
    let ended = run(&["rollout", "--url", &url]);
    let shown = "\u{fffd}[31mlib\u{fffd}fed.so";
    let expected = format!("symdepot: {url} answered 500: {shown}; this is no answer of symdepot");
    assert!(ended.err.starts_with(&expected), "{}", ended.err);
}

#[test]
fn of_the_page_of_another_web_server_the_first_line_is_shown_with_how_to_check_the_address() {
    let page = || async {
        (
            StatusCode::BAD_GATEWAY,
            "\n<html>\n<body>Bad Gateway</body>\n",
        )
    };
    let service = Service::with(Router::new().fallback(any(page)));
    let url = service.url();
    let ended = run(&["rollout", "--url", &url]);
    assert_eq!(
        ended.err,
        format!(
            "symdepot: {url} answered 502: <html>; this is no answer of symdepot: `symdepot doctor` checks the address\n"
        )
    );
}

#[test]
fn an_address_with_https_of_a_service_without_tls_is_named_as_such() {
    let service = Service::new();
    let url = service.url().replace("http://", "https://");
    let ended = run(&["rollout", "--url", &url]);
    assert_eq!(ended.code, 1, "{}", ended.out);
    assert!(
        ended.err.contains("it does not speak TLS: use http://"),
        "{}",
        ended.err
    );
}

#[test]
fn a_token_that_a_service_without_credentials_refuses_is_to_be_removed() {
    let answer = || async {
        let detail = "the access token is unknown: this service needs no credential (AUTH=open)";
        (
            StatusCode::UNAUTHORIZED,
            json!({ "detail": detail }).to_string(),
        )
    };
    let service = Service::with(Router::new().fallback(any(answer)));
    let arguments = ["rollout", "--url", &service.url()];
    let ended = run_with_variables(b"", &arguments, &[("SYMDEPOT_TOKEN", "sdt_old")]);
    assert!(
        ended
            .err
            .contains("remove the access token from SYMDEPOT_TOKEN"),
        "{}",
        ended.err
    );
}
