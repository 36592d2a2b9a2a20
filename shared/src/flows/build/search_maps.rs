//! Searches a symbol server for the auxiliary files of a module, after its DIFs were found.
//!
//! A UUID map is sought for a Mach-O file with hidden names, then the symbol map to which it
//! refers; a line map only for a module that may be of Unity. So most modules need no further call.
//! A source that lists its files lists UUID maps and line maps with the other files.
//!
//! An auxiliary file that the source does not have, or that is not valid, is recorded as a
//! candidate. The module is built without it, and the source is probed for it again at growing
//! intervals. A failure of the server as a whole ends the search, as for other files.

use super::builder::Build;
use super::search::{Downloads, Fetched, MapQuery, NeededMap, Search};
use crate::cache::Dif;
use crate::domain::{
    AuxiliaryFile, AuxiliaryId, CompanionId, FileType, HttpSource, Location, Missing, ObjectId,
};
use crate::flows::copies;
use crate::flows::download::of_the_file;
use crate::ports::{DifError, ListQuery, ServerFailure};

/// The maximum number of locations at which one auxiliary file is sought.
const MAX_LOCATIONS: usize = 4;

impl Search {
    /// Returns the next auxiliary file to search for; `None` if what was found needs no other one.
    pub(super) fn next_map(&self, maps: MapQuery<'_>) -> Option<NeededMap> {
        let MapQuery {
            sought,
            kinds,
            listed,
        } = maps;
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
        needed.find(|needed| found(*needed).is_none() && !self.missing_maps.contains(needed))
    }

    /// Records the auxiliary files that a source may have that was not called. The next probe asks
    /// for them.
    pub(super) fn leave_maps_to_next_probe(&mut self, maps: MapQuery<'_>) {
        while let Some(needed) = self.next_map(maps) {
            self.missing_maps.push(needed);
        }
    }

    /// Records that an auxiliary file was not found, which does not affect the DIFs.
    fn note_map(&mut self, build: &Build<'_>, location: Location, failure: ServerFailure) {
        self.note_call(build, &failure);
        self.note_tried(&build.module.source, location, &failure.missing);
    }
}

impl Downloads<'_> {
    /// Searches for the auxiliary files that complete what was found.
    pub(super) async fn search_maps(
        &mut self,
        maps: MapQuery<'_>,
        search: &mut Search,
    ) -> Result<(), DifError> {
        while let Some(needed) = search.next_map(maps) {
            match self.find_map(needed, maps, search).await? {
                Some(map) => search.difs.push(map),
                None => search.missing_maps.push(needed),
            }
        }
        Ok(())
    }

    /// Requests one location of an auxiliary file after the other.
    async fn find_map(
        &mut self,
        needed: NeededMap,
        maps: MapQuery<'_>,
        search: &mut Search,
    ) -> Result<Option<Dif>, DifError> {
        if search.is_over {
            return Ok(None);
        }
        let (build, source) = (self.build, self.source);
        let locations = build.map_locations(source, needed, maps, search).await;
        for location in locations.into_iter().take(MAX_LOCATIONS) {
            if search.is_over {
                break;
            }
            match self.fetch_map(needed, &location).await? {
                Ok(map) => {
                    search.calls.answered();
                    return Ok(Some(map));
                }
                Err(failure) => search.note_map(&build, location, failure),
            }
        }
        Ok(None)
    }

    /// Fetches an auxiliary file, and keeps a copy.
    async fn fetch_map(
        &mut self,
        needed: NeededMap,
        location: &Location,
    ) -> Result<Result<Dif, ServerFailure>, DifError> {
        let (fetched, inspection) = match self.fetch_and_close(location).await? {
            Ok(fetched) => fetched,
            Err(failure) => return Ok(Err(failure)),
        };
        let Fetched { dif, size, chunks } = fetched;
        let Some(file) = needed.among(&inspection.auxiliary) else {
            let skipped = inspection.skipped.first();
            let reason = skipped.map_or("it is another file", String::as_str);
            let detail = format!("{location}: {reason}");
            return Ok(Err(of_the_file(Missing::malformed(detail))));
        };
        let symbol_map = file.symbol_map.map(CompanionId::SymbolMap);
        let map = Dif {
            needs: symbol_map.into_iter().collect(),
            auxiliary_id: Some(needed.id),
            ..Dif::new(self.build.module.clone(), dif, size, needed.file_type)
        };
        if let Some(chunks) = chunks {
            copies::keep(self.build.writer(), &map, chunks).await;
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
        maps: MapQuery<'_>,
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
                code_id: maps.sought.code_id.clone().filter(|_| !is_symbol_map),
                object_type: maps.sought.object_type,
                ..ObjectId::default()
            };
            return source.locations_of(file_type, &module);
        }
        if file_type != FileType::BcSymbolMap {
            return of_type(maps.listed);
        }
        let query = ListQuery {
            key: &self.module.source,
            source,
            debug_id: Some(id),
            code_id: None,
        };
        match self.builder.servers.list(query).await {
            Ok(listed) => {
                search.calls.answered();
                of_type(&listed)
            }
            Err(failure) => {
                let address = Location::new(source.url.as_str());
                search.note_map(self, address, failure);
                Vec::new()
            }
        }
    }
}
