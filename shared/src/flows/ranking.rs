//! Ranks the DIFs of a module for each kind.

use std::cmp::Reverse;
use std::time::Duration;

use crate::cache::{Capabilities, Dif, Kind};
use crate::domain::{Candidate, Cause, Download, FileType, Missing, Rank};

/// The maximum number of DIFs of a module that a build tries and notes in the record: the best
/// ones.
pub const MAX_RANKED: usize = 32;

/// A DIF that may serve a kind, with its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The DIF.
    pub dif: Dif,
    /// The version that would be made from it.
    pub version: u32,
    /// Its rank.
    pub rank: Rank,
}

/// Ranks the DIFs of a module for a kind, the best first. A DIF for a newer version comes first;
/// then debug information before symbols before nothing. Ties are broken by file type and location,
/// so that the result does not depend on the order of the events.
///
/// A DIF over a limit that still applies is left out. If no DIF is left, returns that reason.
pub fn rank(difs: &[Dif], kind: Kind, capabilities: &Capabilities) -> Result<Vec<Ranked>, Missing> {
    let mut over_limit = None;
    let mut ranked = Vec::new();
    for dif in difs {
        let Some(version) = dif.version_for(kind, capabilities) else {
            continue;
        };
        match &dif.over_limit {
            Some(missing) if still_holds(missing, &capabilities.limits) => {
                over_limit = over_limit.or(Some(missing.clone()));
            }
            _ => ranked.push(Ranked {
                dif: dif.clone(),
                version,
                rank: Rank::of(&dif.features, kind.purpose()),
            }),
        }
    }
    if ranked.is_empty() {
        return Err(over_limit.unwrap_or_else(|| nothing_serves(difs, kind)));
    }
    ranked.sort_by_cached_key(|ranked| {
        (
            Reverse(ranked.version),
            // An uploaded SymCache needs no work.
            ranked.dif.file_type != FileType::MsSymCache,
            ranked.rank,
            Reverse(ranked.dif.is_accompanied),
            ranked.dif.file_type,
            ranked.dif.file.location.clone(),
        )
    });
    ranked.truncate(MAX_RANKED);
    Ok(ranked)
}

/// Returns a DIF as a candidate of responses. `took` is how long fetching it took, if it was
/// fetched.
pub fn candidate(dif: &Dif, outcome: Option<&Missing>, took: Option<Duration>) -> Candidate {
    let there = || Download::Ok {
        features: dif.features.clone(),
    };
    Candidate {
        source: dif.module.source.clone(),
        location: dif.file.location.clone(),
        download: outcome.map_or_else(there, Download::failed),
        size: Some(dif.size),
        duration_ms: took.and_then(|took| u64::try_from(took.as_millis()).ok()),
        // If deriving failed, `download` has the reason.
        fault: match outcome {
            Some(_) => None,
            None => dif.fault.as_ref().map(|fault| fault.detail.clone()),
        },
    }
}

/// Returns the DIFs that were found for a kind although no cache of it can be made from their type:
/// the Windows PDBs of a .NET module. Responses list them, so that they show which file to replace.
pub fn unsupported(difs: &[Dif], kind: Kind) -> impl Iterator<Item = &Dif> {
    difs.iter()
        .filter(move |dif| kind == Kind::PpdbCache && dif.file_type == FileType::Pdb)
}

fn still_holds(missing: &Missing, limits: &[u64]) -> bool {
    !matches!(missing.cause, Cause::TooLarge { limit } if !limits.contains(&limit))
}

