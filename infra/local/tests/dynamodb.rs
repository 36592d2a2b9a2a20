//! The DynamoDB endpoint, tested with the real client.

#![expect(clippy::unwrap_used, reason = "an error fails the test")]

mod endpoints;

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::AttributeValue;
use endpoints::{Endpoint, dynamodb_client};
use local_stack::dynamodb::{Tables, TablesError};
use local_stack::identity::{FUNCTION, LOCAL};
use local_stack::meter::Meter;
use serde_json::{Value, json};

const TABLE: &str = "records";

/// The properties of the table in `infra/template.yaml`.
fn properties() -> Value {
    json!({
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            { "AttributeName": "partition", "AttributeType": "S" },
            { "AttributeName": "sort", "AttributeType": "S" },
        ],
        "KeySchema": [
            { "AttributeName": "partition", "KeyType": "HASH" },
            { "AttributeName": "sort", "KeyType": "RANGE" },
        ],
        "TimeToLiveSpecification": { "AttributeName": "expires_at", "Enabled": true },
    })
}

async fn serve(tables: &Tables, meter: &Meter) -> Endpoint {
    let (tables, meter) = (tables.clone(), meter.clone());
    Endpoint::start(|listener, shutdown| {
        local_stack::dynamodb::serve(listener, tables, meter, shutdown.wait())
    })
    .await
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(value: i64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conditional_put_has_one_winner_of_sixteen() {
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables::open(folder.path()).await.unwrap();
    tables.create(TABLE, &properties()).await.unwrap();
    let endpoint = serve(&tables, &Meter::default()).await;
    let client = dynamodb_client(&endpoint.url, LOCAL);
    for round in 0..20 {
        let puts = (0..16).map(|writer| {
            client
                .put_item()
                .table_name(TABLE)
                .item("partition", text(&format!("p{round}")))
                .item("sort", text("s"))
                .item("writer", number(writer))
                .condition_expression("attribute_not_exists(#p)")
                .expression_attribute_names("#p", "partition")
                .send()
        });
        let results = futures::future::join_all(puts).await;
        assert_eq!(
            results.iter().filter(|result| result.is_ok()).count(),
            1,
            "round {round}"
        );
        for error in results.into_iter().filter_map(Result::err) {
            assert!(
                error
                    .into_service_error()
                    .is_conditional_check_failed_exception()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_survives_a_killed_stack() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let tables = Tables::open(folder.path()).await.unwrap();
        tables.create(TABLE, &properties()).await.unwrap();
        let endpoint = serve(&tables, &Meter::default()).await;
        let client = dynamodb_client(&endpoint.url, LOCAL);
        client
            .put_item()
            .table_name(TABLE)
            .item("partition", text("p"))
            .item("sort", text(&round.to_string()))
            .send()
            .await
            .unwrap();
        let found = client
            .query()
            .table_name(TABLE)
            .key_condition_expression("#p = :p")
            .expression_attribute_names("#p", "partition")
            .expression_attribute_values(":p", text("p"))
            .consistent_read(true)
            .send()
            .await
            .unwrap();
        assert_eq!(found.count(), round + 1);
        // Dropped without a stop.
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_matches_the_template_and_removes_expired_items() {
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables::open(folder.path()).await.unwrap();
    tables.create(TABLE, &properties()).await.unwrap();
    let endpoint = serve(&tables, &Meter::default()).await;
    let client = dynamodb_client(&endpoint.url, LOCAL);
    let described = client
        .describe_table()
        .table_name(TABLE)
        .send()
        .await
        .unwrap();
    let keys = described.table().unwrap().key_schema();
    assert_eq!(
        keys.iter()
            .map(|key| key.attribute_name())
            .collect::<Vec<_>>(),
        ["partition", "sort"]
    );
    let ttl = client
        .describe_time_to_live()
        .table_name(TABLE)
        .send()
        .await
        .unwrap();
    assert_eq!(
        ttl.time_to_live_description().unwrap().attribute_name(),
        Some("expires_at")
    );

    for (sort, expires_at) in [("past", 1_000_000_000), ("future", 4_000_000_000_i64)] {
        client
            .put_item()
            .table_name(TABLE)
            .item("partition", text("p"))
            .item("sort", text(sort))
            .item("expires_at", number(expires_at))
            .send()
            .await
            .unwrap();
    }
    // AWS keeps items that expired more than five years ago; the engine may do so too.
    let recent = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs()
        - 3600;
    client
        .put_item()
        .table_name(TABLE)
        .item("partition", text("p"))
        .item("sort", text("past"))
        .item("expires_at", number(i64::try_from(recent).unwrap()))
        .send()
        .await
        .unwrap();
    assert_eq!(tables.sweep_ttl().await.unwrap(), 1);
    let left = client.scan().table_name(TABLE).send().await.unwrap();
    assert_eq!(left.items()[0]["sort"], text("future"));
    assert_eq!(left.count(), 1);
}

#[tokio::test]
async fn a_table_that_exists_with_other_keys_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables::open(folder.path()).await.unwrap();
    tables.create(TABLE, &properties()).await.unwrap();
    tables.create(TABLE, &properties()).await.unwrap();

    let mut other = properties();
    other["TimeToLiveSpecification"]["AttributeName"] = "dies_at".into();
    tables.create(TABLE, &other).await.unwrap();

    let mut other = properties();
    other["KeySchema"][1]["AttributeName"] = "range".into();
    other["AttributeDefinitions"][1]["AttributeName"] = "range".into();
    let error = tables.create(TABLE, &other).await.unwrap_err();
    assert!(
        matches!(
            error,
            TablesError::Changed {
                property: "KeySchema",
                ..
            }
        ),
        "{error}"
    );

    let error = tables
        .create(TABLE, &json!({ "BillingMode": "PAY_PER_REQUEST" }))
        .await
        .unwrap_err();
    assert!(matches!(error, TablesError::Properties { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_meter_distinguishes_functions_from_others_and_calls_from_errors() {
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables::open(folder.path()).await.unwrap();
    tables.create(TABLE, &properties()).await.unwrap();
    let meter = Meter::default();
    let endpoint = serve(&tables, &meter).await;
    let function = dynamodb_client(&endpoint.url, FUNCTION);
    let outside = dynamodb_client(&endpoint.url, LOCAL);
    let get = |client: &aws_sdk_dynamodb::Client, table: &str| {
        client
            .get_item()
            .table_name(table)
            .key("partition", text("p"))
            .key("sort", text("s"))
            .send()
    };
    get(&function, TABLE).await.unwrap();
    get(&outside, TABLE).await.unwrap();
    let error = get(&function, "absent").await.unwrap_err();
    assert_eq!(error.code(), Some("ResourceNotFoundException"));

    let snapshot = meter.snapshot();
    let ours = snapshot.aws["dynamodb"]["GetItem"];
    assert_eq!((ours.calls, ours.errors), (2, 1));
    assert!(ours.bytes_in > 100 && ours.bytes_out > 2, "{ours:?}");
    let theirs = snapshot.outside["dynamodb"]["GetItem"];
    // The body is `{}`: no item was found.
    assert_eq!((theirs.calls, theirs.errors, theirs.bytes_out), (1, 0, 2));
    endpoint.stop().await;
}
