//! The S3 endpoint: `s3s` parses requests and verifies their signatures, [`Store`] executes them.

use std::future::Future;

use hyper::body::Incoming;
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CreateBucketInput,
    CreateBucketOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteBucketInput,
    DeleteBucketOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput,
    DeleteObjectsOutput, GetObjectInput, GetObjectOutput, HeadBucketInput, HeadBucketOutput,
    HeadObjectInput, HeadObjectOutput, ListBucketsInput, ListBucketsOutput,
    ListMultipartUploadsInput, ListMultipartUploadsOutput, ListObjectsV2Input, ListObjectsV2Output,
    ListPartsInput, ListPartsOutput, PutObjectInput, PutObjectOutput, UploadPartCopyInput,
    UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
};
use s3s::service::S3ServiceBuilder;
use s3s::{Body, S3, S3Request, S3Response, S3Result, s3_error};
use tokio::net::TcpListener;

use super::store::Store;
use super::{buckets, multipart, multipart_lists, pages, reading, writing};
use crate::endpoint::{self, Broken};
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
    let mut builder = S3ServiceBuilder::new(store);
    builder.set_auth(KeyPairs);
    let service = builder.build();
    endpoint::serve(
        listener,
        Service::S3,
        traffic.into(),
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

#[async_trait::async_trait]
impl S3 for Store {
    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        Ok(buckets::create(self, request).await?)
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        Ok(buckets::delete(self, request).await?)
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        Ok(buckets::head(self, request).await?)
    }

    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        Ok(buckets::list(self, request).await?)
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        Ok(reading::get(self, request).await?)
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        Ok(reading::head(self, request).await?)
    }

    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        Ok(writing::put(self, request).await?)
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        Ok(writing::copy(self, request).await?)
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        Ok(writing::delete(self, request).await?)
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        Ok(writing::delete_many(self, request).await?)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        Ok(multipart::create(self, request).await?)
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        Ok(multipart::upload_part(self, request).await?)
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        Ok(multipart::upload_part_copy(self, request).await?)
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        Ok(multipart::complete(self, request).await?)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        Ok(multipart::abort(self, request).await?)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        Ok(multipart_lists::uploads(self, request).await?)
    }

    async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        Ok(multipart_lists::parts_of_upload(self, request).await?)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        Ok(pages::list(self, request).await?)
    }
}
