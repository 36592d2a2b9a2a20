//! How a store fails, by what the caller does next.

use std::error::Error;
use std::fmt;

/// A store did not do what it was asked.
#[derive(Debug)]
pub struct Fault {
    kind: FaultKind,
    context: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Try again, later: throttled, timed out, cut off.
    Transient,
    /// Have the permissions mended.
    Denied,
    /// Have what is stored removed and made again.
    Corrupt,
    /// Store less in one item: the store takes none that is as large.
    TooLarge,
    /// Have us mend it.
    Bug,
}

impl Fault {
    /// Returns an error of a kind; `context` names the operation and what it was done to.
    pub fn new(kind: FaultKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            source: None,
        }
    }

    /// Adds what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns what the caller does next.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FaultKind::Transient => "failed for now",
            FaultKind::Denied => "was denied",
            FaultKind::Corrupt => "met corrupt data",
            FaultKind::TooLarge => "was refused as too large",
            FaultKind::Bug => "failed",
        };
        write!(f, "{} {kind}", self.context)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}
