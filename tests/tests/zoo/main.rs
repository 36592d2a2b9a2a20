//! Compares responses for programs of many compilers and machines, which `make zoo` builds, with
//! `llvm-symbolizer` and `eu-addr2line` at every twentieth instruction. The fixtures contain a
//! smaller zoo, of which another test checks each instruction.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use symbolic::common::ByteView;
use symbolic::debuginfo::{FileFormat, Object};
use symdepot::domain::ModuleId;
use symdepot_tests::bench_real::oracle;
use symdepot_tests::harness::{World, in_module};

/// One of this many instructions is checked.
const EVERY: usize = 20;

/// The number of addresses in a request.
const FRAMES: usize = 500;

/// The minimum share of names, lines and chains in a row, except for the programs in
/// [`EXCEPTIONS`].
const LEAST: f64 = 0.995;

/// Programs below the minimum, and the reason.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("GCC -O2 -static", SEVERAL_NAMES),
    ("GCC -O2 -static-pie", SEVERAL_NAMES),
    (
        "GCC -O2 -gz=zlib-gnu",
        "llvm-symbolizer does not read sections with this older form of compression. eu-addr2line does.",
    ),
    (
        "Zig Debug",
        "the compiler does not name the files of inlined calls. symdepot responds without a file, llvm-symbolizer with the first file of the program. \
         The compiler's line tables end before its functions do; symdepot uses the last line up to the end of the function.",
    ),
];

const SEVERAL_NAMES: &str = "functions of the C library that are selected at start have several names (`memcmp`, `memcmp_ifunc`). \
    symdepot responds with a different one of these names.";

/// A frame: the mangled name, the base name of the file, and the line, which is zero if it is
/// unknown.
type Frame = (String, String, u64);

struct Program {
    name: String,
    /// The file with its instructions.
    program: PathBuf,
    /// The file with all debug information, which the other tools read.
    whole: PathBuf,
    format: FileFormat,
    uploads: Vec<PathBuf>,
}

impl Program {
    fn all(folder: &Path) -> Vec<Self> {
        let list = std::fs::read_to_string(folder.join("programs.tsv")).unwrap();
        let program = |line: &str| {
            let [name, program, whole, uploads] = *line.split('\t').collect::<Vec<_>>() else {
                panic!("{line}");
            };
            let whole = folder.join(whole);
            let view = ByteView::open(&whole).unwrap();
            Self {
                name: name.to_owned(),
                program: folder.join(program),
                format: Object::parse(&view).unwrap().file_format(),
                whole,
                uploads: uploads.split(',').map(|file| folder.join(file)).collect(),
            }
        };
        list.lines().map(program).collect()
    }

    fn load_address(&self) -> u64 {
        let view = ByteView::open(&self.whole).unwrap();
        Object::parse(&view).unwrap().load_address()
    }

    /// Returns the address at which llvm's addresses begin: in WebAssembly, at the code section.
    fn llvm_base(&self) -> u64 {
        let view = ByteView::open(&self.program).unwrap();
        match Object::parse(&view) {
            Ok(Object::Wasm(module)) => module.code_offset(),
            _ => 0,
        }
    }

    fn symbols(&self) -> Symbols {
        let view = ByteView::open(&self.whole).unwrap();
        let object = Object::parse(&view).unwrap();
        let base = object.load_address();
        let mut symbols = Symbols::default();
        for symbol in object.symbols() {
            symbols
                .ends
                .insert(base + symbol.address, base + symbol.address + symbol.size);
            if let Some(name) = symbol.name {
                symbols.addresses.insert(name.into_owned(), symbol.address);
            }
        }
        symbols
    }

    fn has_pdb(&self) -> bool {
        self.uploads
            .iter()
            .any(|file| file.extension().is_some_and(|is| is == "pdb"))
    }

    /// Returns whether most names in the file are demangled: in PDBs, and in WebAssembly that LLVM
    /// links.
    fn has_readable_names(&self) -> bool {
        self.has_pdb() || self.format == FileFormat::Wasm
    }

    fn is_elf(&self) -> bool {
        self.format == FileFormat::Elf
    }

    /// Returns the addresses of the checked instructions, as they are in the program.
    fn instructions(&self) -> Vec<u64> {
        let listing = output(
            Command::new("llvm-objdump-19")
                .args(["-d", "--no-show-raw-insn"])
                .arg(&self.program),
        );
        let address = |line: &str| {
            let (address, rest) = line.trim_start().split_once(':')?;
            let address = u64::from_str_radix(address, 16).ok()?;
            rest.starts_with(['\t', ' ']).then_some(address)
        };
        listing.lines().filter_map(address).step_by(EVERY).collect()
    }

