//! Tombstones of Android as text, and the crashes in logcat (libunwindstack,
//! `Unwinder::FormatFrame`).
//!
//! The addresses are relative to the module, and were adjusted to the calls. Functions of Java are
//! named by the unwinder; they are in memory that is no file, or in bytecode.

use super::collector::Collector;
use super::cursor::{DELETED, LineCursor, TextLine, id_at, lines, numbered};
use super::model::{Place, ReportFrame, is_file};
use crate::api::crash::apple::last_parentheses;

/// What precedes the place of a library in an APK, after the path of the APK.
const OFFSET: &str = " (offset ";

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    for line in lines(bytes) {
        if let Some(thread) = thread_id(line.text) {
            out.start_stack(Some(thread));
            continue;
        }
        let Some((number, found)) = numbered(line, |cursor| frame(line, cursor)) else {
            continue;
        };
        out.number(number, false);
        let Some(module) = out.module(found.path, found.id) else {
            continue;
        };
        let may_be_found = found.id.is_some() || is_file(found.path);
        let frame = ReportFrame {
            number: Some(number),
            offset: Some(found.offset),
            module: Some(module),
            function: found.function.map(str::to_owned),
            is_settled: !may_be_found,
            place: Some(Place::in_text(found.name, line.range())),
            ..ReportFrame::default()
        };
        out.frame(line, frame);
    }
}

/// Returns the id of the thread in the header of its stack trace, `pid: 4711, tid: 4712, name: …`.
fn thread_id(text: &str) -> Option<u64> {
    let (before, rest) = text.split_once(", tid: ")?;
    before.contains("pid: ").then_some(())?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

struct AndroidLine<'a> {
    offset: u64,
    path: &'a str,
    function: Option<&'a str>,
    name: std::ops::Range<usize>,
    id: Option<&'a str>,
}

fn frame<'a>(line: TextLine<'a>, mut cursor: LineCursor<'a>) -> Option<AndroidLine<'a>> {
    if !cursor.eat("pc ") {
        return None;
    }
    cursor.eat("0x");
    let offset = cursor.digits()?;
    cursor.spaces().then_some(())?;
    let start = cursor.at();
    let rest = cursor.rest;
    let id_start = rest.rfind(" (BuildId: ");
    let id = id_start.and_then(|at| id_at(&rest[at + " (BuildId: ".len()..]));
    let before_id = rest[..id_start.unwrap_or(rest.len())].trim_end();
    // `ndk-stack` adds the line: `: Routine f at a.c:3`.
    let before_id = before_id
        .find("): ")
        .map_or(before_id, |at| &before_id[..=at]);
    let before_id = without_end(before_id);
    // From the end: the path may contain parentheses, as may the name of the function.
    let symbol = match last_parentheses(before_id) {
        Some(at) => (!is_about_file(&before_id[at..])).then_some(at),
        None => begin_of_rest(before_id),
    };
    let after = symbol.unwrap_or(before_id.len());
    let path = without_notes(&before_id[..after]);
    let symbol = before_id[after..].trim_start();
    let inner = symbol.strip_prefix('(');
    let inner = inner.map(|it| it.strip_suffix(')').unwrap_or(it));
    let function = inner.map(|it| it.rsplit_once('+').map_or(it, |(name, _)| name));
    let name = start + after..start + before_id.len();
    debug_assert!(name.end <= line.range().end);
    (!path.is_empty()).then_some(AndroidLine {
        offset,
        path,
        function,
        name,
        id,
    })
}

/// Returns a line without what is behind its last parenthesis: it may be part of JSON, or quoted.
fn without_end(text: &str) -> &str {
    match text.rfind(')') {
        Some(end) if !text[end..].contains('/') => &text[..=end],
        _ => text,
    }
}

/// Returns where a function begins whose name was cut, so that its parentheses do not match.
fn begin_of_rest(text: &str) -> Option<usize> {
    let begin = text.find(" (")?;
    (!text[begin..].contains('/')).then_some(begin)
}

/// Returns whether a text in parentheses behind a path says something about the file.
fn is_about_file(text: &str) -> bool {
    text == DELETED || text.starts_with(OFFSET)
}

/// Returns a path without what is said about the file behind it.
fn without_notes(mut path: &str) -> &str {
    while let Some(at) = last_parentheses(path)
        && is_about_file(&path[at..])
    {
        path = &path[..at];
    }
    path
}

#[cfg(test)]
mod tests {
    use crate::api::report::CrashReport;
    use crate::api::report::tests::read;

