//! The examples in the OpenAPI document are what the service answers.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use symdepot::api::symbolicator::{Response, parse_request};
use symdepot::api::uploads::parse_uploads;
use symdepot::domain::{ObjectId, Scope};
use symdepot_tests::harness::{World, fixture};
use symdepot_tests::stack::checkout;

const KEY: &str = "global/crash.debug";

/// The folder of the examples.
const EXAMPLES: &str = "functions/symbolicate/src/openapi/examples";

fn path(name: &str) -> PathBuf {
    checkout().join(EXAMPLES).join(name)
}

fn example(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_default()
}

/// Compares an answer with the example of this name. With `SYMDEPOT_WRITE_API`, which
/// `make openapi` sets, writes it instead.
fn check(name: &str, answer: &impl serde::Serialize) {
    let answer = serde_json::to_value(answer).unwrap();
    if std::env::var_os("SYMDEPOT_WRITE_API").is_some() {
        let text = serde_json::to_string_pretty(&answer).unwrap() + "\n";
        std::fs::write(path(name), text).unwrap();
        return;
    }
    let example: Value = serde_json::from_str(&example(name)).unwrap_or_default();
    assert_eq!(answer, example, "{name}: run `make openapi`");
}

#[tokio::test(start_paused = true)]
async fn the_examples_of_the_document_are_answers_of_the_service() {
    let world = World::new();
    world.upload(KEY, "elf/crash.debug").await;
    let request = parse_request(example("request.json").as_bytes()).unwrap();
    let completed = world.symbolicate(&request).await;
    check("completed.json", &Response::Completed(completed));

    let service = world.service();
    let upload = service.explain_upload(&[KEY.to_owned()]).await;
    check("explained-upload.json", &upload.unwrap().unwrap());
    let module = ObjectId {
        debug_id: request.modules[0].debug_id,
        ..ObjectId::default()
    };
    let invocation = world.invocation(Duration::from_secs(9));
    let explained = service.explain_module(&invocation, &module, None, &Scope::Global);
    check("explained-module.json", &explained.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_example_of_a_request_for_uploads_names_the_sample() {
    let request = parse_uploads(example("uploads.json").as_bytes()).unwrap();
    let bytes = fixture("elf/crash.debug");
    let [file] = request.files.as_slice() else {
        panic!("{request:?}");
    };
    assert_eq!(file.size, u64::try_from(bytes.len()).ok());
    let digest = hex::encode(Sha256::digest(&bytes));
    assert_eq!(file.sha256.as_deref(), Some(digest.as_str()));
}
