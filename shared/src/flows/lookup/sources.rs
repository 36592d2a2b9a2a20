//! The sources that a request selects, in the order in which they are searched.

use futures::stream::{self, StreamExt, TryStreamExt};

use super::finder::CacheFinder;
use super::read_through::ItemQuery;
use crate::api::symbolicator::{Selected, Sources};
use crate::cache::{ItemKey, Stored};
use crate::domain::{HttpSource, SourceKey};
use crate::flows::Error;
use crate::flows::definitions;
use crate::flows::http_service::CALLS_IN_FLIGHT;
use crate::ports::{Consistency, Fault};

/// A source that a request may use.
pub(in crate::flows) struct SelectedSource {
    /// Its key.
    pub(in crate::flows) key: SourceKey,
    /// Its definition, if the request defines it.
    defined: Option<HttpSource>,
}

impl SelectedSource {
    /// Returns a source that is configured.
    fn configured(key: SourceKey) -> Self {
        Self { key, defined: None }
    }

    /// Returns whether the request defines it.
    pub(super) fn is_defined(&self) -> bool {
        self.defined.is_some()
    }
}

impl CacheFinder<'_> {
    /// Returns the keys of all configured sources, in the order in which they are searched.
    fn configured_keys(&self) -> Vec<SourceKey> {
        let servers = self.service.settings.sources.iter();
        std::iter::once(SourceKey::Uploads)
            .chain(servers.map(|server| server.key().clone()))
            .collect()
    }

    /// Returns all configured sources, as places are searched in.
    pub(in crate::flows) fn all_sources(&self) -> Vec<SelectedSource> {
        let keys = self.configured_keys().into_iter();
        keys.map(SelectedSource::configured).collect()
    }

    /// Returns the sources that a request selects. Stores the definitions of those that it defines.
    pub(in crate::flows) async fn select_sources(
        &self,
        sources: &Sources,
    ) -> Result<Vec<SelectedSource>, Error> {
        let may_define = self.service.settings.request_sources.is_some();
        let selected = sources.select(&self.configured_keys(), may_define);
        let selected = selected.map_err(|error| Error::Invalid {
            detail: error.body().causes.join("; "),
        })?;
        Ok(self.store_selected(selected).await?)
    }

    /// Returns the selected sources with their keys. Stores the definitions of those that the
    /// request defines, so that `derive` can call them.
    pub(in crate::flows) async fn store_selected(
        &self,
        selected: Vec<Selected>,
    ) -> Result<Vec<SelectedSource>, Fault> {
        let sources = self.with_keys(selected);
        let defined = sources.iter();
        let defined = defined.filter_map(|source| Some((&source.key, source.defined.as_ref()?)));
        self.store_definitions(defined.collect()).await?;
        Ok(sources)
    }

    /// Returns the selected sources with their keys. A source that the request defines like a
    /// configured one is that one.
    fn with_keys(&self, selected: Vec<Selected>) -> Vec<SelectedSource> {
        let settings = &self.service.settings;
        let secret = settings.request_sources.as_ref();
        let sources = selected
            .into_iter()
            .filter_map(|source| match (source, secret) {
                (Selected::Configured(key), _) => Some(SelectedSource::configured(key)),
                (Selected::Defined(source), Some(secret)) => {
                    let source = source.without_parameters(&settings.source_event_parameters);
                    Some(match settings.configured_as(&source) {
                        Some(key) => SelectedSource::configured(key.clone()),
                        None => SelectedSource {
                            key: secret.key_of(&source),
                            defined: Some(source),
                        },
                    })
                }
                (Selected::Defined(_), None) => None,
            });
        sources.collect()
    }

    /// Stores the definitions of sources, unless they are stored already.
    async fn store_definitions(
        &self,
        defined: Vec<(&SourceKey, &HttpSource)>,
    ) -> Result<(), Fault> {
        let Some(secret) = &self.service.settings.request_sources else {
            return Ok(());
        };
        let items = defined.iter().map(|(key, _)| ItemKey::source(key));
        let queries: Vec<ItemQuery> = items.map(ItemQuery::alone).collect();
        let loaded = self.load_items(&queries, Consistency::Strong).await?;
        let now = self.invocation.now();
        let is_stored = |source: &HttpSource, item: Option<&Stored>| {
            let passing = secret.passing_credentials(source);
            item.is_some_and(|stored| definitions::is_stored(&stored.item, &passing, now))
        };
        let unstored = defined.into_iter().zip(&loaded);
        let unstored = unstored
            .filter(|((_, source), item)| !is_stored(source, item.as_deref()))
            .map(|(source, _)| source);
        let stores = unstored.map(|(key, source)| async move {
            definitions::store(self.service.writer(self.invocation), secret, key, source).await?;
            self.service.memory.forget(&ItemKey::source(key));
            Ok::<(), Fault>(())
        });
        let stores = stream::iter(stores.collect::<Vec<_>>());
        stores.buffer_unordered(CALLS_IN_FLIGHT).try_collect().await
    }

    /// Returns the definition of a source; `None` for the uploads, and for a source that is no
    /// longer configured.
    pub(super) fn definition<'s>(&'s self, source: &'s SelectedSource) -> Option<&'s HttpSource> {
        let settings = &self.service.settings;
        let defined = source.defined.as_ref();
        defined.or_else(|| settings.source(&source.key))
    }
}