    #[test]
    fn functions_of_java_and_of_removed_files_have_their_names() {
        let report = read(
            "#00 pc 12a0  /data/app/libo2.so (deleted) (mid+12) (BuildId: 19e003debe68a6d9)\n\
             #01 pc 12a1  /data/app/base.apk (deleted) (offset 0x1000) (go+4)\n\
             #02 pc 12345  /memfd:jit-cache (deleted) (com.x.Foo.bar+100)\n\
             #03 pc 5b19c8  /data/app/base.apk!classes.dex (offset 0x1000)\n\
             #04 pc 1bbbb  <anonymous:7f1234000>\n\
             #05 pc 1bbbb  [anon:dalvik-jit-code-cache]\n\
             #06 pc 1bbbc  <unknown>\n",
        );
        let frames = report.stacks[0].frames.iter();
        let found: Vec<_> = frames
            .map(|it| {
                let module = report.modules[it.module.unwrap()].name.as_str();
                (module, it.function.as_deref(), it.is_settled)
            })
            .collect();
        let expected = [
            ("/data/app/libo2.so", Some("mid"), false),
            ("/data/app/base.apk", Some("go"), false),
            ("/memfd:jit-cache", Some("com.x.Foo.bar"), true),
            ("/data/app/base.apk!classes.dex", None, true),
            ("<anonymous:7f1234000>", None, true),
            ("[anon:dalvik-jit-code-cache]", None, true),
            ("<unknown>", None, true),
        ];
        assert_eq!(found, expected);
        // What is no file has no id.
        let lacks = report.lacks();
        assert_eq!(lacks.len(), 1);
        assert!(
            lacks[0].to_string().contains("--module base.apk="),
            "{}",
            lacks[0]
        );
    }

    /// Returns the module and the function of each frame.
    fn modules_and_functions(report: &CrashReport) -> Vec<(&str, Option<&str>)> {
        let frames = report.stacks[0].frames.iter();
        let found = frames.map(|it| {
            let module = report.modules[it.module.unwrap()].name.as_str();
            (module, it.function.as_deref())
        });
        found.collect()
    }

    #[test]
    fn paths_and_names_may_contain_parentheses() {
        let report = read(
            "#00 pc 1000  /data/My App (x86)/lib (1).so (ns::f(int)+12) (BuildId: 19e003debe68a6d9)\n\
             #01 pc 1001  /data/My App (x86)/lib.so (deleted) (offset 0x1000) ((anonymous namespace)::g(void (*)(int))+4)\n\
             #02 pc 1002  /data/My App (x86)/lib.so (offset 0x2000)\n\
             #03 pc 1003  /data/My App (x86)/lib.so\n\
             #04 pc 1004  /data/My App (x86)/lib.so (start)\n\
             #05 pc 1005  /data/My App (x86)/lib.so (run+10): Routine run at /src/a.c:3\n",
        );
        let library = "/data/My App (x86)/lib.so";
        let expected = [
            ("/data/My App (x86)/lib (1).so", Some("ns::f(int)")),
            (library, Some("(anonymous namespace)::g(void (*)(int))")),
            (library, None),
            (library, None),
            (library, Some("start")),
            (library, Some("run")),
        ];
        assert_eq!(modules_and_functions(&report), expected);
    }

    #[test]
    fn each_thread_has_its_id_also_in_a_log() {
        let text = "pid: 6521, tid: 6540, name: RenderThread  >>> com.x <<<\n\
                    backtrace:\n      #00 pc 1000  /a/lib.so\n      #01 pc 1010  /a/lib.so\n\
                    --- --- ---\n\
                    pid: 6521, tid: 6521, name: com.x  >>> com.x <<<\n\
                    backtrace:\n      #00 pc 1020  /a/lib.so\n";
        for prefix in ["", "11-23 12:00:00.000  6600  6600 F DEBUG   : "] {
            let lines = text.lines().map(|line| format!("{prefix}{line}\n"));
            let report = read(&lines.collect::<String>());
            let stacks = report.stacks.iter();
            let found: Vec<_> = stacks.map(|it| (it.thread_id, it.frames.len())).collect();
            assert_eq!(found, [(Some(6540), 2), (Some(6521), 1)], "{prefix}");
        }
    }

    #[test]
    fn a_line_that_is_quoted_or_cut_has_its_module() {
        let report = read(
            " \"#00 pc 1000  /data/app/lib.so (work+12)\",\n\
             #01 pc 1001  /data/app/lib.so (work+12) extra\n\
             #02 pc 1002  /data/app/lib.so (work(int+12)\n\
             #03 pc 1003  /data/app/lib.so (work(in\n",
        );
        let library = "/data/app/lib.so";
        let functions = ["work", "work", "work(int", "work(in"];
        let expected = functions.map(|function| (library, Some(function)));
        assert_eq!(modules_and_functions(&report), expected);
    }
}
