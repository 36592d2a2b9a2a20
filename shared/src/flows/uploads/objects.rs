//! Stores the objects of an upload: in its item if they fit, else in chunks.
//!
//! Each read of a file writes its chunks under a unique token. They are written before the upload
//! item names the token, and removed after the item no longer names it. So the chunks that an
//! upload item names always exist. If a builder is killed in between, the pruner removes the chunks
//! that no item names ([`ObjectChunk::MAX_UNNAMED`]).

use super::changes::UploadChanges;
use super::side_by_side::side_by_side;
use crate::cache::{Item, ItemKey, ObjectChunk, ObjectSet, Upload, UploadedObject};
use crate::domain::Location;
use crate::flows::update::KnownItem;
use crate::ports::{Consistency, Fault, FaultKind, RecordStore, Removed};

/// The limits of the objects in an upload item. Both limits of bytes are far below the 400 KB of a
/// DynamoDB item.
const MAX_INLINE: Size = Size {
    objects: 500,
    bytes: 100_000,
};

const MAX_CHUNK: Size = Size {
    objects: 1000,
    bytes: 250_000,
};

/// Limits of a group of objects.
#[derive(Clone, Copy)]
struct Size {
    objects: usize,
    /// The size as JSON, which is larger than the size that DynamoDB counts.
    bytes: usize,
}

impl UploadChanges<'_> {
    /// Stores the objects of an upload: in `upload`, or in chunks that it names.
    pub(super) async fn with_objects(
        &self,
        upload: Upload,
        objects: Vec<UploadedObject>,
    ) -> Result<Upload, Fault> {
        let mut chunks = divided(objects, MAX_INLINE);
        if chunks.len() <= 1 {
            return Ok(Upload {
                objects: chunks.pop().unwrap_or_default(),
                object_set: None,
                ..upload
            });
        }
        let chunks = divided(chunks.concat(), MAX_CHUNK);
        let token = self.token();
        let location = upload.location();
        let set = ObjectSet {
            token: token.clone(),
            objects: count(chunks.iter().map(Vec::len).sum()),
            chunks: count(chunks.len()),
        };
        let chunk = |(number, objects)| ObjectChunk {
            key: upload.key.clone(),
            token: token.clone(),
            number,
            objects,
            at: self.invocation.now(),
        };
        let chunks: Vec<ObjectChunk> = (0..).zip(chunks).map(chunk).collect();
        let writer = self.writer();
        side_by_side(&chunks, |chunk| {
            let key = ItemKey::objects(&location, &chunk.token, chunk.number);
            let item = Item::Objects(chunk.clone());
            async move {
                // The token is new, so no item exists.
                let known = KnownItem::Read(None);
                writer.write(&key, known, |_| Some(item.clone())).await
            }
        })
        .await?;
        Ok(Upload {
            objects: Vec::new(),
            object_set: Some(set),
            ..upload
        })
    }

    /// Removes the chunks of a set that no upload item names any more.
    pub(super) async fn remove_objects(
        &self,
        location: &Location,
        set: &ObjectSet,
    ) -> Result<(), Fault> {
        let keys = chunk_keys(location, set);
        let records = &self.builder.records;
        let stored = records.load(&keys, Consistency::Strong).await?;
        for (key, stored) in keys.iter().zip(stored) {
            if let Some(stored) = stored {
                // A chunk never changes.
                match records.remove(key, &stored.revision).await? {
                    Removed::Done | Removed::Lost(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// Returns the objects of an upload, and stops after the chunk that reaches `most`.
pub(crate) async fn objects_of(
    records: &dyn RecordStore,
    upload: &Upload,
    most: usize,
) -> Result<Vec<UploadedObject>, Fault> {
    let Some(set) = &upload.object_set else {
        return Ok(upload.objects.clone());
    };
    let location = upload.location();
    let (mut objects, mut keys) = (Vec::new(), chunk_keys(&location, set));
    keys.reverse();
    while let Some(key) = keys.pop()
        && objects.len() < most
    {
        // Read chunk by chunk if few objects are needed, and all chunks at once if all are.
        let mut batch = vec![key];
        if most >= set.objects as usize {
            batch.extend(keys.drain(..).rev());
        }
        for (key, stored) in batch
            .iter()
            .zip(records.load(&batch, Consistency::Strong).await?)
        {
            match stored.map(|stored| stored.item) {
                Some(Item::Objects(chunk)) => objects.extend(chunk.objects),
                // The upload item names other chunks by now. A second read of the item finds them.
                _ => {
                    let context = format!("reading objects of {location} at {}", key.sort);
                    let error = Fault::new(FaultKind::Transient, context);
                    return Err(error.caused_by("the chunks were replaced meanwhile"));
                }
            }
        }
    }
    Ok(objects)
}

fn chunk_keys(location: &Location, set: &ObjectSet) -> Vec<ItemKey> {
    let key = |number| ItemKey::objects(location, &set.token, number);
    (0..set.chunks).map(key).collect()
}

/// Divides objects, in order, into runs within the limits. A single object may exceed them.
fn divided(objects: Vec<UploadedObject>, most: Size) -> Vec<Vec<UploadedObject>> {
    let mut runs: Vec<Vec<UploadedObject>> = Vec::new();
    let mut bytes = 0;
    for object in objects {
        let length = serde_json::to_vec(&object).map_or(most.bytes, |json| json.len());
        match runs.last_mut() {
            Some(run) if run.len() < most.objects && bytes + length <= most.bytes => {
                bytes += length;
                run.push(object);
            }
            _ => {
                bytes = length;
                runs.push(vec![object]);
            }
        }
    }
    runs
}

/// Returns a count as records store it.
pub(super) fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{CodeId, FileType, ModuleId};

    fn object(code_id: String) -> UploadedObject {
        let code_id = CodeId::new(code_id);
        UploadedObject {
            code_id: Some(code_id.clone()),
            arch: "x86_64".to_owned(),
            ..UploadedObject::filed(ModuleId::Code(code_id), FileType::ElfDebug)
        }
    }

    #[test]
    fn objects_are_divided_by_their_number_and_by_their_size() {
        let most = Size {
            objects: 3,
            bytes: 2000,
        };
        let sizes = |objects: Vec<UploadedObject>| {
            let runs = divided(objects, most);
            runs.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(Vec::new()), [0; 0]);
        let small = |number: u64| object(format!("{number:08x}"));
        assert_eq!(sizes((1..=7).map(small).collect()), [3, 3, 1]);
        let large = object("ab".repeat(500));
        assert_eq!(
            sizes(vec![large.clone(), small(1), small(2), large]),
            [1, 2, 1]
        );
    }
}
