//! The S3 endpoint: `s3s` parses requests and verifies their signatures, [`Store`] executes them.

use std::future::Future;

use hyper::body::Incoming;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CreateBucketInput,
    CreateBucketOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteBucketInput,
    DeleteBucketOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput,
    DeleteObjectsOutput, Error, GetObjectInput, GetObjectOutput, HeadBucketInput, HeadBucketOutput,
    HeadObjectInput, HeadObjectOutput, ListBucketsInput, ListBucketsOutput,
    ListMultipartUploadsInput, ListMultipartUploadsOutput, ListObjectsV2Input, ListObjectsV2Output,
    ListPartsInput, ListPartsOutput, PutObjectInput, PutObjectOutput, UploadPartCopyInput,
    UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
};
use s3s::service::S3ServiceBuilder;
use s3s::{Body, S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use tokio::net::TcpListener;

use super::failure::Failure;
use super::store::Store;
use super::{buckets, multipart, multipart_lists, pages, reading, writing};
use crate::endpoint::{self, Broken};
use crate::iam::{Access, Refusal, calls_of_s3};
use crate::identity::{FUNCTION, LOCAL, Signer};
use crate::latency::Traffic;
use crate::meter::{Counted, Service};

/// Serves S3 requests on `listener` until `shutdown` resolves and the requests in progress are
/// complete.
pub async fn serve(
    listener: TcpListener,
    store: Store,
    traffic: impl Into<Traffic>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let traffic: Traffic = traffic.into();
    let access = traffic.access.clone();
    let mut builder = S3ServiceBuilder::new(Api {
        store,
        access: access.clone(),
    });
    builder.set_auth(KeyPairs);
    builder.set_access(Permissions(access));
    let service = builder.build();
    endpoint::serve(
        listener,
        Service::S3,
        traffic,
        shutdown,
        move |request: http::Request<Counted<Incoming>>| {
            let service = service.clone();
            async move {
                service
                    .call(request.map(Body::http_body_unsync))
                    .await
                    .map_err(|error| Broken(error.into()))
            }
        },
    )
    .await;
}

/// The key pairs that requests may be signed with.
struct KeyPairs;

#[async_trait::async_trait]
impl S3Auth for KeyPairs {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match Signer::of(access_key) {
            Signer::Function(_) => Ok(FUNCTION.secret_access_key.into()),
            Signer::Outside if access_key == LOCAL.access_key_id => {
                Ok(LOCAL.secret_access_key.into())
            }
            Signer::Outside => Err(s3_error!(
                InvalidAccessKeyId,
                "the access key {access_key:?} does not exist in the local stack"
            )),
        }
    }
}

/// Decides about requests whose signature is valid.
struct Permissions(Access);

#[async_trait::async_trait]
impl S3Access for Permissions {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = request.credentials() else {
            return Err(s3_error!(AccessDenied, "Signature is required"));
        };
        let path = request.s3_path();
        let asked = calls_of_s3::asked(
            request.s3_op().name(),
            path.get_bucket_name(),
            path.get_object_key(),
            request.uri(),
            request.headers(),
        );
        let checked = self.0.check(Some(&credentials.access_key), &asked);
        checked.map_err(refused)
    }
}

fn refused(refusal: Refusal) -> S3Error {
    match refusal {
        Refusal::UnknownKey => s3_error!(InvalidAccessKeyId, "{refusal}"),
        Refusal::Denied(_) | Refusal::Unsigned => s3_error!(AccessDenied, "{refusal}"),
    }
}

/// The operations of the store, with the permissions that depend on what they find or on their
/// bodies.
struct Api {
    store: Store,
    access: Access,
}

impl Api {
    /// Returns the answer to a read that failed: whether an object is absent is shown only to those
    /// who may list its bucket.
    fn absent(&self, failure: Failure, access_key: Option<&str>, bucket: &str) -> Failure {
        if *failure.0.code() != S3ErrorCode::NoSuchKey {
            return failure;
        }
        let may_know = [calls_of_s3::absence(bucket)];
        match self.access.check(access_key, &may_know) {
            Ok(()) => failure,
            Err(refusal) => Failure(refused(refusal)),
        }
    }

    /// Removes the keys from a batch that its signer must not delete, and returns their errors.
    fn deny_keys(&self, request: &mut S3Request<DeleteObjectsInput>) -> Vec<Error> {
        let signer = access_key(request);
        let bucket = request.input.bucket.clone();
        let mut denied = Vec::new();
        request.input.delete.objects.retain(|object| {
            let of_version = object.version_id.is_some();
            let asked = [calls_of_s3::deletion(&bucket, &object.key, of_version)];
            let Err(refusal) = self.access.check(signer.as_deref(), &asked) else {
                return true;
            };
            denied.push(Error {
                code: Some("AccessDenied".to_owned()),
                key: Some(object.key.clone()),
                message: Some(refusal.to_string()),
                version_id: object.version_id.clone(),
            });
            false
        });
        denied
    }
}

/// Returns the access key of the signer.
fn access_key<T>(request: &S3Request<T>) -> Option<String> {
    let credentials = request.credentials.as_ref()?;
    Some(credentials.access_key.clone())
}

#[async_trait::async_trait]
impl S3 for Api {
    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        Ok(buckets::create(&self.store, request).await?)
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        Ok(buckets::delete(&self.store, request).await?)
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        Ok(buckets::head(&self.store, request).await?)
    }

    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        Ok(buckets::list(&self.store, request).await?)
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), access_key(&request));
        let answered = reading::get(&self.store, request).await;
        Ok(answered.map_err(|failure| self.absent(failure, key.as_deref(), &bucket))?)
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), access_key(&request));
        let answered = reading::head(&self.store, request).await;
        Ok(answered.map_err(|failure| self.absent(failure, key.as_deref(), &bucket))?)
    }

    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        Ok(writing::put(&self.store, request).await?)
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        Ok(writing::copy(&self.store, request).await?)
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        Ok(writing::delete(&self.store, request).await?)
    }

    async fn delete_objects(
        &self,
        mut request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let denied = self.deny_keys(&mut request);
        if request.input.delete.objects.is_empty() && !denied.is_empty() {
            let errors = Some(denied);
            return Ok(S3Response::new(DeleteObjectsOutput {
                errors,
                ..Default::default()
            }));
        }
        let mut response = writing::delete_many(&self.store, request).await?;
        if !denied.is_empty() {
            let errors = response.output.errors.get_or_insert_default();
            errors.extend(denied);
        }
        Ok(response)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        Ok(multipart::create(&self.store, request).await?)
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        Ok(multipart::upload_part(&self.store, request).await?)
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        Ok(multipart::upload_part_copy(&self.store, request).await?)
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        Ok(multipart::complete(&self.store, request).await?)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        Ok(multipart::abort(&self.store, request).await?)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        Ok(multipart_lists::uploads(&self.store, request).await?)
    }

    async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        Ok(multipart_lists::parts_of_upload(&self.store, request).await?)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        Ok(pages::list(&self.store, request).await?)
    }
}
