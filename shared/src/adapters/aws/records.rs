//! Records in a DynamoDB table. Each write is conditional on the revision that it replaces.
//!
//! The condition also compares the schema, so that an item of a newer release is never overwritten,
//! even by a caller that knows its revision.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, KeysAndAttributes, ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure,
};
use futures::stream::{StreamExt, TryStreamExt};

use super::error::store_error;
use super::record_item::{self, Attributes, PARTITION, REVISION, SCHEMA_NUMBER, SORT};
use crate::adapters::backoff::pause;
use crate::cache::{ItemKey, Revision, SCHEMA, Stored};
use crate::ports::{
    Consistency, Cursor, Fault, FaultKind, Page, RecordStore, Removed, Replaced, Segment,
};

/// The most keys of one request (DynamoDB API reference, `BatchGetItem`).
const BATCH_KEYS: usize = 100;

/// The maximum number of batches that are loaded concurrently.
const BATCHES_IN_PARALLEL: usize = 8;

/// The most items of a page. This many entries of typical size are about the megabyte that DynamoDB
/// reads per request.
const PAGE_ITEMS: i32 = 1000;

/// The table counts as throttled after this many responses in a row without an item.
const FRUITLESS_ROUNDS: u32 = 6;

const IS_ABSENT: &str = "attribute_not_exists(#partition)";
const IS_EXPECTED: &str = "#revision = :expected AND #schema <= :schema";
const IS_EXPECTED_OR_ABSENT: &str =
    "attribute_not_exists(#partition) OR (#revision = :expected AND #schema <= :schema)";

/// Records in a DynamoDB table.
#[derive(Clone, Debug)]
pub struct DynamoRecords {
    client: Client,
    table: String,
}

impl DynamoRecords {
    /// Returns the records in this table, whose primary key is `partition` and `sort`, both
    /// strings.
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        Self {
            client,
            table: table.into(),
        }
    }

    fn context(&self, operation: &str, key: &ItemKey) -> String {
        format!(
            "DynamoDB {operation} of {} {} in {}",
            key.partition, key.sort, self.table
        )
    }

    /// Loads up to [`BATCH_KEYS`] distinct keys.
    async fn load_batch(
        &self,
        keys: Vec<ItemKey>,
        consistency: Consistency,
    ) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        let context = || {
            format!(
                "DynamoDB BatchGetItem of {} keys in {}",
                keys.len(),
                self.table
            )
        };
        let mut wanted: Vec<Attributes> = keys.iter().map(key_attributes).collect();
        let mut found = Vec::new();
        let mut fruitless = 0;
        loop {
            let request = KeysAndAttributes::builder()
                .set_keys(Some(wanted))
                .consistent_read(consistency == Consistency::Strong)
                .build()
                .map_err(|error| Fault::new(FaultKind::Bug, context()).caused_by(error))?;
            let answer = self
                .client
                .batch_get_item()
                .request_items(&self.table, request)
                .send()
                .await
                .map_err(|error| store_error(context(), &error))?;
            let items: Vec<Attributes> = answer
                .responses
                .into_iter()
                .flat_map(HashMap::into_values)
                .flatten()
                .collect();
            fruitless = if items.is_empty() { fruitless + 1 } else { 0 };
            for item in items {
                found.push(record_item::read(item)?);
            }
            let left = answer
                .unprocessed_keys
                .into_iter()
                .flat_map(HashMap::into_values);
            wanted = left.flat_map(|left| left.keys).collect();
            if wanted.is_empty() {
                return Ok(found);
            }
            if fruitless == FRUITLESS_ROUNDS {
                let cause = format!(
                    "{} keys were not processed in {fruitless} attempts: the table is throttled",
                    wanted.len()
                );
                return Err(Fault::new(FaultKind::Transient, context()).caused_by(cause));
            }
            // DynamoDB leaves keys out when it throttles, and when the response would exceed 16 MB.
            // In the second case there is progress, so there is no pause.
            if fruitless > 0 {
                pause(fruitless).await;
            }
        }
    }
}

