//! Searches a symbol server for the files of a module.
//!
//! Files with a stored copy need no call. The other locations are tried in order, the likely ones
//! first, until the files that were found serve every kind as well as any file could. A location
//! that fails does not end the search: the next one may have the file. The search ends if the
//! server as a whole fails, because the next location would fail in the same way, and if failures
//! take too long. A fetched file stays open for deriving, and is stored as a copy.

use std::time::Duration;

use tokio::sync::mpsc;

use super::builder::{Build, Builder};
use super::companions::CompanionOfServer;
use super::made::NotMade;
use super::open_difs::{OpenDif, OpenDifs};
use super::partition::comes_of;
use super::search_failures::{RequestedLocation, SearchFailures};
use super::search_order::likely_first;
use crate::cache::{CallOutcome, Dif, DifCopy, Kind, ModuleKey, NotAdmitted, ServerSearch};
use crate::domain::{
    Candidate, Cause, CompanionId, DebugId, DifRef, Features, FileType, HttpSource, Inspection,
    Location, Missing, ObjectMeta, Quality, Rank, SOURCE_LINK_ID, SourceKey,
};
use crate::flows::copies::{self, Destination, StoredChunks};
use crate::flows::dif_parser::DifParser;
use crate::flows::download::{self, FetchError, ServerCalls, of_the_file};
use crate::flows::update::KnownItem;
use crate::flows::{Invocation, Settings, definitions, permits};
use crate::ports::{
    Concerns, DifError, DifStat, Fault, ListQuery, ParseError, Parser, ServerFailure,
};

/// How long a miss of a source that lists its files is cached.
const RETRY_LISTED_MISSES_AFTER: Duration = Duration::from_secs(60);

/// The maximum number of buffers of a download that wait to be copied.
const WAITING_BUFFERS: usize = 4;

/// The number of locations with a timeout after which a search ends. Each takes ten to thirty
/// seconds, and the permit to call the server is held meanwhile.
pub(super) const MAX_TIMEOUTS: usize = 4;

/// A file that was downloaded from a server.
pub(super) struct Fetched {
    pub(super) dif: DifRef,
    pub(super) size: u64,
    /// The chunks of the copy, if one is made.
    pub(super) chunks: Option<StoredChunks>,
}

/// An auxiliary file that a module needs, and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeededMap {
    pub(super) file_type: FileType,
    pub(super) id: DebugId,
}

/// What determines which auxiliary files are sought, and where.
#[derive(Clone, Copy)]
pub(super) struct MapQuery<'a> {
    /// The module that they complete.
    pub(super) sought: &'a ServerSearch,
    /// The kinds to build.
    pub(super) kinds: &'a [Kind],
    /// The files that the source lists.
    pub(super) listed: &'a [(FileType, Location)],
}

/// The files of a module that need no call to its server.
pub(super) struct FilesAtHand<'a> {
    /// The usable copies.
    pub(super) copies: &'a [DifCopy],
    /// The files that are open. Those that are found are added.
    pub(super) open_difs: &'a mut OpenDifs,
}

/// The result of a search.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The DIFs that were found.
    pub(super) difs: Vec<Dif>,
    /// The locations without a usable file, and the reasons.
    pub(super) tried: Vec<Candidate>,
    /// Why files were not found, where the reason is more specific than "not found".
    pub(super) failures: SearchFailures,
    /// Why the source was not called. Nothing is known about the kinds that no copy serves.
    pub(super) refused: Option<NotAdmitted>,
    /// The number of locations with a timeout.
    pub(super) timeouts: usize,
    /// Whether the search ends: the server as a whole failed, or too little time is left for
    /// another failure.
    pub(super) is_over: bool,
    /// The `Retry-After` of the source.
    pub(super) retry_after: Option<Duration>,
    /// The auxiliary files that DIFs need and that the source does not have.
    pub(super) missing_maps: Vec<NeededMap>,
    /// The companions that were found on symbol servers.
    pub(super) found_companions: Vec<CompanionOfServer>,
    /// The companions that DIFs need and that no symbol server has, as far as one was called.
    pub(super) missing_companions: Vec<CompanionId>,
    /// Whether a server was not asked: all its permits are in use, or this instance does not know
    /// it.
    pub(super) has_unasked: bool,
    /// The outcome of the calls for the health of the source.
    pub(super) calls: CallOutcome,
}

