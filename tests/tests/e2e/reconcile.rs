//! Lost events: a prune run finds the uploads and removals that they were about, and `derive`
//! applies them.

use local_stack::database::Database;
use local_stack::meter::Meter;
use local_stack::queues::Queues;
use local_stack::s3::{self, Store};
use symdepot_tests::stack::{Client, LocalStack};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::{Running, assert_one_build, bytes_of, crash};

const KEY: &str = "global/crash.debug";

#[tokio::test]
async fn an_upload_whose_event_was_lost_is_applied_after_the_next_prune_run() {
    let running = Running::start_with(|options| options.variable("RECONCILE_AFTER", 0)).await;
    let running = without_events(running, async |client| {
        client.upload(KEY, bytes_of("elf/crash.debug")).await
    })
    .await;
    let client = running.client();
    running.idle().await;
    assert_eq!(client.explain(KEY).await.unwrap().status, 404);
    let before = running.sample_answer().await;
    crash::assert_nothing_found(&before, "missing");

    running.idle().await;
    client.clear_stats().await.unwrap();
    let report = client.prune(false).await.unwrap();
    assert_eq!(report["reconciled"], 1, "{report:#}");
    running.idle().await;
    let stats = client.stats().await.unwrap();
    assert_one_build(&stats);
    let (state, upload) = running.state_of(KEY).await;
    assert_eq!(state, "applied", "{upload:#}");
    client.end_functions().await.unwrap();
    crash::assert_symbolicated(&running.sample_answer().await);

    let again = client.prune(false).await.unwrap();
    assert_eq!(again["reconciled"], 0, "{again:#}");
}

#[tokio::test]
async fn a_removal_whose_event_was_lost_is_applied_after_the_next_prune_run() {
    let running = Running::start_with(|options| options.variable("RECONCILE_AFTER", 0)).await;
    running.upload(KEY, bytes_of("elf/crash.debug")).await;
    let running = without_events(running, async |client| client.remove(KEY).await).await;
    let client = running.client();
    running.idle().await;
    assert_eq!(running.state_of(KEY).await.0, "applied");
    crash::assert_symbolicated(&running.sample_answer().await);

    let report = client.prune(false).await.unwrap();
    assert_eq!(report["reconciled"], 1, "{report:#}");
    running.idle().await;
    assert_eq!(running.state_of(KEY).await.0, "gone");
    client.end_functions().await.unwrap();
    let after = running.sample_answer().await;
    crash::assert_nothing_found(&after, "missing");
}

/// Stops a stack, changes its buckets through an S3 endpoint that sends no events, and starts the
/// stack again.
async fn without_events<E: std::fmt::Debug>(
    Running { stack, folder }: Running,
    change: impl AsyncFnOnce(&Client) -> Result<(), E>,
) -> Running {
    let options = stack.options().clone();
    let mut addresses = stack.client().addresses().clone();
    stack.stop().await.unwrap();

    let database = Database::open(&options.data()).unwrap();
    let queues = Queues::new(database.clone());
    let store = Store::open(&options.data(), database, queues, Vec::new())
        .await
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    addresses.s3 = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::new(addresses).unwrap();
    let (changed, done) = oneshot::channel();
    let serving = s3::serve(listener, store, Meter::default(), async {
        let _ = done.await;
    });
    let changing = async {
        change(&client).await.unwrap();
        // An open connection of the client would keep the endpoint running.
        drop(client);
        changed.send(()).unwrap();
    };
    tokio::join!(serving, changing);

    Running {
        stack: LocalStack::start(options).await.unwrap(),
        folder,
    }
}
