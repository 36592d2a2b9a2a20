//! Microsoft's SymCaches in a build: stored as they were uploaded, or transcoded. Their bytes are
//! opaque here.

use bytes::Bytes;

use super::builder::Build;
use super::kind_build::Target;
use super::made::Origin;
use crate::cache::{Derived, Dif, Kind, ModuleKey, Ready, Transcoding};
use crate::debuginfo;
use crate::domain::{DifRef, FormatVersion, Missing, ObjectMeta, Rank, original_name};
use crate::ports::DifError;

/// The maximum size of a file that is stored as it was uploaded, in bytes. The file is held in
/// memory.
const MAX_OPAQUE_BYTES: u64 = 1 << 30;

/// The maximum length of a file name without its extension, in bytes. It leaves room for a version.
const MAX_STEM_BYTES: usize = 200;

impl Build<'_> {
    /// Stores a SymCache as it was uploaded. Returns one result per kind that wants it.
    pub(super) async fn take_over(
        &self,
        dif: &Dif,
        targets: &[Target<'_>],
    ) -> Result<Vec<Result<Ready, Missing>>, DifError> {
        if dif.size > MAX_OPAQUE_BYTES {
            let bytes = dif.size;
            let detail = format!("its {bytes} bytes exceed the limit of {MAX_OPAQUE_BYTES} bytes");
            return Err(DifError::Missing(Missing::malformed(detail)));
        }
        let DifRef { location, etag } = &dif.file;
        let mut results = Vec::with_capacity(targets.len());
        for target in targets {
            let bytes = self
                .builder
                .uploads
                .read(location, etag, 0..dif.size)
                .await?;
            let about = Origin {
                made_from: vec![dif.file.clone()],
                rank: Rank::of(&dif.features, target.lease.kind.purpose()),
                features: dif.features.clone(),
                arch: String::new(),
                file_type: dif.file_type,
            };
            let derived = opaque(target.lease.kind, bytes);
            let stored = self.store(*target, about, derived);
            results.push(Ok(stored.await?));
        }
        Ok(results)
    }
}

/// Returns a cache that is stored unchanged.
pub(super) fn opaque(kind: Kind, bytes: Bytes) -> Derived {
    Derived {
        kind,
        checksum: debuginfo::checksum_of_all(&bytes),
        blob: bytes,
        lacks: None,
    }
}

/// Returns the parameters for transcoding a PDB.
pub(super) fn transcoding(
    module: &ModuleKey,
    dif: &Dif,
    object: &ObjectMeta,
    version: u32,
) -> Transcoding {
    // For a symbol server, use the name at the first location that is sought, because the file may
    // have been found under another name.
    let sought = module.sought();
    let first = sought.as_ref().and_then(|sought| sought.locations.first());
    let location = first.map_or(&dif.file.location, |(_, location)| location);
    Transcoding {
        pdb: pdb_name(&original_name(location)),
        debug_id: object.debug_id.unwrap_or_default(),
        version: FormatVersion::from_u32(version),
    }
}

/// Returns the name of a PDB, given the name of its file. The file may be compressed, by a server
/// (`.pd_`) or a user (`.pdb.gz`).
fn pdb_name(file: &str) -> String {
    let lower = file.to_ascii_lowercase();
    let stem = [".pdb", ".pd_"]
        .iter()
        .find_map(|extension| lower.rfind(extension));
    let stem = stem.and_then(|at| file.get(..at)).unwrap_or(file);
    // A key may contain characters that a file name cannot.
    let is_odd = |c: char| c.is_control() || "/\\".contains(c);
    if stem.len() > MAX_STEM_BYTES || stem.contains(is_odd) {
        "module.pdb".to_owned()
    } else {
        format!("{stem}.pdb")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pdb_gets_the_name_that_it_had_before_compression() {
        for (file, expected) in [
            ("app.pdb", "app.pdb"),
            ("My App.PDB", "My App.pdb"),
            ("app.pd_", "app.pdb"),
            ("app.pdb.gz", "app.pdb"),
            ("a.pdb.b.pdb", "a.pdb.b.pdb"),
            ("symbols.zip", "symbols.zip.pdb"),
            ("ÄÖ.pdb", "ÄÖ.pdb"),
            ("a\0b.pdb", "module.pdb"),
            ("a\\b.pdb", "module.pdb"),
            (&"a".repeat(300), "module.pdb"),
        ] {
            assert_eq!(pdb_name(file), expected, "{file}");
        }
    }
}
