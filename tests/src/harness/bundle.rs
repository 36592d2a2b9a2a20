//! Source bundles that tests write themselves.
//!
//! Source of the format: the documentation of `symbolic_debuginfo::sourcebundle`.

use std::io::{Cursor, Write};

use bytes::Bytes;
use serde_json::json;
use zip::write::SimpleFileOptions;

/// Returns a source bundle for a module: files with their paths and texts.
pub fn source_bundle(debug_id: &str, files: &[(&str, &str)]) -> Bytes {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    let mut listed = serde_json::Map::new();
    for (number, (path, text)) in files.iter().enumerate() {
        let name = format!("files/{number}");
        archive.start_file(&name, options).expect("a zip in memory");
        archive.write_all(text.as_bytes()).expect("a zip in memory");
        listed.insert(name, json!({"type": "source", "path": path}));
    }
    let manifest = json!({"files": listed, "debug_id": debug_id, "object_name": "app"});
    archive
        .start_file("manifest.json", options)
        .expect("a zip in memory");
    archive
        .write_all(manifest.to_string().as_bytes())
        .expect("a zip in memory");
    let zip = archive.finish().expect("a zip in memory").into_inner();
    let mut bundle = b"SYSB\x02\0\0\0".to_vec();
    bundle.extend(zip);
    bundle.into()
}
