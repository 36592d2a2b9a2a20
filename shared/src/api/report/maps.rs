//! What is mapped where, if a report says it: the lines of `/proc/<pid>/maps`, which also are in
//! the error log of the JVM, and those of `info proc mappings` of gdb.

use std::ops::Range;

use super::collector::Collector;
use super::cursor::{LineCursor, TextLine, lines};

/// The maximum number of files that frames are searched in. The largest processes have about three
/// thousand.
const FILES: usize = 4_096;

/// A file that is mapped.
pub(super) struct Mapped<'a> {
    pub(super) path: &'a str,
    pub(super) range: Range<u64>,
}

struct Mapping<'a> {
    range: Range<u64>,
    offset: u64,
    path: &'a str,
}

/// Returns the mapped files, in the order of their addresses. The beginning of a file is where its
/// first byte is mapped; its end is where the last mapping without another file in between ends.
pub(super) fn mapped(bytes: &[u8]) -> Vec<Mapped<'_>> {
    let mut files: Vec<Mapped<'_>> = Vec::new();
    for line in lines(bytes) {
        let Some(mapping) = of_kernel(line).or_else(|| of_gdb(line)) else {
            continue;
        };
        let last = files.last_mut().filter(|last| {
            last.path == mapping.path && last.range.end <= mapping.range.start && mapping.offset > 0
        });
        match last {
            Some(last) => last.range.end = mapping.range.end,
            None if mapping.offset == 0 => files.push(Mapped {
                path: mapping.path,
                range: mapping.range,
            }),
            None => {}
        }
    }
    files
}

/// Adds the files that frames without a module lie in.
pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    let addresses = out.addresses();
    let is_used = |range: &Range<u64>| {
        let first = addresses.partition_point(|address| *address < range.start);
        addresses
            .get(first)
            .is_some_and(|address| *address < range.end)
    };
    let used = mapped(bytes)
        .into_iter()
        .filter(|file| is_used(&file.range));
    for file in used.take(FILES) {
        if let Some(module) = out.module(file.path, None) {
            out.begins(module, file.range.start);
            out.extends(module, file.range.end);
        }
    }
}

/// Reads `start-end perms offset device inode path`.
fn of_kernel(line: TextLine<'_>) -> Option<Mapping<'_>> {
    let mut cursor = LineCursor::new(line);
    let start = cursor.digits()?;
    cursor.eat("-").then_some(())?;
    let end = cursor.digits()?;
    cursor.spaces().then_some(())?;
    let permissions = cursor.until(" ")?;
    (permissions.len() == 4 && permissions.ends_with(['p', 's'])).then_some(())?;
    let offset = cursor.digits()?;
    cursor.spaces().then_some(())?;
    cursor.until(" ")?.contains(':').then_some(())?;
    cursor.number()?;
    cursor.spaces().then_some(())?;
    mapping(start..end, offset, cursor.rest)
}

/// Reads `start end size offset permissions path`, where the permissions may be absent.
fn of_gdb(line: TextLine<'_>) -> Option<Mapping<'_>> {
    let mut cursor = LineCursor::new(line);
    let mut number = || {
        cursor.spaces();
        cursor.hex()
    };
    let (start, end, _size, offset) = (number()?, number()?, number()?, number()?);
    let path = cursor.rest.find('/').map(|at| &cursor.rest[at..])?;
    mapping(start..end, offset, path)
}

fn mapping(range: Range<u64>, offset: u64, path: &str) -> Option<Mapping<'_>> {
    let path = path.trim();
    (path.starts_with('/') && !range.is_empty()).then_some(Mapping {
        range,
        offset,
        path,
    })
}
