//! Searches symbol servers for the companions of DIFs: the shared file of `dwz`, by its build id,
//! and the package with the split units of a program, by the build id of the program.
//!
//! A companion is sought only if a DIF needs it and the uploads of the scope do not have it. The
//! source of the module is searched first, then the configured sources. So a program that was
//! uploaded finds the shared file on a symbol server, and most modules need no call.
//!
//! The search takes at most half of the time of the invocation. The rest is for the module, which
//! is built without the companions that were not found by then.
//!
//! A companion has a copy under a key of its own, so that programs that share a file fetch it once.
//! A companion that no source has is recorded as a candidate. The module is built without it, and
//! the sources are probed for it again at growing intervals.

use super::builder::Build;
use super::companions::{CompanionOfServer, FoundCompanions};
use super::open_difs::OpenDifs;
use super::search::{Downloads, Fetched, MAX_TIMEOUTS, Search};
use crate::cache::{CallOutcome, Dif, DifCopy, Kind, ModuleKey, ModuleRef, ServerSearch};
use crate::domain::{
    Cause, CompanionId, FileType, HttpSource, Location, Missing, ModuleId, ObjectId, SourceKey,
};
use crate::flows::copies;
use crate::flows::download::of_the_file;
use crate::flows::permits;
use crate::flows::update::KnownItem;
use crate::ports::{DifError, Fault, ServerFailure};

/// The maximum number of companions of a module that are sought on symbol servers.
const MAX_SOUGHT: usize = 4;

/// The maximum number of locations at which one companion is sought on one server.
const MAX_LOCATIONS: usize = 4;

/// The maximum number of servers on which a companion is sought.
const MAX_SERVERS: usize = 8;

/// A companion to search for.
#[derive(Clone, Debug)]
pub(super) struct WantedCompanion {
    /// The id under which it is sought.
    id: CompanionId,
    /// The ids that show that a file is the companion: any of these.
    proofs: Vec<CompanionId>,
}

impl WantedCompanion {
    /// Returns the companions that a DIF needs, given the ids that are not found in the uploads.
    /// One package has all split units of a program, so it is sought once, by the lowest id.
    fn of(unmet: &[CompanionId]) -> impl Iterator<Item = Self> {
        let is_unit = |id: &CompanionId| matches!(id, CompanionId::Unit(_));
        let units: Vec<CompanionId> = unmet.iter().filter(|id| is_unit(id)).cloned().collect();
        let package = units.first().cloned().map(|id| Self { id, proofs: units });
        let is_shared = |id: &&CompanionId| matches!(id, CompanionId::Shared(_));
        let shared = unmet.iter().filter(is_shared).cloned();
        let shared = shared.map(|id| Self {
            proofs: vec![id.clone()],
            id,
        });
        shared.collect::<Vec<_>>().into_iter().chain(package)
    }
}

/// Returns the companions that are sought for DIFs, given for each the ids that it needs and that
/// the uploads do not have.
fn wanted<'i>(unmet: impl Iterator<Item = &'i [CompanionId]>) -> Vec<WantedCompanion> {
    let mut wanted: Vec<WantedCompanion> = Vec::new();
    for companion in unmet.flat_map(WantedCompanion::of) {
        if !wanted.iter().any(|known| known.id == companion.id) {
            wanted.push(companion);
        }
    }
    wanted.truncate(MAX_SOUGHT);
    wanted
}

