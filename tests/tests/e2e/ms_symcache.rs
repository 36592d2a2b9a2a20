//! Tests of Microsoft's SymCache protocol over HTTP, as WPA and TraceProcessor use it: every rule
//! that a function can implement.
//!
//! The transcoder is a stand-in, which writes stand-in files.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use reqwest::{Method, RequestBuilder, StatusCode, redirect};
use symdepot_tests::stack::{Binaries, Options, Process, Reply, checkout, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::access::issue;
use crate::kills::is_derive;
use crate::symbol_server::SymbolServer;
use crate::{PATIENCE, Running, bytes_of};

const GUID: &str = "ee78a075f42847b888239eed88fa9c34";

/// The GUID of pe/x64/crash.pdb, whose age is 1.
const CRASH: &str = "c7d4c24f1fb854084c4c44205044422e";

/// A stack with a stand-in that transcodes to version 3.1.0, and a client that follows no
/// redirects.
struct Protocol {
    running: Running,
    http: reqwest::Client,
    tool: PathBuf,
    _folder: tempfile::TempDir,
}

/// A response.
struct Answer {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Asserts that the response is an empty 404, with `Retry-After` if `retry` is set.
    fn is_nothing(&self, what: &str, retry: bool) {
        let retry_after = self
            .header("retry-after")
            .map(|after| after.parse::<u32>().unwrap());
        assert_eq!((self.status, retry_after.is_some()), (404, retry), "{what}");
        assert!(
            self.body.is_empty(),
            "{what}: {}",
            String::from_utf8_lossy(&self.body)
        );
    }
}

impl Protocol {
    async fn start(settings: impl FnOnce(Options) -> Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("symcachegen");
        let binaries = Binaries::from_env().unwrap();
        std::fs::copy(binaries.get("stand-in-symcachegen"), &tool).unwrap();
        let tool_path = tool.display().to_string();
        let running = Running::start_with(|options| {
            let options = options
                .variable("TRANSCODER_PATH", tool_path)
                .variable("TRANSCODER_VERSION", "3.1.0");
            settings(options)
        });
        Self {
            running: running.await,
            http: reqwest::Client::builder()
                .no_proxy()
                .redirect(redirect::Policy::none())
                .build()
                .unwrap(),
            tool,
            _folder: folder,
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let gateway = &self.running.client().addresses().gateway;
        self.http.request(method, format!("{gateway}{path}"))
    }

    async fn send(&self, request: RequestBuilder) -> Answer {
        let answer = request.send().await.unwrap();
        Answer {
            status: answer.status().as_u16(),
            headers: answer.headers().clone(),
            body: answer.bytes().await.unwrap().to_vec(),
        }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request = self.request(Method::GET, path);
        let add =
            |request: RequestBuilder, (name, value): &(&str, &str)| request.header(*name, *value);
        self.send(headers.iter().fold(request, add)).await
    }

    /// Requests an existing file, follows the redirect and returns the bytes.
    async fn file(&self, path: &str, version: &str) -> Vec<u8> {
        let answer = self.get(path, &[]).await;
        let content_type = format!("application/vnd.ms-symcache; version={version}");
        assert_eq!(answer.status, 302, "{path}");
        assert_eq!(
            answer.header("content-type"),
            Some(content_type.as_str()),
            "{path}"
        );
        let url = answer.header("location").unwrap();
        let found = self.http.get(url).send().await.unwrap();
        assert_eq!(found.status(), StatusCode::OK, "{path}");
        assert_eq!(found.headers()["content-type"], content_type, "{path}");
        found.bytes().await.unwrap().to_vec()
    }

    /// Sends a GET request to a route that responds with JSON.
    async fn json(&self, path: &str) -> Reply {
        let client = self.running.client();
        let request = client.request(Method::GET, path);
        client.send("GET request", request).await.unwrap()
    }

    /// Uploads a file from a client's symbol cache.
    async fn sync(&self, name: &str, id: &str, version: &str) {
        let key = format!("global/symcache/{name}/{id}/{name}-v{version}.symcache");
        self.running.upload(&key, format!("{name} {version}")).await;
        assert_eq!(self.running.state_of(&key).await.0, "applied", "{key}");
    }

    /// Returns the names of the PDBs that were transcoded.
    fn transcoded(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.tool.with_extension("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

fn any() -> String {
    Uuid::new_v4().simple().to_string()
}

#[tokio::test]
async fn an_existing_file_is_served_to_every_supported_client() {
    let protocol = Protocol::start(|options| options).await;
    protocol
        .sync("Have.pdb", &format!("{}1", GUID.to_uppercase()), "3.1.0")
        .await;
    protocol
        .sync("have.pdb", &format!("{GUID}a"), "3.1.0")
        .await;
    let dashed = Uuid::parse_str(GUID).unwrap().to_string();
    for path in [
        format!("/v3.1.0/have.pdb/{GUID}/1"),
        format!("/v3.1.0/have.pdb/{GUID}"),
        format!("/v3.1.0/have.pdb/{dashed}/1"),
        format!("/v3.1.0/have.pdb/{}/1", GUID.to_uppercase()),
        format!("/v3.1.0/HAVE.PDB/{GUID}/1"),
        format!("/v3.2.0/have.pdb/{GUID}/1"),
        format!("/v4.1.0/have.pdb/{GUID}/1"),
        format!("/v3.0.0/have.pdb/{GUID}/1"),
        format!("/symcache/v3.1.0/have.pdb/{GUID}/1"),
        format!("/v3.1.0/have.pdb/{GUID}/10"),
    ] {
        let bytes = protocol.file(&path, "3.1.0").await;
        assert!(
            bytes.ends_with(b"have.pdb 3.1.0") || bytes.ends_with(b"Have.pdb 3.1.0"),
            "{path}"
        );
    }
    let head = protocol.request(Method::HEAD, &format!("/v3.1.0/have.pdb/{GUID}/1"));
    let head = protocol.send(head).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(
        head.header("content-type"),
        Some("application/vnd.ms-symcache; version=3.1.0")
    );
    let post = protocol.request(Method::POST, &format!("/v3.1.0/have.pdb/{GUID}/1"));
    assert_eq!(protocol.send(post).await.status, 405);

    for (by, path) in [
        ("hexadecimal age", format!("/v3.1.0/have.pdb/{GUID}/a")),
        ("version 2", format!("/v2.9.9/have.pdb/{GUID}/1")),
        ("two numbers", format!("/v3.1/have.pdb/{GUID}/1")),
        ("glued", format!("/v3.1.0/have.pdb/{GUID}1")),
        ("minor over 255", format!("/v3.256.0/have.pdb/{GUID}/1")),
        (
            "a folder of Windows",
            format!("/v3.1.0/..%5Chave.pdb/{GUID}/1"),
        ),
        (
            "a control character",
            format!("/v3.1.0/have%00.pdb/{GUID}/1"),
        ),
    ] {
        protocol
            .get(&path, &[("allow-retry-after", "true")])
            .await
            .is_nothing(by, false);
    }

    let present = async |path: &str, headers: &[(&str, &str)]| protocol.get(path, headers).await;
    let newer = format!("/v3.2.0/have.pdb/{GUID}/1");
    let is_new = present(&newer, &[("if-version-exceeds", "3.0.0")]).await;
    assert_eq!(is_new.status, 302);
    let is_known = present(&newer, &[("if-version-exceeds", "3.1.0")]).await;
    assert_eq!((is_known.status, is_known.body.len()), (304, 0));
    for (headers, expected) in [
        (&[("if-version-exceeds", "3.2.0")][..], "must be less"),
        (&[("if-version-exceeds", "abc")], "not a valid version"),
        (&[("if-version-exceeds", "0.9.0")], "unsupported"),
        (
            &[
                ("if-version-exceeds", "3.0.0"),
                ("if-version-exceeds", "3.1.0"),
            ],
            "Only one",
        ),
    ] {
        let bad = present(&newer, headers).await;
        let text = String::from_utf8_lossy(&bad.body).into_owned();
        assert!(
            bad.status == 400 && text.contains(expected),
            "{headers:?}: {text}"
        );
        // The text contains the request's header, so a browser must not interpret it as a page.
        assert_eq!(bad.header("x-content-type-options"), Some("nosniff"));
    }
}

/// WPA can be given an address, and no header: the token is a part of it (docs/clients.md).
#[tokio::test]
async fn a_token_in_the_address_reads_the_files_of_its_tenant_and_knows_of_no_others() {
    let protocol = Protocol::start(|options| options.variable("AUTH", "token")).await;
    let running = &protocol.running;
    let id = |number: usize| format!("c01d0000000040008000{number:012x}");
    for (scope, number) in [("acme", 1), ("other", 2), ("global", 3)] {
        let name = format!("have.pdb/{}1/have.pdb-v3.1.0.symcache", id(number));
        let key = format!("{scope}/symcache/{name}");
        running.upload(&key, format!("file of {scope}")).await;
    }
    let file = |number| format!("/v3.1.0/have.pdb/{}/1", id(number));
    let (token, _) = issue(running, "acme", &["download"]).await;
    let (without_right, _) = issue(running, "acme", &["upload"]).await;
    let at = |token: &str, path: &str| format!("/t/{token}{path}");

    for (path, expected) in [
        (at(&token, &file(1)), "file of acme"),
        (at(&token, &format!("/symcache{}", file(1))), "file of acme"),
        (
            at(&token, &format!("/scope/acme{}", file(1))),
            "file of acme",
        ),
        (at(&token, &file(3)), "file of global"),
    ] {
        assert_eq!(protocol.file(&path, "3.1.0").await, expected.as_bytes());
    }
    for (path, status) in [
        (file(1), 401),
        (at("x", &file(1)), 401),
        (at(&token.replace(&token[..8], "00000000"), &file(1)), 401),
        (at(&without_right, &file(1)), 403),
        (at(&token, &format!("/scope/other{}", file(2))), 403),
    ] {
        let answer = protocol.get(&path, &[]).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("location"), None, "{path}");
    }

    // The response for a file of another tenant is that for a file that no tenant has.
    let of_other = protocol.get(&at(&token, &file(2)), &[]).await;
    let of_none = protocol.get(&at(&token, &file(4)), &[]).await;
    of_other.is_nothing("a file of another tenant", false);
    let named = |answer: &Answer| {
        let mut headers = answer.headers.clone();
        // They differ with each response.
        for name in ["date", "apigw-requestid"] {
            headers.remove(name);
        }
        headers
    };
    assert_eq!(named(&of_other), named(&of_none));
    assert_eq!(of_none.status, 404);
}

#[tokio::test]
async fn unknown_pdb_requests_wait_or_retry_as_the_client_asks() {
    // The stack needs a symbol server: without one, a file that was never uploaded is known to be
    // absent at once.
    let server = SymbolServer::start([]).await;
    // A second request is recorded by the instance that received the first one, so there is only
    // one instance.
    let protocol = Protocol::start(|options| server.sought_by(options).concurrency(1)).await;
    // The list of wanted files has a limited number of slots: random ids may share one.
    let id = |number: usize| format!("c01d0000000040008000{number:012x}");
    for (number, (version, header, retry)) in [
        ("3.1.0", Some(("allow-retry-after", "true")), true),
        ("3.1.0", Some(("accept-retry-after", "TRUE")), true),
        ("3.0.9", Some(("Allow-Retry-After", "True")), true),
        ("3.1.1", None, true),
        ("4.0.0", None, true),
        ("3.1.0", None, false),
        ("3.1.0", Some(("allow-retry-after", "yes")), false),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/v{version}/cold.pdb/{}/1", id(number));
        let headers: Vec<_> = header.into_iter().collect();
        let what = format!("{version} {header:?}");
        protocol.get(&path, &headers).await.is_nothing(&what, retry);
        protocol.running.idle().await;
        // Now every client receives a final 404.
        protocol.get(&path, &[]).await.is_nothing(&what, false);
    }
    let path = format!("/v3.2.0/cold.pdb/{}/1", any());
    let known = protocol
        .get(&path, &[("if-version-exceeds", "3.1.0")])
        .await;
    assert_eq!(known.status, 304, "no newer version can be made");

    let wanted = protocol.json("/wanted").await;
    let names: Vec<&str> = wanted.body["wanted"]
        .as_array()
        .unwrap()
        .iter()
        .map(|wanted| wanted["pdb"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["cold.pdb"; 7], "{}", wanted.text);
}

#[tokio::test]
async fn a_hundred_clients_cause_one_download_and_one_transcoding_even_on_failure() {
    const CLIENTS: usize = 100;
    let at = |name: &str| format!("/{name}/{}1/{name}", CRASH.to_uppercase());
    let pdb = || bytes_of("pe/x64/crash.pdb");
    let (good, bad) = (at("crash.pdb"), at("aborts.pdb"));
    let server = SymbolServer::start([(good.as_str(), pdb()), (bad.as_str(), pdb())]).await;
    let protocol = Protocol::start(|options| {
        options
            .variable("SYMBOL_SERVER", server.url())
            .variable("ALLOW_PRIVATE_SOURCES", 1)
            .concurrency(4)
    })
    .await;
    let path = |name: &str| format!("/v3.1.0/{name}/{CRASH}/1");
    for (name, at, expected) in [("crash.pdb", &good, 302), ("aborts.pdb", &bad, 404)] {
        let path = path(name);
        let clients = (0..CLIENTS).map(|number| {
            // Every second client retries.
            let again = if number % 2 == 0 { "true" } else { "no" };
            let (protocol, path) = (&protocol, &path);
            async move {
                loop {
                    let answer = protocol.get(path, &[("allow-retry-after", again)]).await;
                    match (answer.status, answer.header("retry-after")) {
                        (404 | 503, Some(_)) => tokio::task::yield_now().await,
                        (status, _) => return status,
                    }
                }
            }
        });
        let statuses = futures::future::join_all(clients).await;
        assert_eq!(statuses, [expected; CLIENTS], "{name}");
        assert_eq!(server.asked_for(at), 1, "{name}");
        let calls = protocol.transcoded();
        assert_eq!(
            calls.iter().filter(|call| *call == name).count(),
            1,
            "{calls:?}"
        );
    }
    // `/explain` returns the reason, as for every cache.
    let query =
        "/explain?debug_id=c7d4c24f-1fb8-5408-4c4c-44205044422e-1&type=pe&debug_file=aborts.pdb";
    let explained = protocol.json(query).await;
    assert!(
        explained.text.contains("killed by signal 6"),
        "{}",
        explained.text
    );

    let bytes = protocol.file(&path("crash.pdb"), "3.1.0").await;
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        text.starts_with("stands for the SymCache of crash.pdb c7d4c24f-"),
        "{text}"
    );

    // A ready file costs a cold instance one read and a warm one no call.
    let client = protocol.running.client();
    protocol.running.idle().await;
    client.end_functions().await.unwrap();
    for expected in [1, 0] {
        client.clear_stats().await.unwrap();
        assert_eq!(protocol.get(&path("crash.pdb"), &[]).await.status, 302);
        let stats = client.stats().await.unwrap();
        assert_eq!(stats.aws_calls(), expected, "{stats:#?}");
        assert_eq!(stats.calls("dynamodb", "BatchGetItem"), expected);
    }
}

#[tokio::test]
async fn a_pdb_is_found_uncompressed_compressed_by_pointer_and_in_two_tiers() {
    let kept = |id: Uuid| with_guid(&bytes_of("pe/x64/crash.pdb"), id);
    let (plain, led, two_tiers) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    let id = |id: &Uuid| format!("{}1", id.simple().to_string().to_uppercase());
    // One server with a pointer, a compressed file and a plain file; one with two tiers of folders.
    let elsewhere = SymbolServer::start([("/kept/1", kept(led))]).await;
    let pointer = format!("PATH:{}kept/1", elsewhere.url());
    let server = SymbolServer::start([
        (
            &*format!("/plain.pdb/{}/plain.pdb", id(&plain)),
            kept(plain),
        ),
        (
            &*format!("/crash.pdb/{}1/crash.pd_", CRASH.to_uppercase()),
            bytes_of("containers/crash.pd_"),
        ),
        (
            &*format!("/led.pdb/{}/file.ptr", id(&led)),
            pointer.into_bytes(),
        ),
    ])
    .await;
    let tiers = SymbolServer::start([
        ("/index2.txt", Vec::new()),
        (
            &*format!("/ti/tiers.pdb/{}/tiers.pdb", id(&two_tiers)),
            kept(two_tiers),
        ),
    ])
    .await;
    let sources = serde_json::json!([
        {"id": "tiers", "type": "http", "url": tiers.url(), "layout": {"type": "symsrv"}},
    ]);
    let protocol = Protocol::start(|options| {
        options
            .variable("SYMBOL_SERVER", server.url())
            .variable("SOURCES", sources)
            .variable("ALLOW_PRIVATE_SOURCES", 1)
    })
    .await;
    let crash = Uuid::parse_str(CRASH).unwrap();
    for (name, id) in [
        ("plain", plain),
        ("crash", crash),
        ("led", led),
        ("tiers", two_tiers),
    ] {
        let path = format!("/v3.1.0/{name}.pdb/{}/1", id.simple());
        let text = String::from_utf8(protocol.file(&path, "3.1.0").await).unwrap();
        assert_eq!(
            text,
            format!("stands for the SymCache of {name}.pdb {id}-1\n")
        );
    }
}

/// Starts a server that responds to every request with the same bytes, and continues to send bytes
/// if it is `endless`. It ends with the test.
async fn hostile(head: &'static str, endless: bool) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut task = JoinSet::new();
    task.spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                if !matches!(connection.read_buf(&mut request).await, Ok(1..)) {
                    break;
                }
            }
            let is_sign = request.starts_with(b"GET /index2.txt");
            let answer = if is_sign {
                "HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"
            } else {
                head
            };
            // The client closes the connection when it has read enough.
            let mut sent = connection.write_all(answer.as_bytes()).await;
            while endless && !is_sign && sent.is_ok() {
                sent = connection.write_all(&[b'x'; 65536]).await;
            }
        }
    });
    (url, task)
}

