//! The state of an upload, for people.

use super::usage;
use crate::api::advice::{Advice, WrittenAdvice};
use crate::api::explained::{CacheOfObject, ExplainedObject, ExplainedUpload};
use crate::cache::{Item, ItemKey, NoRoom, Upload, UploadState, UploadedObject};
use crate::domain::{DifRef, Location, ModuleId, Scope};
use crate::flows::{Error, HttpService, uploads};
use crate::ports::{Consistency, Fault};

/// The maximum number of objects of an upload that are listed.
const MAX_OBJECTS: usize = 1000;

/// The maximum number of objects whose caches are listed. The entries of all of them are read in
/// one round.
const MAX_WITH_CACHES: usize = 250;

impl ExplainedObject {
    fn of(object: UploadedObject, caches: Vec<CacheOfObject>) -> Self {
        let of_usage = usage::advice(&object, &caches);
        let UploadedObject {
            module: _,
            debug_id,
            code_id,
            file_type,
            arch,
            features,
            is_accompanied: _,
            needs,
            needed_by: _,
            hides_names,
            fault,
        } = object;
        let advice = of_usage
            .or_else(|| Advice::of_object(file_type, &features, code_id.as_ref(), fault.as_ref()));
        Self {
            advice: advice.map(WrittenAdvice::from),
            caches,
            debug_id,
            code_id,
            file_type,
            arch,
            features,
            needs,
            hides_names,
        }
    }
}

/// Returns a note if an applied upload does not serve all of its modules.
fn note(upload: &Upload) -> Option<String> {
    let NoRoom { modules, of, named } = upload.no_room.as_ref()?;
    let further = match (*modules as usize).saturating_sub(named.len()) {
        0 => String::new(),
        further => format!(" and {further} more"),
    };
    let named = named.join(", ");
    Some(format!(
        "{modules} of its {of} modules have reached their limit of files, and are served by other files: {named}{further}"
    ))
}

impl HttpService {
    /// Returns the state of an upload, for the first of these keys that has one; `None` if no event
    /// was received for any of them. Changes nothing.
    pub async fn explain_upload(&self, keys: &[String]) -> Result<Option<ExplainedUpload>, Error> {
        let Some(upload) = self.first_upload(keys).await? else {
            return Ok(None);
        };
        let mut objects = uploads::objects_of(&*self.records, &upload, MAX_OBJECTS).await?;
        let all = match &upload.object_set {
            Some(set) => set.objects as usize,
            None => objects.len(),
        };
        objects.truncate(MAX_OBJECTS);
        let further = all.checked_sub(objects.len());
        let (mut filed, mut completes) = (Vec::new(), Vec::new());
        for object in objects {
            match object.module {
                ModuleId::Companion(id) if object.needed_by.is_none() => completes.push(id),
                ModuleId::Companion(_) => {}
                ModuleId::Debug(_) | ModuleId::Code(_) => filed.push(object),
            }
        }
        let scope = Scope::of_key(&upload.key);
        let caches = match &scope {
            Some(scope) if upload.state == UploadState::Applied => {
                let filed = filed.iter().take(MAX_WITH_CACHES);
                self.caches_of(scope, &upload, filed).await?
            }
            _ => Vec::new(),
        };
        let mut caches = caches.into_iter();
        let explained = filed.into_iter().map(|object| {
            let caches = caches.next().unwrap_or_default();
            ExplainedObject::of(object, caches)
        });
        let explained: Vec<ExplainedObject> = explained.collect();
        let note = note(&upload);
        let being_read = (upload.state == UploadState::Pending).then_some(Advice::BeingRead);
        let of_tenant = scope
            .clone()
            .filter(|scope| *scope != Scope::Global)
            .map(|scope| Advice::TenantsScope { scope });
        let advice = being_read.into_iter().chain(of_tenant);
        Ok(Some(ExplainedUpload {
            scope,
            advice: advice.map(WrittenAdvice::from).collect(),
            note,
            further_objects: further.filter(|further| *further > 0),
            objects: explained,
            completes,
            key: upload.key,
            state: upload.state,
            etag: upload.etag,
            sequencer: upload.sequencer,
            size: upload.size,
            skipped: upload.skipped,
            attempts: upload.attempts,
            at: upload.at,
        }))
    }

    /// Returns the item of the first of these keys that has one.
    async fn first_upload(&self, keys: &[String]) -> Result<Option<Upload>, Fault> {
        let keys = keys.iter();
        let keys = keys.map(|key| ItemKey::upload(&Location::new(key.as_str())));
        let keys: Vec<ItemKey> = keys.collect();
        let loaded = self.records.load(&keys, Consistency::Strong).await?;
        let mut items = loaded.into_iter().flatten().map(|stored| stored.item);
        Ok(items.find_map(|item| match item {
            Item::Upload(upload) => Some(upload),
            _ => None,
        }))
    }

    /// Returns what requests use of objects of an upload. Takes one round of reads.
    async fn caches_of(
        &self,
        scope: &Scope,
        upload: &Upload,
        objects: impl Iterator<Item = &UploadedObject>,
    ) -> Result<Vec<Vec<CacheOfObject>>, Fault> {
        let dif = DifRef {
            location: upload.location(),
            etag: upload.etag.clone(),
        };
        let entries = objects.map(|object| usage::entries_of(scope, object));
        let entries: Vec<_> = entries.collect();
        let keys = entries.iter().flatten().map(|(_, key)| key.clone());
        let keys: Vec<ItemKey> = keys.collect();
        let loaded = self.records.load(&keys, Consistency::Strong).await?;
        let mut loaded = loaded.into_iter();
        let caches = entries.into_iter().map(|of_object| {
            let kinds = of_object.into_iter().map(|(kind, _)| kind);
            let stored: Vec<_> = kinds.zip(&mut loaded).collect();
            let stored = stored.iter().map(|(kind, stored)| {
                let entry = stored.as_ref().and_then(|stored| stored.item.entry());
                (*kind, entry)
            });
            usage::caches(stored, &dif)
        });
        Ok(caches.collect())
    }
}
