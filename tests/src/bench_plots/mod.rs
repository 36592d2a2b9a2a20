//! A comparison of slice sizes: SymCaches of real programs, cut with several bounds, as tables and
//! plots.
//!
//! 1. [`inputs`](crate::bench_real::inputs): the programs. For a program that is not available, it
//!    prints how to get it.
//! 2. [`measure`]: cuts the plain SymCache of each program repeatedly, and measures the stored
//!    bytes, the bytes that random stacks read, and the time.
//! 3. [`table`] and [`plot`]: present the numbers.

pub mod measure;
pub mod plot;
pub mod table;

use std::path::PathBuf;

use measure::{LEVELS, Measured};
use plot::{Line, thousands};
use symdepot::debuginfo::Bounds;
use table::Table;

use crate::bench_real::inputs::{INPUTS, Input, PLOTTED};
use crate::bench_real::program::Program;
use crate::bench_real::report::{self, bytes};
use crate::bench_real::{BenchError, say};
use crate::stack::checkout;

/// The size limit of a separate item for an index, a design that was considered and rejected.
const INDEX_ITEM: u64 = 24 << 10;

/// Cuts the SymCaches of real programs with several bounds.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Where downloads are kept (default: target/bench-real in the checkout).
    #[arg(long)]
    pub cache: Option<PathBuf>,
    /// The number of random stacks in each program.
    #[arg(long, default_value_t = 100)]
    pub stacks: usize,
    /// The random seed.
    #[arg(long, default_value_t = 20_240_229)]
    pub seed: u64,
    /// Includes Debian's kernel, which is a download of 1 GB.
    #[arg(long)]
    pub kernel: bool,
    /// Where the plots are written (default: docs/plots in the checkout).
    #[arg(long)]
    pub plots: Option<PathBuf>,
    /// Also writes the tables to this file, as Markdown.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
}

impl Arguments {
    fn cache(&self) -> PathBuf {
        let default = || checkout().join("target/bench-real");
        self.cache.clone().unwrap_or_else(default)
    }
}

/// Measures all available programs, prints the tables, and writes the files.
///
/// # Errors
/// See [`BenchError`]. A program that is not available is no error.
pub fn run(arguments: &Arguments) -> Result<(), BenchError> {
    let mut environment = report::environment();
    let mut programs: Vec<(Input, Measured)> = Vec::new();
    for input in INPUTS.into_iter().take(PLOTTED) {
        say(input.name, input.what);
        let Some((debug, version)) = input.file(&arguments.cache(), arguments.kernel) else {
            continue;
        };
        let program = Program::read(input.name, &debug)?;
        environment.push(version);
        let measured = Measured::of(&program, arguments.stacks, arguments.seed)?;
        for table in [
            by_ranges(&input, &measured),
            by_bytes(&input, &measured),
            by_level(&input, &measured),
        ] {
            table.print();
        }
        programs.push((input, measured));
    }
    let overview = overview(&programs);
    overview.print();
    write_plots(arguments, &programs)?;
    if let Some(path) = &arguments.markdown {
        let mut text = format!("{}.\n\n{}", environment.join(", "), overview.markdown());
        for (input, measured) in &programs {
            for table in [
                by_ranges(input, measured),
                by_bytes(input, measured),
                by_level(input, measured),
            ] {
                text.push('\n');
                text.push_str(&table.markdown());
            }
        }
        std::fs::write(path, text).map_err(BenchError::file(path))?;
    }
    Ok(())
}

/// Returns a table of all programs with the current bounds, and whether their indexes fit an item.
fn overview(programs: &[(Input, Measured)]) -> Table {
    let heads = [
        "with the current bounds",
        "debug file",
        "plain SymCache",
        "slices",
        "stored, relative to it",
        "relative to one frame",
        "median stack reads",
        "worst stack reads",
        "index",
        "fits 24 KB",
        "cutting, relative to deriving",
    ];
    let mut table = Table::new("All programs", &heads);
    let mut fitting = 0;
    for (input, measured) in programs {
        let Some(now) = measured.current() else {
            continue;
        };
        let fits = now.index <= INDEX_ITEM;
        fitting += usize::from(fits);
        table.add(vec![
            format!("{} ({})", input.name, input.what),
            bytes(measured.dif),
            bytes(measured.plain),
            thousands(now.slices),
            ratio(now.stored, measured.plain),
            ratio(now.stored, measured.whole),
            bytes(now.read),
            bytes(now.most_read),
            bytes(now.index),
            if fits { "yes" } else { "no" }.to_owned(),
            format!(
                "{:.2} ×",
                now.took.as_secs_f64() / measured.derived.as_secs_f64()
            ),
        ]);
    }
    let mut sum = vec![String::new(); heads.len()];
    "indexes that fit".clone_into(&mut sum[0]);
    sum[9] = format!("{fitting} of {}", programs.len());
    table.add(sum);
    table
}

