//! Moves of messages out of dead-letter queues, tested with the real client.

#![expect(clippy::unwrap_used, reason = "an error fails the test")]

mod endpoints;

use aws_sdk_sqs::error::ProvideErrorMetadata;
use endpoints::{Endpoint, TestClock, sqs_client};
use local_stack::database::Database;
use local_stack::meter::Meter;
use local_stack::queues::{NewMessage, QueueSpec, Queues, Redrive};
use tempfile::TempDir;

const DEAD: &str = "arn:aws:sqs:us-east-1:000000000000:dead";

/// Two queues with one dead-letter queue, and one queue without.
struct Sqs {
    endpoint: Endpoint,
    queues: Queues,
    clock: TestClock,
    _folder: TempDir,
}

impl Sqs {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = TestClock::new();
        let queues = Queues::with_clock(Database::open(folder.path()).unwrap(), clock.clock());
        for name in ["dead", "other"] {
            queues.create(QueueSpec::named(name)).await.unwrap();
        }
        for name in ["orders", "bills"] {
            let mut spec = QueueSpec::named(name);
            spec.redrive = Some(Redrive {
                dead_letter: "dead".to_owned(),
                max_receive_count: 1,
            });
            queues.create(spec).await.unwrap();
        }
        let served = queues.clone();
        let endpoint = Endpoint::start(|listener, shutdown| {
            local_stack::sqs::serve(listener, served, Meter::default(), shutdown.wait())
        })
        .await;
        Self {
            endpoint,
            queues,
            clock,
            _folder: folder,
        }
    }

    fn client(&self) -> aws_sdk_sqs::Client {
        sqs_client(&self.endpoint.url)
    }

    /// Sends a message to a queue, and lets it fail until it is a dead letter.
    async fn bury(&self, queue: &str, body: &str) {
        let message = NewMessage {
            group: Some("tenant".to_owned()),
            attributes: [("scope".to_owned(), "global".to_owned())].into(),
            ..NewMessage::text(body)
        };
        self.queues.send(queue, message).await.unwrap();
        assert_eq!(self.queues.receive(queue, 1, None).await.unwrap().len(), 1);
        self.clock.pass(30);
        assert!(
            self.queues
                .receive(queue, 1, None)
                .await
                .unwrap()
                .is_empty()
        );
    }

    async fn visible(&self, queue: &str) -> u64 {
        self.queues.counts(queue).await.unwrap().visible
    }
}

#[tokio::test]
async fn dead_letters_move_back_to_where_they_came_from_as_new_messages() {
    let sqs = Sqs::start().await;
    sqs.bury("orders", "an order").await;
    sqs.bury("bills", "a bill").await;
    sqs.clock.pass(60);
    let client = sqs.client();
    let task = client.start_message_move_task().source_arn(DEAD);
    assert!(task.send().await.unwrap().task_handle().is_some());
    assert_eq!(sqs.visible("dead").await, 0);
    for (queue, body) in [("orders", "an order"), ("bills", "a bill")] {
        let received = sqs.queues.receive(queue, 10, None).await.unwrap();
        let [message] = received.as_slice() else {
            panic!("{queue}: {received:?}");
        };
        assert_eq!(message.body, body);
        assert_eq!((message.receive_count, &message.moved_from), (1, &None));
        assert_eq!(message.sent_at_ms, sqs.clock.clock().now_ms());
        assert_eq!(message.group.as_deref(), Some("tenant"));
        assert_eq!(message.attributes["scope"], "global");
    }
    let listed = client.list_message_move_tasks().source_arn(DEAD);
    let listed = listed.send().await.unwrap();
    let [task] = listed.results() else {
        panic!("{listed:?}");
    };
    assert_eq!(task.status(), Some("COMPLETED"));
    assert_eq!(task.approximate_number_of_messages_moved(), 2);
    assert_eq!(task.approximate_number_of_messages_to_move(), Some(2));
    assert_eq!(task.started_timestamp(), sqs.clock.clock().now_ms());
    assert_eq!((task.task_handle(), task.failure_reason()), (None, None));
}