#[async_trait]
impl RecordStore for DynamoRecords {
    async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault> {
        let different: Vec<ItemKey> = keys
            .iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .cloned()
            .collect();
        let batches: Vec<_> = different
            .chunks(BATCH_KEYS)
            .map(|batch| self.load_batch(batch.to_vec(), consistency))
            .collect();
        let found: Vec<_> = futures::stream::iter(batches)
            .buffer_unordered(BATCHES_IN_PARALLEL)
            .try_collect()
            .await?;
        let found: HashMap<ItemKey, Stored> = found.into_iter().flatten().collect();
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        let mut found = Vec::new();
        let mut start = None;
        loop {
            let answer = self
                .client
                .query()
                .table_name(&self.table)
                .consistent_read(true)
                .key_condition_expression("#partition = :partition")
                .expression_attribute_names("#partition", PARTITION)
                .expression_attribute_values(":partition", AttributeValue::S(partition.to_owned()))
                .set_exclusive_start_key(start)
                .send()
                .await
                .map_err(|error| {
                    store_error(
                        format!("DynamoDB Query of {partition} in {}", self.table),
                        &error,
                    )
                })?;
            for item in answer.items.unwrap_or_default() {
                found.push(record_item::read(item)?);
            }
            start = answer.last_evaluated_key;
            if start.is_none() {
                return Ok(found);
            }
        }
    }

    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        let put = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(record_item::write(key, next)?))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let put = match expected {
            None => put
                .condition_expression(IS_ABSENT)
                .expression_attribute_names("#partition", PARTITION),
            Some(revision) => put
                .condition_expression(IS_EXPECTED)
                .expression_attribute_names("#revision", REVISION)
                .expression_attribute_names("#schema", SCHEMA_NUMBER)
                .expression_attribute_values(
                    ":expected",
                    AttributeValue::S(revision.as_str().to_owned()),
                )
                .expression_attribute_values(":schema", AttributeValue::N(SCHEMA.to_string())),
        };
        match put.send().await {
            Ok(_) => Ok(Replaced::Done),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(lost)) => {
                    let current = stored(lost.item.clone())?;
                    Ok(Replaced::unless_repeated(current, next))
                }
                _ => Err(store_error(self.context("PutItem", key), &error)),
            },
        }
    }

    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault> {
        let delete = self
            .client
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(key_attributes(key)))
            .condition_expression(IS_EXPECTED_OR_ABSENT)
            .expression_attribute_names("#partition", PARTITION)
            .expression_attribute_names("#revision", REVISION)
            .expression_attribute_names("#schema", SCHEMA_NUMBER)
            .expression_attribute_values(
                ":expected",
                AttributeValue::S(expected.as_str().to_owned()),
            )
            .expression_attribute_values(":schema", AttributeValue::N(SCHEMA.to_string()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let error = match delete.send().await {
            Ok(_) => return Ok(Removed::Done),
            Err(error) => error,
        };
        let context = || self.context("DeleteItem", key);
        let Some(DeleteItemError::ConditionalCheckFailedException(lost)) = error.as_service_error()
        else {
            return Err(store_error(context(), &error));
        };
        match stored(lost.item.clone())? {
            Some(stored) => Ok(Removed::Lost(stored)),
            None => {
                let error = Fault::new(FaultKind::Bug, context());
                Err(error
                    .caused_by("the condition failed, but the response does not contain the item"))
            }
        }
    }

    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault> {
        let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let answer = self
            .client
            .scan()
            .table_name(&self.table)
            .consistent_read(false)
            .limit(PAGE_ITEMS)
            .segment(number(segment.index))
            .total_segments(number(segment.of))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .set_exclusive_start_key(after.map(|Cursor(key)| key_attributes(key)))
            .send()
            .await
            .map_err(|error| store_error(format!("DynamoDB Scan of {}", self.table), &error))?;
        // An item that cannot be read must not end the traversal of all the others: it is skipped
        // and logged.
        let readable = |item| match record_item::read(item) {
            Ok(read) => Some(read),
            Err(error) => {
                tracing::error!(%error, "unreadable item skipped");
                None
            }
        };
        Ok(Page {
            items: answer
                .items
                .unwrap_or_default()
                .into_iter()
                .filter_map(readable)
                .collect(),
            next: answer
                .last_evaluated_key
                .as_ref()
                .map(record_item::key)
                .transpose()?
                .map(Cursor),
            read_units: answer
                .consumed_capacity
                .and_then(|consumed| consumed.capacity_units)
                .unwrap_or_default(),
        })
    }
}

fn key_attributes(key: &ItemKey) -> Attributes {
    let text = |name: &str, text: &str| (name.to_owned(), AttributeValue::S(text.to_owned()));
    HashMap::from([text(PARTITION, &key.partition), text(SORT, &key.sort)])
}

fn stored(attributes: Option<Attributes>) -> Result<Option<Stored>, Fault> {
    let record = attributes.map(record_item::read).transpose()?;
    Ok(record.map(|(_, stored)| stored))
}
