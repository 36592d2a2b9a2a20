//! Functions as processes with the runtime API, tested with a function that uses it over a plain
//! socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::poll;
use local_stack::functions::{
    Answer, Endpoints, FunctionSpec, Functions, FunctionsError, MAX_EVENT,
};
use local_stack::identity::Signer;
use processes::{state, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

struct Fixture {
    functions: Functions,
    data: TempDir,
}

impl Fixture {
    fn start(change: impl FnOnce(&mut FunctionSpec)) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut spec = FunctionSpec {
            name: "probe".to_owned(),
            binary: env!("CARGO_BIN_EXE_probe-function").into(),
            memory_mb: 512,
            timeout: Duration::from_secs(60),
            concurrency: 8,
            // On a busy machine too, no call starts another process meanwhile.
            wait_for_idle: Duration::from_secs(30),
            allows_recursion: false,
            log_format: "JSON".to_owned(),
            log_group: "/aws/lambda/probe".to_owned(),
            environment: BTreeMap::from([("OWN".to_owned(), "yes".to_owned())]),
        };
        change(&mut spec);
        let endpoints = Endpoints {
            s3: "http://127.0.0.1:1".to_owned(),
            dynamodb: "http://127.0.0.1:2".to_owned(),
            sqs: "http://127.0.0.1:3".to_owned(),
        };
        let functions = Functions::start(vec![spec], &endpoints, data.path(), None).unwrap();
        Self { functions, data }
    }

    async fn invoke(&self, event: Value) -> Answer {
        self.functions
            .invoke("probe", Bytes::from(event.to_string()))
            .await
    }

    async fn ask(&self, event: Value) -> Value {
        serde_json::from_slice(&self.invoke(event).await.outcome.unwrap()).unwrap()
    }

    async fn pid(&self) -> u64 {
        self.ask(json!({ "do": "echo" })).await["pid"]
            .as_u64()
            .unwrap()
    }

    async fn settled(&self) {
        let idle = |running: &BTreeMap<String, usize>| running.values().all(|count| *count == 0);
        self.functions.running().wait_for(idle).await.unwrap();
    }

    fn stats(&self) -> local_stack::functions::FunctionStats {
        self.functions.stats()["probe"].clone()
    }

    /// Returns the process ids of a hanging invocation and its child.
    async fn pids_in(&self, file: &std::path::Path) -> (u64, u64) {
        until("the function has written its process ids", || file.exists()).await;
        let pids: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        (
            pids["pid"].as_u64().unwrap(),
            pids["child"].as_u64().unwrap(),
        )
    }
}

