//! The local stack itself, as used by a developer who runs the service on one machine.

use symdepot_tests::stack::{Addresses, LocalStack, PATIENCE};

use crate::{Running, bytes_of, crash};

#[tokio::test]
async fn a_second_stack_on_the_same_folder_is_refused() {
    let running = Running::start().await;
    let options = running.stack.options().clone();
    let refused = LocalStack::start(options).await.unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    assert!(
        refused.contains(&running.client().addresses().pid.to_string()),
        "the error does not name the process: {refused}"
    );
    // The first stack is not affected.
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    crash::assert_symbolicated(&running.sample_answer().await);
}

#[tokio::test]
async fn stored_data_survives_a_restart() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let Running { stack, folder } = running;
    let options = stack.options().clone();
    stack.stop().await.unwrap();
    assert!(
        Addresses::read(&options.data().join("stack.json")).is_err(),
        "a stopped stack must not leave its address file"
    );
    let running = Running {
        stack: LocalStack::start(options).await.unwrap(),
        folder,
    };
    crash::assert_symbolicated(&running.sample_answer().await);
    let stats = running.client().stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 0, "{stats:#?}");
}

#[tokio::test]
async fn a_prune_run_reports_what_it_did() {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    let client = running.client();
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let blobs = client.blobs().await.unwrap();

    let report = client.prune(true).await.unwrap();
    assert_eq!(
        (&report["dry_run"], &report["complete"]),
        (&true.into(), &true.into()),
        "{report:#}"
    );
    assert_eq!(report["items"]["upload"], 1, "{report:#}");
    assert_eq!(report["retired"], report["items"]["entry"], "{report:#}");
    assert_eq!(
        report["bytes_freed"],
        blobs.iter().map(|(_, bytes)| bytes).sum::<u64>(),
        "{report:#}"
    );
    assert_eq!(
        client.blobs().await.unwrap(),
        blobs,
        "a dry run must not remove blobs"
    );

    let done = client.prune(false).await.unwrap();
    assert_eq!(
        (&done["dry_run"], &done["retired"]),
        (&false.into(), &report["retired"]),
        "{done:#}"
    );
    assert_eq!(client.blobs().await.unwrap(), []);
    // A request builds a retired entry again.
    client.end_functions().await.unwrap();
    crash::assert_symbolicated(&running.sample_answer().await);
}

#[tokio::test]
async fn a_stack_that_is_stopped_leaves_no_process_behind() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    crash::assert_symbolicated(&running.sample_answer().await);
    let processes = running.stack.processes();
    assert!(
        processes
            .iter()
            .any(|process| process.program() == "symbolicate"),
        "{processes:#?}"
    );
    running.stack.stop().await.unwrap();
    let gone = symdepot_tests::stack::until("the end of its processes", PATIENCE, async || {
        processes
            .iter()
            .all(|process| !process.is_alive())
            .then_some(())
    });
    gone.await.unwrap();
}
