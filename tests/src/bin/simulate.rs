//! Simulates a fleet, seed by seed, and prints the story of each seed that fails.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use symdepot_tests::simulate::{Mistake, Plan, Run, Totals, run, shrink};

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
    /// A planted mistake, which should be found.
    #[arg(long)]
    mistake: Option<String>,
    /// Prints the whole trace of each seed, even if it does not fail.
    #[arg(long)]
    trace: bool,
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
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.seeds) {
        let mut plan = Plan::of_seed(seed, arguments.hours);
        plan.mistake = mistake;
        let done = run(&plan, arguments.trace);
        totals.add(&done);
        if arguments.trace {
            println!("{}", done.lines.join("\n"));
        }
        if done.failure.is_some() {
            tell(&plan);
            failed.push(seed);
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
    ExitCode::FAILURE
}

/// Prints the story of a plan that fails, as short as possible.
fn tell(plan: &Plan) {
    let (smallest, story): (Plan, Run) = shrink(plan);
    let Some(failure) = &story.failure else {
        return;
    };
    println!("seed {} breaks: {}", plan.seed, failure.property);
    println!("{}\n", failure.detail);
    println!("the shortest story that was found, with {smallest}:\n");
    println!("{}\n", story.lines.join("\n"));
}

fn print_totals(totals: &Totals, took: Duration) {
    println!("{totals}");
    println!("took {:.1} s", took.as_secs_f64());
}
