//! Whom a file concerns beside the modules that it is filed under: a companion, the programs that need it.
//!
//! Both are filed under what they have in common ([`ModuleId::Companion`]), where nothing is built. Who is filed there second finds the
//! other: a companion marks the entries of the programs, and a program is built with the companions that are there. Each is filed before
//! it looks, so two that come at a time cannot miss each other.
//!
//! [`ModuleId::Companion`]: crate::domain::ModuleId::Companion

use std::collections::HashSet;

use super::super::build::Builder;
use super::super::update::Entries;
use super::filing::FiledModule;
use super::order::side_by_side;
use crate::cache::{Item, ItemKey, Kind, ModuleKey, Stored};
use crate::domain::FileType;
use crate::ports::Fault;

impl Builder {
    /// Returns the modules whose entries a file concerns that is filed under these, each once.
    pub(super) async fn concerned(
        &self,
        modules: &[FiledModule],
    ) -> Result<Vec<FiledModule>, Fault> {
        let concerned = side_by_side(modules, |module| async move {
            if module.is_program() {
                return Ok(Vec::new()); // It concerns itself, under its own id.
            }
            if module.key.is_of_companions() {
                let partition = self.records.query(&module.key.partition()).await?;
                return Ok(programs(&module.key, &partition));
            }
            let mut module = module.clone();
            if module.has_pdb {
                // Looked for since the `dif` item is there: who creates such an entry from now on builds with it.
                let partition = self.records.query(&module.key.partition()).await?;
                module.add_opaque_kinds(&partition);
                module.entries = Entries::of(&partition);
            }
            Ok::<_, Fault>(vec![module])
        });
        Ok(each_once(concerned.await?.into_iter().flatten().collect()))
    }
}

/// Returns the programs that need a companion, as the partition has them where they meet.
pub(super) fn programs(met_at: &ModuleKey, partition: &[(ItemKey, Stored)]) -> Vec<FiledModule> {
    let difs = partition
        .iter()
        .filter_map(|(_, stored)| match &stored.item {
            Item::Dif(dif) => Some(dif),
            _ => None,
        });
    let completed = Kind::DERIVED.into_iter().filter(|kind| kind.is_completed());
    let completed: Vec<Kind> = completed.collect();
    let programs = difs.flat_map(|dif| &dif.needed_by).map(|module| {
        let module = module.clone();
        let key = ModuleKey {
            id: module,
            ..met_at.clone()
        };
        FiledModule {
            kinds: completed.clone(),
            ..FiledModule::of(key, FileType::ElfDebug)
        }
    });
    programs.collect()
}

/// Returns modules without those that come again: the first of each counts.
pub(super) fn each_once(mut modules: Vec<FiledModule>) -> Vec<FiledModule> {
    let mut seen = HashSet::new();
    modules.retain(|module| seen.insert(module.key.clone()));
    modules
}
