//! Files an upload under its modules: finds the modules, and writes the items that refer to the
//! file.

use std::collections::HashMap;

use super::changes::UploadChanges;
use super::room::{MAX_DIFS, has_room};
use crate::cache::{
    Dif, Entry, Item, ItemKey, Kind, ModuleKey, ModuleRef, Stored, Upload, UploadedObject,
};
use crate::domain::{
    CodeId, CompanionId, DebugId, DifRef, Features, FileType, Location, Missing, ModuleId,
    MsSymCacheName, Purpose, Rank, Scope,
};
use crate::flows::presence::{self, FiledAs};
use crate::flows::update::{Entries, KnownItem, Present};
use crate::ports::Fault;

/// A module that an upload serves, with all its objects of one id.
pub(super) struct ServedModule {
    /// The module as its entries are marked and built.
    pub(super) concerned: ConcernedModule,
    /// The code ids that refer to it.
    code_ids: Vec<CodeId>,
    /// The file type of the best object, for names and ties.
    file_type: FileType,
    /// The combined features of its objects.
    features: Features,
    /// Whether the upload contains other files that may complete one of its objects.
    is_accompanied: bool,
    /// The ids of the companions that its objects need.
    needs: Vec<CompanionId>,
    /// Whether names of one of its objects are hidden.
    hides_names: bool,
    /// Under a companion's id: the modules in the file that need the companion. Empty for the
    /// companion itself.
    needed_by: Vec<String>,
    /// Why nothing can be derived from one of its objects.
    fault: Option<Missing>,
}

/// A module whose entries an upload concerns: one that it is filed under, or a program that it
/// completes.
#[derive(Clone)]
pub(super) struct ConcernedModule {
    /// The key.
    pub(super) key: ModuleKey,
    /// The kinds that the upload may yield or complete.
    pub(super) kinds: Vec<Kind>,
    /// Whether one of its objects in the upload is a PDB.
    pub(super) has_pdb: bool,
    /// Its entries as they were last read.
    pub(super) entries: Entries,
}

/// Returns the modules of these objects of a file, each once.
pub(super) fn modules(
    scope: &Scope,
    objects: &[UploadedObject],
    location: &Location,
) -> Vec<ServedModule> {
    let mut modules: Vec<ServedModule> = Vec::new();
    let mut places: HashMap<&ModuleId, usize> = HashMap::new();
    for object in objects {
        let module = match places.get(&object.module) {
            Some(known) => &mut modules[*known],
            None => {
                let key = ModuleKey::uploads(scope.clone(), &object.module);
                modules.push_mut(ServedModule::of(key, object.file_type))
            }
        };
        module.add(object, location);
        let last = modules.len() - 1;
        places.entry(&object.module).or_insert(last);
    }
    modules
}

impl ServedModule {
    /// Returns a module without objects. The file type is that of the first one that is added.
    fn of(key: ModuleKey, file_type: FileType) -> Self {
        Self {
            concerned: ConcernedModule::of(key, Vec::new()),
            code_ids: Vec::new(),
            file_type,
            features: Features::default(),
            is_accompanied: false,
            needs: Vec::new(),
            hides_names: false,
            needed_by: Vec::new(),
            fault: None,
        }
    }

    /// Returns the key.
    pub(super) fn key(&self) -> &ModuleKey {
        &self.concerned.key
    }

    /// Adds an object of the file at this location.
    fn add(&mut self, object: &UploadedObject, location: &Location) {
        if let Some(program) = &object.needed_by {
            self.needed_by.push(program.to_string());
        }
        for id in &object.needs {
            if !self.needs.contains(id) {
                self.needs.push(id.clone());
            }
        }
        self.is_accompanied |= object.is_accompanied;
        self.hides_names |= object.hides_names;
        if Rank::of(&object.features, Purpose::Debug) < Rank::of(&self.features, Purpose::Debug) {
            self.file_type = object.file_type;
        }
        self.features.merge(&object.features);
        if self.fault.is_none() {
            self.fault.clone_from(&object.fault);
        }
        self.concerned.has_pdb |= object.file_type == FileType::Pdb;
        self.concerned.add_kinds_of(object, location);
        if let (ModuleId::Debug(_), Some(ModuleId::Code(code_id))) =
            (&object.module, ModuleId::of(None, object.code_id.as_ref()))
            && !self.code_ids.contains(&code_id)
        {
            self.code_ids.push(code_id);
        }
    }

