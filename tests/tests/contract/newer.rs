//! Items of a newer release. The ports cannot write them, so each store inserts one in its own way.

use aws_sdk_dynamodb::types::AttributeValue;
use symdepot::adapters::aws::DynamoRecords;
use symdepot::adapters::memory::MemoryRecords;
use symdepot::cache::{ItemKey, Revision, SCHEMA};
use symdepot_tests::contract::records::{Records, items_of_a_newer_release_are_not_changed};

use crate::backends::Aws;

fn key() -> ItemKey {
    ItemKey {
        partition: "newer".to_owned(),
        sort: "symcache".to_owned(),
    }
}

#[tokio::test]
async fn in_memory_items_of_a_newer_release_are_preserved() {
    let records = std::sync::Arc::new(MemoryRecords::new());
    records.put_newer(&key(), Revision::from_random(5));
    items_of_a_newer_release_are_not_changed(
        &(records as Records),
        &key(),
        &Revision::from_random(5),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_local_stack_items_of_a_newer_release_are_preserved() {
    check(Aws::on_the_local_stack().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_endpoint_items_of_a_newer_release_are_preserved() {
    if let Some(aws) = Aws::on_the_endpoint().await {
        check(aws).await;
    }
}

async fn check(aws: Aws) {
    let table = aws.create_table().await;
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let put = aws.clients.dynamodb.put_item().table_name(&table);
    let put = put
        .item("partition", text("newer"))
        .item("sort", text("symcache"))
        .item("revision", text("0000000000000005"));
    let put = put
        .item("schema", AttributeValue::N((SCHEMA + 1).to_string()))
        .item("type", text("wish"))
        .item("kind", text("?"));
    put.send().await.unwrap();
    let records: Records =
        std::sync::Arc::new(DynamoRecords::new(aws.clients.dynamodb.clone(), table));
    items_of_a_newer_release_are_not_changed(&records, &key(), &Revision::from_random(5)).await;
}
