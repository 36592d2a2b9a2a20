//! The source lines of a response. They are looked up when the names are known, for the modules
//! whose frames have a path and a line.
//!
//! Each place that may have sources of a module has a lookup of its own, because the frames of one
//! module may refer to files in several of them: a bundle in the uploads and one on a symbol
//! server. If several places have a line, the first one in the order of precedence wins.
//!
//! - *Uploads*: the item that says that a module has files also says whether any of them has
//!   sources. It was read together with the entries of the names, so a module without sources
//!   costs no call.
//! - *Symbol servers* are searched unless the names come from the uploads: a client that uploads
//!   the files of a module also uploads its sources, and other servers need not know about the
//!   module. Their entries are read together with those of the names, too.
//! - *Source files* that none of these has are looked up one by one: see `source_files`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt};

use super::cache_lookup::CacheLookup;
use super::rounds::Rounds;
use crate::api::symbolicator::Completed;
use crate::cache::Kind;
use crate::debuginfo::{FoundLines, source_addresses};
use crate::domain::{Candidate, Scope, SourceKey};
use crate::flows::Error;
use crate::flows::lookup::{CachePlace, Chosen, Lookup, SelectedSource};
use crate::flows::opening::{LoadedCache, ReadError};
use crate::flows::waiting::WaitOutcome;
use crate::ports::Fault;
use crate::symbolicate::{
    PlannedCacheId, SourceCodeOutcome, Stats, WantedLine, add_source_code, add_source_context,
    links_of_names, wanted_files, wanted_lines,
};

/// The maximum number of blobs whose lines are read at a time.
const LINE_READS_IN_FLIGHT: usize = 16;

/// The lines that are wanted of the modules that each cache of the plan serves, sorted by path and
/// number.
type LinesByCache = BTreeMap<PlannedCacheId, Vec<WantedLine>>;

/// A source file of the modules that a cache of the plan serves, by its path.
pub(super) type PlannedFile = (PlannedCacheId, Arc<str>);

/// A search for the source lines that frames of a response refer to.
pub(super) struct SourceSearch<'a> {
    /// The sources of the request.
    pub(super) sources: &'a [SelectedSource],
    /// The lookups of the names, in the order of the plan.
    name_lookups: &'a [CacheLookup],
    wanted: LinesByCache,
}

/// What was found so far.
#[derive(Default)]
pub(super) struct FoundSources {
    pub(super) lines: HashMap<WantedLine, FoundLines>,
    /// Where debug information says that files are.
    pub(super) links: HashMap<PlannedFile, FoundLink>,
}

/// A link in debug information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundLink {
    pub(super) link: String,
    /// The scope of the entry that has the link.
    pub(super) scope: Scope,
}

/// A read of lines: from a state, under these paths.
struct LinesToRead<'a> {
    chosen: &'a Chosen,
    /// The lines, each with the path that it has in the cache.
    lines: Vec<(&'a WantedLine, Arc<str>)>,
}

impl<'a> SourceSearch<'a> {
    fn new(
        sources: &'a [SelectedSource],
        name_lookups: &'a [CacheLookup],
        lines: impl IntoIterator<Item = WantedLine>,
    ) -> Self {
        let mut wanted = LinesByCache::new();
        for line in lines {
            wanted.entry(line.planned).or_default().push(line);
        }
        Self {
            sources,
            name_lookups,
            wanted,
        }
    }

    /// Returns the lookup of the names that a cache has.
    pub(super) fn name_lookup(&self, planned: PlannedCacheId) -> Option<&'a CacheLookup> {
        self.name_lookups.get(planned.index())
    }

    /// Returns the lookups of sources: for each cache, one for each place that may have some.
    async fn lookups(&self, rounds: &Rounds<'_>) -> Result<Vec<CacheLookup>, Fault> {
        let mut places: Vec<(PlannedCacheId, CachePlace)> = Vec::new();
        for planned in self.wanted.keys() {
            let Some(names) = self.name_lookup(*planned) else {
                continue;
            };
            let is_uploaded = names.is_of_uploads();
            let may_have_sources = |place: &&CachePlace| {
                place.is_uploads() || (!is_uploaded && place.may_serve_source_code())
            };
            let of_module = names.places().iter().filter(may_have_sources);
            places.extend(of_module.map(|place| (*planned, place.of_source_code())));
        }
        let presences = rounds
            .finder
            .load_presences(places.iter().map(|(_, place)| place));
        let presences = presences.await?;
        let places = places.into_iter();
        let places = places.filter(|(_, place)| presences.may_have_files(place));
        let lookup = |(planned, place): (PlannedCacheId, CachePlace)| {
            let lookup = Lookup {
                reads_all: rounds.request.options.dif_candidates,
                ..Lookup::of(vec![place.without_presence()])
            };
            CacheLookup::new(planned, Kind::SourceCode, lookup)
        };
        Ok(places.map(lookup).collect())
    }

    /// Returns a candidate for each symbol server of the request that has no sources of a module,
    /// if the response lists candidates. For modules whose names come from the uploads, servers are
    /// not searched.
    fn candidates_without_source_code<'l>(
        &self,
        rounds: &Rounds<'_>,
        lookups: impl Iterator<Item = &'l CacheLookup>,
    ) -> Vec<(PlannedCacheId, Vec<Candidate>)> {
        if !rounds.request.options.dif_candidates {
            return Vec::new();
        }
        let searched: HashSet<(PlannedCacheId, &SourceKey)> = lookups
            .flat_map(|lookup| {
                let sources = lookup.searched_sources();
                sources.map(|source| (lookup.planned, source))
            })
            .collect();
        let is_of_uploads = |planned: PlannedCacheId| {
            let names = self.name_lookup(planned);
            names.is_some_and(CacheLookup::is_of_uploads)
        };
        let without_sources = |planned: PlannedCacheId| {
            let servers = self.sources.iter().map(|source| &source.key);
            let servers = servers.filter(|source| !source.is_uploads());
            let without = servers.filter(|source| !searched.contains(&(planned, *source)));
            (planned, without.map(Candidate::nothing_listed).collect())
        };
        let planned = self.wanted.keys().copied();
        planned
            .filter(|planned| !is_of_uploads(*planned))
            .map(without_sources)
            .collect()
    }
}

