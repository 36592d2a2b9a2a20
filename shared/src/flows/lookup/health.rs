//! Loads which symbol servers do not respond, so that no reader waits for them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::finder::CacheFinder;
use super::read_through::ItemQuery;
use crate::cache::{ItemKey, OpenCircuit, Stored};
use crate::domain::{SourceKey, Timestamp};
use crate::flows::permits;
use crate::ports::{Consistency, Fault};

/// The health of symbol servers, by source.
#[derive(Default)]
pub(super) struct Health(HashMap<SourceKey, Arc<Stored>>);

impl Health {
    /// Returns the circuit of this source, if it is open.
    pub(super) fn open_circuit(&self, source: &SourceKey, now: Timestamp) -> Option<OpenCircuit> {
        let stored = self.0.get(source)?;
        permits::health(&stored.item)?.open_circuit(now)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl CacheFinder<'_> {
    /// Loads the health of these servers.
    pub(super) async fn health_of(&self, servers: BTreeSet<&SourceKey>) -> Result<Health, Fault> {
        let queries = servers.iter().map(|source| ItemKey::health(source));
        let queries: Vec<ItemQuery> = queries.map(ItemQuery::alone).collect();
        let loaded = self.load_items(&queries, Consistency::Eventual).await?;
        let known = servers.into_iter().cloned().zip(loaded);
        let known = known.filter_map(|(source, stored)| Some((source, stored?)));
        Ok(Health(known.collect()))
    }
}