fn epoch_ms() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_used_again() {
    let fixture = Fixture::start(|_| {});
    let first = fixture.ask(json!({ "do": "echo" })).await;
    let second = fixture.ask(json!({ "do": "echo" })).await;
    assert_eq!(first["pid"], second["pid"]);
    assert_eq!(second["invocations"], 2);
    let stats = fixture.stats();
    assert_eq!(
        (stats.invocations, stats.cold_starts, stats.errors),
        (2, 1, 0)
    );
    assert!(stats.init_ms.max > 0.0 && stats.duration_ms.max > 0.0);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_carries_the_headers_of_the_runtime_api() {
    let fixture = Fixture::start(|_| {});
    let before = epoch_ms();
    let answer = fixture.invoke(json!({ "do": "echo", "x": 1 })).await;
    let after = epoch_ms();
    let echo: Value = serde_json::from_slice(&answer.outcome.unwrap()).unwrap();
    assert_eq!(echo["event"], json!({ "do": "echo", "x": 1 }));
    let header = |name: &str| echo["headers"][name].as_str().unwrap().to_owned();
    assert_eq!(header("lambda-runtime-aws-request-id"), answer.request_id);
    assert_eq!(
        header("lambda-runtime-invoked-function-arn"),
        "arn:aws:lambda:us-east-1:000000000000:function:probe"
    );
    assert!(header("lambda-runtime-trace-id").starts_with("Root=1-"));
    let deadline: u128 = header("lambda-runtime-deadline-ms").parse().unwrap();
    assert!((before + 60_000..=after + 60_000).contains(&deadline));
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_has_only_the_variables_of_lambda_and_of_the_template() {
    let fixture = Fixture::start(|_| {});
    let environment = fixture.ask(json!({ "do": "env" })).await;
    let names: BTreeSet<&str> = environment
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let expected = BTreeSet::from([
        "AWS_ACCESS_KEY_ID",
        "AWS_DEFAULT_REGION",
        "AWS_EC2_METADATA_DISABLED",
        "AWS_ENDPOINT_URL_DYNAMODB",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_SQS",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
        "AWS_LAMBDA_FUNCTION_NAME",
        "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_INITIALIZATION_TYPE",
        "AWS_LAMBDA_LOG_FORMAT",
        "AWS_LAMBDA_LOG_GROUP_NAME",
        "AWS_LAMBDA_LOG_STREAM_NAME",
        "AWS_LAMBDA_RUNTIME_API",
        "AWS_REGION",
        "AWS_SECRET_ACCESS_KEY",
        "LAMBDA_RUNTIME_DIR",
        "LAMBDA_TASK_ROOT",
        "LANG",
        "OWN",
        "PATH",
        "TMPDIR",
        "TZ",
        "_HANDLER",
    ]);
    assert_eq!(names, expected);
    assert_eq!(environment["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"], "512");
    assert_eq!(environment["AWS_ENDPOINT_URL_SQS"], "http://127.0.0.1:3");
    // Each process has a key of its own, so that the stack can distinguish their calls.
    let access_key = environment["AWS_ACCESS_KEY_ID"].as_str().unwrap();
    let Signer::Function(Some(signer)) = Signer::of(access_key) else {
        panic!("{access_key}");
    };
    assert_eq!(
        signer.function,
        environment["AWS_LAMBDA_FUNCTION_NAME"].as_str().unwrap()
    );
    assert!(!signer.process.is_empty(), "{access_key}");
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_stopped_between_invocations() {
    let fixture = Fixture::start(|_| {});
    let pid = fixture.pid().await;
    until("the idle process is stopped", || state(pid) == Some('T')).await;
    assert_eq!(fixture.pid().await, pid);
    until("the process is stopped again", || state(pid) == Some('T')).await;
    fixture.functions.stop().await;
    assert_eq!(state(pid), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_deadline_the_process_and_its_children_are_killed() {
    // The process must have time to write its ids.
    let fixture = Fixture::start(|spec| spec.timeout = Duration::from_secs(3));
    let file = fixture.data.path().join("pids");
    let answer = fixture.invoke(json!({ "do": "hang", "tell": file })).await;
    let error = answer.outcome.unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(error.error_type, "Sandbox.Timedout");
    assert_eq!(
        error.error_message,
        format!(
            "RequestId: {} Error: Task timed out after 3.00 seconds",
            answer.request_id
        )
    );
    let (pid, child) = fixture.pids_in(&file).await;
    assert_eq!(state(pid), None);
    until("the child has ended", || state(child).is_none()).await;
    assert_eq!((fixture.stats().timeouts, fixture.stats().errors), (1, 1));
    assert_ne!(fixture.pid().await, pid);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_reports_an_error_is_used_again() {
    let fixture = Fixture::start(|_| {});
    let pid = fixture.pid().await;
    let error = fixture
        .invoke(json!({ "do": "error" }))
        .await
        .outcome
        .unwrap_err();
    assert_eq!(
        error.to_json(),
        json!({ "errorType": "Probe.Error", "errorMessage": "told to fail" })
    );
    assert_eq!(fixture.pid().await, pid);
    assert_eq!(fixture.stats().errors, 1);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_during_an_invocation_is_an_error_and_the_next_start_is_cold() {
    let fixture = Fixture::start(|_| {});
    let pid = fixture.pid().await;
    for (event, how) in [
        (
            json!({ "do": "exit", "code": 7 }),
            "Runtime exited with error: exit status 7",
        ),
        (
            json!({ "do": "exit", "code": 0 }),
            "Runtime exited without providing a reason",
        ),
        (
            json!({ "do": "abort" }),
            "Runtime exited with error: signal: aborted",
        ),
    ] {
        let answer = fixture.invoke(event).await;
        let error = answer.outcome.unwrap_err();
        assert_eq!(error.error_type, "Runtime.ExitError");
        assert_eq!(
            error.error_message,
            format!("RequestId: {} Error: {how}", answer.request_id)
        );
    }
    assert_ne!(fixture.pid().await, pid);
    assert_eq!(fixture.stats().errors, 3);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_cannot_start_fails_the_invocation() {
    for (how, error_type, message) in [
        (
            "exit",
            "Runtime.ExitError",
            "Error: Runtime exited with error: exit status 3 before it requested its first event",
        ),
        ("error", "Probe.Init", "told to fail"),
    ] {
        let fixture = Fixture::start(|spec| {
            spec.environment
                .insert("PROBE_INIT".to_owned(), how.to_owned());
        });
        let error = fixture
            .invoke(json!({ "do": "echo" }))
            .await
            .outcome
            .unwrap_err();
        assert_eq!(
            (error.error_type.as_str(), error.error_message.as_str()),
            (error_type, message)
        );
        assert_eq!(
            (fixture.stats().cold_starts, fixture.stats().errors),
            (0, 1)
        );
        fixture.functions.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_started_first_serves_the_first_invocation() {
    let fixture = Fixture::start(|_| {});
    fixture.functions.start_first().await.unwrap();
    let stats = fixture.stats();
    assert_eq!((stats.cold_starts, stats.invocations), (1, 0));
    fixture.ask(json!({ "do": "echo" })).await;
    let stats = fixture.stats();
    assert_eq!((stats.cold_starts, stats.invocations), (1, 1));
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_invocations_have_separate_processes_up_to_the_concurrency() {
    let fixture = Fixture::start(|spec| spec.concurrency = 3);
    let calls = (0..9).map(|_| fixture.ask(json!({ "do": "sleep", "ms": 100 })));
    let pids: BTreeSet<u64> = futures::future::join_all(calls)
        .await
        .iter()
        .map(|answer| answer["pid"].as_u64().unwrap())
        .collect();
    assert_eq!(pids.len(), 3);
    let stats = fixture.stats();
    assert_eq!(
        (stats.invocations, stats.cold_starts, stats.errors),
        (9, 3, 0)
    );
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sequential_calls_use_one_process() {
    let fixture = Fixture::start(|_| {});
    for _ in 0..200 {
        fixture.pid().await;
    }
    assert_eq!(fixture.stats().cold_starts, 1);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_requests_no_further_event_does_not_hold_up_the_next_call() {
    let fixture = Fixture::start(|spec| spec.wait_for_idle = FunctionSpec::WAIT_FOR_IDLE);
    let first = fixture.ask(json!({ "do": "echo", "then": "hang" })).await;
    assert_ne!(first["pid"], fixture.pid().await);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ending_warm_processes_waits_until_they_have_ended() {
    let fixture = Fixture::start(|_| {});
    let pid = fixture.pid().await;
    fixture.settled().await;
    assert_eq!(
        fixture.functions.end_warm().await,
        BTreeMap::from([("probe".to_owned(), 1)])
    );
    assert_eq!(state(pid), None);
    assert_ne!(fixture.pid().await, pid);
    assert_eq!(fixture.stats().cold_starts, 2);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_process_is_ended_after_its_invocation() {
    let fixture = Fixture::start(|_| {});
    let pid = fixture.pid().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (held, ended) = tokio::join!(
        fixture.ask(json!({ "do": "hold", "address": address })),
        async {
            let (holder, _) = listener.accept().await.unwrap();
            let mut ending = pin!(fixture.functions.end_warm());
            assert!(poll!(ending.as_mut()).is_pending());
            assert!(state(pid).is_some());
            drop(holder);
            ending.await
        }
    );
    assert_eq!(held["pid"], pid);
    assert_eq!(ended, BTreeMap::from([("probe".to_owned(), 0)]));
    assert_eq!(state(pid), None);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_while_it_is_stopped_is_replaced() {
    let fixture = Fixture::start(|_| {});
    let pid = fixture.pid().await;
    until("the process is stopped", || state(pid) == Some('T')).await;
    let kill = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    until("the process has ended", || state(pid).is_none()).await;
    assert_ne!(fixture.pid().await, pid);
    assert_eq!(fixture.stats().errors, 0);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_exits_after_its_response_is_replaced() {
    let fixture = Fixture::start(|spec| spec.concurrency = 1);
    for _ in 0..5 {
        fixture.ask(json!({ "do": "echo", "then": "exit" })).await;
    }
    assert_eq!(
        (fixture.stats().cold_starts, fixture.stats().errors),
        (5, 0)
    );
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_for_an_event_and_a_response_to_an_unknown_one_are_refused() {
    let fixture = Fixture::start(|_| {});
    let statuses = fixture.ask(json!({ "do": "twice" })).await;
    assert_eq!(statuses, json!({ "next": "403", "unknown": "400" }));
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_responses_over_six_megabytes_are_refused() {
    let fixture = Fixture::start(|_| {});
    let pid = fixture.pid().await;
    let error = fixture
        .invoke(json!({ "do": "large", "bytes": 6 * 1024 * 1024 + 200 }))
        .await
        .outcome
        .unwrap_err();
    assert_eq!(error.error_type, "Function.ResponseSizeTooLarge");
    let fits = fixture
        .ask(json!({ "do": "large", "bytes": 6 * 1024 * 1024 }))
        .await;
    assert_eq!(fits.as_str().unwrap().len(), 6 * 1024 * 1024);
    let error = fixture
        .invoke(json!({ "do": "echo", "x": "x".repeat(MAX_EVENT) }))
        .await
        .outcome
        .unwrap_err();
    assert!(error.is_event_too_large());
    assert_eq!(fixture.pid().await, pid);
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scratch_folder_lives_as_long_as_its_process() {
    let fixture = Fixture::start(|_| {});
    let scratch = fixture.ask(json!({ "do": "scratch" })).await;
    let scratch = std::path::PathBuf::from(scratch.as_str().unwrap());
    assert!(scratch.join("file").exists());
    fixture.settled().await;
    fixture.functions.end_warm().await;
    assert!(!scratch.exists());
    fixture.functions.stop().await;
    assert_eq!(
        std::fs::read_dir(fixture.data.path().join("tmp"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_was_used_is_reported() {
    let fixture = Fixture::start(|_| {});
    fixture.pid().await;
    let small = fixture.stats().max_rss;
    fixture
        .ask(json!({ "do": "allocate", "bytes": 64 << 20 }))
        .await;
    let large = fixture.stats().max_rss;
    assert!(small > 0 && small < 64 << 20, "{small}");
    assert!(large >= 64 << 20, "{large}");
    fixture.functions.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_function_is_logged_with_a_report_of_each_invocation() {
    let fixture = Fixture::start(|_| {});
    let answer = fixture.invoke(json!({ "do": "exit", "code": 1 })).await;
    fixture.functions.stop().await;
    let log = std::fs::read_to_string(fixture.data.path().join("logs/probe.log")).unwrap();
    assert!(
        log.contains("probe started\n") && log.contains("probe exits\n"),
        "{log}"
    );
    let report = log
        .lines()
        .find(|line| line.contains("platform.report"))
        .unwrap();
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["record"]["requestId"], answer.request_id);
    assert_eq!(report["record"]["status"], "error");
    assert_eq!(report["record"]["errorType"], "Runtime.ExitError");
    assert_eq!(report["record"]["metrics"]["memorySizeMB"], 512);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_the_functions_ends_running_invocations() {
    let fixture = Fixture::start(|_| {});
    let file = fixture.data.path().join("pids");
    let (answer, (pid, child)) = tokio::join!(
        fixture.invoke(json!({ "do": "hang", "tell": file })),
        async {
            let pids = fixture.pids_in(&file).await;
            fixture.functions.stop().await;
            pids
        }
    );
    assert!(answer.outcome.is_err());
    assert_eq!(state(pid), None);
    until("the child has ended", || state(child).is_none()).await;
    assert!(
        fixture
            .invoke(json!({ "do": "echo" }))
            .await
            .outcome
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invocation_that_the_stop_kills_is_not_reported_as_a_failure() {
    let fixture = Fixture::start(|_| {});
    let file = fixture.data.path().join("pids");
    let (answer, ()) = tokio::join!(
        fixture.invoke(json!({ "do": "hang", "tell": file })),
        async {
            fixture.pids_in(&file).await;
            fixture.functions.stop().await;
        }
    );
    let error = answer.outcome.unwrap_err();
    assert_eq!(error.error_message, "the local stack is stopping");
    let log = std::fs::read_to_string(fixture.data.path().join("logs/probe.log")).unwrap();
    assert!(!log.contains("platform.report"), "{log}");
}

#[test]
fn a_missing_binary_is_named() {
    let data = tempfile::tempdir().unwrap();
    let spec = FunctionSpec {
        name: "absent".to_owned(),
        binary: "/no/such/binary".into(),
        memory_mb: 128,
        timeout: Duration::from_secs(1),
        concurrency: 1,
        wait_for_idle: FunctionSpec::WAIT_FOR_IDLE,
        allows_recursion: false,
        log_format: "Text".to_owned(),
        log_group: String::new(),
        environment: BTreeMap::new(),
    };
    let error = Functions::start(vec![spec], &Endpoints::default(), data.path(), None).unwrap_err();
    assert!(matches!(error, FunctionsError::MissingBinaries(_)));
    assert!(error.to_string().contains("/no/such/binary"));
}
