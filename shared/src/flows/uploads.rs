//! Events of the uploads bucket: a DIF was created or removed.
//!
//! A creation, each step of which may be repeated:
//!
//! 1. The upload item becomes *pending*. Events of a key are ordered by their sequencer; an old one is done with.
//! 2. The file is fetched once, and its ids are read. A file without one serves nothing: *ignored*, with the reason.
//! 3. Each module gets a `dif` item, and an alias for its other id. DIFs of the same key that were there before go.
//! 4. The upload item is read again: was the file removed or overwritten meanwhile, its `dif` items go too.
//! 5. The module's entries are marked: what was missing is asked for, what is being built is looked at again.
//! 6. The caches are built from the file that is still open, and the upload item becomes *applied*.
//!
//! A removal makes the upload item *gone*, removes the `dif` items, and revokes what was made from it.

use std::time::Duration;

use super::build::{Builder, OpenDif, Outcome};
use super::{Error, Invocation, fetch};
use crate::cache::{
    Alias, Change, Converter, Dif, Item, ItemKey, Kind, Lane, ModuleKey, Token, Upload, UploadState, UploadedObject,
};
use crate::domain::{Cause, DifRef, Features, FileType, Inspection, Location, Missing, ModuleId, Purpose, Rank, Scope};
use crate::ports::{Consistency, DifError, DifStat, LaneMessage, StoreError};

/// A tombstone stands this long: no event is older.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(15 * 24 * 3600);

/// DIFs that are kept for one module: whoever uploads more has given them the same id by mistake.
const MAX_DIFS: usize = 16;

/// An event of the uploads bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadEvent {
    /// The key, decoded.
    pub key: String,
    /// The order of the event among those of this key: hex digits, compared as padded numbers.
    pub sequencer: String,
    /// What happened.
    pub change: UploadChange,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadChange {
    /// It was written.
    Created,
    /// It was removed.
    Removed,
}

/// What to do about an upload, once its file has been looked at.
enum Reading {
    /// Its objects, each under its id.
    Objects(Vec<UploadedObject>, Option<Missing>, Option<OpenDif>),
    /// Why it serves nothing.
    Ignored(String),
    /// It is not there any more, or other bytes are: another event tells.
    Overtaken,
}

impl Builder {
    /// Applies an event. Delivered again, or behind a later one of the same key, it does nothing.
    pub async fn upload(&self, invocation: &Invocation, event: &UploadEvent) -> Result<(), Error> {
        let known = self.known_upload(&event.key).await?;
        if let Some(known) = &known {
            let order = order(&event.sequencer, &known.sequencer);
            let done = known.state != UploadState::Pending;
            if order.is_lt() || (order.is_eq() && done) {
                return Ok(());
            }
        }
        match event.change {
            UploadChange::Created => self.created(invocation, event, known).await,
            UploadChange::Removed => self.removed(invocation, event, known).await,
        }
    }

    async fn created(&self, invocation: &Invocation, event: &UploadEvent, known: Option<Upload>) -> Result<(), Error> {
        let location = Location::new(event.key.as_str());
        let stat = match self.uploads.stat(&location).await {
            Ok(stat) => stat,
            // Removed already: its event follows, or has been here.
            Err(DifError::Missing(_) | DifError::Changed) => return Ok(()),
            Err(DifError::Store(error)) => return Err(error.into()),
        };
        // What was here before is named by the item until it is out of every answer: an event that comes again undoes it.
        let former = known.filter(|known| !known.objects.is_empty());
        let mut upload = Upload {
            key: event.key.clone(),
            etag: former.as_ref().map_or(&stat.etag, |former| &former.etag).clone(),
            sequencer: event.sequencer.clone(),
            size: stat.size,
            objects: former.as_ref().map(|former| former.objects.clone()).unwrap_or_default(),
            state: UploadState::Pending,
            at: invocation.now(),
            expires_at: None,
        };
        let Some(scope) = scope_of(&event.key) else {
            upload.etag.clone_from(&stat.etag);
            upload.state = UploadState::Ignored { reason: NO_SCOPE.to_owned() };
            self.put_upload(invocation, upload).await?;
            return Ok(());
        };
        if !self.put_upload(invocation, upload.clone()).await? {
            return Ok(());
        }
        let dif = DifRef { location, etag: stat.etag.clone() };
        let reading = self.read(&dif, &stat).await?;
        let (objects, refused, mut open) = match reading {
            Reading::Objects(objects, refused, open) => (objects, refused, open),
            Reading::Ignored(reason) => {
                self.replace_former(invocation, &scope, former.as_ref(), &dif).await?;
                upload.etag.clone_from(&stat.etag);
                upload.objects.clear();
                upload.state = UploadState::Ignored { reason };
                self.put_upload(invocation, upload).await?;
                return Ok(());
            }
            Reading::Overtaken => return Ok(()),
        };
        self.replace_former(invocation, &scope, former.as_ref(), &dif).await?;
        // The item names the objects before there is anything to undo, so that a removal finds what to undo.
        upload.etag.clone_from(&stat.etag);
        upload.objects.clone_from(&objects);
        if !self.put_upload(invocation, upload.clone()).await? {
            return Ok(());
        }
        let modules = modules(&scope, &objects);
        for module in &modules {
            self.add_dif(invocation, module, &upload, &dif, refused.clone()).await?;
        }
        if !self.is_current(&event.key, &upload).await? {
            let ours = |present: &Dif| present.sequencer == upload.sequencer;
            self.remove_difs(invocation, &modules, &dif.location, ours).await?;
            return Ok(());
        }
        let mut asks = Vec::with_capacity(modules.len());
        for module in &modules {
            asks.push(self.invalidate(invocation, module, &dif).await?);
        }
        for (module, ask) in modules.iter().zip(asks) {
            self.build_or_ask(invocation, module, ask, &mut open).await?;
        }
        upload.state = UploadState::Applied;
        upload.at = invocation.now();
        self.put_upload(invocation, upload).await?;
        Ok(())
    }

