//! The fixtures, their manifest, and the oracles of other tools.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Deserialize;

/// A fixture, as described in `fixtures/manifest.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Fixture {
    /// Its path under `fixtures/`.
    pub file: String,
    /// Its purpose: `debug`, `executable`, `library`, `sources`, `container`, `hostile`.
    pub kind: String,
    /// The format of the file.
    #[serde(default)]
    pub format: Option<String>,
    /// Its debug id, as other tools read it.
    #[serde(default)]
    pub debug_id: Option<String>,
    /// Its code id, as other tools read it.
    #[serde(default)]
    pub code_id: Option<String>,
    /// The oracles to compare it with.
    #[serde(default)]
    pub expected: Vec<String>,
    /// Its objects, if it has several.
    #[serde(default)]
    pub objects: Vec<FixtureObject>,
    /// The fixtures that a container holds.
    #[serde(default)]
    pub holds: Vec<String>,
}

/// One object of a fixture that has several.
#[derive(Clone, Debug, Deserialize)]
pub struct FixtureObject {
    /// Its debug id.
    pub debug_id: String,
    /// Its code id.
    pub code_id: String,
    /// The oracles to compare it with.
    #[serde(default)]
    pub expected: Vec<String>,
}

/// The frames that a tool reports for addresses of a file.
#[derive(Clone, Debug, Deserialize)]
pub struct Oracle {
    /// The tool.
    pub tool: String,
    /// The addresses that the tool was called with.
    pub frames: Vec<OracleAddress>,
}

/// The frames that a tool reports for one address.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleAddress {
    /// The address, relative to the module, in hexadecimal.
    pub address: String,
    /// The functions at this address, innermost first.
    pub frames: Vec<OracleFrame>,
}

/// One function at an address.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleFrame {
    /// Its name, demangled.
    pub function: Option<String>,
    /// Its mangled name, if it differs.
    #[serde(default)]
    pub mangled: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line; zero if the tool has none.
    #[serde(default)]
    pub line: Option<u32>,
}

/// Returns the directory of the fixtures.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// Returns the bytes of a fixture.
pub fn fixture(path: &str) -> Bytes {
    let file = folder().join(path);
    std::fs::read(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        .into()
}

/// Returns the text of a fixture.
pub fn fixture_text(path: &str) -> String {
    String::from_utf8(fixture(path).to_vec()).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the manifest entries of all fixtures.
pub fn manifest() -> Vec<Fixture> {
    serde_json::from_str(&fixture_text("manifest.json"))
        .unwrap_or_else(|error| panic!("manifest.json: {error}"))
}

/// Returns an oracle.
pub fn oracle(path: &str) -> Oracle {
    serde_json::from_str(&fixture_text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the names of the malicious files.
pub fn hostile_files() -> Vec<String> {
    manifest()
        .into_iter()
        .filter(|fixture| fixture.kind == "hostile")
        .map(|fixture| fixture.file)
        .collect()
}
