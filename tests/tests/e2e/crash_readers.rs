//! Answers to crash files agree with what independent readers from PyPI find in the same files.

use std::process::Command;

use serde_json::{Value, json};
use symdepot_tests::harness::{MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread};

use crate::crash_files::{form, send};
use crate::{Running, bytes_of};

/// Returns what the package of PyPI that reads this kind of file finds; `None` without the package.
fn read_by_others(kind: &str, file: &[u8]) -> Option<Value> {
    let Ok(python) = std::env::var("SYMDEPOT_READER") else {
        println!("{kind}: not checked with packages from PyPI; run `make test-readers`");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash");
    std::fs::write(&path, file).unwrap();
    let output = Command::new(python)
        .arg(symdepot_tests::stack::checkout().join("infra/check/crash_reader.py"))
        .args([kind.as_ref(), path.as_os_str()])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{kind}: {errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// Returns a number that a response has as hexadecimal text.
fn number(value: &Value) -> u64 {
    let text = value.as_str().unwrap();
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

/// A minidump with several threads and modules, one of which crashed.
fn several_threads() -> Vec<u8> {
    let (stack, base) = (0x7fff_0000_0000, 0x5555_0000_0000);
    let thread = |id: u32| MadeUpThread {
        id,
        rip: base + 0x100 * u64::from(id),
        rsp: stack + 16 * u64::from(id),
        ..MadeUpThread::default()
    };
    let module = |number: u32| MadeUpModule {
        address: base + 0x10_0000 * u64::from(number),
        size: 0x1000 * (number + 1),
        name: format!("/opt/module-{number}"),
        debug_id: "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap(),
        ..MadeUpModule::default()
    };
    let dump = MadeUpDump {
        stacks: vec![MadeUpStack {
            address: stack,
            bytes: vec![0; 256],
        }],
        threads: (1..=5).map(thread).collect(),
        modules: (0..3).map(module).collect(),
        crashed: Some(3),
        ..MadeUpDump::default()
    };
    dump.file()
}

#[tokio::test]
async fn the_threads_modules_and_exception_of_a_minidump_are_those_of_another_reader() {
    let running = Running::start().await;
    let files = [
        bytes_of("minidump/crash.dmp"),
        bytes_of("minidump/inventory.dmp"),
        several_threads(),
    ];
    for file in files {
        let parts: [(&str, &[u8]); 2] = [("sources", b"[]"), ("upload_file_minidump", &file)];
        let reply = send(&running, "/minidump", form(&parts)).await;
        let answer = reply.expect(200, "a minidump").unwrap().body;
        assert_eq!(answer["status"], "completed", "{answer:#}");
        let Some(expected) = read_by_others("minidump", &file) else {
            return;
        };

        let threads = list(&answer["stacktraces"]).iter().map(|thread| {
            let register = |name: &str| number(&thread["registers"][name]);
            let first = number(&thread["frames"][0]["instruction_addr"]);
            assert_eq!(first, register("rip"), "{thread:#}");
            json!({"id": thread["thread_id"], "rip": first, "rsp": register("rsp")})
        });
        assert_eq!(threads.collect::<Value>(), expected["threads"]);

        let modules = list(&answer["modules"]).iter().map(|module| {
            json!({
                "name": module["code_file"], "start": number(&module["image_addr"]),
                "size": module["image_size"],
            })
        });
        assert_eq!(modules.collect::<Value>(), expected["modules"]);

        let crashed = list(&answer["stacktraces"]).iter();
        let crashed = crashed.filter(|thread| thread["is_requesting"] == true);
        let exceptions = crashed.filter(|_| answer["crashed"] == true).map(|thread| {
            let reason = answer["crash_reason"].as_str().unwrap();
            json!({"thread": thread["thread_id"], "signal": reason.split(' ').next()})
        });
        assert_eq!(exceptions.collect::<Value>(), expected["exceptions"]);
    }
}

#[tokio::test]
async fn the_thread_and_exception_of_an_apple_report_are_those_of_another_reader() {
    let running = Running::start().await;
    let header = json!({"bug_type": "309", "os_version": "macOS 14.1 (23B74)"});
    let report = json!({
        "captureTime": "2023-11-05 10:00:00.00 +0000", "cpuType": "ARM-64",
        "osVersion": {"train": "macOS 14.1", "build": "23B74"},
        "exception": {"type": "EXC_BAD_ACCESS", "subtype": "KERN_INVALID_ADDRESS at 0x0"},
        "faultingThread": 1,
        "threads": [
            {"frames": [{"imageIndex": 1, "imageOffset": 512}]},
            {
                "triggered": true,
                "threadState": {
                    "flavor": "ARM_THREAD_STATE64", "x": [{"value": 7}, {"value": 8}],
                    "pc": {"value": 4_294_971_296_u64}, "sp": {"value": 6_000_000_000_u64}
                },
                "frames": [
                    {"imageIndex": 0, "imageOffset": 4000}, {"imageIndex": 1, "imageOffset": 1024}
                ]
            }
        ],
        "usedImages": [
            {
                "source": "P", "base": 4_294_967_296_u64, "size": 16_384,
                "path": "/Applications/app", "uuid": "502fc0a5-1ec1-3e47-9998-684fa139dca7"
            },
            {
                "source": "P", "base": 6_677_331_968_u64, "size": 229_376,
                "path": "/usr/lib/system/libsystem_kernel.dylib",
                "uuid": "1b2c3d4e-0000-3111-8222-333344445555"
            }
        ]
    });
    let file = format!("{header}\n{report}").into_bytes();
    let parts: [(&str, &[u8]); 2] = [("sources", b"[]"), ("apple_crash_report", &file)];
    let reply = send(&running, "/applecrashreport", form(&parts)).await;
    let answer = reply.expect(200, "a report").unwrap().body;
    assert_eq!(answer["status"], "completed", "{answer:#}");
    let Some(expected) = read_by_others("ips", &file) else {
        return;
    };
    assert_eq!(answer["crash_reason"], expected["type"]);
    assert_eq!(answer["crash_details"], expected["subtype"]);
    let mut threads = list(&answer["stacktraces"]).iter();
    let crashed = threads.find(|thread| thread["is_requesting"] == true);
    let crashed = crashed.unwrap();
    let frames = list(&crashed["frames"]).iter().map(
        |frame| json!({"image": frame["package"], "address": number(&frame["instruction_addr"])}),
    );
    assert_eq!(frames.collect::<Value>(), expected["frames"]);
    let registers = crashed["registers"].as_object().unwrap().iter();
    let registers = registers.map(|(name, value)| (name.clone(), json!(number(value))));
    assert_eq!(Value::Object(registers.collect()), expected["registers"]);
}
