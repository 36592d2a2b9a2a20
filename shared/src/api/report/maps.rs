//! What is mapped where, if a report says it: the lines of `/proc/<pid>/maps`, which also are in
//! the error log of the JVM, those of `info proc mappings` of gdb, and those of sanitizers
//! (`print_module_map=1`). Each may follow a prefix of a log.
//!
//! Maps have the paths of files. A frame may have the name of a symbolic link to the file instead:
//! `libstdc++.so.6` is `libstdc++.so.6.0.30`, and before glibc 2.34, `libc.so.6` is `libc-2.23.so`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::collector::Collector;
use super::cursor::{DELETED, LineCursor, TextLine, lines};
use super::model::file_name;

/// The maximum number of files that frames are searched in. The largest processes have about three
/// thousand.
const FILES: usize = 4_096;

/// The maximum number of words in a line that are tried as the beginning of a mapping.
const MAX_TRIES: usize = 16;

/// The maximum number of names of symbolic links to a file.
const LINKS: usize = 4;

/// What precedes the version in the name of a library.
const VERSION: &str = ".so.";

/// The size of the largest pages that linkers align segments for, in bytes.
const LARGEST_PAGE: u64 = 64 << 10;

/// How the permissions of a mapping end that other processes see: a loader makes none.
const SHARED: char = 's';

/// A file that is mapped.
#[derive(Clone)]
pub(super) struct Mapped<'a> {
    pub(super) path: &'a str,
    pub(super) range: Range<u64>,
    /// The permissions of its first mapping.
    permissions: &'a str,
    /// Whether none of its mappings is larger than a page.
    is_small: bool,
    /// Where the line of its first mapping begins in the text, in bytes.
    at: usize,
}

impl Mapped<'_> {
    /// Returns whether a mapping, which comes after all of this file, belongs to it, and not to the
    /// file loaded once more.
    ///
    /// A small file has all segments in its first page, so each of them is mapped from offset zero.
    /// The first one of another load has the permissions of the first one, and so may have data
    /// that the loader made read-only: that has no code.
    fn continues_in(&self, mapping: &Mapping<'_>) -> bool {
        let gap = mapping.range.start.checked_sub(self.range.end);
        // Linkers may leave out a part of a page between segments.
        let is_near = gap.is_some_and(|gap| gap < LARGEST_PAGE);
        let is_segment = self.is_small
            && match mapping.permissions {
                "" => is_near,
                permissions => {
                    let is_private = ![permissions, self.permissions]
                        .iter()
                        .any(|permissions| permissions.ends_with(SHARED));
                    is_private && permissions != self.permissions
                }
            };
        self.path == mapping.path
            && gap.is_some()
            && match mapping.offset {
                Some(0) => is_segment,
                Some(_) => true,
                None => is_near,
            }
    }
}

struct Mapping<'a> {
    range: Range<u64>,
    /// The offset in the file. `None` if the report does not say it.
    offset: Option<u64>,
    /// As in `r-xp`. Empty if the report does not say them.
    permissions: &'a str,
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
        let last = files.last_mut();
        let is_small = mapping.range.end - mapping.range.start <= LARGEST_PAGE;
        match last.filter(|last| last.continues_in(&mapping)) {
            Some(last) => {
                last.range.end = mapping.range.end;
                last.is_small &= is_small;
            }
            None if mapping.offset.is_none_or(|offset| offset == 0) => files.push(Mapped {
                path: mapping.path,
                range: mapping.range,
                permissions: mapping.permissions,
                is_small,
                at: line.start,
            }),
            None => {}
        }
    }
    files
}

/// Adds the files that frames without a module lie in: a module for each place where a file is
/// loaded, because a text may have several processes, and a process may load a file twice.
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
    let mut modules = LoadedModules::of(out);
    let mut loads = Vec::new();
    for file in used.take(FILES) {
        if let Some(module) = modules.module_of(&file, out) {
            out.set_base(module, file.range.start);
            out.extend_to(module, file.range.end);
            loads.push(FileLoad {
                range: file.range,
                at: file.at,
                module,
            });
        }
    }
    choose_process(&loads, out);
}

