//! The queues, buckets and tables of the template.

use std::path::Path;

use super::error::StackError;
use crate::database::Database;
use crate::dynamodb::Tables;
use crate::queues::{QueueSpec, Queues, Redrive};
use crate::s3;
use crate::template::{Bucket, Queue, Template};

/// Any error of a store.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Everything that the stack stores.
#[derive(Debug)]
pub(super) struct Stores {
    pub(super) queues: Queues,
    pub(super) objects: s3::Store,
    pub(super) tables: Tables,
    pub(super) lifecycle: s3::Lifecycle,
}

impl Stores {
    /// Opens the stores in the data folder, and creates what the template names and they lack.
    pub(super) async fn open(template: &Template, data: &Path) -> Result<Self, StackError> {
        Self::create(template, data)
            .await
            .map_err(|source| StackError::Store {
                folder: data.to_owned(),
                source,
            })
    }

    async fn create(template: &Template, data: &Path) -> Result<Self, Failure> {
        let folder = data.to_owned();
        let database = tokio::task::spawn_blocking(move || Database::open(&folder)).await??;
        let queues = Queues::new(database.clone());
        for queue in &template.queues {
            queues.create(queue_spec(queue)).await?;
        }
        let released = queues.release_all().await?;
        if released > 0 {
            tracing::info!(
                messages = released,
                "released messages that were in flight in an earlier run"
            );
        }
        let notifications = template.buckets.iter().flat_map(notifications).collect();
        let objects = s3::Store::open(data, database, queues.clone(), notifications).await?;
        for bucket in &template.buckets {
            objects.create_bucket(&bucket.name).await?;
        }
        let tables = Tables::open(data).await?;
        for table in &template.tables {
            tables.create(&table.name, &table.properties).await?;
        }
        let rules = template.buckets.iter().flat_map(rules).collect();
        Ok(Self {
            queues,
            lifecycle: s3::Lifecycle::new(objects.clone(), rules),
            objects,
            tables,
        })
    }

    /// Returns the number of bytes in all buckets.
    pub(super) async fn stored_bytes(&self, data: &Path) -> Result<u64, StackError> {
        self.objects
            .stored_bytes()
            .await
            .map_err(|source| StackError::Store {
                folder: data.to_owned(),
                source: source.into(),
            })
    }
}

fn queue_spec(queue: &Queue) -> QueueSpec {
    let redrive = queue.redrive.clone();
    QueueSpec {
        name: queue.name.clone(),
        visibility_timeout: queue.visibility_timeout,
        delay: queue.delay,
        retention: queue.retention,
        redrive: redrive.map(|(dead_letter, max_receive_count)| Redrive {
            dead_letter,
            max_receive_count,
        }),
    }
}

fn rules(bucket: &Bucket) -> impl Iterator<Item = s3::Rule> + '_ {
    bucket.lifecycle.iter().map(|rule| s3::Rule {
        bucket: bucket.name.clone(),
        prefix: rule.prefix.clone(),
        objects_after: rule.objects_after_days,
        uploads_after: rule.uploads_after_days,
    })
}

fn notifications(bucket: &Bucket) -> impl Iterator<Item = s3::Notification> + '_ {
    bucket
        .notifications
        .iter()
        .map(|notification| s3::Notification {
            bucket: bucket.name.clone(),
            events: vec![notification.event.clone()],
            prefix: String::new(),
            suffix: String::new(),
            queue: notification.queue.clone(),
        })
}
