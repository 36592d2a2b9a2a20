//! Processes are killed at chosen moments: no work is lost, and no process or message remains.

use std::time::Duration;

use symbolic::common::ByteView;
use symbolic::debuginfo::Object;
use symdepot::runtime::parser;
use symdepot_tests::stack::{Binaries, Client, LocalStack, Process, until};

use crate::made_up::MadeUp;
use crate::{PATIENCE, Running, bytes_of, crash};

/// The timeout of `derive`. The lease of a killed builder ends with the timeout, which is 15
/// minutes by default.
const DERIVE_SECONDS: u64 = 30;

/// The number of functions of a module whose parser runs long enough that a test observes it at
/// work.
const MANY_FUNCTIONS: usize = 150_000;

/// The number of attempts for a file, which is the default of the template.
const ATTEMPTS: u64 = 3;

/// An uploaded program and its identifiers.
struct Program {
    key: String,
    debug_id: String,
    /// The address of its `main`.
    main: u64,
}

impl Program {
    async fn upload(client: &Client, name: &str) -> Self {
        let path = Binaries::from_env().unwrap().get(name);
        let view = ByteView::open(&path).unwrap();
        let object = Object::parse(&view).unwrap();
        let main = object
            .symbols()
            .find(|symbol| symbol.name() == Some("main"))
            .unwrap()
            .address;
        let key = format!("global/programs/{name}");
        client.upload_file(&key, &path).await.unwrap();
        Self {
            key,
            debug_id: object.debug_id().to_string(),
            main,
        }
    }

    /// Panics unless the upload was applied and a crash in the program is symbolicated.
    async fn assert_serves(&self, running: &Running) {
        let (state, upload) = running.state_of(&self.key).await;
        assert_eq!(state, "applied", "{upload:#}");
        let request = crash::of_module(crash::module("elf", &self.debug_id, None), &[self.main]);
        let answer = running.client().completed("", &request).await.unwrap();
        assert_eq!(
            answer["stacktraces"][0]["frames"][0]["function"], "main",
            "{answer:#}"
        );
    }
}

#[tokio::test]
async fn nothing_is_lost_when_the_stack_is_killed_while_it_derives() {
    let mut running =
        Running::start_with(|options| options.timeout("derive", DERIVE_SECONDS)).await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let program = Program::upload(running.client(), "local-stack").await;
    parser_at_work(&running.stack, Duration::ZERO).await;

    let processes = running.stack.kill().await.unwrap();
    assert!(
        processes.iter().any(is_parser) && processes.iter().any(is_derive),
        "{processes:#?}"
    );
    let gone = until("the end of its processes", PATIENCE, async || {
        processes
            .iter()
            .all(|process| !process.is_alive())
            .then_some(())
    });
    if let Err(error) = gone.await {
        let left: Vec<&Process> = processes
            .iter()
            .filter(|process| process.is_alive())
            .collect();
        panic!("{error}: {left:#?}");
    }

    let Running { stack, folder } = running;
    let running = Running {
        stack: stack.restart().await.unwrap(),
        folder,
    };
    running.idle().await;
    program.assert_serves(&running).await;
    crash::assert_symbolicated(&running.sample_answer().await);
    assert_eq!(running.client().stats().await.unwrap().dead_letters(), 0);
}

#[tokio::test]
async fn a_message_is_delivered_again_when_its_function_is_killed() {
    let running = Running::start_with(|options| options.timeout("derive", DERIVE_SECONDS)).await;
    let modules = [1, 2, 3].map(|number| MadeUp::new(number, MANY_FUNCTIONS));
    // Each invocation is killed at a different moment: before the parser has done any work, and
    // then later and later in its work. The parser has more than twice as much work, and no other
    // one runs beside it, so that a busy machine has time to observe it.
    let mut killed: Vec<Process> = Vec::new();
    for (module, worked) in modules.iter().zip([0, 100, 300]) {
        let uploaded = running.client().upload(&module.key(), module.file()).await;
        uploaded.unwrap();
        let worked = Duration::from_millis(worked);
        let (parser, derive) = parser_at_work_but(&running.stack, worked, &killed).await;
        derive.kill();
        killed.extend([parser, derive]);
    }
    until("the end of the parsers", PATIENCE, async || {
        killed
            .iter()
            .all(|process| !process.is_alive())
            .then_some(())
    })
    .await
    .unwrap();
    running.settled().await;
    for module in modules {
        let (state, upload) = running.state_of(&module.key()).await;
        assert_eq!(state, "applied", "{upload:#}");
        let answer = running.client().completed("", &module.crash()).await;
        module.assert_symbolicated(&answer.unwrap());
    }
    let stats = running.client().stats().await.unwrap();
    assert!(
        stats.function("derive").errors >= modules.len() as u64,
        "{stats:#?}"
    );
    assert_eq!(stats.dead_letters(), 0, "{stats:#?}");
}

