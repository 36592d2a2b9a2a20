//! The four ports, with requests as a browser would send them for a web page (docs/security.md, F4
//! and F13).

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod client;
mod endpoints;
mod project;

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_s3::presigning::PresigningConfig;
use bytes::Bytes;
use client::{ask, send};
use endpoints::{dynamodb_client, s3_client};
use http::{Method, Request, Response};
use local_stack::identity::{ACCOUNT, LOCAL};
use local_stack::stack::{Options, Running, Stack};
use project::write_project;
use serde_json::json;
use tempfile::TempDir;

const BUCKET: &str = "template-uploads-000000000000";

/// The name of a page that resolves to 127.0.0.1.
const REBOUND: &str = "evil.example";

/// The four ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Gateway,
    S3,
    DynamoDb,
    Sqs,
}

const PORTS: [Port; 4] = [Port::Gateway, Port::S3, Port::DynamoDb, Port::Sqs];

struct Site {
    running: Running,
    _folder: TempDir,
}

impl Site {
    async fn start(change: impl FnOnce(&mut Options)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (template, functions) = write_project(folder.path());
        let mut options = Options::new(template, functions, folder.path().join("data"));
        change(&mut options);
        Self {
            running: Stack::start(options).await.unwrap(),
            _folder: folder,
        }
    }

    fn url(&self, port: Port) -> &str {
        let addresses = self.running.addresses();
        match port {
            Port::Gateway => &addresses.gateway,
            Port::S3 => &addresses.s3,
            Port::DynamoDb => &addresses.dynamodb,
            Port::Sqs => &addresses.sqs,
        }
    }

    /// The port number as text.
    fn number(&self, port: Port) -> &str {
        self.url(port).rsplit_once(':').unwrap().1
    }

    /// A request that changes state, signed for `host` if the port needs it.
    async fn change(&self, port: Port, host: &str) -> Request<Bytes> {
        let base = format!("http://{host}:{}", self.number(port));
        let request = match port {
            Port::Gateway => Request::post("/echo").body(Bytes::from_static(b"{}")),
            Port::S3 => {
                let expiry = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
                let presigned = s3_client(&base, LOCAL)
                    .put_object()
                    .bucket(BUCKET)
                    .key("planted")
                    .presigned(expiry)
                    .await
                    .unwrap();
                let path = presigned.uri().strip_prefix(&base).unwrap();
                Request::put(path).body(Bytes::from_static(b"planted"))
            }
            Port::DynamoDb => {
                let item = json!({ "TableName": "Records", "Item": { "id": { "S": "planted" } } });
                // The engine checks no signature, but requires one to be present.
                let signature = "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=00";
                Request::post("/")
                    .header("content-type", "application/x-amz-json-1.0")
                    .header("x-amz-target", "DynamoDB_20120810.PutItem")
                    .header("x-amz-date", "20260101T000000Z")
                    .header("authorization", signature)
                    .body(Bytes::from(item.to_string()))
            }
            Port::Sqs => {
                let url = format!("{base}/{ACCOUNT}/Dead");
                let message = json!({ "QueueUrl": url, "MessageBody": "planted" });
                Request::post("/")
                    .header("content-type", "application/x-amz-json-1.0")
                    .header("x-amz-target", "AmazonSQS.SendMessage")
                    .body(Bytes::from(message.to_string()))
            }
        };
        let mut request = request.unwrap();
        let host = format!("{host}:{}", self.number(port));
        request.headers_mut().insert("host", host.parse().unwrap());
        request
    }

    /// Whether the request took effect.
    async fn is_changed(&self, port: Port) -> bool {
        match port {
            Port::Gateway => self.running.functions().begun() > 0,
            Port::S3 => {
                let client = s3_client(self.url(port), LOCAL);
                let head = client.head_object().bucket(BUCKET).key("planted");
                head.send().await.is_ok()
            }
            Port::DynamoDb => {
                let client = dynamodb_client(self.url(port), LOCAL);
                let get = client.get_item().table_name("Records");
                let id = AttributeValue::S("planted".to_owned());
                let got = get.key("id", id).send().await.unwrap();
                got.item.is_some()
            }
            Port::Sqs => {
                let counts = self.running.queues().counts("Dead").await.unwrap();
                counts.visible > 0
            }
        }
    }

    async fn send(&self, port: Port, request: Request<Bytes>) -> Response<Bytes> {
        send(self.url(port), request).await
    }
}

fn lets_pages_read(response: &Response<Bytes>) -> bool {
    let mut names = response.headers().keys();
    names.any(|name| name.as_str().starts_with("access-control-"))
}

fn text(response: &Response<Bytes>) -> String {
    String::from_utf8_lossy(response.body()).into_owned()
}

/// A page of another site sends a request that a form may send without a preflight.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_another_sites_page_are_refused_and_change_nothing() {
    let site = Site::start(|_| {}).await;
    let foreign = [
        ("origin", "https://evil.example".to_owned()),
        ("origin", "null".to_owned()),
        // Another program on this machine has another port and is therefore another origin.
        ("origin", "http://127.0.0.1:8080".to_owned()),
        // A bucket may contain a page.
        ("origin", site.url(Port::S3).to_owned()),
        // Images, scripts and frames are requested without an origin.
        ("sec-fetch-site", "cross-site".to_owned()),
        ("sec-fetch-site", "same-site".to_owned()),
    ];
    for port in PORTS {
        for (name, value) in &foreign {
            let mut request = site.change(port, "127.0.0.1").await;
            request.headers_mut().insert(*name, value.parse().unwrap());
            let response = site.send(port, request).await;
            assert_eq!(response.status(), 403, "{port:?} {name}: {value}");
            assert!(!lets_pages_read(&response), "{port:?}");
            assert!(text(&response).contains("web page"), "{}", text(&response));
        }
        assert!(!site.is_changed(port).await, "{port:?}");
    }
    site.running.stop().await;
}

