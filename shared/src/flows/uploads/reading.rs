//! Reads an uploaded file: the ids of its objects, or why it serves no module.

use super::changes::UploadChanges;
use crate::cache::UploadedObject;
use crate::domain::{
    Cause, CompanionId, DifRef, Features, FileType, FormatVersion, Inspection, Location, Missing,
    ModuleId, MsSymCacheName, original_path,
};
use crate::flows::build::{OpenDif, OpenDifs};
use crate::flows::{Error, fetch};
use crate::ports::{DifError, DifStat};

/// The share of an invocation's remaining time that reading a file may take. The rest is for the
/// steps that follow.
const READING_SHARE: f64 = 0.75;

/// The maximum length of a line about something that was skipped, in bytes.
const MAX_LINE_BYTES: usize = 300;

/// The result of reading a file.
pub(super) enum Reading {
    /// The file has objects with ids.
    Found(ReadUpload),
    /// The file serves no module, for this reason.
    Ignored(String),
    /// The attempt ended without a result: the parser was killed, or the time was up.
    Interrupted(String),
    /// The file was removed or overwritten; another event follows.
    Overtaken,
}

/// The contents of a file.
pub(super) struct ReadUpload {
    /// The objects.
    pub(super) objects: Vec<UploadedObject>,
    /// What was skipped, see [`skipped`].
    pub(super) skipped: Vec<String>,
    /// Which limit the file exceeds, if it does: then nothing can be derived from it.
    pub(super) over_limit: Option<Missing>,
    /// The open file, if caches can be derived from it.
    pub(super) open_difs: OpenDifs,
}

impl UploadChanges<'_> {
    /// Fetches a file, and reads the ids of its objects.
    async fn read(&self, dif: &DifRef, stat: &DifStat) -> Result<Reading, Error> {
        if MsSymCacheName::is_suggested_by(&dif.location) {
            return Ok(read_name(&dif.location, stat.size));
        }
        let began = self.invocation.elapsed();
        let (reader, deriver) = (&self.builder.uploads, &*self.builder.deriver);
        let max = self.builder.settings.dif_max_bytes;
        let fetched = fetch::fetch(reader, deriver, &dif.location, stat, max).await;
        let (mut parser, over_limit) = match fetched {
            Ok(parser) => (parser, None),
            Err(DifError::Missing(missing)) if matches!(missing.cause, Cause::TooLarge { .. }) => {
                match fetch::fetch_ends(&**reader, deriver, &dif.location, stat).await {
                    Ok(parser) => (parser, Some(missing)),
                    Err(DifError::Fault(error)) => return Err(error.into()),
                    Err(DifError::Missing(_) | DifError::Changed) => {
                        return Ok(Reading::Ignored(missing.detail));
                    }
                }
            }
            Err(error) => return unread(error, None),
        };
        let took = self.invocation.elapsed() - began;
        let inspection = match parser.inspect().await {
            Ok(inspection) => inspection,
            Err(error) => return unread(error, over_limit),
        };
        let (mut objects, skipped_maps) = filed_objects(&inspection, &dif.location);
        if over_limit.is_some() {
            // The faults only reflect that parts of the file were not read.
            objects.iter_mut().for_each(|object| object.fault = None);
        }
        if objects.is_empty() {
            let reason = match over_limit {
                Some(missing) => missing.detail,
                None => reason_for_nothing(&inspection, &skipped_maps),
            };
            return Ok(Reading::Ignored(reason));
        }
        let skipped = skipped(&inspection, &skipped_maps);
        let mut open_difs = OpenDifs::default();
        if over_limit.is_none() {
            open_difs.add(OpenDif::alone(dif.clone(), parser, inspection, took));
        }
        Ok(Reading::Found(ReadUpload {
            objects,
            skipped,
            over_limit,
            open_difs,
        }))
    }

    /// Reads a file, within the time that the invocation can spare.
    pub(super) async fn read_in_time(
        &self,
        dif: &DifRef,
        stat: &DifStat,
        attempt: u32,
    ) -> Result<Reading, Error> {
        let most = self.invocation.time_left().mul_f64(READING_SHARE);
        self.invocation.note(|notes| notes.file_bytes += stat.size);
        let _span = self.invocation.span("fetch");
        let read = Box::pin(self.read(dif, stat));
        tokio::time::timeout(most, read).await.unwrap_or_else(|_| {
            let seconds = most.as_secs();
            tracing::warn!(%dif.location, attempt, seconds, "reading upload timed out");
            let reason = format!("fetching and reading it took longer than {seconds} s");
            Ok(Reading::Interrupted(reason))
        })
    }
}

/// Returns the result for a file that could not be read. `over_limit` says that only its ends were
/// read, and why.
fn unread(error: DifError, over_limit: Option<Missing>) -> Result<Reading, Error> {
    let missing = match error {
        DifError::Fault(error) => return Err(error.into()),
        DifError::Changed => return Ok(Reading::Overtaken),
        DifError::Missing(missing) => missing,
    };
    Ok(match missing.cause {
        Cause::NotFound => Reading::Overtaken,
        Cause::Crashed => Reading::Interrupted(missing.detail),
        // For example, it is archived. No event follows, so the upload must not stay pending.
        _ => Reading::Ignored(over_limit.unwrap_or(missing).detail),
    })
}

