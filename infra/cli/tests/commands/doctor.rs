//! `doctor` names what is wrong.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;

use crate::service::Service;
use crate::{run, run_with_variables};

/// A service that answers `GET /about` so.
fn answering(status: StatusCode, date: Option<&'static str>, body: &'static str) -> Service {
    let about = move || async move {
        let mut headers = HeaderMap::new();
        if let Some(date) = date {
            headers.insert("date", date.parse().unwrap());
        }
        (status, headers, body)
    };
    Service::with(Router::new().route("/about", get(about)))
}

/// Returns the address of a port that was just given back, so that nothing listens there.
fn address_of_nothing() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn the_doctor_names_what_is_wrong() {
    const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;
    let mut table: Vec<String> = Vec::new();
    let asked = |what: &str, url: &str| {
        let ended = run(&["doctor", "--url", url]);
        let said = format!("{}{}", ended.out, ended.err).replace(url, "URL");
        format!("--- {what}: {}\n{said}", ended.code)
    };
    table.push(asked("all is well", &Service::new().url()));
    table.push(asked("nothing listens", &address_of_nothing()));
    table.push(asked("no address", "127.0.0.1:3021"));
    let refused = answering(FORBIDDEN, None, r#"{"message":"Forbidden"}"#);
    table.push(asked(
        "403, of a gateway that wants a signature",
        &refused.url(),
    ));
    let expired = r#"{"message":"The security token included in the request is expired"}"#;
    table.push(asked(
        "403, expired credentials",
        &answering(FORBIDDEN, None, expired).url(),
    ));
    let past = "Tue, 14 Nov 2023 22:13:20 GMT";
    let ended = run(&[
        "doctor",
        "--url",
        &answering(StatusCode::OK, Some(past), "{}").url(),
    ]);
    assert_eq!(ended.code, 1);
    let (before, after) = ended
        .out
        .split_once("the clock of this machine is ")
        .unwrap();
    assert!(before.ends_with("ok: it answers\nFAILED: "), "{before}");
    let (seconds, rest) = after.split_once(' ').unwrap();
    assert!(seconds.parse::<u64>().unwrap() > 300);
    table.push(format!("--- a wrong clock: 1\n{rest}"));
    table.push(asked(
        "another service",
        &Service::with(Router::new()).url(),
    ));
    table.push(asked(
        "an answer that is something else",
        &answering(StatusCode::OK, None, "<html>").url(),
    ));
    table.push(asked(
        "a failure of the service",
        &answering(
            StatusCode::INTERNAL_SERVER_ERROR,
            None,
            r#"{"message":"Internal Server Error"}"#,
        )
        .url(),
    ));
    for (what, message) in [
        ("403, credentials without the permission", "Forbidden"),
        (
            "403, credentials that are not valid",
            "The security token included in the request is invalid.",
        ),
    ] {
        table.push(format!("--- {what}: {}", refused_by_gateway(message)));
    }
    insta::assert_snapshot!("doctor", table.join("\n"));
}

/// The address of a gateway. Requests to it arrive at a proxy.
const GATEWAY: &str = "http://a1b2c3.execute-api.eu-west-1.amazonaws.com";

/// Returns what the doctor says about a gateway that refuses signed requests with a message, after
/// the exit code.
fn refused_by_gateway(message: &'static str) -> String {
    let about = move || async move {
        let body = serde_json::json!({ "message": message });
        (StatusCode::FORBIDDEN, body.to_string())
    };
    let proxy = Service::with(Router::new().route("/about", get(about)));
    let variables = [
        ("AWS_ACCESS_KEY_ID", "ID"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("http_proxy", &proxy.url()),
    ];
    let ended = run_with_variables(b"", &["doctor", "--url", GATEWAY], &variables);
    format!("{}\n{}{}", ended.code, ended.out, ended.err)
}

#[test]
fn a_token_that_is_not_valid_in_the_global_scope_needs_its_scope() {
    let about = || async {
        let detail = "the credential is not valid in the scope global";
        (
            StatusCode::FORBIDDEN,
            serde_json::json!({ "detail": detail }).to_string(),
        )
    };
    let in_acme = || async { serde_json::json!({ "version": "0.1.0" }).to_string() };
    let router = Router::new()
        .route("/scope/global/about", get(about))
        .route("/scope/acme/about", get(in_acme));
    let service = Service::with(router);
    let asked = |scope: &[&str]| {
        let url = service.url();
        let arguments = [&["doctor", "--url", url.as_str()], scope].concat();
        run_with_variables(b"", &arguments, &[("SYMDEPOT_TOKEN", "sdt_of_acme")])
    };
    let refused = asked(&[]);
    assert_eq!(refused.code, 1);
    for expected in [
        "in the scope global",
        "No scope is set",
        "--scope",
        "SYMDEPOT_SCOPE",
    ] {
        assert!(refused.out.contains(expected), "{}", refused.out);
    }
    let in_its_scope = asked(&["--scope", "acme"]);
    let out = &in_its_scope.out;
    assert!(!out.contains("in the scope global"), "{out}");
}

#[test]
fn without_a_service_the_doctor_says_where_to_write_its_address() {
    let ended = run(&["doctor"]);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""));
    insta::assert_snapshot!("doctor_without_service", ended.err);
}