    /// Returns the id of the auxiliary file, if the file is one.
    fn auxiliary_id(&self) -> Option<DebugId> {
        match self.key().reference() {
            _ if !self.file_type.is_auxiliary() => None,
            Some(ModuleRef::Filed(ModuleId::Debug(id))) => Some(id),
            Some(ModuleRef::Filed(ModuleId::Companion(CompanionId::SymbolMap(id)))) => Some(id),
            _ => None,
        }
    }

    /// Returns whether it is a program that is filed under a companion's id.
    pub(super) fn is_program(&self) -> bool {
        !self.needed_by.is_empty()
    }
}

impl ConcernedModule {
    /// Returns a module of which no entries were read.
    pub(super) fn of(key: ModuleKey, kinds: Vec<Kind>) -> Self {
        Self {
            key,
            kinds,
            has_pdb: false,
            entries: Entries::Unread,
        }
    }

    /// Adds the kinds that an object yields or completes.
    fn add_kinds_of(&mut self, object: &UploadedObject, location: &Location) {
        if !self.key.is_of_companions() {
            let kinds = Kind::derived_from(object.file_type).iter();
            let has_sources = object.features.has_sources;
            self.kinds
                .extend(kinds.filter(|kind| **kind != Kind::SourceCode || has_sources));
            let completed = Kind::DERIVED.into_iter();
            self.kinds
                .extend(completed.filter(|kind| kind.is_completed_by(object.file_type)));
        }
        if object.file_type == FileType::MsSymCache {
            let name = MsSymCacheName::of(location);
            self.kinds
                .extend(name.map(|name| Kind::MsSymCache(name.version.major)));
        }
        self.kinds.sort_unstable();
        self.kinds.dedup();
    }

    /// Adds the kinds of Microsoft's SymCaches that the partition has entries of, if the module has
    /// a PDB. They are made only on request, and every PDB of the module concerns them.
    pub(super) fn add_opaque_kinds(&mut self, partition: &[(ItemKey, Stored)]) {
        if self.has_pdb {
            let entries = partition
                .iter()
                .filter_map(|(_, stored)| stored.item.entry());
            let kinds = entries.map(Entry::kind).filter(|kind| kind.is_opaque());
            self.kinds.extend(kinds);
            self.kinds.sort_unstable();
            self.kinds.dedup();
        }
    }
}

