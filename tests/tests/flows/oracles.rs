//! Responses compared with the output of other tools for the same files.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use symbolic::debuginfo::Object;
use symbolic::debuginfo::dwarf::{Dwarf as _, DwarfSection};
use symdepot::api::symbolicator::{Completed, CompletedFrame, FrameStatus};
use symdepot_tests::harness::{
    Fixture, Oracle, OracleFrame, World, fixture, fixture_text, in_module, manifest, of_fixture,
    oracle, sample_crash,
};

/// What the output of a tool contains, see `fixtures/README.md`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Names, files and lines of the whole chain.
    Chain,
    /// The file and the line of the innermost function.
    Innermost,
}

fn claim(tool: &str) -> Claim {
    if tool == "eu-addr2line" {
        Claim::Innermost
    } else {
        Claim::Chain
    }
}

/// Addresses of elf/crash.debug for which addr2line 2.40 loses functions that were inlined in
/// several pieces. The test checks that, at each of them, llvm-symbolizer names the whole chain,
/// and eu-addr2line the same innermost line.
const LOST_BY_ADDR2LINE: [&str; 8] = [
    "0x21ea", "0x23ac", "0x24d7", "0x25df", "0x2cc3", "0x2e31", "0x2fd9", "0x39f5",
];

/// Addresses of `.plt`, which has no symbols. llvm-symbolizer attributes them to the last symbol
/// before, which is in another section. `elf/crash` is followed by the name of its debug file.
const IN_PLT: [(&str, &str); 3] = [
    ("elf/crash", "0x3b90"),
    ("elf/checksum", "0x1030"),
    ("elf/checksum", "0x1046"),
];

/// Calls in a PDB that llvm-symbolizer 14 places one row too late, see `sources/game/scene.h`:
/// file, address, the line that it prints, and the line of the call.
const LATE_IN_PDB: [(&str, &str, u32, u32); 5] = [
    ("pe/x64/crash.pdb", "0x12f4", 28, 27),
    ("pe/x64/crash.pdb", "0x1464", 28, 27),
    ("pe/x86/crash.pdb", "0x1250", 28, 27),
    ("pe/x86/crash.pdb", "0x137d", 28, 27),
    ("pe/x86/crash.pdb", "0x1393", 29, 28),
];

/// Addresses in a PDB at which a row without code precedes the row of an inlined endless loop:
/// file, address, the line of the first row, which llvm-symbolizer 14 prints, and that of the
/// second, which llvm-symbolizer 19 prints.
const EMPTY_ROWS_IN_PDB: [(&str, &str, u32, u32); 2] = [
    ("pe/x86/crash.pdb", "0x1100", 26, 25),
    ("pe/x86/crash.pdb", "0x1110", 26, 25),
];

/// The number of comparisons, and the differences.
#[derive(Default)]
struct Comparison {
    names: usize,
    lines: usize,
    differences: BTreeMap<&'static str, Vec<String>>,
}

impl Comparison {
    fn differ(&mut self, class: &'static str, what: String) {
        self.differences.entry(class).or_default().push(what);
    }

    fn report(&self) -> String {
        let class = |(class, all): (&&str, &Vec<String>)| {
            let examples: Vec<&str> = all.iter().take(3).map(String::as_str).collect();
            format!("{class}: {}\n  {}\n", all.len(), examples.join("\n  "))
        };
        self.differences.iter().map(class).collect()
    }

    fn address(
        &mut self,
        place: &str,
        tool: &str,
        expected: &[OracleFrame],
        ours: &[&CompletedFrame],
    ) {
        let symbolicated = ours
            .iter()
            .all(|frame| frame.status == FrameStatus::Symbolicated);
        let Some(innermost) = expected.first() else {
            return;
        };
        if !symbolicated {
            // The tool has no function there, or attributes the padding between two functions to
            // the first one.
            if innermost.function.is_some() && tool != "addr2line" {
                self.differ("no function", format!("{place}: {:?}", innermost.function));
            }
            return;
        }
        let has_lines = innermost.file.is_some() && innermost.line.is_some_and(|line| line > 0);
        if claim(tool) == Claim::Innermost {
            if has_lines {
                self.line(place, innermost, ours[0]);
            }
            return;
        }
        if has_lines && expected.len() != ours.len() {
            self.differ(
                "length of the chain",
                format!("{place}: {} is {}", expected.len(), ours.len()),
            );
            return;
        }
        for (expected, ours) in expected.iter().zip(ours) {
            self.name(place, expected, ours);
            self.line(place, expected, ours);
        }
    }