/// Writes a script. Another process does it: a thread of this one that starts a program at the same
/// time would keep the file open, which then cannot be executed.
fn write_program(path: &Path, script: &str) {
    let write = r##"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod +x "$0""##;
    let written = Command::new("sh")
        .args(["-c", write])
        .arg(path)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
}

/// The AWS command line is asked for credentials before anything is sent to this address.
#[test]
fn credentials_that_the_aws_command_line_does_not_have_are_named() {
    let url = "https://a1b2c3.execute-api.eu-west-1.amazonaws.com";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let program = folder.path().join("aws");
    let mut table = String::new();
    for (what, script) in [
        ("it is not installed", None),
        (
            "the session has expired",
            Some("echo 'Error when retrieving token from sso: Token has expired' >&2; exit 255"),
        ),
        (
            "it is too old",
            Some("echo 'usage: aws [options] <command>' >&2; exit 252"),
        ),
        ("it prints something else", Some("echo '{}'")),
    ] {
        if let Some(script) = script {
            write_program(&program, script);
        }
        let arguments = ["doctor", "--url", url];
        let ended = run_with_variables(b"", &arguments, &[("PATH", &path)]);
        let _ = writeln!(
            table,
            "--- {what}: {}\n{}{}",
            ended.code, ended.out, ended.err
        );
    }
    insta::assert_snapshot!("doctor_credentials", table);
}

/// Returns the headers of the request that the doctor sends to a gateway, with these variables.
fn request_to_gateway(variables: &[(&str, &str)]) -> HeaderMap {
    let received = Arc::new(Mutex::new(HeaderMap::new()));
    let seen = Arc::clone(&received);
    let about = move |headers: HeaderMap| async move {
        *seen.lock().unwrap() = headers;
        "{}"
    };
    let proxy = Service::with(Router::new().route("/about", get(about)));
    let (http_proxy, arguments) = (proxy.url(), ["doctor", "--url", GATEWAY]);
    let all = [variables, &[("http_proxy", http_proxy.as_str())]].concat();
    let ended = run_with_variables(b"", &arguments, &all);
    assert!(ended.out.contains("ok: it answers"), "{}", ended.out);
    let received = received.lock().unwrap();
    received.clone()
}

/// Asserts that a request was signed for the gateway with the key of this id, and that it has the
/// token of the session, if there is one.
fn assert_signed(headers: &HeaderMap, id: &str, session: Option<&str>) {
    let authorization = headers["authorization"].to_str().unwrap();
    let credential = authorization.split(['=', ',']).nth(1).unwrap();
    let credential: Vec<&str> = credential.split('/').collect();
    let expected = (id, "eu-west-1", "execute-api");
    assert_eq!((credential[0], credential[2], credential[3]), expected);
    let token = headers.get("x-amz-security-token");
    assert_eq!(token.map(|token| token.to_str().unwrap()), session);
}

#[test]
fn requests_are_signed_with_the_credentials_that_the_aws_command_line_has() {
    let folder = tempfile::tempdir().unwrap();
    let exported = r#"{"Version": 1, "AccessKeyId": "EXPORTED", "SecretAccessKey": "secret", "SessionToken": "session"}"#;
    let command = "configure export-credentials --format process";
    let script = format!("[ \"$*\" = '{command}' ] && echo '{exported}'");
    write_program(&folder.path().join("aws"), &script);
    let path = folder.path().display().to_string();
    let headers = request_to_gateway(&[("PATH", &path)]);
    assert_signed(&headers, "EXPORTED", Some("session"));
    // Half of a key in the environment is none.
    let half = ("AWS_ACCESS_KEY_ID", "OTHER");
    let headers = request_to_gateway(&[("PATH", &path), half]);
    assert_signed(&headers, "EXPORTED", Some("session"));
}

#[test]
fn requests_are_signed_with_the_credentials_in_the_environment() {
    let key = [
        ("AWS_ACCESS_KEY_ID", "VARIABLE"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    assert_signed(&request_to_gateway(&key), "VARIABLE", None);
    let session = [("AWS_SESSION_TOKEN", "session")];
    let headers = request_to_gateway(&[&key[..], &session].concat());
    assert_signed(&headers, "VARIABLE", Some("session"));
}
