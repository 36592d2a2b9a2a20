//! The settings of the flows.

use std::time::Duration;

use super::SourceSecret;
use crate::cache::{Capabilities, ModuleKey, Policy};
use crate::domain::{FormatVersion, HttpSource, SourceKey, SourceLinks, link_target};

/// The settings of the flows; `docs/settings.md` lists the variables that they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The cache rules.
    pub policy: Policy,
    /// The maximum size of a DIF that is fetched, in bytes.
    pub dif_max_bytes: u64,
    /// The scratch space for DIFs, in bytes.
    pub scratch_bytes: u64,
    /// The memory limit of the parser of a DIF, in bytes.
    pub parser_memory_bytes: u64,
    /// How long a request waits while none of the builds that it waits for is in progress; `None`
    /// if builds have runs of their own, so that requests cannot keep them from beginning.
    pub queued_wait: Option<Duration>,
    /// How long a pending request can be continued.
    pub request_lifetime: Duration,
    /// The minimum age of an orphan: the build of a younger blob may not have published it yet.
    pub orphan_min_age: Duration,
    /// The configured symbol servers, in the order in which they are searched.
    pub sources: Vec<Server>,
    /// The secret for sources that requests define; `None` if requests may not define sources.
    pub request_sources: Option<SourceSecret>,
    /// The links to source files that may be followed.
    pub source_links: SourceLinks,
    /// The headers and parameters of the query in definitions of requests that change with each
    /// event. They are dropped.
    pub source_event_parameters: Vec<String>,
    /// The hosts that requests may refer to for crash files, each possibly with a port. They are
    /// requested over https, unless the text begins with `http://`.
    pub attachment_hosts: Vec<String>,
    /// How long a miss of a public source is cached.
    pub retry_public_misses_after: Duration,
    /// The read capacity that the pruner may use in a second, in DynamoDB's read units; 0: no
    /// limit.
    pub sweep_read_units: u64,
    /// The age at which the pruner re-queues an upload that has no item or is pending.
    pub reconcile_after: Duration,
    /// The byte budget of derived caches; 0: no limit.
    pub derived_budget_bytes: u64,
    /// The time after which an unused copy of a DIF is retired; zero: no copies are made.
    pub dif_max_unused: Duration,
    /// The byte budget of copies of DIFs; 0: no limit.
    pub dif_budget_bytes: u64,
    /// The number of permits per symbol server, over all instances.
    pub source_max_permits: usize,
    /// The number of blobs that may be confirmed as lost in an hour, over all instances.
    pub max_losses_per_hour: u64,
    /// The versions of Microsoft's SymCaches that this deployment can make. Each has a transcoder;
    /// there is at most one transcoder per major version.
    pub transcoded: Vec<FormatVersion>,
    /// The memory for derived caches between requests, in bytes.
    pub memory_cache_bytes: u64,
    /// Whether requests without a credential may do everything: on the local stack.
    pub allows_anonymous: bool,
}

/// The defaults in `docs/settings.md`, which the template sets. No symbol servers and no
/// transcoders are configured, and requests may not define sources.
impl Default for Settings {
    fn default() -> Self {
        const HOUR: Duration = Duration::from_secs(3600);
        Self {
            policy: Policy::default(),
            dif_max_bytes: 8 << 30,
            scratch_bytes: (19 << 30) / 2,
            parser_memory_bytes: 9 << 30,
            queued_wait: None,
            request_lifetime: HOUR,
            orphan_min_age: HOUR,
            sources: Vec::new(),
            request_sources: None,
            source_links: SourceLinks::default(),
            source_event_parameters: ["x-sentry-event-id", "x-sentry-project-id", "_last_upload"]
                .map(str::to_owned)
                .into(),
            attachment_hosts: Vec::new(),
            retry_public_misses_after: 24 * HOUR,
            sweep_read_units: 500,
            reconcile_after: HOUR,
            derived_budget_bytes: 0,
            dif_max_unused: 7 * 24 * HOUR,
            dif_budget_bytes: 0,
            source_max_permits: 8,
            max_losses_per_hour: 100,
            transcoded: Vec::new(),
            memory_cache_bytes: 1 << 30,
            allows_anonymous: false,
        }
    }
}

/// A configured symbol server, with its key precomputed, because every request needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    key: SourceKey,
    source: HttpSource,
    /// Whether it was configured without credentials.
    has_no_credentials: bool,
}

impl Server {
    /// Returns its key.
    pub fn key(&self) -> &SourceKey {
        &self.key
    }

    /// Returns its definition.
    pub fn source(&self) -> &HttpSource {
        &self.source
    }

    /// Returns the server without its credentials.
    #[must_use]
    pub fn without_credentials(self) -> Self {
        Self {
            source: self.source.without_credentials(),
            ..self
        }
    }

    /// Returns whether a definition in a request describes this server. The result is never `true`
    /// for a server with credentials, which a request must not borrow. What the request says of
    /// publicity does not matter.
    fn is_defined_by(&self, definition: &HttpSource) -> bool {
        let HttpSource {
            id,
            url,
            query: _,
            headers: _,
            access,
            layout,
            filters,
            is_public: _,
            is_private: _,
            without_effect: _,
        } = definition;
        let own = &self.source;
        self.has_no_credentials
            && !definition.has_credentials()
            && (&own.id, &own.url, &own.layout, &own.filters) == (id, url, layout, filters)
            && own.access == *access
    }
}

impl From<HttpSource> for Server {
    fn from(source: HttpSource) -> Self {
        Self {
            key: source.configured_key(),
            has_no_credentials: !source.has_credentials(),
            source,
        }
    }
}

impl Settings {
    /// Returns the configured source with this key; `None` if it is not configured, or its
    /// configuration has changed.
    pub fn source(&self, key: &SourceKey) -> Option<&HttpSource> {
        self.sources
            .iter()
            .find(|server| server.key == *key)
            .map(|server| &server.source)
    }

    /// Returns the source of a linked file, which is sought as this module; `None` if the link may
    /// not be followed.
    pub fn link_source(&self, module: &ModuleKey) -> Option<HttpSource> {
        let sought = module.sought().filter(|sought| sought.is_source_file)?;
        let (_, location) = sought.locations.first()?;
        let target = link_target(location.as_str())?;
        Some(self.source_links.allowed(&target)?.source)
    }

    /// Returns the key of the configured source that a definition in a request describes.
    pub fn configured_as(&self, definition: &HttpSource) -> Option<&SourceKey> {
        let mut servers = self.sources.iter();
        let server = servers.find(|server| server.is_defined_by(definition));
        server.map(Server::key)
    }

    /// Returns what a reader with these settings can read and make.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            numbers: self.policy.numbers,
            limits: vec![
                self.dif_max_bytes,
                self.scratch_bytes,
                self.parser_memory_bytes,
            ],
            transcoded: self.transcoded.clone(),
        }
    }
}
