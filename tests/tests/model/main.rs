//! Models of the cache protocol, checked exhaustively within bounds: every order of the steps of
//! several builders, readers, events and prune runs, over the crate's own
//! [`symdepot::cache::apply`] and [`symdepot::cache::decide`].
//!
//! There are five small models instead of a large one. Workers may crash or be frozen before every
//! step. The response to a write may be lost, or the client may repeat a write that has landed.
//! Messages are delivered several times and in any order. The clocks of two machines differ by up
//! to a minute. The bounds of each model set which of these faults occur, and how often. The number
//! in the name of a property refers to "What always holds" in `docs/protocol.md`; the model of
//! absence has its own properties, with letters.
//!
//! `SYMDEPOT_MODEL_BOUNDS=large` (`make model`) widens the bounds. A model that cannot fail proves
//! nothing, so each one has seeded mistakes, and tests that the checker detects them.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod absence;
mod lease;
mod outcomes;
mod record;
mod sweep;
mod uploads;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Model};

/// How many steps and faults a model includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bounds {
    /// Takes seconds in a debug build.
    Small,
    /// Takes minutes in an optimised build.
    Large,
}

impl Bounds {
    /// Returns the bounds from the environment.
    fn asked_for() -> Self {
        match std::env::var("SYMDEPOT_MODEL_BOUNDS").as_deref() {
            Ok("large") => Self::Large,
            _ => Self::Small,
        }
    }

    fn choose<T>(self, small: T, large: T) -> T {
        match self {
            Self::Small => small,
            Self::Large => large,
        }
    }
}

/// Visits every state of a model and asserts its properties.
fn check<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().threads(2).spawn_dfs().join();
    println!(
        "{name}: {} states, {} steps, at most {} in a row",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

/// Returns the properties that a model with a mistake breaks, up to the first state in which one is
/// broken.
fn broken_by<M>(model: M) -> Vec<&'static str>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let always: Vec<&'static str> = model
        .properties()
        .iter()
        .filter(|property| matches!(property.expectation, stateright::Expectation::Always))
        .map(|property| property.name)
        .collect();
    let found = stateright::HasDiscoveries::AnyFailures;
    let checker = model.checker().finish_when(found).spawn_bfs().join();
    let broken = checker.discoveries().into_keys();
    broken.filter(|name| always.contains(name)).collect()
}
