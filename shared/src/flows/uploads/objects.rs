//! Where the objects of an upload are stored: in its item if they fit there, else in chunks.
//!
//! The chunks of each reading have a token of their own. They are written before the upload item
//! names the token and removed after it names it no more, so an upload item always names chunks
//! that are all there. A builder that is killed in between leaves chunks that no item names: the
//! sweep removes them ([`ObjectChunk::MAX_UNNAMED`]).

use super::super::Invocation;
use super::super::build::Builder;
use super::super::update::KnownItem;
use super::order::side_by_side;
use crate::cache::{Item, ItemKey, ObjectChunk, ObjectSet, Upload, UploadedObject};
use crate::domain::Location;
use crate::ports::{Consistency, Fault, FaultKind, RecordStore, Removed};

/// The most objects of an upload item, and of a chunk; and their most bytes, far below the 400 KB
/// of an item.
const MAX_INLINE: Size = Size {
    objects: 500,
    bytes: 100_000,
};

const MAX_CHUNK: Size = Size {
    objects: 1000,
    bytes: 250_000,
};

/// How much objects may be.
#[derive(Clone, Copy)]
struct Size {
    objects: usize,
    /// As JSON, which is larger than what DynamoDB counts.
    bytes: usize,
}

impl Builder {
    /// Stores the objects of an upload where they fit: names them in `upload`, or writes chunks
    /// that it names.
    pub(super) async fn with_objects(
        &self,
        invocation: &Invocation,
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
        let token = invocation.token();
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
            at: invocation.now(),
        };
        let chunks: Vec<ObjectChunk> = (0..).zip(chunks).map(chunk).collect();
        let update = self.update(invocation);
        side_by_side(&chunks, |chunk| {
            let key = ItemKey::objects(&location, &chunk.token, chunk.number);
            let item = Item::Objects(chunk.clone());
            async move {
                // Its token is new: nothing is stored there.
                let known = KnownItem::Before(None);
                update.write(&key, known, |_| Some(item.clone())).await
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
        let stored = self.records.load(&keys, Consistency::Strong).await?;
        for (key, stored) in keys.iter().zip(stored) {
            if let Some(stored) = stored {
                // Nobody changes a chunk.
                match self.records.remove(key, &stored.revision).await? {
                    Removed::Done | Removed::Lost(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// Returns the objects of an upload, at most about `most` of them: whole chunks are read.
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
        // One after the other where few are wanted, all at once where all are.
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
                // Since the upload item was read, it names others: a second read of it finds
                // them.
                _ => {
                    let context = format!("reading objects of {location} at {}", key.sort);
                    let error = Fault::new(FaultKind::Transient, context);
                    return Err(error.caused_by("they were replaced meanwhile"));
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

/// Divides objects, in their order, into runs that are not larger than a size, unless a single
/// object is.
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

/// Returns a number of things that a record counts.
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