impl Build<'_> {
    /// Searches a symbol server for files that serve these kinds, in addition to those with a copy.
    /// `health` is that of the server as it was read.
    pub(super) async fn search(
        &self,
        sought: &ServerSearch,
        kinds: &[Kind],
        FilesAtHand { copies, open_difs }: FilesAtHand<'_>,
        health: KnownItem,
    ) -> Result<Search, NotMade> {
        let mut search = Search {
            difs: copies.iter().map(|copy| copy.dif.clone()).collect(),
            ..Search::default()
        };
        let maps = MapQuery {
            sought,
            kinds,
            listed: &[],
        };
        let needs_no_map = search.next_map(maps).is_none();
        if needs_no_map && kinds.iter().all(|kind| search.serves_well(*kind)) {
            return Ok(search);
        }
        let key = &self.module.source;
        let Some(source) = self.builder.source_of(self.invocation, self.module).await? else {
            search.failures = SearchFailures::of_all_files(unknown_source(key));
            search.has_unasked = true;
            search.leave_maps_to_next_probe(maps);
            return Ok(search);
        };
        let mut downloads = Downloads {
            build: *self,
            module: self.module,
            source: &source,
            checksum: sought.checksum.clone(),
            time: Build::time_for_call,
            open_difs,
        };
        let searching = async {
            let searched = downloads.search(sought, kinds, &mut search).await;
            (searched, search.calls.clone())
        };
        let most = self.builder.settings.source_max_permits;
        let searched = permits::with(self.writer(), key, most, health, Box::pin(searching)).await?;
        match searched {
            Ok(searched) => searched?,
            Err(refused) if kinds.iter().any(|kind| comes_of(&search.difs, *kind)) => {
                search.note_not_admitted(&refused);
                search.leave_maps_to_next_probe(maps);
                search.refused = Some(refused);
                return Ok(search);
            }
            Err(refused) => return Err(NotMade::NotAdmitted(refused)),
        }
        search.retry_after = search.retry_after(&source, kinds, &self.builder.settings);
        Ok(search)
    }

    /// Downloads a file within a time. The chunks of a copy are written at the same time.
    async fn download(
        &self,
        server: ServerCalls<'_>,
        module: &ModuleKey,
        location: &Location,
        time: Duration,
    ) -> (
        Result<(DifStat, Box<dyn Parser>), FetchError>,
        Option<StoredChunks>,
    ) {
        let Build {
            builder,
            invocation,
            ..
        } = *self;
        let settings = &builder.settings;
        let (buffers, received) = mpsc::channel(WAITING_BUFFERS);
        let limits = download::Limits {
            max_bytes: settings.dif_max_bytes,
            scratch_bytes: settings.scratch_bytes,
            time,
        };
        let fetch = server.fetch(&*builder.deriver, location, limits, buffers);
        let copy = async {
            if settings.dif_max_unused.is_zero() {
                return None;
            }
            let destination = Destination {
                caches: &*builder.caches,
                key: module.copy(location),
                token: invocation.token(),
            };
            destination.receive(received).await
        };
        tokio::join!(fetch, copy)
    }

    /// Returns the files of the module that a source lists, in the order in which they are tried,
    /// with auxiliary files last. If none of them serves one of these kinds, returns none, and
    /// records a candidate that says so. A failure is recorded as a candidate at the address of all
    /// files.
    pub(super) async fn list(
        &self,
        source: &HttpSource,
        sought: &ServerSearch,
        kinds: &[Kind],
        search: &mut Search,
    ) -> Vec<(FileType, Location)> {
        let began = self.invocation.elapsed();
        let query = ListQuery {
            key: &self.module.source,
            source,
            debug_id: sought.debug_id,
            code_id: sought.code_id.as_ref(),
        };
        let types = sought.object_type.file_types();
        let place = |file_type: &FileType| types.iter().position(|known| known == file_type);
        let failure = match self.builder.servers.list(query).await {
            Ok(mut files) => {
                let is_found = files.iter().any(|(file_type, _)| {
                    place(file_type).is_some() && kinds.iter().any(|kind| kind.comes_of(*file_type))
                });
                files.retain(|(file_type, _)| {
                    place(file_type).is_some() || file_type.is_auxiliary()
                });
                files.sort_by_key(|(file_type, _)| place(file_type).unwrap_or(types.len()));
                if is_found {
                    search.calls.answered();
                    return files;
                }
                of_the_file(Missing::not_found())
            }
            Err(failure) => failure,
        };
        let took = self.invocation.elapsed() - began;
        let location = if failure.missing.cause == Cause::NotFound {
            Candidate::NOTHING_LISTED
        } else {
            source.url.as_str()
        };
        let requested = RequestedLocation {
            location: &Location::new(location),
            file_type: None,
            took,
        };
        search.note(self, requested, failure);
        Vec::new()
    }

    /// Returns whether more than half of the time of the invocation is over. The rest is for what
    /// was found.
    fn is_late(&self) -> bool {
        self.time_before_late().is_zero()
    }

    /// Returns the time until half of that of the invocation is over.
    pub(super) fn time_before_late(&self) -> Duration {
        let (left, elapsed) = (self.invocation.time_left(), self.invocation.elapsed());
        left.saturating_sub(elapsed) / 2
    }
}

