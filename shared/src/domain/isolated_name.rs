//! Mangled names that are dangerous to demangle.

use symbolic::common::{Language, Name, NameMangling};
use symbolic::demangle::{Demangle, DemangleOptions};

/// Complete names with their parameters, without return types, which are noise in a stack trace.
pub const READABLE: DemangleOptions = DemangleOptions::complete().return_type(false);

/// A mangled name that must be demangled in a process without privileges. Swift's demangler aborts
/// the process on some names. With back references, a hundred bytes can expand to gigabytes of
/// text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IsolatedName {
    /// The mangled name.
    pub symbol: String,
    /// Its language, if known.
    pub language: Language,
}

impl IsolatedName {
    /// Returns the demangled name; `None` if the name is not mangled in a known way.
    ///
    /// This may abort the process, or use all its memory and time.
    pub fn demangle(&self) -> Option<String> {
        Name::new(&self.symbol, NameMangling::Unknown, self.language).demangle(READABLE)
    }
}
