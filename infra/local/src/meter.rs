//! Counters of the calls of AWS services, by caller, service and operation.
//!
//! Bytes are those of the bodies as transferred, counted while they stream. An error is a response
//! with status 400 or above, including failed conditions and missing keys, or no response at all.

mod rounds;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use http::{HeaderMap, Method, Request, Response, Uri, header};
use hyper::body::{Body, Buf, Frame, SizeHint};
use rounds::Rounds;
use serde::Serialize;
use tokio::time::Instant;

use crate::identity::{FunctionProcess, Signer};

/// Counts the calls of the endpoints that use it. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    counters: Arc<Mutex<BTreeMap<Key, Arc<Counter>>>>,
    rounds: Arc<Mutex<Rounds>>,
}

/// Counts by service and operation, with AWS's names: `s3`, `GetObject`.
pub type Services = BTreeMap<String, BTreeMap<String, Counts>>;

/// The counts since the start or the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Calls of the functions.
    pub aws: Services,
    /// Calls of all other clients: command lines, tests, and users of presigned URLs that `local`
    /// signed.
    pub outside: Services,
    /// The functions' calls of S3 again, by bucket and operation.
    pub buckets: BTreeMap<String, BTreeMap<String, Counts>>,
}

/// The counts of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The number of requests.
    pub calls: u64,
    /// Requests with a response status of 400 or above, or without a response.
    pub errors: u64,
    /// Bytes of request bodies.
    pub bytes_in: u64,
    /// Bytes of response bodies.
    pub bytes_out: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

impl Meter {
    /// Returns the counts so far. Bodies that are being transferred count with their bytes so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (key, counter) in self.lock().iter() {
            let services = if key.is_function {
                &mut snapshot.aws
            } else {
                &mut snapshot.outside
            };
            let counts = counter.read();
            services
                .entry(key.service.name().to_owned())
                .or_default()
                .entry(key.operation.clone())
                .or_default()
                .add(counts);
            if let Some(bucket) = &key.bucket {
                snapshot
                    .buckets
                    .entry(bucket.clone())
                    .or_default()
                    .insert(key.operation.clone(), counts);
            }
        }
        snapshot
    }

    /// Returns the dependent rounds of each function: the largest number of calls of one of its
    /// processes of which no two overlapped in time.
    #[must_use]
    pub fn rounds(&self) -> BTreeMap<String, u64> {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.by_function()
    }

    /// Resets all counts to zero.
    pub fn reset(&self) {
        self.lock().clear();
        *self.rounds.lock().unwrap_or_else(PoisonError::into_inner) = Rounds::default();
    }

    /// Counts a request when its head has arrived.
    pub(crate) fn begin<B>(&self, service: Service, request: &Request<B>) -> Call {
        let signer =
            access_key(request.headers(), request.uri()).map_or(Signer::Outside, Signer::of);
        let (is_function, process) = match signer {
            Signer::Function(process) => (true, process),
            Signer::Outside => (false, None),
        };
        let process = process.map(|process| Process {
            function: process.function.to_owned(),
            process: process.process.to_owned(),
            rounds: Arc::clone(&self.rounds),
        });
        let key = Key {
            is_function,
            // Only for functions: names that other clients invent must not fill the memory.
            bucket: (is_function && matches!(service, Service::S3))
                .then(|| bucket(request.uri()).to_owned())
                .filter(|bucket| !bucket.is_empty()),
            service,
            operation: service.operation(request.method(), request.uri(), request.headers()),
        };
        let counter = Arc::clone(self.lock().entry(key).or_default());
        counter.calls.fetch_add(1, Ordering::Relaxed);
        Call {
            counter,
            is_function,
            process,
            begun: Instant::now(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Arc<Counter>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An AWS service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    DynamoDb,
    S3,
    Sqs,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::DynamoDb => "dynamodb",
            Self::S3 => "s3",
            Self::Sqs => "sqs",
        }
    }

    fn operation(self, method: &Method, uri: &Uri, headers: &HeaderMap) -> String {
        match self {
            Self::S3 => s3_operation(method, uri, headers).to_owned(),
            Self::DynamoDb | Self::Sqs => headers
                .get("x-amz-target")
                .and_then(|target| target.to_str().ok())
                .and_then(|target| target.rsplit_once('.'))
                .map(|(_, operation)| operation)
                // Names that clients invent must not fill the memory.
                .filter(|name| {
                    name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
                })
                .unwrap_or("Unknown")
                .to_owned(),
        }
    }
}