    fn by_llvm(&self, addresses: &[u64]) -> Vec<Vec<Frame>> {
        let base = self.llvm_base();
        let asked = addresses.iter().map(|at| format!("{:#x}\n", at - base));
        let asked: String = asked.collect();
        let mut questions = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut questions, asked.as_bytes()).unwrap();
        std::io::Seek::rewind(&mut questions).unwrap();
        let answers = output(
            Command::new("llvm-symbolizer-19")
                .args(["--inlines", "--output-style=JSON"])
                .args((!self.has_readable_names()).then_some("--no-demangle"))
                .arg("--obj")
                .arg(&self.whole)
                .stdin(Stdio::from(questions)),
        );
        let frames = |line: &str| {
            let answer: Value = serde_json::from_str(line).unwrap();
            let frames = answer["Symbol"].as_array().into_iter().flatten();
            let frames = frames.map(|frame| {
                let text = |field: &str| frame[field].as_str().unwrap_or_default();
                let file = oracle::base_name(text("FileName")).to_owned();
                let line = frame["Line"].as_u64().unwrap_or_default();
                (text("FunctionName").to_owned(), file, line)
            });
            frames.filter(|(name, ..)| !name.is_empty()).collect()
        };
        let answers: Vec<_> = answers.lines().map(frames).collect();
        assert_eq!(answers.len(), addresses.len(), "{}", self.name);
        answers
    }

    /// Uploads the files of the program and returns the frames with which the service responds.
    async fn answered(&self, addresses: &[u64]) -> Vec<Vec<Frame>> {
        let world = World::new();
        for (number, file) in self.uploads.iter().enumerate() {
            let event = world.put(&format!("global/{number}"), std::fs::read(file).unwrap());
            world.deliver(&event).await.unwrap();
            world.settle().await;
        }
        let objects = world.upload_item("global/0").objects;
        let is_module = |module: &ModuleId| !matches!(module, ModuleId::Companion(_));
        let object = objects
            .iter()
            .find(|object| is_module(&object.module))
            .unwrap();
        let format = self.format.name();
        let module =
            json!({"type": format, "debug_id": object.debug_id, "code_id": object.code_id});
        let base = self.load_address();
        let mut answers = Vec::new();
        for some in addresses.chunks(FRAMES) {
            let relative: Vec<u64> = some.iter().map(|address| address - base).collect();
            let answer = world
                .symbolicate(&in_module(module.clone(), &relative))
                .await;
            let first = answers.len();
            answers.resize(first + some.len(), Vec::new());
            for frame in &answer.stacktraces[0].frames {
                let name = if self.has_readable_names() {
                    frame.frame.function.as_deref()
                } else {
                    frame.frame.symbol.as_deref()
                };
                let Some(name) = name else { continue };
                let file = frame.frame.filename.as_deref().unwrap_or_default();
                let line = u64::from(frame.frame.lineno.unwrap_or_default());
                let place = (name.to_owned(), oracle::base_name(file).to_owned(), line);
                answers[first + frame.original_index.unwrap()].push(place);
            }
        }
        answers
    }
}

