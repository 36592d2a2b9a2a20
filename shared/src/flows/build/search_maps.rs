//! Searches a symbol server for the auxiliary files of a module, after its DIFs were found.
//!
//! A UUID map is sought for a Mach-O file with hidden names, then the symbol map to which it
//! refers; a line map only for a module that may be of Unity. So most modules need no further call.
//! A source that lists its files lists UUID maps and line maps with the other files.
//!
//! An auxiliary file that the source does not have, or that is not valid, is recorded as a
//! candidate. The module is built without it, and the source is probed for it again at growing
//! intervals.

use super::builder::Build;
use super::search::{Downloads, Fetched, NeededMap, Search};
use crate::cache::{CallOutcome, Dif, Kind, Sought};
use crate::domain::{
    AuxiliaryFile, AuxiliaryId, CompanionId, Features, FileType, HttpSource, Location, Missing,
    ObjectId, Sequencer,
};
use crate::flows::copies;
use crate::flows::fetch::{FetchError, of_the_file};
use crate::ports::{Concerns, DifError, ListQuery, ServerFailure};

/// The maximum number of locations at which one auxiliary file is sought.
const MAX_LOCATIONS: usize = 4;

impl Search {
    /// Returns the next auxiliary file to search for; `None` if what was found needs no other one.
    /// `listed` are the files that the source lists.
    pub(super) fn next_map(
        &self,
        sought: &Sought,
        kinds: &[Kind],
        listed: &[(FileType, Location)],
    ) -> Option<NeededMap> {
        let id = sought.debug_id?;
        if !kinds.iter().any(|kind| kind.is_completed()) {
            return None;
        }
        let found = |needed: NeededMap| {
            self.difs.iter().find(|dif| {
                dif.file_type == needed.file_type && dif.auxiliary_id == Some(needed.id)
            })
        };
        let map = |file_type, id| NeededMap { file_type, id };
        let is_listed = |file_type| listed.iter().any(|(listed, _)| *listed == file_type);
        let may_exist = |file_type| match file_type {
            FileType::Il2Cpp => sought.may_have_line_map || is_listed(file_type),
            _ => true,
        };
        let completes = |file_type| self.difs.iter().any(|dif| dif.is_completed_by(file_type));
        let types = [FileType::Il2Cpp, FileType::UuidMap].into_iter();
        let needed = types.filter(|file_type| may_exist(*file_type) && completes(*file_type));
        let needed = needed.map(|file_type| map(file_type, id));
        let symbol_maps = needed.clone().filter_map(|needed| {
            let symbol_map = found(needed)?.symbol_map()?;
            Some(map(FileType::BcSymbolMap, symbol_map))
        });
        let mut needed = needed.chain(symbol_maps);
        needed.find(|needed| found(*needed).is_none() && !self.missed.contains(needed))
    }

    /// Records that an auxiliary file was not found, which does not affect the DIFs.
    fn note_map(&mut self, build: &Build<'_>, location: Location, failure: ServerFailure) {
        self.retry_after = self.retry_after.max(failure.retry_after);
        if failure.concerns == Concerns::Server {
            self.calls = CallOutcome::Failed {
                detail: failure.missing.detail.clone(),
                retry_after: failure.retry_after,
            };
        }
        self.note_tried(&build.module.source, location, &failure.missing);
    }
}

