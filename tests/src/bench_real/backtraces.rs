//! Measures what cold stacks of a running program read: backtraces that gdb takes of Java's virtual
//! machine while it compiles.
//!
//! `ceph-osd` would need a cluster to do any work. The compilers of the virtual machine have deep
//! call stacks within one module, and run anywhere. gdb breaks where they allocate memory for an
//! arena: this happens at any depth, and at the same calls in each run except for the order of
//! threads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::packages::{self, JVM};
use super::program::Program;
use super::report::{Report, Row};
use super::slices::{self, Reads};
use super::{BenchError, detail, percentile, say};
use crate::stack::Client;

/// The minimum number of frames of a backtrace in the module.
const FRAMES: usize = 30;

/// The maximum number of backtraces.
const STACKS: usize = 100;

/// Prints each backtrace; run by gdb.
const SCRIPT: &str = include_str!("backtraces.py");

/// Takes backtraces, and measures what each reads of the program's caches. Prints a note if gdb is
/// not installed.
///
/// # Errors
/// The program does not run under gdb, or a request is not completed.
pub async fn measure(
    client: &Client,
    program: &Program,
    cache: &Path,
    report: &mut Report,
) -> Result<(), BenchError> {
    say(
        "backtraces",
        &format!("backtraces of {} by gdb while it compiles", program.name),
    );
    let Some(stacks) = take(cache)? else {
        detail("skipped: gdb is not installed; on Debian: apt-get install gdb");
        return Ok(());
    };
    let lengths: Vec<f64> = stacks.iter().map(|stack| stack.len() as f64).collect();
    let reads = slices::read_cold(client, program, &stacks).await?;
    add(program, &lengths, &reads, report);
    Ok(())
}

fn add(program: &Program, lengths: &[f64], reads: &Reads, report: &mut Report) {
    let group = format!(
        "Cold stacks by gdb, at least {FRAMES} frames in one module ({})",
        program.name
    );
    report.add(
        &group,
        Row::new("stacks", lengths.len().to_string()).target("≥ 50", lengths.len() >= 50),
    );
    report.add(
        &group,
        Row::new(
            "frames of a stack: minimum, median, maximum",
            format!(
                "{}, {}, {}",
                percentile(lengths, 0),
                percentile(lengths, 50),
                percentile(lengths, 100)
            ),
        ),
    );
    let found = reads.found_percent();
    report.add(
        &group,
        Row::new("frames with a function", format!("{found:.1} %")).target("≥ 99 %", found >= 99.0),
    );
    let most = (500_000, "≤ 500 kB");
    reads.add_to(report, &group, most, most);
}

/// Runs the program under gdb, and returns its backtraces: addresses in the module, innermost
/// first. Returns `None` if gdb is not installed.
fn take(cache: &Path) -> Result<Option<Vec<Vec<u64>>>, BenchError> {
    let is_there = Command::new("gdb")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if is_there.is_err() {
        return Ok(None);
    }
    let folder = packages::unpacked(cache, JVM)?;
    let java = java(&folder)?;
    let script = tempfile::Builder::new()
        .suffix(".py")
        .tempfile()
        .map_err(BenchError::file("a script for gdb"))?;
    std::fs::write(script.path(), SCRIPT).map_err(BenchError::file(script.path()))?;
    let set = |name: &str, value: String| ["-ex".to_owned(), format!("set ${name} = {value}")];
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch"])
        .args(set("function", "\"Arena::grow\"".to_owned()))
        .args(set("module", format!("{:?}", JVM.path)))
        .args(set("least", FRAMES.to_string()))
        .args(set("most", STACKS.to_string()))
        .arg("-x")
        .arg(script.path())
        .arg("--args")
        .arg(java)
        // Methods are compiled before they run for the first time.
        .args(["-Xcomp", "-version"]);
    let output = gdb.output().map_err(|source| BenchError::Tool {
        tool: "gdb".to_owned(),
        source,
    })?;
    let said = String::from_utf8_lossy(&output.stdout);
    let stacks: Vec<Vec<u64>> = said
        .lines()
        .filter_map(|line| line.strip_prefix("stack "))
        .map(|line| {
            let address = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
            line.split_whitespace().filter_map(address).collect()
        })
        .collect();
    if stacks.is_empty() {
        return Err(BenchError::Answer {
            what: "the backtraces of gdb",
            found: format!("{said}{}", String::from_utf8_lossy(&output.stderr)),
        });
    }
    Ok(Some(stacks))
}

/// Returns the program `java` of an unpacked package.
fn java(folder: &Path) -> Result<PathBuf, BenchError> {
    let machines = folder.join("usr/lib/jvm");
    let entries = std::fs::read_dir(&machines).map_err(BenchError::file(&machines))?;
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path().join("bin/java"))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found.pop().ok_or_else(|| BenchError::NotInPackage {
        package: JVM.package.to_owned(),
        wanted: "program java".to_owned(),
    })
}
