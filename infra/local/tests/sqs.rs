//! The queues and the SQS endpoint, tested with the real client.

#![expect(clippy::unwrap_used, reason = "an error fails the test")]

mod endpoints;

use std::time::Duration;

use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    MessageAttributeValue, MessageSystemAttributeName, QueueAttributeName,
    SendMessageBatchRequestEntry,
};
use endpoints::{Endpoint, ORDERS, S3, TestClock, UPLOADS, sqs_client};
use local_stack::database::Database;
use local_stack::meter::Meter;
use local_stack::queues::{Counts, NewMessage, QueueError, QueueSpec, Queues, Redrive};
use tempfile::TempDir;

struct Sqs {
    endpoint: Endpoint,
    queues: Queues,
    clock: TestClock,
    folder: TempDir,
}

impl Sqs {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = TestClock::new();
        let queues = Queues::with_clock(Database::open(folder.path()).unwrap(), clock.clock());
        queues.create(QueueSpec::named("dead")).await.unwrap();
        let mut spec = QueueSpec::named("orders");
        spec.redrive = Some(Redrive {
            dead_letter: "dead".to_owned(),
            max_receive_count: 2,
        });
        queues.create(spec).await.unwrap();
        let served = queues.clone();
        let endpoint = Endpoint::start(|listener, shutdown| {
            local_stack::sqs::serve(listener, served, Meter::default(), shutdown.wait())
        })
        .await;
        Self {
            endpoint,
            queues,
            clock,
            folder,
        }
    }

    fn client(&self) -> aws_sdk_sqs::Client {
        sqs_client(&self.endpoint.url)
    }

    fn url(&self, queue: &str) -> String {
        format!("{}/000000000000/{queue}", self.endpoint.url)
    }

    async fn counts(&self, queue: &str) -> (u64, u64, u64) {
        let Counts {
            visible,
            in_flight,
            delayed,
        } = self.queues.counts(queue).await.unwrap();
        (visible, in_flight, delayed)
    }

    /// Sends a message of a group to the queue.
    async fn send(&self, group: Option<&str>, body: &str) {
        let message = NewMessage {
            group: group.map(str::to_owned),
            ..NewMessage::text(body)
        };
        self.queues.send("orders", message).await.unwrap();
    }

    /// Receives up to `max` messages of the queue and returns their bodies.
    async fn receive(&self, max: usize) -> Vec<String> {
        let batch = self.queues.receive("orders", max, None).await.unwrap();
        batch.into_iter().map(|message| message.body).collect()
    }
}

#[tokio::test]
async fn a_received_message_is_hidden_until_its_timeout_or_deletion() {
    let sqs = Sqs::start().await;
    sqs.queues
        .send("orders", NewMessage::text("work"))
        .await
        .unwrap();
    let first = sqs.queues.receive("orders", 10, None).await.unwrap();
    assert_eq!(first[0].body, "work");
    assert_eq!(first[0].receive_count, 1);
    assert_eq!(sqs.counts("orders").await, (0, 1, 0));
    assert!(
        sqs.queues
            .receive("orders", 10, None)
            .await
            .unwrap()
            .is_empty()
    );

    sqs.clock.pass(30);
    let second = sqs.queues.receive("orders", 10, None).await.unwrap();
    assert_eq!(
        (second[0].id.as_str(), second[0].receive_count),
        (first[0].id.as_str(), 2)
    );
    assert_eq!(
        second[0].first_received_at_ms,
        first[0].first_received_at_ms
    );

    // A receipt handle other than the latest one deletes nothing.
    sqs.queues
        .delete("orders", &first[0].receipt)
        .await
        .unwrap();
    assert_eq!(sqs.counts("orders").await, (0, 1, 0));
    sqs.queues
        .delete("orders", &second[0].receipt)
        .await
        .unwrap();
    assert_eq!(sqs.counts("orders").await, (0, 0, 0));
}

