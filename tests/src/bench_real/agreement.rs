//! Compares the symbolicated frames of the stack with those of `eu-addr2line`.
//!
//! Names agree if they are equal after clone suffixes are removed and both are demangled in the
//! same way, or if they are aliases: the symbol table has both for the function at that address.
//! One kind of alias is counted separately: the debug information has no linkage name for functions
//! with internal linkage, so the tool prints their names without scope and parameters, whereas
//! symdepot prints the name that the symbol table has at that address.
//!
//! Lines agree if the base name and the line of the innermost frame are equal. The differences are
//! sorted into classes.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use symbolic::common::{Language, Name, NameMangling};
use symbolic::demangle::{Demangle, DemangleOptions};

use super::oracle::{self, Said, base_name};
use super::program::Program;
use super::report::{Report, Row};
use super::{BenchError, detail, say};
use crate::stack::Client;

/// Address at which the module of the requests is mapped.
const IMAGE: u64 = 0x5555_0000_0000;

/// Examples that are printed for each class.
const EXAMPLES: usize = 3;

/// The frames of the stack at one address, innermost first.
#[derive(Clone, Debug, Default)]
struct Ours {
    frames: Vec<OurFrame>,
}

#[derive(Clone, Debug, Default)]
struct OurFrame {
    symbol: Option<String>,
    line: Option<(String, u64)>,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Equal,
    Alias,
    Unqualified,
    BothNothing,
    Differs(&'static str),
}

/// Symbolicates random addresses of a program, and compares them with the tool.
///
/// # Errors
/// The stack or the tool does not respond.
pub async fn of_program(
    client: &Client,
    program: &Program,
    count: usize,
    seed: u64,
    report: &mut Report,
) -> Result<(), BenchError> {
    say(
        "agreement",
        &format!(
            "{count} random addresses in functions of {}, compared with eu-addr2line",
            program.name
        ),
    );
    let addresses = program.addresses(count, seed);
    let ours = symbolicate(client, program, &addresses, seed).await?;
    let linked: Vec<u64> = addresses
        .iter()
        .map(|address| address + program.load_address)
        .collect();
    let theirs = oracle::ask(&program.debug, &linked)?;

    let mut names = Tally::default();
    let mut lines = Tally::default();
    for ((address, ours), theirs) in addresses.iter().zip(&ours).zip(&theirs) {
        let verdict = compare_names(program, *address, ours, theirs);
        names.count(verdict, || {
            example(*address, &our_names(ours), &their_names(theirs))
        });
        let verdict = compare_lines(ours, theirs);
        lines.count(verdict, || {
            example(*address, &our_lines(ours), &their_lines(theirs))
        });
    }
    let group = format!("Agreement on {}", program.name);
    let percent = names.agreed_percent();
    report.add(
        &group,
        Row::new("function names", format!("{percent:.1} %")).target("≥ 99 %", percent >= 99.0),
    );
    report.add(
        &group,
        Row::new(
            "of these, aliases in the symbol table",
            names.of(Verdict::Alias).to_string(),
        ),
    );
    let unqualified = names.of(Verdict::Unqualified).to_string();
    report.add(
        &group,
        Row::new(
            "of these, without scope and parameters in eu-addr2line",
            unqualified,
        ),
    );
    report.add(
        &group,
        Row::new(
            "file and line of the innermost frame",
            format!("{:.1} %", lines.agreed_percent()),
        ),
    );
    for (what, tally) in [("name", &names), ("line", &lines)] {
        for (class, (count, examples)) in &tally.differing {
            report.add(
                &group,
                Row::new(format!("{what}: {class}"), count.to_string()),
            );
            for example in examples {
                detail(&format!("    {example}"));
            }
        }
    }
    Ok(())
}

/// Sends the addresses in requests of 30 to 100 frames.
async fn symbolicate(
    client: &Client,
    program: &Program,
    addresses: &[u64],
    seed: u64,
) -> Result<Vec<Ours>, BenchError> {
    let mut chance = StdRng::seed_from_u64(seed);
    let mut all = Vec::with_capacity(addresses.len());
    let mut left = addresses;
    while !left.is_empty() {
        let (batch, rest) = left.split_at(left.len().min(chance.random_range(30..=100)));
        left = rest;
        let answer = client
            .completed("timeout=25", &request(program, batch))
            .await?;
        let frames = answer["stacktraces"][0]["frames"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let mut batch = vec![Ours::default(); batch.len()];
        for frame in &frames {
            let index = frame["original_index"]
                .as_u64()
                .and_then(|index| usize::try_from(index).ok());
            let ours = index
                .and_then(|index| batch.get_mut(index))
                .ok_or_else(|| BenchError::Answer {
                    what: "a frame of the response",
                    found: frame.to_string(),
                })?;
            ours.frames.push(our_frame(frame));
        }
        all.append(&mut batch);
    }
    Ok(all)
}

/// Returns a crash of a program with a frame at each of these addresses.
pub(super) fn request(program: &Program, addresses: &[u64]) -> Value {
    let frame = |address: &u64| json!({"instruction_addr": format!("{:#x}", IMAGE + address), "adjust_instruction_addr": false});
    json!({
        "modules": [{
            "type": "elf",
            "code_id": program.code_id,
            "debug_id": program.debug_id,
            "image_addr": format!("{IMAGE:#x}"),
            "image_size": 1_u64 << 30,
        }],
        "stacktraces": [{"frames": addresses.iter().map(frame).collect::<Vec<_>>()}],
    })
}

fn our_frame(frame: &Value) -> OurFrame {
    let symbol = frame["symbol"]
        .as_str()
        .or(frame["function"].as_str())
        .map(str::to_owned);
    let file = frame["abs_path"]
        .as_str()
        .or(frame["filename"].as_str())
        .map(|path| base_name(path).to_owned());
    let line = frame["lineno"].as_u64().filter(|line| *line > 0);
    OurFrame {
        symbol,
        line: file.zip(line),
    }
}

fn compare_names(program: &Program, address: u64, ours: &Ours, theirs: &Said) -> Verdict {
    let our_chain: Vec<String> = ours
        .frames
        .iter()
        .filter_map(|frame| frame.symbol.as_deref().map(normalized))
        .collect();
    let their_chain: Vec<String> = theirs
        .frames
        .iter()
        .filter_map(|frame| frame.function.as_deref().map(normalized))
        .collect();
    let (our_name, their_name) = match (our_chain.first(), their_chain.first()) {
        (None, None) => return Verdict::BothNothing,
        (None, Some(_)) => return Verdict::Differs("only eu-addr2line has one"),
        (Some(_), None) => return Verdict::Differs("eu-addr2line has none"),
        (Some(ours), Some(theirs)) => (ours, theirs),
    };
    if our_name == their_name {
        return Verdict::Equal;
    }
    let aliases: Vec<String> = program.names_at(address).map(normalized).collect();
    if aliases.contains(our_name) && aliases.contains(their_name) {
        return Verdict::Alias;
    }
    if aliases.contains(our_name)
        && is_unqualified(their_name)
        && bare(our_name) == bare(their_name)
    {
        return Verdict::Unqualified;
    }
    Verdict::Differs(if our_chain.contains(their_name) {
        "eu-addr2line omits the innermost inlined call"
    } else if their_chain.contains(our_name) {
        "symdepot omits the innermost inlined call"
    } else if aliases.contains(our_name) {
        "only symdepot's name is in the symbol table at this address"
    } else if aliases.contains(their_name) {
        "only eu-addr2line's name is in the symbol table at this address"
    } else {
        "different functions"
    })
}

fn compare_lines(ours: &Ours, theirs: &Said) -> Verdict {
    let our_line = ours.frames.first().and_then(|frame| frame.line.clone());
    let their_line = theirs.frames.first().and_then(|frame| frame.line.clone());
    let (ours_first, theirs_first) = match (our_line, their_line) {
        (None, None) => return Verdict::BothNothing,
        (None, Some(_)) => return Verdict::Differs("only eu-addr2line has one"),
        (Some(_), None) => return Verdict::Differs("eu-addr2line has none"),
        (Some(ours), Some(theirs)) => (ours, theirs),
    };
    if ours_first == theirs_first {
        return Verdict::Equal;
    }
    Verdict::Differs(
        if ours
            .frames
            .iter()
            .any(|frame| frame.line.as_ref() == Some(&theirs_first))
        {
            "eu-addr2line has the line of an outer frame of symdepot"
        } else if theirs
            .frames
            .iter()
            .any(|frame| frame.line.as_ref() == Some(&ours_first))
        {
            "symdepot has the line of an outer frame of eu-addr2line"
        } else if ours_first.0 == theirs_first.0 {
            "another line of the same file"
        } else {
            "another file"
        },
    )
}

/// Returns a demangled name without clone suffixes.
pub(super) fn normalized(name: &str) -> String {
    let name = without_clone_suffix(name.split('@').next().unwrap_or(name));
    let demangled = Name::new(name, NameMangling::Mangled, Language::Unknown)
        .demangle(DemangleOptions::complete().return_type(false))
        .unwrap_or_else(|| name.to_owned());
    without_clone_suffix(demangled.split(" [clone ").next().unwrap_or(&demangled)).to_owned()
}

/// Removes any number of `.isra.0`, `.part.1`, `.constprop.2`, `.cold`, `.lto_priv.3` and
/// `.localalias`.
fn without_clone_suffix(name: &str) -> &str {
    const SUFFIXES: [&str; 8] = [
        "isra",
        "part",
        "constprop",
        "cold",
        "lto_priv",
        "localalias",
        "llvm",
        "clone",
    ];
    let mut name = name;
    while let Some((rest, last)) = name.rsplit_once('.') {
        let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        let (rest, word) = if is_number {
            match rest.rsplit_once('.') {
                Some(numbered) => numbered,
                None => return name,
            }
        } else {
            (rest, last)
        };
        if !SUFFIXES.contains(&word) {
            return name;
        }
        name = rest;
    }
    name
}

/// Returns whether a name has neither scope nor parameters; it may have template arguments.
fn is_unqualified(name: &str) -> bool {
    let plain = name.split('<').next().unwrap_or(name);
    !plain.contains("::") && !plain.contains('(')
}

/// Returns the last component of a demangled name, without parameters and template arguments.
pub(super) fn bare(name: &str) -> &str {
    let mut depth = 0_usize;
    let mut start = 0;
    let bytes = name.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' if at == start => depth += 1, // (anonymous namespace), {lambda} etc.
            b'(' | b'<' if depth == 0 => {
                // Another component may follow the arguments.
                let rest = name.get(at..).unwrap_or_default();
                if !goes_on(rest) {
                    return name.get(start..at).unwrap_or(name);
                }
                depth += 1;
            }
            b'(' | b'<' => depth += 1,
            b')' | b'>' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes.get(at + 1) != Some(&b':') => start = at + 1,
            _ => {}
        }
    }
    name.get(start..).unwrap_or(name)
}