/// Reads the ids of one of Microsoft's SymCaches from its key. Only Microsoft's tools can read the
/// contents.
fn read_name(location: &Location, size: u64) -> Reading {
    let Some(name) = MsSymCacheName::of(location) else {
        let form = "<pdb>/<GUID><age>/<pdb>-v<version>.symcache";
        return Reading::Ignored(format!(
            "the key of a Microsoft SymCache must have the form {form}"
        ));
    };
    let (version, first) = (name.version, FormatVersion::FIRST);
    if version < first {
        return Reading::Ignored(format!(
            "it has version {version}, and clients request {first} or later"
        ));
    }
    if size == 0 {
        return Reading::Ignored("the file is empty".to_owned());
    }
    let object = UploadedObject {
        debug_id: Some(name.debug_id),
        features: Features {
            has_debug_info: true,
            ..Features::default()
        },
        ..UploadedObject::filed(ModuleId::Debug(name.debug_id), FileType::MsSymCache)
    };
    Reading::Found(ReadUpload {
        objects: vec![object],
        skipped: Vec::new(),
        over_limit: None,
        open_difs: OpenDifs::default(),
    })
}

/// Returns the objects that have an id. For companions, also returns the ids under which programs
/// and companions are filed. Also returns the reasons why maps are skipped.
fn filed_objects(
    inspection: &Inspection,
    location: &Location,
) -> (Vec<UploadedObject>, Vec<String>) {
    let mut filed = Vec::new();
    for object in &inspection.objects {
        let Some(module) = ModuleId::of(object.debug_id, object.code_id.as_ref()) else {
            continue;
        };
        let met = object.needs.iter().map(|id| UploadedObject {
            needed_by: Some(module.clone()),
            ..UploadedObject::filed(ModuleId::Companion(id.clone()), object.file_type)
        });
        filed.extend(met);
        filed.push(UploadedObject {
            module,
            debug_id: object.debug_id,
            code_id: object.code_id.clone(),
            file_type: object.file_type,
            arch: object.arch.clone(),
            features: object.features.clone(),
            is_accompanied: object.is_accompanied,
            needs: object.needs.clone(),
            hides_names: object.hides_names,
            needed_by: None,
            fault: object.fault.clone(),
        });
    }
    let completes = inspection.completes.iter();
    filed.extend(completes.map(completing));
    let (auxiliary, skipped_maps) = filed_auxiliary(inspection, location);
    filed.extend(auxiliary);
    (filed, skipped_maps)
}

/// Returns a companion, filed under this id.
fn completing(id: &CompanionId) -> UploadedObject {
    let file_type = match id {
        CompanionId::Unit(_) | CompanionId::Shared(_) => FileType::ElfDebug,
        CompanionId::SymbolMap(_) => FileType::BcSymbolMap,
    };
    UploadedObject::filed(ModuleId::Companion(id.clone()), file_type)
}

/// Returns the auxiliary files, which are maps, as objects, and the reasons why others are skipped.
/// A map is filed under the id of the module that it completes. A UUID map and the symbol map to
/// which it refers are also filed under the id of the latter.
fn filed_auxiliary(
    inspection: &Inspection,
    location: &Location,
) -> (Vec<UploadedObject>, Vec<String>) {
    let (mut filed, mut skipped_maps) = (Vec::new(), Vec::new());
    for file in &inspection.auxiliary {
        let id = match file.id_at(original_path(location)) {
            Ok(id) => id,
            Err(reason) => {
                skipped_maps.push(reason);
                continue;
            }
        };
        if file.file_type == FileType::BcSymbolMap {
            let id = CompanionId::SymbolMap(id);
            filed.extend((!inspection.completes.contains(&id)).then(|| completing(&id)));
            continue;
        }
        let module = ModuleId::Debug(id);
        let symbol_map = file.symbol_map.map(CompanionId::SymbolMap);
        let needs = symbol_map.filter(|id| !inspection.completes.contains(id));
        filed.extend(needs.iter().map(|id| UploadedObject {
            needed_by: Some(module.clone()),
            ..UploadedObject::filed(ModuleId::Companion(id.clone()), file.file_type)
        }));
        filed.push(UploadedObject {
            debug_id: Some(id),
            needs: needs.into_iter().collect(),
            ..UploadedObject::filed(module, file.file_type)
        });
    }
    (filed, skipped_maps)
}

/// Returns what was skipped, and why: some hundred lines of at most [`MAX_LINE_BYTES`].
fn skipped(inspection: &Inspection, skipped_maps: &[String]) -> Vec<String> {
    let cut = |line: &String| match line.len() {
        ..=MAX_LINE_BYTES => line.clone(),
        _ => {
            // Names may be long, and the reason follows them.
            let tail = line.ceil_char_boundary(line.len() - MAX_LINE_BYTES);
            format!("…{}", line.get(tail..).unwrap_or_default())
        }
    };
    inspection
        .skipped
        .iter()
        .chain(skipped_maps)
        .map(cut)
        .collect()
}

fn reason_for_nothing(inspection: &Inspection, skipped_maps: &[String]) -> String {
    match skipped(inspection, skipped_maps).as_slice() {
        [] => "it contains no debug information file".to_owned(),
        reasons => reasons.join("; "),
    }
}
