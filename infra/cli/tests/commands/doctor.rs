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
    insta::assert_snapshot!("doctor", table.join("\n"));
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

#[test]
fn requests_are_signed_with_the_credentials_that_the_aws_command_line_has() {
    let received = Arc::new(Mutex::new(HeaderMap::new()));
    let seen = Arc::clone(&received);
    let about = move |headers: HeaderMap| async move {
        *seen.lock().unwrap() = headers;
        "{}"
    };
    // The requests to this host arrive at a proxy.
    let proxy = Service::with(Router::new().route("/about", get(about)));
    let url = "http://a1b2c3.execute-api.eu-west-1.amazonaws.com";
    let folder = tempfile::tempdir().unwrap();
    let exported = r#"{"Version": 1, "AccessKeyId": "EXPORTED", "SecretAccessKey": "secret", "SessionToken": "session"}"#;
    let command = "configure export-credentials --format process";
    let script = format!("[ \"$*\" = '{command}' ] && echo '{exported}'");
    write_program(&folder.path().join("aws"), &script);
    let path = folder.path().display().to_string();
    let variables = [("PATH", path.as_str()), ("http_proxy", &proxy.url())];
    let ended = run_with_variables(b"", &["doctor", "--url", url], &variables);
    assert!(ended.out.contains("ok: it answers"), "{}", ended.out);
    let received = received.lock().unwrap();
    let value = |name: &str| received[name].to_str().unwrap();
    let authorization = value("authorization");
    let credential = authorization.split(['=', ',']).nth(1).unwrap();
    let credential: Vec<&str> = credential.split('/').collect();
    let (id, region, service) = (credential[0], credential[2], credential[3]);
    assert_eq!(
        (id, region, service),
        ("EXPORTED", "eu-west-1", "execute-api")
    );
    assert_eq!(value("x-amz-security-token"), "session");
}
