//! A [`Demangler`] without processes, for tests of flows.

use async_trait::async_trait;

use crate::ports::Demangler;
use crate::symbolicate::{IsolatedName, demangle_isolated};

/// Demangles in this process.
#[derive(Clone, Copy, Debug)]
pub struct InProcessDemangler;

#[async_trait]
impl Demangler for InProcessDemangler {
    async fn demangle(&self, names: &[IsolatedName]) -> Vec<Option<String>> {
        names.iter().map(demangle_isolated).collect()
    }
}
