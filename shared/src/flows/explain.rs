//! Explains the state of an upload, and the entries that a request for a module would read. Changes
//! nothing.

use std::collections::BTreeSet;

use serde::Serialize;

use super::Symbolicator;
use super::lookup::{CacheFinder, CachePlace, Items, Lookup};
use super::{Error, Invocation, permits, uploads};
use crate::api::advice::Advice;
use crate::cache::{
    BuildRequest, Converter, Criteria, Decision, Entry, Item, ItemKey, Kind, ModuleKey, NoRoom,
    Placeholder, Preference, Queue, Ready, Sought, UnreadableBlobs, Upload, UploadState,
    UploadedObject, decide,
};
use crate::domain::{
    Candidate, Cause, CodeId, CompanionId, DebugId, DifRef, Features, FileType, FormatVersion,
    Location, ModuleId, ObjectId, Quality, Scope, Sequencer, SourceKey, Timestamp,
};
use crate::ports::Consistency;

/// The maximum number of objects of an upload that are listed.
const MAX_OBJECTS: usize = 1000;

/// All states of [`Explained`].
#[cfg(feature = "openapi")]
const STATES: [&str; 8] = [
    "use",
    "use_and_upgrade",
    "use_older",
    "missing",
    "wait",
    "build",
    ABSENT,
    "unknown",
];

/// The state if no file of the module was uploaded to the place.
const ABSENT: &str = "absent";

/// The state of an upload, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedUpload {
    /// Its key in the uploads bucket.
    pub key: String,
    /// The scope; absent if the key names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The state.
    #[serde(flatten)]
    pub state: UploadState,
    /// What it lacks, or what else is important about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
    /// A note about the modules that it does not serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The etag of the bytes that this describes.
    pub etag: String,
    /// The sequencer of its last event.
    pub sequencer: Sequencer,
    /// Its size in bytes.
    pub size: u64,
    /// Its objects, at most the first thousand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ExplainedObject>,
    /// The ids of companions in this upload, as other objects have them in their `needs`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub completes: Vec<CompanionId>,
    /// The number of objects that are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub further_objects: Option<usize>,
    /// What was skipped in the file, and why. The last line says so if the list is incomplete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<String>,
    /// The number of failed attempts to read it, including one that is in progress.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// When the last attempt began, or its result was written.
    pub at: Timestamp,
}

/// One object in an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedObject {
    /// The debug id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schemars(with = "Option<crate::domain::schema::DebugIdText>")
    )]
    pub debug_id: Option<DebugId>,
    /// The code id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schemars(with = "Option<crate::domain::schema::CodeIdText>")
    )]
    pub code_id: Option<CodeId>,
    /// The file type.
    pub file_type: FileType,
    /// The architecture.
    pub arch: String,
    /// The features.
    pub features: Features,
    /// The ids of the companions that it needs: ids of split units, one of which identifies a
    /// package, the build id of a shared file, and the id of a symbol map.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<CompanionId>,
    /// Whether its names are hidden: a symbol map has them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hides_names: bool,
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
            hides_names,
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

/// The state of an entry that a request for a module would read, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Explained {
    /// The scope.
    pub scope: Scope,
    /// The source of its DIFs.
    pub source: SourceKey,
    /// The id of the module: `debug_id:…` or `code_id:…`.
    pub module: String,
    /// The kind.
    pub kind: Kind,
    /// What a request would do with it: `use`, `use_and_upgrade`, `use_older`, `missing`, `wait`,
    /// `build`; `absent` if no file was uploaded, `unknown` if no request has searched its server
    /// yet.
    #[cfg_attr(feature = "openapi", schemars(extend("enum" = STATES)))]
    pub state: &'static str,
    /// What it lacks, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// The latest time until which a request would wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
    /// When the open circuit of its source becomes half-open. Until then, a request does not wait
    /// for the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_open_until: Option<Timestamp>,
    /// The record; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<ExplainedRecord>,
}

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedRecord {
    /// The newest state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<ExplainedState>,
    /// The state of a lower version, kept for an older build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older: Option<ExplainedState>,
    /// Why there is no state or no newer one, and when to retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<ExplainedPlaceholder>,
    /// The current lease, or an expired one that was not released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<ExplainedLease>,
    /// The build request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_request: Option<ExplainedBuildRequest>,
    /// The number of holders that vanished.
    pub attempts: u32,
    /// The end of the back-off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// When it was last used, give or take an hour.
    pub last_used_at: Timestamp,
    /// The DIFs that were tried, with their sizes and durations.
    pub candidates: Vec<Candidate>,
}

