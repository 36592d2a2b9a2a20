//! The places where a module may be found, in the order of precedence.
//!
//! A symbol server is one place. The uploads are one place per scope that the request may read.

use std::borrow::Cow;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::finder::CacheFinder;
use super::items::ItemQuery;
use super::place::CachePlace;
use crate::api::symbolicator::Selected;
use crate::cache::{ItemKey, Kind, ModuleKey, Sought, Stored};
use crate::domain::{FileType, HttpSource, Location, ModuleId, ObjectId, Scope, SourceKey};
use crate::flows::definitions;
use crate::flows::symbolicator::CALLS_IN_FLIGHT;
use crate::ports::{Consistency, Fault};

/// A source that a request may use, with its definition if the request defines it.
pub(in crate::flows) type NamedSource = (SourceKey, Option<HttpSource>);

impl CacheFinder<'_> {
    /// Returns the keys of all configured sources, in the order in which they are searched.
    pub(in crate::flows) fn sources(&self) -> Vec<SourceKey> {
        let servers = self.service.settings.sources.iter();
        std::iter::once(SourceKey::Uploads)
            .chain(servers.map(|server| server.key().clone()))
            .collect()
    }

    /// Returns all configured sources, as places are searched in.
    pub(in crate::flows) fn all_sources(&self) -> Vec<NamedSource> {
        let keys = self.sources().into_iter();
        keys.map(|key| (key, None)).collect()
    }

    /// Returns the keys of the selected sources, with the definitions of those that the request
    /// defines. Stores these definitions, so that `derive` can call the sources.
    pub(in crate::flows) async fn keep_named(
        &self,
        selected: Vec<Selected>,
    ) -> Result<Vec<NamedSource>, Fault> {
        let named = self.keys_of(selected);
        let defined = named.iter();
        let defined = defined.filter_map(|(key, source)| Some((key, source.as_ref()?)));
        self.keep_definitions(defined.collect()).await?;
        Ok(named)
    }

    fn keys_of(&self, selected: Vec<Selected>) -> Vec<NamedSource> {
        let settings = &self.service.settings;
        let secret = settings.request_sources.as_ref();
        let keys = selected
            .into_iter()
            .filter_map(|source| match (source, secret) {
                (Selected::Configured(key), _) => Some((key, None)),
                (Selected::Defined(source), Some(secret)) => {
                    let source = source.without_parameters(&settings.source_event_parameters);
                    match settings.configured_as(&source) {
                        Some(key) => Some((key.clone(), None)),
                        None => Some((secret.key_of(&source), Some(source))),
                    }
                }
                (Selected::Defined(_), None) => None,
            });
        keys.collect()
    }

    /// Stores the definitions of sources, unless they are stored already.
    async fn keep_definitions(&self, defined: Vec<(&SourceKey, &HttpSource)>) -> Result<(), Fault> {
        let Some(secret) = &self.service.settings.request_sources else {
            return Ok(());
        };
        let items = defined.iter().map(|(key, _)| ItemKey::source(key));
        let wanted: Vec<ItemQuery> = items.map(ItemQuery::alone).collect();
        let loaded = self.load_items(&wanted, Consistency::Strong).await?;
        let now = self.invocation.now();
        let is_kept = |source: &HttpSource, item: Option<&Stored>| {
            let passing = secret.passing_credentials(source);
            item.is_some_and(|stored| definitions::is_kept(&stored.item, &passing, now))
        };
        let unkept = defined.into_iter().zip(&loaded);
        let unkept = unkept
            .filter(|((_, source), item)| !is_kept(source, item.as_deref()))
            .map(|(source, _)| source);
        let keeps = unkept.map(|(key, source)| async move {
            definitions::keep(self.service.update(self.invocation), secret, key, source).await?;
            self.service.memory.forget(&ItemKey::source(key));
            Ok::<(), Fault>(())
        });
        let keeps = stream::iter(keeps.collect::<Vec<_>>());
        keeps.buffer_unordered(CALLS_IN_FLIGHT).try_collect().await
    }

    /// Returns the places of the entries of a kind that may serve a module, in the order of
    /// precedence.
    pub(in crate::flows) fn cache_places(
        &self,
        object: &ObjectId,
        scope: &Scope,
        sources: &[NamedSource],
        kind: Kind,
    ) -> Vec<CachePlace> {
        let modules = self.places(object, scope, sources, Sought::new).into_iter();
        modules
            .map(|module| CachePlace::of(object, module, kind))
            .collect()
    }

    /// Returns the definition of a source; `None` for the uploads, and for a source that is no
    /// longer configured.
    fn definition<'s>(&'s self, (key, defined): &'s NamedSource) -> Option<&'s HttpSource> {
        let settings = &self.service.settings;
        defined.as_ref().or_else(|| settings.source(key))
    }

    /// Returns the servers among these sources that may have source files of a module.
    pub(in crate::flows) fn offering_source_files<'s>(
        &self,
        module: &ObjectId,
        sources: &'s [NamedSource],
    ) -> Vec<&'s NamedSource> {
        let offers = |source: &&NamedSource| {
            let definition = self.definition(source);
            definition.is_some_and(|source| source.offers_source_files(module))
        };
        sources.iter().filter(offers).collect()
    }

    /// Returns the places of a source file of a module on these servers.
    pub(in crate::flows) fn source_file_places(
        &self,
        (module, path): (&ObjectId, &str),
        scope: &Scope,
        servers: &[&NamedSource],
    ) -> Vec<CachePlace> {
        let place = |server: &&NamedSource| {
            let source = self.definition(server)?;
            let location = source.source_file(module, path)?;
            let (key, defined) = server;
            let scope = scope_of_entries(source, defined.is_some(), scope);
            Some(CachePlace::of_source_file(scope, key.clone(), location))
        };
        servers.iter().filter_map(place).collect()
    }

    /// Returns the places where a module may be found, in the order of precedence. `seek` returns
    /// what is sought on a symbol server, given the module and its locations there.
    pub(in crate::flows) fn places(
        &self,
        module: &ObjectId,
        scope: &Scope,
        sources: &[NamedSource],
        seek: impl Fn(&ObjectId, Vec<(FileType, Location)>) -> Sought,
    ) -> Vec<ModuleKey> {
        let id = ModuleId::of(module.debug_id, module.code_id.as_ref());
        let mut places = Vec::new();
        for named in sources {
            let (key, defined) = named;
            match self.definition(named) {
                Some(source) => {
                    let (module, locations) = located(source, module);
                    let sought = Sought {
                        is_listed: source.lists_files(),
                        may_have_line_map: source.may_have_line_map(&module),
                        ..seek(&module, locations)
                    };
                    let scope = scope_of_entries(source, defined.is_some(), scope);
                    let is_sought = if sought.is_listed {
                        id.is_some()
                    } else {
                        !sought.locations.is_empty()
                    };
                    places
                        .extend(is_sought.then(|| ModuleKey::server(scope, key.clone(), &sought)));
                }
                None => {
                    let readable = scope.readable().into_iter().zip(std::iter::repeat(&id));
                    places.extend(
                        readable.filter_map(|(scope, id)| {
                            Some(ModuleKey::uploads(scope, id.as_ref()?))
                        }),
                    );
                }
            }
        }
        places
    }
}

/// Returns the scope of the entries that come of a server, for a request in a scope.
fn scope_of_entries(source: &HttpSource, is_defined: bool, scope: &Scope) -> Scope {
    if source.is_public && !is_defined {
        Scope::Global
    } else {
        scope.clone()
    }
}

/// Returns the locations of a module on a server, and the ids of the module that determine them.
/// Requests that differ only in other ids share their entries.
fn located<'a>(
    source: &HttpSource,
    module: &'a ObjectId,
) -> (Cow<'a, ObjectId>, Vec<(FileType, Location)>) {
    let locations = source.locations(module);
    if source.lists_files() {
        return (Cow::Borrowed(module), locations);
    }
    if module.debug_id.is_some() && module.code_id.is_some() {
        let without_code_id = ObjectId {
            code_id: None,
            ..module.clone()
        };
        if source.locations(&without_code_id) == locations {
            return (Cow::Owned(without_code_id), locations);
        }
    }
    (Cow::Borrowed(module), locations)
}
