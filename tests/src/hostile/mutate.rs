//! Randomly mutated fixtures: changed bytes, runs of bytes, numbers and lines of text, also inside
//! containers.

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use zip::write::SimpleFileOptions;

/// The size of the largest mutated fixture: larger ones contain no structures that smaller ones
/// lack.
const LARGEST: u64 = 256 << 10;

/// The maximum number of mutations of a file.
const MAX_CHANGES: u32 = 8;

/// Numbers that tend to break sums, products and sizes.
const NUMBERS: [u64; 10] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// An unmodified file: its name among the fixtures, and its bytes.
pub type Original = (String, Vec<u8>);

/// Returns the fixtures of all supported types.
///
/// # Panics
///
/// If there are none.
pub fn originals() -> Vec<Original> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut originals = Vec::new();
    for kind in [
        "elf",
        "macho",
        "pe",
        "dotnet",
        "breakpad",
        "wasm",
        "bundle",
        "containers",
        "hostile",
    ] {
        let mut files = files_below(&folder.join(kind));
        files.sort();
        for file in files {
            let is_small = file
                .metadata()
                .is_ok_and(|metadata| metadata.len() <= LARGEST);
            if let (true, Ok(bytes)) = (is_small, std::fs::read(&file)) {
                let name = file.strip_prefix(&folder).unwrap_or(&file);
                originals.push((name.display().to_string(), bytes));
            }
        }
    }
    assert!(originals.len() > 20, "{} fixtures", originals.len());
    originals
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => files_below(&path),
            path => vec![path],
        })
        .collect()
}

/// Returns a mutated fixture and its name.
pub fn mutated(originals: &[Original], number: usize, chance: &mut StdRng) -> Original {
    let Some((name, bytes)) = originals.choose(chance) else {
        return ("nothing".to_owned(), Vec::new());
    };
    // Half of the time, the content of a container is mutated before it is packed; otherwise few
    // mutations would pass its checksum.
    let (mut bytes, container) = match unpacked(bytes) {
        Some((inside, container)) if chance.random_bool(0.5) => (inside, Some(container)),
        _ => (bytes.clone(), None),
    };
    for _ in 0..chance.random_range(1..=MAX_CHANGES) {
        change(&mut bytes, originals, chance);
    }
    if let Some(container) = container {
        bytes = container.pack(&bytes);
    }
    (format!("{name}, change {number}"), bytes)
}

fn change(bytes: &mut Vec<u8>, originals: &[Original], chance: &mut StdRng) {
    if bytes.is_empty() {
        bytes.push(chance.random());
        return;
    }
    let at = chance.random_range(0..bytes.len());
    let length = chance.random_range(1..=64).min(bytes.len() - at);
    match chance.random_range(0..9) {
        0 => bytes[at] ^= 1 << chance.random_range(0..8),
        1 => bytes[at] = chance.random(),
        // Headers are the most sensitive part.
        2 => {
            let in_header = at % bytes.len().min(512);
            number(bytes, in_header, chance);
        }
        3 => number(bytes, at, chance),
        4 => chance.fill_bytes(&mut bytes[at..at + length]),
        5 => bytes.truncate(at),
        6 => {
            let run = bytes[at..at + length].to_vec();
            bytes.splice(at..at, run);
        }
        7 => drop(bytes.drain(at..at + length)),
        _ => {
            if let Some((_, other)) = originals.choose(chance) {
                let from = chance.random_range(0..=other.len());
                let to = other.len().min(from + 4096);
                let end = bytes.len().min(at + (to - from));
                bytes.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
}

/// Writes a number at a position, in a random size.
fn number(bytes: &mut [u8], at: usize, chance: &mut StdRng) {
    let number = *NUMBERS.choose(chance).unwrap_or(&0);
    let width = *[2, 4, 8].choose(chance).unwrap_or(&4);
    let at = at - at % width;
    let raw = if chance.random_bool(0.8) {
        number.to_le_bytes()
    } else {
        number.to_be_bytes()
    };
    for (slot, byte) in bytes.iter_mut().skip(at).zip(&raw[..width]) {
        *slot = *byte;
    }
}

/// The container of a file.
enum Container {
    Gzip,
    Zlib,
    Zstd,
    Zip { name: String },
}

impl Container {
    fn pack(&self, bytes: &[u8]) -> Vec<u8> {
        let level = flate2::Compression::fast();
        match self {
            Self::Gzip => {
                let mut packer = flate2::write::GzEncoder::new(Vec::new(), level);
                let written = packer.write_all(bytes);
                written.and(packer.finish()).unwrap_or_default()
            }
            Self::Zlib => {
                let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), level);
                let written = packer.write_all(bytes);
                written.and(packer.finish()).unwrap_or_default()
            }
            Self::Zstd => zstd::encode_all(bytes, 1).unwrap_or_default(),
            Self::Zip { name } => {
                let mut packer = zip::ZipWriter::new(Cursor::new(Vec::new()));
                let written = packer
                    .start_file(name.as_str(), SimpleFileOptions::default())
                    .map(|()| packer.write_all(bytes));
                drop(written);
                packer.finish().map(Cursor::into_inner).unwrap_or_default()
            }
        }
    }
}

fn unpacked(bytes: &[u8]) -> Option<(Vec<u8>, Container)> {
    let mut inside = Vec::new();
    let limit = LARGEST * 16;
    match bytes {
        [0x1f, 0x8b, ..] => {
            let packed = flate2::read::GzDecoder::new(bytes);
            packed.take(limit).read_to_end(&mut inside).ok()?;
            Some((inside, Container::Gzip))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let packed = zstd::Decoder::new(bytes).ok()?;
            packed.take(limit).read_to_end(&mut inside).ok()?;
            Some((inside, Container::Zstd))
        }
        [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] => {
            let packed = flate2::read::ZlibDecoder::new(bytes);
            packed.take(limit).read_to_end(&mut inside).ok()?;
            Some((inside, Container::Zlib))
        }
        [b'P', b'K', ..] => {
            let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).ok()?;
            let file = archive.by_index(0).ok()?;
            let name = file.name().to_owned();
            file.take(limit).read_to_end(&mut inside).ok()?;
            Some((inside, Container::Zip { name }))
        }
        _ => None,
    }
}