impl Builder {
    /// Returns the definition of the source of a module; `None` for the uploads, for a source that
    /// no longer exists, and for a link that may no longer be followed.
    pub(super) async fn source_of(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
    ) -> Result<Option<HttpSource>, Fault> {
        let (key, settings) = (&module.source, &self.settings);
        let link = (key.id() == SOURCE_LINK_ID).then(|| settings.link_source(module));
        Ok(match (&settings.request_sources, link) {
            (_, Some(None)) => None,
            (Some(secret), _) if key.is_defined() => {
                definitions::load(&*self.records, invocation, secret, key).await?
            }
            (_, Some(link)) => link.filter(|source| source.configured_key() == *key),
            (_, None) => settings.source(key).cloned(),
        })
    }
}

/// Returns why nothing can be found in a source that this instance does not know. After a
/// deployment, it may not know the source yet, so the reason is retried soon.
pub(super) fn unknown_source(key: &SourceKey) -> Missing {
    let id = key.id();
    let detail = format!("the configuration of the derive function has no source {id}");
    Missing::new(Cause::DownloadFailed, detail)
}

/// Downloads from the symbol server of a module.
pub(super) struct Downloads<'a> {
    pub(super) build: Build<'a>,
    /// The key of the server, and that under which copies are stored.
    pub(super) module: &'a ModuleKey,
    pub(super) source: &'a HttpSource,
    /// The checksum of the file, as the crash names it.
    pub(super) checksum: Option<String>,
    /// How long a download may take that begins now.
    pub(super) time: fn(&Build<'a>) -> Duration,
    /// The downloaded files stay open here.
    pub(super) open_difs: &'a mut OpenDifs,
}

