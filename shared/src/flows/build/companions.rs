//! Finds the companions of uploaded DIFs, in the partitions of the ids that both have in common.

use futures::future::{BoxFuture, FutureExt as _, try_join_all};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::builder::Build;
use crate::cache::{Dif, Item, ItemKey, Kind, ModuleKey, Stored};
use crate::debuginfo;
use crate::domain::{CompanionId, DifRef, FileType, ModuleId};
use crate::flows::presence;
use crate::ports::Fault;

/// The maximum number of partitions that are searched for the companions of a DIF at a time.
const QUERIES_IN_FLIGHT: usize = 32;

/// The maximum size of the names of the files that a state is made from, in bytes. Users choose
/// keys of up to 1 KB, and an entry, which may have two states, over the 400 KB of an item cannot
/// be stored. 512 split units with keys of usual length have room.
const MAX_MADE_FROM_BYTES: usize = 128 << 10;

/// The bytes of a file in a record besides its location and etag, rounded up.
const DIF_REF_BYTES: usize = 40;

/// The companions of the DIFs of a module.
#[derive(Default)]
pub(super) struct FoundCompanions(Vec<CompanionsOfDif>);

/// The companions of a DIF.
struct CompanionsOfDif {
    dif: DifRef,
    companions: Vec<Companion>,
    /// The ids of companions that it needs and that were not found.
    unmet: Vec<CompanionId>,
    /// Whether there are uploads with the ids of companions whose items this release cannot read.
    has_unread: bool,
}

/// The uploaded companions of a DIF.
#[derive(Default)]
struct UploadedCompanions {
    companions: Vec<Companion>,
    /// The ids that no upload has.
    unmet: Vec<CompanionId>,
    has_unread: bool,
}

/// A companion that was found on a symbol server.
#[derive(Clone, Debug)]
pub(super) struct CompanionOfServer {
    /// The id under which it was sought.
    pub(super) id: CompanionId,
    /// The file.
    pub(super) dif: Dif,
}

/// A companion of a DIF.
#[derive(Clone, Debug)]
pub(super) struct Companion {
    pub(super) dif: Dif,
    /// The kind that is also made from it.
    pub(super) completes: Kind,
    /// Where the file was found, too: a package has the units of many ids.
    also_filed_under: Vec<ModuleKey>,
}

impl FoundCompanions {
    /// Returns the companions of a DIF.
    pub(super) fn of(&self, dif: &DifRef) -> &[Companion] {
        let known = self.0.iter().find(|known| known.dif == *dif);
        known.map_or(&[], |known| &known.companions)
    }

    /// Returns for each DIF the ids of companions that it needs and that were not found.
    pub(super) fn unmet(&self) -> impl Iterator<Item = &[CompanionId]> {
        self.0.iter().map(|known| known.unmet.as_slice())
    }

    /// Returns whether there are uploads with the ids of companions whose items this release cannot
    /// read.
    pub(super) fn have_unread(&self) -> bool {
        self.0.iter().any(|known| known.has_unread)
    }

    /// Adds what a search of symbol servers found.
    pub(super) fn add(&mut self, found: &[CompanionOfServer]) {
        for known in &mut self.0 {
            let needed = found.iter().filter(|found| known.unmet.contains(&found.id));
            let needed = needed.map(|found| Companion::of_symcache(found.dif.clone()));
            known.companions.extend(needed);
            leave_out_for_room(&known.dif, &mut known.companions);
        }
    }

    /// Returns the companions of a DIF that a kind is also made from.
    pub(super) fn completing(&self, dif: &DifRef, kind: Kind) -> impl Iterator<Item = &Dif> {
        completing(self.of(dif), kind)
    }

    /// Returns all companions that a kind is also made from.
    pub(super) fn all(&self, kind: Kind) -> impl Iterator<Item = &DifRef> {
        let companions = self.0.iter();
        companions
            .flat_map(move |known| completing(&known.companions, kind))
            .map(|companion| &companion.file)
    }
}

fn completing(companions: &[Companion], kind: Kind) -> impl Iterator<Item = &Dif> {
    companions
        .iter()
        .filter(move |companion| companion.completes == kind)
        .map(|companion| &companion.dif)
}