#[tokio::test]
async fn a_hostile_symbol_server_cannot_block_a_request() {
    for (what, head, endless) in [
        ("endless", "HTTP/1.1 200 OK\r\n\r\n", true),
        (
            "endless, and says so",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n",
            true,
        ),
        (
            "short",
            "HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\nabc",
            false,
        ),
        (
            "no file",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            false,
        ),
        (
            "a circle",
            "HTTP/1.1 302 On\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n",
            false,
        ),
    ] {
        let (url, _server) = hostile(head, endless).await;
        let protocol = Protocol::start(|options| {
            options
                .variable("SYMBOL_SERVER", url)
                .variable("ALLOW_PRIVATE_SOURCES", 1)
                .variable("SCRATCH_BYTES", 16 << 20)
        })
        .await;
        let path = format!("/v3.1.0/lost.pdb/{}/1", any());
        let answer = protocol.get(&path, &[]).await;
        // A server that failed is not called again within half a minute, so this is final, too.
        assert_eq!(answer.status, 404, "{what}");
        assert_eq!(answer.header("retry-after"), None, "{what}");
        assert!(protocol.transcoded().is_empty(), "{what}");
    }
}

#[tokio::test]
async fn a_failed_transcoding_is_stored_as_a_placeholder_and_the_function_survives() {
    let protocol = Protocol::start(|options| options.variable("TRANSCODER_SECONDS", 2)).await;
    for (name, expected) in [
        ("hangs", "did not finish within 2 s"),
        ("aborts", "killed by signal 6"),
        ("fails", "exited with code 3: it is one of those"),
        ("idles", "wrote no file"),
    ] {
        let id = Uuid::new_v4();
        let pdb = with_guid(&bytes_of("pe/x64/crash.pdb"), id);
        protocol
            .running
            .upload(&format!("global/{name}.pdb"), pdb)
            .await;
        let path = format!("/v3.1.0/{name}.pdb/{}/1", id.simple());
        protocol.get(&path, &[]).await.is_nothing(name, false);
        let explained = protocol.json(&format!("/explain?debug_id={id}-1")).await;
        assert!(
            explained.text.contains(expected),
            "{name}: {}",
            explained.text
        );
    }
    let id = Uuid::new_v4();
    let pdb = with_guid(&bytes_of("pe/x64/crash.pdb"), id);
    protocol.running.upload("global/good.pdb", pdb).await;
    protocol
        .file(&format!("/v3.1.0/good.pdb/{}/1", id.simple()), "3.1.0")
        .await;
}