impl Downloads<'_> {
    /// Fetches one location after the other.
    async fn search(
        &mut self,
        sought: &ServerSearch,
        kinds: &[Kind],
        search: &mut Search,
    ) -> Result<(), DifError> {
        let build = self.build;
        let listed = if self.source.lists_files() {
            build.list(self.source, sought, kinds, search).await
        } else {
            Vec::new()
        };
        for (file_type, location) in likely_first(sought).into_iter().chain(&listed) {
            if kinds.iter().all(|kind| search.serves_well(*kind)) {
                break;
            }
            let serves = |kind: &Kind| kind.comes_of(*file_type) && !search.serves_well(*kind);
            if !kinds.iter().any(serves) || search.has(location) {
                continue;
            }
            let began = build.invocation.elapsed();
            let found = match self.fetch(location).await {
                Ok(fetched) => filed(build.module, sought, self.open_difs, fetched),
                Err(FetchError::Server(failure)) => Err(failure),
                Err(FetchError::Parse(error)) => return Err(error.into()),
            };
            let took = build.invocation.elapsed() - began;
            match found {
                Ok((dif, chunks)) => {
                    search.calls.answered();
                    if let Some(chunks) = chunks {
                        copies::keep(build.writer(), &dif, chunks).await;
                    }
                    search.difs.push(dif);
                }
                Err(mut failure) => {
                    self.source.explain_settings(&mut failure.missing);
                    let file_type = Some(*file_type);
                    let requested = RequestedLocation {
                        location,
                        file_type,
                        took,
                    };
                    search.note(&build, requested, failure);
                    if search.is_over {
                        break;
                    }
                }
            }
        }
        let maps = MapQuery {
            sought,
            kinds,
            listed: &listed,
        };
        self.search_maps(maps, search).await
    }

    fn server(&self) -> ServerCalls<'_> {
        ServerCalls {
            servers: &*self.build.builder.servers,
            key: &self.module.source,
            source: self.source,
            checksum: self.checksum.as_deref(),
        }
    }

    /// Fetches a file, and leaves it open.
    ///
    /// A file that cannot be parsed is a failure of the server.
    async fn fetch(&mut self, location: &Location) -> Result<Fetched, FetchError> {
        let (fetched, opened) = self.fetch_and_open(location).await?;
        self.open_difs.add(opened);
        Ok(fetched)
    }

    /// Fetches a file that completes others, and inspects it. Its parser ends, because the file is
    /// opened again together with those that it completes.
    pub(super) async fn fetch_and_close(
        &mut self,
        location: &Location,
    ) -> Result<Result<(Fetched, Inspection), ServerFailure>, DifError> {
        match self.fetch_and_open(location).await {
            Ok((fetched, opened)) => Ok(Ok((fetched, opened.inspection))),
            Err(FetchError::Server(failure)) => Ok(Err(failure)),
            Err(FetchError::Parse(error)) => Err(error.into()),
        }
    }

    /// Fetches a file, and opens it. If that fails while other files are open, closes them and
    /// fetches again: they occupy scratch space, and their parsers memory.
    pub(super) async fn fetch_and_open(
        &mut self,
        location: &Location,
    ) -> Result<(Fetched, OpenDif), FetchError> {
        let began = self.build.invocation.elapsed();
        let _span = self.build.invocation.span("fetch");
        loop {
            let (build, server) = (self.build, self.server());
            let time = (self.time)(&build);
            let downloaded = build.download(server, self.module, location, time);
            let (fetched, chunks) = downloaded.await;
            let (stat, mut parser) = match fetched {
                Err(FetchError::Parse(ParseError::Fault(_))) if !self.open_difs.is_empty() => {
                    self.open_difs.close_all();
                    continue;
                }
                fetched => fetched.map_err(of_the_server)?,
            };
            let took = self.build.invocation.elapsed() - began;
            let invocation = self.build.invocation;
            invocation.note(|notes| notes.file_bytes += stat.size);
            let dif = DifRef {
                location: location.clone(),
                etag: stat.etag,
            };
            let inspected = parser.inspect().await;
            let inspection = inspected.map_err(|error| of_the_server(error.into()))?;
            let parser = DifParser::complete(parser);
            let opened = OpenDif::alone(dif.clone(), parser, inspection, took);
            let fetched = Fetched {
                dif,
                size: stat.size,
                chunks,
            };
            return Ok((fetched, opened));
        }
    }
}

/// Makes a failure to parse a fetched file a failure of its server.
fn of_the_server(error: FetchError) -> FetchError {
    match error {
        FetchError::Parse(ParseError::Missing(missing)) => FetchError::Server(of_the_file(missing)),
        other => other,
    }
}

impl Search {
    /// Returns whether the file at a location was already found.
    fn has(&self, location: &Location) -> bool {
        self.difs.iter().any(|dif| dif.file.location == *location)
    }

    /// Returns how long a miss of these kinds is cached: the `Retry-After` of the server, or the
    /// configured time for files that a public server does not have, or a source does not list.
    /// Otherwise the cause determines the time.
    pub(super) fn retry_after(
        &self,
        source: &HttpSource,
        kinds: &[Kind],
        settings: &Settings,
    ) -> Option<Duration> {
        let lacks = |kind: &Kind| !self.difs.iter().any(|dif| dif.serves(*kind));
        // A bundle is often uploaded after the files with the names.
        let lacks_files = if source.lists_files() {
            kinds.iter().any(lacks)
        } else {
            self.difs.is_empty()
        };
        let is_absent = self.failures.is_empty() && (lacks_files || !self.missing_maps.is_empty());
        let miss = if source.lists_files() {
            // A new upload to such a source is expected to be found soon.
            Some(RETRY_LISTED_MISSES_AFTER)
        } else {
            source
                .is_public
                .then_some(settings.retry_public_misses_after)
        };
        self.retry_after.or(miss.filter(|_| is_absent))
    }

    /// Returns whether no other file could serve a kind better than those that were found.
    fn serves_well(&self, kind: Kind) -> bool {
        self.difs.iter().any(|dif| {
            dif.serves(kind)
                && Rank::of(&dif.features, kind.purpose()).quality() == Quality::Preferred
        })
    }