impl Companion {
    fn of_symcache(dif: Dif) -> Self {
        Self {
            dif,
            completes: Kind::SymCache,
            also_filed_under: Vec::new(),
        }
    }

    fn of_source_code(dif: Dif) -> Self {
        Self {
            completes: Kind::SourceCode,
            ..Self::of_symcache(dif)
        }
    }

    /// Returns the file once for each module under which it was found.
    pub(super) fn filed(&self) -> impl Iterator<Item = Dif> {
        let also = self.also_filed_under.iter().map(|module| Dif {
            module: module.clone(),
            ..self.dif.clone()
        });
        std::iter::once(self.dif.clone()).chain(also)
    }
}

/// Leaves out the companions of a DIF for whose names the records have no room. The cache says what
/// it lacks for that.
fn leave_out_for_room(dif: &DifRef, companions: &mut Vec<Companion>) {
    let bytes = |dif: &DifRef| DIF_REF_BYTES + dif.location.as_str().len() + dif.etag.len();
    let mut room = MAX_MADE_FROM_BYTES.saturating_sub(bytes(dif));
    companions.retain(|companion| {
        let rest = room.checked_sub(bytes(&companion.dif.file));
        room = rest.unwrap_or(room);
        rest.is_some()
    });
}

/// Returns the auxiliary files of the same module that complete a DIF: one of each type.
fn maps<'d>(dif: &'d Dif, difs: &'d [Dif]) -> impl Iterator<Item = &'d Dif> {
    let types = [FileType::UuidMap, FileType::Il2Cpp].into_iter();
    types.filter_map(move |file_type| {
        let is_map = |other: &&Dif| {
            other.file_type == file_type && other.is_sound() && other.file != dif.file
        };
        let mut maps = difs.iter().filter(is_map);
        maps.next().filter(|_| dif.is_completed_by(file_type))
    })
}

/// Returns a file of the same module whose symbols complete a DIF that has only debug information.
fn with_symbols<'d>(dif: &Dif, difs: &'d [Dif]) -> Option<&'d Dif> {
    if !dif.features.lack_symbols(dif.file_type) {
        return None;
    }
    difs.iter()
        .find(|other| other.is_sound() && other.file_type.is_elf() && other.features.has_symbols)
}

/// Returns the other files of the same module that have source files, if this DIF has some. Frames
/// may refer to a file in any of them.
fn with_sources<'d>(dif: &'d Dif, difs: &'d [Dif]) -> impl Iterator<Item = &'d Dif> {
    let is_other = move |other: &&Dif| {
        dif.serves(Kind::SourceCode)
            && other.serves(Kind::SourceCode)
            && other.is_sound()
            && other.file != dif.file
    };
    let others = difs.iter().filter(is_other);
    others.take(debuginfo::MAX_SOURCE_OBJECTS - 1)
}

/// Returns the companions of the DIFs that a search found on a symbol server: auxiliary files.
/// Other companions are sought in a second step.
fn beside_on_server(difs: &[Dif]) -> FoundCompanions {
    let symbol_map = |map: &Dif| {
        let id = map.symbol_map()?;
        difs.iter()
            .find(|dif| dif.file_type == FileType::BcSymbolMap && dif.auxiliary_id == Some(id))
    };
    let found = difs.iter().map(|dif| {
        let maps = maps(dif, difs).flat_map(|map| std::iter::once(map).chain(symbol_map(map)));
        let companions = maps.map(|map| Companion::of_symcache(map.clone()));
        CompanionsOfDif {
            dif: dif.file.clone(),
            companions: companions.collect(),
            unmet: dif.needs.clone(),
            has_unread: false,
        }
    });
    FoundCompanions(found.collect())
}

