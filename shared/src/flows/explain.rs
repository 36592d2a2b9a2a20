//! What became of an upload, and what a request for a module would read. Changes nothing.

use std::collections::BTreeSet;

use serde::Serialize;

use super::symbolicate::Symbolicator;
use super::{Error, Invocation, permits, uploads};
use crate::api::advice::Advice;
use crate::cache::{
    BuildRequest, Capabilities, Converter, Decision, Entry, Item, ItemKey, Kind, ModuleKey, NoRoom,
    Placeholder, Queue, Ready, Sought, Upload, UploadState, UploadedObject, decide,
};
use crate::domain::{
    Candidate, Cause, CodeId, CompanionId, DebugId, DifRef, Features, FileType, FormatVersion,
    Location, ModuleId, ObjectId, Quality, Scope, SourceKey, Timestamp,
};
use crate::ports::{Consistency, Fault};

/// Objects of an upload that are listed.
const MAX_OBJECTS: usize = 1000;

/// The state of a record of a place to which nothing of the module was uploaded.
const ABSENT: &str = "absent";

/// What became of an upload, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedUpload {
    /// Its key in the uploads bucket.
    pub key: String,
    /// Whose it is; nothing where its key names no scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// What became of it.
    #[serde(flatten)]
    pub state: UploadState,
    /// What it lacks, or what is to be known of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
    /// What is unusual about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The etag of the bytes that this is about.
    pub etag: String,
    /// The order of its event among those of its key.
    pub sequencer: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its objects; of many the first thousand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ExplainedObject>,
    /// What it has that objects of other uploads need, as their `needs` have it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<CompanionId>,
    /// How many objects it has beside these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub further_objects: Option<usize>,
    /// What its reader passed over in it, and why; the last line says so where there was more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<String>,
    /// Attempts to read it that did not end well. One that is under way counts.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// When the last attempt began, or what became of it was written.
    pub at: Timestamp,
}

/// One object in an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedObject {
    /// Identity of the debug file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_id: Option<DebugId>,
    /// Identity of the code file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_id: Option<CodeId>,
    /// What it is.
    pub file_type: FileType,
    /// Its architecture.
    pub arch: String,
    /// What it offers.
    pub features: Features,
    /// What companions of it have, in other files: ids of split units, of which one finds a package, and the build id of a shared file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// What it lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<UploadedObject> for ExplainedObject {
    fn from(object: UploadedObject) -> Self {
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
            fault,
        } = object;
        Self {
            advice: Advice::of_object(file_type, &features, code_id.as_ref(), fault.as_ref()),
            debug_id,
            code_id,
            file_type,
            arch,
            features,
            needs,
        }
    }
}

/// Says that an upload that is applied does not serve all of its modules.
fn note(upload: &Upload) -> Option<String> {
    let NoRoom { modules, of, named } = upload.no_room.as_ref()?;
    let further = match (*modules as usize).saturating_sub(named.len()) {
        0 => String::new(),
        further => format!(" and {further} more"),
    };
    let named = named.join(", ");
    Some(format!(
        "{modules} of its {of} modules have as many other files as they may, and are served by those: {named}{further}"
    ))
}

/// A record that a request for a module would read, whether it is there or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// Whose it is.
    pub scope: Scope,
    /// Where its DIFs are.
    pub source: SourceKey,
    /// The id it is filed under.
    pub module: String,
    /// Its kind.
    pub kind: Kind,
    /// What a request would do with it: `use`, `use_and_upgrade`, `use_older`, `missing`, `wait`, `build`; `absent` where it
    /// is known that nothing was uploaded, `unknown` where no request asked its server yet.
    pub state: &'static str,
    /// What it lacks, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// Until when it would wait at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
    /// Until when nobody asks its source, which does not answer: meanwhile a request goes without what it would wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_open_until: Option<Timestamp>,
    /// What the record says; nothing where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<ExplainedRecord>,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedRecord {
    /// The newest state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<ExplainedState>,
    /// The state of a lower version, kept for an older build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older: Option<ExplainedState>,
    /// Why there is nothing, or nothing newer, and when to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<ExplainedPlaceholder>,
    /// Who builds it, or vanished over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<ExplainedLease>,
    /// Which lane was asked, and when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_request: Option<ExplainedBuildRequest>,
    /// Holders that vanished.
    pub attempts: u32,
    /// Before this time no lease is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// When it was last read, give or take an hour.
    pub last_used_at: Timestamp,
    /// The DIFs that were tried, with their sizes and durations.
    pub candidates: Vec<Candidate>,
}

