//! Simulates a fleet, seed by seed, and prints the story of each seed that fails.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use symdepot_tests::simulate::{Mistake, Plan, Run, Totals, keep_story, run, shrink};

/// The weeks of a busy team in a simulated year.
const WEEKS: u64 = 52;

/// The hours of trouble beside each of these weeks, each with a seed of its own.
const TROUBLES: u64 = 10;

/// The most runs in search of a shorter story.
const MOST_RUNS: u64 = 5000;

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
    #[arg(long, conflicts_with = "years")]
    days: Option<u32>,
    /// Simulates three weeks with each seed instead, in which some modules are forgotten.
    #[arg(long, conflicts_with_all = ["years", "days"])]
    weeks: bool,
    /// Simulates an hour with each seed instead, in which builders are deployed before readers.
    #[arg(long, conflicts_with_all = ["years", "days", "weeks"])]
    deploys: bool,
    /// Simulates years instead: the weeks of a busy team, and ten seeds of trouble beside each.
    #[arg(long)]
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
}

impl Arguments {
    /// Returns the plans to run.
    fn plans(&self) -> Box<dyn Iterator<Item = Plan> + '_> {
        let seeds = self.seed..self.seed.saturating_add(self.seeds);
        match (self.days, self.years) {
            _ if self.deploys => Box::new(seeds.map(Plan::deploys)),
            _ if self.weeks => Box::new(seeds.map(Plan::weeks)),
            (Some(days), _) => Box::new(seeds.map(move |seed| Plan::team(seed, days))),
            (None, Some(years)) => Box::new((0..years * WEEKS).flat_map(move |week| {
                let seed = self.seed + week * TROUBLES;
                let troubles = seed..seed + TROUBLES;
                let troubles = troubles.map(|seed| Plan::of_seed(seed, self.hours));
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
    let (began, mut totals) = (Instant::now(), Totals::default());
    let mut failed = Vec::new();
    for mut plan in arguments.plans() {
        plan.mistake = mistake;
        let done = run(&plan, arguments.trace);
        totals.add(&done);
        if arguments.trace {
            println!("{}", done.lines.join("\n"));
        }
        if let Some(failure) = done.failure.as_ref().filter(|_| arguments.brief) {
            println!("seed {} breaks: {}", plan.seed, failure.property);
            println!("{}", failure.detail);
            failed.push(plan.seed);
            if mistake.is_some() {
                break;
            }
        } else if done.failure.is_some() {
            let smallest = tell(&plan);
            failed.push(plan.seed);
            if let (Some(name), Some(into)) = (&arguments.keep, &arguments.into) {
                return keep(Path::new(into), name, &smallest);
            }
            if mistake.is_some() {
                break;
            }
        }
    }
    print_totals(&totals, began.elapsed());
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    let seeds: Vec<String> = failed.iter().map(u64::to_string).collect();
    println!("seeds that failed: {}", seeds.join(", "));
    println!("make keep-story SEED=… NAME=… turns one into a regression test");
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

/// Prints the story of a plan that fails, as short as possible. Returns the plan of the story.
fn tell(plan: &Plan) -> Plan {
    let (smallest, story): (Plan, Run) = shrink(plan, MOST_RUNS);
    if let Some(failure) = &story.failure {
        println!("seed {} breaks: {}", plan.seed, failure.property);
        println!("{}\n", failure.detail);
        println!("the shortest story that was found, with {smallest}:\n");
        println!("{}\n", story.lines.join("\n"));
    }
    smallest
}

fn print_totals(totals: &Totals, took: Duration) {
    println!("{totals}");
    println!("took {:.1} s", took.as_secs_f64());
}
