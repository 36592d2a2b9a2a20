//! Profiles: the crates that compute are optimised for speed in the programs that are deployed.

use std::collections::{BTreeMap, BTreeSet};

use crate::project::read;

/// The crates that read debug files, decompress, hash, demangle, or read and write JSON: most of
/// the processor time of a request and of a build is theirs.
const COMPUTING: [&str; 18] = [
    "cpp_demangle",
    "flate2",
    "gimli",
    "goblin",
    "pdb",
    "pdb-addr2line",
    "rustc-demangle",
    "serde_json",
    "symbolic-cfi",
    "symbolic-common",
    "symbolic-debuginfo",
    "symbolic-demangle",
    "symbolic-ppdb",
    "symbolic-symcache",
    "watto",
    "xxhash-rust",
    "zlib-rs",
    "zstd-sys",
];

/// Crates that compute, too, but are optimised for size until someone measures what speed costs:
/// `symbolicate` may have 15 MB, and is close to that. One that is moved to [`COMPUTING`] needs the
/// size of `symbolicate` before and after (`make build`), and a benchmark that it speeds up.
const NOT_MEASURED: [&str; 6] = [
    "crc32fast",
    "lzma-rust2",
    "lzxd",
    "memchr",
    "minidump-unwind",
    "sha2",
];

/// Returns the levels that a profile has for single packages.
fn levels(text: &str, profile: &str) -> BTreeMap<String, String> {
    let packages = format!("profile.{profile}.package.");
    let mut levels = BTreeMap::new();
    let mut package = None;
    for line in text.lines() {
        if let Some(section) = line.strip_prefix('[') {
            package = section
                .strip_suffix(']')
                .and_then(|section| section.strip_prefix(packages.as_str()));
        } else if let (Some(package), Some(level)) = (package, line.strip_prefix("opt-level = ")) {
            levels.insert(package.to_owned(), level.to_owned());
        }
    }
    levels
}

#[test]
fn crates_that_compute_are_deployed_optimised_for_speed_and_no_others() {
    let mut levels = levels(&read("Cargo.toml").unwrap(), "release");
    // It computes and waits: each function has its own level.
    assert_eq!(levels.remove("symdepot").as_deref(), Some("\"s\""));
    let expected = COMPUTING.map(|name| (name.to_owned(), "3".to_owned()));
    assert_eq!(
        levels,
        BTreeMap::from(expected),
        "the release profile of Cargo.toml (left) and COMPUTING (right) differ"
    );
}

#[test]
fn derive_is_deployed_with_our_own_crate_optimised_for_speed() {
    let levels = levels(
        &read("functions/derive/.cargo/config.toml").unwrap(),
        "release",
    );
    assert_eq!(
        levels,
        BTreeMap::from([("symdepot".to_owned(), "3".to_owned())])
    );
}

#[test]
fn only_dependencies_are_optimised_for_tests() {
    let manifest = read("Cargo.toml").unwrap();
    let levels = levels(&manifest, "dev");
    let members = manifest.split("members = [").nth(1).unwrap();
    let members = members.split(']').next().unwrap();
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.contains(&"shared"), "{members:?}");
    for member in members {
        let manifest = read(&format!("{member}/Cargo.toml")).unwrap();
        let name = manifest.split("name = \"").nth(1).unwrap();
        let name = name.split('"').next().unwrap();
        let level = levels.get(name).map(String::as_str);
        assert_eq!(level, Some("0"), "[profile.dev.package.{name}]");
    }
    let lock = read("Cargo.lock").unwrap();
    for package in levels.keys() {
        assert!(
            lock.contains(&format!("name = \"{package}\"\n")),
            "{package}"
        );
    }
}

#[test]
fn crates_that_compute_are_dependencies_under_these_names() {
    let lock = read("Cargo.lock").unwrap();
    let locked: BTreeSet<&str> = lock
        .lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .collect();
    let named = COMPUTING.into_iter().chain(NOT_MEASURED);
    let unknown: Vec<&str> = named.filter(|name| !locked.contains(name)).collect();
    assert!(unknown.is_empty(), "not in Cargo.lock: {unknown:?}");
    let both = COMPUTING.iter().find(|name| NOT_MEASURED.contains(name));
    assert_eq!(both, None, "is in both lists");
}
