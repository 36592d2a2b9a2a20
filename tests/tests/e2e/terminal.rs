//! The program for the terminal, against the service.

use std::collections::BTreeSet;
use std::process::Output;

use serde_json::Value;
use symdepot_tests::stack::{Binaries, fixture};
use tokio::process::Command;

use crate::{Running, bytes_of, json_of};

/// Runs the program in an empty folder, with the address of the service.
async fn symdepot(running: &Running, arguments: &[&str]) -> Output {
    let program = Binaries::from_env().unwrap().get("symdepot");
    Command::new(program)
        .args(arguments)
        .env_clear()
        .env("SYMDEPOT_URL", &running.client().addresses().gateway)
        .current_dir(running.folder.path())
        .output()
        .await
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn path_of(name: &str) -> String {
    fixture(name).display().to_string()
}

#[tokio::test]
async fn a_report_has_names_as_soon_as_its_debug_file_is_uploaded() {
    let running = Running::start().await;
    let report = path_of("crash.json");
    let before = symdepot(&running, &["symbolicate", &report]).await;
    assert_eq!(before.status.code(), Some(3), "{before:?}");
    assert!(
        text(&before).contains("upload its debug file"),
        "{}",
        text(&before)
    );
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    // A warm function may remember for a moment that there was no file.
    running.client().end_functions().await.unwrap();
    let after = symdepot(&running, &["symbolicate", &report, "--json"]).await;
    assert_eq!(after.status.code(), Some(0), "{after:?}");
    let json: Value = serde_json::from_slice(&after.stdout).unwrap();
    let names = json["stacktraces"][0]["frames"].as_array().unwrap().iter();
    let names = names.flat_map(|frame| frame["names"].as_array().unwrap());
    let places: Vec<(&Value, &Value)> = names.map(|name| (&name["path"], &name["line"])).collect();
    let expected = json_of("crash.expected.json");
    let expected = expected["frames"].as_array().unwrap().iter();
    let expected: Vec<_> = expected
        .map(|frame| (&frame["file"], &frame["line"]))
        .collect();
    assert_eq!(places, expected);
}

#[tokio::test]
async fn a_log_is_returned_with_names() {
    let running = Running::start().await;
    running
        .upload("global/asan.debug", bytes_of("reports/asan.debug"))
        .await;
    let report = path_of("reports/asan.txt");
    let ended = symdepot(&running, &["symbolicate", &report, "--format", "text"]).await;
    // The C library was not uploaded.
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    let text = text(&ended);
    for expected in json_of("reports/asan.txt.expected.json")
        .as_array()
        .unwrap()
    {
        for name in expected["names"].as_array().unwrap() {
            let (function, path) = (name[0].as_str().unwrap(), name[1].as_str().unwrap());
            let line = format!(" in {function} {path}:{} (/build/app/asan+", name[2]);
            assert!(text.contains(&line), "{line} is not in:\n{text}");
        }
    }
    // Every line without a name is as it was.
    let sent = String::from_utf8(bytes_of("reports/asan.txt")).unwrap();
    let kept: BTreeSet<&str> = text.lines().collect();
    let changed = sent.lines().filter(|line| !kept.contains(line));
    assert!(
        changed
            .clone()
            .all(|line| line.contains("/build/app/asan+")),
        "{text}"
    );
    assert!(changed.count() > 5, "{text}");
}

#[tokio::test]
async fn the_doctor_and_the_lists_are_of_this_service() {
    let running = Running::start().await;
    let doctor = symdepot(&running, &["doctor"]).await;
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");
    assert!(text(&doctor).contains("ok: symdepot "), "{doctor:?}");
    for list in ["rollout", "wanted"] {
        let ended = symdepot(&running, &[list, "--json"]).await;
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert!(json["schema"] == 1 && json[list].is_object(), "{json}");
    }
    running
        .upload("global/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let upload = symdepot(&running, &["explain", "global/crash.debug"]).await;
    assert!(
        text(&upload).starts_with("global/crash.debug: applied"),
        "{upload:?}"
    );
    let id = "bc6e45ac-487f-f425-3672-08b89f51ad48";
    let module = symdepot(&running, &["explain", id]).await;
    assert!(
        text(&module).contains("symcache, global in uploads: ready"),
        "{module:?}"
    );
}

/// Returns the ids, the type and the features of objects, in order. The service does not keep
/// objects without ids.
fn objects(
    value: &Value,
    features: fn(&Value) -> BTreeSet<String>,
) -> Vec<(String, BTreeSet<String>)> {
    let objects = value["objects"].as_array().cloned().unwrap_or_default();
    let has_id = |object: &&Value| object["debug_id"].is_string() || object["code_id"].is_string();
    let objects = objects.iter().filter(has_id).map(|object| {
        let ids = ["debug_id", "code_id", "file_type", "arch"]
            .map(|name| object[name].as_str().unwrap_or_default().to_owned());
        (ids.join(" "), features(&object["features"]))
    });
    objects.collect()
}

fn of_service(features: &Value) -> BTreeSet<String> {
    let named = [
        ("has_symbols", "symbols"),
        ("has_debug_info", "debug"),
        ("has_unwind_info", "unwind"),
        ("has_sources", "sources"),
    ];
    let has = named.iter().filter(|(field, _)| features[field] == true);
    has.map(|(_, name)| (*name).to_owned()).collect()
}

fn of_program(features: &Value) -> BTreeSet<String> {
    let names = features.as_array().cloned().unwrap_or_default();
    names
        .iter()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn check_finds_in_each_file_what_the_service_finds() {
    let running = Running::start().await;
    let folders = [
        "elf",
        "pe",
        "macho",
        "wasm",
        "breakpad",
        "dotnet",
        "bundle",
        "containers",
        "hostile",
    ];
    let files = symdepot_tests::harness::manifest();
    let files: Vec<String> = files.into_iter().map(|fixture| fixture.file).collect();
    let files = files.iter().filter(|file| {
        folders
            .iter()
            .any(|folder| file.starts_with(&format!("{folder}/")))
    });
    let mut compared = 0;
    for file in files {
        let key = format!("global/{}", file.replace('/', "-"));
        running.upload(&key, bytes_of(file)).await;
        let (state, explained) = running.state_of(&key).await;
        let ended = symdepot(&running, &["check", "--json", &path_of(file)]).await;
        let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
        let checked = &json["files"][0];
        assert_eq!(
            objects(checked, of_program),
            objects(&explained, of_service),
            "{file}: {checked:#}, {explained:#}"
        );
        let has_problems = !checked["problems"].as_array().unwrap().is_empty();
        assert_eq!(
            ended.status.code(),
            Some(if has_problems { 3 } else { 0 }),
            "{file}"
        );
        // What the service ignores is a problem.
        assert!(
            state == "applied" || has_problems,
            "{file}: {state}, {checked:#}"
        );
        compared += 1;
    }
    assert!(compared > 40, "{compared}");
}
