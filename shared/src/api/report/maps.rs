//! What is mapped where, if a report says it: the lines of `/proc/<pid>/maps`, which also are in
//! the error log of the JVM, and those of `info proc mappings` of gdb. Each may follow a prefix of
//! a log.

use std::collections::HashMap;
use std::ops::Range;

use super::collector::Collector;
use super::cursor::{DELETED, LineCursor, TextLine, lines};
use super::model::file_name;

/// The maximum number of files that frames are searched in. The largest processes have about three
/// thousand.
const FILES: usize = 4_096;

/// The maximum number of words in a line that are tried as the beginning of a mapping.
const MAX_TRIES: usize = 16;

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
        let Some(mapping) = mapping_in(line) else {
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
    if addresses.is_empty() {
        return;
    }
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

/// Sets the load addresses of modules of which frames have an address, but no offset: that of the
/// file with the same file name in which the address lies.
pub(super) fn read_bases(bytes: &[u8], out: &mut Collector) {
    let addresses = out.without_base();
    if addresses.is_empty() {
        return;
    }
    let mut files: HashMap<&str, Vec<Range<u64>>> = HashMap::new();
    for file in mapped(bytes) {
        let of_name = files.entry(file_name(file.path)).or_default();
        of_name.push(file.range);
    }
    for ranges in files.values_mut() {
        ranges.sort_unstable_by_key(|range| range.start);
    }
    for (module, address) in addresses {
        let ranges = out.name(module).and_then(|name| files.get(file_name(name)));
        if let Some(base) = ranges.and_then(|ranges| base_of(ranges, address)) {
            out.begins(module, base);
        }
    }
}

/// Returns the beginning of the range that an address lies in, of ranges in order.
fn base_of(ranges: &[Range<u64>], address: u64) -> Option<u64> {
    let after = ranges.partition_point(|range| range.start <= address);
    let range = ranges.get(after.checked_sub(1)?)?;
    range.contains(&address).then_some(range.start)
}

/// Sets the paths and load addresses of the modules that are known by their file names.
pub(super) fn read_named(bytes: &[u8], out: &mut Collector) {
    let mut modules = out.by_name();
    for file in mapped(bytes) {
        let named = modules.get_mut(file_name(file.path));
        if let Some(module) = named.and_then(Vec::pop) {
            out.set_path(module, file.path);
            out.begins(module, file.range.start);
            out.extends(module, file.range.end);
        }
    }
}

/// Returns the mapping in a line.
fn mapping_in(line: TextLine<'_>) -> Option<Mapping<'_>> {
    let mut cursor = LineCursor::new(line);
    cursor.spaces();
    (0..MAX_TRIES).find_map(|_| {
        let here = cursor;
        cursor.word();
        cursor.spaces();
        // Most words of most lines begin otherwise.
        let may_be = here.rest.starts_with(|c: char| c.is_ascii_hexdigit());
        may_be
            .then(|| of_kernel(here).or_else(|| of_gdb(here)))
            .flatten()
    })
}

/// Reads `start-end perms offset device inode path`.
fn of_kernel(mut cursor: LineCursor<'_>) -> Option<Mapping<'_>> {
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
fn of_gdb(mut cursor: LineCursor<'_>) -> Option<Mapping<'_>> {
    let mut number = || {
        cursor.spaces();
        cursor.hex()
    };
    let (start, end, size, offset) = (number()?, number()?, number()?, number()?);
    (end.checked_sub(start) == Some(size)).then_some(())?;
    let path = cursor.rest.find('/').map(|at| &cursor.rest[at..])?;
    mapping(start..end, offset, path)
}

fn mapping(range: Range<u64>, offset: u64, path: &str) -> Option<Mapping<'_>> {
    let path = path.trim();
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    (path.starts_with('/') && !range.is_empty()).then_some(Mapping {
        range,
        offset,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::{mapped, read_named};
    use crate::api::report::ReportFormat;
    use crate::api::report::collector::Collector;

    const KERNEL: &str = "\
555555554000-555555555000 r--p 00000000 fe:00 1234                       /opt/my app (deleted)
555555555000-555555556000 r-xp 00001000 fe:00 1234                       /opt/my app (deleted)
7ffff7dd0000-7ffff7dd3000 rw-p 00000000 00:00 0
";

    const GDB: &str = "\
          Start Addr           End Addr       Size     Offset  Perms  objfile
      0x555555554000     0x555555555000     0x1000        0x0  r--p   /opt/my app
      0x555555555000     0x555555556000     0x1000     0x1000  r-xp   /opt/my app
      0x7ffff7dd0000     0x7ffff7dd3000     0x3000        0x0  rw-p
";

    #[test]
    fn mappings_are_read_after_any_prefix_of_a_log() {
        for text in [KERNEL, GDB] {
            for prefix in [
                "",
                "  ",
                "2026-11-26T19:47:01Z app[12]: ",
                "Nov 26 19:47:01 a 0x10 12: ",
            ] {
                let lines = text.lines().map(|line| format!("{prefix}{line}\n"));
                let text: String = lines.collect();
                let files = mapped(text.as_bytes());
                let files: Vec<_> = files.iter().map(|it| (it.path, it.range.clone())).collect();
                let expected = ("/opt/my app", 0x5555_5555_4000..0x5555_5555_6000);
                assert_eq!(files, [expected], "{text}");
            }
        }
    }

    #[test]
    fn each_module_without_a_path_gets_that_of_one_file() {
        let mut out = Collector::default();
        out.module("liba.so", Some(&"11".repeat(20)));
        for name in ["liba.so", "/lib/libb.so", "libc.so"] {
            out.module(name, None);
        }
        let file =
            |number: u32, path: &str| format!("{number}000-{number}800 r--p 0 0:0 1 {path}\n");
        let paths = ["/1/liba.so", "/2/liba.so", "/3/liba.so", "/4/libb.so"];
        let lines: String = (1..).zip(paths).map(|(at, path)| file(at, path)).collect();
        read_named(lines.as_bytes(), &mut out);
        let modules = out.finish(ReportFormat::HsErr).unwrap().modules;
        let found = modules.iter().map(|it| (it.name.as_str(), it.base));
        let expected = [
            ("/1/liba.so", Some(0x1000)),
            ("/2/liba.so", Some(0x2000)),
            ("/lib/libb.so", None),
            ("libc.so", None),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn four_numbers_are_no_mapping_unless_they_are_its_size() {
        assert!(mapped(b"0x10 0x20 0x30 0x0 /srv/app\n").is_empty());
    }
}