#[tokio::test]
async fn a_transcoder_does_not_outlive_the_function_that_started_it() {
    let protocol = Protocol::start(|options| options).await;
    let id = Uuid::new_v4();
    let pdb = with_guid(&bytes_of("pe/x64/crash.pdb"), id);
    protocol.running.upload("global/hangs.pdb", pdb).await;
    let path = format!("/v3.2.0/hangs.pdb/{}/1", id.simple());
    protocol
        .get(&path, &[])
        .await
        .is_nothing("it is being transcoded", true);
    let is_tool = |process: &Process| process.program() == "symcachegen";
    let started = async || protocol.running.stack.processes().into_iter().find(is_tool);
    let tool = until("the tool", PATIENCE, started).await.unwrap();
    let processes = protocol.running.stack.processes();
    let started_it = |process: &&Process| {
        is_derive(process) && Process::tree(process.pid.unsigned_abs()).contains(&tool)
    };
    processes.iter().find(started_it).unwrap().kill();
    let is_gone = async || (!tool.is_alive()).then_some(());
    until("the end of the tool", PATIENCE, is_gone)
        .await
        .unwrap();
}

/// Returns a PDB with another GUID, which the linker wrote into the PDB stream.
fn with_guid(pdb: &[u8], id: Uuid) -> Vec<u8> {
    let old = Uuid::parse_str(CRASH).unwrap().to_bytes_le();
    let mut pdb = pdb.to_vec();
    let places: Vec<usize> = (0..pdb.len() - old.len())
        .filter(|at| pdb[*at..].starts_with(&old))
        .collect();
    assert!(!places.is_empty());
    for at in places {
        pdb[at..at + old.len()].copy_from_slice(&id.to_bytes_le());
    }
    pdb
}

