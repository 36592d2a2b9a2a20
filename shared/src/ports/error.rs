//! The error type of the ports, classified by what the caller does next.

use std::error::Error;
use std::fmt;

/// A failed operation on a store, a source or a child process.
#[derive(Debug)]
pub struct Fault {
    kind: FaultKind,
    context: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Retry later: the operation was throttled, timed out or was interrupted.
    Transient,
    /// Not permitted: the operator fixes the permissions.
    Denied,
    /// The stored data is corrupt: it is removed and built again.
    Corrupt,
    /// The item exceeds the size limit of the store: less is stored in it.
    TooLarge,
    /// A bug in symdepot or in its deployment.
    Bug,
}

impl Fault {
    /// Returns an error of a kind; `context` names the operation and its subject.
    pub fn new(kind: FaultKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            source: None,
        }
    }

    /// Adds the cause.
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
            FaultKind::Transient => "temporary failure",
            FaultKind::Denied => "access denied",
            FaultKind::Corrupt => "corrupt data",
            FaultKind::TooLarge => "item too large",
            FaultKind::Bug => "internal error",
        };
        write!(f, "{kind}: {}", self.context)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}