/// What a record says of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedState {
    /// The generation of its format.
    pub version: u32,
    /// What made it.
    pub converter: Converter,
    /// Whether something better may turn up.
    pub quality: Quality,
    /// The size of its blob.
    pub bytes: u64,
    /// The type of the DIF that it was made from.
    pub file_type: FileType,
    /// The architecture.
    pub arch: String,
    /// The DIFs that it was made from.
    pub made_from: Vec<DifRef>,
    /// What is not in it although the DIF has it, or says that another file does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// When it was published.
    pub derived_at: Timestamp,
}

/// What a record says of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedPlaceholder {
    /// Why.
    #[serde(flatten)]
    pub cause: Cause,
    /// What exactly, for a human.
    pub detail: String,
    /// From when on another attempt may be made.
    pub retry_at: Timestamp,
    /// What failed.
    pub converter: Converter,
    /// How often in a row it failed for this cause before.
    pub repeats: u32,
}

/// What a record says of who builds; not the token, which is the right to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedLease {
    /// The request id of who builds.
    pub holder: String,
    /// When the lease ends unless it is extended.
    pub until: Timestamp,
    /// Whether it holds now.
    pub is_live: bool,
}

/// What a record says of an ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedBuildRequest {
    /// The queue its message waits in.
    pub queue: Queue,
    /// When it was asked.
    pub at: Timestamp,
}

impl Symbolicator {
    /// Tells what became of an upload, of the first of these keys that an event was seen of; `None` where of none. Changes
    /// nothing.
    pub async fn explain_upload(&self, keys: &[String]) -> Result<Option<ExplainedUpload>, Error> {
        let keys: Vec<ItemKey> = keys
            .iter()
            .map(|key| ItemKey::upload(&Location::new(key.as_str())))
            .collect();
        let loaded = self.records.load(&keys, Consistency::Strong).await?;
        let upload = loaded
            .into_iter()
            .flatten()
            .find_map(|stored| match stored.item {
                Item::Upload(upload) => Some(upload),
                _ => None,
            });
        let Some(upload) = upload else {
            return Ok(None);
        };
        let mut objects = uploads::objects_of(&*self.records, &upload, MAX_OBJECTS).await?;
        let all = match &upload.object_set {
            Some(set) => set.objects as usize,
            None => objects.len(),
        };
        objects.truncate(MAX_OBJECTS);
        let further = all.checked_sub(objects.len());
        let (mut explained, mut completes) = (Vec::new(), Vec::new());
        for object in objects {
            match object.module {
                ModuleId::Companion(id) if object.needed_by.is_none() => completes.push(id),
                ModuleId::Companion(_) => {}
                ModuleId::Debug(_) | ModuleId::Code(_) => explained.push(object.into()),
            }
        }
        let scope = Scope::of_key(&upload.key);
        let note = note(&upload);
        let being_read = (upload.state == UploadState::Pending).then_some(Advice::BeingRead);
        let of_tenant = scope
            .clone()
            .filter(|scope| *scope != Scope::Global)
            .map(|scope| Advice::TenantsScope { scope });
        Ok(Some(ExplainedUpload {
            scope,
            advice: being_read.into_iter().chain(of_tenant).collect(),
            note,
            further_objects: further.filter(|further| *further > 0),
            objects: explained,
            completes,
            key: upload.key,
            state: upload.state,
            etag: upload.etag,
            sequencer: upload.sequencer,
            size: upload.size,
            passed_over: upload.passed_over,
            attempts: upload.crashes,
            at: upload.at,
        }))
    }

