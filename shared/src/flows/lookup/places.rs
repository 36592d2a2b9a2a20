//! The places where a cache of a module may be, in the order of precedence.
//!
//! A symbol server is one place. The uploads are one place per scope that the request may read.

use std::borrow::Cow;
use std::time::Duration;

use super::finder::CacheFinder;
use super::read_through::ItemQuery;
use super::sources::SelectedSource;
use crate::cache::{ItemKey, Kind, ModuleKey, ServerSearch};
use crate::domain::{FileType, HttpSource, Location, ModuleId, ObjectId, Scope, SourceKey};

/// For how long an instance may answer without the sources of a new upload. A warm request whose
/// modules are ready makes no call within this time.
const SOURCE_CODE_LIFETIME: Duration = Duration::from_secs(20);

/// A place where a cache may be found, and the keys of the items to load for it.
#[derive(Clone, Debug)]
pub(in crate::flows) struct CachePlace {
    pub(in crate::flows) module: ModuleKey,
    pub(in crate::flows) kind: Kind,
    pub(in crate::flows) entry: ItemKey,
    /// For uploads: the item that exists if the module has files.
    pub(super) presence: Option<ItemKey>,
    /// For uploads: the item that refers from the module's code id to the debug id under which its
    /// files are.
    pub(super) alias: Option<ItemKey>,
}

impl CachePlace {
    /// Returns the place of an entry. Nothing refers from it to another place.
    pub(in crate::flows) fn new(module: ModuleKey, kind: Kind) -> Self {
        let is_upload = module.source.is_uploads();
        Self {
            entry: module.entry(kind),
            presence: is_upload.then(|| module.presence()),
            alias: None,
            module,
            kind,
        }
    }

    /// Returns the place of an entry of a module that a request identifies by these ids.
    ///
    /// The uploads may refer from the code id to the debug id of the files: to that of the module
    /// if the request has none, or to another one, because some clients compute debug ids
    /// differently.
    pub(in crate::flows) fn of(object: &ObjectId, module: ModuleKey, kind: Kind) -> Self {
        let by_code = ModuleId::of(None, object.code_id.as_ref());
        let by_code = by_code.filter(|_| module.source.is_uploads());
        let alias = by_code.map(|id| ModuleKey::uploads(module.scope.clone(), &id).alias());
        Self {
            alias,
            ..Self::new(module, kind)
        }
    }

    /// Returns the place of the sources of the same module.
    pub(in crate::flows) fn of_source_code(&self) -> Self {
        Self {
            entry: ItemKey {
                sort: Kind::SourceCode.to_string(),
                ..self.entry.clone()
            },
            kind: Kind::SourceCode,
            alias: None,
            ..self.clone()
        }
    }

    /// Returns the place of one source file, at its location in a source.
    pub(in crate::flows) fn of_source_file(
        scope: Scope,
        source: SourceKey,
        location: Location,
    ) -> Self {
        let sought = ServerSearch::source_file(location);
        Self::new(ModuleKey::server(scope, source, &sought), Kind::SourceCode)
    }

    /// Returns whether this is a symbol server that may have sources of the module.
    pub(in crate::flows) fn may_serve_source_code(&self) -> bool {
        let sought = self.module.sought();
        sought.is_some_and(|sought| sought.may_yield(Kind::SourceCode))
    }

    /// Leaves the presence out. Without it, the place looks as if it had files.
    pub(in crate::flows) fn without_presence(self) -> Self {
        Self {
            presence: None,
            ..self
        }
    }

    pub(in crate::flows) fn is_uploads(&self) -> bool {
        self.module.source.is_uploads()
    }

    /// Returns the query for the presence; `None` for a symbol server.
    pub(super) fn presence_query(&self) -> Option<ItemQuery> {
        self.presence.as_ref().map(|key| self.query(key))
    }

    pub(super) fn query(&self, key: &ItemKey) -> ItemQuery {
        let query = ItemQuery::of(&self.module, key.clone());
        match self.kind {
            Kind::SourceCode => ItemQuery {
                valid_for: SOURCE_CODE_LIFETIME,
                ..query
            },
            _ => query,
        }
    }

