//! Finds the companions of uploaded DIFs, in the partitions of the ids that both have in common.

use std::time::Duration;

use futures::future::try_join_all;

use super::builder::{Build, OpenDif};
use crate::cache::{Dif, Item, Kind, ModuleKey};
use crate::debuginfo;
use crate::domain::{CompanionId, DifRef, FileType, ModuleId};
use crate::flows::fetch;
use crate::ports::{DifError, Fault, Parser};

/// The companions of the DIFs that need some, as they are filed now.
#[derive(Default)]
pub(super) struct FiledCompanions(Vec<(DifRef, Vec<Companion>)>);

/// A companion of a DIF.
pub(super) struct Companion {
    pub(super) dif: Dif,
    /// The kind that is also made from it.
    pub(super) completes: Kind,
}

impl FiledCompanions {
    /// Returns the companions of a DIF.
    pub(super) fn of(&self, dif: &DifRef) -> &[Companion] {
        let known = self.0.iter().find(|(of, _)| of == dif);
        known.map_or(&[], |(_, companions)| companions)
    }

    /// Returns the companions of a DIF that a kind is also made from.
    pub(super) fn completing(&self, dif: &DifRef, kind: Kind) -> impl Iterator<Item = &Dif> {
        completing(self.of(dif), kind)
    }

    /// Returns all companions that a kind is also made from.
    pub(super) fn all(&self, kind: Kind) -> impl Iterator<Item = &DifRef> {
        let companions = self.0.iter();
        companions
            .flat_map(move |(_, companions)| completing(companions, kind))
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
        dif.serves(Kind::Sources)
            && other.serves(Kind::Sources)
            && other.is_sound()
            && other.file != dif.file
    };
    let others = difs.iter().filter(is_other);
    others.take(debuginfo::MAX_SOURCES - 1)
}

impl OpenDif {
    /// Returns a DIF whose parser is open, with the companions that were opened together with it.
    /// `took` is how long fetching them took.
    pub(super) async fn inspected(
        dif: &Dif,
        companions: &[Companion],
        mut parser: Box<dyn Parser>,
        took: Duration,
    ) -> Result<Self, DifError> {
        let inspection = parser.inspect().await.map_err(fetch::from_parse)?;
        let beside = companions
            .iter()
            .map(|companion| (companion.dif.file.clone(), companion.completes));
        Ok(Self {
            dif: dif.file.clone(),
            beside: beside.collect(),
            parser,
            inspection,
            took,
        })
    }

    /// Returns the files that a cache of a kind is made from.
    pub(super) fn made_into(&self, kind: Kind) -> Vec<DifRef> {
        let beside = self.beside.iter();
        let beside = beside.filter(|(_, completes)| *completes == kind);
        let beside = beside.map(|(companion, _)| companion);
        std::iter::once(&self.dif).chain(beside).cloned().collect()
    }
}

/// Returns the companions of the DIFs that a search found on a symbol server: auxiliary files.
fn found_companions(difs: &[Dif]) -> FiledCompanions {
    let symbol_map = |map: &Dif| {
        let id = map.symbol_map()?;
        difs.iter()
            .find(|dif| dif.file_type == FileType::BcSymbolMap && dif.auxiliary_id == Some(id))
    };
    let found = difs.iter().map(|dif| {
        let maps = maps(dif, difs).flat_map(|map| std::iter::once(map).chain(symbol_map(map)));
        let companions = maps.map(|map| Companion::of_symcache(map.clone()));
        (dif.file.clone(), companions.collect())
    });
    FiledCompanions(found.collect())
}

impl Build<'_> {
    /// Finds the companions of the module's DIFs that need some.
    pub(super) async fn companions(&self, difs: &[Dif]) -> Result<FiledCompanions, Fault> {
        if !self.module.source.is_uploads() {
            return Ok(found_companions(difs));
        }
        let found = difs.iter().map(|dif| async move {
            let mut completing: Vec<Dif> = Vec::new();
            if dif.is_incomplete() {
                completing = self.companions_of(dif).await?;
            }
            completing.extend(with_symbols(dif, difs).cloned());
            let maps: Vec<&Dif> = maps(dif, difs).collect();
            for map in maps {
                completing.push(map.clone());
                completing.extend(self.companions_of(map).await?);
            }
            let completing = completing.into_iter().map(Companion::of_symcache);
            let with_sources = with_sources(dif, difs).map(|other| Companion {
                dif: other.clone(),
                completes: Kind::Sources,
            });
            let companions = completing.chain(with_sources).collect();
            Ok::<_, Fault>((dif.file.clone(), companions))
        });
        Ok(FiledCompanions(try_join_all(found).await?))
    }

    async fn companions_of(&self, dif: &Dif) -> Result<Vec<Dif>, Fault> {
        let needs = dif.needs.iter().take(CompanionId::MOST + 1);
        let partitions = needs.map(|id| {
            let met_at =
                ModuleKey::uploads(self.module.scope.clone(), &ModuleId::Companion(id.clone()));
            async move { self.builder.records.query(&met_at.partition()).await }
        });
        let mut companions: Vec<Dif> = Vec::new();
        for partition in try_join_all(partitions).await? {
            let files = partition
                .into_iter()
                .filter_map(|(_, stored)| match stored.item {
                    Item::Dif(file) => Some(file),
                    _ => None,
                });
            let serves = |file: &Dif| {
                file.fault.is_none()
                    && file.needed_by.is_empty()
                    && file.refused.is_none()
                    && file.file.location != dif.file.location
            };
            let files: Vec<Dif> = files.filter(serves).collect();
            // A package has the units of many ids, so it may be in the list already. Several files
            // with one id are equivalent.
            if !files.iter().any(|file| companions.contains(file)) {
                companions.extend(files.into_iter().next());
            }
        }
        Ok(companions)
    }
}