impl Rounds<'_> {
    /// Adds source lines to the frames of a response, and what is known about the sources to its
    /// modules. `sources` are those of the request, and `name_lookups` the lookups of the names.
    pub(super) async fn add_source_lines(
        &mut self,
        (mut completed, mut stats): (Completed, Stats),
        sources: &[SelectedSource],
        name_lookups: &[CacheLookup],
    ) -> Result<WaitOutcome<(Completed, Stats)>, Error> {
        let plan = self.plan;
        let search = SourceSearch::new(sources, name_lookups, wanted_lines(&completed, plan));
        let lookups = search.lookups(self).await?;
        let WaitOutcome::Complete(bundles) = self.resolve(lookups).await? else {
            return Ok(WaitOutcome::Pending);
        };
        let mut found = FoundSources::with_links(links_of_names(&completed, plan), &search);
        self.read_lines(&bundles, &search.wanted, &mut found)
            .await?;
        let files = wanted_files(&completed, plan, self.request.options.frame_order);
        let files = files.into_iter();
        let files = files.filter(|file| found.lacks(file, &search.wanted));
        let files = search.file_lookups(self, files.collect(), &found).await?;
        let WaitOutcome::Complete(files) = self.resolve(files).await? else {
            return Ok(WaitOutcome::Pending);
        };
        self.read_lines(&files, &search.wanted, &mut found).await?;
        let lookups = || bundles.iter().chain(&files);
        let without = search.candidates_without_source_code(self, lookups());
        let without = without
            .iter()
            .map(|(planned, candidates)| SourceCodeOutcome {
                planned: *planned,
                features: None,
                lacks: None,
                candidates,
            });
        let outcomes: Vec<SourceCodeOutcome<'_>> = lookups()
            .map(CacheLookup::source_code_outcome)
            .chain(without)
            .collect();
        add_source_code(&mut completed, plan, &outcomes);
        add_source_context(&mut completed, plan, &found.lines, &mut stats);
        let used = lookups().filter_map(CacheLookup::entry);
        self.finder.touch_all(used.collect()).await;
        Ok(WaitOutcome::Complete((completed, stats)))
    }

    /// Reads the lines from the sources that were found.
    async fn read_lines(
        &self,
        sources: &[CacheLookup],
        wanted: &LinesByCache,
        found: &mut FoundSources,
    ) -> Result<(), Fault> {
        let reads = sources.iter().filter_map(|source| {
            let read = LinesToRead::of(source, wanted)?;
            Some(async move {
                let slices = self.read_slices(&read).await;
                (read, slices)
            })
        });
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(LINE_READS_IN_FLIGHT);
        while let Some((read, slices)) = reads.next().await {
            match slices {
                Ok(cache) => found.collect(&cache, &read),
                Err(ReadError::Fault(fault)) => return Err(fault),
                Err(error) => self.report_unreadable(read.chosen, &error).await?,
            }
        }
        Ok(())
    }

    /// Reads the slices that have the lines.
    async fn read_slices(&self, read: &LinesToRead<'_>) -> Result<LoadedCache, ReadError> {
        let addresses = |_| {
            let addresses = read.lines.iter();
            addresses
                .flat_map(|(line, path)| source_addresses(path, line.context()))
                .collect()
        };
        self.opening
            .open(Kind::SourceCode, &read.chosen.ready, addresses)
            .await
    }
}

impl<'a> LinesToRead<'a> {
    /// Returns the lines to read from a source that was found. A source file that was looked up on
    /// its own has its lines under its location.
    fn of(source: &'a CacheLookup, wanted: &'a LinesByCache) -> Option<Self> {
        let chosen = source.chosen()?;
        let of_cache = wanted.get(&source.planned)?;
        let lines = match &source.file {
            None => {
                let lines = of_cache.iter();
                lines.map(|line| (line, line.path.clone())).collect()
            }
            Some(path) => {
                let sought = chosen.entry.module().sought()?;
                let (_, location) = sought.locations.first()?;
                let location: Arc<str> = location.as_str().into();
                let of_file = lines_of_file(wanted, source.planned, path).iter();
                of_file.map(|line| (line, location.clone())).collect()
            }
        };
        Some(Self { chosen, lines })
    }
}

