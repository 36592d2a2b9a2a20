//! The [`Demangler`] that hands names to a process of its own.
//!
//! The process is the same program called with another first argument ([`COMMAND`]). It reads a name as a line of JSON,
//! `["swift","$s…"]`, and answers with a line of JSON, `"…"` or `null`, for each in its turn. Where it ends over a name,
//! that name stays mangled, and another process goes on with the next one.
//!
//! [`Demangler`]: crate::ports::Demangler

#[cfg(any(test, feature = "testing"))]
mod in_process;
mod process;

#[cfg(any(test, feature = "testing"))]
pub use in_process::InProcessDemangler;
pub use process::ProcessDemangler;

/// The argument that makes the program a demangler.
pub const COMMAND: &str = "demangle-names";

/// The longest line of an answer, in bytes: longer names are not shown, and JSON doubles some letters.
const MAX_LINE_BYTES: u64 = 64 << 10;
