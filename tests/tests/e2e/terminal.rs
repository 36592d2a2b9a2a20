//! The program for the terminal, against the service.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use local_stack::database::Database;
use local_stack::queues::{NewMessage, QueueSpec, Queues, Redrive};
use serde_json::Value;
use symdepot_tests::stack::{Binaries, LocalStack, Options, fixture};
use tokio::process::Command;

use crate::symbol_server::{DEBUG_FILE, SymbolServer};
use crate::{Running, bytes_of, crash, json_of};

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
async fn a_minidump_has_names_with_the_files_of_its_modules() {
    let running = Running::start().await;
    let dump = path_of("minidump/crash.dmp");
    let before = symdepot(&running, &["symbolicate", &dump]).await;
    assert_eq!(before.status.code(), Some(3), "{before:?}");
    assert!(text(&before).starts_with("minidump · "), "{before:?}");
    for name in ["crash.debug", "crash"] {
        let bytes = bytes_of(&format!("elf/{name}"));
        running.upload(&format!("global/{name}"), bytes).await;
    }
    running.client().end_functions().await.unwrap();
    let after = symdepot(&running, &["symbolicate", &dump, "--json"]).await;
    // The C library was not uploaded.
    assert_eq!(after.status.code(), Some(3), "{after:?}");
    let json: Value = serde_json::from_slice(&after.stdout).unwrap();
    assert_eq!(json["format"], "minidump", "{json:#}");
    let thread = &json["stacktraces"][0];
    assert_eq!(thread["thread_id"], 1, "{json:#}");
    let names = thread["frames"].as_array().unwrap().iter();
    let names = names.flat_map(|frame| frame["names"].as_array().unwrap());
    let functions: Vec<&str> = names.filter_map(|name| name["function"].as_str()).collect();
    assert!(functions.contains(&"main"), "{functions:?}");
}

#[tokio::test]
async fn fixing_uploads_what_modules_lack_and_says_what_it_did_not_find() {
    let running = Running::start().await;
    let report = path_of("crash.json");
    let symbolicate = async |folder: &str| {
        let arguments = ["symbolicate", &report, "--json", "--fix", folder];
        symdepot(&running, &arguments).await
    };
    let folder = running.folder.path().join("build");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("crash.pdb"), bytes_of("pe/x64/crash.pdb")).unwrap();
    let ended = symbolicate("build").await;
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("no file under build has its id"), "{said}");
    assert!(!said.contains("sent"), "{said}");

    std::fs::write(folder.join("program"), bytes_of("elf/crash.debug")).unwrap();
    let ended = symbolicate("build").await;
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("sent 1 ("), "{said}");
    assert!(!said.contains("crash.pdb"), "{said}");
    assert!(text(&ended).contains("\"main\""), "{}", text(&ended));

    // Everything has a name, so nothing is looked for.
    let ended = symbolicate("absent").await;
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

/// What the program may allocate while it sends a crash file of any size, in KiB.
const DATA_KIB: &str = "131072";

/// A dump that cannot be compressed into a request, and one that has more bytes than the memory
/// that the program may use.
#[tokio::test]
async fn a_minidump_that_is_too_large_for_a_request_is_stored_first() {
    let running = Running::start().await;
    for name in ["crash.debug", "crash"] {
        let bytes = bytes_of(&format!("elf/{name}"));
        running.upload(&format!("acme/{name}"), bytes).await;
    }
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()[0]
    });
    let noise: Vec<u8> = noise.take(5 << 20).collect();
    let small = bytes_of("minidump/crash.dmp");
    let size = small.len() as u64;
    for (name, rest, bytes) in [
        ("noise.dmp", &*noise, size + (5 << 20)),
        ("sparse.dmp", &[], 520 << 20),
    ] {
        let dump = running.folder.path().join(name);
        std::fs::write(&dump, [&small, rest].concat()).unwrap();
        let file = std::fs::File::options().write(true).open(&dump).unwrap();
        file.set_len(bytes).unwrap();
        let dump = dump.display().to_string();
        let arguments = ["symbolicate", &dump, "--json", "--scope", "acme"];
        running.client().clear_stats().await.unwrap();
        let limited = format!("ulimit -d {DATA_KIB}; exec \"$0\" \"$@\"");
        let ended = Command::new("sh")
            .args(["-c", &limited])
            .arg(Binaries::from_env().unwrap().get("symdepot"))
            .args(arguments)
            .env_clear()
            .env("SYMDEPOT_URL", &running.client().addresses().gateway)
            .current_dir(running.folder.path())
            .output()
            .await
            .unwrap();
        // The C library was not uploaded.
        assert_eq!(ended.status.code(), Some(3), "{name}: {ended:?}");
        assert!(
            text(&ended).contains("\"main\""),
            "{name}: {}",
            text(&ended)
        );
        let stats = running.client().stats().await.unwrap();
        let attachments = running.client().addresses().attachments();
        for operation in ["PutObject", "DeleteObjects"] {
            let calls = stats.of_bucket(attachments, operation).calls;
            assert_eq!(calls, 1, "{name}: {operation}");
        }
    }
}