    async fn removed(&self, invocation: &Invocation, event: &UploadEvent, known: Option<Upload>) -> Result<(), Error> {
        let location = Location::new(event.key.as_str());
        let former = known.unwrap_or_else(|| Upload {
            key: event.key.clone(),
            etag: String::new(),
            sequencer: String::new(),
            size: 0,
            objects: Vec::new(),
            state: UploadState::Gone,
            at: invocation.now(),
            expires_at: None,
        });
        let tombstone = Upload {
            sequencer: event.sequencer.clone(),
            state: UploadState::Pending,
            at: invocation.now(),
            ..former.clone()
        };
        if !self.put_upload(invocation, tombstone.clone()).await? {
            return Ok(());
        }
        if let Some(scope) = scope_of(&event.key) {
            let dif = DifRef { location, etag: former.etag.clone() };
            self.revoke(invocation, &scope, &former.objects, &dif).await?;
        }
        let gone = Upload {
            state: UploadState::Gone,
            objects: Vec::new(),
            expires_at: Some(invocation.now().plus(TOMBSTONE_LIFETIME)),
            ..tombstone
        };
        self.put_upload(invocation, gone).await?;
        Ok(())
    }

    /// Fetches the file and reads the ids of its objects.
    async fn read(&self, dif: &DifRef, stat: &DifStat) -> Result<Reading, Error> {
        let max = self.settings.dif_max_bytes;
        let fetched = fetch::fetch(&*self.uploads, &*self.deriver, &dif.location, stat, max).await;
        let (mut parser, too_large) = match fetched {
            Ok(parser) => (parser, None),
            Err(DifError::Missing(missing)) if matches!(missing.cause, Cause::TooLarge { .. }) => {
                match fetch::fetch_ends(&*self.uploads, &*self.deriver, &dif.location, stat).await {
                    Ok(parser) => (parser, Some(missing)),
                    Err(DifError::Store(error)) => return Err(error.into()),
                    Err(DifError::Missing(_) | DifError::Changed) => return Ok(Reading::Ignored(missing.detail)),
                }
            }
            Err(DifError::Missing(_) | DifError::Changed) => return Ok(Reading::Overtaken),
            Err(DifError::Store(error)) => return Err(error.into()),
        };
        let inspection = match parser.inspect().await.map_err(fetch::from_parse) {
            Ok(inspection) => inspection,
            Err(DifError::Store(error)) => return Err(error.into()),
            Err(DifError::Missing(missing)) => return Ok(Reading::Ignored(too_large.unwrap_or(missing).detail)),
            Err(DifError::Changed) => return Ok(Reading::Overtaken),
        };
        let objects = filed_objects(&inspection);
        if objects.is_empty() {
            let reason = match too_large {
                Some(missing) => missing.detail,
                None => reason_for_nothing(&inspection),
            };
            return Ok(Reading::Ignored(reason));
        }
        let open = too_large.is_none().then(|| OpenDif { dif: dif.clone(), parser, inspection });
        Ok(Reading::Objects(objects, too_large, open))
    }

    /// What was made from the bytes that were at this key before may not be served any more.
    async fn replace_former(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        former: Option<&Upload>,
        dif: &DifRef,
    ) -> Result<(), Error> {
        if let Some(former) = former.filter(|former| former.etag != dif.etag) {
            let former_dif = DifRef { location: dif.location.clone(), etag: former.etag.clone() };
            self.revoke(invocation, scope, &former.objects, &former_dif).await?;
        }
        Ok(())
    }

