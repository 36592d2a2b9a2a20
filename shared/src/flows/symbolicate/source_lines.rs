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
//! - *Symbol servers* are searched unless the names come of the uploads: who uploads the files of a
//!   module also uploads its sources, and other servers need not know about the module. Their
//!   entries are read together with those of the names, too.

use std::collections::{BTreeMap, HashMap};

use futures::stream::{self, StreamExt};

use super::module::{Chosen, ModuleLookup};
use super::rounds::Rounds;
use crate::api::symbolicator::Completed;
use crate::cache::Kind;
use crate::debuginfo::{FoundLines, source_addresses};
use crate::flows::Error;
use crate::flows::lookup::{CachePlace, Lookup};
use crate::flows::opening::{LoadedCache, ReadError};
use crate::ports::Fault;
use crate::symbolicate::{
    Plan, SourcesOutcome, Stats, WantedLine, add_source_context, add_sources, wanted_lines,
};

/// The maximum number of blobs whose lines are read at a time.
const READS_IN_FLIGHT: usize = 16;

/// The lines that are wanted of each module, by its index in the plan.
type LinesByModule = BTreeMap<usize, Vec<WantedLine>>;

impl Rounds<'_> {
    /// Adds source lines to the frames of a response, and what is known about the sources to its
    /// modules. `names` are the lookups of the names. Returns `None` if the request has to wait for
    /// builds of sources, and stores it.
    pub(super) async fn add_source_lines(
        &mut self,
        (mut completed, mut stats): (Completed, Stats),
        plan: &Plan,
        names: &[ModuleLookup],
    ) -> Result<Option<(Completed, Stats)>, Error> {
        let mut wanted = LinesByModule::new();
        for line in wanted_lines(&completed, plan) {
            wanted.entry(line.place).or_default().push(line);
        }
        let lookups = self.lookups(names, &wanted).await?;
        let Some(sources) = self.resolve(lookups).await? else {
            return Ok(None);
        };
        let outcomes: Vec<SourcesOutcome<'_>> =
            sources.iter().map(ModuleLookup::sources_outcome).collect();
        add_sources(&mut completed, plan, &outcomes);
        let found = self.read_lines(&sources, &wanted).await?;
        add_source_context(&mut completed, plan, &found, &mut stats);
        let used = sources.iter().filter_map(ModuleLookup::entry);
        self.finder.touch_all(used.collect()).await;
        Ok(Some((completed, stats)))
    }

    /// Returns the lookups of the sources of these modules: one for each place that may have some.
    async fn lookups(
        &self,
        names: &[ModuleLookup],
        wanted: &LinesByModule,
    ) -> Result<Vec<ModuleLookup>, Fault> {
        let mut places: Vec<(usize, CachePlace)> = Vec::new();
        for planned in wanted.keys() {
            let Some(module) = names.get(*planned) else {
                continue;
            };
            let is_uploaded = module.is_of_uploads();
            let of_module =
                module.lookup.places.iter().filter(|place| {
                    place.is_uploads() || (!is_uploaded && place.may_serve_sources())
                });
            places.extend(of_module.map(|place| (*planned, place.of_sources())));
        }
        let presences = self
            .finder
            .load_presences(places.iter().map(|(_, place)| place));
        let presences = presences.await?;
        let places = places.into_iter();
        let places = places.filter(|(_, place)| presences.has_files(place));
        let lookup = |(planned, place): (usize, CachePlace)| {
            let lookup = Lookup {
                reads_all: self.request.options.dif_candidates,
                ..Lookup::of(vec![place.without_presence()])
            };
            ModuleLookup::new(planned, Kind::Sources, lookup)
        };
        Ok(places.map(lookup).collect())
    }

    /// Reads the lines from the sources that were found.
    async fn read_lines(
        &self,
        sources: &[ModuleLookup],
        wanted: &LinesByModule,
    ) -> Result<HashMap<WantedLine, FoundLines>, Fault> {
        let reads = sources.iter().filter_map(|source| {
            let chosen = source.chosen()?;
            let lines = wanted.get(&source.planned)?;
            Some(async move { (chosen, lines, self.read_slices(chosen, lines).await) })
        });
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(READS_IN_FLIGHT);
        let mut found = HashMap::new();
        while let Some((chosen, lines, read)) = reads.next().await {
            match read {
                Ok(cache) => collect(&cache, lines, &mut found),
                Err(ReadError::Store(error)) => {
                    let blob = &chosen.ready.blob.path;
                    tracing::warn!(blob, %error, "cannot read source lines");
                }
                Err(fault) => self.report(chosen, &fault).await?,
            }
        }
        Ok(found)
    }

    /// Reads the slices that have the lines.
    async fn read_slices(
        &self,
        chosen: &Chosen,
        lines: &[WantedLine],
    ) -> Result<LoadedCache, ReadError> {
        let addresses = |_| {
            let addresses = lines.iter();
            addresses
                .flat_map(|line| source_addresses(&line.path, line.context()))
                .collect()
        };
        self.opening
            .open(Kind::Sources, &chosen.ready, addresses)
            .await
    }
}

/// Adds the lines that a cache has, and no other one had before.
fn collect(cache: &LoadedCache, lines: &[WantedLine], found: &mut HashMap<WantedLine, FoundLines>) {
    let Some(cache) = cache.sliced() else {
        return;
    };
    for line in lines {
        let lines = cache.source_lines(&line.path, line.context());
        if lines.lines.is_empty() && lines.link.is_none() {
            continue;
        }
        let known = found.entry(line.clone()).or_default();
        if known.lines.is_empty() {
            known.lines = lines.lines;
        }
        known.link = known.link.take().or(lines.link);
    }
}
