//! Archives of many small debug information files.

use std::ops::Range;

use symdepot::domain::DebugId;

/// Returns a zip archive of uncompressed files.
///
/// # Panics
///
/// If the archive would need the zip64 format.
pub fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let short = |length: usize| u16::try_from(length).unwrap_or_else(|_| panic!("{length}"));
    let long = |length: usize| u32::try_from(length).unwrap_or_else(|_| panic!("{length}"));
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let offset = long(archive.len());
        let mut header = vec![20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0]; // version 2.0, stored, 1980-01-01
        header.extend(crc32(bytes).to_le_bytes());
        header.extend(long(bytes.len()).to_le_bytes());
        header.extend(long(bytes.len()).to_le_bytes());
        header.extend(short(name.len()).to_le_bytes());
        header.extend([0, 0]);
        archive.extend(b"PK\x03\x04");
        archive.extend(&header);
        archive.extend(name.as_bytes());
        archive.extend(bytes);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&header);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (count, at) = (short(files.len()).to_le_bytes(), long(archive.len()));
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend([count, count].concat());
    archive.extend(long(directory.len()).to_le_bytes());
    archive.extend(at.to_le_bytes());
    archive.extend([0, 0]);
    archive
}

/// Returns an archive of the symbol files of the generated modules with these numbers.
pub fn archive_of(numbers: Range<usize>) -> Vec<u8> {
    let file = |number| (format!("{number}.sym"), breakpad(number));
    archive(&numbers.map(file).collect::<Vec<_>>())
}

/// Returns the Breakpad symbols of a generated module: one function, and a code id.
pub fn breakpad(number: usize) -> Vec<u8> {
    let id = breakpad_hex(number);
    format!(
        "MODULE Linux x86_64 {id} lib{number}.so\nINFO CODE_ID {number:08X}5EED\nFUNC 1000 10 0 function_{number}\n"
    )
    .into_bytes()
}

/// Returns the debug id of a generated module.
pub fn breakpad_id(number: usize) -> String {
    let id = DebugId::from_breakpad(&breakpad_hex(number));
    id.map(|id| id.to_string())
        .unwrap_or_else(|error| panic!("{number}: {error}"))
}

fn breakpad_hex(number: usize) -> String {
    format!("{:032X}0", number + 1)
}

fn crc32(bytes: &[u8]) -> u32 {
    let update = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(u32::MAX, update)
}