#[tokio::test]
async fn a_function_survives_its_parser_and_retries() {
    let running = Running::start().await;
    // Starts the function that is asked below, so that it answers at once.
    running.client().explain("global/none").await.unwrap();
    let program = Program::upload(running.client(), "local-stack").await;
    let (parser, derive) = parser_at_work(&running.stack, Duration::ZERO).await;
    let named = until("the ids in the program", PATIENCE, async || {
        let (_, upload) = running.state_of(&program.key).await;
        upload["objects"].is_array().then_some(upload)
    });
    let named = named.await.unwrap();
    // The parser now derives, which takes it seconds.
    assert_eq!(named["state"], "pending", "{named:#}");
    parser.kill();
    parser_at_work_but(&running.stack, Duration::ZERO, &[parser]).await;
    running.idle().await;
    assert!(derive.is_alive(), "the function must survive its parser");
    program.assert_serves(&running).await;
    let stats = running.client().stats().await.unwrap().function("derive");
    assert_eq!((stats.errors, stats.timeouts), (0, 0));
}

#[tokio::test]
async fn a_file_that_kills_its_parser_each_time_is_given_up_after_three_attempts() {
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    let client = running.client();
    let module = MadeUp::new(1, MANY_FUNCTIONS);
    running.upload(&module.key(), module.file()).await;
    client.prune(false).await.unwrap();
    client.end_functions().await.unwrap();
    client.clear_stats().await.unwrap();

    let crash = module.crash();
    let answer = while_every_parser_dies(&running.stack, client.completed_at_last(&crash)).await;
    crash::assert_nothing_found(&answer.unwrap(), "malformed");
    running.idle().await;
    let stats = client.stats().await.unwrap();
    let fetched = stats.of_bucket(client.addresses().uploads(), "GetObject");
    let size = module.file().len() as u64;
    assert_eq!(fetched.bytes_out, ATTEMPTS * size, "{stats:#?}");
    let derive = stats.function("derive");
    // Every process that was started is alive.
    let processes = running.stack.processes();
    let alive = processes.iter().filter(|process| is_derive(process));
    let survived = (0, alive.count() as u64);
    assert_eq!((derive.errors, derive.cold_starts), survived, "{stats:#?}");
    assert_eq!(stats.dead_letters(), 0, "{stats:#?}");

    // The result is stored, with its reason.
    client.end_functions().await.unwrap();
    client.clear_stats().await.unwrap();
    let answer = client.completed("", &crash).await.unwrap();
    let detail = answer["modules"][0]["debug_detail"].as_str();
    assert!(
        detail.is_some_and(|detail| detail.contains("3 attempts")),
        "{answer:#}"
    );
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 0, "{stats:#?}");
}

#[tokio::test]
async fn an_upload_is_applied_after_its_function_exceeded_its_timeout() {
    let running = Running::start_with(|options| options.timeout("derive", 15)).await;
    let client = running.client();
    // Enough functions to observe the parser at work, and few enough that the second attempt
    // finishes within the timeout on a loaded machine.
    let module = MadeUp::new(1, MANY_FUNCTIONS / 4);
    client.upload(&module.key(), module.file()).await.unwrap();
    let (parser, derive) = parser_at_work(&running.stack, Duration::ZERO).await;
    derive.freeze();
    running.settled().await;
    assert!(!parser.is_alive() && !derive.is_alive());
    let (state, upload) = running.state_of(&module.key()).await;
    assert_eq!(state, "applied", "{upload:#}");
    module.assert_symbolicated(&client.completed("", &module.crash()).await.unwrap());
    let stats = client.stats().await.unwrap();
    let derive = stats.function("derive");
    assert_eq!((derive.timeouts, derive.errors), (1, 1), "{derive:#?}");
    assert_eq!(stats.dead_letters(), 0, "{stats:#?}");
}

/// Runs `work` and kills every parser as soon as it is observed.
async fn while_every_parser_dies<T>(stack: &LocalStack, work: impl Future<Output = T>) -> T {
    let killing = until("the end of all parsers", PATIENCE, async || {
        for parser in stack
            .processes()
            .iter()
            .filter(|process| is_parser(process))
        {
            parser.kill();
        }
        None::<()>
    });
    tokio::select! {
        done = work => done,
        ended = killing => panic!("{ended:?}"),
    }
}

/// Waits until a parser has used this much CPU time; returns it and the function that started it.
pub(crate) async fn parser_at_work(stack: &LocalStack, worked: Duration) -> (Process, Process) {
    parser_at_work_but(stack, worked, &[]).await
}

/// As [`parser_at_work`], but ignores the processes in `known`.
async fn parser_at_work_but(
    stack: &LocalStack,
    worked: Duration,
    known: &[Process],
) -> (Process, Process) {
    let found = until("the work of a parser", PATIENCE, async || {
        for derive in stack.processes().into_iter().filter(is_derive) {
            let mut family = Process::tree(derive.pid.unsigned_abs());
            // Between `fork` and `exec`, a parser has the arguments of its function. It is not the
            // function.
            family.retain(|process| process.pid != derive.pid);
            let parser = family
                .into_iter()
                .find(|process| is_parser(process) && process.cpu_time() >= worked);
            if let Some(parser) =
                parser.filter(|parser| !known.contains(parser) && !known.contains(&derive))
            {
                return Some((parser, derive));
            }
        }
        None
    });
    found.await.unwrap()
}

pub(crate) fn is_derive(process: &Process) -> bool {
    process.program() == "derive" && process.arguments.len() == 1
}

pub(crate) fn is_parser(process: &Process) -> bool {
    process
        .arguments
        .get(1)
        .is_some_and(|argument| argument == parser::COMMAND)
}
