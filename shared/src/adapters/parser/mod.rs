//! Parsing DIFs in a process that may die without harm.
//!
//! A session with the child process, which is the same program called with another first argument:
//!
//! 1. It is handed the DIF's file and an empty file for what is unpacked, sets its own limits, and waits for commands.
//! 2. *Inspect*: it unpacks, and answers what is in the DIF and where (see [`wire`]).
//! 3. *Derive*: it answers one blob, or the reason why not, for each job, as each is ready.
//!
//! If it dies, what it had not answered yet is tried again in a new process, one job at a time: the job that kills a
//! process by itself is remembered as a [`Missing`](crate::domain::Missing) that says how. Dropping a session kills its
//! process; wall-clock time is the caller's business.

mod child;
mod death;
#[cfg(any(test, feature = "testing"))]
mod in_process;
mod process;
pub mod transcoder;
pub mod wire;

#[cfg(any(test, feature = "testing"))]
pub use in_process::InProcessDeriver;
pub use process::{ParserLimits, ProcessDeriver};
