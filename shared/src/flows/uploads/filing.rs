//! Filing an upload under its modules: which they are, and the items that lead from each to the file.

use super::super::build::Builder;
use super::super::{Error, Invocation, presence};
use super::order;
use crate::cache::{Alias, Dif, Entry, Item, Kind, ModuleKey, Upload, UploadedObject};
use crate::domain::{
    DifRef, Features, FileType, Location, Missing, ModuleId, MsSymCacheName, Purpose, Rank, Scope,
};
use crate::ports::StoreError;

/// DIFs that are kept for one module: whoever uploads more has given them the same id by mistake.
const MAX_DIFS: usize = 16;

/// A module that an upload serves: all its objects with one id.
pub(super) struct FiledModule {
    /// Its key.
    pub(super) key: ModuleKey,
    /// The other ids that lead to it.
    pub(super) aliases: Vec<ModuleKey>,
    /// What can be derived for it.
    pub(super) kinds: Vec<Kind>,
    /// Whether one of its objects is a PDB.
    has_pdb: bool,
    /// The type of the object that serves best, for naming and ties.
    pub(super) file_type: FileType,
    /// What its objects offer together.
    pub(super) features: Features,
}

/// Returns the modules of these objects of a file, each once.
pub(super) fn modules(
    scope: &Scope,
    objects: &[UploadedObject],
    location: &Location,
) -> Vec<FiledModule> {
    let mut modules: Vec<FiledModule> = Vec::new();
    for object in objects {
        let key = ModuleKey::uploads(scope.clone(), &object.module);
        let module = match modules.iter_mut().position(|module| module.key == key) {
            Some(known) => &mut modules[known],
            None => modules.push_mut(FiledModule {
                key,
                aliases: Vec::new(),
                kinds: Vec::new(),
                has_pdb: false,
                file_type: object.file_type,
                features: Features::default(),
            }),
        };
        if Rank::of(&object.features, Purpose::Debug) < Rank::of(&module.features, Purpose::Debug) {
            module.file_type = object.file_type;
        }
        module.features.merge(&object.features);
        module.kinds.extend(Kind::derived_from(object.file_type));
        if object.file_type == FileType::MsSymCache {
            let name = MsSymCacheName::of(location);
            module
                .kinds
                .extend(name.map(|name| Kind::MsSymCache(name.version.major)));
        }
        module.has_pdb |= object.file_type == FileType::Pdb;
        module.kinds.sort_unstable();
        module.kinds.dedup();
        if let (ModuleId::Debug(_), Some(alias)) =
            (&object.module, ModuleId::of(None, object.code_id.as_ref()))
        {
            module
                .aliases
                .push(ModuleKey::uploads(scope.clone(), &alias));
        }
    }
    modules
}

/// Returns the scope of a key: its first segment, where more follows.
pub(super) fn scope_of(key: &str) -> Option<Scope> {
    let (scope, rest) = key.split_once('/')?;
    if rest.is_empty() {
        None
    } else {
        scope.parse().ok()
    }
}

impl Builder {
    /// Returns the modules of these objects of a file, with what others had transcoded of them: that is made for those who ask, and
    /// concerns whoever did.
    pub(super) async fn filed(
        &self,
        scope: &Scope,
        objects: &[UploadedObject],
        location: &Location,
    ) -> Result<Vec<FiledModule>, StoreError> {
        let mut modules = modules(scope, objects, location);
        for module in modules.iter_mut().filter(|module| module.has_pdb) {
            for (_, stored) in self.records.query(&module.key.partition()).await? {
                let kind = stored.item.entry().map(Entry::kind);
                module.kinds.extend(kind.filter(|kind| kind.is_opaque()));
            }
            module.kinds.sort_unstable();
        }
        Ok(modules)
    }

    /// Makes a file known to a module, and to those who know the module by another id.
    pub(super) async fn add_dif(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        upload: &Upload,
        dif: &DifRef,
        refused: Option<Missing>,
    ) -> Result<(), Error> {
        let key = module.key.dif(&dif.location);
        let partition = self.records.query(&module.key.partition()).await?;
        let others = partition
            .iter()
            .filter(|(other, stored)| *other != key && matches!(stored.item, Item::Dif(_)));
        if others.count() >= MAX_DIFS {
            tracing::warn!(module = module.key.module, location = %dif.location, "has {MAX_DIFS} files already");
            return Ok(());
        }
        let item = Item::Dif(Dif {
            module: module.key.clone(),
            dif: dif.clone(),
            sequencer: upload.sequencer.clone(),
            size: upload.size,
            file_type: module.file_type,
            features: module.features.clone(),
            refused,
        });
        let is_later = |present: &Item| matches!(present, Item::Dif(present) if order(&upload.sequencer, &present.sequencer).is_lt());
        self.update(invocation).put(&key, item, is_later).await?;
        presence::note_file(self.update(invocation), &module.key).await?;
        for alias in &module.aliases {
            let item = Item::Alias(Alias {
                target: module.key.clone(),
            });
            self.update(invocation)
                .put(&alias.alias(), item, |_| false)
                .await?;
        }
        Ok(())
    }

    /// Removes from modules those of the items about a location that are meant.
    pub(super) async fn remove_difs(
        &self,
        invocation: &Invocation,
        modules: &[FiledModule],
        location: &Location,
        is_meant: impl Fn(&Dif) -> bool,
    ) -> Result<(), Error> {
        let is_meant = |item: &Item| matches!(item, Item::Dif(present) if is_meant(present));
        for module in modules {
            self.update(invocation)
                .remove(&module.key.dif(location), is_meant)
                .await?;
            presence::forget_files(self.update(invocation), &module.key).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_is_the_first_segment_and_a_key_needs_more() {
        assert_eq!(scope_of("global/a.debug"), Some(Scope::Global));
        assert_eq!(
            scope_of("acme/deep/er/a.debug"),
            Some(Scope::Tenant("acme".into()))
        );
        for key in ["a.debug", "global/", "/a.debug", ""] {
            assert_eq!(scope_of(key), None, "{key:?}");
        }
    }

    fn object(file_type: FileType, code_id: Option<&str>, has_debug_info: bool) -> UploadedObject {
        let debug_id = "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap();
        UploadedObject {
            module: ModuleId::Debug(debug_id),
            debug_id: Some(debug_id),
            code_id: code_id.map(|id| crate::domain::CodeId::new(id.into())),
            file_type,
            arch: "x86_64".to_owned(),
            features: Features {
                has_debug_info,
                has_unwind_info: !has_debug_info,
                ..Features::default()
            },
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
            (module.file_type, module.kinds.as_slice()),
            (FileType::Pdb, [Kind::CfiCache, Kind::SymCache].as_slice())
        );
        assert!(module.features.has_debug_info && module.features.has_unwind_info);
        assert_eq!(
            module
                .aliases
                .iter()
                .map(|alias| alias.module.as_str())
                .collect::<Vec<_>>(),
            ["code_id:f1c3bcc0"]
        );
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
                .map(|module| module.kinds.len())
                .collect::<Vec<_>>(),
            [0]
        );
    }
}
