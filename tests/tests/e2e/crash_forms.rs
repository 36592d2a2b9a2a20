//! The parts of a form with a crash file, large answers to crash files, and attachments that are no
//! longer needed.

use reqwest::Method;
use serde_json::{Value, json};
use symdepot_tests::harness::{
    MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread, fixture, pdb_with_stream,
};
use symdepot_tests::stack::{Options, Reply};

use crate::attachments::{client, offer, put};
use crate::crash_files::{apple_report, content_type, form, functions, send};
use crate::symbol_server::SymbolServer;
use crate::{Running, bytes_of};

const ID: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";
const BREAKPAD_ID: &str = "502FC0A51EC13E479998684FA139DCA70";
const BASE: u64 = 0x5555_0000_0000;
const STACK: u64 = 0x7fff_0000_0000;

/// The maximum size of a response that the gateway passes on, in bytes.
const GATEWAY_BYTES: usize = 4_608_000;

/// A minidump of a number of threads on one stack, in a module.
fn dump(module: MadeUpModule, threads: u32, words: impl Iterator<Item = u64>) -> MadeUpDump {
    let thread = |id| MadeUpThread {
        id,
        rip: BASE + 0x10,
        rsp: STACK,
        rbp: STACK,
        ..MadeUpThread::default()
    };
    MadeUpDump {
        stacks: vec![MadeUpStack {
            address: STACK,
            bytes: words.flat_map(u64::to_le_bytes).collect(),
        }],
        threads: (1..=threads).map(thread).collect(),
        modules: vec![module],
        crashed: Some(1),
        ..MadeUpDump::default()
    }
}

fn module(name: &str) -> MadeUpModule {
    MadeUpModule {
        address: BASE,
        size: 0x10_0000,
        name: name.to_owned(),
        debug_id: ID.parse().unwrap(),
        ..MadeUpModule::default()
    }
}

/// Continues a request until it is no longer pending.
async fn completed(running: &Running, first: Reply) -> Value {
    let mut body = first.expect(200, "a crash file").unwrap().body;
    for _ in 0..10 {
        if body["status"] != "pending" {
            assert_eq!(body["status"], "completed", "{body:#}");
            return body;
        }
        running.idle().await;
        let id = body["request_id"].as_str().unwrap();
        let request = running
            .client()
            .request(Method::GET, &format!("/requests/{id}?timeout=0"));
        let reply = running.client().send("a request", request).await.unwrap();
        body = reply.expect(200, "a request").unwrap().body;
    }
    panic!("still pending: {body:#}");
}