/// Returns the operation of a request. Source: Amazon S3 API reference, the request syntax of each
/// operation.
fn s3_operation(method: &Method, uri: &Uri, headers: &HeaderMap) -> &'static str {
    let query = uri.query().unwrap_or_default();
    let has = |name: &str| {
        query
            .split('&')
            .any(|pair| pair.split('=').next() == Some(name))
    };
    let copies = headers.contains_key("x-amz-copy-source");
    let path = uri.path().trim_start_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    match (method.as_str(), bucket.is_empty(), key.is_empty()) {
        ("GET", true, _) => "ListBuckets",
        ("GET", false, true) if has("list-type") => "ListObjectsV2",
        ("GET", false, true) if has("uploads") => "ListMultipartUploads",
        ("GET", false, true) if has("location") => "GetBucketLocation",
        ("GET", false, true) => "ListObjects",
        ("HEAD", false, true) => "HeadBucket",
        ("PUT", false, true) => "CreateBucket",
        ("DELETE", false, true) => "DeleteBucket",
        ("POST", false, true) if has("delete") => "DeleteObjects",
        ("GET", false, false) if has("uploadId") => "ListParts",
        ("GET", false, false) if has("attributes") => "GetObjectAttributes",
        ("GET", false, false) => "GetObject",
        ("HEAD", false, false) => "HeadObject",
        ("PUT", false, false) if has("uploadId") && copies => "UploadPartCopy",
        ("PUT", false, false) if has("uploadId") => "UploadPart",
        ("PUT", false, false) if copies => "CopyObject",
        ("PUT", false, false) => "PutObject",
        ("DELETE", false, false) if has("uploadId") => "AbortMultipartUpload",
        ("DELETE", false, false) => "DeleteObject",
        ("POST", false, false) if has("uploads") => "CreateMultipartUpload",
        ("POST", false, false) if has("uploadId") => "CompleteMultipartUpload",
        _ => "Unknown",
    }
}

/// Returns the bucket of a request, the first segment of its path; empty if there is none.
fn bucket(uri: &Uri) -> &str {
    let path = uri.path().trim_start_matches('/');
    path.split('/').next().unwrap_or_default()
}

/// Returns the access key that a request is signed with, from its header or presigned URL.
pub(crate) fn access_key<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let in_header = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once("Credential="))
        .map(|(_, credential)| credential);
    let in_query = || {
        uri.query()?
            .split('&')
            .find_map(|pair| pair.strip_prefix("X-Amz-Credential="))
    };
    // The fields of a credential are separated by slashes, in a URL by `%2F`.
    let credential = in_header.or_else(in_query)?;
    credential.split(['/', '%']).next()
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    is_function: bool,
    bucket: Option<String>,
    service: Service,
    operation: String,
}

#[derive(Debug, Default)]
struct Counter {
    calls: AtomicU64,
    errors: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

impl Counter {
    fn read(&self) -> Counts {
        Counts {
            calls: self.calls.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }
}

/// A request that is being counted.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    counter: Arc<Counter>,
    is_function: bool,
    process: Option<Process>,
    begun: Instant,
}

/// The function process that sent a request.
#[derive(Clone, Debug)]
struct Process {
    function: String,
    process: String,
    rounds: Arc<Mutex<Rounds>>,
}

impl Call {
    /// Returns whether a function made the call.
    pub(crate) fn is_function(&self) -> bool {
        self.is_function
    }

    /// Returns when the head of the request arrived.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Counts the request's body while it is read.
    pub(crate) fn request<B>(&self, body: B) -> Counted<B> {
        Counted {
            body,
            counter: Arc::clone(&self.counter),
            direction: Direction::In,
        }
    }

    /// Counts the response, whose head is sent now, and its body while it is sent.
    pub(crate) fn response<B>(&self, response: Response<B>) -> Response<Counted<B>> {
        if let Some(caller) = &self.process {
            let process = FunctionProcess {
                function: &caller.function,
                process: &caller.process,
            };
            let mut rounds = caller.rounds.lock().unwrap_or_else(PoisonError::into_inner);
            rounds.answered(process, self.begun, Instant::now());
        }
        if response.status().as_u16() >= 400 {
            self.failed();
        }
        let counter = Arc::clone(&self.counter);
        response.map(|body| Counted {
            body,
            counter,
            direction: Direction::Out,
        })
    }

