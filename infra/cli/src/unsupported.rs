//! Formats of crashes that are not read, each recognised by one mark, and what to do instead.

use std::borrow::Cow;

/// A format that is not read.
#[derive(Debug)]
pub(crate) struct UnsupportedFormat {
    /// Its name, with an article.
    pub(crate) name: &'static str,
    /// What to do instead.
    pub(crate) instead: &'static str,
    /// Whether a line is one that only this format has.
    is_mark: fn(&str) -> bool,
}

/// What to do with addresses whose modules are in another list.
const REQUEST: &str = "send its addresses, and the ids and load addresses of its modules, as the JSON of POST /symbolicate (docs/api.md)";

/// The formats, the most certain marks first.
static FORMATS: [UnsupportedFormat; 18] = [
    UnsupportedFormat {
        name: "a crash of Dart (Flutter)",
        instead: "use `flutter symbolize -i FILE -d app.symbols`",
        is_mark: |line| line.contains("_kDartIsolateSnapshotInstructions"),
    },
    UnsupportedFormat {
        name: "a MetricKit diagnostic",
        instead: REQUEST,
        is_mark: |line| line.contains("\"callStackTree\""),
    },
    UnsupportedFormat {
        name: "a profile of the Firefox Profiler",
        instead: REQUEST,
        is_mark: |line| line.contains("\"stackTable\"") || line.contains("\"frameTable\""),
    },
    UnsupportedFormat {
        name: "a report of Node.js",
        instead: "symbolicate what `gdb -batch -ex bt -ex 'info proc mappings' node core` prints about a core dump",
        is_mark: |line| {
            line.contains("\"nativeStack\"") || line.contains("----- Native stack trace -----")
        },
    },
    UnsupportedFormat {
        name: "an event of Sentry",
        instead: "symbolicate the minidump or the crash report that it was made of, or send the frames, and the modules in `debug_meta`, as the JSON of POST /symbolicate (docs/api.md)",
        is_mark: |line| line.contains("\"event_id\"") || line.contains("\"debug_meta\""),
    },
    UnsupportedFormat {
        name: "the output of lldb",
        instead: "send the addresses of `bt`, and the UUIDs and load addresses of `image list`, as the JSON of POST /symbolicate (docs/api.md)",
        is_mark: |line| line.contains("frame #") && line.contains(": 0x"),
    },
    UnsupportedFormat {
        name: "the output of WinDbg",
        instead: "symbolicate the dump, or a minidump that `.dump /m FILE` writes",
        is_mark: |line| {
            [
                "ChildEBP RetAddr",
                "Child-SP          RetAddr",
                "STACK_TEXT:",
            ]
            .iter()
            .any(|mark| line.contains(mark))
        },
    },
    UnsupportedFormat {
        name: "a log of Unity",
        instead: "symbolicate the minidump `crash.dmp` in the folder of the crash",
        is_mark: |line| line.contains("OUTPUTTING STACK TRACE"),
    },
    UnsupportedFormat {
        name: "a log of Unreal Engine",
        instead: "symbolicate the minidump `UEMinidump.dmp` in Saved/Crashes",
        is_mark: |line| {
            let is_module = [".exe!", ".dll!"].iter().any(|mark| line.contains(mark));
            line.contains("[Callstack] 0x") || line.starts_with("0x") && is_module
        },
    },
    UnsupportedFormat {
        name: "a panic of Go",
        instead: "its functions have their files and lines already; those of C are in a core dump (GOTRACEBACK=crash)",
        is_mark: |line| {
            let (before, rest) = line.split_once("goroutine ").unwrap_or(("-", ""));
            let is_alone = before.is_empty() || before.ends_with([' ', '\t', 'm', '"']);
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            is_alone && rest.starts_with(" [") && rest.contains("]:")
        },
    },
    UnsupportedFormat {
        name: "a backtrace of an ESP32",
        instead: "use `idf.py monitor`, or `addr2line -pfiaC -e app.elf ADDRESS…` of its toolchain",
        is_mark: |line| {
            let (_, addresses) = line.split_once("Backtrace:").unwrap_or_default();
            let first = addresses.split_whitespace().next().unwrap_or_default();
            first.starts_with("0x") && first.contains(":0x")
        },
    },
    UnsupportedFormat {
        name: "the output of Valgrind",
        instead: "Valgrind reads debug files on the machine where it runs: put them there, or next to each other in a folder for --extra-debuginfo-path",
        is_mark: |line| line.contains("==    at 0x") || line.contains("==    by 0x"),
    },
    UnsupportedFormat {
        name: "an oops of the Linux kernel",
        instead: "use scripts/decode_stacktrace.sh of the kernel's sources with its vmlinux",
        is_mark: |line| {
            line.to_ascii_lowercase()
                .trim_end()
                .ends_with("call trace:")
                || line.contains("Kernel panic - not syncing")
        },
    },
    UnsupportedFormat {
        name: "the output of `perf script`",
        instead: "perf reads debug files on the machine where it runs: put them there, and use `perf script` again",
        is_mark: is_of_perf,
    },
    UnsupportedFormat {
        name: "a stack trace of WebAssembly",
        instead: "send its offsets (`wasm-function[…]:0x…`) relative to the module (`\"addr_mode\": \"rel:0\"`) as the JSON of POST /symbolicate (docs/api.md)",
        is_mark: |line| line.contains("wasm-function[") && line.contains("]:0x"),
    },
    UnsupportedFormat {
        name: "a stack trace of JavaScript",
        instead: "JavaScript has source maps, which symdepot does not read",
        is_mark: |line| {
            let is_script = [".js:", ".mjs:", ".ts:"]
                .iter()
                .any(|mark| line.contains(mark));
            line.trim_start().starts_with("at ") && is_script
        },
    },
    UnsupportedFormat {
        name: "a stack trace of Java or Kotlin",
        instead: "Java has no debug files; use `retrace` if it was obfuscated",
        is_mark: |line| {
            let is_source = [".java:", ".kt:"].iter().any(|mark| line.contains(mark));
            line.trim_start().starts_with("at ") && is_source
        },
    },
    UnsupportedFormat {
        name: "a stack trace of Python",
        instead: "its functions have their files and lines already",
        is_mark: |line| {
            line.trim_end()
                .ends_with("Traceback (most recent call last):")
        },
    },
];

