//! Source files of a debuginfod server, and behind links.

use serde_json::{Value, json};
use symdepot_tests::harness::{linked_pdb, linked_to};
use symdepot_tests::stack::Options;

use crate::symbol_server::SymbolServer;
use crate::{Running, bytes_of, crash};

/// The place of the sample on a debuginfod server.
const MODULE: &str = "/buildid/ac456ebc7f4825f4367208b89f51ad481774aae7";

/// A module of .NET, and a frame in its first line.
pub(crate) fn ledger() -> (Value, Value) {
    let module = json!({
        "type": "pe_dotnet", "debug_id": "7b3c5a0e-41d9-4c6f-9a27-d0e85f1b6c34-8f2c41d6", "debug_file": "Ledger.pdb",
    });
    let frame = json!({"instruction_addr": 0, "function_id": 1, "addr_mode": "rel:0"});
    (module, frame)
}

/// Returns the line of a source file, and up to five lines on each side, as this test reads them.
fn lines_of(file: &str, line: usize) -> Value {
    let text = String::from_utf8(bytes_of(&format!("sources/{file}"))).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let at = line - 1;
    json!([
        lines[at.saturating_sub(5)..at],
        lines[at],
        lines[at + 1..lines.len().min(at + 6)]
    ])
}

fn context(frame: &Value) -> Value {
    let list = |name: &str| match &frame[name] {
        Value::Null => json!([]),
        lines => lines.clone(),
    };
    json!([
        list("pre_context"),
        frame["context_line"],
        list("post_context")
    ])
}

#[tokio::test]
async fn frames_show_the_lines_of_a_debuginfod_server() {
    let names = [
        "buffer.h",
        "mesh.h",
        "renderer.cpp",
        "scene.cpp",
        "game.cpp",
        "crash.cpp",
    ];
    let paths = names.map(|name| format!("{MODULE}/source/build/app/game/{name}"));
    let debug_file = format!("{MODULE}/debuginfo");
    let [a, b, c, d, e, f] = &paths;
    let text = |at: usize| bytes_of(&format!("sources/game/{}", names[at]));
    let server = SymbolServer::start([
        (debug_file.as_str(), bytes_of("elf/crash.debug")),
        (a.as_str(), text(0)),
        (b.as_str(), text(1)),
        (c.as_str(), text(2)),
        (d.as_str(), text(3)),
        (e.as_str(), text(4)),
        (f.as_str(), text(5)),
    ])
    .await;
    let sources = json!([{
        "id": "dbg", "type": "http", "url": format!("{}buildid", server.url()), "layout": {"type": "debuginfod"},
    }]);
    let with_server = |options: Options| {
        options
            .variable("SOURCES", &sources)
            .variable("ALLOW_PRIVATE_SOURCES", 1)
    };
    let running = Running::start_with(with_server).await;
    let client = running.client();
    let sample = crash::sample();
    for _ in 0..2 {
        let completed = client.completed_at_last(&sample).await.unwrap();
        crash::assert_symbolicated(&completed);
        let frames = completed["stacktraces"][0]["frames"].as_array().unwrap();
        let mut shown = 0;
        for frame in frames {
            let path = frame["abs_path"].as_str().unwrap();
            let name = path.rsplit('/').next().unwrap();
            if names.contains(&name) {
                let line = frame["lineno"].as_u64().unwrap() as usize;
                assert_eq!(
                    context(frame),
                    lines_of(&format!("game/{name}"), line),
                    "{path}"
                );
                shown += 1;
            }
        }
        assert!(shown >= 8, "{frames:#?}");
    }
    for path in &paths {
        assert!(server.asked_for(path) <= 1, "{path}");
    }
}

#[tokio::test]
async fn a_link_is_followed_where_the_setting_allows_it() {
    let text = bytes_of("sources/dotnet/Ledger.cs");
    // The path is known only with the port, whose length varies.
    let longest = "http://127.0.0.1:65535/".len();
    let paths = [0, 1].map(|shorter| {
        let begin = "x".repeat(longest - shorter);
        let link = linked_to(&begin, "dotnet/Ledger.cs");
        link[begin.len() - 1..].replacen('x', "/", 1)
    });
    let [a, b] = &paths;
    let server = SymbolServer::start([(a.as_str(), text.clone()), (b.as_str(), text)]).await;
    let links = json!([server.url()]);
    let with_links = |options: Options| {
        options
            .variable("SOURCE_LINKS", &links)
            .variable("ALLOW_PRIVATE_SOURCES", 1)
    };
    let running = Running::start_with(with_links).await;
    let pdb = linked_pdb(server.url());
    running.upload("global/Ledger.pdb", pdb.to_vec()).await;
    let (module, frame) = ledger();
    let request = json!({
        "modules": [module], "stacktraces": [{"frames": [frame]}], "options": {"dif_candidates": true},
    });
    let completed = running.client().completed_at_last(&request).await.unwrap();
    let frame = &completed["stacktraces"][0]["frames"][0];
    assert_eq!(
        context(frame),
        lines_of("dotnet/Ledger.cs", 13),
        "{completed:#}"
    );
    let link = linked_to(server.url(), "dotnet/Ledger.cs");
    assert_eq!(frame["source_link"], link);
    let candidates = completed["modules"][0]["candidates"].as_array().unwrap();
    let followed = candidates
        .iter()
        .find(|candidate| candidate["location"] == link);
    let followed = followed.unwrap();
    assert_eq!(followed["source"], "sourcelink");
    assert_eq!(followed["download"]["status"], "ok");
}
