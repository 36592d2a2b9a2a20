//! Names that are readable only at a risk.

use symbolic::common::{Language, Name, NameMangling};
use symbolic::demangle::{Demangle, DemangleOptions};

/// Complete names with their parameters; what they return is noise on a stack.
pub const READABLE: DemangleOptions = DemangleOptions::complete().return_type(false);

/// A mangled name that only a process without rights may make readable: Swift's demangler ends its process over some
/// names, and back references let a hundred bytes stand for gigabytes of text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IsolatedName {
    /// The mangled name.
    pub symbol: String,
    /// Its language, where it is known.
    pub language: Language,
}

impl IsolatedName {
    /// Returns the readable name; `None` if it is not mangled in any way that is known.
    ///
    /// This may end the process, or take all memory and time that it has.
    pub fn demangle(&self) -> Option<String> {
        Name::new(&self.symbol, NameMangling::Unknown, self.language).demangle(READABLE)
    }
}
