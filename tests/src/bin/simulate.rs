//! Simulates a fleet, seed by seed, and prints the story of each seed that fails.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use symdepot_tests::simulate::{Mistake, Plan, Run, Totals, keep_story, run_all, shrink};

/// The weeks of a busy team in a simulated year.
const WEEKS: u64 = 52;

/// The runs of each kind of trouble beside each of these weeks, each with a seed of its own.
const TROUBLES: u64 = 10;

/// The most runs in search of a shorter story.
const MAX_RUNS: u64 = 5000;

/// Simulates a fleet, seed by seed, and prints the story of each seed that fails
#[derive(Debug, Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// How long the users and the faults of a seed are at work, in simulated hours.
    #[arg(long, default_value_t = 1.0)]
    hours: f64,
    /// Simulates a busy team instead, for this many days with each seed: in a day 2,000 requests,
    /// 200 uploads and a deploy.
    #[arg(long, group = "kind")]
    days: Option<u32>,
    /// Simulates three weeks with each seed instead, in which some modules are forgotten.
    #[arg(long, group = "kind")]
    weeks: bool,
    /// Simulates an hour with each seed instead, in which builders are deployed before readers.
    #[arg(long, group = "kind")]
    deploys: bool,
    /// Simulates an hour with each seed instead, in which events of uploads are lost.
    #[arg(long, group = "kind")]
    unannounced: bool,
    /// Simulates an hour or a day with each seed instead, in which everything happens to few
    /// modules at once.
    #[arg(long, group = "kind")]
    contested: bool,
    /// Simulates an hour with each seed instead, and a quarter of an hour a day later in which
    /// pruners, builders and readers meet at states that are a day old.
    #[arg(long, group = "kind")]
    aged: bool,
    /// Simulates an hour with each seed instead, in which readers of two releases get other bytes
    /// than are stored.
    #[arg(long, group = "kind")]
    doubted: bool,
    /// Simulates an hour with each seed instead, in which files come from symbol servers.
    #[arg(long, group = "kind")]
    served: bool,
    /// Simulates years instead: the weeks of a busy team, and trouble beside each.
    #[arg(long, group = "kind")]
    years: Option<u64>,
    /// A planted mistake, which should be found.
    #[arg(long)]
    mistake: Option<String>,
    /// Prints the whole trace of each seed, even if it does not fail.
    #[arg(long)]
    trace: bool,
    /// Prints only what breaks, without a story.
    #[arg(long)]
    brief: bool,
    /// Keeps the story of the seed as a regression test with this name.
    #[arg(long, requires = "into")]
    keep: Option<String>,
    /// The folder of the tests of the simulation.
    #[arg(long)]
    into: Option<String>,
    /// The number of seeds that run at a time, each on one core; 0: one for each core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

impl Arguments {
    /// Returns the plans to run.
    fn plans(&self) -> Box<dyn Iterator<Item = Plan> + Send + '_> {
        let seeds = self.seed..self.seed.saturating_add(self.seeds);
        match (self.days, self.years) {
            _ if self.deploys => Box::new(seeds.map(Plan::deploys)),
            _ if self.unannounced => Box::new(seeds.map(Plan::unannounced)),
            _ if self.contested => Box::new(seeds.map(Plan::contested)),
            _ if self.aged => Box::new(seeds.map(Plan::aged)),
            _ if self.doubted => Box::new(seeds.map(Plan::doubted)),
            _ if self.served => Box::new(seeds.map(Plan::served)),
            _ if self.weeks => Box::new(seeds.map(Plan::weeks)),
            (Some(days), _) => Box::new(seeds.map(move |seed| Plan::team(seed, days))),
            (None, Some(years)) => Box::new((0..years * WEEKS).flat_map(move |week| {
                let seed = self.seed + week * TROUBLES;
                let troubles = (seed..seed + TROUBLES).flat_map(|seed| {
                    [
                        Plan::of_seed(seed, self.hours),
                        Plan::contested(seed),
                        Plan::aged(seed),
                        Plan::doubted(seed),
                        Plan::served(seed),
                        Plan::deploys(seed),
                        Plan::unannounced(seed),
                    ]
                });
                std::iter::once(Plan::team(seed, 7)).chain(troubles)
            })),
            (None, None) => Box::new(seeds.map(|seed| Plan::of_seed(seed, self.hours))),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mistake = match arguments.mistake.as_deref().map(Mistake::named) {
        Some(None) => {
            let names: Vec<String> = Mistake::ALL.iter().map(|one| format!("{one:?}")).collect();
            eprintln!("unknown mistake; there are:\n{}", names.join("\n"));
            return ExitCode::FAILURE;
        }
        named => named.flatten(),
    };
    let threads = match arguments.threads {
        0 => thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads,
    };
    let (began, mut totals) = (Instant::now(), Totals::default());
    let (mut failed, mut kept) = (Vec::new(), None);
    let plans = arguments.plans().map(|mut plan| {
        plan.mistake = mistake;
        plan
    });
    run_all(plans, arguments.trace, threads, |plan, done| {
        totals.add(&done);
        if arguments.trace {
            println!("{}", done.lines.join("\n"));
        }
        let Some(failure) = &done.failure else {
            return ControlFlow::Continue(());
        };
        failed.push(named(&plan));
        if arguments.brief {
            println!("{} breaks: {}", named(&plan), failure.property);
            println!("{}", failure.detail);
        } else {
            let smallest = tell(&plan);
            if let (Some(name), Some(into)) = (&arguments.keep, &arguments.into) {
                kept = Some(keep(Path::new(into), name, &smallest));
                return ControlFlow::Break(());
            }
        }
        match mistake {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    });
    if let Some(code) = kept {
        return code;
    }
    print_totals(&totals, threads, began.elapsed());
    let is_covered = arguments.years.is_none() || is_covered(&totals);
    if failed.is_empty() {
        return if is_covered {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    println!("failed: {}", failed.join(", "));
    println!("make keep-story SEED=… KIND=… NAME=… turns one into a regression test");
    ExitCode::FAILURE
}

fn keep(folder: &Path, name: &str, plan: &Plan) -> ExitCode {
    match keep_story(folder, name, plan) {
        Ok(path) => {
            println!("kept as the test {name}: {}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot keep the story: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns how a plan is repeated: its seed, and the option that gives plans of this kind.
fn named(plan: &Plan) -> String {
    match &*plan.kind {
        "" => format!("seed {}", plan.seed),
        kind => format!("seed {} {kind}", plan.seed),
    }
}

/// Prints the story of a plan that fails, as short as possible. Returns the plan of the story.
fn tell(plan: &Plan) -> Plan {
    let (smallest, story): (Plan, Run) = shrink(plan, MAX_RUNS);
    if let Some(failure) = &story.failure {
        println!("{} breaks: {}", named(plan), failure.property);
        println!("{}\n", failure.detail);
        println!("the shortest story that was found, with {smallest}:\n");
        println!("{}\n", story.lines.join("\n"));
    }
    smallest
}

/// Returns whether everything happened that can, and nothing that cannot. In a year it should.
fn is_covered(totals: &Totals) -> bool {
    let (never, contradictions) = (totals.never(), totals.contradictions());
    for row in &never {
        println!("it did not happen in this time: {row}");
    }
    for row in &contradictions {
        println!("it cannot happen, and happened: {row}");
    }
    never.is_empty() && contradictions.is_empty()
}

fn print_totals(totals: &Totals, threads: usize, took: Duration) {
    println!("{totals}");
    println!("took {:.1} s with {threads} threads", took.as_secs_f64());
}