impl Build<'_> {
    /// Searches symbol servers for the companions that DIFs need and the uploads do not have.
    pub(super) async fn search_companions(
        &self,
        companions: &FoundCompanions,
        kinds: &[Kind],
        open_difs: &mut OpenDifs,
        search: &mut Search,
    ) -> Result<(), DifError> {
        if !kinds.iter().any(|kind| kind.is_completed()) {
            return Ok(());
        }
        let mut left = wanted(companions.unmet());
        let module = if left.is_empty() {
            return Ok(());
        } else {
            self.ids_of_module()
        };
        for (key, source) in self.servers_of_companions().await? {
            if left.is_empty() {
                break;
            }
            let server = CompanionServer {
                build: *self,
                key: &key,
                source: &source,
            };
            left = server.search(&module, left, open_difs, search).await?;
        }
        Ok(())
    }

    /// Returns the ids by which the companions of the module are sought.
    fn ids_of_module(&self) -> ObjectId {
        let (debug_id, code_id) = match self.module.reference() {
            Some(ModuleRef::Search(sought)) => (sought.debug_id, sought.code_id),
            Some(ModuleRef::Filed(ModuleId::Debug(id))) => (Some(id), None),
            Some(ModuleRef::Filed(ModuleId::Code(id))) => (None, Some(id)),
            Some(ModuleRef::Filed(ModuleId::Companion(_))) | None => (None, None),
        };
        ObjectId {
            debug_id,
            code_id,
            ..ObjectId::default()
        }
    }

    /// Returns the servers on which companions are sought: that of the module, then the configured
    /// ones, except those whose filters need more than ids.
    async fn servers_of_companions(&self) -> Result<Vec<(SourceKey, HttpSource)>, Fault> {
        let own = &self.module.source;
        let source = if own.is_uploads() {
            None
        } else {
            self.builder.source_of(self.invocation, self.module).await?
        };
        let source = source.map(|source| (own.clone(), source));
        let mut servers: Vec<(SourceKey, HttpSource)> = source.into_iter().collect();
        let others = self.builder.settings.sources.iter();
        let others =
            others.filter(|server| server.key() != own && server.source().allows_ids_alone());
        servers.extend(others.map(|server| (server.key().clone(), server.source().clone())));
        servers.truncate(MAX_SERVERS);
        Ok(servers)
    }
}

/// A symbol server that is searched for companions of a module.
#[derive(Clone, Copy)]
struct CompanionServer<'a> {
    build: Build<'a>,
    key: &'a SourceKey,
    source: &'a HttpSource,
}

/// A companion that is sought on a server.
struct SoughtCompanion {
    wanted: WantedCompanion,
    /// The key under which its copy is stored.
    module: ModuleKey,
    locations: Vec<Location>,
}

