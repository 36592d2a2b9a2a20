//! The flows over ports in memory, in a world whose time and chance the test drives.
//!
//! Time is tokio's paused clock: it moves when everybody waits, or when the test says so. Chance is
//! a seed that counts up. Every port can be broken through [`World::faults`]; what a port holds is
//! looked at directly.

mod archive;
mod deriver;
mod distant;
mod fixtures;
mod requests;
mod summary;
mod world;

pub use archive::{archive, archive_of, breakpad, breakpad_id};
pub use deriver::Derivations;
pub use distant::travel;
pub use fixtures::{
    Fixture, Oracle, OracleFrame, fixture, fixture_text, hostile_files, manifest, oracle,
};
pub use requests::{Crash, function_names, in_module, of_fixture, sample_crash};
pub use world::{Delivery, World};