/// The debug file of an app for Apple's systems, and what llvm-symbolizer says of it.
const DSYM: &str = "macho/arm64/crash.dSYM/Contents/Resources/DWARF/crash";
const DSYM_FRAMES: &str = "expected/macho-arm64-crash.dSYM.llvm-symbolizer.json";

/// Returns what llvm-symbolizer says of the frames of the two reports of the app
/// (fixtures/tools/apple.py): function, file and line of each, innermost first.
fn frames_of_apple_reports() -> Vec<Vec<(String, String, u64)>> {
    let oracle = json_of(DSYM_FRAMES);
    let function = |function: &Value| {
        let text = |name: &str| function[name].as_str().unwrap_or_default().to_owned();
        (
            text("function"),
            text("file"),
            function["line"].as_u64().unwrap(),
        )
    };
    let frames = oracle["frames"].as_array().unwrap().iter();
    let frames = frames.map(|frame| {
        let functions = frame["frames"].as_array().unwrap().iter();
        functions.map(function).collect::<Vec<_>>()
    });
    // The demanglers write templates differently.
    let is_comparable = |functions: &Vec<(String, String, u64)>| {
        let mut functions = functions.iter();
        functions.all(|(name, _, line)| *line != 0 && !name.contains('<'))
    };
    let frames: Vec<_> = frames.filter(is_comparable).collect();
    assert!(frames.len() > 20, "{}", frames.len());
    frames
}

