//! The settings of the flows.

use std::time::Duration;

use super::SourceSecret;
use crate::cache::{Capabilities, Converter, Policy};
use crate::domain::{FormatVersion, HttpSource, SourceKey};

/// The settings of the flows; `docs/settings.md` lists the variables that they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The cache rules.
    pub policy: Policy,
    /// The largest DIF that is fetched, in bytes.
    pub dif_max_bytes: u64,
    /// Room for DIFs while they are derived, in bytes.
    pub scratch_bytes: u64,
    /// Memory that the parser of a DIF may use, in bytes.
    pub parser_memory_bytes: u64,
    /// How long a pending request can be asked for.
    pub request_lifetime: Duration,
    /// Blobs younger than this are no orphans: their build may not have published yet.
    pub orphan_min_age: Duration,
    /// The symbol servers that are configured, in the order in which they are asked.
    pub sources: Vec<Server>,
    /// The secret of the sources that requests define; `None` where they may not.
    pub request_sources: Option<SourceSecret>,
    /// The absence of a DIF from a public source is remembered for this long.
    pub retry_public_misses_after: Duration,
    /// What the sweep may read of the records in a second, in DynamoDB's read units; 0: as fast as it can.
    pub sweep_read_units: u64,
    /// An upload that was not heard of, or is pending, for longer than this is looked after.
    pub reconcile_after: Duration,
    /// Bytes that derived caches may have together; 0: as many as they like.
    pub derived_budget_bytes: u64,
    /// A copy of a DIF that nobody derived from for this long is retired; zero: none are made.
    pub dif_max_unused: Duration,
    /// Bytes that copies of DIFs may have together; 0: as many as they like.
    pub dif_budget_bytes: u64,
    /// Builds that may ask one symbol server at a time, over all instances.
    pub source_max_permits: usize,
    /// Blobs that may be taken for lost in an hour, over all instances.
    pub max_losses_per_hour: u64,
    /// The versions of Microsoft's SymCaches that can be made here: one a transcoder, one transcoder a major version.
    pub transcoded: Vec<FormatVersion>,
    /// Derived caches that stay in memory between requests, in bytes.
    pub memory_cache_bytes: u64,
}

/// A symbol server that is configured, and its key: that costs a hash, and every request asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    key: SourceKey,
    source: HttpSource,
}

impl Server {
    /// Returns its key.
    pub fn key(&self) -> &SourceKey {
        &self.key
    }
}

impl From<HttpSource> for Server {
    fn from(source: HttpSource) -> Self {
        Self {
            key: SourceKey::configured(&source),
            source,
        }
    }
}

impl Settings {
    /// Returns the configured source with this key; `None` where it is configured otherwise now, or not at all.
    pub fn source(&self, key: &SourceKey) -> Option<&HttpSource> {
        self.sources
            .iter()
            .find(|server| server.key == *key)
            .map(|server| &server.source)
    }

    /// Returns what a reader under these settings can read and make.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            converter: Converter::CURRENT,
            limits: vec![
                self.dif_max_bytes,
                self.scratch_bytes,
                self.parser_memory_bytes,
            ],
            transcoded: self.transcoded.clone(),
        }
    }
}
