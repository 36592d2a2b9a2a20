//! Microsoft's SymCaches in a build: taken over as they were uploaded, or transcoded. Their bytes mean nothing here.

use bytes::Bytes;

use super::super::Invocation;
use super::builder::Builder;
use super::make::Origin;
use super::work::Target;
use crate::cache::{Derived, Dif, Kind, ModuleKey, Ready, Transcoding};
use crate::debuginfo;
use crate::domain::{DifRef, FormatVersion, Missing, ObjectMeta, Rank};
use crate::ports::DifError;

/// The most bytes that a file may have which is stored as it came: they are in memory.
const MAX_OPAQUE_BYTES: u64 = 1 << 30;

/// The longest name that a file has beside its extension, in bytes, with room for a version behind it.
const MAX_STEM_BYTES: usize = 200;

impl Builder {
    /// Stores what was uploaded ready-made: one answer for each kind that wants it.
    pub(super) async fn take_over(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        dif: &Dif,
        targets: &[Target<'_>],
    ) -> Result<Vec<Result<Ready, Missing>>, DifError> {
        if dif.size > MAX_OPAQUE_BYTES {
            let bytes = dif.size;
            let detail = format!("its {bytes} bytes exceed {MAX_OPAQUE_BYTES}, all that are taken");
            return Err(DifError::Missing(Missing::malformed(detail)));
        }
        let DifRef { location, etag } = &dif.file;
        let mut answers = Vec::with_capacity(targets.len());
        for target in targets {
            let bytes = self.uploads.read(location, etag, 0..dif.size).await?;
            let about = Origin {
                made_from: vec![dif.file.clone()],
                rank: Rank::of(&dif.features, target.lease.kind.purpose()),
                features: dif.features.clone(),
                arch: String::new(),
                file_type: dif.file_type,
            };
            let derived = opaque(target.lease.kind, bytes);
            let stored = self.store(invocation, module, *target, about, derived);
            answers.push(Ok(stored.await?));
        }
        Ok(answers)
    }
}

/// Returns a cache that is stored as it came.
pub(super) fn opaque(kind: Kind, bytes: Bytes) -> Derived {
    Derived {
        kind,
        checksum: debuginfo::checksum_of_all(&bytes),
        blob: bytes,
        lacks: None,
    }
}

/// Returns what a transcoder is told of a PDB.
pub(super) fn transcoding(
    module: &ModuleKey,
    dif: &Dif,
    object: &ObjectMeta,
    version: u32,
) -> Transcoding {
    // Of a server, it is called as it was sought first: where it was found may be called otherwise.
    let sought = module.sought();
    let first = sought.as_ref().and_then(|sought| sought.locations.first());
    let location = first.map_or(&dif.file.location, |(_, location)| location);
    Transcoding {
        pdb: pdb_name(&location.file_name()),
        debug_id: object.debug_id.unwrap_or_default(),
        version: FormatVersion::from_u32(version),
    }
}

/// Returns the name of a PDB by that of the file it came in: a server may have it compressed (`.pd_`), and users (`.pdb.gz`).
fn pdb_name(file: &str) -> String {
    let lower = file.to_ascii_lowercase();
    let stem = [".pdb", ".pd_"]
        .iter()
        .find_map(|extension| lower.rfind(extension));
    let stem = stem.and_then(|at| file.get(..at)).unwrap_or(file);
    // A key of a bucket may have in it what no file name has.
    let is_odd = |c: char| c.is_control() || "/\\".contains(c);
    match stem.len() > MAX_STEM_BYTES || stem.contains(is_odd) {
        true => "module.pdb".to_owned(),
        false => format!("{stem}.pdb"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pdb_is_called_as_it_was_before_it_was_packed() {
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