    fn name(&mut self, place: &str, expected: &OracleFrame, ours: &CompletedFrame) {
        let Some(function) = &expected.function else {
            return;
        };
        self.names += 1;
        let symbol = ours.frame.symbol.as_deref().unwrap_or_default();
        let name = ours.frame.function.as_deref().unwrap_or_default();
        let same_symbol = [expected.mangled.as_deref(), Some(function)]
            .into_iter()
            .flatten()
            .any(|mangled| {
                without_clone_suffix(mangled).trim_start_matches('_')
                    == without_clone_suffix(symbol).trim_start_matches('_')
            });
        if !same_symbol && bare(function) != bare(name) {
            self.differ(
                "name",
                format!(
                    "{place}: {function} is {name} ({symbol}); {} is {}",
                    bare(function),
                    bare(name)
                ),
            );
        }
    }

    fn line(&mut self, place: &str, expected: &OracleFrame, ours: &CompletedFrame) {
        let (Some(file), Some(line)) = (&expected.file, expected.line.filter(|line| *line > 0))
        else {
            return;
        };
        self.lines += 1;
        let file = file.rsplit(['/', '\\']).next();
        let ours = (ours.frame.filename.as_deref(), ours.frame.lineno);
        if ours != (file, Some(line)) {
            self.differ("line", format!("{place}: {file:?}:{line} is {ours:?}"));
        }
    }
}

/// Removes what compilers append to the name of a function that they split.
fn without_clone_suffix(name: &str) -> &str {
    let end = [
        ".isra.",
        ".part.",
        ".constprop.",
        ".cold",
        ".llvm.",
        " [clone",
        " (.",
    ]
    .iter()
    .filter_map(|suffix| name.find(suffix))
    .min();
    &name[..end.unwrap_or(name.len())]
}

/// Returns a name in the form that all tools agree on: without parameters and return type, and with
/// one spelling of lambdas and anonymous namespaces.
fn bare(name: &str) -> String {
    let mut name = without_clone_suffix(name)
        .trim_end_matches(" const")
        .to_owned();
    for (spelling, ours) in [
        ("(anonymous namespace)", "<anonymous>"),
        ("`anonymous namespace'", "<anonymous>"),
        ("{anonymous}", "<anonymous>"),
        ("operator()", "operator<call>"),
        ("'lambda'", "<lambda>"),
        ("{lambda", "<lambda>{"),
        ("(unsigned int)3", "3u"),
        ("(unsigned int)16384", "16384u"),
        ("struct ", ""),
        ("class ", ""),
        ("enum ", ""),
        ("__cdecl ", ""),
        ("__thiscall ", ""),
        ("__fastcall ", ""),
        ("public: ", ""),
        ("private: ", ""),
        ("protected: ", ""),
        ("virtual ", ""),
        ("static ", ""),
    ] {
        name = name.replace(spelling, ours);
    }
    let mut depths = (0_usize, 0_usize);
    let mut kept = String::new();
    for c in name.chars() {
        match c {
            '(' | '{' => depths.0 += 1,
            ')' | '}' => depths.0 = depths.0.saturating_sub(1),
            _ if depths.0 > 0 => {}
            ' ' if depths.1 == 0 && !kept.ends_with("operator") && !kept.is_empty() => {
                // The text so far was the return type, or the rest is `const` after the parameters.
                if name.contains('(')
                    && kept.ends_with(|c: char| c != ':')
                    && !kept.contains("::operator")
                {
                    kept.push(' ');
                }
            }
            ' ' => {}
            _ => {
                depths.1 = match c {
                    '<' => depths.1 + 1,
                    '>' => depths.1.saturating_sub(1),
                    _ => depths.1,
                };
                kept.push(c);
            }
        }
    }
    let kept = kept.trim().trim_end_matches(" const").trim();
    kept.rsplit(' ')
        .next()
        .unwrap_or(kept)
        .trim_start_matches('_')
        .to_owned()
}