    /// Returns whether a DIF needs a file that was not found.
    pub(super) fn lacks_companion(&self) -> bool {
        !(self.missing_maps.is_empty() && self.missing_companions.is_empty())
    }

    /// Records that a file that would complete the DIFs was not found.
    pub(super) fn note_tried(&mut self, key: &SourceKey, location: Location, missing: &Missing) {
        self.tried.push(Candidate::absent(key, location, missing));
    }

    /// Records that a server was not called. An open circuit counts as a call that found nothing:
    /// otherwise, a server that is down for days would be probed for every module each hour.
    pub(super) fn note_not_admitted(&mut self, refused: &NotAdmitted) {
        self.has_unasked |= *refused == NotAdmitted::Busy;
    }

    /// Records the failure of a location.
    pub(super) fn note(
        &mut self,
        build: &Build<'_>,
        requested: RequestedLocation<'_>,
        failure: ServerFailure,
    ) {
        self.note_call(build, &failure);
        let (missing, location) = (failure.missing, requested.location.clone());
        self.tried.push(Candidate {
            duration_ms: u64::try_from(requested.took.as_millis()).ok(),
            ..Candidate::absent(&build.module.source, location, &missing)
        });
        if missing.cause != Cause::NotFound {
            // Files of other types are not sought after a failure that ends the search.
            let file_type = requested.file_type.filter(|_| !self.is_over);
            self.failures.add(missing, failure.concerns, file_type);
        }
    }

    /// Records what a failed call says about the source and about the rest of the search.
    pub(super) fn note_call(&mut self, build: &Build<'_>, failure: &ServerFailure) {
        permits::note_failure(&mut self.calls, failure);
        self.retry_after = self.retry_after.max(failure.retry_after);
        let cause = failure.missing.cause;
        self.timeouts += usize::from(cause == Cause::Timeout);
        let is_last = failure.concerns == Concerns::Server
            || self.timeouts >= MAX_TIMEOUTS
            || build.is_late();
        self.is_over |= cause.is_of_a_moment() && is_last;
    }
}

/// Returns the DIF for a fetched file with the chunks of its copy, if it belongs to the module: a
/// server may return any file.
fn filed(
    module: &ModuleKey,
    sought: &ServerSearch,
    open_difs: &OpenDifs,
    Fetched { dif, size, chunks }: Fetched,
) -> Result<(Dif, Option<StoredChunks>), ServerFailure> {
    let fetched = open_difs.find(&dif);
    let inspection = fetched.map(|open| &open.inspection);
    let objects = inspection.map_or(&[][..], |inspection| &inspection.objects);
    let mut ours = objects.iter().filter(|object| is_sought(object, sought));
    let Some(first) = ours.next() else {
        let what = match (
            objects,
            inspection.and_then(|inspection| inspection.skipped.first()),
        ) {
            ([], Some(reason)) => reason.clone(),
            ([], None) => "it contains no object".to_owned(),
            _ => "it belongs to another module".to_owned(),
        };
        return Err(of_the_file(Missing::malformed(format!(
            "{}: {what}",
            dif.location
        ))));
    };
    let mut features: Features = first.features.clone();
    let (mut hides_names, mut needs) = (first.hides_names, first.needs.clone());
    ours.for_each(|object| {
        features.merge(&object.features);
        hides_names |= object.hides_names;
        for id in &object.needs {
            if !needs.contains(id) {
                needs.push(id.clone());
            }
        }
    });
    let filed = Dif {
        features,
        is_accompanied: first.is_accompanied,
        needs,
        hides_names,
        fault: first.fault.clone(),
        ..Dif::new(module.clone(), dif, size, first.file_type)
    };
    Ok((filed, chunks))
}

/// Returns whether an object belongs to the module that is sought. The ages of debug ids may
/// differ, because a debug file may have been written again.
pub(super) fn is_sought(object: &ObjectMeta, sought: &ServerSearch) -> bool {
    let debug_ids = object.debug_id.zip(sought.debug_id);
    let code_ids = object.code_id.as_ref().zip(sought.code_id.as_ref());
    debug_ids.is_some_and(|(a, b)| !a.is_nil() && a.uuid() == b.uuid())
        || code_ids.is_some_and(|(a, b)| a == b)
}
