//! The protocol of the cache, exhaustively within bounds: every order of the steps of several
//! builders, readers, events and sweeps, over the crate's own [`symdepot::cache::apply`] and
//! [`symdepot::cache::decide`].
//!
//! Four small models rather than a large one. Whoever is at work may crash or be frozen before
//! every step; the answer to a write may be lost, or the client may repeat what had landed;
//! messages come several times and in any order; the clocks of two machines differ by up to a
//! minute. How often, and in which model, is what the bounds say. The number of a property is that
//! of the sentence in `docs/protocol.md`, "What always holds".
//!
//! `SYMDEPOT_MODEL_BOUNDS=large` (`make model`) widens the bounds. A model that cannot fail proves
//! nothing: each has mistakes that it can be told to make, and a test that they are found.

#![expect(
    clippy::unwrap_used,
    reason = "what a model cannot do without is there, or the test fails"
)]

mod absence;
mod lease;
mod record;
mod sweep;
mod uploads;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Model};

/// How far a model goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bounds {
    /// Seconds, without optimisation.
    Small,
    /// Minutes, with it.
    Large,
}

impl Bounds {
    /// Returns the bounds that were asked for.
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

/// Visits every state of a model; each property must hold.
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

/// Returns the first property that a model with a mistake in it breaks.
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