/// A place where a file is loaded.
struct FileLoad {
    range: Range<u64>,
    /// Where the line that says so begins in the text, in bytes.
    at: usize,
    module: usize,
}

/// Chooses the modules of the frames that lie in several loads, which are of different processes:
/// the mappings of a process are on the same side of its frames as they are in the first report.
fn choose_process(loads: &[FileLoad], out: &mut Collector) {
    let first_frame = out.lines().iter().map(|line| line.start).min();
    let first_load = loads.iter().map(|load| load.at).min();
    let is_after_frames = first_load > first_frame;
    out.choose_modules(|address, line| {
        let covering = loads
            .iter()
            .filter(move |load| load.range.contains(&address));
        let distance =
            |load: &&FileLoad| ((load.at > line) != is_after_frames, load.at.abs_diff(line));
        let chosen = covering.clone().min_by_key(distance)?.module;
        let is_shared = covering.clone().any(|load| load.module != chosen);
        is_shared.then_some(chosen)
    });
}

/// The modules that loads of files are, by the paths of the files.
struct LoadedModules {
    by_path: HashMap<String, Vec<usize>>,
    /// An address in each of the modules that the report names without saying where they begin.
    addresses: HashMap<usize, u64>,
    /// Those that are a load already.
    taken: HashSet<usize>,
}

impl LoadedModules {
    fn of(out: &Collector) -> Self {
        Self {
            by_path: out.by_name(),
            addresses: out.without_base().into_iter().collect(),
            taken: HashSet::new(),
        }
    }

    /// Returns the module that a load of a file is: the one that begins there, or one that the
    /// report names and that lies in it, or else another one.
    fn module_of(&mut self, file: &Mapped<'_>, out: &mut Collector) -> Option<usize> {
        let same = self.by_path.entry(file.path.to_owned()).or_default();
        let begins_there = |module: &&usize| out.base(**module) == Some(file.range.start);
        let lies_in_it = |module: &&usize| {
            let base = out.base(**module);
            let address = base.or_else(|| self.addresses.get(*module).copied());
            !self.taken.contains(*module)
                && address.is_some_and(|address| file.range.contains(&address))
        };
        let known = same.iter().rfind(begins_there);
        let known = known.or_else(|| same.iter().rfind(lies_in_it)).copied();
        let module = match known {
            Some(known) => known,
            None => {
                let added = out.another_load(file.path, same)?;
                same.push(added);
                added
            }
        };
        self.taken.insert(module);
        Some(module)
    }
}

/// Completes the modules of which the report does not say everything by the files with their names,
/// or to which these are symbolic links:
///
/// - A module without a path gets that of the file, if there is only one.
/// - A module of which frames have an address, but no offset, gets the load address of the file in
///   which the address lies.
/// - A module of which frames have offsets that may be addresses gets that of the file, if there is
///   only one.
pub(super) fn complete(bytes: &[u8], out: &mut Collector) {
    let (unlocated, addresses) = (out.unlocated(), out.without_base());
    if unlocated.is_empty() && addresses.is_empty() {
        return;
    }
    let files = FilesByName::of(mapped(bytes));
    for (module, name) in unlocated {
        let found = files.named(&name);
        let starts = found.iter().map(|file| file.range.start);
        if let (Some(file), Some(base)) = (only(found), starts.min()) {
            out.locate(module, file.path, Some(base));
        }
    }
    for (module, address) in addresses {
        let found = out.name(module).map(|name| files.named(file_name(name)));
        if let Some(base) = found.and_then(|files| base_of(files, address)) {
            out.set_base(module, base);
        }
    }
}

/// Mapped files, by their names, each in the order of addresses.
struct FilesByName<'a> {
    /// By the names of the files.
    files: HashMap<&'a str, Vec<Mapped<'a>>>,
    /// By the names of symbolic links to them, and by those of libraries without any version.
    links: HashMap<&'a str, Vec<Mapped<'a>>>,
}

