//! The names of files in the data folder.

/// The file in the data folder that lists the addresses.
pub const ADDRESSES_FILE: &str = "stack.json";

/// The folder with the links to a program that contains all functions.
pub(super) const PROGRAMS: &str = "functions";

/// The lock file in the data folder.
pub(super) const LOCK_FILE: &str = "lock";
