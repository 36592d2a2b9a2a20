//! Where names are made readable that could harm who does it.

use std::fmt::Debug;

use async_trait::async_trait;

use crate::domain::IsolatedName;

/// Makes names readable where that harms nothing else.
#[async_trait]
pub trait Demangler: Debug + Send + Sync {
    /// Returns the readable form of each name, in their order; `None` where there is none, where making it failed, and
    /// where the time was up before its turn. Never fails: a name that stays mangled is an answer.
    async fn demangle(&self, names: &[IsolatedName]) -> Vec<Option<String>>;
}