#[tokio::test]
async fn the_parts_of_a_form_choose_the_sources_and_the_name_of_the_first_module() {
    let file = format!(
        "MODULE Linux x86_64 {BREAKPAD_ID} electron\nFUNC 0 40 0 run\n\
         STACK CFI INIT 0 40 .cfa: $rsp 16 + .ra: .cfa 8 - ^\n"
    );
    let path = format!("/electron/{BREAKPAD_ID}/electron.sym");
    let server = SymbolServer::start([(&*path, file.into_bytes())]).await;
    let running = Running::start_with(|options: Options| {
        options
            .variable("ALLOW_PRIVATE_SOURCES", 1)
            .variable("ALLOW_REQUEST_SOURCES", 1)
            .variable("REQUEST_SOURCES_SECRET", "a secret of more than 32 letters")
    })
    .await;
    let sources = json!([{
        "type": "http", "id": "by-name", "url": server.url(), "layout": {"type": "native"},
        "filters": {"filetypes": ["breakpad"]},
    }]);
    let sources = sources.to_string();
    let rules = json!([{"from": "^.*Chat( Helper)?$", "to": "electron"}]).to_string();
    let words = [7, BASE + 0x31, 7, 0].into_iter();
    let mut dump = dump(module("/opt/Chat"), 1, words);
    dump.threads[0].rbp = 0;
    let dump = dump.file();
    for is_renamed in [true, false] {
        let mut parts: Vec<(&str, &[u8])> = vec![
            ("sources", sources.as_bytes()),
            ("options", br#"{"dif_candidates": true}"#),
            ("upload_file_minidump", &dump),
        ];
        if is_renamed {
            parts.insert(0, ("rewrite_first_module", rules.as_bytes()));
        }
        let asked_for = server.asked_for(&path);
        let first = send(&running, "/minidump?timeout=0", form(&parts)).await;
        let body = completed(&running, first).await;
        let module = &body["modules"][0];
        assert_eq!(module["debug_file"], "/opt/Chat");
        let candidates = module["candidates"].as_array().unwrap().iter();
        let places: Vec<&str> = candidates
            .filter_map(|candidate| candidate["location"].as_str())
            .filter(|place| place.starts_with(server.url()))
            .collect();
        let trusts = body["stacktraces"][0]["frames"].as_array().unwrap().iter();
        let trusts: Vec<&Value> = trusts.map(|frame| &frame["trust"]).collect();
        if is_renamed {
            assert_eq!(module["unwind_status"], "found", "{body:#}");
            assert_eq!(places, [format!("{}{}", server.url(), &path[1..])]);
            assert_eq!(functions(&body), ["run", "run"]);
            assert_eq!(trusts, ["context", "cfi"]);
        } else {
            assert_eq!(module["unwind_status"], "missing", "{body:#}");
            assert!(
                !places.is_empty() && places.iter().all(|place| place.contains("/Chat/")),
                "{places:?}"
            );
            assert_eq!(server.asked_for(&path), asked_for);
        }
    }
}

/// A PDB whose stream of source links refers to a server.
fn linked(server: &SymbolServer) -> Vec<u8> {
    let stream = format!(
        "SRCSRV: ini ---\r\nVERSION=2\r\nVERCTRL=http\r\nSRCSRV: variables ---\r\n\
         SRCSRVTRG={}%var2%\r\nSRCSRV: source files ---\r\n\
         /build/app/game/scene.cpp*scene.cpp\r\nSRCSRV: end ---\r\n",
        server.url()
    );
    pdb_with_stream(&fixture("pe/x64/crash.pdb"), "srcsrv", stream.as_bytes()).to_vec()
}

/// Returns an address in the sample whose line is in a file, as another tool says.
fn address_in(name: &str) -> u64 {
    let oracle = fixture("expected/pe-x64-crash.pdb.llvm-symbolizer.json");
    let oracle: Value = serde_json::from_slice(&oracle).unwrap();
    let frames = oracle["frames"].as_array().unwrap();
    let mut within = frames.iter().filter(|at| {
        let file = at["frames"][0]["file"].as_str();
        file.is_some_and(|file| file.ends_with(name))
    });
    let address = within.next().unwrap()["address"].as_str().unwrap();
    u64::from_str_radix(&address[2..], 16).unwrap()
}

#[tokio::test]
async fn a_link_of_a_minidumps_pdb_is_followed_unless_its_form_forbids_it() {
    let text = bytes_of("sources/game/scene.cpp");
    let server = SymbolServer::start([("/scene.cpp", text)]).await;
    let links = json!([server.url()]);
    let running = Running::start_with(|options: Options| {
        options
            .variable("SOURCE_LINKS", &links)
            .variable("ALLOW_PRIVATE_SOURCES", 1)
    })
    .await;
    running.upload("global/crash.pdb", linked(&server)).await;
    let mut dump = dump(module("C:\\app\\crash.exe"), 1, [0].into_iter());
    dump.is_windows = true;
    dump.modules[0].debug_id = "c7d4c24f-1fb8-5408-4c4c-44205044422e-1".parse().unwrap();
    dump.threads[0].rip = BASE + address_in("scene.cpp");
    let dump = dump.file();
    // The one that forbids it is first: afterwards, the file is cached.
    for (scraping, is_followed) in [(&br#"{"enabled": false}"#[..], false), (b"{}", true)] {
        let parts: [(&str, &[u8]); 2] = [("scraping", scraping), ("upload_file_minidump", &dump)];
        let first = send(&running, "/minidump?timeout=0", form(&parts)).await;
        let body = completed(&running, first).await;
        let frames = body["stacktraces"][0]["frames"].as_array().unwrap();
        let shown = frames.iter().find(|frame| {
            let path = frame["abs_path"].as_str();
            path.is_some_and(|path| path.ends_with("/scene.cpp"))
        });
        let shown = shown.unwrap();
        assert_eq!(shown["source_link"], format!("{}scene.cpp", server.url()));
        let is_shown = shown["context_line"].is_string();
        assert_eq!(is_shown, is_followed, "{body:#}");
        assert_eq!(server.asked_for("/scene.cpp") > 0, is_followed);
    }
}

/// Follows a response to the address of the stored answer, as a client does.
async fn stored(reply: reqwest::Response) -> Value {
    assert_eq!(reply.status().as_u16(), 303);
    let location = reply.headers()["location"].to_str().unwrap().to_owned();
    let stored = client().get(location).send().await.unwrap();
    let bytes = stored.bytes().await.unwrap();
    assert!(bytes.len() > GATEWAY_BYTES, "{}", bytes.len());
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn a_large_answer_to_a_minidump_and_to_a_poll_is_at_another_address() {
    const THREADS: u32 = 220;
    const FRAMES: usize = 256;
    let running = Running::start_with(|options| options.variable("DERIVED_MAX_UNUSED", 0)).await;
    // Each frame has the frame pointer of its caller, and a return address.
    let words = (1..=FRAMES as u64).flat_map(|frame| [STACK + frame * 16, BASE + 0x200]);
    let dump = dump(module("/opt/app"), THREADS, words).file();
    let body = form(&[(
        "upload_file_minidump",
        &zstd::encode_all(&*dump, 3).unwrap(),
    )]);
    let gateway = running.client().addresses().gateway.clone();
    let post = async |query: &str| {
        let url = format!("{gateway}/minidump{query}");
        let request = client().post(url).body(body.clone());
        let request = request.header("content-type", content_type());
        request.send().await.unwrap()
    };
    let assert_whole = |answer: &Value| {
        assert_eq!(answer["status"], "completed");
        let stacktraces = answer["stacktraces"].as_array().unwrap();
        assert_eq!(stacktraces.len(), THREADS as usize);
        let frames = stacktraces.iter();
        let frames = frames.map(|stacktrace| stacktrace["frames"].as_array().unwrap().len());
        assert_eq!(frames.sum::<usize>(), THREADS as usize * FRAMES);
    };
    assert_whole(&stored(post("").await).await);

    // Now there is a file, from which the caches have to be made.
    let file = format!("MODULE Linux x86_64 {BREAKPAD_ID} app\nFUNC 0 400 0 run\n");
    running.upload("global/app.sym", file.into_bytes()).await;
    running.client().prune(false).await.unwrap();
    running.client().end_functions().await.unwrap();
    let pending: Value = post("?timeout=0").await.json().await.unwrap();
    assert_eq!(pending["status"], "pending", "{pending:#}");
    let url = format!(
        "{gateway}/requests/{}",
        pending["request_id"].as_str().unwrap()
    );
    running.idle().await;
    let mut reply = client().get(&url).send().await.unwrap();
    for _ in 0..10 {
        if reply.status().as_u16() != 200 {
            break;
        }
        running.idle().await;
        reply = client().get(&url).send().await.unwrap();
    }
    let answer = stored(reply).await;
    assert_whole(&answer);
    assert_eq!(answer["stacktraces"][0]["frames"][0]["function"], "run");
}

#[tokio::test]
async fn an_attachment_is_removed_if_its_request_failed_and_if_a_report_is_complete() {
    let running = Running::start().await;
    for (path, file, status) in [
        ("/minidump", b"no dump".to_vec(), "failed"),
        ("/minidump", vec![b'x'; 5 << 20], "failed"),
        ("/applecrashreport", b"no report".to_vec(), "failed"),
        ("/applecrashreport", apple_report(), "completed"),
    ] {
        let offer = offer(&running, "", file.len()).await;
        assert_eq!(put(&offer, file).await, 200);
        let url = offer["storage_url"].as_str().unwrap();
        let parts = form(&[("storage_url", url.as_bytes())]);
        let reply = send(&running, path, parts.clone()).await;
        let answer = reply.expect(200, "a stored file").unwrap().body;
        assert_eq!(answer["status"], status, "{path}: {answer:#}");
        let again = send(&running, path, parts).await;
        assert_eq!(again.status, 404, "{path}: {}", again.text);
    }
}