impl Build<'_> {
    /// Finds the companions of the module's DIFs that need some.
    pub(super) async fn companions(&self, difs: &[Dif]) -> Result<FoundCompanions, Fault> {
        if !self.module.source.is_uploads() {
            return Ok(beside_on_server(difs));
        }
        let found = difs.iter().map(|dif| async move {
            let mut met = UploadedCompanions::default();
            if dif.is_incomplete() {
                met = self.companions_of(dif).await?;
            }
            let mut companions = met.companions;
            let with_symbols = with_symbols(dif, difs).cloned();
            companions.extend(with_symbols.map(Companion::of_symcache));
            let maps: Vec<&Dif> = maps(dif, difs).collect();
            for map in maps {
                companions.push(Companion::of_symcache(map.clone()));
                let of_map = self.companions_of(map).await?;
                companions.extend(of_map.companions);
                met.has_unread |= of_map.has_unread;
            }
            let with_sources = with_sources(dif, difs).cloned();
            companions.extend(with_sources.map(Companion::of_source_code));
            leave_out_for_room(&dif.file, &mut companions);
            Ok::<_, Fault>(CompanionsOfDif {
                dif: dif.file.clone(),
                companions,
                unmet: met.unmet,
                has_unread: met.has_unread,
            })
        });
        Ok(FoundCompanions(try_join_all(found).await?))
    }

    /// Finds the uploaded companions of a DIF.
    async fn companions_of(&self, dif: &Dif) -> Result<UploadedCompanions, Fault> {
        let query = |id: &CompanionId| {
            let id = ModuleId::Companion(id.clone());
            let met_at = ModuleKey::uploads(self.module.scope.clone(), &id);
            async move { self.builder.records.query(&met_at.partition()).await }.boxed()
        };
        let queries: Vec<BoxFuture<'_, _>> = dif.needs.iter().map(query).collect();
        let partitions = stream::iter(queries).buffered(QUERIES_IN_FLIGHT);
        let partitions: Vec<Vec<(ItemKey, Stored)>> = partitions.try_collect().await?;
        let mut met = UploadedCompanions::default();
        for (id, partition) in dif.needs.iter().zip(partitions) {
            let files = partition
                .into_iter()
                .filter_map(|(key, stored)| match stored.item {
                    Item::Dif(file) => Some(file),
                    Item::Newer { .. } => {
                        met.has_unread |= presence::is_file(&key);
                        None
                    }
                    _ => None,
                });
            let serves = |file: &Dif| {
                file.fault.is_none()
                    && file.needed_by.is_empty()
                    && file.over_limit.is_none()
                    && file.file.location != dif.file.location
            };
            let files: Vec<Dif> = files.filter(serves).collect();
            if files.is_empty() {
                met.unmet.push(id.clone());
            }
            // A package has the units of many ids, so it may be in the list already. Several files
            // with one id are equivalent.
            let mut listed = met.companions.iter_mut();
            let again = listed.find_map(|listed| {
                let again = files.iter().find(|file| file.file == listed.dif.file)?;
                Some((listed, again))
            });
            match again {
                Some((listed, again)) => listed.also_filed_under.push(again.module.clone()),
                None => {
                    let found = files.into_iter().next();
                    met.companions.extend(found.map(Companion::of_symcache));
                }
            }
        }
        Ok(met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Location, Scope};

    fn dif(number: usize, key_bytes: usize) -> Dif {
        let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
        let file = DifRef {
            location: Location::new(format!("{number:0key_bytes$}")),
            etag: "9b2cf535f27731c974343645a3985328-3".to_owned(),
        };
        let module = ModuleKey::uploads(Scope::Global, &id);
        Dif::new(module, file, 1, FileType::ElfDebug)
    }

    fn left_of(units: usize, key_bytes: usize) -> Vec<Companion> {
        let companions = (1..=units).map(|number| dif(number, key_bytes));
        let mut companions: Vec<Companion> = companions.map(Companion::of_symcache).collect();
        leave_out_for_room(&dif(0, key_bytes).file, &mut companions);
        companions
    }

    #[test]
    fn an_entry_has_room_for_512_split_units_and_for_fewer_with_long_keys() {
        assert_eq!(left_of(512, 150).len(), 512);
        let left = left_of(512, 1024);
        assert!((100..128).contains(&left.len()), "{}", left.len());
        let names: Vec<&DifRef> = left.iter().map(|left| &left.dif.file).collect();
        assert!(serde_json::to_vec(&names).unwrap().len() < MAX_MADE_FROM_BYTES);
    }
}
