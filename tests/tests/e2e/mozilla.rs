//! Mozilla's symbolication API on the local stack, with the request that the Firefox Profiler sends
//! for a profile of the sample program.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::{Running, bytes_of, json_of, lines_with};

const PROFILER: &str = "https://profiler.firefox.com";

/// What the Profiler sends for a profile with two libraries: a job for each, with one stack of all
/// its addresses, which are those of calls.
const RECORDED: &str = r#"{"jobs":[{"memoryMap":[["crash","BC6E45AC487FF425367208B89F51AD480"]],"stacks":[[[0,14672],[0,14469]]]},{"memoryMap":[["libc.so.6","1629FCF0BE5C8860C0E1ADF03B0048FB0"]],"stacks":[[[0,172156],[0,674246]]]}]}"#;

fn recorded(running: &Running, origin: &str) -> RequestBuilder {
    let request = running.client().request(Method::POST, "/symbolicate/v5");
    request
        .header("content-type", "text/plain;charset=UTF-8")
        .header(
            "user-agent",
            "FirefoxProfiler/1.0 (+https://profiler.firefox.com)",
        )
        .header("origin", origin)
        .header("sec-fetch-site", "cross-site")
        .header("sec-fetch-mode", "cors")
        .body(RECORDED)
}

#[tokio::test]
async fn the_page_of_the_profiler_gets_names_and_other_pages_get_nothing() {
    let running = Running::start().await;
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let preflight = |origin| {
        let client = running.client();
        let request = client.request(Method::OPTIONS, "/symbolicate/v5");
        request
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "user-agent")
            .header("sec-fetch-site", "cross-site")
    };
    let answer = preflight(PROFILER).send().await.unwrap();
    assert_eq!(answer.status(), 204);
    assert_eq!(answer.headers()["access-control-allow-origin"], PROFILER);
    assert_eq!(
        answer.headers()["access-control-allow-headers"],
        "user-agent"
    );

    let answer = recorded(&running, PROFILER).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["access-control-allow-origin"], PROFILER);
    let body: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    let [of_crash, of_libc] = &body["results"].as_array().unwrap()[..] else {
        panic!("{body:#}");
    };
    assert_eq!(
        of_crash["found_modules"],
        json!({"crash/BC6E45AC487FF425367208B89F51AD480": true})
    );
    let frames = of_crash["stacks"][0].as_array().unwrap();
    assert_eq!(frames.len(), 2, "{frames:#?}");
    let expected = &json_of("crash.expected.json")["frames"];
    for (name, of_expected) in [("file", "file"), ("line", "line")] {
        assert_eq!(frames[0][name], expected[3][of_expected], "{frames:#?}");
        let innermost = &frames[0]["inlines"][0];
        assert_eq!(innermost[name], expected[0][of_expected], "{frames:#?}");
    }
    for frame in frames {
        let text = |name: &str| frame[name].as_str().unwrap_or_default();
        assert!(text("function").starts_with("orbit::"), "{frame:#}");
        assert!(text("function_offset").starts_with("0x"), "{frame:#}");
    }
    assert_eq!(
        of_libc["found_modules"],
        json!({"libc.so.6/1629FCF0BE5C8860C0E1ADF03B0048FB0": false})
    );
    assert_eq!(of_libc["stacks"][0].as_array().unwrap().len(), 2);

    let evil = "https://evil.example";
    for refused in [preflight(evil), recorded(&running, evil)] {
        let answer = refused.send().await.unwrap();
        assert_eq!(answer.status(), 403);
        let mut names = answer.headers().keys();
        assert!(names.all(|name| !name.as_str().starts_with("access-control")));
    }

    let folder = running.stack.options().data();
    let _kept = running.stop().await;
    let log = std::fs::read_to_string(folder.join("logs/symbolicate.log")).unwrap();
    let lines = lines_with(&log, "request served");
    let of_route = lines
        .iter()
        .filter(|line| line["route"] == "/symbolicate/v5");
    let served: Vec<_> = of_route
        .map(|line| (line["method"].as_str(), line["status"].as_u64()))
        .collect();
    assert_eq!(
        served,
        [(Some("OPTIONS"), Some(204)), (Some("POST"), Some(200))]
    );
    let is_post = |line: &&Value| line["route"] == "/symbolicate/v5" && line["method"] == "POST";
    let post = lines.iter().find(is_post).unwrap();
    assert_eq!(post["outcome"], "completed", "{post:#}");
    assert_eq!(post["symbolicated"], 2, "{post:#}");
}