    /// Counts a request without a response.
    pub(crate) fn failed(&self) {
        self.counter.errors.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// A body whose bytes are counted as they pass.
#[derive(Debug)]
pub(crate) struct Counted<B> {
    body: B,
    counter: Arc<Counter>,
    direction: Direction,
}

impl<B: Body + Unpin> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let bytes = match self.direction {
                Direction::In => &self.counter.bytes_in,
                Direction::Out => &self.counter.bytes_out,
            };
            bytes.fetch_add(data.remaining() as u64, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(method: &str, uri: &str, copies: bool) -> &'static str {
        let mut headers = HeaderMap::new();
        if copies {
            headers.insert("x-amz-copy-source", http::HeaderValue::from_static("b/k"));
        }
        s3_operation(&method.parse().unwrap(), &uri.parse().unwrap(), &headers)
    }

    #[test]
    fn s3_operations_have_the_names_that_aws_gives_them() {
        for (method, uri, copies, expected) in [
            ("GET", "/", false, "ListBuckets"),
            ("GET", "/b?list-type=2&prefix=x", false, "ListObjectsV2"),
            ("GET", "/b/?list-type=2", false, "ListObjectsV2"),
            ("GET", "/b", false, "ListObjects"),
            ("GET", "/b?uploads", false, "ListMultipartUploads"),
            ("GET", "/b/k?x-id=GetObject", false, "GetObject"),
            ("GET", "/b/k?uploadId=1", false, "ListParts"),
            ("PUT", "/b/k/l", false, "PutObject"),
            ("PUT", "/b/k", true, "CopyObject"),
            ("PUT", "/b/k?partNumber=1&uploadId=u", false, "UploadPart"),
            (
                "PUT",
                "/b/k?partNumber=1&uploadId=u",
                true,
                "UploadPartCopy",
            ),
            ("POST", "/b/k?uploads", false, "CreateMultipartUpload"),
            ("POST", "/b/k?uploadId=u", false, "CompleteMultipartUpload"),
            ("POST", "/b?delete", false, "DeleteObjects"),
            ("DELETE", "/b/k", false, "DeleteObject"),
            ("PATCH", "/b/k", false, "Unknown"),
        ] {
            assert_eq!(operation(method, uri, copies), expected, "{method} {uri}");
        }
    }

    #[test]
    fn functions_are_recognized_by_their_access_key() {
        let meter = Meter::default();
        for (uri, authorization) in [
            (
                "/b/k",
                Some(
                    "AWS4-HMAC-SHA256 Credential=function/20260101/us-east-1/s3/aws4_request, SignedHeaders=host",
                ),
            ),
            (
                "/b/k?X-Amz-Credential=function%2F20260101&X-Amz-Expires=1",
                None,
            ),
            (
                "/b/k",
                Some(
                    "AWS4-HMAC-SHA256 Credential=functional/20260101/us-east-1/s3/aws4_request, SignedHeaders=host",
                ),
            ),
            ("/b/k", None),
        ] {
            let mut request = Request::get(uri);
            if let Some(authorization) = authorization {
                let value = http::HeaderValue::from_bytes(authorization.as_bytes()).unwrap();
                request = request.header(header::AUTHORIZATION, value);
            }
            meter.begin(Service::S3, &request.body(()).unwrap());
        }
        let snapshot = meter.snapshot();
        assert_eq!(snapshot.aws["s3"]["GetObject"].calls, 2);
        assert_eq!(snapshot.outside["s3"]["GetObject"].calls, 2);
        meter.reset();
        assert_eq!(meter.snapshot(), Snapshot::default());
    }

    #[test]
    fn rounds_are_counted_by_function_until_the_reset() {
        let meter = Meter::default();
        let call = |key: &str| {
            let uri = format!("/b/k?X-Amz-Credential={key}%2F20260101");
            meter.begin(Service::S3, &Request::get(uri).body(()).unwrap())
        };
        let answer = |call: Call| drop(call.response(Response::new(String::new())));
        // Two parallel calls, then a third one; another process; two callers without a process.
        let (first, second) = (call("function.reader.1"), call("function.reader.1"));
        answer(first);
        answer(second);
        answer(call("function.reader.1"));
        answer(call("function.reader.2"));
        answer(call("function"));
        answer(call("local"));
        assert_eq!(meter.rounds(), BTreeMap::from([("reader".to_owned(), 2)]));
        assert_eq!(meter.snapshot().aws["s3"]["GetObject"].calls, 5);
        meter.reset();
        assert_eq!(meter.rounds(), BTreeMap::new());
    }

    #[test]
    fn calls_of_functions_are_counted_by_bucket_too() {
        let meter = Meter::default();
        let signed = "X-Amz-Credential=function%2F20260101";
        for uri in ["/uploads/a", "/uploads/b/c", "/caches/a", "/"] {
            let request = Request::get(format!("{uri}?{signed}")).body(()).unwrap();
            meter.begin(Service::S3, &request);
        }
        meter.begin(Service::S3, &Request::get("/strange/a").body(()).unwrap());
        let Snapshot { aws, buckets, .. } = meter.snapshot();
        assert_eq!(aws["s3"]["GetObject"].calls, 3);
        let calls = |bucket: &str| buckets.get(bucket).map(|by| by["GetObject"].calls);
        assert_eq!(
            [calls("uploads"), calls("caches"), calls("strange")],
            [Some(2), Some(1), None]
        );
        assert_eq!(buckets.len(), 2, "{buckets:?}");
    }
}