const HEADS: [&str; 8] = [
    "slices",
    "longest",
    "stored",
    "relative to plain",
    "median stack reads",
    "worst stack reads",
    "index",
    "processor time",
];

fn by_ranges(input: &Input, measured: &Measured) -> Table {
    let heads: Vec<&str> = ["ranges in a slice"].into_iter().chain(HEADS).collect();
    let mut table = Table::new(format!("{}: ranges in a slice", input.name), &heads);
    for sizes in &measured.by_ranges {
        let now = if sizes.bounds == Bounds::CURRENT {
            " (now)"
        } else {
            ""
        };
        let name = format!("{}{now}", thousands(sizes.bounds.ranges));
        table.add(row(name, sizes, measured));
    }
    let mut whole = vec![String::new(); heads.len()];
    "whole, one frame".clone_into(&mut whole[0]);
    whole[3] = bytes(measured.whole);
    whole[4] = ratio(measured.whole, measured.plain);
    whole[5] = bytes(measured.whole);
    whole[6] = bytes(measured.whole);
    table.add(whole);
    table
}

fn by_bytes(input: &Input, measured: &Measured) -> Table {
    let heads: Vec<&str> = ["bytes in a slice"].into_iter().chain(HEADS).collect();
    let ranges = thousands(Bounds::CURRENT.ranges);
    let title = format!("{}: bytes in a slice of {ranges} ranges", input.name);
    let mut table = Table::new(title, &heads);
    for sizes in &measured.by_bytes {
        let name = match sizes.bounds.raw_bytes {
            usize::MAX => "no bound".to_owned(),
            most if sizes.bounds == Bounds::CURRENT => format!("{} KB (now)", most >> 10),
            most => format!("{} KB", most >> 10),
        };
        table.add(row(name, sizes, measured));
    }
    table
}

fn row(name: String, sizes: &measure::Sizes, measured: &Measured) -> Vec<String> {
    vec![
        name,
        thousands(sizes.slices),
        bytes(sizes.longest),
        bytes(sizes.stored),
        ratio(sizes.stored, measured.plain),
        bytes(sizes.read),
        bytes(sizes.most_read),
        bytes(sizes.index),
        format!("{:.2} s", sizes.took.as_secs_f64()),
    ]
}

fn by_level(input: &Input, measured: &Measured) -> Table {
    let now = Bounds::CURRENT.ranges;
    let heads = [
        "ranges in a slice, level",
        "stored",
        "relative to plain",
        "median stack reads",
        "processor time of compressing",
    ];
    let mut table = Table::new(format!("{}: level of zstd", input.name), &heads);
    let levels = [
        (now, &measured.by_level),
        (now / 2, &measured.by_level_of_half),
    ];
    for (ranges, levels) in levels {
        for (number, level) in LEVELS.iter().zip(levels) {
            table.add(vec![
                format!("{}, level {number}", thousands(ranges)),
                bytes(level.stored),
                ratio(level.stored, measured.plain),
                bytes(level.read),
                format!("{:.2} s", level.took.as_secs_f64()),
            ]);
        }
    }
    table
}

fn write_plots(arguments: &Arguments, programs: &[(Input, Measured)]) -> Result<(), BenchError> {
    let default = || checkout().join("docs/plots");
    let folder = arguments.plots.clone().unwrap_or_else(default);
    let line = |usual: fn(&measure::Sizes) -> u64, worst: Option<fn(&measure::Sizes) -> u64>| {
        move |(input, measured): &(Input, Measured)| {
            let bytes = |of: fn(&measure::Sizes) -> u64| -> Vec<u64> {
                let cut = measured.by_ranges.iter().map(of);
                cut.chain([measured.whole]).collect()
            };
            Line {
                name: input.name.to_owned(),
                bytes: bytes(usual),
                worst: worst.map(bytes),
            }
        }
    };
    let read: Vec<Line> = programs
        .iter()
        .map(line(|sizes| sizes.read, Some(|sizes| sizes.most_read)))
        .collect();
    let stored: Vec<Line> = programs
        .iter()
        .map(line(|sizes| sizes.stored, None))
        .collect();
    let plots = [
        (
            "bytes-read.svg",
            "read by a cold stack of 30 random frames",
            read,
        ),
        ("bytes-stored.svg", "stored", stored),
    ];
    say("plots", &format!("in {}", folder.display()));
    for (name, what, lines) in plots {
        plot::write(&folder.join(name), what, &lines, Bounds::CURRENT.ranges)?;
    }
    Ok(())
}

fn ratio(part: u64, whole: u64) -> String {
    report::ratio(part as f64 / whole.max(1) as f64)
}
