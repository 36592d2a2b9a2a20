//! The names of files in the data folder.

/// The file in the data folder that lists the addresses.
pub const ADDRESSES_FILE: &str = "stack.json";

/// The file in the data folder with the record of permissions: a line of JSON for each use of a
/// grant and each denial of a function ([`AccessRecord`](crate::iam::AccessRecord)). It is appended
/// to.
pub const ACCESS_FILE: &str = "access.jsonl";

/// The folder with the links to a program that contains all functions.
pub(super) const PROGRAMS: &str = "functions";

/// The lock file in the data folder.
pub(super) const LOCK_FILE: &str = "lock";
