//! Parses DIFs in a child process that may die without harm.
//!
//! The child process is the same program called with another first argument. A session with it:
//!
//! 1. The child inherits the DIF's file and an empty file for unpacked members, sets its own
//!    limits, and waits for commands.
//! 2. *Inspect*: it unpacks, and replies what the DIF contains and where (see [`wire`]).
//! 3. *Derive*: it replies with one blob, or the reason for its absence, for each job as soon as
//!    that job is complete.
//!
//! A part of the DIF may still be written during all of this (`late.rs`). The child waits for it
//! where it needs it.
//!
//! If the child dies, the jobs without a reply are retried in a new process, one at a time. A job
//! that kills a process when it runs alone is stored as a [`Missing`](crate::domain::Missing) with
//! the cause. Dropping a session kills its process; the caller limits the wall-clock time.

mod child;
mod death;
#[cfg(any(test, feature = "testing"))]
mod in_process;
mod late;
mod limits;
mod process;
pub mod transcoder;
pub mod wire;

#[cfg(any(test, feature = "testing"))]
pub use in_process::InProcessDeriver;
pub use limits::ParserLimits;
pub use process::ProcessDeriver;
