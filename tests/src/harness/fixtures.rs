//! The fixtures, what is known of them, and what other tools say about them.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Deserialize;

/// A fixture, as `fixtures/manifest.json` has it.
#[derive(Clone, Debug, Deserialize)]
pub struct Fixture {
    /// Its path under `fixtures/`.
    pub file: String,
    /// What it is for: `debug`, `executable`, `library`, `sources`, `container`, `hostile`.
    pub kind: String,
    /// The format of the file.
    #[serde(default)]
    pub format: Option<String>,
    /// The debug id that other tools read from it.
    #[serde(default)]
    pub debug_id: Option<String>,
    /// The code id that other tools read from it.
    #[serde(default)]
    pub code_id: Option<String>,
    /// The oracles that it must agree with.
    #[serde(default)]
    pub expected: Vec<String>,
    /// The objects in it, where it holds several.
    #[serde(default)]
    pub objects: Vec<FixtureObject>,
    /// The fixtures that a container holds.
    #[serde(default)]
    pub holds: Vec<String>,
}

/// One object of a fixture that holds several.
#[derive(Clone, Debug, Deserialize)]
pub struct FixtureObject {
    /// Its debug id.
    pub debug_id: String,
    /// Its code id.
    pub code_id: String,
    /// The oracles that it must agree with.
    #[serde(default)]
    pub expected: Vec<String>,
}

/// What a tool says about the addresses of a file.
#[derive(Clone, Debug, Deserialize)]
pub struct Oracle {
    /// The tool.
    pub tool: String,
    /// Each address that it was asked about.
    pub frames: Vec<OracleAddress>,
}

/// What a tool says about one address.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleAddress {
    /// The address, relative to the module, in hexadecimal.
    pub address: String,
    /// The functions there, innermost first.
    pub frames: Vec<OracleFrame>,
}

/// One function at an address.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleFrame {
    /// Its name, demangled.
    pub function: Option<String>,
    /// Its name, mangled, where it differs.
    #[serde(default)]
    pub mangled: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line; zero where the tool has none.
    #[serde(default)]
    pub line: Option<u32>,
}

/// Returns the folder of the fixtures.
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

/// Returns what is known of every fixture.
pub fn manifest() -> Vec<Fixture> {
    serde_json::from_str(&fixture_text("manifest.json"))
        .unwrap_or_else(|error| panic!("manifest.json: {error}"))
}

/// Returns what a tool says.
pub fn oracle(path: &str) -> Oracle {
    serde_json::from_str(&fixture_text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the names of the files that mean harm.
pub fn hostile_files() -> Vec<String> {
    manifest()
        .into_iter()
        .filter(|fixture| fixture.kind == "hostile")
        .map(|fixture| fixture.file)
        .collect()
}