/// A state in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(rename = "ExplainedCache"))]
pub struct ExplainedState {
    /// The version of the format.
    pub version: u32,
    /// The converter that derived it.
    pub converter: Converter,
    /// Whether a better DIF may be found later.
    pub quality: Quality,
    /// The size of its blob.
    pub bytes: u64,
    /// The type of the DIF that it was made from.
    pub file_type: FileType,
    /// The architecture.
    pub arch: String,
    /// The DIFs that it was made from.
    pub made_from: Vec<DifRef>,
    /// What it lacks although the DIF has it or refers to another file for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// When it was published.
    pub derived_at: Timestamp,
}

/// A placeholder in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedPlaceholder {
    /// The cause.
    #[serde(flatten)]
    pub cause: Cause,
    /// The details, for people.
    pub detail: String,
    /// When a build may be requested again.
    pub retry_at: Timestamp,
    /// The converter that failed.
    pub converter: Converter,
    /// The number of earlier consecutive failures with the same cause.
    pub repeats: u32,
}

/// A lease in a record, without the token, which is the right to publish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedLease {
    /// The request id of the builder.
    pub holder: String,
    /// When the lease expires unless it is extended.
    pub until: Timestamp,
    /// Whether it is live now.
    pub is_live: bool,
}

/// A build request in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ExplainedBuildRequest {
    /// The queue of its message.
    pub queue: Queue,
    /// When the build was requested.
    pub at: Timestamp,
}