/// A tombstone of Android in protobuf, which no line of text tells.
static TOMBSTONE: UnsupportedFormat = UnsupportedFormat {
    name: "an Android tombstone in protobuf",
    instead: "symbolicate its text: the file without `.pb` in /data/tombstones, or what `pbtombstone FILE` of Android prints",
    is_mark: |_| false,
};

/// The number of bytes in which a tombstone names the build of the system.
const FINGERPRINT_BYTES: usize = 512;

/// Returns the format of a text that is no report that is read, if it is known.
pub(crate) fn format_of(bytes: &[u8]) -> Option<&'static UnsupportedFormat> {
    if is_tombstone(bytes) {
        return Some(&TOMBSTONE);
    }
    let text: Cow<'_, str> = String::from_utf8_lossy(bytes);
    FORMATS
        .iter()
        .find(|format| text.lines().any(format.is_mark))
}

/// Returns whether a file is a tombstone in protobuf (`tombstone.proto` of Android): the machine,
/// unless it is the first one, and the fingerprint of the build.
fn is_tombstone(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(FINGERPRINT_BYTES)];
    let rest = match head {
        [0x08, _, rest @ ..] => rest,
        rest => rest,
    };
    let [0x12, length, fingerprint @ ..] = rest else {
        return false;
    };
    let fingerprint = fingerprint.get(..usize::from(*length)).unwrap_or_default();
    let fingerprint = String::from_utf8_lossy(fingerprint);
    let builds = [":user/", ":userdebug/", ":eng/"];
    builds.iter().any(|build| fingerprint.contains(build))
}