    /// Returns all items of the place.
    pub(super) fn queries(&self) -> impl Iterator<Item = ItemQuery> {
        let keys = [
            Some(&self.entry),
            self.presence.as_ref(),
            self.alias.as_ref(),
        ];
        keys.into_iter().flatten().map(|key| self.query(key))
    }
}

impl CacheFinder<'_> {
    /// Returns the places of the entries of a kind that may serve a module, in the order of
    /// precedence.
    pub(in crate::flows) fn cache_places(
        &self,
        object: &ObjectId,
        scope: &Scope,
        sources: &[SelectedSource],
        kind: Kind,
    ) -> Vec<CachePlace> {
        let modules = self
            .places(object, scope, sources, ServerSearch::new)
            .into_iter();
        modules
            .map(|module| CachePlace::of(object, module, kind))
            .collect()
    }

    /// Returns the servers among these sources that may have source files of a module.
    pub(in crate::flows) fn offering_source_files<'s>(
        &self,
        object: &ObjectId,
        sources: &'s [SelectedSource],
    ) -> Vec<&'s SelectedSource> {
        let offers = |source: &&SelectedSource| {
            let definition = self.definition(source);
            definition.is_some_and(|source| source.offers_source_files(object))
        };
        sources.iter().filter(offers).collect()
    }

    /// Returns the places of a source file of a module on these servers.
    pub(in crate::flows) fn source_file_places(
        &self,
        (object, path): (&ObjectId, &str),
        scope: &Scope,
        servers: &[&SelectedSource],
    ) -> Vec<CachePlace> {
        let place = |server: &&SelectedSource| {
            let source = self.definition(server)?;
            let location = source.source_file(object, path)?;
            let scope = scope_of_entries(source, server.is_defined(), scope);
            let key = server.key.clone();
            Some(CachePlace::of_source_file(scope, key, location))
        };
        servers.iter().filter_map(place).collect()
    }

    /// Returns the places where a module may be found, in the order of precedence. `seek` returns
    /// what is sought on a symbol server, given the module and its locations there.
    pub(in crate::flows) fn places(
        &self,
        object: &ObjectId,
        scope: &Scope,
        sources: &[SelectedSource],
        seek: impl Fn(&ObjectId, Vec<(FileType, Location)>) -> ServerSearch,
    ) -> Vec<ModuleKey> {
        let id = ModuleId::of(object.debug_id, object.code_id.as_ref());
        let mut places = Vec::new();
        for selected in sources {
            match self.definition(selected) {
                Some(source) => {
                    let (object, locations) = located(source, object);
                    let sought = ServerSearch {
                        is_listed: source.lists_files(),
                        may_have_line_map: source.may_have_line_map(&object),
                        ..seek(&object, locations)
                    };
                    let scope = scope_of_entries(source, selected.is_defined(), scope);
                    let key = selected.key.clone();
                    let is_sought = if sought.is_listed {
                        id.is_some()
                    } else {
                        !sought.locations.is_empty()
                    };
                    places.extend(is_sought.then(|| ModuleKey::server(scope, key, &sought)));
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

/// Returns the scope of the entries that come from a server, for a request in a scope.
fn scope_of_entries(source: &HttpSource, is_defined: bool, scope: &Scope) -> Scope {
    if source.is_public && !is_defined {
        Scope::Global
    } else {
        scope.clone()
    }
}

/// Returns the locations of a module on a server, and the ids of the module that determine these.
/// Requests that differ only in other ids share their entries.
fn located<'a>(
    source: &HttpSource,
    object: &'a ObjectId,
) -> (Cow<'a, ObjectId>, Vec<(FileType, Location)>) {
    let locations = source.locations(object);
    if source.lists_files() {
        return (Cow::Borrowed(object), locations);
    }
    if object.debug_id.is_some() && object.code_id.is_some() {
        let without_code_id = ObjectId {
            code_id: None,
            ..object.clone()
        };
        if source.locations(&without_code_id) == locations {
            return (Cow::Owned(without_code_id), locations);
        }
    }
    (Cow::Borrowed(object), locations)
}
