//! Generated malicious files: decompression bombs, nested archives, endless names.

use std::io::{Cursor, Write};

use flate2::Compression;
use zip::write::SimpleFileOptions;

use super::mutate::Original;

/// The unpacked size of a bomb.
const BOMB_BYTES: usize = 1 << 30;

/// The number of letters of a long name.
const LETTERS: usize = 300_000;

/// The depth of nested archives.
const DEPTH: usize = 12;

/// Returns one file of each kind.
pub fn all() -> Vec<Original> {
    let mut files = vec![
        ("a gibibyte in gzip".to_owned(), gzip_bomb()),
        ("a gibibyte in zlib".to_owned(), zlib_bomb()),
        ("a gibibyte in zstd".to_owned(), zstd_bomb()),
        (
            "a gibibyte in a zip".to_owned(),
            zipped("bomb", &mut Zeros(BOMB_BYTES)),
        ),
        ("ten thousand empty files in a zip".to_owned(), crowded()),
    ];
    let mut nested = breakpad("f");
    for _ in 0..DEPTH {
        nested = zipped("inside.zip", &mut Cursor::new(nested));
    }
    files.push((format!("{DEPTH} nested archives"), nested));
    for (what, name) in [
        ("letters", "n".repeat(LETTERS)),
        (
            "nested templates",
            format!("_Z1f{}", "1aI".repeat(LETTERS / 3)),
        ),
        (
            "Swift's nested types",
            format!("$s1a1fyy{}", "Say".repeat(LETTERS / 3)),
        ),
        (
            "back references",
            format!("?f@@YAX{}@Z", "P6AX00@Z".repeat(LETTERS / 8)),
        ),
        ("quotes, which JSON escapes", "\"".repeat(LETTERS)),
    ] {
        files.push((format!("a name of {LETTERS} {what}"), breakpad(&name)));
    }
    files
}

/// Returns Breakpad symbols with one function.
fn breakpad(function: &str) -> Vec<u8> {
    let id = "DECADE000000400080000000000000990";
    format!("MODULE Linux x86_64 {id} made-up\nFUNC 1000 10 0 {function}\n").into_bytes()
}

/// A reader of this many zeros.
struct Zeros(usize);

impl std::io::Read for Zeros {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = buffer.len().min(self.0);
        buffer[..length].fill(0);
        self.0 -= length;
        Ok(length)
    }
}

fn gzip_bomb() -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), Compression::best());
    let written = std::io::copy(&mut Zeros(BOMB_BYTES), &mut packer);
    written.and(packer.finish()).unwrap_or_default()
}

fn zlib_bomb() -> Vec<u8> {
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), Compression::best());
    let written = std::io::copy(&mut Zeros(BOMB_BYTES), &mut packer);
    written.and(packer.finish()).unwrap_or_default()
}

fn zstd_bomb() -> Vec<u8> {
    zstd::encode_all(Zeros(BOMB_BYTES), 3).unwrap_or_default()
}

fn zipped(name: &str, content: &mut dyn std::io::Read) -> Vec<u8> {
    let mut packer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    if packer.start_file(name, options).is_ok() {
        let _ = std::io::copy(content, &mut packer);
    }
    packer.finish().map(Cursor::into_inner).unwrap_or_default()
}

fn crowded() -> Vec<u8> {
    let mut packer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for number in 0..10_000 {
        let started = packer.start_file(format!("{number}"), SimpleFileOptions::default());
        let _ = started.map(|()| packer.write_all(b""));
    }
    packer.finish().map(Cursor::into_inner).unwrap_or_default()
}