async fn compare(fixture: &Fixture, files: &[String], comparison: &mut Comparison) {
    for file in files {
        let Oracle { tool, frames } = oracle(file);
        let addresses: Vec<u64> = frames
            .iter()
            .map(|at| u64::from_str_radix(at.address.trim_start_matches("0x"), 16).unwrap())
            .collect();
        let world = World::new();
        world.upload("global/file", &fixture.file).await;
        let answer = world.symbolicate(&of_fixture(fixture, &addresses)).await;
        for (index, mut at) in frames.into_iter().enumerate() {
            let ours = frames_of(&answer, index);
            let is_in_plt = |(name, address): &(&str, &str)| {
                fixture.file.starts_with(name) && at.address == *address
            };
            if tool == "llvm-symbolizer" && IN_PLT.iter().any(is_in_plt) {
                assert!(ours.iter().all(|frame| frame.frame.function.is_none()));
                continue;
            }
            if tool == "addr2line" && LOST_BY_ADDR2LINE.contains(&at.address.as_str()) {
                continue;
            }
            for (file, address, said, right) in LATE_IN_PDB {
                if (fixture.file.as_str(), at.address.as_str()) == (file, address) {
                    let caller = &mut at.frames[1];
                    assert_eq!(caller.line.replace(right), Some(said));
                }
            }
            for (file, address, said, right) in EMPTY_ROWS_IN_PDB {
                if (fixture.file.as_str(), at.address.as_str()) == (file, address) {
                    let innermost = &mut at.frames[0];
                    assert_eq!(innermost.line.replace(right), Some(said));
                    assert_eq!(
                        ours.len(),
                        2,
                        "the function has no line, its inlined call has"
                    );
                }
            }
            comparison.address(
                &format!("{} {} ({tool})", fixture.file, at.address),
                &tool,
                &at.frames,
                &ours,
            );
        }
    }
}

#[tokio::test]
async fn an_address_outside_of_code_has_no_name() {
    // Labels in assembly have no type; they could be data.
    for (file, program) in [
        ("elf/crash", "elf/crash"),
        ("elf/crash.debug", "elf/crash"),
        ("zoo/labels", "zoo/labels"),
    ] {
        let addresses = outside_of_code(&fixture(program));
        assert!(addresses.len() >= 4, "{file}: {addresses:x?}");
        let world = World::new();
        let event = world.put("global/file", fixture(file));
        world.deliver(&event).await.unwrap();
        world.settle().await;
        let object = &world.upload_item("global/file").objects[0];
        let module = json!({"type": "elf", "debug_id": object.debug_id, "code_id": object.code_id});
        let answer = world.symbolicate(&in_module(module, &addresses)).await;
        for (index, address) in addresses.iter().enumerate() {
            let frames = frames_of(&answer, index);
            let frame = frames[0];
            assert_eq!(
                (frames.len(), frame.status, &frame.frame.function),
                (1, FrameStatus::MissingSymbol, &None),
                "{file} at {address:#x}"
            );
        }
    }
}

/// Returns the first and the last address of each section without code, and some addresses after
/// all sections.
fn outside_of_code(program: &[u8]) -> Vec<u64> {
    let Object::Elf(elf) = Object::parse(program).unwrap() else {
        panic!("no ELF file");
    };
    let sections = ["rodata", "eh_frame", "data", "data.rel.ro", "dynamic"];
    let sections = sections.iter().filter_map(|name| elf.raw_section(name));
    let ends = |section: DwarfSection<'_>| {
        let last = section.address + section.data.len() as u64 - 1;
        [section.address, last].map(|address| address - elf.load_address())
    };
    let behind = [0x99_9999, 0x9999_9999];
    sections.flat_map(ends).chain(behind).collect()
}

fn frames_of(answer: &Completed, index: usize) -> Vec<&CompletedFrame> {
    answer.stacktraces[0]
        .frames
        .iter()
        .filter(|frame| frame.original_index == Some(index))
        .collect()
}

/// Every fixture with an oracle. Each architecture of a fat file is a fixture of its own.
fn with_oracles() -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for fixture in manifest() {
        for object in &fixture.objects {
            fixtures.push(Fixture {
                debug_id: Some(object.debug_id.clone()),
                code_id: Some(object.code_id.clone()),
                expected: object.expected.clone(),
                ..fixture.clone()
            });
        }
        fixtures.push(fixture);
    }
    fixtures.retain(|fixture| {
        !fixture.expected.is_empty() && fixture.format.as_deref() != Some("portablepdb")
    });
    fixtures
}

