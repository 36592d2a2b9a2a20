//! Which DIF a kind is derived from: the ranking of the candidates.

use crate::cache::{Dif, Kind};
use crate::domain::{Candidate, Cause, DifRef, Download, Missing, Rank, SourceKey};

/// A DIF that may serve a kind, and how well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The DIF.
    pub dif: Dif,
    /// How well it serves.
    pub rank: Rank,
}

/// Ranks the DIFs of a module for a kind, the best first: debug information over symbols over nothing; ties by file
/// type, then by location, so that the outcome does not depend on which event came last.
///
/// A DIF that was refused under limits that still hold is left out; where nothing is left, that refusal says why.
pub fn rank(difs: &[Dif], kind: Kind, limits: &[u64]) -> Result<Vec<Ranked>, Missing> {
    let serves = |dif: &&Dif| Kind::derived_from(dif.file_type).contains(&kind);
    let mut refused = None;
    let mut ranked = Vec::new();
    for dif in difs.iter().filter(serves) {
        match &dif.refused {
            Some(missing) if still_holds(missing, limits) => refused = refused.or(Some(missing.clone())),
            _ => ranked.push(Ranked { dif: dif.clone(), rank: Rank::of(&dif.features, kind.purpose()) }),
        }
    }
    if ranked.is_empty() {
        return Err(refused.unwrap_or_else(|| nothing_serves(difs, kind)));
    }
    ranked.sort_by(|a, b| {
        let key = |ranked: &Ranked| (ranked.rank, ranked.dif.file_type, ranked.dif.dif.location.clone());
        key(a).cmp(&key(b))
    });
    Ok(ranked)
}

/// Returns the DIFs that a build looked at.
pub fn considered(difs: &[Dif]) -> Vec<DifRef> {
    difs.iter().map(|dif| dif.dif.clone()).collect()
}

/// Returns a DIF as a candidate in the answers.
pub fn candidate(dif: &Dif, source: &SourceKey, outcome: Option<&Missing>) -> Candidate {
    let download = match outcome.map(|missing| (missing.cause, &missing.detail)) {
        None => Download::Ok { features: dif.features.clone() },
        Some((Cause::NotFound, _)) => Download::NotFound,
        Some((Cause::PermissionDenied, details)) => Download::NoPerm { details: details.clone() },
        Some((Cause::Malformed | Cause::Crashed, _)) => Download::Malformed,
        Some((_, details)) => Download::Error { details: details.clone() },
    };
    Candidate {
        source: source.clone(),
        location: dif.dif.location.clone(),
        download,
        size: Some(dif.size),
        duration_ms: None,
    }
}

fn still_holds(missing: &Missing, limits: &[u64]) -> bool {
    !matches!(missing.cause, Cause::TooLarge { limit } if !limits.contains(&limit))
}

/// Nothing serves: because there is nothing, or because what there is serves other purposes.
fn nothing_serves(difs: &[Dif], kind: Kind) -> Missing {
    match (difs, kind) {
        ([], _) => Missing::not_found(),
        (_, Kind::PpdbCache) if difs.iter().any(|dif| dif.file_type == crate::domain::FileType::Pdb) => {
            Missing::new(Cause::Unsupported, "a Windows PDB cannot serve a .NET module; upload its portable PDB")
        }
        _ => Missing::not_found(),
    }
}