impl Downloads<'_> {
    /// Searches for the auxiliary files that complete what was found. `listed` are the files that
    /// the source lists.
    pub(super) async fn search_maps(
        &mut self,
        (sought, kinds): (&Sought, &[Kind]),
        listed: &[(FileType, Location)],
        search: &mut Search,
    ) -> Result<(), DifError> {
        while let Some(needed) = search.next_map(sought, kinds, listed) {
            let build = self.build;
            let offered = (sought, listed);
            let locations = build
                .map_locations(self.source, needed, offered, search)
                .await;
            let (mut found, mut failed) = (None, Vec::new());
            for location in locations.into_iter().take(MAX_LOCATIONS) {
                match self.fetch_map(needed, &location).await? {
                    Ok(map) => {
                        found = Some(map);
                        break;
                    }
                    Err(failure) => failed.push((location, failure)),
                }
            }
            match found {
                Some(map) => search.difs.push(map),
                None => search.missed.push(needed),
            }
            for (location, failure) in failed {
                search.note_map(&self.build, location, failure);
            }
        }
        Ok(())
    }

    /// Fetches an auxiliary file, and keeps a copy.
    async fn fetch_map(
        &mut self,
        needed: NeededMap,
        location: &Location,
    ) -> Result<Result<Dif, ServerFailure>, DifError> {
        let fetched = match self.fetch(location).await {
            Ok(fetched) => fetched,
            Err(FetchError::Server(failure)) => return Ok(Err(failure)),
            Err(FetchError::Parse(error)) => return Err(error.into()),
        };
        let Fetched { dif, size, chunks } = fetched;
        // Its parser is of no use: it is opened again together with the file that it completes.
        let opened = self.open.iter().position(|open| open.dif == dif);
        let opened = opened.map(|at| self.open.remove(at));
        let inspection = opened.map(|open| open.inspection);
        let (files, ignored) = inspection
            .map(|inspection| (inspection.auxiliary, inspection.ignored))
            .unwrap_or_default();
        let file = match needed.among(&files) {
            Some(file) => file,
            None => {
                let reason = ignored.first().map_or("it is another file", String::as_str);
                let detail = format!("{location}: {reason}");
                return Ok(Err(of_the_file(Missing::malformed(detail))));
            }
        };
        let map = Dif {
            module: self.build.module.clone(),
            file: dif,
            sequencer: Sequencer::default(),
            size,
            file_type: needed.file_type,
            features: Features::default(),
            is_accompanied: false,
            needs: file
                .symbol_map
                .map(CompanionId::SymbolMap)
                .into_iter()
                .collect(),
            hides_names: false,
            auxiliary_id: Some(needed.id),
            needed_by: Vec::new(),
            refused: None,
            fault: None,
        };
        if let Some(chunks) = chunks {
            copies::keep(self.build.update(), &map, chunks).await;
        }
        Ok(Ok(map))
    }
}

impl NeededMap {
    /// Returns the needed file among those in a DIF. A server may return any file.
    fn among<'f>(&self, files: &'f [AuxiliaryFile]) -> Option<&'f AuxiliaryFile> {
        files.iter().find(|file| {
            let is_it = match file.id {
                AuxiliaryId::Known(id) => id.uuid() == self.id.uuid(),
                AuxiliaryId::InName => true,
            };
            file.file_type == self.file_type && is_it
        })
    }
}

impl Build<'_> {
    /// Returns the possible locations of an auxiliary file.
    async fn map_locations(
        &self,
        source: &HttpSource,
        needed: NeededMap,
        (sought, listed): (&Sought, &[(FileType, Location)]),
        search: &mut Search,
    ) -> Vec<Location> {
        let NeededMap { file_type, id } = needed;
        let of_type = |files: &[(FileType, Location)]| -> Vec<Location> {
            let files = files.iter().filter(|(known, _)| *known == file_type);
            files.map(|(_, location)| location.clone()).collect()
        };
        if !source.lists_files() {
            let is_symbol_map = file_type == FileType::BcSymbolMap;
            let module = ObjectId {
                debug_id: Some(id),
                code_id: sought.code_id.clone().filter(|_| !is_symbol_map),
                object_type: sought.object_type,
                ..ObjectId::default()
            };
            return source.locations_of(file_type, &module);
        }
        if file_type != FileType::BcSymbolMap {
            return of_type(listed);
        }
        let query = ListQuery {
            key: &self.module.source,
            source,
            debug_id: Some(id),
            code_id: None,
        };
        match self.builder.servers.list(query).await {
            Ok(listed) => of_type(&listed),
            Err(failure) => {
                let address = Location::new(source.url.as_str());
                search.note_map(self, address, failure);
                Vec::new()
            }
        }
    }
}