#[tokio::test(start_paused = true)]
async fn every_name_file_and_line_agrees_with_other_tools() {
    let fixtures = with_oracles();
    assert!(fixtures.len() >= 14, "{} fixtures", fixtures.len());
    let mut comparison = Comparison::default();
    for fixture in &fixtures {
        compare(fixture, &fixture.expected, &mut comparison).await;
    }
    assert!(
        comparison.names > 2000 && comparison.lines > 2000,
        "{} names, {} lines",
        comparison.names,
        comparison.lines
    );
    assert!(comparison.differences.is_empty(), "{}", comparison.report());
}

#[test]
fn the_calls_that_a_tool_places_a_row_too_late_have_the_line_of_the_source() {
    let source = fixture_text("sources/game/scene.h");
    let line = |text: &str| source.lines().position(|line| line.contains(text)).unwrap() as u32 + 1;
    let (dot, visit) = (line("if (dot("), line("visit(body);"));
    for (file, address, said, right) in LATE_IN_PDB {
        assert_eq!(
            right,
            if said == visit { dot } else { visit },
            "{file} {address}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_sample_crash_agrees_with_the_debugger() {
    let expected: Value = serde_json::from_str(&fixture_text("crash.expected.json")).unwrap();
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let answer = world.symbolicate(&sample_crash()).await;
    let requested = sample_crash();
    let ours: Vec<Value> = answer.stacktraces[0]
        .frames
        .iter()
        .enumerate()
        .map(|(at, completed)| {
            assert_eq!(completed.status, FrameStatus::Symbolicated);
            let index = completed.original_index.unwrap();
            let next = answer.stacktraces[0].frames.get(at + 1);
            let frame = &completed.frame;
            json!({
                "instruction_addr": format!("{:#x}", requested.stacktraces[0].frames[index].instruction_addr.0),
                "file": frame.abs_path,
                "line": frame.lineno,
                "symbol": frame.symbol,
                "inlined": next.is_some_and(|next| next.original_index == completed.original_index),
            })
        })
        .collect();
    let theirs: Vec<Value> = expected["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|frame| {
            json!({
                "instruction_addr": frame["instruction_addr"],
                "file": frame["file"],
                "line": frame["line"],
                "symbol": frame.get("mangled").unwrap_or(&frame["function"]),
                "inlined": frame["inlined"],
            })
        })
        .collect();
    assert_eq!(ours, theirs);
    for (frame, theirs) in answer.stacktraces[0]
        .frames
        .iter()
        .zip(expected["frames"].as_array().unwrap())
    {
        assert_eq!(
            bare(frame.frame.function.as_deref().unwrap()),
            bare(theirs["function"].as_str().unwrap())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn every_line_of_a_dotnet_method_agrees_with_its_sequence_points() {
    let expected: Value =
        serde_json::from_str(&fixture_text("expected/dotnet-Ledger.json")).unwrap();
    let expected = expected["frames"].as_array().unwrap();
    let world = World::new();
    world.upload("global/Ledger.pdb", "dotnet/Ledger.pdb").await;
    let fixture = manifest()
        .into_iter()
        .find(|fixture| fixture.file == "dotnet/Ledger.pdb")
        .unwrap();
    let mut request = in_module(
        json!({"type": "pe_dotnet", "debug_id": fixture.debug_id, "image_addr": 0}),
        &[],
    );
    for point in expected {
        let frame = json!({
            "addr_mode": "rel:0", "function_id": point["function_id"], "instruction_addr": point["il_offset"],
        });
        request.stacktraces[0]
            .frames
            .push(serde_json::from_value(frame).unwrap());
    }
    let answer = world.symbolicate(&request).await;
    let mut compared = 0;
    for (index, point) in expected
        .iter()
        .enumerate()
        .filter(|(_, point)| !point["line"].is_null())
    {
        let frame = &frames_of(&answer, index)[0].frame;
        assert_eq!(
            (json!(frame.abs_path), json!(frame.lineno)),
            (point["file"].clone(), point["line"].clone()),
            "{point}"
        );
        compared += 1;
    }
    assert!(compared > 10, "{compared}");
}
