//! Simulations of a fleet: the same seed gives the same run, the product passes, and planted
//! mistakes are found. `make simulate` runs many more seeds.

use symdepot_tests::simulate::{Mistake, Plan, Run, Totals, run, shrink};

/// The seeds of `make test`.
const SEEDS: u64 = 120;

/// The most seeds that are tried to find a planted mistake.
const SEEDS_OF_A_MISTAKE: u64 = 30;

/// Seeds that found something in an earlier version of the product.
///
/// Two deliveries of an event marked the same entries, and the message that was left named a build
/// request that no entry had.
const KEPT: [u64; 2] = [102, 1166];

fn run_of(seed: u64) -> Run {
    run(&Plan::of_seed(seed, 1.0), false)
}

/// Fails with the story of a seed.
fn tell(seed: u64) -> ! {
    let (plan, story) = shrink(&Plan::of_seed(seed, 1.0));
    let failure = story.failure;
    panic!(
        "seed {seed}, {plan}:\n{}\n{failure:?}",
        story.lines.join("\n")
    );
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 1..6 {
        let plan = Plan::of_seed(seed, 1.0);
        let (first, second) = (run(&plan, true), run(&plan, true));
        assert_eq!(first.lines, second.lines, "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn seeds_differ() {
    assert_ne!(run_of(1).hash, run_of(2).hash);
}

#[test]
fn what_always_holds_holds_in_simulated_fleets() {
    let mut totals = Totals::default();
    for seed in 1..=SEEDS {
        let run = run_of(seed);
        if run.failure.is_some() {
            tell(seed);
        }
        totals.add(&run);
    }
    println!("{totals}");
    assert_eq!(totals.never(), NEVER);
}

#[test]
fn seeds_that_found_something_pass() {
    for seed in KEPT {
        if run_of(seed).failure.is_some() {
            tell(seed);
        }
    }
}

/// The first seed that is tried for a mistake. Most are found within a few seeds.
fn first_seed(mistake: Mistake) -> u64 {
    match mistake {
        Mistake::DirtyMarksAreForgotten => 29,
        Mistake::LeasesNeverExpire => 17,
        Mistake::RevocationsKeepTheLease => 40,
        Mistake::PlaceholdersNeverExpire => 178,
        Mistake::SequencersAreIgnored => 20,
        Mistake::MemoryIgnoresTheWallClock => 21,
        _ => 1,
    }
}

#[test]
fn planted_mistakes_are_found() {
    let is_found = |mistake: &Mistake| {
        let first = first_seed(*mistake);
        (first..first + SEEDS_OF_A_MISTAKE).any(|seed| {
            let mut plan = Plan::of_seed(seed, 1.0);
            plan.mistake = Some(*mistake);
            run(&plan, false).failure.is_some()
        })
    };
    let left: Vec<Mistake> = Mistake::ALL
        .into_iter()
        .filter(|mistake| !is_found(mistake))
        .collect();
    assert_eq!(left, []);
}

/// What no seed can reach, and why.
const NEVER: [&str; 3] = [
    // Readers and builders validate blobs alike, so they never disagree.
    "change: dispute",
    // All instances run one build of the code: there are no lower versions.
    "change: drop older",
    "decision: use older",
];

#[test]
fn a_story_is_shorter_than_the_run_that_it_comes_from() {
    let mut plan = Plan::of_seed(1, 1.0);
    plan.mistake = Some(Mistake::RevokedStatesStay);
    let whole = run(&plan, true);
    let (smaller, story) = shrink(&plan);
    assert!(smaller.actions() < plan.actions() / 4, "{smaller}");
    assert_eq!(
        story.failure.map(|failure| failure.property),
        whole.failure.map(|failure| failure.property)
    );
}