    /// Removes a DIF from its modules, with all that was made from it; what else they have is built instead.
    async fn revoke(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        objects: &[UploadedObject],
        dif: &DifRef,
    ) -> Result<(), Error> {
        let modules = modules(scope, objects);
        self.remove_difs(invocation, &modules, &dif.location, |present| present.dif == *dif).await?;
        for module in &modules {
            let mark = invocation.token();
            for kind in &module.kinds {
                let change = Change::Revoke { dif: dif.clone(), mark: mark.clone() };
                self.update(invocation).entry(&module.key, *kind, &change).await?;
            }
            self.build_or_ask(invocation, module, mark, &mut None).await?;
        }
        Ok(())
    }

    async fn add_dif(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        upload: &Upload,
        dif: &DifRef,
        refused: Option<Missing>,
    ) -> Result<(), Error> {
        let key = module.key.dif(&dif.location);
        let partition = self.records.query(&module.key.partition()).await?;
        let others = partition.iter().filter(|(other, stored)| *other != key && matches!(stored.item, Item::Dif(_)));
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
        let is_later = |present: &Item| {
            matches!(present, Item::Dif(present) if order(&upload.sequencer, &present.sequencer).is_lt())
        };
        self.update(invocation).put(&key, item, is_later).await?;
        for alias in &module.aliases {
            let item = Item::Alias(Alias { target: module.key.clone() });
            self.update(invocation).put(&alias.alias(), item, |_| false).await?;
        }
        Ok(())
    }

    async fn remove_difs(
        &self,
        invocation: &Invocation,
        modules: &[FiledModule],
        location: &Location,
        is_meant: impl Fn(&Dif) -> bool,
    ) -> Result<(), Error> {
        let is_meant = |item: &Item| matches!(item, Item::Dif(present) if is_meant(present));
        for module in modules {
            self.update(invocation).remove(&module.key.dif(location), is_meant).await?;
        }
        Ok(())
    }

    /// Marks the entries that this DIF may serve. The mark is the ask's id, too.
    async fn invalidate(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        dif: &DifRef,
    ) -> Result<Token, Error> {
        let mark = invocation.token();
        for kind in &module.kinds {
            let change = Change::Invalidate { dif: dif.clone(), mark: mark.clone() };
            self.update(invocation).entry(&module.key, *kind, &change).await?;
        }
        Ok(mark)
    }

    /// Builds a module's caches while there is time; else has them built by a message of their own.
    async fn build_or_ask(
        &self,
        invocation: &Invocation,
        module: &FiledModule,
        ask: Token,
        open: &mut Option<OpenDif>,
    ) -> Result<(), Error> {
        let message = LaneMessage {
            schema: LaneMessage::SCHEMA,
            lane: Lane::Uploads,
            module: module.key.clone(),
            kinds: module.kinds.clone(),
            ask,
            min_converter: Converter::CURRENT,
        };
        if invocation.time_left() < invocation.elapsed() {
            return self.send_again(invocation, &message, invocation.now()).await;
        }
        match self.build(invocation, &module.key, &module.kinds, open).await? {
            Outcome::Settled => Ok(()),
            Outcome::Later(at) => self.send_again(invocation, &message, at).await,
        }
    }

    async fn known_upload(&self, key: &str) -> Result<Option<Upload>, StoreError> {
        let key = ItemKey::upload(&Location::new(key));
        let loaded = self.records.load(&[key], Consistency::Strong).await?;
        Ok(loaded.into_iter().flatten().find_map(|stored| match stored.item {
            Item::Upload(upload) => Some(upload),
            _ => None,
        }))
    }

    /// Writes an upload item unless a later event of its key was here; tells whether it did.
    async fn put_upload(&self, invocation: &Invocation, upload: Upload) -> Result<bool, StoreError> {
        let key = ItemKey::upload(&Location::new(upload.key.as_str()));
        let sequencer = upload.sequencer.clone();
        let is_later =
            |present: &Item| matches!(present, Item::Upload(present) if order(&sequencer, &present.sequencer).is_lt());
        self.update(invocation).put(&key, Item::Upload(upload), is_later).await
    }

    /// Tells whether an upload is still what its key holds.
    async fn is_current(&self, key: &str, upload: &Upload) -> Result<bool, StoreError> {
        let known = self.known_upload(key).await?;
        Ok(known.is_some_and(|known| known.sequencer == upload.sequencer && known.state != UploadState::Gone))
    }
}

