//! Reports of AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer and MemorySanitizer
//! (compiler-rt, `sanitizer_stacktrace_printer.cpp`).
//!
//! The addresses are those of the calls, also in frame 0. The module is printed as
//! `(path+0xoffset)`, from LLVM 14 on followed by `(BuildId: …)`. In a program that is not position
//! independent, the offset is the address itself: then the load address is unknown.
//!
//! The frames of ThreadSanitizer have no addresses, and the file names of modules instead of paths.
//! The path of one module is in the summary. That a program is not position independent is seen
//! where the report has an address as well: that of a global variable, and that of the instruction
//! that failed. Otherwise it is uncertain.
//!
//! A frame with file and line has no module, except those of ThreadSanitizer. The sanitizer found
//! its name when the program ran, and also its inlined functions, each as a frame. Such a frame
//! stays in the report as it is, and so does one in no module.

use std::collections::{HashMap, HashSet};

use super::collector::Collector;
use super::cursor::{TextLine, hex_of, lines, numbered};
use super::model::{Place, ReportFrame, file_name, is_full_path};
use super::printed::{PrintedFrame, PrintedPlace, Printer, in_module};
use crate::domain::ObjectType;

/// Where the linker of macOS places a program that is position independent; libraries begin at
/// zero. Offsets include it.
const MACOS_PROGRAM: u64 = 0x1_0000_0000;

/// Where linkers place programs and libraries of Windows, 32-bit ones and 64-bit ones (MSVC,
/// `/BASE`). Offsets include it (compiler-rt, `sanitizer_win.cpp`, `GetPreferredBase`).
const WINDOWS: [(&str, u64, u64); 2] = [
    (".exe", 0x40_0000, 0x1_4000_0000),
    (".dll", 0x1000_0000, 0x1_8000_0000),
];

/// What each report contains. Old versions print frames without a name like LLVM.
const REPORT: &str = "Sanitizer: ";

/// What each report ends with.
const SUMMARY: &str = "SUMMARY: ";

/// What precedes the description of a global variable.
const GLOBAL: &str = "Location is global ";

/// The maximum number of addresses of memory in a report that are remembered.
const MAX_ACCESSES: usize = 16;

/// What LLVM prints before its frames.
const DUMP: &str = "Stack dump";

pub(super) fn read(bytes: &[u8], out: &mut Collector) {
    for (line, number, found) in frames(bytes, Printer::Sanitizer) {
        out.number(number, false);
        if let Some(frame) = report_frame(line, number, found, out) {
            out.frame(line, frame);
        }
    }
    let programs = fixed_programs(bytes);
    out.offsets_are_addresses(&programs);
    read_paths(bytes, out);
}

/// Returns the file names of programs that are not position independent: the text has the same
/// number as an address and as an offset in one of them.
fn fixed_programs(bytes: &[u8]) -> HashSet<&str> {
    let mut programs = HashSet::new();
    // The addresses of memory in this report, and that of the instruction that failed.
    let (mut accesses, mut failed) = (Vec::new(), None);
    for line in lines(bytes) {
        if line.text.contains(REPORT) {
            accesses.clear();
            failed = after(line.text, "(pc ");
        }
        if accesses.len() < MAX_ACCESSES {
            let rest = line.text.split_once(" of size ");
            accesses.extend(rest.and_then(|(_, rest)| after(rest, " at ")));
        }
        if line.text.contains(GLOBAL)
            && let Some((_, PrintedPlace::Module { path, offset, .. })) = in_module(line.text)
            && accesses.contains(&offset)
        {
            programs.insert(path);
        }
        // The first frame is that of the instruction.
        if let Some(address) = failed
            && let Some((_, found)) = numbered(line, |cursor| PrintedFrame::parse(line, cursor))
        {
            failed = None;
            if let PrintedPlace::Module { path, offset, .. } = found.place
                && offset == address
            {
                programs.insert(path);
            }
        }
    }
    programs
}