/// Returns why no DIF serves a kind: there is none, or those that exist serve other purposes.
fn nothing_serves(difs: &[Dif], kind: Kind) -> Missing {
    if unsupported(difs, kind).next().is_some() {
        Missing::new(
            Cause::Unsupported,
            "a Windows PDB cannot serve a .NET module; upload its portable PDB",
        )
    } else {
        Missing::not_found()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{ModuleKey, ReleaseNumbers};
    use crate::domain::{DifRef, Features, FileType, Location, ModuleId, Scope};

    fn dif(name: &str, file_type: FileType, offers: &str) -> Dif {
        let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
        let module = ModuleKey::uploads(Scope::Global, &id);
        let file = DifRef {
            location: Location::new(name),
            etag: "1".to_owned(),
        };
        Dif {
            features: Features {
                has_debug_info: offers.contains("debug"),
                has_unwind_info: offers.contains("unwind"),
                has_symbols: offers.contains("symbols"),
                ..Features::default()
            },
            ..Dif::new(module, file, 1, file_type)
        }
    }

    fn capabilities(limits: &[u64]) -> Capabilities {
        Capabilities {
            numbers: ReleaseNumbers::CURRENT,
            limits: limits.to_vec(),
            transcoded: Vec::new(),
        }
    }

    fn ranked(difs: &[Dif], kind: Kind) -> Vec<String> {
        rank(difs, kind, &capabilities(&[100]))
            .unwrap()
            .iter()
            .map(|ranked| ranked.dif.file.location.to_string())
            .collect()
    }

    #[test]
    fn names_come_from_the_debug_file_and_unwind_information_from_the_program() {
        let difs = [
            dif("a.exe", FileType::Pe, "unwind symbols"),
            dif("a.pdb", FileType::Pdb, "debug symbols"),
        ];
        assert_eq!(ranked(&difs, Kind::SymCache), ["a.pdb", "a.exe"]);
        assert_eq!(ranked(&difs, Kind::CfiCache), ["a.exe", "a.pdb"]);
    }

    #[test]
    fn the_ranking_depends_on_the_files_and_not_on_their_order() {
        let mut difs = vec![
            dif("nothing", FileType::ElfCode, ""),
            dif("z", FileType::ElfDebug, "debug"),
            dif("symbols", FileType::ElfCode, "symbols"),
            dif("a", FileType::Breakpad, "debug"),
            dif("b", FileType::ElfDebug, "debug"),
        ];
        // Debug information before symbols before nothing; then the file type; then the path.
        let expected = ["b", "z", "a", "symbols", "nothing"];
        for _ in 0..difs.len() {
            assert_eq!(ranked(&difs, Kind::SymCache), expected);
            difs.rotate_left(1);
        }
        difs.reverse();
        assert_eq!(ranked(&difs, Kind::SymCache), expected);
    }

    #[test]
    fn a_file_that_is_too_large_is_skipped_until_the_limit_grows() {
        let too_large = Missing::new(Cause::TooLarge { limit: 100 }, "too large");
        let too_large_dif = Dif {
            over_limit: Some(too_large.clone()),
            ..dif("large", FileType::ElfDebug, "debug")
        };
        let other = dif("small", FileType::ElfCode, "symbols");
        assert_eq!(
            ranked(&[too_large_dif.clone(), other], Kind::SymCache),
            ["small"]
        );
        assert_eq!(
            rank(
                std::slice::from_ref(&too_large_dif),
                Kind::SymCache,
                &capabilities(&[100])
            ),
            Err(too_large)
        );
        let grown = rank(&[too_large_dif], Kind::SymCache, &capabilities(&[200])).unwrap();
        assert_eq!(grown.len(), 1);
    }

    #[test]
    fn the_reason_is_reported_if_no_file_serves() {
        let cause = |difs: &[Dif], kind| rank(difs, kind, &capabilities(&[])).unwrap_err().cause;
        assert_eq!(cause(&[], Kind::SymCache), Cause::NotFound);
        assert_eq!(
            cause(
                &[dif("sources", FileType::SourceBundle, "")],
                Kind::SymCache
            ),
            Cause::NotFound
        );
        assert_eq!(
            cause(&[dif("a.pdb", FileType::Pdb, "debug")], Kind::PpdbCache),
            Cause::Unsupported
        );
        assert_eq!(
            cause(
                &[dif("a.debug", FileType::ElfDebug, "debug")],
                Kind::PpdbCache
            ),
            Cause::NotFound
        );
    }

    #[test]
    fn a_windows_pdb_is_unsupported_for_a_dotnet_module_only() {
        let difs = [
            dif("a.pdb", FileType::Pdb, "debug"),
            dif("b.pdb", FileType::PortablePdb, "debug"),
            dif("c.exe", FileType::Pe, "unwind"),
        ];
        let listed = |kind| {
            let listed = unsupported(&difs, kind).map(|dif| dif.file.location.to_string());
            listed.collect::<Vec<_>>()
        };
        assert_eq!(listed(Kind::PpdbCache), ["a.pdb"]);
        assert_eq!(ranked(&difs, Kind::PpdbCache), ["b.pdb"]);
        assert!(listed(Kind::SymCache).is_empty());
    }

    #[test]
    fn a_candidate_reports_its_outcome() {
        let dif = dif("a", FileType::ElfDebug, "debug");
        let download = |cause: Option<Cause>| {
            let missing = cause.map(|cause| Missing::new(cause, "because"));
            candidate(&dif, missing.as_ref(), None).download
        };
        let details = "because".to_owned();
        assert_eq!(
            download(None),
            Download::Ok {
                features: dif.features.clone()
            }
        );
        assert_eq!(download(Some(Cause::NotFound)), Download::NotFound);
        assert_eq!(
            download(Some(Cause::PermissionDenied)),
            Download::NoPerm {
                details: details.clone()
            }
        );
        assert_eq!(download(Some(Cause::Malformed)), Download::Malformed);
        assert_eq!(download(Some(Cause::Crashed)), Download::Malformed);
        assert_eq!(download(Some(Cause::Timeout)), Download::Error { details });
    }
}
