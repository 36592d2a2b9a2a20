//! The functions where the system refuses the calls that AWS Lambda refuses (decision 0031).

use symdepot::runtime::sandbox::refuse_as_lambda;

use crate::{Running, bytes_of, crash, hostile, lines_with};

/// Runs a test whose stack, with all its processes, lives in such a system.
fn in_lambda(test: impl AsyncFnOnce() + Send) {
    let test = || {
        refuse_as_lambda().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(test());
    };
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}

/// Panics unless each start of `derive` logged a sandbox that is described like this.
fn assert_sandbox(running: &Running, description: &str, is_hidden: bool) {
    let log = running.stack.log_of("derive");
    let sandboxes = lines_with(&log, "files are parsed in a sandbox");
    let is_it = |line: &serde_json::Value| {
        let sandbox = line["sandbox"].as_str().unwrap_or_default();
        sandbox.starts_with(description) && line["is_hidden"] == is_hidden
    };
    assert!(
        !sandboxes.is_empty() && sandboxes.iter().all(is_it),
        "{sandboxes:#?}"
    );
}

#[test]
fn crashes_are_symbolicated_where_the_system_refuses_prctl_and_filters() {
    in_lambda(async || {
        let running = Running::start().await;
        let dif = bytes_of("elf/crash.debug");
        running.upload("global/crash.debug", dif).await;
        crash::assert_symbolicated(&running.sample_answer().await);
        hostile::assert_a_deadly_name_stays_mangled(&running).await;
        assert_sandbox(&running, "limits only: ", false);
        for (name, function) in &running.client().stats().await.unwrap().functions {
            assert_eq!(function.errors, 0, "{name}");
        }
    });
}

#[tokio::test]
async fn elsewhere_files_are_parsed_behind_a_filter() {
    let running = Running::start().await;
    let dif = bytes_of("elf/crash.debug");
    running.upload("global/crash.debug", dif).await;
    assert_sandbox(&running, "seccomp", true);
}
