//! How functions are called.

use std::collections::HashMap;

use symbolic::common::{Name, NameMangling};
use symbolic::demangle::{Demangle, DemangleOptions};

use crate::api::symbolicator::Frame;
use crate::domain::Language;

/// The longest name that is demangled, in bytes; a longer one stays as it is.
const LONGEST_NAME: usize = 4096;

/// Complete names with their parameters; what they return is noise on a stack.
const OPTIONS: DemangleOptions = DemangleOptions::complete().return_type(false);

/// The names of a request's functions, each demangled once.
#[derive(Debug, Default)]
pub(super) struct Names<'a> {
    demangled: HashMap<(&'a str, Language), Option<String>>,
}

impl<'a> Names<'a> {
    /// Returns the name of a function for humans: its symbol demangled, or as it is.
    pub(super) fn of(&mut self, symbol: &'a str, language: Language) -> &str {
        self.demangled(symbol, language).unwrap_or(symbol)
    }

    /// Completes the names of a frame that could not be looked up, where it has one that is mangled.
    pub(super) fn complete(&mut self, sent: &'a Frame, frame: &mut Frame) {
        let ((Some(symbol), None) | (None, Some(symbol))) = (&sent.symbol, &sent.function) else {
            return;
        };
        if let Some(function) = self.demangled(symbol, sent.lang.unwrap_or_default()) {
            frame.symbol = Some(symbol.clone());
            frame.function = Some(function.to_owned());
        }
    }

    fn demangled(&mut self, symbol: &'a str, language: Language) -> Option<&str> {
        self.demangled.entry((symbol, language)).or_insert_with(|| demangle(symbol, language)).as_deref()
    }
}

/// Demangles a symbol; `None` if it is not mangled in any way that is known.
fn demangle(symbol: &str, language: Language) -> Option<String> {
    if symbol.len() > LONGEST_NAME {
        return None;
    }
    Name::new(symbol, NameMangling::Unknown, language).demangle(OPTIONS)
}