/// Returns the number that follows a text.
fn after(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    hex_of(rest.split_whitespace().next()?)
}

/// Sets the paths of the modules that the summaries have, if each is that of one file.
fn read_paths(bytes: &[u8], out: &mut Collector) {
    let mut paths: HashMap<&str, Option<&str>> = HashMap::new();
    for line in lines(bytes).filter(|line| line.text.contains(SUMMARY)) {
        if let Some((_, PrintedPlace::Module { path, .. })) = in_module(line.text)
            && is_full_path(path)
        {
            let known = paths.entry(file_name(path)).or_insert(Some(path));
            *known = known.filter(|known| *known == path);
        }
    }
    if paths.is_empty() {
        return;
    }
    for (module, name) in out.unlocated() {
        if let Some(Some(path)) = paths.get(name.as_str()) {
            out.locate(module, path, None);
        }
    }
}

/// Returns the frames in a text that this printer wrote, with their lines and numbers.
pub(super) fn frames(
    bytes: &[u8],
    printer: Printer,
) -> impl Iterator<Item = (TextLine<'_>, u64, PrintedFrame<'_>)> {
    let mut in_report = false;
    lines(bytes).filter_map(move |line| {
        in_report = (in_report || line.text.contains(REPORT)) && !line.text.contains(DUMP);
        let (number, found) = numbered(line, |cursor| PrintedFrame::parse(line, cursor))?;
        let printed_by = match found.printer {
            Printer::Llvm if in_report && found.function.is_empty() => Printer::Sanitizer,
            printer => printer,
        };
        (printed_by == printer).then_some((line, number, found))
    })
}

fn report_frame(
    line: TextLine<'_>,
    number: u64,
    found: PrintedFrame<'_>,
    out: &mut Collector,
) -> Option<ReportFrame> {
    let is_nameless = found.function.is_empty() || found.function.starts_with("<null>");
    let frame = ReportFrame {
        number: Some(number),
        address: found.address,
        ..ReportFrame::default()
    };
    let name = || name_of(found.function);
    Some(match found.place {
        PrintedPlace::Source(path, source_line) => ReportFrame {
            function: Some(name()),
            path: Some(path.to_owned()),
            line: source_line,
            is_settled: true,
            ..frame
        },
        PrintedPlace::Nowhere => ReportFrame {
            function: (!is_nameless).then(name),
            is_settled: true,
            ..frame
        },
        PrintedPlace::Unknown => return None,
        PrintedPlace::Module { path, offset, id } => {
            let (path, is_macho) = without_architecture(path);
            let offset = if is_macho {
                offset.checked_sub(MACOS_PROGRAM).unwrap_or(offset)
            } else {
                without_base(path, offset, found.address)
            };
            let module = if is_macho {
                out.module_of_type(path, id, ObjectType::Macho)?
            } else {
                out.module(path, id)?
            };
            let is_fixed = found.address == Some(offset);
            let base = found.address.and_then(|it| it.checked_sub(offset));
            if let Some(base) = base.filter(|_| !is_fixed) {
                out.set_base(module, base);
            }
            if found.address.is_none() && !is_macho {
                out.may_have_addresses(module);
            }
            // ThreadSanitizer prints the module after file and line, too.
            let source = found.source_before_module();
            let function = source.map_or(found.function, |(function, ..)| function);
            ReportFrame {
                offset: (!is_fixed).then_some(offset),
                module: Some(module),
                function: (!is_nameless).then(|| name_of(function)),
                path: source.map(|(_, path, _)| path.to_owned()),
                line: source.and_then(|(.., line)| line),
                is_settled: source.is_some_and(|(.., line)| line.is_some()),
                place: source
                    .is_none()
                    .then(|| Place::in_text(found.name, line.range())),
                ..frame
            }
        }
    })
}