/// Returns the lines that are wanted of a file.
fn lines_of_file<'w>(
    wanted: &'w LinesByCache,
    planned: PlannedCacheId,
    path: &str,
) -> &'w [WantedLine] {
    let lines = wanted.get(&planned).map_or(&[][..], Vec::as_slice);
    let start = lines.partition_point(|line| *line.path < *path);
    let lines = &lines[start..];
    let end = lines.partition_point(|line| *line.path == *path);
    &lines[..end]
}

impl FoundSources {
    /// Returns the links that the caches of the names have.
    fn with_links(links: HashMap<PlannedFile, String>, search: &SourceSearch<'_>) -> Self {
        let link = |(file, link): (PlannedFile, String)| {
            let names = search.name_lookup(file.0);
            let entry = names.and_then(CacheLookup::entry)?;
            let scope = entry.module().scope.clone();
            Some((file, FoundLink { link, scope }))
        };
        Self {
            links: links.into_iter().filter_map(link).collect(),
            ..Self::default()
        }
    }

    /// Returns whether a line of a file is wanted whose text is not known. It visits the lines of
    /// this file only: a request may have as many files as frames.
    fn lacks(&self, (planned, path): &PlannedFile, wanted: &LinesByCache) -> bool {
        let is_known = |line: &WantedLine| {
            let found = self.lines.get(line);
            found.is_some_and(|found| !found.lines.is_empty())
        };
        let mut lines = lines_of_file(wanted, *planned, path).iter();
        lines.any(|line| !is_known(line))
    }

    /// Adds the lines that a cache has, and no other one had before.
    fn collect(&mut self, cache: &LoadedCache, read: &LinesToRead<'_>) {
        let Some(cache) = cache.sliced() else {
            return;
        };
        for (line, path) in &read.lines {
            let FoundLines { lines, link } = cache.source_lines(path, line.context());
            if lines.is_empty() && link.is_none() {
                continue;
            }
            let known = self.lines.entry((*line).clone()).or_default();
            if known.lines.is_empty() {
                known.lines = lines;
            }
            let Some(link) = link else { continue };
            let file = (line.planned, line.path.clone());
            self.links.entry(file).or_insert_with(|| FoundLink {
                link: link.clone(),
                scope: read.chosen.entry.module().scope.clone(),
            });
            known.link.get_or_insert(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::parse_request;
    use crate::symbolicate::plan;

    #[test]
    fn a_file_lacks_lines_until_the_text_of_each_is_known() {
        let request = parse_request(
            br#"{
                "modules": [
                    {"type": "elf", "image_addr": "0x1000", "code_id": "aa"},
                    {"type": "elf", "image_addr": "0x2000", "code_id": "bb"}
                ],
                "stacktraces": [{"frames": [
                    {"instruction_addr": "0x1001"}, {"instruction_addr": "0x2001"}
                ]}]
            }"#,
        );
        let plan = plan(&request.unwrap());
        let ids: Vec<PlannedCacheId> = plan.caches_with_ids().map(|(planned, _)| planned).collect();
        let [another, planned] = ids[..] else {
            panic!("two caches: {ids:?}");
        };
        let line = |path: &str, line| WantedLine {
            planned,
            path: path.into(),
            line,
        };
        let lines = [line("/a", 1), line("/a", 9), line("/a/b", 2), line("/b", 1)];
        let wanted = LinesByCache::from([(planned, lines.to_vec())]);
        assert_eq!(lines_of_file(&wanted, planned, "/a"), &lines[..2]);
        assert_eq!(lines_of_file(&wanted, planned, "/a/b"), &lines[2..3]);
        assert_eq!(lines_of_file(&wanted, planned, "/b"), &lines[3..]);
        for (cache, path) in [
            (planned, ""),
            (planned, "/a/"),
            (planned, "/c"),
            (another, "/a"),
        ] {
            assert!(lines_of_file(&wanted, cache, path).is_empty(), "{path}");
        }

        let mut found = FoundSources::default();
        let lacks =
            |found: &FoundSources, path: &str| found.lacks(&(planned, path.into()), &wanted);
        let text = || FoundLines {
            lines: vec![(1, "int main() {".to_owned())],
            ..FoundLines::default()
        };
        assert!(lacks(&found, "/a") && lacks(&found, "/b") && !lacks(&found, "/c"));
        found.lines.insert(line("/a", 1), text());
        found.lines.insert(line("/a", 9), FoundLines::default());
        assert!(lacks(&found, "/a"));
        found.lines.insert(line("/a", 9), text());
        assert!(!lacks(&found, "/a") && lacks(&found, "/b"));
    }
}
