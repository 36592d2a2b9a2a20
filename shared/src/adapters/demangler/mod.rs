//! The [`Demangler`] that demangles names in a child process.
//!
//! The process is the same program called with another first argument ([`COMMAND`]). It reads each
//! name as a line of JSON, `["swift","$s…"]`, and replies with a line of JSON, `"…"` or `null`, in
//! the same order. If the process ends while it demangles a name, that name stays mangled, and
//! another process continues with the next one, and so if a name takes too long.
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

/// The longest reply line, in bytes, with its line break. Longer names are not shown; JSON escapes
/// double some characters.
pub(crate) const LONGEST_ANSWER: usize = 64 << 10;
