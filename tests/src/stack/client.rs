//! A client of a stack: standard S3, the HTTP API, and the control paths of the local stack.

use std::path::Path;
use std::time::Duration;

use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::error::DisplayErrorContext;
use aws_sdk_s3::primitives::ByteStream;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

use local_stack::gateway::OPERATOR_HEADER;

use super::{Addresses, StackError, Stats};

/// A client of one stack. Clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    addresses: Addresses,
    http: reqwest::Client,
    s3: aws_sdk_s3::Client,
    /// Whether requests are those of the operator.
    is_operator: bool,
}

/// A response of the HTTP API.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body as text.
    pub text: String,
    /// The body, if it is JSON.
    pub body: Value,
}

/// Returns a client for loopback.
///
/// # Errors
/// No HTTP client can be built on this machine.
pub fn http_client() -> reqwest::Result<reqwest::Client> {
    // The adapter to symbol servers enables TLS in the client, which therefore needs a crypto
    // provider, although loopback connections do not use TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A proxy of this machine cannot reach loopback ports.
    reqwest::Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .build()
}

impl Client {
    /// Returns a client of the stack at these addresses. Does not connect yet.
    ///
    /// # Errors
    /// No HTTP client can be built on this machine.
    pub fn new(addresses: Addresses) -> Result<Self, StackError> {
        let unusable = |source: reqwest::Error| StackError::Unanswered {
            what: "the HTTP client",
            url: addresses.gateway.clone(),
            source: source.into(),
        };
        let http = http_client().map_err(unusable)?;
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .credentials_provider(Credentials::new(
                "local",
                "local",
                None,
                None,
                "local stack",
            ))
            .region(Region::from_static("us-east-1"))
            .endpoint_url(addresses.s3.clone())
            .force_path_style(true)
            .build();
        Ok(Self {
            s3: aws_sdk_s3::Client::from_conf(config),
            http,
            addresses,
            is_operator: false,
        })
    }

    /// Returns the addresses of the stack.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns a client of S3 with the keys of the account's administrator.
    pub fn s3(&self) -> &aws_sdk_s3::Client {
        &self.s3
    }

    /// Uploads bytes to the uploads bucket.
    ///
    /// # Errors
    /// [`StackError::S3`].
    pub async fn upload(&self, key: &str, bytes: impl Into<Vec<u8>>) -> Result<(), StackError> {
        self.put(key, ByteStream::from(bytes.into())).await
    }

    /// Uploads a file to the uploads bucket.
    ///
    /// # Errors
    /// [`StackError::File`] if the file cannot be read, otherwise [`StackError::S3`].
    pub async fn upload_file(&self, key: &str, path: &Path) -> Result<(), StackError> {
        let unreadable = |source: aws_smithy_types::byte_stream::error::Error| StackError::File {
            path: path.to_owned(),
            source: std::io::Error::other(source),
        };
        self.put(key, ByteStream::from_path(path).await.map_err(unreadable)?)
            .await
    }

    async fn put(&self, key: &str, body: ByteStream) -> Result<(), StackError> {
        let put = self
            .s3
            .put_object()
            .bucket(self.addresses.uploads())
            .key(key)
            .body(body);
        // Boxed, because the SDK's futures are large and would enlarge every caller's future.
        Box::pin(put.send())
            .await
            .map(drop)
            .map_err(|error| self.s3_error("PutObject", key, &error))
    }

    /// Removes an upload.
    ///
    /// # Errors
    /// [`StackError::S3`].
    pub async fn remove(&self, key: &str) -> Result<(), StackError> {
        let remove = self
            .s3
            .delete_object()
            .bucket(self.addresses.uploads())
            .key(key);
        Box::pin(remove.send())
            .await
            .map(drop)
            .map_err(|error| self.s3_error("DeleteObject", key, &error))
    }

    /// Returns the ETag of an upload, without quotes; `None` if there is no upload.
    ///
    /// # Errors
    /// [`StackError::S3`].
    pub async fn etag(&self, key: &str) -> Result<Option<String>, StackError> {
        match self
            .s3
            .head_object()
            .bucket(self.addresses.uploads())
            .key(key)
            .send()
            .await
        {
            Ok(head) => Ok(head.e_tag().map(|etag| etag.trim_matches('"').to_owned())),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(|error| error.is_not_found()) =>
            {
                Ok(None)
            }
            Err(error) => Err(self.s3_error("HeadObject", key, &error)),
        }
    }