impl<'a> FilesByName<'a> {
    fn of(mapped: Vec<Mapped<'a>>) -> Self {
        let mut all = Self {
            files: HashMap::new(),
            links: HashMap::new(),
        };
        for file in mapped {
            let name = file_name(file.path);
            for link in links_to(name) {
                let linked = all.links.entry(link).or_default();
                linked.push(file.clone());
            }
            all.files.entry(name).or_default().push(file);
        }
        for files in all.files.values_mut().chain(all.links.values_mut()) {
            files.sort_unstable_by_key(|file| file.range.start);
        }
        all
    }

    /// Returns the files with this name, or else those to which it may be a symbolic link.
    fn named(&self, name: &str) -> &[Mapped<'a>] {
        let linked = || {
            let versioned = self.links.get(name).filter(|_| name.contains(".so"));
            versioned.or_else(|| self.links.get(without_version(name)?))
        };
        let found = self.files.get(name).or_else(linked);
        found.map(Vec::as_slice).unwrap_or_default()
    }
}

/// Returns the names of symbolic links to a library that its file name, with a version, tells: of
/// `libz.so.1.2.13`, `libz.so`, `libz.so.1` and `libz.so.1.2`; of `libc-2.23.so`, `libc`, without
/// the `.so.6` that is added to it.
fn links_to(file: &str) -> impl Iterator<Item = &str> {
    let end = file
        .find(VERSION)
        .filter(|end| is_version(&file[end + VERSION.len()..]));
    let ends = file.match_indices('.').map(|(at, _)| at);
    let ends = ends.filter(move |at| end.is_some_and(|end| *at > end));
    let with_version = ends.map(move |at| &file[..at]).take(LINKS);
    let without = file.strip_suffix(".so").and_then(|it| it.rsplit_once('-'));
    let without = without.filter(|(_, version)| is_version(version));
    with_version.chain(without.map(|(name, _)| name))
}

/// Returns the name of a library of glibc without its version, as in `libc.so.6`. That of the
/// loader, as in `ld-linux-x86-64.so.2`, has the platform, too.
fn without_version(name: &str) -> Option<&str> {
    let (name, version) = name.split_once(VERSION)?;
    let is_loader = name.starts_with("ld-linux") || name == "ld64";
    is_version(version).then_some(if is_loader { "ld" } else { name })
}

fn is_version(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(is_part)
}

/// Returns the file of which all of these are mappings.
fn only<'f, 'a>(files: &'f [Mapped<'a>]) -> Option<&'f Mapped<'a>> {
    let first = files.first()?;
    files
        .iter()
        .all(|file| file.path == first.path)
        .then_some(first)
}

