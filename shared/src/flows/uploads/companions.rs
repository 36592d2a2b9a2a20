//! Finds the modules that a file concerns in addition to its own: for a companion, the programs
//! that need it.
//!
//! A companion and a program are both filed under the ids that they have in common
//! ([`ModuleId::Companion`]). Nothing is built under such an id. The one that is filed second finds
//! the other: a companion marks the entries of the programs dirty, and a program is built with the
//! existing companions. Each is filed before it searches, so two that arrive at the same time
//! cannot miss each other.
//!
//! [`ModuleId::Companion`]: crate::domain::ModuleId::Companion

use std::collections::HashSet;

use super::changes::UploadChanges;
use super::filing::{ConcernedModule, ServedModule};
use super::side_by_side::side_by_side;
use crate::cache::{Item, ItemKey, Kind, ModuleKey, Stored};
use crate::flows::update::Entries;
use crate::ports::Fault;

impl UploadChanges<'_> {
    /// Returns the modules whose entries a file concerns if it is filed under these, each once.
    pub(super) async fn concerned(
        &self,
        modules: &[ServedModule],
    ) -> Result<Vec<ConcernedModule>, Fault> {
        let concerned = side_by_side(modules, |module| async move {
            if module.is_program() {
                return Ok(Vec::new()); // A program only concerns itself, under its own id.
            }
            let key = module.key();
            if key.is_of_companions() {
                let partition = self.builder.records.query(&key.partition()).await?;
                return Ok(programs(key, &partition));
            }
            let mut module = module.concerned.clone();
            if module.has_pdb {
                // The `dif` item is already written, so an entry that is created after this query
                // is built with it.
                let partition = self.builder.records.query(&module.key.partition()).await?;
                module.add_opaque_kinds(&partition);
                module.entries = Entries::of(&partition);
            }
            Ok::<_, Fault>(vec![module])
        });
        Ok(each_once(concerned.await?.into_iter().flatten().collect()))
    }
}

/// Returns the programs that need a companion, given the partition in which both are filed.
pub(super) fn programs(
    met_at: &ModuleKey,
    partition: &[(ItemKey, Stored)],
) -> Vec<ConcernedModule> {
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
        ConcernedModule::of(key, completed.clone())
    });
    programs.collect()
}

/// Returns the modules without duplicates; the first of each is kept.
pub(super) fn each_once(mut modules: Vec<ConcernedModule>) -> Vec<ConcernedModule> {
    let mut seen = HashSet::new();
    modules.retain(|module| seen.insert(module.key.clone()));
    modules
}