impl UploadChanges<'_> {
    /// Adds a file to a module, and the aliases for its other ids. Returns the module's entries as
    /// they were before; `None` if the module has no room for the file.
    pub(super) async fn add_dif(
        &self,
        module: &ServedModule,
        upload: &Upload,
        dif: &DifRef,
        over_limit: Option<Missing>,
    ) -> Result<Option<Entries>, Fault> {
        let (key, location) = (module.key(), &dif.location);
        let Some(mut partition) = self.find_room(key, location).await? else {
            return Ok(None);
        };
        let item = Item::Dif(Dif {
            module: key.clone(),
            file: dif.clone(),
            sequencer: upload.sequencer.clone(),
            size: upload.size,
            file_type: module.file_type,
            features: module.features.clone(),
            is_accompanied: module.is_accompanied,
            needs: module.needs.clone(),
            hides_names: module.hides_names,
            auxiliary_id: module.auxiliary_id(),
            needed_by: module.needed_by.clone(),
            over_limit,
            fault: module.fault.clone(),
        });
        let is_later = |present: &Item| matches!(present, Item::Dif(present) if upload.sequencer < present.sequencer);
        let next = |present: Present<'_>| {
            let is_in_the_way = present
                .item
                .is_some_and(|present| *present != item && is_later(present));
            (!is_in_the_way).then(|| item.clone())
        };
        let entries = Entries::of(&partition);
        let mut known = |key: &ItemKey| {
            let at = partition.iter().position(|(other, _)| other == key);
            KnownItem::Read(at.map(|at| partition.swap_remove(at).1))
        };
        let (dif, presence) = (key.dif(location), key.presence());
        let (known_dif, known_presence) = (known(&dif), known(&presence));
        let writer = self.writer();
        writer.write(&dif, known_dif, next).await?;
        let filed = FiledAs {
            code_ids: &module.code_ids,
            has_sources: module.features.has_sources,
        };
        presence::write_presence(writer, key, filed, known_presence).await?;
        Ok(Some(entries))
    }

    /// Returns the items of a module if it has room for a file; otherwise adds the file to the
    /// overflow.
    async fn find_room(
        &self,
        module: &ModuleKey,
        location: &Location,
    ) -> Result<Option<Vec<(ItemKey, Stored)>>, Fault> {
        let records = &self.builder.records;
        let partition = records.query(&module.partition()).await?;
        if has_room(&partition, module, location) {
            return Ok(Some(partition));
        }
        self.note_overflow(module, location).await?;
        // A file may have been removed before this upload was in the overflow. That removal did not
        // re-queue this upload, so check for room again.
        let partition = records.query(&module.partition()).await?;
        if !has_room(&partition, module, location) {
            let (module, most) = (&module.id, MAX_DIFS);
            tracing::warn!(module, %location, most, "module has reached its limit of files");
            return Ok(None);
        }
        let gone = std::slice::from_ref(location);
        self.forget_overflow(module, gone, |_| true).await?;
        Ok(Some(partition))
    }

    /// Removes the `dif` item of a location from a module, if `is_meant` accepts it. Returns the
    /// items of the module's partition after that.
    pub(super) async fn take_out(
        &self,
        module: &ModuleKey,
        location: &Location,
        is_meant: impl Fn(&Dif) -> bool,
    ) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        let is_meant = |item: &Item| matches!(item, Item::Dif(present) if is_meant(present));
        let writer = self.writer();
        writer.remove(&module.dif(location), is_meant).await?;
        presence::remove_presence_if_empty(writer, module).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(file_type: FileType, code_id: Option<&str>, has_debug_info: bool) -> UploadedObject {
        let debug_id = "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap();
        UploadedObject {
            debug_id: Some(debug_id),
            code_id: code_id.map(|id| crate::domain::CodeId::new(id.into())),
            arch: "x86_64".to_owned(),
            features: Features {
                has_debug_info,
                has_unwind_info: !has_debug_info,
                ..Features::default()
            },
            ..UploadedObject::filed(ModuleId::Debug(debug_id), file_type)
        }
    }

    #[test]
    fn objects_with_one_id_are_one_module_that_offers_all_of_them() {
        let modules = modules(
            &Scope::Global,
            &[
                object(FileType::Pe, Some("f1c3bcc0"), false),
                object(FileType::Pdb, None, true),
            ],
            &Location::new("global/a.zip"),
        );
        let [module] = modules.as_slice() else {
            panic!("{} modules", modules.len())
        };
        assert_eq!(
            (module.file_type, module.concerned.kinds.as_slice()),
            (FileType::Pdb, [Kind::CfiCache, Kind::SymCache].as_slice())
        );
        assert!(module.features.has_debug_info && module.features.has_unwind_info);
        let code_ids: Vec<&str> = module.code_ids.iter().map(CodeId::as_str).collect();
        assert_eq!(code_ids, ["f1c3bcc0"]);
    }

    #[test]
    fn sources_belong_to_a_module_and_no_cache_is_made_of_them() {
        let modules = modules(
            &Scope::Global,
            &[object(FileType::SourceBundle, None, false)],
            &Location::new("global/a.src.zip"),
        );
        assert_eq!(
            modules
                .iter()
                .map(|module| module.concerned.kinds.len())
                .collect::<Vec<_>>(),
            [0]
        );
    }
}