/// Returns the beginning of the file that an address lies in, of files in order.
fn base_of(files: &[Mapped<'_>], address: u64) -> Option<u64> {
    let after = files.partition_point(|file| file.range.start <= address);
    let range = &files.get(after.checked_sub(1)?)?.range;
    range.contains(&address).then_some(range.start)
}

/// Sets the paths and load addresses of the modules that are known by their file names.
pub(super) fn read_named(bytes: &[u8], out: &mut Collector) {
    let mut modules = out.by_name();
    for file in mapped(bytes) {
        let named = modules.get_mut(file_name(file.path));
        if let Some(module) = named.and_then(Vec::pop) {
            out.set_path(module, file.path);
            out.set_base(module, file.range.start);
            out.extend_to(module, file.range.end);
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
        let others = || of_gdb(here).or_else(|| of_sanitizer(here));
        may_be.then(|| of_kernel(here).or_else(others)).flatten()
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
    mapping(start..end, Some(offset), permissions, cursor.rest)
}

/// Reads `start end size offset permissions path`, where the permissions may be absent.
fn of_gdb(mut cursor: LineCursor<'_>) -> Option<Mapping<'_>> {
    let mut number = || {
        cursor.spaces();
        cursor.hex()
    };
    let (start, end, size, offset) = (number()?, number()?, number()?, number()?);
    (end.checked_sub(start) == Some(size)).then_some(())?;
    let (permissions, path) = cursor.rest.split_at(cursor.rest.find('/')?);
    mapping(start..end, Some(offset), permissions.trim(), path)
}

/// Reads `start-end path`.
fn of_sanitizer(mut cursor: LineCursor<'_>) -> Option<Mapping<'_>> {
    let start = cursor.hex()?;
    cursor.eat("-").then_some(())?;
    let end = cursor.hex()?;
    cursor.spaces().then_some(())?;
    mapping(start..end, None, "", cursor.rest)
}

fn mapping<'a>(
    range: Range<u64>,
    offset: Option<u64>,
    permissions: &'a str,
    path: &'a str,
) -> Option<Mapping<'a>> {
    let path = path.trim();
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    (path.starts_with('/') && !range.is_empty()).then_some(Mapping {
        range,
        offset,
        permissions,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::{links_to, mapped, read_named};
    use crate::api::report::collector::Collector;
    use crate::api::report::tests::read;
    use crate::api::report::{CrashReport, GivenModule, ReportFormat};
    use crate::domain::CodeId;

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

    fn names(report: &CrashReport) -> Vec<&str> {
        report.modules.iter().map(|it| it.name.as_str()).collect()
    }

    #[test]
    fn a_module_without_a_path_gets_that_of_the_only_file_with_its_name() {
        let frames = "\
#0 f <null> (app+0x401010)
#1 f <null> (libstdc++.so.6+0x10)
#2 f <null> (libb.so+0x10)
#3 f <null> (libc.so.6+0x10)
#4 f <null> (ld-linux-x86-64.so.2+0x10)
#5 f <null> (libm.so.6+0x10)
";
        let maps = "\
00400000-00500000 r-xp 00000000 fe:00 1 /srv/app
10000000-10100000 r-xp 00000000 fe:00 1 /usr/lib/libstdc++.so.6.0.30
11000000-11100000 r-xp 00000000 fe:00 1 /1/libb.so
12000000-12100000 r-xp 00000000 fe:00 1 /2/libb.so
13000000-13100000 r-xp 00000000 fe:00 1 /lib/libc-2.23.so
14000000-14100000 r-xp 00000000 fe:00 1 /lib/ld-2.23.so
15000000-15100000 r-xp 00000000 fe:00 1 /1/libm-2.23.so
16000000-16100000 r-xp 00000000 fe:00 1 /2/libm-2.31.so
";
        let mut report = read(&format!("{frames}{maps}"));
        let expected = [
            "/srv/app",
            "/usr/lib/libstdc++.so.6.0.30",
            "libb.so",
            "/lib/libc-2.23.so",
            "/lib/ld-2.23.so",
            "libm.so.6",
        ];
        assert_eq!(names(&report), expected);
        // The program is not position independent, as its load address tells.
        let located: Vec<_> = report.stacks[0]
            .frames
            .iter()
            .map(|it| report.located(it))
            .collect();
        assert_eq!(located[..2], [Some((0, 0x1010)), Some((1, 0x10))]);
        // Each is known by both of its names.
        for name in ["libc.so.6", "libstdc++.so.6.0.30", "app"] {
            let given = GivenModule {
                name: name.to_owned(),
                code_id: Some(CodeId::new("11".repeat(20))),
                ..GivenModule::default()
            };
            assert!(report.complete(&given), "{name}");
        }
    }

    #[test]
    fn a_relative_path_is_that_of_the_only_file_with_its_name() {
        let maps = "1000-2000 r-xp 00000000 fe:00 1 /home/u/app\n";
        for name in ["./app", "app", "../bin/app"] {
            let mut report = read(&format!("{name}(+0x10)[0x1010]\n{maps}"));
            assert_eq!(names(&report), ["/home/u/app"]);
            let given = GivenModule {
                name: name.to_owned(),
                code_id: Some(CodeId::new("11".repeat(20))),
                ..GivenModule::default()
            };
            assert!(report.complete(&given), "{name}");
        }
        let report = read(&format!("/srv/app(+0x10)[0x1010]\n{maps}"));
        assert_eq!(names(&report), ["/srv/app"]);
    }

    #[test]
    fn a_library_of_an_old_glibc_has_the_load_address_of_the_file_to_which_its_name_is_a_link() {
        let frame = "/lib/x86_64-linux-gnu/libc.so.6(abort+0x16a)[0x7f10000051ea]\n";
        let maps =
            "7f1000000000-7f1000100000 r-xp 00000000 fe:00 1 /lib/x86_64-linux-gnu/libc-2.23.so\n";
        let report = read(&format!("{frame}{maps}"));
        assert_eq!(names(&report), ["/lib/x86_64-linux-gnu/libc.so.6"]);
        assert_eq!(report.modules[0].base, Some(0x7f10_0000_0000));
        let others = maps.replace("libc-", "libm-");
        assert_eq!(read(&format!("{frame}{others}")).modules[0].base, None);
    }

    #[test]
    fn the_name_of_a_library_tells_those_of_its_links() {
        let links = |file| links_to(file).collect::<Vec<_>>();
        let expected = ["libz.so", "libz.so.1", "libz.so.1.2"];
        assert_eq!(links("libz.so.1.2.13"), expected);
        assert_eq!(links("libc-2.23.so"), ["libc"]);
        assert_eq!(links("lib-a-1.0.so.2"), ["lib-a-1.0.so"]);
        for file in ["libc.so", "libc.so.6-old", "lib-a.so", "a.b", ""] {
            assert_eq!(links(file), Vec::<&str>::new(), "{file}");
        }
    }

    #[test]
    fn mappings_that_a_sanitizer_prints_have_no_offsets() {
        let text = "\
==1==Process memory map follows:
\t0x000000400000-0x000000401000\t/srv/app
\t0x000000401000-0x000000402000\t/srv/app
\t0x000000500000-0x000000600000\t
==1==End of process memory map.
    #0 0x401010  (/srv/app+0x401010)
";
        let report = read(text);
        assert_eq!(report.modules[0].base, Some(0x40_0000));
        let frame = &report.stacks[0].frames[0];
        assert_eq!(report.located(frame), Some((0, 0x1010)));
    }

    #[test]
    fn the_segments_of_a_small_file_are_all_mapped_from_its_beginning() {
        let check = |text: &str, expected: &[(u64, u64)]| {
            let files = mapped(text.as_bytes());
            let ranges = files
                .into_iter()
                .map(|file| (file.range.start, file.range.end));
            let ranges: Vec<_> = ranges.collect();
            assert_eq!(ranges, expected, "{text}");
        };
        let small = "\
1000-2000 r--p 0 0:0 1 /srv/app
2000-3000 r-xp 0 0:0 1 /srv/app
5000-6000 rw-p 0 0:0 1 /srv/app
";
        let again = small.replace("000-", "0000-").replace("000 r", "0000 r");
        check(small, &[(0x1000, 0x6000)]);
        check(
            &format!("{small}{again}"),
            &[(0x1000, 0x6000), (0x10000, 0x60000)],
        );
        let gdb = "\
0x1000 0x2000 0x1000 0x0 r--p /srv/app
0x2000 0x3000 0x1000 0x0 r-xp /srv/app
";
        check(gdb, &[(0x1000, 0x3000)]);
        let old_gdb = gdb.replace("r--p ", "").replace("r-xp ", "");
        check(&old_gdb, &[(0x1000, 0x3000)]);
        // The program reads its own file.
        let shared = "1000-2000 r--s 0 0:0 1 /srv/app\n";
        let read = "0000000-0100000 rw-p 0 0:0 1 /srv/app\n";
        let loaded = "1000000-1001000 r--p 0 0:0 1 /srv/app\n";
        check(
            &format!("{shared}{loaded}"),
            &[(0x1000, 0x2000), (0x100_0000, 0x100_1000)],
        );
        check(
            &format!("{read}{loaded}"),
            &[(0, 0x10_0000), (0x100_0000, 0x100_1000)],
        );
    }

    #[test]
    fn segments_without_permissions_may_have_gaps_smaller_than_a_page_in_between() {
        let ranges = |text: &str| {
            let files = mapped(text.as_bytes()).into_iter();
            files
                .map(|file| (file.range.start, file.range.end))
                .collect::<Vec<_>>()
        };
        let gdb = "0x1000 0x2000 0x1000 0x0 /a\n0x11000 0x12000 0x1000 0x0 /a\n";
        assert_eq!(ranges(gdb), [(0x1000, 0x12000)]);
        let far = gdb.replace("0x11000 0x12000", "0x12000 0x13000");
        assert_eq!(ranges(&far), [(0x1000, 0x2000), (0x12000, 0x13000)]);
        // A sanitizer says no offsets, of large segments neither.
        let sanitizer = "0x100000-0x200000 /a\n0x20f000-0x300000 /a\n0x400000-0x500000 /a\n";
        let expected = [(0x10_0000, 0x30_0000), (0x40_0000, 0x50_0000)];
        assert_eq!(ranges(sanitizer), expected);
    }

    fn located(report: &CrashReport) -> Vec<(&str, u64)> {
        let frames = report.stacks.iter().flat_map(|stack| &stack.frames);
        let located = frames.map(|frame| report.located(frame).unwrap());
        located
            .map(|(module, offset)| (report.modules[module].name.as_str(), offset))
            .collect()
    }

    #[test]
    fn each_report_of_a_text_has_its_own_mappings() {
        let frames = |(app, lib): (u64, u64)| {
            format!(
                "#0  {:#x} in f ()\n#1  {:#x} in main ()\n",
                lib + 0x10,
                app + 0x1010
            )
        };
        let maps = |(app, lib): (u64, u64)| {
            format!(
                "{app:x}-{:x} r--p 0 0:0 1 /srv/app\n{:x}-{:x} r-xp 1000 0:0 1 /srv/app\n\
                 {lib:x}-{:x} r-xp 0 0:0 2 /lib/a.so\n",
                app + 0x1000,
                app + 0x1000,
                app + 0x2000,
                lib + 0x2000
            )
        };
        let first = (0x10_0000, 0x70_0000);
        // In the last one, each file is where the other one is in the first one.
        for second in [(0x30_0000, 0x90_0000), (0x70_0000, 0x10_0000)] {
            for [a, b] in [[first, second], [second, first]] {
                for text in [
                    [frames(a), maps(a), frames(b), maps(b)],
                    [maps(a), frames(a), maps(b), frames(b)],
                ] {
                    let text = text.concat();
                    let report = read(&text);
                    let of_each = [("/lib/a.so", 0x10), ("/srv/app", 0x1010)];
                    assert_eq!(located(&report), of_each.repeat(2), "{text}");
                    let sizes = report.modules.iter().map(|it| it.size);
                    assert_eq!(sizes.collect::<Vec<_>>(), [Some(0x2000); 4], "{text}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_a_process_loads_twice_is_a_module_for_each_load() {
        let maps = "\
10000-11000 r-xp 0 0:0 1 /lib/a.so
30000-31000 r-xp 0 0:0 2 /lib/b.so
50000-51000 r-xp 0 0:0 1 /lib/a.so
";
        for frames in [
            "#0  0x10010 in f ()\n#1  0x50020 in g ()\n",
            // The first one is named by the report.
            "/lib/a.so(+0x10)[0x10010]\n[0x50020]\n",
            "/lib/a.so(f+0x1)[0x10010]\n[0x50020]\n",
        ] {
            let report = read(&format!("{frames}[0x10030]\n{maps}"));
            let loads = report.modules.iter().map(|it| (it.base, it.size));
            let size = Some(0x1000);
            let expected = [(Some(0x1_0000), size), (Some(0x5_0000), size)];
            assert_eq!(loads.collect::<Vec<_>>(), expected, "{frames}");
            let offsets = [("/lib/a.so", 0x10), ("/lib/a.so", 0x20)];
            assert_eq!(located(&report)[..2], offsets, "{frames}");
        }
    }

    #[test]
    fn four_numbers_are_no_mapping_unless_they_are_its_size() {
        assert!(mapped(b"0x10 0x20 0x30 0x0 /srv/app\n").is_empty());
    }
}