    /// Tells of every record that a request in this scope would read for a module. Changes nothing.
    ///
    /// One round of reads; two where a code id leads to a debug id, as it takes a request.
    pub async fn explain_module(
        &self,
        invocation: &Invocation,
        module: &ObjectId,
        source: Option<&str>,
        scope: &Scope,
    ) -> Result<Vec<Explained>, Error> {
        let mut sources = self.sources();
        if let Some(id) = source {
            let known: Vec<String> = sources.iter().map(|key| key.id().to_owned()).collect();
            sources.retain(|key| key.id() == id);
            if sources.is_empty() {
                let detail = format!("no source {id:?} is configured; there are {known:?}");
                return Err(Error::Invalid { detail });
            }
        }
        let sources: Vec<_> = sources.into_iter().map(|key| (key, None)).collect();
        let is_upload = |module: &&ModuleKey| module.source.is_uploads();
        let mut modules = self.places(module, scope, &sources, Sought::new);
        let to_transcode = self.places(module, scope, &sources, Sought::to_transcode);
        modules.extend(
            to_transcode
                .into_iter()
                .filter(|module| !is_upload(&module)),
        );
        let aliased = with_alias(module, &modules);
        let (mut records, targets) = self.explained(invocation, &modules, &aliased).await?;
        let (led, targets): (Vec<ModuleKey>, Vec<ModuleKey>) = targets.into_iter().unzip();
        if !targets.is_empty() {
            // Nothing is filed under the id that was asked for, and what it leads to is.
            records.retain(|record| {
                record.state != ABSENT || !led.iter().any(|led| record.is_of(led))
            });
            records.extend(self.explained(invocation, &targets, &[]).await?.0);
        }
        let is_absent =
            |record: &Explained| record.state == ABSENT && record.kind == Kind::SymCache;
        for record in records.iter_mut().filter(|record| is_absent(record)) {
            let searched = vec![record.place()];
            record.advice = Some(Advice::of_absent(module, searched));
        }
        Ok(records)
    }

    /// Returns the kinds of Microsoft's SymCaches that are told of: those of the first clients, and those that can be made.
    fn opaque_kinds(&self) -> Vec<Kind> {
        let made = self.settings.transcoded.iter().map(|version| version.major);
        let mut majors: Vec<u16> = made.chain([FormatVersion::FIRST.major]).collect();
        majors.sort_unstable();
        majors.dedup();
        majors.into_iter().map(Kind::MsSymCache).collect()
    }

    /// Reads the entries of modules and what the aliases of some lead to, strongly, in one round. Returns each of those that
    /// lead somewhere with where they do.
    async fn explained(
        &self,
        invocation: &Invocation,
        modules: &[ModuleKey],
        aliased: &[ModuleKey],
    ) -> Result<(Vec<Explained>, Vec<(ModuleKey, ModuleKey)>), Fault> {
        let opaque = self.opaque_kinds();
        let kinds_of = |module: &ModuleKey| {
            let is_for_tools = module.sought().is_some_and(|sought| sought.to_transcode);
            let derived = Kind::DERIVED.into_iter().filter(move |_| !is_for_tools);
            derived.chain(opaque.clone())
        };
        let entries: Vec<(&ModuleKey, Kind)> = modules
            .iter()
            .flat_map(|module| kinds_of(module).map(move |kind| (module, kind)))
            .collect();
        let servers: BTreeSet<&SourceKey> = modules
            .iter()
            .map(|module| &module.source)
            .filter(|source| !source.is_uploads())
            .collect();
        let uploads: Vec<&ModuleKey> = modules
            .iter()
            .filter(|module| module.source.is_uploads())
            .collect();
        let keys = entries.iter().map(|(module, kind)| module.entry(*kind));
        let keys: Vec<ItemKey> = keys
            .chain(uploads.iter().map(|module| module.presence()))
            .chain(aliased.iter().map(ModuleKey::alias))
            .chain(servers.iter().map(|source| ItemKey::health(source)))
            .collect();
        let loaded = self.records.load(&keys, Consistency::Strong).await?;
        let mut items = loaded
            .into_iter()
            .map(|stored| stored.map(|stored| stored.item));
        let (reader, now) = (self.settings.capabilities(), invocation.now());
        let of_entries: Vec<Option<Item>> = items.by_ref().take(entries.len()).collect();
        let presences = items.by_ref().take(uploads.len());
        let absent: Vec<&ModuleKey> = uploads
            .iter()
            .zip(presences)
            .filter(|(_, presence)| presence.is_none())
            .map(|(module, _)| *module)
            .collect();
        let explain = |((module, kind), item): ((&ModuleKey, Kind), Option<Item>)| {
            let entry = item.as_ref().and_then(Item::entry);
            // That nobody asked for Microsoft's SymCache says nothing.
            let is_told = entry.is_some() || !kind.is_opaque();
            let has_files = !absent.contains(&module);
            is_told.then(|| Explained::of(module, kind, entry, has_files, &reader, now))
        };
        let mut records: Vec<Explained> = entries
            .into_iter()
            .zip(of_entries)
            .filter_map(explain)
            .collect();
        let target = |(module, item): (&ModuleKey, Option<Item>)| match item {
            Some(Item::Alias(alias)) => Some((module.clone(), alias.target)),
            _ => None,
        };
        let targets = aliased
            .iter()
            .zip(items.by_ref())
            .filter_map(target)
            .collect();
        let health: Vec<Item> = items.flatten().collect();
        for health in health.iter().filter_map(permits::health) {
            let of_it = records
                .iter_mut()
                .filter(|record| record.source == health.source);
            of_it.for_each(|record| {
                record.circuit_open_until = health.open_until.filter(|at| now < *at)
            });
        }
        Ok((records, targets))
    }
}

