//! `infra/smoke`, by which an operator checks a deployment: here it checks the local stack.

use std::process::Output;

use symdepot_tests::stack::{checkout, fixture};
use tokio::process::Command;

use crate::Running;
use crate::access::issue;

/// Runs the script with these arguments; `None` if there is no Python.
async fn smoke(arguments: &[&str]) -> Option<Output> {
    let there = Command::new("python3").arg("--version").output().await;
    if there.is_err() {
        println!("skipped: python3 is not installed");
        return None;
    }
    let ended = Command::new("python3")
        .arg(checkout().join("infra/smoke"))
        .args(arguments)
        .env_remove("TOKEN")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env_remove("AWS_SESSION_TOKEN")
        .env("AWS_REGION", "us-east-1")
        .output();
    Some(ended.await.unwrap())
}

/// Runs the script against a stack, and returns its exit code and what it printed.
async fn against(running: &Running, arguments: &[&str]) -> Option<(Option<i32>, String)> {
    let addresses = running.client().addresses();
    let of_stack = ["--endpoint", &addresses.gateway, "--s3", &addresses.s3];
    let ended = smoke(&[&of_stack, arguments].concat()).await?;
    let printed = String::from_utf8(ended.stdout.clone()).unwrap();
    assert!(ended.stderr.is_empty(), "{ended:?}");
    Some((ended.status.code(), printed))
}

#[tokio::test]
async fn the_smoke_test_checks_every_step_and_leaves_no_upload() {
    let running = Running::start().await;
    let uploads = running.client().addresses().uploads().to_owned();
    let Some((code, printed)) = against(&running, &["--bucket", &uploads]).await else {
        return;
    };
    assert_eq!(code, Some(0), "{printed}");
    let steps: Vec<&str> = printed
        .lines()
        .map(|line| line.split(": ").nth(1).unwrap())
        .collect();
    let expected = [
        "the service answers",
        "the bucket accepts an upload",
        "the upload is used",
        "a crash is symbolicated",
        "the upload is removed",
    ];
    assert_eq!(steps, expected, "{printed}");
    let key = printed.lines().last().unwrap().rsplit(": ").next().unwrap();
    assert_eq!(running.client().etag(key).await.unwrap(), None);
}

#[tokio::test]
async fn with_auth_the_smoke_test_needs_a_token_with_both_rights_in_its_scope() {
    let running = Running::start_with(|options| options.variable("AUTH", "token")).await;
    let uploads = running.client().addresses().uploads().to_owned();
    let (both, _) = issue(&running, "acme", &["symbolicate", "upload"]).await;
    let (uploader, _) = issue(&running, "acme", &["upload"]).await;
    let unknown = format!("sdt_{}", "A".repeat(43));
    for (token, scope, expected) in [
        (Some(&both), "acme", Ok("ok: a crash is symbolicated")),
        (
            None,
            "acme",
            Err(
                "FAILED: the service answers: GET /about was answered with 401: {\"detail\":\"a credential",
            ),
        ),
        (
            Some(&unknown),
            "acme",
            Err("The token was never issued, or it expired or was revoked."),
        ),
        (
            Some(&uploader),
            "acme",
            Err("FAILED: a crash is symbolicated: POST /symbolicate was answered with 403"),
        ),
        (
            Some(&both),
            "other",
            Err("The token needs the rights symbolicate and upload in the scope other."),
        ),
    ] {
        let mut arguments = vec!["--bucket", &uploads, "--scope", scope];
        arguments.extend(token.iter().flat_map(|token| ["--token", token.as_str()]));
        let Some((code, printed)) = against(&running, &arguments).await else {
            return;
        };
        let (expected_code, expected) = match expected {
            Ok(text) => (0, text),
            Err(text) => (1, text),
        };
        assert_eq!(code, Some(expected_code), "{printed}");
        assert!(printed.contains(expected), "{printed}");
    }
}

#[tokio::test]
async fn the_smoke_test_names_what_failed() {
    let running = Running::start().await;
    let uploads = running.client().addresses().uploads().to_owned();
    let other = fixture("pe/x64/crash.pdb").display().to_string();
    let text = fixture("README.md").display().to_string();
    for (arguments, expected) in [
        (
            vec!["--bucket", "absent"],
            "FAILED: the bucket accepts an upload: there is no bucket absent",
        ),
        (
            vec!["--bucket", &uploads, "--sample", &text],
            "FAILED: the upload is used: derive ignores the upload",
        ),
        (
            vec!["--bucket", &uploads, "--sample", &other],
            "FAILED: a crash is symbolicated: the debug file is missing",
        ),
    ] {
        let Some((code, printed)) = against(&running, &arguments).await else {
            return;
        };
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains(expected), "{printed}");
    }
    let endpoint = running.client().addresses().gateway.clone();
    running.stack.stop().await.unwrap();
    let arguments = ["--endpoint", &endpoint, "--bucket", &uploads];
    let ended = smoke(&arguments).await.unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let printed = String::from_utf8(ended.stdout).unwrap();
    assert!(
        printed.starts_with("FAILED: the service answers: 127.0.0.1:"),
        "{printed}"
    );
    let wrong = smoke(&["--endpoint", "symdepot", "--bucket", &uploads]).await;
    assert_eq!(wrong.unwrap().status.code(), Some(2));
}