/// Returns whether a line is a frame of `perf script`: an address without prefix, a function, and
/// the module in parentheses. The address begins the line, or follows the event of a sample without
/// callers.
fn is_of_perf(line: &str) -> bool {
    let Some((frame, module)) = line.trim_end().rsplit_once(" (") else {
        return false;
    };
    let is_module = module.starts_with(['/', '[']) && module.ends_with(')');
    let is_address =
        |word: &str| word.len() >= 6 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words: Vec<&str> = frame.split_whitespace().collect();
    let begins =
        line.starts_with([' ', '\t']) && words.first().is_some_and(|word| is_address(word));
    let mut pairs = words.windows(2);
    let follows = pairs.any(|pair| pair[0].ends_with(':') && is_address(pair[1]));
    is_module && (begins || follows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_its_mark() {
        for (text, name) in [
            (
                "\x08\x01\x12\x2agoogle/oriole/oriole:14/UQ1A/123:user/release-keys",
                "tombstone",
            ),
            ("\x12\x0fa/b/c:1/2/3:eng", "?"),
            (
                "x\n#00 abs 00 virt 00 _kDartIsolateSnapshotInstructions+0x1",
                "Flutter",
            ),
            ("{\"callStackTree\": {}}", "MetricKit"),
            ("{\"threads\": [{\"frameTable\": {}}]}", "Firefox"),
            (
                "----- Native stack trace -----\n 1: 0xb8 node::Abort()",
                "Node.js",
            ),
            ("{\"event_id\": \"1\"}", "Sentry"),
            ("  * frame #0: 0x000055555555521b app`mid + 1", "lldb"),
            (" # ChildEBP RetAddr  Args to Child", "WinDbg"),
            ("STACK_TEXT:  \n", "WinDbg"),
            ("===== OUTPUTTING STACK TRACE =====", "Unity"),
            (
                "0x00007ff6e1a81510 Game-Win64-Shipping.exe!UnknownFunction []",
                "Unreal",
            ),
            ("panic: x\n\ngoroutine 1 [running]:\nmain.main()", "Go"),
            ("app-1  | goroutine 7 [chan receive, 2 minutes]:\n", "Go"),
            ("{\"log\":\"goroutine 1 [running]:\\n\"}", "Go"),
            (
                "Backtrace: 0x400d1234:0x3ffb1f80 0x400d5678:0x3ffb1fa0",
                "ESP32",
            ),
            ("==123==    at 0x1091A3: mid (in /tmp/a)", "Valgrind"),
            ("[  123.4] Call Trace:\n[  123.5]  f+0x1/0x2", "kernel"),
            (
                "a 1 1.2:  1 cycles:\n\t55555555521b [unknown] (/tmp/a)",
                "perf",
            ),
            (
                "app 12 34.5: 25 cycles:u:   55d0c8d3f1b9 inner+0x9 (/tmp/app)",
                "perf",
            ),
            (
                "\t    55d0c8d3f200 ns::outer(int, char)+0x10 (/tmp/app)",
                "perf",
            ),
            (
                "\tffffffff81a00190 ret_from_fork ([kernel.kallsyms])",
                "perf",
            ),
            ("    at wasm-function[12]:0x1a2b", "WebAssembly"),
            ("    at f (/srv/a.js:1:2)", "JavaScript"),
            ("\tat a.B.c(B.java:3)", "Java"),
            ("Traceback (most recent call last):\n", "Python"),
            ("", "?"),
            ("hello", "?"),
            ("a goroutine [sic]: it ends", "?"),
            ("Backtrace:\n=>0 0x1", "?"),
        ] {
            let found = format_of(text.as_bytes()).map_or("?", |format| format.name);
            assert!(found.contains(name), "{text}: {found}");
        }
    }
}