#[tokio::test]
async fn apple_reports_have_the_names_of_llvm_as_soon_as_their_debug_file_is_uploaded() {
    let running = Running::start().await;
    let (crash, ips) = (path_of("reports/apple.crash"), path_of("reports/apple.ips"));
    let in_format = async |path: &str, format: &str| {
        let arguments = ["symbolicate", path, "--format", format];
        symdepot(&running, &arguments).await
    };
    let sent = String::from_utf8(bytes_of("reports/apple.crash")).unwrap();
    let before = in_format(&crash, "text").await;
    assert_eq!(before.status.code(), Some(3), "{before:?}");
    assert_eq!(text(&before), sent);
    assert_eq!(in_format(&ips, "text").await.status.code(), Some(3));
    running.upload("global/crash.dSYM", bytes_of(DSYM)).await;
    running.client().end_functions().await.unwrap();

    let expected = frames_of_apple_reports();
    let after = in_format(&crash, "text").await;
    assert_eq!(after.status.code(), Some(0), "{after:?}");
    let mut lines = sent.lines().map(str::to_owned).collect::<Vec<_>>();
    for (number, functions) in expected.iter().enumerate() {
        let start = format!("{number:<4}crash ");
        let at = lines.iter().position(|line| line.starts_with(&start));
        let (line, at) = (lines[at.unwrap()].clone(), at.unwrap());
        // The load address and the offset make room for the name.
        let rest = line.rfind(" 0x").unwrap() + 1;
        let named = functions
            .iter()
            .map(|(name, file, number)| format!("{}{name} at {file}:{number}", &line[..rest]));
        lines.splice(at..=at, named);
    }
    assert_eq!(text(&after), lines.join("\n") + "\n");

    for path in [&crash, &ips] {
        let ended = in_format(path, "json").await;
        assert_eq!(ended.status.code(), Some(0), "{path}: {ended:?}");
        let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
        let name = |name: &Value| {
            let text = |field: &str| name[field].as_str().unwrap_or_default().to_owned();
            (
                text("function"),
                text("path"),
                name["line"].as_u64().unwrap_or_default(),
            )
        };
        let frames = json["stacktraces"][0]["frames"].as_array().unwrap().iter();
        let names = frames.map(|frame| {
            let names = frame["names"].as_array().unwrap().iter();
            names.map(name).collect::<Vec<_>>()
        });
        assert_eq!(names.collect::<Vec<_>>(), expected, "{path}");
    }
    // JSON has no lines with frames.
    let human = in_format(&ips, "human").await;
    assert!(
        text(&human).starts_with("Apple crash report · "),
        "{human:?}"
    );
    assert_eq!(text(&in_format(&ips, "text").await), text(&human));
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

#[tokio::test]
async fn a_module_of_a_symbol_server_is_explained_by_its_type_and_files() {
    let server = SymbolServer::start([(DEBUG_FILE, bytes_of("elf/crash.debug"))]).await;
    let running = Running::start_with(|options| server.sought_by(options)).await;
    crash::assert_symbolicated(&running.sample_answer().await);
    running.idle().await;

    let module = crash::sample_module();
    let of = |name: &str| module[name].as_str().unwrap().to_owned();
    let (debug_id, code_id) = (of("debug_id"), of("code_id"));
    let by_id = symdepot(&running, &["explain", &debug_id]).await;
    assert_eq!(by_id.status.code(), Some(3), "{by_id:?}");
    assert!(text(&by_id).contains("add --type"), "{by_id:?}");

    let (code_file, debug_file) = (of("code_file"), of("debug_file"));
    let names = [
        ["--type", "elf"],
        ["--code-id", &code_id],
        ["--code-file", &code_file],
        ["--debug-file", &debug_file],
    ];
    let command: Vec<&str> = ["explain", &debug_id]
        .into_iter()
        .chain(names.as_flattened().iter().copied())
        .collect();
    let named = symdepot(&running, &command).await;
    assert_eq!(named.status.code(), Some(0), "{named:?}");
    let ready =
        |line: &str| line.starts_with("symcache, global in company#") && line.ends_with(": ready");
    assert!(text(&named).lines().any(ready), "{named:?}");
    assert!(!text(&named).contains("add --type"), "{named:?}");
}

/// Writes a dead letter to a data folder: a message that the uploads queue delivered too often.
async fn bury(folder: &Path, body: &str) {
    let queues = Queues::new(Database::open(folder).unwrap());
    queues
        .create(QueueSpec::named("DeadLetters"))
        .await
        .unwrap();
    let mut spec = QueueSpec::named("UploadsQueue");
    spec.redrive = Some(Redrive {
        dead_letter: "DeadLetters".to_owned(),
        max_receive_count: 1,
    });
    queues.create(spec).await.unwrap();
    let message = NewMessage::text(body);
    queues.send("UploadsQueue", message).await.unwrap();
    for _ in 0..2 {
        let visible = Some(Duration::ZERO);
        queues.receive("UploadsQueue", 1, visible).await.unwrap();
    }
    assert_eq!(queues.counts("DeadLetters").await.unwrap().visible, 1);
}

#[tokio::test]
async fn dead_letters_are_shown_and_move_back_to_their_queue() {
    const LETTER: &str = "a message that symdepot did not send";
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(Binaries::from_env().unwrap(), folder.path());
    std::fs::create_dir(options.data()).unwrap();
    bury(&options.data(), LETTER).await;
    let stack = LocalStack::start(options).await.unwrap();
    let running = Running { stack, folder };
    let queue = running.client().addresses().queues["DeadLetters"].clone();
    let redrive = |arguments: &'static [&'static str]| {
        let arguments = [&["redrive", "--queue", &queue], arguments].concat();
        let running = &running;
        async move { symdepot(running, &arguments).await }
    };
    let dead = async || {
        let stats = running.client().stats().await.unwrap();
        stats.queue("UploadsQueue").dead
    };
    // What is only shown is still there.
    for _ in 0..2 {
        let shown = redrive(&["--dry-run"]).await;
        assert_eq!(shown.status.code(), Some(0), "{shown:?}");
        assert!(
            text(&shown).starts_with("from UploadsQueue: 1\n"),
            "{shown:?}"
        );
        assert!(text(&shown).contains(LETTER), "{shown:?}");
    }
    assert_eq!(dead().await, 1);
    let moved = redrive(&[]).await;
    assert_eq!(moved.status.code(), Some(0), "{moved:?}");
    assert!(text(&moved).ends_with("1 moved back\n"), "{moved:?}");
    assert_eq!(dead().await, 0);
    let none = redrive(&["--json"]).await;
    let json: Value = serde_json::from_slice(&none.stdout).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"schema": 1, "messages": [], "move": null})
    );
}

/// Returns the ids, the type and the features of objects, in order, and which companions they need.
/// The service does not keep objects without ids.
fn objects(
    value: &Value,
    features: fn(&Value) -> BTreeSet<String>,
) -> Vec<(String, BTreeSet<String>, BTreeSet<String>)> {
    let objects = value["objects"].as_array().cloned().unwrap_or_default();
    let has_id = |object: &&Value| object["debug_id"].is_string() || object["code_id"].is_string();
    let objects = objects.iter().filter(has_id).map(|object| {
        let ids = ["debug_id", "code_id", "file_type", "arch"]
            .map(|name| object[name].as_str().unwrap_or_default().to_owned());
        let needs = companions(&object["needs"]);
        (ids.join(" "), features(&object["features"]), needs)
    });
    objects.collect()
}

