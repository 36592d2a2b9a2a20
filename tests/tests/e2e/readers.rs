//! Plain SymCaches, for tools that cannot read slices.

use std::process::Command;

use reqwest::Method;
use symbolic::symcache::SymCache;

use crate::{Running, bytes_of};

/// Uploads and their debug ids.
const FILES: [(&str, &str); 4] = [
    ("elf/crash.debug", "bc6e45ac-487f-f425-3672-08b89f51ad48"),
    ("elf/checksum", "c822ad25-152b-3674-5149-86d333144792"),
    (
        "elf/crash-arm64.debug",
        "10311f21-a03f-9405-1950-37650303f4a9",
    ),
    ("pe/x64/crash.pdb", "c7d4c24f-1fb8-5408-4c4c-44205044422e-1"),
];

#[tokio::test]
async fn a_plain_symcache_is_served_by_redirect_and_readable_by_other_tools() {
    let running = Running::start().await;
    let client = running.client();
    let missing = client.request(Method::GET, &format!("/symcache?debug_id={}", FILES[0].1));
    let missing = client.send("no SymCache", missing).await.unwrap();
    assert_eq!(missing.status, 404, "{}", missing.text);
    for (file, _) in FILES {
        running
            .upload(&format!("global/{file}"), bytes_of(file))
            .await;
    }
    running.idle().await;
    let folder = tempfile::tempdir().unwrap();
    for (file, id) in FILES {
        let request = client.request(Method::GET, &format!("/symcache?debug_id={id}"));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{file}");
        assert!(answer.url().path().contains("/plain/"), "{}", answer.url());
        let bytes = answer.bytes().await.unwrap();
        let path = folder.path().join(id);
        std::fs::write(&path, &bytes).unwrap();
        let read = symbolic::common::ByteView::open(&path).unwrap();
        let cache = SymCache::parse(&read).unwrap();
        assert!(cache.functions().count() > 2, "{file}");
        assert_eq!(cache.debug_id().to_string(), id);

        let Ok(python) = std::env::var("SYMDEPOT_READER") else {
            println!("{file}: not checked with PyPI's symbolic; run `make test-readers`");
            continue;
        };
        let output = Command::new(python)
            .arg(symdepot_tests::stack::checkout().join("infra/check/reader.py"))
            .arg(symdepot_tests::stack::fixture(file))
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file}: {said}");
        print!("{file}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
