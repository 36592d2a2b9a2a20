//! Lifecycle rules: objects and unfinished uploads that are removed when they are old.
//!
//! A rule takes effect at a midnight: its number of days is added to the time of the object, and
//! the result is rounded up to the next midnight UTC (Amazon S3 User Guide, "Setting lifecycle
//! configuration on a bucket"). Rules are therefore applied once a day, when the stack starts, and
//! when the clock is moved (`POST /_local/clock`); requests do not evaluate them. AWS may take
//! longer.
//!
//! Each batch of removals is one transaction with its events (`s3:LifecycleExpiration:Delete`). A
//! stack that is killed in between continues at its next start.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Transaction, params};
use tokio_util::sync::CancellationToken;

use super::events::Cause;
use super::failure::Failure;
use super::multipart_rows::{forget_upload, parts};
use super::objects;
use super::store::Store;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The number of removals in one transaction, in which no other change can be made.
const BATCH: usize = 500;

/// How often it is checked whether a day has passed: a machine that was suspended does not notice.
const CHECK: Duration = Duration::from_secs(600);

/// A rule of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The bucket.
    pub bucket: String,
    /// What the keys begin with; empty for all keys.
    pub prefix: String,
    /// After how many days objects are removed.
    pub objects_after: Option<u64>,
    /// After how many days unfinished multipart uploads are removed.
    pub uploads_after: Option<u64>,
}

/// The rules of all buckets. Clones share them.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    store: Store,
    rules: Arc<[Rule]>,
}

/// What the rules removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Objects.
    pub objects: usize,
    /// Unfinished uploads.
    pub uploads: usize,
}

impl Lifecycle {
    /// Returns the rules for the buckets of `store`.
    #[must_use]
    pub fn new(store: Store, rules: Vec<Rule>) -> Self {
        Self {
            store,
            rules: rules.into(),
        }
    }

    /// Applies the rules now and after each midnight, until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        loop {
            let today = midnight(self.store.now());
            if let Err(Failure(error)) = self.remove_expired().await {
                tracing::error!(%error, "cannot apply the lifecycle rules; they are applied again tomorrow");
            }
            while midnight(self.store.now()) == today {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(CHECK) => {}
                }
            }
        }
    }

    /// Applies the rules now, and returns what they removed.
    ///
    /// # Errors
    /// Returns the text of the database's error.
    pub async fn apply(&self) -> Result<Expired, String> {
        let removed = self.remove_expired().await;
        removed.map_err(|Failure(error)| error.to_string())
    }

    async fn remove_expired(&self) -> Result<Expired, Failure> {
        let now = self.store.now();
        let mut expired = Expired::default();
        for rule in self.rules.iter() {
            if let Some(days) = rule.objects_after {
                expired.objects += self
                    .remove(rule, expired_objects, oldest(now, days))
                    .await?;
            }
            if let Some(days) = rule.uploads_after {
                expired.uploads += self
                    .remove(rule, expired_uploads, oldest(now, days))
                    .await?;
            }
        }
        if expired != Expired::default() {
            let Expired { objects, uploads } = expired;
            tracing::info!(objects, uploads, "removed by the rules of the buckets");
        }
        Ok(expired)
    }

    /// Removes what is older than `oldest`, in batches, and returns how much it was.
    async fn remove(&self, rule: &Rule, remove: Removal, oldest: i64) -> Result<usize, Failure> {
        let mut removed = 0;
        loop {
            let (store, rule) = (self.store.clone(), rule.clone());
            let batch = Store::finish(async move {
                let copy = store.clone();
                let (count, unused) = store
                    .database
                    .write(move |transaction| remove(&copy, transaction, &rule, oldest))
                    .await?;
                if count > 0 {
                    store.changed(unused);
                }
                Ok(count)
            })
            .await?;
            removed += batch;
            if batch < BATCH {
                return Ok(removed);
            }
        }
    }
}

/// Removes up to [`BATCH`] things that are older than a time. Returns their number, and the files
/// that are no longer referenced.
type Removal = fn(&Store, &Transaction<'_>, &Rule, i64) -> Result<(usize, Vec<String>), Failure>;

fn expired_objects(
    store: &Store,
    transaction: &Transaction<'_>,
    rule: &Rule,
    oldest: i64,
) -> Result<(usize, Vec<String>), Failure> {
    let expired = rows(transaction, rule, "key", "objects", "modified_ms", oldest)?;
    let cause = Cause {
        event: Cause::EXPIRATION,
        principal: "s3.amazonaws.com".to_owned(),
    };
    let mut unused = Vec::new();
    for key in &expired {
        unused.extend(objects::remove(
            transaction,
            &rule.bucket,
            key,
            |_| Ok(()),
            &store.notifications,
            &cause,
            store.now(),
        )?);
    }
    Ok((expired.len(), unused))
}

fn expired_uploads(
    _: &Store,
    transaction: &Transaction<'_>,
    rule: &Rule,
    oldest: i64,
) -> Result<(usize, Vec<String>), Failure> {
    let expired = rows(transaction, rule, "id", "uploads", "started_ms", oldest)?;
    let mut unused = Vec::new();
    for id in &expired {
        let files = parts(transaction, id)?;
        let files = files.into_iter().map(|part| part.segment.file).collect();
        unused.extend(forget_upload(transaction, id, files)?);
    }
    Ok((expired.len(), unused))
}

/// Returns a column of the rows that a rule concerns and that are older than a time.
fn rows(
    transaction: &Transaction<'_>,
    rule: &Rule,
    column: &str,
    table: &str,
    time: &str,
    oldest: i64,
) -> Result<Vec<String>, rusqlite::Error> {
    // The second comparison keeps the search within the keys that begin with the prefix.
    let select = format!(
        "SELECT {column} FROM {table}
         WHERE bucket = ?1 AND key >= ?2 AND key < ?2 || char(1114111) AND {time} < ?3 LIMIT {BATCH}"
    );
    transaction
        .prepare_cached(&select)?
        .query_map(params![rule.bucket, rule.prefix, oldest], |row| row.get(0))?
        .collect()
}

/// Returns the time before which something was written that is removed `days` later, at the
/// midnight after that, or earlier.
fn oldest(now: i64, days: u64) -> i64 {
    let days = i64::try_from(days).unwrap_or(i64::MAX);
    midnight(now).saturating_sub(days.saturating_mul(DAY_MS))
}

fn midnight(now: i64) -> i64 {
    now - now.rem_euclid(DAY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the User Guide: an object of January 15, 2014, 10:30, and a rule of three
    /// days.
    #[test]
    fn an_object_expires_at_the_midnight_after_its_last_day() {
        // date --utc --date "2014-01-15 10:30" +%s; date --utc --date "2014-01-19" +%s
        let (written, expires) = (1_389_781_800_000, 1_390_089_600_000);
        assert!(written >= oldest(expires - 1, 3));
        assert!(written < oldest(expires, 3));
    }
}