/// Returns the places of a module that may lead to its debug id: it is looked up by its code id alone.
pub(super) fn with_alias(module: &ObjectId, places: &[ModuleKey]) -> Vec<ModuleKey> {
    let is_by_code = matches!(
        ModuleId::of(module.debug_id, module.code_id.as_ref()),
        Some(ModuleId::Code(_))
    );
    let uploads = places
        .iter()
        .filter(|place| is_by_code && place.source.is_uploads());
    uploads.cloned().collect()
}

impl Explained {
    /// Returns where its files are, as a text.
    pub fn place(&self) -> String {
        match self.source.is_uploads() {
            true => format!("the uploads of {}", self.scope),
            false => self.source.id().to_owned(),
        }
    }

    /// Tells whether it is a record of this place.
    fn is_of(&self, place: &ModuleKey) -> bool {
        let ModuleKey {
            scope,
            source,
            id: module,
        } = place;
        (&self.scope, &self.source, &self.module) == (scope, source, module)
    }

    fn of(
        module: &ModuleKey,
        kind: Kind,
        entry: Option<&Entry>,
        has_files: bool,
        reader: &Capabilities,
        now: Timestamp,
    ) -> Self {
        let decision = decide(entry, reader, now);
        let is_upload = module.source.is_uploads();
        let (mut waits_until, mut advice) = (None, None);
        let state = match decision {
            Decision::Use(ready) | Decision::UseAndUpgrade(ready) | Decision::UseOlder(ready) => {
                if kind == Kind::SymCache {
                    advice = Advice::of_features(&ready.features);
                }
                match decision {
                    Decision::UseAndUpgrade(_) => "use_and_upgrade",
                    Decision::UseOlder(_) => "use_older",
                    _ => "use",
                }
            }
            Decision::Missing(_) => "missing",
            Decision::Wait { .. } | Decision::Build if is_upload && !has_files => ABSENT,
            Decision::Build if !is_upload && entry.is_none() => "unknown",
            Decision::Wait { until } => {
                waits_until = Some(until);
                "wait"
            }
            Decision::Build => "build",
        };
        Self {
            scope: module.scope.clone(),
            source: module.source.clone(),
            module: module.id.clone(),
            kind,
            state,
            advice,
            waits_until,
            circuit_open_until: None,
            record: entry.map(|entry| ExplainedRecord::of(entry, now)),
        }
    }
}

impl ExplainedRecord {
    fn of(entry: &Entry, now: Timestamp) -> Self {
        let state = |ready: &Ready| ExplainedState {
            version: ready.version,
            converter: ready.converter,
            quality: ready.quality,
            bytes: ready.blob.bytes,
            file_type: ready.file_type,
            arch: ready.arch.clone(),
            made_from: ready.made_from.clone(),
            lacks: ready.lacks.clone(),
            derived_at: ready.derived_at,
        };
        let placeholder = |placeholder: &Placeholder| ExplainedPlaceholder {
            cause: placeholder.missing.cause,
            detail: placeholder.missing.detail.clone(),
            retry_at: placeholder.retry_at,
            converter: placeholder.converter,
            repeats: placeholder.repeats,
        };
        Self {
            ready: entry.ready().map(state),
            older: entry.older().map(state),
            missing: entry.missing().map(placeholder),
            lease: entry.lease().map(|lease| ExplainedLease {
                holder: lease.holder.clone(),
                until: lease.until,
                is_live: entry.live_lease(now).is_some(),
            }),
            build_request: entry.build_request().map(|BuildRequest { queue, at, .. }| {
                ExplainedBuildRequest {
                    queue: *queue,
                    at: *at,
                }
            }),
            attempts: entry.attempts(),
            not_before: entry.not_before(),
            last_used_at: entry.last_used_at(),
            candidates: entry.candidates().to_vec(),
        }
    }
}