/// Returns the ids of companions in a list, which may be absent.
fn companions(list: &Value) -> BTreeSet<String> {
    let ids = list.as_array().cloned().unwrap_or_default();
    ids.iter().map(ToString::to_string).collect()
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

/// Returns the ids of the objects of a checked file, with the index of each.
fn ids(checked: &Value) -> Vec<(usize, String)> {
    let objects = checked["objects"].as_array().cloned().unwrap_or_default();
    let query = |object: &Value| {
        let id = |name: &str| Some(format!("{name}={}", object[name].as_str()?));
        id("debug_id").or_else(|| id("code_id"))
    };
    let objects = objects.iter().enumerate();
    objects
        .filter_map(|(index, object)| Some((index, query(object)?)))
        .collect()
}

/// Returns the caches that can be made of the modules of a file, according to the program.
fn usable(checked: &Value) -> BTreeSet<String> {
    let mut usable = BTreeSet::new();
    for (index, id) in ids(checked) {
        let kinds = of_program(&checked["objects"][index]["usable_as"]);
        usable.extend(kinds.into_iter().map(|kind| format!("{kind} of {id}")));
    }
    usable
}

/// Returns the caches of the modules of a file that the service has made; `None` if it refuses the
/// file because of limits that are set for this machine, which the program does not know.
async fn ready(running: &Running, scope: &str, checked: &Value) -> Option<BTreeSet<String>> {
    let mut ready = BTreeSet::new();
    for (_, id) in ids(checked) {
        let path = format!("/explain?{id}&scope={scope}&source=uploads");
        let request = running.client().request(reqwest::Method::GET, &path);
        let reply = running.client().send("a module", request).await.unwrap();
        let entries = reply.expect(200, "a module").unwrap().body;
        let entries = entries.as_array().unwrap().iter();
        for entry in entries.filter(|entry| entry["scope"] == scope) {
            let record = &entry["record"];
            if record["missing"]["cause"] == "too_large" {
                return None;
            }
            let kind = entry["kind"].as_str().unwrap();
            ready.extend(
                record["ready"]
                    .is_object()
                    .then(|| format!("{kind} of {id}")),
            );
        }
    }
    Some(ready)
}

/// Returns the fixtures that `check` and the service have to agree on: debug files of every kind,
/// auxiliary files, and hostile ones.
fn fixtures_to_check() -> Vec<String> {
    let of_manifest = [
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
    let files = files.into_iter().map(|fixture| fixture.file);
    let mut files: Vec<String> = files
        .filter(|file| {
            let mut folders = of_manifest.iter();
            folders.any(|folder| file.starts_with(&format!("{folder}/")))
        })
        .collect();
    // These are not in the manifest, and lie next to texts about them.
    let mut folders: Vec<String> = ["zoo", "reports", "maps"].map(str::to_owned).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(fixture(&folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let file = format!("{folder}/{name}");
            let is_text = ["expected", "txt", "json", "crash", "ips"]
                .iter()
                .any(|extension| file.ends_with(&format!(".{extension}")));
            if fixture(&file).is_dir() {
                folders.push(file);
            } else if !is_text {
                files.push(file);
            }
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn check_finds_in_each_file_what_the_service_finds() {
    let running = Running::start().await;
    let (mut compared, mut too_large) = (0, Vec::new());
    let files = fixtures_to_check();
    for file in &files {
        // Files with the same ids are read apart from each other.
        let scope = format!("check-{compared}");
        // A map has its id in its name.
        let name = file.rsplit('/').next().unwrap();
        let key = format!("{scope}/{name}");
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
        assert_eq!(
            companions(&checked["completes"]),
            companions(&explained["completes"]),
            "{file}"
        );
        match ready(&running, &scope, checked).await {
            Some(ready) => assert_eq!(usable(checked), ready, "{file}: {checked:#}"),
            None => too_large.push(file.as_str()),
        }
        let problems = checked["problems"].as_array().unwrap();
        let expected = if problems.is_empty() { 0 } else { 3 };
        assert_eq!(ended.status.code(), Some(expected), "{file}");
        // What the service ignores is a problem of the whole file, of which nothing is of use.
        let is_refused = objects(checked, of_program).is_empty()
            && companions(&checked["completes"]).is_empty()
            && !problems.is_empty();
        let expected = if is_refused { "ignored" } else { "applied" };
        assert_eq!(state, expected, "{file}: {checked:#}");
        compared += 1;
    }
    // Only a bomb may exceed the limits of the service, which depend on this machine.
    too_large.retain(|file| *file != "hostile/bomb-1-gib.zst");
    assert!(too_large.is_empty(), "{too_large:?}");
    assert!(compared > 80, "{compared}");
}