/// Returns whether another component of the name follows these brackets.
fn goes_on(brackets: &str) -> bool {
    let mut depth = 0_usize;
    for (at, byte) in brackets.bytes().enumerate() {
        match byte {
            b'(' | b'<' => depth += 1,
            b')' | b'>' => depth = depth.saturating_sub(1),
            b':' if depth == 0 => {
                return brackets
                    .get(at + 1..)
                    .is_some_and(|rest| rest.starts_with(':'));
            }
            _ => {}
        }
    }
    false
}

#[derive(Debug, Default)]
struct Tally {
    agreed: BTreeMap<Verdict, usize>,
    differing: BTreeMap<&'static str, (usize, Vec<String>)>,
}

impl Tally {
    fn count(&mut self, verdict: Verdict, example: impl FnOnce() -> String) {
        match verdict {
            Verdict::Differs(class) => {
                let (count, examples) = self.differing.entry(class).or_default();
                *count += 1;
                if examples.len() < EXAMPLES {
                    examples.push(example());
                }
            }
            agreed => *self.agreed.entry(agreed).or_default() += 1,
        }
    }

    fn of(&self, verdict: Verdict) -> usize {
        self.agreed.get(&verdict).copied().unwrap_or(0)
    }

    fn agreed_percent(&self) -> f64 {
        let agreed: usize = self.agreed.values().sum();
        let differing: usize = self.differing.values().map(|(count, _)| count).sum();
        100.0 * agreed as f64 / (agreed + differing).max(1) as f64
    }
}