#[tokio::test]
async fn a_message_received_too_often_moves_to_the_dead_letter_queue() {
    let sqs = Sqs::start().await;
    let id = sqs
        .queues
        .send("orders", NewMessage::text("poison"))
        .await
        .unwrap();
    for _ in 0..2 {
        assert_eq!(
            sqs.queues.receive("orders", 1, None).await.unwrap().len(),
            1
        );
        sqs.clock.pass(30);
    }
    assert!(
        sqs.queues
            .receive("orders", 1, None)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(sqs.counts("orders").await, (0, 0, 0));
    let dead = sqs.queues.receive("dead", 1, None).await.unwrap();
    assert_eq!(
        (dead[0].id.as_str(), dead[0].moved_from.as_deref()),
        (id.as_str(), Some("orders"))
    );
}

#[tokio::test]
async fn a_delayed_message_is_visible_after_its_delay() {
    let sqs = Sqs::start().await;
    let message = NewMessage {
        delay: Some(Duration::from_secs(60)),
        ..NewMessage::text("later")
    };
    sqs.queues.send("orders", message).await.unwrap();
    assert_eq!(sqs.counts("orders").await, (0, 0, 1));
    let due = sqs
        .queues
        .next_visible_at_ms("orders")
        .await
        .unwrap()
        .unwrap();
    assert!(
        sqs.queues
            .receive("orders", 1, None)
            .await
            .unwrap()
            .is_empty()
    );
    sqs.clock.pass(60);
    assert_eq!(due, sqs.queues.clock().now_ms());
    assert_eq!(
        sqs.queues.receive("orders", 1, None).await.unwrap().len(),
        1
    );

    let message = NewMessage {
        delay: Some(Duration::from_secs(901)),
        ..NewMessage::text("never")
    };
    assert!(matches!(
        sqs.queues.send("orders", message).await,
        Err(QueueError::InvalidParameter(_))
    ));
}

#[tokio::test]
async fn the_trace_of_a_request_is_kept_with_its_message() {
    const TRACE: &str = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=0";
    let sqs = Sqs::start().await;
    let client = sqs.client();
    for trace in [TRACE, "no trace"] {
        let url = client.get_queue_url().queue_name("orders").send().await;
        let send = client
            .send_message()
            .queue_url(url.unwrap().queue_url().unwrap())
            .message_body(trace)
            .customize();
        let send = send.mutate_request(move |request| {
            request.headers_mut().insert("x-amzn-trace-id", trace);
        });
        send.send().await.unwrap();
    }
    for expected in [Some(TRACE), None] {
        let received = sqs.queues.receive("orders", 1, None).await.unwrap();
        assert_eq!(received[0].trace_header.as_deref(), expected);
    }
}

#[tokio::test]
async fn visibility_changes_only_while_the_message_is_in_flight() {
    let sqs = Sqs::start().await;
    sqs.queues
        .send("orders", NewMessage::text("work"))
        .await
        .unwrap();
    let got = sqs
        .queues
        .receive("orders", 1, None)
        .await
        .unwrap()
        .remove(0);
    sqs.queues
        .change_visibility("orders", &got.receipt, Duration::from_secs(100))
        .await
        .unwrap();
    sqs.clock.pass(99);
    assert!(
        sqs.queues
            .receive("orders", 1, None)
            .await
            .unwrap()
            .is_empty()
    );
    sqs.queues
        .change_visibility("orders", &got.receipt, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(sqs.counts("orders").await, (1, 0, 0));
    let late = sqs
        .queues
        .change_visibility("orders", &got.receipt, Duration::ZERO)
        .await;
    assert!(matches!(late, Err(QueueError::NotInFlight)));
    let nonsense = sqs.queues.delete("orders", "nonsense").await;
    assert!(matches!(nonsense, Err(QueueError::InvalidReceipt(_))));
    let elsewhere = sqs.queues.send("nowhere", NewMessage::text("x")).await;
    assert!(matches!(elsewhere, Err(QueueError::NoSuchQueue(_))));
}

#[tokio::test]
async fn messages_survive_a_killed_stack_and_those_in_flight_are_visible_at_once() {
    let sqs = Sqs::start().await;
    for body in ["one", "two"] {
        sqs.queues
            .send("orders", NewMessage::text(body))
            .await
            .unwrap();
    }
    let held = sqs.queues.receive("orders", 1, None).await.unwrap();
    // A second handle on the folder, as a new process would have. The first one was never closed.
    let again = Queues::with_clock(
        Database::open(sqs.folder.path()).unwrap(),
        sqs.clock.clock(),
    );
    assert_eq!(again.release_all().await.unwrap(), 1);
    let all = again.receive("orders", 10, None).await.unwrap();
    assert_eq!(all.len(), 2);
    assert!(
        all.iter().all(|message| message.receive_count == 1),
        "{all:?}"
    );
    // The receipt handle of the dead consumer no longer deletes the message.
    again.delete("orders", &held[0].receipt).await.unwrap();
    assert_eq!(again.counts("orders").await.unwrap().in_flight, 2);
}

#[tokio::test]
async fn messages_expire_after_their_retention() {
    let sqs = Sqs::start().await;
    sqs.queues
        .send("orders", NewMessage::text("old"))
        .await
        .unwrap();
    sqs.clock.pass(4 * 24 * 3600);
    assert_eq!(sqs.counts("orders").await, (0, 0, 0));
    assert!(
        sqs.queues
            .receive("orders", 1, None)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_receivers_never_share_a_message() {
    let sqs = Sqs::start().await;
    for number in 0..200 {
        sqs.queues
            .send("orders", NewMessage::text(number.to_string()))
            .await
            .unwrap();
    }
    let receivers = (0..16).map(|_| {
        let queues = sqs.queues.clone();
        tokio::spawn(async move {
            let mut bodies = Vec::new();
            loop {
                let batch = queues.receive("orders", 7, None).await.unwrap();
                if batch.is_empty() {
                    return bodies;
                }
                bodies.extend(batch.into_iter().map(|message| message.body));
            }
        })
    });
    let mut bodies: Vec<String> = futures::future::join_all(receivers)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(bodies.len(), 200);
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), 200);
}

#[tokio::test]
async fn one_message_of_a_group_does_not_wait_for_the_backlog_of_another() {
    let sqs = Sqs::start().await;
    for number in 0..1000 {
        sqs.send(Some("backlog"), &number.to_string()).await;
    }
    sqs.send(Some("quiet"), "one").await;
    assert_eq!(sqs.receive(1).await, ["0"]);
    assert_eq!(sqs.receive(1).await, ["one"]);
    assert_eq!(sqs.receive(2).await, ["1", "2"]);
}

#[tokio::test]
async fn groups_take_turns_within_one_batch_and_each_keeps_its_order() {
    let sqs = Sqs::start().await;
    for body in ["a1", "a2", "a3", "b1", "b2", "c1"] {
        sqs.send(body.get(..1), body).await;
    }
    let all = sqs.receive(10).await;
    assert_eq!(all, ["a1", "b1", "c1", "a2", "b2", "a3"]);
}

#[tokio::test]
async fn a_message_without_a_group_is_a_group_of_its_own() {
    let sqs = Sqs::start().await;
    sqs.send(Some("a"), "a1").await;
    sqs.send(Some("a"), "a2").await;
    for body in ["1", "2", "3"] {
        sqs.send(None, body).await;
    }
    assert_eq!(sqs.receive(2).await, ["a1", "1"]);
    assert_eq!(sqs.receive(10).await, ["2", "3", "a2"]);
}

#[tokio::test]
async fn messages_no_longer_in_flight_do_not_hold_back_their_group() {
    let sqs = Sqs::start().await;
    for body in ["a1", "a2", "a3", "b1"] {
        sqs.send(body.get(..1), body).await;
    }
    let first = sqs
        .queues
        .receive("orders", 1, None)
        .await
        .unwrap()
        .remove(0);
    assert_eq!(first.body, "a1");
    sqs.queues.delete("orders", &first.receipt).await.unwrap();
    assert_eq!(sqs.receive(1).await, ["a2"]);
    // Its visibility timeout ends, and it is visible again, after the messages that became visible
    // earlier.
    sqs.clock.pass(30);
    assert_eq!(sqs.receive(10).await, ["a3", "b1", "a2"]);
}

#[tokio::test]
async fn with_a_visibility_timeout_of_zero_no_batch_contains_a_message_twice() {
    let sqs = Sqs::start().await;
    for body in ["a1", "a2", "b1"] {
        sqs.send(body.get(..1), body).await;
    }
    let zero = Some(Duration::ZERO);
    let batch = sqs.queues.receive("orders", 10, zero).await.unwrap();
    let bodies: Vec<&str> = batch.iter().map(|message| &*message.body).collect();
    assert_eq!(bodies, ["a1", "b1", "a2"]);
    assert_eq!(sqs.counts("orders").await, (3, 0, 0));
}

#[tokio::test]
async fn an_event_of_a_bucket_has_no_group() {
    let s3 = S3::start().await;
    let put = s3.client().put_object().bucket(UPLOADS).key("global/a");
    put.send().await.unwrap();
    let event = s3.queues.receive(ORDERS, 1, None).await.unwrap().remove(0);
    assert!(event.body.contains("ObjectCreated:Put"), "{event:?}");
    assert_eq!(event.group, None);
}

#[tokio::test]
async fn the_client_sends_and_receives_with_attributes_and_digests() {
    let sqs = Sqs::start().await;
    let (client, url) = (sqs.client(), sqs.url("orders"));
    let attribute = |kind: &str| MessageAttributeValue::builder().data_type(kind);
    let sent = client
        .send_message()
        .queue_url(&url)
        .message_body("hello")
        .message_attributes(
            "scope",
            attribute("String").string_value("global").build().unwrap(),
        )
        .message_attributes(
            "blob",
            attribute("Binary")
                .binary_value(Blob::new([0, 1, 255]))
                .build()
                .unwrap(),
        )
        .message_group_id("tenant")
        .send()
        .await
        .unwrap();
    assert_eq!(
        sent.md5_of_message_body(),
        Some("5d41402abc4b2a76b9719d911017c592")
    );
    let got = client
        .receive_message()
        .queue_url(&url)
        .message_attribute_names("All")
        .message_system_attribute_names(MessageSystemAttributeName::All)
        .send()
        .await
        .unwrap();
    let message = &got.messages()[0];
    assert_eq!(message.body(), Some("hello"));
    assert_eq!(message.message_id(), sent.message_id());
    assert_eq!(
        message.md5_of_message_attributes(),
        sent.md5_of_message_attributes()
    );
    let attributes = message.message_attributes().unwrap();
    assert_eq!(attributes["scope"].string_value(), Some("global"));
    assert_eq!(
        attributes["blob"].binary_value().unwrap().as_ref(),
        [0, 1, 255]
    );
    let system = message.attributes().unwrap();
    assert_eq!(
        system[&MessageSystemAttributeName::ApproximateReceiveCount],
        "1"
    );
    assert_eq!(
        system[&MessageSystemAttributeName::MessageGroupId],
        "tenant"
    );

    let receipt = message.receipt_handle().unwrap();
    client
        .change_message_visibility()
        .queue_url(&url)
        .receipt_handle(receipt)
        .visibility_timeout(5)
        .send()
        .await
        .unwrap();
    client
        .delete_message()
        .queue_url(&url)
        .receipt_handle(receipt)
        .send()
        .await
        .unwrap();
    assert_eq!(sqs.counts("orders").await, (0, 0, 0));
}

#[tokio::test]
async fn a_batch_reports_the_entries_that_failed() {
    let sqs = Sqs::start().await;
    let (client, url) = (sqs.client(), sqs.url("orders"));
    let entry = |id: &str, body: &str| {
        SendMessageBatchRequestEntry::builder()
            .id(id)
            .message_body(body)
            .build()
            .unwrap()
    };
    let sent = client
        .send_message_batch()
        .queue_url(&url)
        .entries(entry("a", "one"))
        .entries(entry("b", "bad \u{1}"))
        .entries(entry("c", "three"))
        .send()
        .await
        .unwrap();
    assert_eq!(
        sent.successful()
            .iter()
            .map(|entry| entry.id())
            .collect::<Vec<_>>(),
        ["a", "c"]
    );
    assert_eq!(sent.failed()[0].code(), "InvalidMessageContents");

    let got = client
        .receive_message()
        .queue_url(&url)
        .max_number_of_messages(10)
        .send()
        .await
        .unwrap();
    assert_eq!(
        got.messages()
            .iter()
            .map(|message| message.body().unwrap())
            .collect::<Vec<_>>(),
        ["one", "three"]
    );

    let twice = client
        .send_message_batch()
        .queue_url(&url)
        .entries(entry("a", "x"))
        .entries(entry("a", "y"))
        .send()
        .await;
    assert!(
        twice
            .unwrap_err()
            .into_service_error()
            .is_batch_entry_ids_not_distinct()
    );
}

#[tokio::test]
async fn errors_have_the_names_that_the_client_knows() {
    let sqs = Sqs::start().await;
    let client = sqs.client();
    let nowhere = client
        .send_message()
        .queue_url(sqs.url("nowhere"))
        .message_body("x")
        .send()
        .await;
    assert!(
        nowhere
            .unwrap_err()
            .into_service_error()
            .is_queue_does_not_exist()
    );
    let receipt = client
        .delete_message()
        .queue_url(sqs.url("orders"))
        .receipt_handle("x")
        .send()
        .await;
    assert!(
        receipt
            .unwrap_err()
            .into_service_error()
            .is_receipt_handle_is_invalid()
    );
    let long = "x".repeat(1024 * 1024 + 1);
    let long = client
        .send_message()
        .queue_url(sqs.url("orders"))
        .message_body(long)
        .send()
        .await;
    assert_eq!(long.unwrap_err().code(), Some("InvalidParameterValue"));
    let longest = "x".repeat(1024 * 1024);
    client
        .send_message()
        .queue_url(sqs.url("orders"))
        .message_body(longest)
        .send()
        .await
        .unwrap();
    let many = client
        .receive_message()
        .queue_url(sqs.url("orders"))
        .max_number_of_messages(11)
        .send()
        .await;
    assert_eq!(many.unwrap_err().code(), Some("InvalidParameterValue"));
    let made = client.create_queue().queue_name("new").send().await;
    assert!(
        made.unwrap_err()
            .into_service_error()
            .is_unsupported_operation()
    );
}

#[tokio::test]
async fn queues_are_found_described_and_purged() {
    let sqs = Sqs::start().await;
    let client = sqs.client();
    let url = client
        .get_queue_url()
        .queue_name("orders")
        .send()
        .await
        .unwrap();
    assert_eq!(url.queue_url(), Some(sqs.url("orders").as_str()));
    let list = client.list_queues().send().await.unwrap();
    assert_eq!(list.queue_urls(), [sqs.url("dead"), sqs.url("orders")]);
    client
        .send_message()
        .queue_url(sqs.url("orders"))
        .message_body("x")
        .send()
        .await
        .unwrap();
    let attributes = client
        .get_queue_attributes()
        .queue_url(sqs.url("orders"))
        .attribute_names(QueueAttributeName::All)
        .send()
        .await
        .unwrap();
    let attributes = attributes.attributes().unwrap();
    assert_eq!(
        attributes[&QueueAttributeName::ApproximateNumberOfMessages],
        "1"
    );
    assert_eq!(
        attributes[&QueueAttributeName::QueueArn],
        "arn:aws:sqs:us-east-1:000000000000:orders"
    );
    assert!(attributes[&QueueAttributeName::RedrivePolicy].contains("\"maxReceiveCount\":2"));
    client
        .purge_queue()
        .queue_url(sqs.url("orders"))
        .send()
        .await
        .unwrap();
    assert_eq!(sqs.counts("orders").await, (0, 0, 0));
}

#[tokio::test]
async fn a_long_poll_ends_with_the_message_that_it_waits_for() {
    let sqs = Sqs::start().await;
    let (client, url) = (sqs.client(), sqs.url("orders"));
    let poll = client
        .receive_message()
        .queue_url(&url)
        .wait_time_seconds(20)
        .send();
    let send = async {
        // The test cannot observe that the poll waits; the message must arrive in either order.
        tokio::task::yield_now().await;
        sqs.queues
            .send("orders", NewMessage::text("now"))
            .await
            .unwrap();
    };
    let (got, ()) = tokio::join!(poll, send);
    assert_eq!(got.unwrap().messages()[0].body(), Some("now"));
}