#[tokio::test]
async fn messages_in_flight_stay_and_a_destination_takes_all_others() {
    let sqs = Sqs::start().await;
    sqs.bury("orders", "in flight").await;
    assert_eq!(sqs.queues.receive("dead", 1, None).await.unwrap().len(), 1);
    // It never was in another queue.
    sqs.queues
        .send("dead", NewMessage::text("sent"))
        .await
        .unwrap();
    let other = DEAD.replace("dead", "other");
    let client = sqs.client();
    let task = client.start_message_move_task().source_arn(DEAD);
    let task = task
        .destination_arn(&other)
        .max_number_of_messages_per_second(5);
    task.send().await.unwrap();
    assert_eq!(sqs.visible("other").await, 1);
    assert_eq!(sqs.queues.counts("dead").await.unwrap().in_flight, 1);
    let listed = client.list_message_move_tasks().source_arn(DEAD);
    let task = listed.send().await.unwrap().results()[0].clone();
    assert_eq!(task.destination_arn(), Some(other.as_str()));
    assert_eq!(task.max_number_of_messages_per_second(), Some(5));
}

#[tokio::test]
async fn a_message_of_unknown_source_stays_and_fails_the_task() {
    let sqs = Sqs::start().await;
    sqs.bury("orders", "an order").await;
    sqs.queues
        .send("dead", NewMessage::text("sent"))
        .await
        .unwrap();
    let client = sqs.client();
    let task = client.start_message_move_task().source_arn(DEAD);
    task.send().await.unwrap();
    assert_eq!(
        (sqs.visible("dead").await, sqs.visible("orders").await),
        (1, 1)
    );
    let listed = client.list_message_move_tasks().source_arn(DEAD);
    let task = listed.send().await.unwrap().results()[0].clone();
    assert_eq!(task.status(), Some("FAILED"));
    assert_eq!(
        task.failure_reason(),
        Some("CouldNotDetermineMessageSource")
    );
}

#[tokio::test]
async fn the_last_ten_tasks_are_listed_the_newest_first() {
    let sqs = Sqs::start().await;
    let client = sqs.client();
    for _ in 0..12 {
        sqs.clock.pass(1);
        client
            .start_message_move_task()
            .source_arn(DEAD)
            .send()
            .await
            .unwrap();
    }
    let listed = client
        .list_message_move_tasks()
        .source_arn(DEAD)
        .max_results(10);
    let listed = listed.send().await.unwrap();
    let now = sqs.clock.clock().now_ms();
    let started = listed
        .results()
        .iter()
        .map(|task| now - task.started_timestamp());
    let expected = (0..10).map(|seconds| seconds * 1000);
    assert_eq!(started.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_task_that_cannot_be_done_is_refused_as_aws_refuses_it() {
    let sqs = Sqs::start().await;
    let client = sqs.client();
    let start = |source: &str| client.start_message_move_task().source_arn(source);
    let arn = |queue: &str| DEAD.replace("dead", queue);
    let code = |error: &dyn ProvideErrorMetadata| error.code().unwrap_or_default().to_owned();
    let mut codes = Vec::new();
    for task in [
        start(&arn("absent")),
        start("dead"),
        start(&arn("orders")),
        start(DEAD).destination_arn(arn("absent")),
        start(DEAD).destination_arn(DEAD),
        start(DEAD).max_number_of_messages_per_second(501),
    ] {
        codes.push(code(&task.send().await.unwrap_err()));
    }
    let listed = client.list_message_move_tasks().source_arn(arn("absent"));
    codes.push(code(&listed.send().await.unwrap_err()));
    let too_many = client
        .list_message_move_tasks()
        .source_arn(DEAD)
        .max_results(11);
    codes.push(code(&too_many.send().await.unwrap_err()));
    let absent = client.cancel_message_move_task().task_handle("none");
    codes.push(code(&absent.send().await.unwrap_err()));
    let done = start(DEAD).send().await.unwrap();
    let done = client
        .cancel_message_move_task()
        .task_handle(done.task_handle().unwrap());
    codes.push(code(&done.send().await.unwrap_err()));
    let (not_found, invalid) = ("ResourceNotFoundException", "InvalidParameterValue");
    let expected = [
        not_found, invalid, invalid, not_found, invalid, invalid, not_found, invalid, not_found,
        invalid,
    ];
    assert_eq!(codes, expected);
}