fn example(address: u64, ours: &str, theirs: &str) -> String {
    format!("{address:#x}  symdepot: {ours}  eu-addr2line: {theirs}")
}

fn our_names(ours: &Ours) -> String {
    joined(
        ours.frames
            .iter()
            .map(|frame| frame.symbol.as_deref().map(normalized)),
    )
}

fn their_names(theirs: &Said) -> String {
    joined(
        theirs
            .frames
            .iter()
            .map(|frame| frame.function.as_deref().map(normalized)),
    )
}

fn our_lines(ours: &Ours) -> String {
    joined(ours.frames.iter().map(|frame| {
        frame
            .line
            .as_ref()
            .map(|(file, line)| format!("{file}:{line}"))
    }))
}

fn their_lines(theirs: &Said) -> String {
    joined(theirs.frames.iter().map(|frame| {
        frame
            .line
            .as_ref()
            .map(|(file, line)| format!("{file}:{line}"))
    }))
}

/// Joins texts for frames, innermost first, truncated to the width of a line.
fn joined(parts: impl Iterator<Item = Option<String>>) -> String {
    const LONGEST: usize = 90;
    let cut = |part: Option<String>| match part {
        Some(part) if part.chars().count() > LONGEST => {
            part.chars().take(LONGEST).chain(['…']).collect()
        }
        Some(part) => part,
        None => "–".to_owned(),
    };
    let parts: Vec<String> = parts.map(cut).take(4).collect();
    if parts.is_empty() {
        "–".to_owned()
    } else {
        parts.join(" < ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_have_the_name_of_their_function() {
        let check = |name: &str, plain: &str| assert_eq!(normalized(name), plain, "{name}");
        check("read_file.isra.0", "read_file");
        check("read_file.part.1.cold", "read_file");
        check("read_file.constprop.0.isra.12", "read_file");
        check("memcpy@@GLIBC_2.14", "memcpy");
        check("_ZN1a1bEi.cold", "a::b(int)");
        check("version.2", "version.2");
        check("x.y", "x.y");
    }

    #[test]
    fn a_bare_name_has_neither_scope_nor_parameters() {
        assert_eq!(bare("a::b<int, c::d<e> >::c(int, a::d) const"), "c");
        assert_eq!(
            bare("(anonymous namespace)::play(std::vector<a::b>)"),
            "play"
        );
        assert_eq!(bare("a::b<int>"), "b");
        assert_eq!(bare("a::b(int)"), "b");
        assert_eq!(bare("b"), "b");
    }
}
