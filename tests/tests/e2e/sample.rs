//! The sample crash, as `make run` shows it.

use std::process::Output;

use tokio::process::Command;

use crate::{Running, json_of};

#[tokio::test]
async fn the_sample_shows_the_stack_before_and_after() {
    let running = Running::start().await;
    let first = text(&sample(&running).await);
    let expected = json_of("crash.expected.json");
    for frame in expected["frames"].as_array().unwrap() {
        let file = frame["file"].as_str().unwrap().rsplit('/').next().unwrap();
        let place = format!("{file}:{}", frame["line"]);
        assert!(first.contains(&place), "{place} is not in:\n{first}");
        assert!(
            first.contains(frame["instruction_addr"].as_str().unwrap()),
            "{first}"
        );
    }
    let inlined = expected["frames"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|frame| frame["inlined"] == true)
        .count();
    assert_eq!(first.matches(" inlined ").count(), inlined, "{first}");
    assert!(
        first.contains("aws --endpoint-url") && first.contains("curl"),
        "{first}"
    );
    assert!(
        !first.contains('\u{1b}'),
        "output to a pipe must not contain colour codes"
    );

    let again = sample(&running).await;
    assert!(
        !String::from_utf8_lossy(&again.stderr).contains("uploading"),
        "the second run must not upload again"
    );
    let stats = running.client().stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 1, "{stats:#?}");
}

#[tokio::test]
async fn the_sample_says_how_to_start_the_stack() {
    let folder = tempfile::TempDir::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sample"))
        .arg("--stack")
        .arg(folder.path().join("stack.json"))
        .args(["--wait-seconds", "1"])
        .output()
        .await
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("make run") && said.contains("stack.json"),
        "{said}"
    );
}

async fn sample(running: &Running) -> Output {
    let stack = running.client().addresses().data.join("stack.json");
    let output = Command::new(env!("CARGO_BIN_EXE_sample"))
        .arg("--stack")
        .arg(stack)
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}