/// Runs the example of the documentation, with the stand-in as the tool.
#[tokio::test]
async fn the_documented_script_supplies_wanted_symcaches() {
    let protocol = Protocol::start(|options| {
        options
            .variable("TRANSCODER_VERSION", "none")
            .variable("TRANSCODER_PATH", "none")
    })
    .await;
    let id = Uuid::new_v4();
    let path = format!("/v3.1.0/lost.pdb/{}/1", id.simple());
    // A file becomes wanted with its second request.
    for _ in 0..2 {
        let answer = protocol.get(&path, &[]).await;
        answer.is_nothing("it is unknown", false);
    }
    let symbols = tempfile::tempdir().unwrap();
    let folder = symbols
        .path()
        .join("lost.pdb")
        .join(format!("{}1", id.simple().to_string().to_uppercase()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(
        folder.join("lost.pdb"),
        with_guid(&bytes_of("pe/x64/crash.pdb"), id),
    )
    .unwrap();
    for program in ["python3", "aws"] {
        let there = Command::new(program).arg("--version").output();
        if !there.is_ok_and(|output| output.status.success()) {
            println!("skipped: {program} is not installed");
            return;
        }
    }
    let addresses = protocol.running.client().addresses();
    let output = Command::new("python3")
        .arg(checkout().join("docs/examples/work_off_wanted.py"))
        .env("SYMDEPOT", &addresses.gateway)
        .env("SYMBOLS", symbols.path())
        .env("SYMCACHEGEN", &protocol.tool)
        .env(
            "UPLOADS",
            format!("s3://{}/global/symcache", addresses.uploads()),
        )
        .env("AWS_ENDPOINT_URL", &addresses.s3)
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}{}", String::from_utf8_lossy(&output.stdout));
    protocol.running.idle().await;
    // The negative result is cached for two seconds.
    let served = async || {
        let answer = protocol.get(&path, &[]).await;
        (answer.status == 302).then_some(())
    };
    until("the file", PATIENCE, served).await.unwrap();
}