/// Runs a tool and returns its output.
fn output(command: &mut Command) -> String {
    let done = command.output();
    let done = done.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        done.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

/// The symbols of a program.
#[derive(Default)]
struct Symbols {
    /// Their addresses. Linkers give functions with the same code one address and all of their
    /// names.
    addresses: HashMap<String, u64>,
    /// The end of each symbol, by its address.
    ends: BTreeMap<u64, u64>,
}

impl Symbols {
    /// Returns whether an address lies in a symbol. Padding does not.
    fn cover(&self, address: u64) -> bool {
        let before = self.ends.range(..=address).next_back();
        before.is_some_and(|(_, end)| address < *end)
    }
}

/// Returns whether two names belong to one function: constructors have several names at one
/// address, cold parts have a suffix, basic blocks a number, and names in PDBs no parameters.
fn is_same_name(ours: &str, theirs: &str, symbols: &Symbols) -> bool {
    if let (Some(ours), Some(theirs)) = (symbols.addresses.get(ours), symbols.addresses.get(theirs))
        && ours == theirs
    {
        return true;
    }
    let plain = |name: &str| {
        let name = without_parameters(name);
        let name = name.split(".cold").next().unwrap_or_default();
        let name = name.split(".__part.").next().unwrap_or_default();
        let name = name.strip_suffix(".eh").unwrap_or(name);
        let name = name.split(".llvm.").next().unwrap_or_default();
        let name = name.trim_start_matches('_');
        let variants = ["C1E", "C4E", "D0E", "D1E", "D4E", "C1I", "C4I"];
        variants.iter().fold(name.to_owned(), |name, variant| {
            let (kind, rest) = variant.split_at(1);
            name.replace(variant, &format!("{kind}2{}", &rest[1..]))
        })
    };
    plain(ours) == plain(theirs)
}

/// Returns a demangled name without its parameters and return type. A mangled name is returned
/// unchanged.
fn without_parameters(name: &str) -> &str {
    let mut depth = 0_usize;
    let (mut start, mut end) = (0, name.len());
    for (at, character) in name.char_indices() {
        match character {
            '(' if depth == 0 && !name[..at].ends_with("operator") => {
                end = at;
                break;
            }
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    &name[start..end]
}

/// The number of a program's addresses for which the tools agree.
#[derive(Default)]
struct Row {
    asked: usize,
    names: usize,
    lines: usize,
    chains: usize,
    /// Addresses with a line in `eu-addr2line`: how many there are, and how many agree.
    by_eu: Option<(usize, usize)>,
    examples: Vec<String>,
}

impl Row {
    fn of(
        addresses: &[u64],
        ours: &[Vec<Frame>],
        theirs: &[Vec<Frame>],
        symbols: &Symbols,
    ) -> Self {
        let mut row = Self::default();
        for ((address, ours), theirs) in addresses.iter().zip(ours).zip(theirs) {
            // Padding between symbols is skipped: llvm returns the function before it.
            if ours.is_empty() && !symbols.cover(*address) {
                continue;
            }
            let both = || ours.iter().zip(theirs);
            let ends = [
                ours.first().zip(theirs.first()),
                ours.last().zip(theirs.last()),
            ];
            let has_names = ends.iter().all(|ends| {
                ends.is_some_and(|(ours, theirs)| is_same_name(&ours.0, &theirs.0, symbols))
            });
            // If no line is known, llvm returns the file from the symbol table.
            let is_same_place = |ours: &Frame, theirs: &Frame| {
                ours.2 == theirs.2 && (ours.1 == theirs.1 || theirs.1.is_empty() || ours.2 == 0)
            };
            let has_line = ours
                .first()
                .zip(theirs.first())
                .is_some_and(|(ours, theirs)| is_same_place(ours, theirs));
            let is_chain = ours.len() == theirs.len()
                && both().all(|(ours, theirs)| is_same_place(ours, theirs));
            row.asked += 1;
            row.names += usize::from(has_names);
            row.lines += usize::from(has_line);
            row.chains += usize::from(is_chain);
            if !(has_names && has_line && is_chain) && row.examples.len() < 3 {
                row.examples
                    .push(format!("{address:#x}: {ours:?}, by llvm {theirs:?}"));
            }
        }
        row
    }

    fn is_good(&self) -> bool {
        let least = self.asked as f64 * LEAST;
        self.asked > 0
            && [self.names, self.lines, self.chains]
                .iter()
                .all(|of| *of as f64 >= least)
    }

    fn share(&self, of: usize) -> String {
        format!("{:.1} %", of as f64 * 100.0 / self.asked.max(1) as f64)
    }
}

#[tokio::test(start_paused = true)]
async fn programs_of_many_compilers_are_symbolicated_like_other_tools() {
    let Some(folder) = std::env::var_os("SYMDEPOT_ZOO").map(PathBuf::from) else {
        println!("skipped: `make zoo` builds the programs and sets SYMDEPOT_ZOO to their folder");
        return;
    };
    let exceptions = BTreeMap::from(EXCEPTIONS);
    let mut short = Vec::new();
    println!("| Program | Instructions | Names | Lines | Chains | Lines, `eu-addr2line` |");
    println!("|---|---:|---:|---:|---:|---:|");
    for program in Program::all(&folder) {
        let addresses = program.instructions();
        let theirs = program.by_llvm(&addresses);
        let ours = program.answered(&addresses).await;
        let mut row = Row::of(&addresses, &ours, &theirs, &program.symbols());
        if program.is_elf()
            && let Ok(said) = oracle::ask(&program.whole, &addresses)
        {
            let line = |said: &oracle::Said| said.frames.first()?.line.clone();
            let both = ours.iter().zip(said.iter().map(line));
            let known = both.filter_map(|(ours, theirs)| Some((ours, theirs?)));
            let same = known.map(|(ours, (_, line))| {
                let first = ours.first();
                usize::from(first.is_some_and(|(_, _, ours)| *ours == line))
            });
            let same: Vec<usize> = same.collect();
            row.by_eu = Some((same.len(), same.iter().sum()));
        }
        let by_eu = match row.by_eu {
            Some((asked, same)) if asked > 0 => {
                format!("{:.1} %", same as f64 * 100.0 / asked as f64)
            }
            _ => "–".to_owned(),
        };
        println!(
            "| {} | {} | {} | {} | {} | {by_eu} |",
            program.name,
            row.asked,
            row.share(row.names),
            row.share(row.lines),
            row.share(row.chains),
        );
        if !row.is_good() && !exceptions.contains_key(&*program.name) {
            short.push(format!(
                "{}:\n  {}",
                program.name,
                row.examples.join("\n  ")
            ));
        }
    }
    for (name, reason) in &exceptions {
        println!("\n{name}: {reason}");
    }
    assert!(short.is_empty(), "{}", short.join("\n"));
}