impl CompanionServer<'_> {
    /// Searches for companions, and returns those that the server does not have. Companions with a
    /// copy need no call.
    async fn search(
        &self,
        module: &ObjectId,
        wanted: Vec<WantedCompanion>,
        open_difs: &mut OpenDifs,
        search: &mut Search,
    ) -> Result<Vec<WantedCompanion>, DifError> {
        let (mut left, mut to_call) = (Vec::new(), Vec::new());
        for wanted in wanted {
            let Some(sought) = self.sought(wanted.clone(), module) else {
                left.push(wanted);
                continue;
            };
            match self.copy_of(&sought).await? {
                Some(dif) => search.note_found_companion(wanted.id, dif),
                None => to_call.push(sought),
            }
        }
        if to_call.is_empty() {
            return Ok(left);
        }
        if search.ends_for_companions(&self.build) {
            search.leave_to_next_probe(to_call, &mut left);
            return Ok(left);
        }
        let calling = async {
            let mut outcome = CallOutcome::default();
            let called = self.call(&to_call, open_difs, search, &mut outcome).await;
            (called, outcome)
        };
        let writer = self.build.writer();
        let most = self.build.builder.settings.source_max_permits;
        let unread = KnownItem::Unread;
        let called = permits::with(writer, self.key, most, unread, Box::pin(calling)).await?;
        match called {
            Ok(called) => left.extend(called?),
            Err(refused) => {
                search.note_not_admitted(&refused);
                search.leave_to_next_probe(to_call, &mut left);
            }
        }
        Ok(left)
    }

    /// Returns a companion with its locations on the server; `None` if it has none.
    fn sought(&self, wanted: WantedCompanion, module: &ObjectId) -> Option<SoughtCompanion> {
        let mut locations = self.source.companion_locations(&wanted.id, module);
        locations.truncate(MAX_LOCATIONS);
        if locations.is_empty() {
            return None;
        }
        let sought = ServerSearch::companion(&wanted.id, locations.clone());
        let scope = self.build.module.scope.clone();
        Some(SoughtCompanion {
            wanted,
            module: ModuleKey::server(scope, self.key.clone(), &sought),
            locations,
        })
    }

    /// Returns the companion as it was copied.
    async fn copy_of(&self, sought: &SoughtCompanion) -> Result<Option<Dif>, Fault> {
        for location in &sought.locations {
            let key = sought.module.copy(location);
            let copy: Option<DifCopy> = self.build.builder.records.one(key).await?;
            if let Some(copy) = copy {
                return Ok(Some(copy.dif));
            }
        }
        Ok(None)
    }

    /// Calls the server for companions. Returns those that it does not have. The search ends if the
    /// server fails, and when its time is over.
    async fn call(
        &self,
        companions: &[SoughtCompanion],
        open_difs: &mut OpenDifs,
        search: &mut Search,
        outcome: &mut CallOutcome,
    ) -> Result<Vec<WantedCompanion>, DifError> {
        let mut left = Vec::new();
        for sought in companions {
            let mut found = None;
            for location in &sought.locations {
                let has_failed = matches!(outcome, CallOutcome::Failed { .. });
                if has_failed || search.ends_for_companions(&self.build) {
                    break;
                }
                match self.fetch(sought, location, open_difs).await? {
                    Ok(dif) => {
                        outcome.answered();
                        found = Some(dif);
                        break;
                    }
                    Err(mut failure) => {
                        self.source.explain_settings(&mut failure.missing);
                        permits::note_failure(outcome, &failure);
                        search.note_companion_tried(self.key, location.clone(), &failure.missing);
                    }
                }
            }
            let wanted = sought.wanted.clone();
            match found {
                Some(dif) => search.note_found_companion(wanted.id, dif),
                None => {
                    search.note_missing_companion(&wanted.id);
                    left.push(wanted);
                }
            }
        }
        Ok(left)
    }

    /// Fetches a companion, and keeps a copy.
    async fn fetch(
        &self,
        sought: &SoughtCompanion,
        location: &Location,
        open_difs: &mut OpenDifs,
    ) -> Result<Result<Dif, ServerFailure>, DifError> {
        let mut downloads = Downloads {
            build: self.build,
            module: &sought.module,
            source: self.source,
            checksum: None,
            time: Build::time_before_late,
            open_difs,
        };
        let (fetched, inspection) = match downloads.fetch_and_close(location).await? {
            Ok(fetched) => fetched,
            Err(failure) => return Ok(Err(failure)),
        };
        let Fetched { dif, size, chunks } = fetched;
        let provided = inspection.completes;
        if !sought.wanted.proofs.iter().any(|id| provided.contains(id)) {
            let detail = format!("{location}: it is another file");
            return Ok(Err(of_the_file(Missing::malformed(detail))));
        }
        let companion = Dif::new(sought.module.clone(), dif, size, FileType::ElfDebug);
        if let Some(chunks) = chunks {
            copies::keep(self.build.writer(), &companion, chunks).await;
        }
        Ok(Ok(companion))
    }
}

impl Search {
    /// Returns whether the search for companions ends, because little time is left or was lost.
    fn ends_for_companions(&self, build: &Build<'_>) -> bool {
        build.time_before_late().is_zero() || self.timeouts >= MAX_TIMEOUTS
    }

    /// Records that a companion was not found at a location of any source.
    fn note_companion_tried(&mut self, key: &SourceKey, location: Location, missing: &Missing) {
        self.timeouts += usize::from(missing.cause == Cause::Timeout);
        self.note_tried(key, location, missing);
    }

    /// Records companions that a server was not asked for, among those that are `left`. The next
    /// probe asks it.
    fn leave_to_next_probe(
        &mut self,
        sought: Vec<SoughtCompanion>,
        left: &mut Vec<WantedCompanion>,
    ) {
        for sought in sought {
            self.note_missing_companion(&sought.wanted.id);
            left.push(sought.wanted);
        }
    }

    fn note_found_companion(&mut self, id: CompanionId, dif: Dif) {
        self.missing_companions.retain(|missing| *missing != id);
        self.found_companions.push(CompanionOfServer { id, dif });
    }

    fn note_missing_companion(&mut self, id: &CompanionId) {
        if !self.missing_companions.contains(id) {
            self.missing_companions.push(id.clone());
        }
    }
}