const NO_SCOPE: &str = "its key has no scope: copy it to global/… (or to <tenant>/…)";

/// Returns the scope of a key: its first segment, where more follows.
fn scope_of(key: &str) -> Option<Scope> {
    let (scope, rest) = key.split_once('/')?;
    if rest.is_empty() { None } else { scope.parse().ok() }
}

/// Compares sequencers: hex digits of different lengths, the shorter padded with zeros on the right.
fn order(a: &str, b: &str) -> std::cmp::Ordering {
    let length = a.len().max(b.len());
    format!("{a:0<length$}").to_ascii_lowercase().cmp(&format!("{b:0<length$}").to_ascii_lowercase())
}

/// Returns the objects that an id can be found by.
fn filed_objects(inspection: &Inspection) -> Vec<UploadedObject> {
    inspection
        .objects
        .iter()
        .filter_map(|object| {
            Some(UploadedObject {
                module: ModuleId::of(object.debug_id, object.code_id.as_ref())?,
                debug_id: object.debug_id,
                code_id: object.code_id.clone(),
                file_type: object.file_type,
                arch: object.arch.clone(),
                features: object.features.clone(),
            })
        })
        .collect()
}

fn reason_for_nothing(inspection: &Inspection) -> String {
    match inspection.ignored.as_slice() {
        [] => "it holds no debug information file".to_owned(),
        reasons => reasons.join("; "),
    }
}

/// A module that an upload serves: all its objects with one id.
struct FiledModule {
    key: ModuleKey,
    /// The other ids that lead to it.
    aliases: Vec<ModuleKey>,
    kinds: Vec<Kind>,
    /// The type of the object that serves best, for naming and ties.
    file_type: FileType,
    /// What its objects offer together.
    features: Features,
}

/// Returns the modules of these objects, each once.
fn modules(scope: &Scope, objects: &[UploadedObject]) -> Vec<FiledModule> {
    let mut modules: Vec<FiledModule> = Vec::new();
    for object in objects {
        let key = ModuleKey::uploads(scope.clone(), &object.module);
        let module = match modules.iter_mut().position(|module| module.key == key) {
            Some(known) => &mut modules[known],
            None => modules.push_mut(FiledModule {
                key,
                aliases: Vec::new(),
                kinds: Vec::new(),
                file_type: object.file_type,
                features: Features::default(),
            }),
        };
        if Rank::of(&object.features, Purpose::Debug) < Rank::of(&module.features, Purpose::Debug) {
            module.file_type = object.file_type;
        }
        module.features.merge(&object.features);
        module.kinds.extend(Kind::derived_from(object.file_type));
        module.kinds.sort_unstable();
        module.kinds.dedup();
        if let (ModuleId::Debug(_), Some(alias)) = (&object.module, ModuleId::of(None, object.code_id.as_ref())) {
            module.aliases.push(ModuleKey::uploads(scope.clone(), &alias));
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequencers_of_different_lengths_are_compared_as_if_padded() {
        assert!(order("0055", "0055aa").is_lt());
        assert!(order("0056", "0055AA").is_gt());
        assert!(order("00aa", "00AA00").is_eq());
        assert!(order("", "00").is_eq());
    }

    #[test]
    fn the_scope_is_the_first_segment_and_a_key_needs_more() {
        assert_eq!(scope_of("global/a.debug"), Some(Scope::Global));
        assert_eq!(scope_of("acme/deep/er/a.debug"), Some(Scope::Tenant("acme".into())));
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
            features: Features { has_debug_info, has_unwind_info: !has_debug_info, ..Features::default() },
        }
    }

    #[test]
    fn objects_with_one_id_are_one_module_that_offers_all_of_them() {
        let modules = modules(
            &Scope::Global,
            &[object(FileType::Pe, Some("f1c3bcc0"), false), object(FileType::Pdb, None, true)],
        );
        let [module] = modules.as_slice() else { panic!("{} modules", modules.len()) };
        assert_eq!((module.file_type, module.kinds.as_slice()), (FileType::Pdb, [Kind::CfiCache, Kind::SymCache].as_slice()));
        assert!(module.features.has_debug_info && module.features.has_unwind_info);
        assert_eq!(module.aliases.iter().map(|alias| alias.module.as_str()).collect::<Vec<_>>(), ["code_id:f1c3bcc0"]);
    }

    #[test]
    fn sources_belong_to_a_module_and_no_cache_is_made_of_them() {
        let modules = modules(&Scope::Global, &[object(FileType::SourceBundle, None, false)]);
        assert_eq!(modules.iter().map(|module| module.kinds.len()).collect::<Vec<_>>(), [0]);
    }
}
