//! Demangling of names that could harm the process that demangles them.

use std::fmt::Debug;

use async_trait::async_trait;

use crate::domain::IsolatedName;

/// Demangles names in isolation from the rest of the function.
#[async_trait]
pub trait Demangler: Debug + Send + Sync {
    /// Returns the demangled form of each name, in order. `None` if the name is not mangled,
    /// demangling failed, or the time was up before its turn. Never fails: callers use the mangled
    /// name instead.
    async fn demangle(&self, names: &[IsolatedName]) -> Vec<Option<String>>;
}
