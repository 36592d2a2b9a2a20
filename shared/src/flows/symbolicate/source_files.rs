//! Source files that are looked up one by one, because no bundle has their text: on servers of the
//! debuginfod layout, and behind the links in debug information.
//!
//! Each file has an entry of its own for each server, and one for the link. `derive` downloads the
//! files, at most ten for each message, side by side. So a request costs one round of reads for the
//! entries of all files and one for their blobs, and misses are cached like those of DIFs.
//!
//! A link is followed only where the operator and the request allow it. Its entry belongs to the
//! scope of the entry that has the link, because a client that may read the link may follow it. The
//! headers of a request make the link a source that the request defines: only requests with the
//! same headers see what was found with them. Credentials of the operator take their place.

use std::collections::HashMap;

use url::Url;

use super::cache_lookup::CacheLookup;
use super::rounds::Rounds;
use super::source_lines::{FoundLink, FoundSources, PlannedFile, SourceSearch};
use crate::api::limits;
use crate::api::symbolicator::Selected;
use crate::domain::{
    AllowedLink, HttpSource, Location, OriginPattern, Scope, SourceKey, link_target,
};
use crate::flows::Error;
use crate::flows::lookup::{CachePlace, Lookup, SelectedSource};
use crate::symbolicate::PlannedCacheId;

/// A source file to look up.
struct FileToSeek {
    file: PlannedFile,
    /// The servers that may have it.
    servers: Vec<CachePlace>,
    link: Option<LinkToFollow>,
}

/// A link that may be followed.
struct LinkToFollow {
    target: Url,
    scope: Scope,
    source: HttpSource,
    /// Whether the source has headers of the request.
    is_defined: bool,
}

impl SourceSearch<'_> {
    /// Returns the lookups of source files that may be on a server or behind a link.
    pub(super) async fn file_lookups(
        &self,
        rounds: &Rounds<'_>,
        files: Vec<PlannedFile>,
        found: &FoundSources,
    ) -> Result<Vec<CacheLookup>, Error> {
        let origins = rounds.request.scraping.origins();
        // Filters are compared once for each cache, not for each of its files.
        let mut offering: HashMap<PlannedCacheId, Vec<&SelectedSource>> = HashMap::new();
        let seek = |file: PlannedFile| {
            let (planned, path) = &file;
            let link = found.links.get(&file);
            let cache = rounds.plan.cache(*planned);
            let servers = match cache.zip(self.name_lookup(*planned)) {
                Some((cache, names)) if !names.is_of_uploads() => {
                    let (finder, object) = (&rounds.finder, &cache.object_id);
                    let offering = offering
                        .entry(*planned)
                        .or_insert_with(|| finder.offering_source_files(object, self.sources));
                    let file = (object, path.as_ref());
                    finder.source_file_places(file, rounds.call.scope, offering)
                }
                _ => Vec::new(),
            };
            let link = link.and_then(|link| rounds.link_to_follow(link, &origins));
            let to_seek = FileToSeek {
                file,
                servers,
                link,
            };
            (to_seek.link.is_some() || !to_seek.servers.is_empty()).then_some(to_seek)
        };
        let files = files.into_iter().filter_map(seek);
        let files: Vec<FileToSeek> = files.take(limits::SOURCE_FILES).collect();
        let keys = rounds.keys_of_links(&files).await?;
        let lookups = files.into_iter().zip(keys).map(|(to_seek, key)| {
            let FileToSeek {
                file: (planned, path),
                servers: mut places,
                link,
            } = to_seek;
            places.extend(link.zip(key).map(|(link, key)| link.place(key)));
            let lookup = Lookup {
                reads_all: rounds.request.options.dif_candidates,
                ..Lookup::of(places)
            };
            CacheLookup::of_file(planned, path, lookup)
        });
        Ok(lookups.collect())
    }
}

impl Rounds<'_> {
    /// Returns a link with its source; `None` if it may not be followed.
    fn link_to_follow(
        &self,
        FoundLink { link, scope }: &FoundLink,
        origins: &[OriginPattern],
    ) -> Option<LinkToFollow> {
        let (settings, scraping) = (&self.finder.service.settings, &self.request.scraping);
        if !scraping.enabled {
            return None;
        }
        let target = link_target(link)?;
        let AllowedLink {
            source,
            has_credentials,
        } = settings.source_links.allowed(&target)?;
        let with_headers = HttpSource {
            headers: scraping.headers_for(origins, &target),
            ..source.clone()
        };
        let with_headers = with_headers.without_parameters(&settings.source_event_parameters);
        let is_defined = !has_credentials
            && settings.request_sources.is_some()
            && !with_headers.headers.is_empty();
        Some(LinkToFollow {
            target,
            scope: scope.clone(),
            source: if is_defined { with_headers } else { source },
            is_defined,
        })
    }

    /// Returns the key of the source of each file's link. Stores the sources that have headers of
    /// the request.
    async fn keys_of_links(&self, files: &[FileToSeek]) -> Result<Vec<Option<SourceKey>>, Error> {
        let links = || files.iter().filter_map(|file| file.link.as_ref());
        let mut defined: Vec<&HttpSource> = Vec::new();
        for link in links().filter(|link| link.is_defined) {
            if !defined.contains(&&link.source) {
                defined.push(&link.source);
            }
        }
        let selected = defined.iter();
        let selected = selected.map(|source| Selected::Defined(Box::new((*source).clone())));
        let sources = self.finder.store_selected(selected.collect()).await?;
        let key = |link: &LinkToFollow| {
            if !link.is_defined {
                Some(link.source.configured_key())
            } else {
                let at = defined.iter().position(|source| **source == link.source)?;
                sources.get(at).map(|source| source.key.clone())
            }
        };
        Ok(files
            .iter()
            .map(|file| file.link.as_ref().and_then(key))
            .collect())
    }
}

impl LinkToFollow {
    /// Returns the place of the file, in the source with this key.
    fn place(self, key: SourceKey) -> CachePlace {
        CachePlace::of_source_file(self.scope, key, Location::new(self.target))
    }
}
