//! A [`Demangler`] without processes, for tests of flows.

use async_trait::async_trait;

use crate::domain::IsolatedName;
use crate::ports::Demangler;

/// Demangles in this process.
#[derive(Clone, Copy, Debug)]
pub struct InProcessDemangler;

#[async_trait]
impl Demangler for InProcessDemangler {
    async fn demangle(&self, names: &[IsolatedName]) -> Vec<Option<String>> {
        names.iter().map(IsolatedName::demangle).collect()
    }
}
