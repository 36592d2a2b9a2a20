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
    companions: Vec<Dif>,
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
pub(super) struct Companion {
    pub(super) dif: Dif,
    /// The kind that is also made from it.
    pub(super) completes: Kind,
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
        }
    }
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
    others.take(debuginfo::MAX_SOURCES - 1)
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
            let mut completing = met.companions;
            completing.extend(with_symbols(dif, difs).cloned());
            let maps: Vec<&Dif> = maps(dif, difs).collect();
            for map in maps {
                completing.push(map.clone());
                let of_map = self.companions_of(map).await?;
                completing.extend(of_map.companions);
                met.has_unread |= of_map.has_unread;
            }
            let completing = completing.into_iter().map(Companion::of_symcache);
            let with_sources = with_sources(dif, difs).map(|other| Companion {
                dif: other.clone(),
                completes: Kind::SourceCode,
            });
            Ok::<_, Fault>(CompanionsOfDif {
                dif: dif.file.clone(),
                companions: completing.chain(with_sources).collect(),
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
            if !files.iter().any(|file| met.companions.contains(file)) {
                met.companions.extend(files.into_iter().next());
            }
        }
        Ok(met)
    }
}