/// Returns a path without the architecture that macOS adds to it, as in `/srv/app:arm64`, and
/// whether it had one.
fn without_architecture(path: &str) -> (&str, bool) {
    let architectures = [":arm64", ":arm64e", ":x86_64", ":x86_64h", ":i386"];
    let found = architectures.iter().find_map(|it| path.strip_suffix(it));
    (found.unwrap_or(path), found.is_some())
}

/// Returns an offset in a module of Windows without the address that the module is linked to, given
/// the address in the process. In a 32-bit process, that is below 4 GiB.
fn without_base(path: &str, offset: u64, address: Option<u64>) -> u64 {
    let path = path.to_ascii_lowercase();
    let is_narrow = address.is_some_and(|address| u32::try_from(address).is_ok());
    let linked_to = WINDOWS.iter().find(|(end, ..)| path.ends_with(end));
    let within = linked_to.and_then(|(_, narrow, wide)| {
        let base = if is_narrow { *narrow } else { *wide };
        offset.checked_sub(base)
    });
    within.unwrap_or(offset)
}

/// Returns the function in `in f` of AddressSanitizer, or in `f <null>` of ThreadSanitizer.
fn name_of(text: &str) -> String {
    let text = text.strip_prefix("in ").unwrap_or(text);
    text.strip_suffix(" <null>").unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use crate::api::report::tests::{read, rewritten};
    use crate::api::report::{CrashReport, GivenModule, Lack, ReportFormat};
    use crate::domain::{CodeId, ObjectType};

    const NAMED: &str = "    #0 0x556d23d25058 in inl2(int volatile*, int) /src/my crash.cc:15:5\n    #1 0x556d23d250ff in operator/(A, B) C:\\src\\a.cc:37\n    #2 0x7f5bb8e45249 in start csu/../libc_start.h:58:16\n    #3 0x7f5bb8e45249 in crt crtstuff.c\n";

    #[test]
    fn frames_with_names_stay_with_their_numbers() {
        let rest = "    #4 0x556d23c43350 in _start (/srv/asan+0x2c350) (BuildId: ad7e43c028b89b0d)\n    #5 0x000000000000  (<unknown module>)\n    #6 0x000000001234 in f (<unknown module>)\n";
        let report = read(&format!("{NAMED}{rest}"));
        assert_eq!(report.format, ReportFormat::Sanitizer);
        let frames = report.stacks[0].frames.iter();
        let found: Vec<_> = frames
            .map(|it| {
                let function = it.function.as_deref().unwrap_or("?");
                let path = it.path.as_deref().unwrap_or("?");
                (it.number.unwrap(), function, path, it.line, it.is_settled)
            })
            .collect();
        let expected = [
            (
                0,
                "inl2(int volatile*, int)",
                "/src/my crash.cc",
                Some(15),
                true,
            ),
            (1, "operator/(A, B)", "C:\\src\\a.cc", Some(37), true),
            (2, "start", "csu/../libc_start.h", Some(58), true),
            (3, "crt", "crtstuff.c", None, true),
            (4, "_start", "?", None, false),
            (5, "?", "?", None, true),
            (6, "f", "?", None, true),
        ];
        assert_eq!(found, expected);
        assert_eq!((report.lacks(), report.is_settled()), (Vec::new(), false));
    }

    #[test]
    fn a_report_may_have_all_its_names_already() {
        let report = read(NAMED);
        assert!(report.is_settled());
        assert_eq!(report.lacks(), []);
        assert_eq!(rewritten(NAMED, &[("other", Some(1))]), NAMED);
    }

    #[test]
    fn the_id_of_a_module_of_macos_is_its_uuid() {
        let report = read(
            "#0 0x102a40328 in mid+0x0 (/Users/x/My App:arm64+0x100000328) (BuildId: 4c4c445255553144a1bc063edd33fab12400000010000000000d0a0000030c00)\n\
             #1 0x1a00002d8  (/Users/x/libm.dylib:x86_64+0x2d8)\n",
        );
        let [app, library] = report.modules.as_slice() else {
            panic!("{:?}", report.modules);
        };
        let id = "4c4c445255553144a1bc063edd33fab1";
        assert_eq!(app.name, "/Users/x/My App");
        assert_eq!(app.code_id, Some(CodeId::new(id.to_owned())));
        assert_eq!(app.debug_id, Some(id.parse().unwrap()));
        assert_eq!(app.object_type, ObjectType::Macho);
        // Programs are linked to 4 GiB, and libraries to zero.
        assert_eq!(
            (app.base, library.base),
            (Some(0x1_02a4_0000), Some(0x1_a000_0000))
        );
        assert_eq!(
            report.located(&report.stacks[0].frames[0]),
            Some((0, 0x328))
        );
        let lacks = report.lacks();
        let lack = Lack::Id {
            module: "/Users/x/libm.dylib".to_owned(),
            object_type: ObjectType::Macho,
        };
        assert_eq!(lacks, [lack]);
        let advice = lacks[0].to_string();
        assert!(advice.contains("dwarfdump --uuid"), "{advice}");
    }

    #[test]
    fn offsets_in_modules_of_windows_include_the_address_that_they_are_linked_to() {
        let report = read(
            "    #0 0x7ff6e1a81578  (C:\\app\\App.EXE+0x140001578)\n    #1 0x7ffa00012345  (C:\\app\\lib.dll+0x180002345)\n    #2 0x7ffa00022345  (C:\\app\\other.dll+0x2345)\n",
        );
        let offsets: Vec<_> = report.stacks[0].frames.iter().map(|it| it.offset).collect();
        assert_eq!(offsets, [Some(0x1578), Some(0x2345), Some(0x2345)]);
    }

    #[test]
    fn so_do_those_of_32_bit_windows() {
        let report = read(
            "    #0 0x00f61578  (C:\\app\\App.exe+0x401578)\n    #1 0x00402345  (C:\\app\\fixed.exe+0x402345)\n    #2 0x6f012345  (C:\\app\\lib.dll+0x10002345)\n    #3 0x6f112345  (C:\\app\\other.dll+0x2345)\n",
        );
        let offsets: Vec<_> = report.stacks[0].frames.iter().map(|it| it.offset).collect();
        let expected = [0x1578, 0x2345, 0x2345, 0x2345].map(Some);
        assert_eq!(offsets, expected);
        let bases: Vec<_> = report.modules.iter().map(|it| it.base).collect();
        let expected = [0xf6_0000, 0x40_0000, 0x6f01_0000, 0x6f11_0000].map(Some);
        assert_eq!(bases, expected);
    }

    /// A report of ThreadSanitizer about a program that is not position independent.
    const RACE: &str = "\
WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 4 at 0x000000404058 by main thread:
    #0 <null> <null> (race+0x4011ac)
    #1 main race.c:6:2 (race+0x40121b)
    #2 <null> <null> (libc.so.6+0x27249)

  Location is global '<null>' at 0x000000000000 (race+0x404058)

SUMMARY: ThreadSanitizer: data race (/srv/race+0x4011ac)
";

    /// Returns the offset of the first frame, which is in the first module.
    fn first_offset(report: &CrashReport) -> Option<u64> {
        let located = report.located(&report.stacks[0].frames[0]);
        located.map(|(module, offset)| {
            assert_eq!(module, 0);
            offset
        })
    }

    fn loaded_at(base: u64) -> GivenModule {
        GivenModule {
            name: "race".to_owned(),
            base: Some(base),
            ..GivenModule::default()
        }
    }

    #[test]
    fn offsets_of_thread_sanitizer_are_addresses_if_the_report_has_one_of_them_as_an_address() {
        let symbolized = RACE.replace(
            "'<null>' at 0x000000000000",
            "'array' of size 40 at 0x000000404054",
        );
        let failed = "==1==ERROR: ThreadSanitizer: SEGV on unknown address 0x000000000000 (pc 0x0000004011ac bp 0x000000000001 T1)\n    #0 <null> <null> (race+0x4011ac)\n    #1 main race.c:6 (race+0x40121b)\n    #2 <null> <null> (libc.so.6+0x27249)\n";
        for text in [RACE, &symbolized, failed] {
            let mut report = read(text);
            assert_eq!(first_offset(&report), None, "{text}");
            let library = &report.stacks[0].frames[2];
            assert_eq!(report.located(library), Some((1, 0x27249)));
            let module = report.modules[0].name.clone();
            assert!(report.lacks().contains(&Lack::Base { module }), "{text}");
            assert!(report.uncertain_programs().is_empty());
            assert!(report.complete(&loaded_at(0x40_0000)));
            assert_eq!(first_offset(&report), Some(0x11ac), "{text}");
            let named = text.replacen("<null> <null>", "f /src/a.c:3", 1);
            let named = named.replacen("<null> <null>", "f /src/a.c:3", 1);
            assert_eq!(rewritten(text, &[("f", Some(3))]), named);
        }
    }

    #[test]
    fn a_load_address_tells_whether_uncertain_offsets_are_addresses() {
        let (uncertain, _) = RACE.split_once("  Location").unwrap();
        let programs = |report: &CrashReport| {
            let programs = report.uncertain_programs();
            let names = programs.iter().map(|it| it.name.clone());
            names.collect::<Vec<String>>()
        };
        for (base, offset) in [(0x40_0000, 0x11ac), (0x5555_5555_4000, 0x40_11ac)] {
            let mut report = read(uncertain);
            assert_eq!(first_offset(&report), Some(0x40_11ac));
            assert_eq!(programs(&report), ["race"]);
            assert!(report.complete(&loaded_at(base)));
            assert_eq!(first_offset(&report), Some(offset));
            assert_eq!(programs(&report), Vec::<String>::new());
        }
        // A low offset is no address of such a program, and libraries are position independent.
        let low = format!("{uncertain}    #3 <null> <null> (race+0x51328)\n");
        let library = uncertain.replace("race+", "librace.so+");
        let settled = uncertain.replace("#0 <null> <null>", "#0 f race.c:1");
        for text in [low, library, settled] {
            assert_eq!(programs(&read(&text)), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn frames_of_thread_sanitizer_with_lines_are_not_looked_up() {
        let report = read(RACE);
        let frames = report.stacks[0].frames.iter();
        let settled: Vec<bool> = frames.map(|frame| frame.is_settled).collect();
        assert_eq!(settled, [false, true, false]);
        assert_eq!(
            rewritten("#0 f a.c:1 (race+0x10)", &[("g", None)]),
            "#0 f a.c:1 (race+0x10)"
        );
    }

    #[test]
    fn the_summary_has_the_path_of_a_module() {
        let name = |text: &str| read(text).modules[0].name.clone();
        assert_eq!(name(RACE), "/srv/race");
        let again = RACE.replace("/srv/race", "/other/race");
        assert_eq!(name(&format!("{RACE}{again}")), "race");
        for given in ["race", "/srv/race", "./race"] {
            let given = GivenModule {
                name: given.to_owned(),
                ..loaded_at(1)
            };
            assert!(read(RACE).complete(&given), "{given:?}");
        }
    }

    #[test]
    fn old_sanitizers_print_one_space_before_a_module() {
        let frame = "    #0 0x4008cd (/srv/app+0x8cd)\n";
        let format = |text: &str| read(text).format;
        let report = format!("==1==ERROR: AddressSanitizer: SEGV\n{frame}");
        assert_eq!(format(&report), ReportFormat::Sanitizer);
        assert_eq!(format(frame), ReportFormat::Llvm);
        assert_eq!(
            format(&format!("{report}Stack dump:\n{frame}{frame}")),
            ReportFormat::Llvm
        );
    }
}