impl Symbolicator {
    /// Returns the state of an upload, for the first of these keys that has one; `None` if no event
    /// was received for any of them. Changes nothing.
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
            attempts: upload.attempts,
            at: upload.at,
        }))
    }

    /// Returns the state of every entry that a request in this scope would read for a module.
    /// Changes nothing.
    ///
    /// Takes one round of reads, or two if a code id refers to a debug id, like a request.
    pub async fn explain_module(
        &self,
        invocation: &Invocation,
        module: &ObjectId,
        source: Option<&str>,
        scope: &Scope,
    ) -> Result<Vec<Explained>, Error> {
        let finder = CacheFinder::uncached(self, invocation);
        let mut sources = finder.all_sources();
        if let Some(id) = source {
            let known: Vec<String> = sources.iter().map(|(key, _)| key.id().to_owned()).collect();
            sources.retain(|(key, _)| key.id() == id);
            if sources.is_empty() {
                let detail =
                    format!("no source {id:?} is configured; the configured ones are {known:?}");
                return Err(Error::Invalid { detail });
            }
        }
        let mut modules = finder.places(module, scope, &sources, Sought::new);
        let to_transcode = finder.places(module, scope, &sources, Sought::to_transcode);
        modules.extend(
            to_transcode
                .into_iter()
                .filter(|module| !module.source.is_uploads()),
        );
        let mut lookup = self.lookup_of(module, modules.clone());
        let criteria = Criteria {
            reader: &self.settings.capabilities(),
            preference: Preference::BestDif,
            unreadable: &UnreadableBlobs::default(),
            may_wait: false,
            now: invocation.now(),
        };
        let lookups = &mut [&mut lookup];
        let items = finder.load(lookups, &criteria, Consistency::Strong).await?;
        // The entries of an id that is only an alias are reported by its target instead.
        let is_alias = |place: &CachePlace| items.target(&place.module.alias()).is_some();
        let (own, targets): (Vec<&CachePlace>, Vec<&CachePlace>) = lookup
            .places
            .iter()
            .partition(|place| modules.contains(&place.module));
        let explain = |place: &CachePlace| Explained::of(place, &items, &criteria);
        let mut records: Vec<Explained> = own
            .into_iter()
            .filter_map(|place| {
                explain(place).filter(|record| record.state != ABSENT || !is_alias(place))
            })
            .collect();
        records.extend(targets.into_iter().filter_map(explain));
        let is_absent =
            |record: &Explained| record.state == ABSENT && record.kind == Kind::SymCache;
        for record in records.iter_mut().filter(|record| is_absent(record)) {
            let searched = vec![record.place()];
            record.advice = Some(Advice::of_absent(module, searched));
        }
        Ok(records)
    }

    /// Returns the lookup of every entry that a request would read in these places, and of the
    /// health of their servers.
    fn lookup_of(&self, object: &ObjectId, modules: Vec<ModuleKey>) -> Lookup {
        let opaque = self.opaque_kinds();
        let servers: BTreeSet<&SourceKey> = modules
            .iter()
            .map(|module| &module.source)
            .filter(|source| !source.is_uploads())
            .collect();
        let further = servers.into_iter().map(ItemKey::health).collect();
        let places = modules.into_iter().flat_map(|module| {
            let is_for_tools = module.sought().is_some_and(|sought| sought.to_transcode);
            let derived = Kind::DERIVED.into_iter().filter(move |_| !is_for_tools);
            let kinds = derived.chain(opaque.clone());
            kinds.map(move |kind| CachePlace::of(object, module.clone(), kind))
        });
        Lookup {
            further,
            reads_all: true,
            ..Lookup::of(places.collect())
        }
    }

    /// Returns the kinds of Microsoft's SymCaches to report: those of the first clients, and those
    /// that can be made.
    fn opaque_kinds(&self) -> Vec<Kind> {
        let made = self.settings.transcoded.iter().map(|version| version.major);
        let mut majors: Vec<u16> = made.chain([FormatVersion::FIRST.major]).collect();
        majors.sort_unstable();
        majors.dedup();
        majors.into_iter().map(Kind::MsSymCache).collect()
    }
}

impl Explained {
    /// Returns the place of its files, as text.
    pub fn place(&self) -> String {
        match self.source.is_uploads() {
            true => format!("the uploads of {}", self.scope),
            false => self.source.id().to_owned(),
        }
    }

    /// Explains the entry of a place; `None` if it is one of Microsoft's SymCaches that no request
    /// was made for, which is normal.
    fn of(place: &CachePlace, items: &Items, criteria: &Criteria<'_>) -> Option<Self> {
        let CachePlace { module, kind, .. } = place;
        let (kind, now) = (*kind, criteria.now);
        let entry = items.entry(place);
        if entry.is_none() && kind.is_opaque() {
            return None;
        }
        let decision = decide(entry, criteria.reader, now);
        let is_upload = place.is_uploads();
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
            Decision::Wait { .. } | Decision::Build if !items.has_files(place) => ABSENT,
            Decision::Build if !is_upload && entry.is_none() => "unknown",
            Decision::Wait { until } => {
                waits_until = Some(until);
                "wait"
            }
            Decision::Build => "build",
        };
        let health = items.item(&ItemKey::health(&module.source));
        let open_until = health
            .and_then(permits::health)
            .and_then(|health| health.open_until);
        Some(Self {
            scope: module.scope.clone(),
            source: module.source.clone(),
            module: module.id.clone(),
            kind,
            state,
            advice,
            waits_until,
            circuit_open_until: open_until.filter(|at| now < *at),
            record: entry.map(|entry| ExplainedRecord::of(entry, now)),
        })
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
