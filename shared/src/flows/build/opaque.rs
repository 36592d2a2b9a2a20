//! Microsoft's SymCaches in a build: taken over as they were uploaded, or transcoded. Their bytes mean nothing here.

use bytes::Bytes;

use super::super::Invocation;
use super::work::Work;
use super::{Builder, Origin};
use crate::cache::{Derived, Dif, Kind, ModuleKey, Ready, Transcoding, current_version};
use crate::debuginfo;
use crate::domain::{DifRef, FormatVersion, Missing, ObjectMeta, Rank};
use crate::ports::DifError;

/// The most bytes that a file may have which is stored as it came: they are in memory.
const MAX_OPAQUE_BYTES: u64 = 1 << 30;

impl Builder {
    /// Stores what was uploaded ready-made: one answer for each kind that wants it.
    pub(super) async fn take_over(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        dif: &Dif,
        wanted: &[&Work<'_>],
    ) -> Result<Vec<Result<Ready, Missing>>, DifError> {
        if dif.size > MAX_OPAQUE_BYTES {
            let bytes = dif.size;
            let detail = format!("its {bytes} bytes exceed {MAX_OPAQUE_BYTES}, all that are taken");
            return Err(DifError::Missing(Missing::malformed(detail)));
        }
        let DifRef { location, etag } = &dif.dif;
        let mut answers = Vec::with_capacity(wanted.len());
        for work in wanted {
            let bytes = self.uploads.read(location, etag, 0..dif.size).await?;
            let about = Origin {
                rank: Rank::of(&dif.features, work.lease.kind.purpose()),
                features: dif.features.clone(),
                arch: String::new(),
                file_type: dif.file_type,
            };
            let derived = opaque(work.lease.kind, bytes);
            let stored = self.store(invocation, module, work.lease, dif, about, derived);
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
    }
}

/// Returns what a transcoder is told of a PDB.
pub(super) fn transcoding(
    module: &ModuleKey,
    dif: &Dif,
    object: &ObjectMeta,
    kind: Kind,
    transcoded: &[FormatVersion],
) -> Transcoding {
    let version = dif.version_for(kind, transcoded);
    let version = version.unwrap_or_else(|| current_version(kind));
    // Of a server, it is called as it was sought first: where it was found may be called otherwise.
    let sought = module.sought();
    let first = sought.as_ref().and_then(|sought| sought.locations.first());
    let location = first.map_or(&dif.dif.location, |(_, location)| location);
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
    format!("{}.pdb", stem.and_then(|at| file.get(..at)).unwrap_or(file))
}