/// With DNS rebinding the browser treats the page as same-origin; only its `Host` reveals it.
#[tokio::test(flavor = "multi_thread")]
async fn requests_to_another_name_are_refused_and_change_nothing() {
    let site = Site::start(|_| {}).await;
    for port in PORTS {
        let request = site.change(port, REBOUND).await;
        let response = site.send(port, request).await;
        assert_eq!(response.status(), 421, "{port:?}");
        assert!(text(&response).contains(REBOUND), "{}", text(&response));
        assert!(
            text(&response).contains("--host-name"),
            "{}",
            text(&response)
        );
        assert!(!site.is_changed(port).await, "{port:?}");

        for host in [
            "127.0.0.1.evil.example".to_owned(),
            "localhost.evil.example".to_owned(),
            "127.0.0.1".to_owned(),
            "127.0.0.1:1".to_owned(),
            format!("local:local@127.0.0.1:{}", site.number(port)),
            String::new(),
        ] {
            let mut request = site.change(port, "127.0.0.1").await;
            request.headers_mut().insert("host", host.parse().unwrap());
            let status = site.send(port, request).await.status();
            assert_eq!(status, 421, "{port:?} {host}");
        }
        let mut twice = site.change(port, "127.0.0.1").await;
        twice.headers_mut().append("host", REBOUND.parse().unwrap());
        assert_eq!(site.send(port, twice).await.status(), 421, "{port:?}");
        assert!(!site.is_changed(port).await, "{port:?}");
    }
    site.running.stop().await;
}

/// The DynamoDB engine itself accepts all preflights and lets every origin read its responses.
#[tokio::test(flavor = "multi_thread")]
async fn preflights_are_refused_and_no_response_is_for_other_origins() {
    let site = Site::start(|_| {}).await;
    for port in PORTS {
        for origin in ["https://evil.example", site.url(Port::Gateway)] {
            let request = Request::options("/")
                .header("origin", origin)
                .header("access-control-request-method", "POST")
                .header("access-control-request-headers", "x-amz-target")
                .body(Bytes::new())
                .unwrap();
            let response = site.send(port, request).await;
            assert_eq!(response.status(), 403, "{port:?} {origin}");
            assert!(!lets_pages_read(&response), "{port:?}");
        }
        let mut own = site.change(port, "127.0.0.1").await;
        let gateway = site.url(Port::Gateway).parse().unwrap();
        own.headers_mut().insert("origin", gateway);
        let response = site.send(port, own).await;
        assert_eq!(response.status(), 200, "{port:?}: {}", text(&response));
        assert!(!lets_pages_read(&response), "{port:?}");
    }
    site.running.stop().await;
}

/// The requests that the tests above refuse succeed if no page sends them.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_command_lines_are_accepted_under_every_loopback_name() {
    for host in ["127.0.0.1", "localhost", "LocalHost", "[::1]"] {
        let site = Site::start(|_| {}).await;
        for port in PORTS {
            let request = site.change(port, host).await;
            let response = site.send(port, request).await;
            assert_eq!(response.status(), 200, "{port:?}: {}", text(&response));
            assert!(site.is_changed(port).await, "{port:?} {host}");
        }
        site.running.stop().await;
    }
}

/// A tunnel or a proxy has a name of its own, which the user passes to the stack.
#[tokio::test(flavor = "multi_thread")]
async fn a_stack_answers_under_the_name_that_it_was_started_with() {
    let site = Site::start(|options| options.host_names = vec![REBOUND.parse().unwrap()]).await;
    for port in PORTS {
        let request = site.change(port, REBOUND).await;
        let response = site.send(port, request).await;
        assert_eq!(response.status(), 200, "{port:?}: {}", text(&response));
        assert!(site.is_changed(port).await, "{port:?}");
    }
    site.running.stop().await;
}

/// Following a link, or typing an address, is not a request of another site's page.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_may_follow_a_link() {
    let site = Site::start(|_| {}).await;
    let gateway = site.url(Port::Gateway);
    assert_eq!(ask(gateway, "GET", "/_local/stats").await.0, 200);
    let follow = |method: Method, site: &'static str, destination: &'static str| {
        Request::builder()
            .method(method)
            .uri("/_local/stats")
            .header("sec-fetch-site", site)
            .header("sec-fetch-mode", "navigate")
            .header("sec-fetch-dest", destination)
            .body(Bytes::new())
            .unwrap()
    };
    for (method, from, destination, status) in [
        (Method::GET, "none", "document", 200),
        (Method::GET, "same-origin", "document", 200),
        (Method::GET, "cross-site", "document", 200),
        (Method::GET, "cross-site", "iframe", 403),
        (Method::DELETE, "cross-site", "document", 403),
    ] {
        let request = follow(method, from, destination);
        let response = site.send(Port::Gateway, request).await;
        assert_eq!(response.status(), status, "{from} {destination}");
    }
    site.running.stop().await;
}
