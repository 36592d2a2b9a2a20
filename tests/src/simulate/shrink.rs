//! Shrinks a plan that fails: fewer actions, fewer faults, fewer instances, less time. What is left
//! is a story that a person can read.

use std::time::Duration;

use super::faults::Rates;
use super::{Plan, Run, run};

/// The schedules that are tried for each smaller plan: it may fail with another one only.
const TRIES: u64 = 6;

/// Returns a smaller plan that breaks the same property, and its run. Tries about this many runs.
pub fn shrink(plan: &Plan, most: u64) -> (Plan, Run) {
    let mut tried = 0;
    let mut smallest = plan.clone();
    let mut story = run(&smallest, true);
    let Some(property) = story.failure.as_ref().map(|failure| failure.property) else {
        return (smallest, story);
    };
    let mut is_smaller = true;
    while is_smaller {
        is_smaller = false;
        for candidate in smaller(&smallest) {
            if tried >= most {
                break;
            }
            tried += TRIES;
            if let Some((plan, found)) = fails(&candidate, property) {
                (smallest, story, is_smaller) = (plan, found, true);
                break;
            }
        }
    }
    (smallest, story)
}

/// Returns a plan that breaks a property like this one, perhaps with another schedule.
fn fails(plan: &Plan, property: &str) -> Option<(Plan, Run)> {
    let schedules = (0..TRIES).map(|schedule| Plan {
        schedule: plan.schedule + schedule,
        ..plan.clone()
    });
    schedules.into_iter().find_map(|plan| {
        let found = run(&plan, true);
        let failure = found.failure.as_ref();
        let is_it = failure.is_some_and(|failure| failure.property == property);
        is_it.then_some((plan, found))
    })
}

/// Returns plans that are a little smaller, those that are much smaller first.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        if smaller != *plan {
            plans.push(smaller);
        }
    };
    add(&|plan| plan.rates = Rates::NONE);
    let count = plan.actions.len();
    let mut length = count.div_ceil(2);
    while length > 0 {
        for first in (0..count).step_by(length) {
            add(&|plan| {
                drop(plan.actions.drain(first..(first + length).min(count)));
                plan.forget_half_configured();
            });
        }
        length /= 2;
    }
    for rates in plan.rates.without_one() {
        add(&|plan| plan.rates = rates);
    }
    add(&|plan| plan.clocks_differ = false);
    add(&|plan| plan.clocks_stop = false);
    add(&|plan| plan.symbolicates = (plan.symbolicates - 1).max(1));
    add(&|plan| plan.derives = (plan.derives - 1).max(1));
    add(&|plan| plan.prunes = (plan.prunes - 1).max(1));
    add(&|plan| plan.prunes_every = Duration::from_secs(3600).max(plan.prunes_every));
    plans
}