    /// Returns the paths and sizes of the blobs of derived caches.
    ///
    /// # Errors
    /// [`StackError::S3`].
    pub async fn blobs(&self) -> Result<Vec<(String, u64)>, StackError> {
        let mut pages = self
            .s3
            .list_objects_v2()
            .bucket(self.addresses.caches())
            .into_paginator()
            .send();
        let mut blobs = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| self.s3_error("ListObjectsV2", "", &error))?;
            let named = page.contents().iter().filter_map(|object| {
                Some((
                    object.key()?.to_owned(),
                    object
                        .size()
                        .and_then(|size| size.try_into().ok())
                        .unwrap_or(0),
                ))
            });
            blobs.extend(named);
        }
        Ok(blobs)
    }

    /// Returns a blob of derived caches.
    ///
    /// # Errors
    /// [`StackError::S3`].
    pub async fn blob(&self, path: &str) -> Result<Vec<u8>, StackError> {
        let got = self
            .s3
            .get_object()
            .bucket(self.addresses.caches())
            .key(path);
        let got = Box::pin(got.send())
            .await
            .map_err(|error| self.s3_error("GetObject", path, &error))?;
        let bytes = got
            .body
            .collect()
            .await
            .map_err(|error| self.s3_error("GetObject", path, &error))?;
        Ok(bytes.to_vec())
    }

    fn s3_error(
        &self,
        operation: &'static str,
        key: &str,
        error: &dyn std::error::Error,
    ) -> StackError {
        StackError::S3 {
            operation,
            bucket: self.addresses.uploads().to_owned(),
            key: key.to_owned(),
            reason: DisplayErrorContext(error).to_string(),
        }
    }

    /// Returns a client whose requests are the operator's, as if they were signed.
    #[must_use]
    pub fn as_operator(&self) -> Self {
        Self {
            is_operator: true,
            ..self.clone()
        }
    }

    /// Starts a request to the HTTP API.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.addresses.gateway);
        let request = self.http.request(method, url);
        if self.is_operator {
            request.header(OPERATOR_HEADER, &self.addresses.operator_key)
        } else {
            request
        }
    }

    /// Sends a request and reads the complete response.
    ///
    /// # Errors
    /// [`StackError::Unanswered`]. An error response is returned as `Ok`.
    pub async fn send(
        &self,
        what: &'static str,
        request: RequestBuilder,
    ) -> Result<Reply, StackError> {
        let unanswered = |source: reqwest::Error| StackError::Unanswered {
            what,
            url: self.addresses.gateway.clone(),
            source: source.into(),
        };
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status().as_u16();
        let text = response.text().await.map_err(unanswered)?;
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Reply { status, text, body })
    }

    /// Sends a crash; `query` is the query string of the URL.
    ///
    /// # Errors
    /// [`StackError::Unanswered`].
    pub async fn symbolicate(&self, query: &str, crash: &Value) -> Result<Reply, StackError> {
        self.send(
            "a crash",
            self.request(Method::POST, &with_query("/symbolicate", query))
                .json(crash),
        )
        .await
    }

    /// Sends a crash, and expects a completed response.
    ///
    /// # Errors
    /// [`StackError::Refused`] for every other response.
    pub async fn completed(&self, query: &str, crash: &Value) -> Result<Value, StackError> {
        let reply = self.symbolicate(query, crash).await?;
        completed(reply.expect(200, "a crash")?)
    }

    /// Sends a minidump as a form, and expects a completed response.
    ///
    /// # Errors
    /// [`StackError::Refused`] for every other response.
    pub async fn minidump(&self, query: &str, dump: &[u8]) -> Result<Value, StackError> {
        const BOUNDARY: &str = "a-boundary-that-no-file-has";
        let part = "Content-Disposition: form-data; name=\"upload_file_minidump\"";
        let mut form = format!("--{BOUNDARY}\r\n{part}\r\n\r\n").into_bytes();
        form.extend(dump);
        form.extend(format!("\r\n--{BOUNDARY}--\r\n").into_bytes());
        let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
        let request = self.request(Method::POST, &format!("/minidump?{query}"));
        let request = request.header("content-type", content_type).body(form);
        completed(
            self.send("a minidump", request)
                .await?
                .expect(200, "a minidump")?,
        )
    }

    /// Sends a message to the queue with this name in the template.
    ///
    /// # Errors
    /// [`StackError::Refused`] if there is no such queue, or it refuses the message.
    pub async fn send_message(&self, queue: &str, body: &str) -> Result<(), StackError> {
        let url = self.addresses.queues.get(queue).cloned();
        let message = serde_json::json!({"QueueUrl": url, "MessageBody": body});
        let request = self
            .http
            .post(&self.addresses.sqs)
            .header("x-amz-target", "AmazonSQS.SendMessage")
            .header("content-type", "application/x-amz-json-1.0")
            .body(message.to_string());
        self.send("a message", request)
            .await?
            .expect(200, "a message")
            .map(drop)
    }

    /// Sends a crash, polls while it is pending, and returns the completed response.
    ///
    /// # Errors
    /// [`StackError::Refused`] for every response that is neither pending nor completed.
    pub async fn completed_at_last(&self, crash: &Value) -> Result<Value, StackError> {
        self.completed_at_last_with("", crash).await
    }

    /// As [`Client::completed_at_last`]; `query` is the query string of the URL.
    ///
    /// # Errors
    /// [`StackError::Refused`] for every response that is neither pending nor completed.
    pub async fn completed_at_last_with(
        &self,
        query: &str,
        crash: &Value,
    ) -> Result<Value, StackError> {
        let mut reply = self.symbolicate(query, crash).await?;
        loop {
            reply = reply.expect(200, "a crash")?;
            let id = match reply.body.get("status").and_then(Value::as_str) {
                Some("pending") => reply.body.get("request_id").and_then(Value::as_str),
                _ => None,
            };
            let Some(id) = id else {
                return completed(reply);
            };
            let request = self.request(Method::GET, &format!("/requests/{id}"));
            reply = self.send("a pending crash", request).await?;
        }
    }

    /// Requests the state of an upload.
    ///
    /// # Errors
    /// [`StackError::Unanswered`].
    pub async fn explain(&self, key: &str) -> Result<Reply, StackError> {
        let request = self.request(Method::GET, &format!("/explain?key={}", encoded(key)));
        self.send("the state of an upload", request).await
    }

    /// Waits until the stack is idle.
    ///
    /// # Errors
    /// [`StackError::Refused`] if it is not idle after `patience`.
    pub async fn idle(&self, patience: Duration) -> Result<(), StackError> {
        let path = format!("/_local/idle?timeout={}", patience.as_secs_f64());
        self.send(
            "whether the stack is idle",
            self.request(Method::GET, &path),
        )
        .await?
        .expect(200, "waiting until the stack is idle")
        .map(drop)
    }

    /// Waits until the stack is idle. Failed messages are retried at once: the clock of the queues
    /// is moved to the end of their visibility timeouts.
    ///
    /// # Errors
    /// [`StackError::Refused`] if it is not idle after `patience`.
    pub async fn settled(&self, patience: Duration) -> Result<(), StackError> {
        let path = format!(
            "/_local/clock?until=idle&timeout={}",
            patience.as_secs_f64()
        );
        self.move_clock("whether the stack is idle", &path).await
    }

    /// Moves the clock of `sqs` or `s3` ahead.
    ///
    /// # Errors
    /// [`StackError::Refused`] if there is no such clock, or it is moved by more than a year.
    pub async fn advance(&self, service: &str, by: Duration) -> Result<(), StackError> {
        let path = format!("/_local/clock?of={service}&advance={}", by.as_secs_f64());
        self.move_clock("the clock", &path).await
    }

    async fn move_clock(&self, what: &'static str, path: &str) -> Result<(), StackError> {
        let request = self.request(Method::POST, path);
        self.send(what, request).await?.expect(200, what).map(drop)
    }

    /// Returns the counters of the stack.
    ///
    /// # Errors
    /// [`StackError::Refused`] if the counters cannot be read.
    pub async fn stats(&self) -> Result<Stats, StackError> {
        let reply = self
            .send("the counters", self.request(Method::GET, "/_local/stats"))
            .await?
            .expect(200, "the counters")?;
        serde_json::from_str(&reply.text).map_err(|error| StackError::Refused {
            what: "the counters".to_owned(),
            status: reply.status,
            body: format!("{error} in {}", reply.text),
        })
    }

    /// Resets the counters.
    ///
    /// # Errors
    /// [`StackError::Refused`].
    pub async fn clear_stats(&self) -> Result<(), StackError> {
        let request = self.request(Method::DELETE, "/_local/stats");
        self.send("clearing the counters", request)
            .await?
            .expect(200, "clearing the counters")
            .map(drop)
    }

    /// Stops all function processes, so that the next invocations are cold starts.
    ///
    /// # Errors
    /// [`StackError::Refused`].
    pub async fn end_functions(&self) -> Result<(), StackError> {
        let request = self.request(Method::DELETE, "/_local/functions");
        self.send("stopping the functions", request)
            .await?
            .expect(200, "stopping the functions")
            .map(drop)
    }

    /// Runs the schedule now, and returns its report.
    ///
    /// # Errors
    /// [`StackError::Refused`].
    pub async fn prune(&self, dry_run: bool) -> Result<Value, StackError> {
        let request = self.request(Method::POST, &format!("/_local/prune?dry_run={dry_run}"));
        Ok(self
            .send("the schedule", request)
            .await?
            .expect(200, "the schedule")?
            .body)
    }
}

impl Reply {
    /// Returns the reply if it has this status.
    ///
    /// # Errors
    /// [`StackError::Refused`] if it has another one.
    pub fn expect(self, status: u16, what: &str) -> Result<Self, StackError> {
        if self.status == status {
            Ok(self)
        } else {
            Err(StackError::Refused {
                what: what.to_owned(),
                status: self.status,
                body: self.text,
            })
        }
    }
}

/// Returns the body of a completed reply.
fn completed(reply: Reply) -> Result<Value, StackError> {
    match reply.body.get("status").and_then(Value::as_str) {
        Some("completed") => Ok(reply.body),
        _ => Err(StackError::Refused {
            what: "a crash".to_owned(),
            status: reply.status,
            body: reply.text,
        }),
    }
}

fn with_query(path: &str, query: &str) -> String {
    if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    }
}

/// Percent-encodes a key for the query of a URL.
fn encoded(key: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    key.bytes()
        .map(|byte| {
            if plain(&byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}
