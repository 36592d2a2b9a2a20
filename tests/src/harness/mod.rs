//! The flows with in-memory ports, in a world whose time and randomness the test controls.
//!
//! Time is tokio's paused clock: it advances when all tasks wait, or when the test advances it.
//! Randomness comes from a seed that is counted up. Every port can be made to fail through
//! [`World::faults`]; tests inspect the contents of the ports directly.

mod archive;
mod bundle;
mod deriver;
mod distant;
mod fixtures;
mod linked;
mod requests;
mod summary;
mod world;

pub use crate::made_up_dump::{MadeUpDump, MadeUpModule, MadeUpStack, MadeUpThread, full_dump};
pub use archive::{archive, archive_of, breakpad, breakpad_id};
pub use bundle::source_bundle;
pub use deriver::Derivations;
pub use distant::travel;
pub use fixtures::{
    Fixture, Oracle, OracleFrame, fixture, fixture_text, hostile_files, manifest, oracle,
};
pub use linked::{linked_pdb, linked_to, pdb_with_stream};
pub use requests::{Crash, function_names, in_module, of_fixture, sample_crash, stored_request};
pub use world::{Delivery, World, test_settings};
