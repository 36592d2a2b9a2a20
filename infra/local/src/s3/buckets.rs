//! Operations on buckets.

use rusqlite::params;
use s3s::dto::{
    Bucket, CreateBucketInput, CreateBucketOutput, DeleteBucketInput, DeleteBucketOutput,
    HeadBucketInput, HeadBucketOutput, ListBucketsInput, ListBucketsOutput,
};
use s3s::{S3Request, S3Response, s3_error};

use super::failure::Failure;
use super::objects::require_bucket;
use super::pages::owner;
use super::store::{Store, StoreError};
use crate::identity::REGION;
use crate::s3::times::timestamp;

pub(crate) async fn create(
    store: &Store,
    request: S3Request<CreateBucketInput>,
) -> Result<S3Response<CreateBucketOutput>, Failure> {
    let name = request.input.bucket;
    store
        .create_bucket(&name)
        .await
        .map_err(|error| match error {
            StoreError::BucketName(name) => {
                s3_error!(InvalidBucketName, "{name:?} is not a valid bucket name").into()
            }
            error => Failure::internal(error),
        })?;
    Ok(S3Response::new(CreateBucketOutput {
        location: Some(format!("/{name}")),
    }))
}

pub(crate) async fn delete(
    store: &Store,
    request: S3Request<DeleteBucketInput>,
) -> Result<S3Response<DeleteBucketOutput>, Failure> {
    let name = request.input.bucket;
    store
        .database
        .write::<_, Failure>(move |transaction| {
            require_bucket(transaction, &name)?;
            for table in ["objects", "uploads"] {
                let used = transaction
                    .prepare(&format!("SELECT 1 FROM {table} WHERE bucket = ?1 LIMIT 1"))?
                    .exists([&name])?;
                if used {
                    return Err(s3_error!(
                        BucketNotEmpty,
                        "the bucket {name:?} is not empty; delete its {table} first"
                    )
                    .into());
                }
            }
            transaction.execute("DELETE FROM buckets WHERE name = ?1", params![name])?;
            Ok(())
        })
        .await?;
    Ok(S3Response::with_status(
        DeleteBucketOutput {},
        http::StatusCode::NO_CONTENT,
    ))
}

pub(crate) async fn head(
    store: &Store,
    request: S3Request<HeadBucketInput>,
) -> Result<S3Response<HeadBucketOutput>, Failure> {
    let name = request.input.bucket;
    store
        .database
        .read(move |transaction| require_bucket(transaction, &name))
        .await?;
    Ok(S3Response::new(HeadBucketOutput {
        bucket_region: Some(REGION.to_owned()),
        ..Default::default()
    }))
}

pub(crate) async fn list(
    store: &Store,
    request: S3Request<ListBucketsInput>,
) -> Result<S3Response<ListBucketsOutput>, Failure> {
    let prefix = request.input.prefix.clone().unwrap_or_default();
    let buckets = store
        .database
        .read::<_, Failure>(|transaction| {
            let mut select =
                transaction.prepare_cached("SELECT name, created_ms FROM buckets ORDER BY name")?;
            let buckets = select
                .query_map([], |row| {
                    Ok(Bucket {
                        name: Some(row.get(0)?),
                        creation_date: Some(timestamp(row.get(1)?)),
                        bucket_region: Some(REGION.to_owned()),
                    })
                })?
                .collect::<Result<Vec<_>, _>>()?;
            Ok(buckets)
        })
        .await?;
    let buckets = buckets
        .into_iter()
        .filter(|bucket| {
            bucket
                .name
                .as_deref()
                .is_some_and(|name| name.starts_with(&prefix))
        })
        .collect();
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets),
        owner: Some(owner()),
        prefix: request.input.prefix,
        ..Default::default()
    }))
}
